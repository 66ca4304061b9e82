"""Every Python block of the README, the quickstart and the other pages is executed as it is written.

They run on the fake, in one process for each page. Pages with Docker on them also run on a real engine
where there is one; the README's program does so in tests/test_pages.py. A block that cannot run here
says so in a comment above it, and is counted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from .pages import ROOT, blocks, name_of

Record = Callable[[str, object], None]

EXECUTED = [
    ROOT / "README.md",
    ROOT / "examples/README.md",
    ROOT / "docs/README.md",
    ROOT / "docs/quickstart.md",
    *sorted((ROOT / "docs/how-to").glob("*.md")),
    *sorted((ROOT / "docs/explanation").glob("*.md")),
]
ON_AN_ENGINE = [
    ROOT / "docs/README.md",
    ROOT / "docs/quickstart.md",
    *(ROOT / f"docs/how-to/{name}.md" for name in ("docker", "ci", "integrations")),
]
ALLOWED_UNEXECUTED = 0
"""Blocks with a comment "not executed". A rise needs a reason here."""


def run(page: Path, folder: Path, *image: str) -> list[str]:
    """Where each block ran; a block that failed fails."""
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", str(ROOT / "tests/docs/run_page.py"), str(page), *image],
        cwd=folder,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, tuple[str, str]] = json.loads(done.stdout)
    for line, (failure, _) in found.items():
        if failure:
            pytest.fail(f"{page.name}, the block at line {line}:\n{failure}\n{done.stderr}", pytrace=False)
    return [place for _, place in found.values()]


@pytest.mark.parametrize("page", EXECUTED, ids=name_of)
def test_the_blocks_of_a_page_run(page: Path, tmp_path: Path, record_property: Record) -> None:
    python = [block for block in blocks(page.read_text()) if block.language == "python"]
    if python:
        places = run(page, tmp_path)
        assert len(places) == sum(block.way != "not executed" for block in python)
        for place in places:
            record_property("executed", place)


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.parametrize("page", ON_AN_ENGINE, ids=name_of)
def test_the_blocks_run_on_a_real_engine(
    page: Path, docker_image: str, tmp_path: Path, record_property: Record
) -> None:
    places = run(page, tmp_path, docker_image)
    assert "a real engine" in places
    for place in places:
        record_property("executed", place)


def test_unexecuted_blocks_are_counted() -> None:
    python = [b for page in EXECUTED for b in blocks(page.read_text()) if b.language == "python"]
    assert sum(block.way == "not executed" for block in python) == ALLOWED_UNEXECUTED
    assert len(python) >= 25


def test_no_block_hides_behind_another_name() -> None:
    """``py`` or ``python3`` would be coloured and not executed."""
    names = {block.language for page in EXECUTED for block in blocks(page.read_text())}
    known = {"python", "console", "bash", "text", "json", "yaml", "toml", "dockerfile", "markdown", "pycon"}
    assert names <= known


def test_a_block_that_fails_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Text.\n\n```python\nprint('fine')\n```\n\n```python\nimport nothing_of_the_kind\n```\n")
    with pytest.raises(pytest.fail.Exception, match=r"line 8:(?s:.)*nothing_of_the_kind"):
        run(page, tmp_path)


def test_a_test_on_a_page_that_fails_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\ndef test_it(sbx_fake):\n    assert sbx_fake.calls\n```\n")
    with pytest.raises(pytest.fail.Exception, match="line 2:"):
        run(page, tmp_path)

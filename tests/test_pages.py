"""What the pages at the top say is true: links lead somewhere, and the README's program runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted(ROOT.glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text())
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_in_backticks_exist(page: Path) -> None:
    """Folders and files that a page names; `tests/...` style placeholders do not appear."""
    named = re.findall(r"`((?:src|tests|contract|scripts|docs)/[\w/.]*)`", page.read_text())
    missing = [path for path in named if not (ROOT / path).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = re.findall(r"(?:`|\$ |\"\$\()make ([a-z -]+)", page.read_text())
    assert {word for words in named for word in words.split()} <= targets


def readme_program_prints(target: str, folder: Path) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    path = folder / "readme.py"
    assert "docker://python:3.12-slim" in program
    path.write_text(program.replace("docker://python:3.12-slim", target))
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:6] == ["0 hello", "b'hello\\n'", "1", "2", "3", lines[5]]
    assert lines[5].startswith("no network: <urlopen error ")


@pytest.mark.engine
@pytest.mark.slow
def test_the_readme_program_runs(docker_image: str, tmp_path: Path) -> None:
    readme_program_prints(f"docker://{docker_image}", tmp_path)


def test_the_readme_program_prints_the_same_on_the_fake(tmp_path: Path) -> None:
    """Its comment says that the target is all that has to be changed."""
    readme_program_prints("fake://", tmp_path)

"""The workflows call what a contributor calls, are pinned, and may do little."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
PINNED = re.compile(r"uses: [\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$")


def lines(path: Path) -> list[str]:
    return [line.strip().removeprefix("- ") for line in path.read_text().splitlines()]


def targets() -> set[str]:
    return set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def environments() -> set[str]:
    text = (ROOT / "tox.ini").read_text()
    listed = text.partition("env_list =")[2].partition("skip_missing")[0]
    return {name for each in re.findall(r"(?:[^\s,{]|\{[^}]*\})+", listed) for name in expanded(each)}


def expanded(names: str) -> list[str]:
    """``a-{b,c}`` as tox reads it."""
    parts = re.split(r"\{([^}]*)\}", names)
    choices = [part.split(",") if index % 2 else [part] for index, part in enumerate(parts)]
    return ["".join(choice) for choice in itertools.product(*choices)]


def complaints(path: Path) -> list[str]:
    """What this file does that it may not."""
    text = path.read_text()
    found = [line for line in lines(path) if line.startswith("uses:") and not PINNED.fullmatch(line)]
    found += [
        f"make {target}: no such target"
        for target in re.findall(r"run: make ([a-z0-9-]+)", text)
        if target not in targets()
    ]
    named = re.findall(r"env: ([a-z0-9-]+), python", text)
    named += [name for group in re.findall(r"tox run -e ([a-z0-9,-]+)", text) for name in group.split(",")]
    found += [f"tox -e {name}: no such environment" for name in named if name not in environments()]
    if not re.search(r"^permissions: \{\}$", text, re.MULTILINE):
        found.append("a job without its own permissions gets more than none")
    found += [
        f"{job}: no timeout"
        for job, body in _jobs(text).items()
        if not re.search(r"^    timeout-minutes: \d+$", body, re.MULTILINE)
    ]
    found += [f"{line}: code and data mixed" for line in lines(path) if re.match(r"run: .*\$\{\{", line)]
    return found


def _jobs(text: str) -> dict[str, str]:
    parts = re.split(r"^  ([a-z0-9-]+):$", text.partition("\njobs:\n")[2], flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_it_is_pinned_and_calls_what_exists(path: Path) -> None:
    assert complaints(path) == []


def test_what_the_specification_asks_for_is_there() -> None:
    text = {path.stem: path.read_text() for path in WORKFLOWS}
    assert set(text) == {"ci", "nightly", "weekly", "release", "docs"}
    assert "pull_request:" in text["ci"]
    for name in ("lint", "types", "py311", "py312", "py313", "lowest", "wheel"):
        assert f"env: {name}," in text["ci"]
    for framework in ("mcp", "langgraph", "openai-agents", "pydantic-ai"):
        for version in ("lowest", "newest"):
            assert f"env: {framework}-{version}," in text["weekly"]
    assert "label=io.sandboxio.managed" in text["ci"]
    assert "secrets.E2B_API_KEY" in text["nightly"]
    assert "--label provider-churn" in text["nightly"]
    assert "run: make docs" in text["docs"]
    assert "id-token: write" in text["release"]
    assert "password" not in text["release"]


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("@3d3c42e5aac5ba805825da76410c181273ba90b1 # v7.0.1", "@v7", "uses: actions/checkout@v7"),
        ("run: make test", "run: make tests", "make tests: no such target"),
        ("{ env: lowest,", "{ env: oldest,", "tox -e oldest: no such environment"),
        (
            "permissions: {}",
            "permissions: write-all",
            "a job without its own permissions gets more than none",
        ),
        ("    timeout-minutes: 15\n", "", "demo: no timeout"),
        ("run: make demo", "run: echo ${{ github.head_ref }}", "run: echo ${{ github.head_ref }}: code"),
    ],
)
def test_each_rule_can_be_broken(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    text = (ROOT / ".github/workflows/ci.yml").read_text()
    assert old in text
    broken = tmp_path / "ci.yml"
    broken.write_text(text.replace(old, new))
    assert any(line.startswith(complaint) for line in complaints(broken))


def test_a_report_needs_a_program_that_shows_the_fault() -> None:
    text = (ROOT / ".github/ISSUE_TEMPLATE/bug.yml").read_text()
    body = text.partition("id: reproduction")[2].partition("  - type:")[0]
    assert "required: true" in body
    assert "sandboxio doctor" in text
    assert "blank_issues_enabled: false" in (ROOT / ".github/ISSUE_TEMPLATE/config.yml").read_text()


@pytest.mark.slow
def test_zizmor_finds_nothing_here_and_something_there(tmp_path: Path) -> None:
    zizmor = shutil.which("zizmor", path=str(Path(sys.executable).parent))
    if zizmor is None:
        pytest.skip("zizmor is not in this environment")
    command = [zizmor, "--offline", "--quiet", "--persona=pedantic"]
    done = subprocess.run([*command, str(ROOT / ".github")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    broken = tmp_path / ".github/workflows/ci.yml"
    broken.parent.mkdir(parents=True)
    text = (ROOT / ".github/workflows/ci.yml").read_text()
    broken.write_text(text.replace("  pull_request:", "  pull_request_target:"))
    done = subprocess.run([*command, str(broken)], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "dangerous-triggers" in done.stdout

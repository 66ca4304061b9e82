"""``scripts/run_gates.sh`` in a tree of its own, where make, tox and the Pythons are stand-ins."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SYSTEM = ("bash", "dirname", "env")


class Tree:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log"
        (folder / "scripts").mkdir()
        shutil.copy(ROOT / "scripts/run_gates.sh", folder / "scripts")
        self.program("bin/make", 'echo "make $*" >> "$LOG"')
        self.program(".venv/bin/python", 'echo "$*" >> "$LOG"; [ "${*##*-e }" != "$BROKEN" ]')
        for name in SYSTEM:
            found = shutil.which(name)
            assert found is not None
            (folder / "bin" / name).symlink_to(found)

    def program(self, name: str, text: str = "true") -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def run(self, broken: str = "") -> tuple[int, str, list[str]]:
        done = subprocess.run(
            [self.folder / "scripts/run_gates.sh"],
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
            env={
                "PATH": str(self.folder / "bin"),
                "HOME": str(self.folder),
                "LOG": str(self.log),
                "BROKEN": broken,
            },
        )
        assert done.stderr == ""
        return done.returncode, done.stdout, self.log.read_text().splitlines()


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_every_gate_runs_on_the_pythons_that_are_here(tree: Tree) -> None:
    tree.program("bin/python3.11")
    tree.program(".pyenv/versions/3.12.1/bin/python3.12")
    tree.program(".venv/bin/python3.13")
    code, out, log = tree.run()
    assert code == 0
    tox = "-m tox run -q --skip-missing-interpreters false -e"
    assert log == [
        "make lint",
        "make types",
        f"{tox} lowest-core",
        f"{tox} py312-core",
        f"{tox} py313-core",
    ]
    assert "NOT RUN" not in out


def test_a_python_that_is_not_here_is_named(tree: Tree) -> None:
    tree.program("bin/python3.11")
    tree.program("bin/python3.12", "exit 1")  # as pyenv's shim for a version that is not chosen
    code, out, log = tree.run()
    assert code == 0
    assert "== Python 3.12, in short: NOT RUN, there is no python3.12 here (PATH, ~/.pyenv)\n" in out
    assert "== Python 3.13, in short: NOT RUN, there is no python3.13 here (PATH, ~/.pyenv)\n" in out
    assert len(log) == 3


def test_one_that_fails_is_named_and_the_others_run(tree: Tree) -> None:
    for version in ("3.11", "3.12", "3.13"):
        tree.program(f"bin/python{version}")
    code, out, log = tree.run(broken="lowest-core")
    assert code == 1
    assert out.endswith("failed gate: the lowest versions allowed, in short\n")
    assert len(log) == 5

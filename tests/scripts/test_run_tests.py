"""``scripts/run_tests.sh`` in a tree of its own, where Python and the gates are stand-ins."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PYTHON = """#!/bin/sh
case "$*" in
    *"engine up") echo "export DOCKER_HOST=unix:///e SBX_TEST_IMAGE=image" ;;
    *--list) echo "podman" ;;
esac
echo "$*" >> "$LOG"
case "$*" in *run_pass*"$SHAKY"*) echo "tests/a.py::test_a" >> "$3" ;; esac
case "$*" in *"$BROKEN"*) exit 1 ;; esac
"""
GATES = """#!/bin/sh
echo "what the gates say"
[ "$BROKEN" != gates ]
"""
SERVERS = "tests/e2b tests/e2b_standin tests/mcp tests/testing"
IMAGES = "tests/real/test_commands.py tests/real/test_creator_killed.py tests/real/test_images.py "
PASSES = (
    f"{SERVERS} -m not",
    "tests --ignore=tests/e2b --ignore=tests/e2b_standin --ignore=tests/mcp --ignore=tests/testing -m not",
    "contract -m not",
    f"{IMAGES}tests/real/test_pull.py -m engine",
    "--ignore=tests/real/test_images.py --ignore=tests/real/test_pull.py -m engine",
    "contract -m engine",
    "engines_matrix podman",
    "scripts.guarantees",
)


def run(folder: Path, broken: str, shaky: str = "nothing") -> tuple[int, str, str]:
    (folder / ".venv/bin").mkdir(parents=True)
    (folder / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/run_tests.sh", folder / "scripts")
    for name, text in ((".venv/bin/python", PYTHON), ("scripts/run_gates.sh", GATES)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    (folder / "tmp").mkdir()
    done = subprocess.run(
        [folder / "scripts/run_tests.sh"],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
        env={
            "PATH": "/usr/bin:/bin",
            "LOG": str(folder / "log"),
            "BROKEN": broken,
            "SHAKY": shaky,
            "TMPDIR": str(folder / "tmp"),
        },
    )
    assert done.stderr == ""
    assert not list((folder / "tmp").iterdir()), "a file was left"
    return done.returncode, done.stdout, (folder / "log").read_text()


def test_all_passes_run_and_what_the_gates_say_is_shown(tmp_path: Path) -> None:
    code, out, log = run(tmp_path, "nothing")
    assert (code, out.splitlines()[-1]) == (0, "all passes passed")
    assert "what the gates say" in out
    for each in PASSES:
        assert each in log


@pytest.mark.parametrize(
    ("broken", "name"),
    [
        (" tests/testing -m not", "unit: E2B at its stand-in, MCP, what is for tests"),
        ("--ignore=tests/testing -m not", "unit: all else"),
        ("contract -m not", "contract: the fake, and E2B at its stand-in"),
        ("contract -m engine", "contract: image at unix:///e"),
        (" tests/real/test_pull.py -m engine", "engine: commands, killed creators, images"),
        ("--ignore=tests/real/test_pull.py -m engine", "engine: all else"),
        ("engines_matrix podman", "contract on one of: podman"),
        ("engines_matrix --list", "the list of further engines"),
        ("scripts.guarantees", "guarantees"),
        ("gates", "the gates: lint, types, lowest versions, other Pythons"),
    ],
)
def test_a_pass_that_fails_is_named_and_the_others_run(tmp_path: Path, broken: str, name: str) -> None:
    code, out, log = run(tmp_path, broken)
    assert code == 1
    assert out.splitlines()[-1] == f"failed: {name}"
    assert out.count("failed: ") == 1
    for each in PASSES:
        assert each in log


@pytest.mark.parametrize("shaky", ["contract -m not", "contract -m engine", " tests/real/test_pull.py"])
def test_an_unsteady_test_is_named_at_the_end_and_fails_nothing(tmp_path: Path, shaky: str) -> None:
    code, out, _ = run(tmp_path, "nothing", shaky)
    assert code == 0
    told, name, verdict = out.splitlines()[-3:]
    assert told.startswith("unsteady, a fault to look for")
    assert (name, verdict) == ("    tests/a.py::test_a", "all passes passed")


def test_an_engine_that_does_not_come_up_ends_it_at_once(tmp_path: Path) -> None:
    code, out, log = run(tmp_path, "engine up")
    assert code == 1
    assert (out, log) == ("", "-m scripts.engine up\n")

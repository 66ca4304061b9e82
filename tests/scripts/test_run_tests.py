"""``scripts/run_tests.sh`` in a tree of its own, where Python and the gates are stand-ins."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import time
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
case "$BROKEN $*" in "endless -m scripts.run_pass"*)
    own=$(mktemp -d)
    trap 'rm -r "$own"; exit 130' INT
    echo $$ >> "$LOG.running"
    while true; do sleep 0.02; done ;;
esac
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


def start(folder: Path, broken: str, shaky: str = "nothing") -> subprocess.Popen[str]:
    (folder / ".venv/bin").mkdir(parents=True)
    (folder / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/run_tests.sh", folder / "scripts")
    for name, text in ((".venv/bin/python", PYTHON), ("scripts/run_gates.sh", GATES)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    (folder / "tmp").mkdir()
    return subprocess.Popen(
        [folder / "scripts/run_tests.sh"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={
            "PATH": "/usr/bin:/bin",
            "LOG": str(folder / "log"),
            "BROKEN": broken,
            "SHAKY": shaky,
            "TMPDIR": str(folder / "tmp"),
        },
    )


def run(folder: Path, broken: str, shaky: str = "nothing") -> tuple[int, str, str]:
    with start(folder, broken, shaky) as running:
        out, err = running.communicate(timeout=30)
    assert err == ""
    assert not list((folder / "tmp").iterdir()), "a file was left"
    return running.returncode, out, (folder / "log").read_text()


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


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGHUP, 129), (signal.SIGINT, 130), (signal.SIGTERM, 143)]
)
def test_broken_off_it_leaves_no_lane_and_no_folder(tmp_path: Path, number: int, code: int) -> None:
    deadline = time.monotonic() + 30
    with start(tmp_path, "endless") as running:
        pids: list[int] = []
        while len(pids) < 3:  # one in each lane
            assert time.monotonic() < deadline, pids
            time.sleep(0.01)
            with contextlib.suppress(FileNotFoundError):
                pids = [int(pid) for pid in (tmp_path / "log.running").read_text().split()]
        running.send_signal(number)
        out, err = running.communicate(timeout=30)
    assert (running.returncode, err) == (code, "")
    assert "what the gates say" in out
    assert not list((tmp_path / "tmp").iterdir()), "a file was left"
    assert not [pid for pid in pids if Path("/proc", str(pid)).exists()]

"""What the commands look like in a terminal, and where they must not look like that."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from sandboxio.cli.output import ProgressLine
from sandboxio.models import Progress

ROOT = Path(__file__).parents[2]
ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")

PROGRAM = """
import sys
import sandboxio
from sandboxio import CreationError, DoctorCheck, Diagnosis, Progress
from sandboxio.cli import main
from sandboxio.testing import FakeBackend
import importlib.metadata
importlib.metadata.entry_points = lambda **_: ()

class Pulling(FakeBackend):
    def reporting(self, report):
        self.report = report
        return self
    async def _provision(self, request):
        for current in range(3):
            self.report(Progress("Downloading", "layer", current << 20, 2 << 20))
        return await super()._provision(request)
    async def diagnose(self):
        fix = "Start the engine (`sudo systemctl start docker`), or set DOCKER_HOST to its address."
        return Diagnosis((
            DoctorCheck("engine", True, "Docker 26.1.5 at unix:///var/run/docker.sock (from DOCKER_HOST)"),
            DoctorCheck("caps", False, "the engine does not enforce the memory cap (cgroup v2)", fix),
        ))

sandboxio.register("pulling", Pulling)
sys.exit(main(sys.argv[1:]))
"""


def in_terminal(*arguments: str, columns: int = 80, **environment: str) -> tuple[int, str]:
    """Exit code and everything that the terminal got."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    clean = {
        name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")
    }
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**clean, "TERM": "xterm", "PYTHONPATH": str(ROOT), **environment},
    )
    os.close(theirs)
    seen = b""
    try:
        while piece := os.read(ours, 65536):
            seen += piece
    except OSError:
        pass  # the other side is closed
    finally:
        os.close(ours)
    return program.wait(30), seen.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("columns", [40, 80, 200])
@pytest.mark.parametrize("arguments", [["doctor"], ["demo", "--backend", "pulling://"], ["reap"]])
def test_every_line_fits(arguments: list[str], columns: int) -> None:
    _, text = in_terminal(*arguments, columns=columns)
    lines = [ESCAPE.sub("", line.rpartition("\r")[2]) for line in text.split("\n")]
    too_long = [line for line in lines if len(line) > columns]
    assert not [line for line in too_long if " " in line.strip()]  # a single word may stick out


def test_colours_say_nothing_that_words_do_not() -> None:
    code, text = in_terminal("doctor")
    assert code == 1
    assert "\x1b[32mok\x1b[0m" in text
    assert "\x1b[1;31mFAIL\x1b[0m" in text
    plain = ESCAPE.sub("", text)
    assert "  FAIL  caps" in plain
    assert "pulling: not working" in plain


def test_no_colour_is_hard_to_read_on_white_or_black() -> None:
    """Green, red, cyan and bold only; the rest stays the terminal's own."""
    _, text = in_terminal("demo", "--backend", "pulling://")
    codes = {code for codes in re.findall(r"\x1b\[([0-9;]*)m", text) for code in codes.split(";")}
    assert codes <= {"0", "1", "31", "32", "36"}


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_colours_can_be_switched_off(environment: dict[str, str]) -> None:
    _, text = in_terminal("doctor", **environment)
    assert "\x1b[" not in text


def test_an_empty_no_color_is_not_set() -> None:
    """As no-color.org has it."""
    assert "\x1b[32m" in in_terminal("doctor", NO_COLOR="")[1]


def test_progress_is_one_line_and_then_gone() -> None:
    code, text = in_terminal("demo", "--backend", "pulling://")
    assert code == 0
    assert "\r\x1b[KDownloading: 1 of 2 MiB" in text
    assert "\r\x1b[KDownloading: 2 of 2 MiB\r\x1b[K  " in text
    final = [line.rpartition("\r\x1b[K")[2] for line in text.split("\n")]
    assert not [line for line in final if "Downloading" in line]


def test_json_is_the_same_in_a_terminal() -> None:
    _, text = in_terminal("demo", "--backend", "pulling://", "--json")
    assert text.startswith("{\n")
    assert "\x1b" not in text


def test_the_help_fits_a_narrow_terminal() -> None:
    code, text = in_terminal("reap", "--help", columns=60)
    assert code == 0
    options = text.partition("options:")[2].partition("examples:")[0]
    assert max(len(line) for line in options.splitlines()) <= 60


def test_progress_lines_add_up_and_stay_in_the_terminal() -> None:
    bar = ProgressLine(40)
    assert bar.after(Progress("Pulling fs layer", "a")) == "Pulling fs layer"
    assert bar.after(Progress("Downloading", "a", 1 << 20, 4 << 20)) == "Downloading: 1 of 4 MiB"
    assert bar.after(Progress("Downloading", "b", 2 << 20, 4 << 20)) == "Downloading: 3 of 8 MiB"
    assert bar.after(Progress("Downloading", "b", 2 << 20, 4 << 20)) == ""
    assert bar.after(Progress("Extracting", "a", 4 << 20, 4 << 20)) == "Extracting: 4 of 4 MiB"
    assert len(bar.after(Progress("x" * 200))) == 39
    assert bar.after(Progress("evil\x1b[2J\nline")) == r"evil\x1b[2J line"

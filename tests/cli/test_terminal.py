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

from sandboxio.cli import output
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
            DoctorCheck("other", False, "no engine; tried:\\n  /a.sock: there is no such socket\\n"
                        "  /b.sock: there is no such socket", fix),
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
    assert "\x1b[38;5;28mok\x1b[0m" in text
    assert "\x1b[1;38;5;160mFAIL\x1b[0m" in text
    plain = ESCAPE.sub("", text)
    assert "  FAIL  caps" in plain
    assert "pulling: not working" in plain


def luminance(number: int) -> float:
    """Relative luminance (WCAG 2.2) of a colour of the 6x6x6 cube (xterm, 256colres.pl)."""
    assert 16 <= number <= 231
    levels = [0, 95, 135, 175, 215, 255]
    red, green, blue = (levels[(number - 16) // step % 6] / 255 for step in (36, 6, 1))
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in (red, green, blue)
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_every_colour_is_readable_on_white_and_on_black() -> None:
    """Fixed colours, so that no palette of a terminal makes them pale; the rest stays its own."""
    for kind, code in output._COLOURS.items():
        if kind == "title":
            assert code == "1"
            continue
        colour = int(code.removeprefix("1;").removeprefix("38;5;"))
        assert 1.05 / (luminance(colour) + 0.05) > 3.5, kind
        assert (luminance(colour) + 0.05) / 0.05 > 3.5, kind
    seen = set(re.findall(r"\x1b\[([0-9;]*)m", in_terminal("doctor")[1]))
    assert seen <= {"0", *output._COLOURS.values()}


def test_a_list_inside_a_detail_stays_in_its_column() -> None:
    _, text = in_terminal("doctor", columns=80)
    lines = ESCAPE.sub("", text).splitlines()
    (head,) = (line for line in lines if "no engine; tried:" in line)
    column = head.index("no engine")
    following = lines[lines.index(head) + 1 :][:2]
    assert following == [" " * (column + 2) + f"/{name}.sock: there is no such socket" for name in "ab"]


def test_a_detail_with_a_list_keeps_its_lines_in_a_pipe() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "doctor"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert "tried:\n" in done.stdout
    assert re.search(r"^ +/a\.sock: there is no such socket$", done.stdout, re.MULTILINE)


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_colours_can_be_switched_off(environment: dict[str, str]) -> None:
    _, text = in_terminal("doctor", **environment)
    assert "\x1b[" not in text


def test_an_empty_no_color_is_not_set() -> None:
    """As no-color.org has it."""
    assert "\x1b[38;5;28m" in in_terminal("doctor", NO_COLOR="")[1]


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


@pytest.mark.parametrize("columns", [40, 60, 80, 200])
@pytest.mark.parametrize("command", ["", "doctor", "reap", "demo"])
def test_the_help_fits(command: str, columns: int) -> None:
    """No line is left for the terminal to cut, and no word is broken."""
    code, text = in_terminal(*command.split(), "--help", columns=columns)
    assert code == 0
    lines = text.splitlines()
    assert max(map(len, lines)) < columns
    if command == "demo":
        assert any("docker://python:3.12-slim" in line for line in lines)


def test_examples_have_two_columns_where_they_fit() -> None:
    wide, narrow = (in_terminal("reap", "--help", columns=columns)[1] for columns in (80, 60))
    assert "  sandboxio reap                         list, remove nothing\n" in wide
    assert "  sandboxio reap\n      list, remove nothing\n" in narrow


def test_progress_lines_add_up_and_stay_in_the_terminal() -> None:
    bar = ProgressLine(40)
    assert bar.after(Progress("Pulling fs layer", "a")) == "Pulling fs layer"
    assert bar.after(Progress("Downloading", "a", 1 << 20, 4 << 20)) == "Downloading: 1 of 4 MiB"
    assert bar.after(Progress("Downloading", "b", 2 << 20, 4 << 20)) == "Downloading: 3 of 8 MiB"
    assert bar.after(Progress("Downloading", "b", 2 << 20, 4 << 20)) == ""
    assert bar.after(Progress("Extracting", "a", 4 << 20, 4 << 20)) == "Extracting: 4 of 4 MiB"
    assert len(bar.after(Progress("x" * 200))) == 39
    assert bar.after(Progress("evil\x1b[2J\nline")) == r"evil\x1b[2J line"

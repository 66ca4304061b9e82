"""Ctrl-C at one line after another of the blocking facade: nothing hangs and nothing stays."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import sandboxio
from sandboxio import _portal, sync

STRIDE = 3
"""Each round interrupts this many lines further on."""


class Interrupt:
    """Raises KeyboardInterrupt in this thread before the nth line of the facade that it comes to."""

    FILES = (_portal.__file__, sync.__file__)

    def __init__(self, number: int) -> None:
        self.left = number
        self.where = ""

    def __call__(self, frame: FrameType, event: str, _: Any) -> Interrupt | None:
        if frame.f_code.co_filename not in self.FILES:
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return self


def a_short_life(dsn: str) -> None:
    with sandboxio.create_sync(dsn) as sandbox:
        sandbox.files.write("a", b"1")
        with sandbox.stream(["seq", "3"]) as process:
            assert b"".join(chunk.data for chunk in process) == b"1\n2\n3\n"


def interrupted(dsn: str, interrupt: Interrupt) -> bool:
    before = sys.gettrace()
    sys.settrace(interrupt)
    try:
        a_short_life(dsn)
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def left_over(folder: Path) -> list[str]:
    """Sandboxes and threads that are there; what a dropped handle leaves gets some seconds to end itself."""
    deadline = time.monotonic() + 10
    while True:
        # A thread that never ran has no ident: CPython forgets to forget it when its start is interrupted.
        threads = [each.name for each in threading.enumerate() if each.ident and "sandboxio" in each.name]
        left = [*threads, *os.listdir(folder)]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.002)


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.filterwarnings("ignore:A blocking sandbox was dropped:ResourceWarning")
def test_at_every_line(host: str, tmp_path: Path) -> None:
    number, rounds = 1, 0
    while interrupted(host, interrupt := Interrupt(number)):
        gc.collect()  # a traceback may have held the handle
        assert not left_over(tmp_path / "host"), interrupt.where
        number, rounds = number + STRIDE, rounds + 1
    assert interrupt.left > 0
    assert rounds > 50


def test_a_command_that_just_started_does_not_outlive_the_with_that_never_began(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sandboxio.create_sync(host) as sandbox:
        process = sandbox.stream(["sleep", "600"])
        outcome = _portal._Call.outcome
        passes: list[object] = []

        def once(call: _portal._Call[Any]) -> Any:
            passes.append(call)
            result = outcome(call)
            if len(passes) == 1:
                raise KeyboardInterrupt
            return result

        monkeypatch.setattr(_portal._Call, "outcome", once)
        with pytest.raises(KeyboardInterrupt):
            process.__enter__()
        assert process.returncode == 137


def test_entering_twice_does_not_end_the_command(host: str) -> None:
    with sandboxio.create_sync(host) as sandbox, sandbox.stream(["cat"]) as process:
        with pytest.raises(sandboxio.ConfigurationError, match="entered before"):
            process.__enter__()
        assert process.wait().exit_code == 0

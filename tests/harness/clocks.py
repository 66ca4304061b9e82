"""Two event loops, each on a real clock or on one that jumps.

A jumping clock stands still while any task can run and otherwise goes straight to the next
deadline, so an hour's sleep costs no time and deadlines fire at exact instants. trio brings such a
clock; asyncio gets one here.

Caution, on both loops: the clock also jumps while a thread, a process or a socket is still busy.
Jumping clocks are for tests whose other side lives in the same loop.
"""

from __future__ import annotations

import asyncio
import selectors
from typing import Any

LOOPS = ("asyncio", "trio")


class _JumpingSelector(selectors.DefaultSelector):
    """Looks for I/O that is ready now; if there is none, the time asked for has passed at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:  # no deadline anywhere: only I/O or another thread can wake the loop
            return super().select(None)
        ready = super().select(0)
        if not ready and timeout > 0:
            self.now += timeout
        return ready


class AutojumpEventLoop(asyncio.SelectorEventLoop):
    """An asyncio loop whose clock starts at 0 and jumps ahead when nothing can run."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def backend_for(loop: str, *, jumping: bool) -> tuple[str, dict[str, Any]]:
    """What anyio's test runner takes to start `loop`; made anew for each test, a clock goes on."""
    if not jumping:
        return loop, {}
    if loop == "asyncio":
        return loop, {"debug": True, "loop_factory": AutojumpEventLoop}
    from trio.testing import MockClock

    return loop, {"clock": MockClock(autojump_threshold=0)}

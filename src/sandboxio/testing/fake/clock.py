"""Time as the fake's sandboxes see it."""

from __future__ import annotations

from dataclasses import dataclass

import anyio
from anyio.lowlevel import RunVar

_LOOP: RunVar[object] = RunVar("the event loop that a wait is in")


@dataclass(frozen=True, eq=False)
class _Wait:
    """Something that waits: since when on the clock of its event loop, and from which instant to which."""

    loop: object
    began: float
    start: float
    until: float


class VirtualClock:
    """Virtual seconds, which pass only while something in a sandbox waits.

    ``scale`` is real seconds per virtual one: at 0.01 a hang of five minutes takes three seconds. Code
    of the test itself takes no virtual time at all, so a breakpoint cannot make a sandbox expire.
    """

    def __init__(self, scale: float) -> None:
        self._scale = scale
        self._passed = 0.0
        self._waits: set[_Wait] = set()

    @property
    def now(self) -> float:
        """The virtual instant; while something waits, it is as far as that has come."""
        self._advance()
        return self._passed

    async def wait(self, until: float, interrupt: anyio.Event) -> None:
        """Return at the virtual instant ``until``, or before if ``interrupt`` is set.

        A wait that is cancelled or interrupted has taken its part of the time all the same.
        """
        wait = _Wait(_this_loop(), anyio.current_time(), self.now, until)
        if wait.start >= until:
            return
        self._waits.add(wait)
        try:
            with anyio.move_on_after((until - wait.start) * self._scale):
                await interrupt.wait()
                return
            self._passed = max(self._passed, until)
        finally:
            self._advance()
            self._waits.remove(wait)

    def _advance(self) -> None:
        if not self._waits:
            return
        try:
            loop, moment = _this_loop(), anyio.current_time()
        except RuntimeError:  # outside of any event loop, where none of them goes on
            return
        for wait in self._waits:
            if wait.loop is loop:  # clocks of two loops cannot be compared
                reached = wait.start + (moment - wait.began) / self._scale
                self._passed = max(self._passed, min(wait.until, reached))


def _this_loop() -> object:
    """What stands for the running event loop: anyio has no name for it that holds for both."""
    loop = _LOOP.get(None)
    if loop is None:
        loop = object()
        _LOOP.set(loop)
    return loop

"""Time as the fake's sandboxes see it."""

from __future__ import annotations

import anyio


class VirtualClock:
    """Virtual seconds, which pass only while something in a sandbox waits.

    ``scale`` is real seconds per virtual one: at 0.01 a hang of five minutes takes three seconds. Code
    of the test itself takes no virtual time at all, so a breakpoint cannot make a sandbox expire.
    """

    def __init__(self, scale: float) -> None:
        self.now: float = 0.0
        self._scale = scale

    async def wait(self, until: float, interrupt: anyio.Event) -> None:
        """Return at the virtual instant ``until``, or before if ``interrupt`` is set."""
        left = until - self.now
        if left > 0:
            with anyio.move_on_after(left * self._scale):
                await interrupt.wait()
                return
        self.now = max(self.now, until)

"""What another thread may have an event loop do: call a function, set an event."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel


def soon(loop: Any, function: Callable[[], object]) -> None:
    """Have ``loop`` (asyncio's, or trio's token of it) call ``function``, from any thread; waits for nothing.

    Raises ``RuntimeError`` if that loop has ended.
    """
    schedule = getattr(loop, "call_soon_threadsafe", None) or loop.run_sync_soon
    schedule(function)


class Wake:
    """An event that any thread may set, by calling this; made in the loop that waits for it."""

    def __init__(self) -> None:
        self.event = anyio.Event()
        self._loop = anyio.lowlevel.current_token().native_token

    def __call__(self) -> None:
        try:
            soon(self._loop, self.event.set)
        except RuntimeError:
            return  # that loop has ended, and with it whoever waited

"""An event of one event loop that any thread may set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import anyio
import anyio.lowlevel


class Wake:
    """An event that any thread may set, by calling this; made in the loop that waits for it."""

    def __init__(self) -> None:
        self.event = anyio.Event()
        # asyncio's loop and trio's token: both take a call from any thread and do not wait for it.
        native = cast("Any", anyio.lowlevel.current_token().native_token)
        soon = getattr(native, "call_soon_threadsafe", None) or native.run_sync_soon
        self._schedule = cast("Callable[[Callable[[], None]], object]", soon)

    def __call__(self) -> None:
        try:
            self._schedule(self.event.set)
        except RuntimeError:
            return  # that loop has ended, and with it whoever waited

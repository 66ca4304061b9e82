"""Which event loop uses a sandbox: any number of its tasks may, a second loop meanwhile may not."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Any

from anyio.lowlevel import current_token

from ._wake import soon
from .errors import ConfigurationError


class OneLoop:
    """Refuses a use of ``what`` while another event loop is in the middle of one.

    What two loops share would wait for a wake-up that goes to the other one. One after another is fine, and
    so is a second loop after the first has ended without leaving.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._lock = Lock()  # the other loop runs in another thread
        self._user: _User | None = None

    @contextmanager
    def use(self) -> Generator[None]:
        """Around each use. Raises ``ConfigurationError`` if another loop is inside."""
        user = self._enter(current_token().native_token)
        try:
            yield
        finally:
            with self._lock:
                user.uses -= 1
                if user.uses == 0 and user is self._user:
                    self._user = None

    def call(self, function: Callable[[], object]) -> None:
        """Call ``function``, which raises nothing: soon in another loop that is inside, or else now."""
        user = self._user
        if user is not None and user.loop is not current_token().native_token:
            try:
                # In a context of that loop: asyncio would take that of the caller, perhaps one of trio's.
                soon(user.loop, partial(user.context.copy().run, function))
            except RuntimeError:  # it has ended
                function()
        else:
            function()

    def _enter(self, loop: object) -> _User:
        with self._lock:
            if self._user is None or (self._user.loop is not loop and _has_ended(self._user.loop)):
                self._user = _User(loop)
            if self._user.loop is loop:
                self._user.uses += 1
                return self._user
        raise ConfigurationError(
            f"{self._what} is in use by another event loop.",
            hint="Give each thread a sandbox of its own: create_sync(), or create() in each loop.",
        )


@dataclass
class _User:
    """An event loop (asyncio's, or trio's token of it), a context in it, and how often it is inside."""

    loop: object
    context: Context = field(default_factory=copy_context)
    uses: int = 0


def _has_ended(loop: Any) -> bool:
    """True if nothing can run in it any more, so what it left inside will not go on."""
    if hasattr(loop, "is_closed"):
        return bool(loop.is_closed())
    try:
        soon(loop, int)  # does nothing; trio tells in no other way
    except RuntimeError:
        return True
    return False

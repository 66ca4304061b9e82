"""Which event loop uses a sandbox: any number of its tasks may, a second loop meanwhile may not."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from types import TracebackType
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

    def use(self) -> Use:
        """What a use is in: ``with shared.use():``."""
        return Use(self)

    def call(self, function: Callable[[], object]) -> None:
        """Call ``function``, which raises nothing: soon in another loop that is inside, or else now."""
        user = self._user
        if user is None or user.loop is _this_loop() or not _runs(user.loop):
            function()
            return
        try:
            # In a context of that loop: asyncio would take that of the caller, perhaps one of trio's.
            soon(user.loop, partial(user.context.copy().run, function))
        except RuntimeError:  # it has ended
            function()

    def enter(self) -> _User:
        """For :class:`Use`. Raises ``ConfigurationError`` if another loop is inside."""
        loop = _this_loop()
        with self._lock:
            if self._user is None or (self._user.loop is not loop and _has_ended(self._user.loop)):
                self._user = _User(loop)
            self.check(self._user)
            self._user.uses += 1
            return self._user

    def leave(self, user: _User) -> None:
        """For :class:`Use`."""
        with self._lock:
            user.uses -= 1
            if user.uses == 0 and user is self._user:
                self._user = None

    def check(self, user: _User) -> None:
        """Raise ``ConfigurationError`` where ``user`` is another loop than this one, and lives."""
        if user.loop is not _this_loop() and not _has_ended(user.loop):
            raise ConfigurationError(
                f"{self._what} is in use by another event loop.",
                hint="Give each thread a sandbox of its own: create_sync(), or create() in each loop.",
            )


class Use:
    """One use; ``with``, or entered and left by hand. It may be left again, and then entered again."""

    def __init__(self, shared: OneLoop) -> None:
        self._shared = shared
        self._user: _User | None = None

    def __enter__(self) -> None:
        self._user = self._shared.enter()

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        user, self._user = self._user, None
        if user is not None:
            self._shared.leave(user)

    def check(self) -> None:
        """Raise ``ConfigurationError`` in another loop than the one that is inside by this use."""
        if self._user is not None:
            self._shared.check(self._user)


@dataclass
class _User:
    """An event loop (asyncio's, or trio's token of it), a context in it, and how often it is inside."""

    loop: object
    context: Context = field(default_factory=copy_context)
    uses: int = 0


def _this_loop() -> object:
    return current_token().native_token


def _runs(loop: Any) -> bool:
    """False for an asyncio loop that was stopped: perhaps nothing that it is told is ever done."""
    return not hasattr(loop, "is_running") or bool(loop.is_running())


def _has_ended(loop: Any) -> bool:
    """True if nothing can run in it any more, so what it left inside will not go on."""
    if hasattr(loop, "is_closed"):
        return bool(loop.is_closed())
    try:
        soon(loop, int)  # does nothing; trio tells in no other way
    except RuntimeError:
        return True
    return False

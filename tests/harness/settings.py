"""What the whole process shares, and a test may change only for as long as it runs.

A test that leaves one of these changed makes another one fail, in some orders only. So the test that did it
fails, and what it changed is put back, so that it alone fails.
"""

from __future__ import annotations

import os
import signal
from typing import Any, TypeVar

from sandboxio import registry

_OWN = "PYTEST_CURRENT_TEST"
"""pytest sets it anew before and after each test."""
_SIGNALS = signal.valid_signals() - {signal.SIGALRM}
"""That one is pytest-timeout's, which gives it back early where a test has failed."""


Key = TypeVar("Key")


class Settings:
    """The settings as they are now."""

    def __init__(self) -> None:
        self._registered = dict(registry._registered)
        self._environment = {name: value for name, value in os.environ.items() if name != _OWN}
        self._folder = _folder()
        self._handlers = {number: signal.getsignal(number) for number in _SIGNALS}

    def changed(self) -> list[str]:
        """What differs from then, put back."""
        now = Settings()
        lines = [f"backend {name!r}, registered" for name in _differing(self._registered, now._registered)]
        if lines:
            registry._registered.clear()
            registry._registered.update(self._registered)
            registry._resolved.clear()
        for name in _differing(self._environment, now._environment):  # no values: they may be secrets
            lines.append(f"environment variable {name}, changed")
            _put_back(name, self._environment.get(name))
        if now._folder != self._folder:
            lines.append(f"working directory {now._folder or 'that is no more'}")
            if self._folder is not None:
                os.chdir(self._folder)
        for number in _differing(self._handlers, now._handlers):
            lines.append(f"handler of signal {number}: {now._handlers[number]!r}")
            if self._handlers[number] is not None:  # one of C
                signal.signal(number, self._handlers[number])
        return lines


def _folder() -> str | None:
    """The working directory; None if it was removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def _differing(before: dict[Key, Any], after: dict[Key, Any]) -> list[Key]:
    return [key for key in {**before, **after} if before.get(key) != after.get(key)]


def _put_back(name: str, value: str | None) -> None:
    if value is None:
        del os.environ[name]
    else:
        os.environ[name] = value

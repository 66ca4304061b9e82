"""What a DSN says, for whoever takes one and has to know its timeout before there is a sandbox."""

from __future__ import annotations

from dataclasses import replace

from ._dsn import parse
from ._request import check_timeout
from .errors import ConfigurationError
from .models import DEFAULT_TIMEOUT, BackendConfig


def with_timeout(dsn: str, timeout: float | None, *, default: float) -> BackendConfig:
    """The configuration of ``dsn``, for ``create()``, with the timeout in effect, in seconds.

    That is ``timeout``, or without one that of the DSN, or ``default``. Raises ``ConfigurationError`` for
    what is no DSN, for a timeout that ``create()`` refuses, and for two different ones.

    >>> with_timeout("docker://?timeout=600", None, default=3600).timeout
    600.0
    >>> with_timeout("docker://", None, default=3600).timeout
    3600.0
    """
    config = parse(dsn)
    # The same object, not the same value: a DSN may write out the very seconds that are the default.
    written = None if config.timeout is DEFAULT_TIMEOUT else config.timeout
    given = None if timeout is None else check_timeout(timeout)
    if given is not None and written not in (None, given):
        raise ConfigurationError(
            f"timeout was given twice, as {given:g} and in the DSN as {written:g}.", hint="Give it once."
        )
    return replace(config, timeout=given or written or check_timeout(default))

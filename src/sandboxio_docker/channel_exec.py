"""The exec channel: one ``docker exec`` for each command. Slower than the guest, needs only a shell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from sandboxio.adapter import Owner
from sandboxio.errors import ConfigurationError

from .channel import SHELL, Channel, source_bytes
from .exec_files import ExecFiles, escaped
from .exec_run import ExecHost, ExecRun
from .guest_link import GuestLink

_FIND_PYTHON: Final = (
    "for p in python3 python; do command -v $p >/dev/null 2>&1 && exec $p -X utf8 -; done; "
    "echo 'there is no python3 or python in this image' >&2; exit 127"
)
_BYTES: Final = 'n=$#; for a; do a=$(printf %b. "$a"); set -- "$@" "${a%.}"; done; shift $n; exec "$@"'
"""Turns the notation of ``printf %b`` back into bytes; ``$(...)`` would drop newlines at an end."""
_SIZED: Final = 'n=$1; shift; head -c "$n" | "$@"'
"""Gives a program the first ``$1`` bytes as its whole stdin."""


class ExecChannel(Channel):
    """See the top of the file.

    ``owner`` gives the sandbox, which kills helpers that were cancelled. ``link`` is the connection that
    keeps process 1 alive, None for a sandbox that somebody else keeps alive.
    """

    name = "exec"

    def __init__(
        self,
        host: ExecHost,
        owner: Callable[[], Owner],
        *,
        interpreter: str | None,
        link: GuestLink | None = None,
    ) -> None:
        self._host = host
        self._link = link
        self._interpreter = interpreter
        self.files = ExecFiles(host, owner)

    def command(
        self, argv: tuple[str, ...], *, env: Mapping[str, str], seconds: float, paced: bool = False
    ) -> ExecRun:
        """One exec; ``seconds`` are enforced by the host alone."""
        for name, value in env.items():
            _check_utf8(f"env[{name!r}]", name + value)
        return ExecRun(self._host, list(_transportable(argv)), env=env)

    def code(self, code: str, *, seconds: float) -> ExecRun:
        """The interpreter reads the code from its stdin, so its size has no limit.

        A connection over TLS cannot be closed in one direction, so there the code's size says where it ends.
        """
        find = [SHELL, "-c", _FIND_PYTHON]
        argv = find if self._interpreter is None else [self._interpreter, "-X", "utf8", "-"]
        source = source_bytes(code)
        sized = self._host.engine.endpoint.tls is not None
        if sized:
            argv = [SHELL, "-c", _SIZED, "sh", str(len(source)), *argv]
        return ExecRun(self._host, argv, stdin=source, sized=sized)

    def close(self) -> None:
        """Close every connection; process 1 ends with its own."""
        if self._link is not None:
            self._link.close()
        self._host.close()


def _transportable(argv: tuple[str, ...]) -> tuple[str, ...]:
    """``argv`` as JSON can carry it: bytes that are not UTF-8 need a shell to come through."""
    if all(map(_is_utf8, argv)):
        return argv
    return (SHELL, "-c", _BYTES, "sh", *map(escaped, argv))


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_utf8(what: str, text: str) -> None:
    if not _is_utf8(text):
        raise ConfigurationError(
            f"{what} holds bytes that are not UTF-8, which the engine's exec cannot carry.",
            hint='Use DockerBackend(channel="guest"), or pass the bytes in a file.',
        )

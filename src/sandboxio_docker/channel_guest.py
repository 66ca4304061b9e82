"""The guest channel: every command and file goes over one connection to a program in the sandbox."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sandboxio.adapter import Owner

from .channel import Channel, source_bytes
from .guest_files import GuestFiles
from .guest_link import GuestLink
from .guest_run import GuestRun

PYTHONS = ("python3", "python")


class GuestChannel(Channel):
    """See the top of the file. ``owner`` gives the sandbox, which ends what was cancelled."""

    name = "guest"

    def __init__(
        self,
        link: GuestLink,
        owner: Callable[[], Owner],
        *,
        interpreter: str | None,
        memory_mb: int | None,
    ) -> None:
        self._link = link
        self._interpreter = interpreter
        self._memory_mb = memory_mb
        self.files = GuestFiles(link, owner)

    def command(
        self, argv: tuple[str, ...], *, env: Mapping[str, str], seconds: float, paced: bool = False
    ) -> GuestRun:
        """One run of the guest, which enforces ``seconds`` by itself."""
        return GuestRun(self._link, argv, env=env, seconds=seconds, paced=paced, memory_mb=self._memory_mb)

    def code(self, code: str, *, seconds: float) -> GuestRun:
        """The interpreter reads the code from its stdin, so its size has no limit."""
        return GuestRun(
            self._link,
            [self._interpreter or PYTHONS[0], "-X", "utf8", "-"],
            programs=() if self._interpreter else PYTHONS,
            seconds=seconds,
            stdin=source_bytes(code),
            memory_mb=self._memory_mb,
        )

    def close(self) -> None:
        """Close the connection; process 1 ends with it."""
        self._link.close()

"""A raw connection to a container: what an HTTP connection is after attach or exec start.

Reading loses no byte to a cancellation, because the kernel read is the last step before the return.
Writing keeps its place: a cancelled sender leaves the rest of its bytes on the connection, and the next
sender finishes it first, so the framing inside the stream survives.
"""

from __future__ import annotations

import ssl
from collections.abc import Generator
from contextlib import contextmanager

import anyio
import anyio.lowlevel

from sandboxio.errors import CapabilityNotSupported

from .faults import EngineUnavailable
from .wire import Wire


class Hijacked:
    """A raw connection to a container or an exec. One task reads and one writes at a time.

    ``close()`` is synchronous; tasks that wait on the connection wake with :class:`EngineUnavailable`.
    ``unsent`` is the number of bytes that a cancelled ``send()`` left behind.
    """

    def __init__(self, operation: str, wire: Wire, early: bytes) -> None:
        self._operation = operation
        self._wire = wire
        self._early = early
        self._rest = memoryview(b"")
        self._writing = anyio.Lock()

    @property
    def closed(self) -> bool:
        """True after ``close()``; the end of the other side shows as ``receive() == b""``."""
        return self._wire.closed

    @property
    def unsent(self) -> int:
        """Bytes of a cancelled ``send()`` that the next one sends first."""
        return len(self._rest)

    async def receive(self) -> bytes:
        """Some bytes, ``b""`` once the other side has ended. A cancellation loses none.

        The first piece may be what had arrived together with the head of the answer.
        """
        with self._typed():
            if self._early:
                await anyio.lowlevel.checkpoint()
                early, self._early = self._early, b""
                return early
            return await self._wire.receive_some()

    def receive_now(self) -> bytes | None:
        """Bytes that have arrived, ``b""`` at the end, None if there are none. Does not wait."""
        early, self._early = self._early, b""
        if early:
            return early
        with self._typed():
            return self._wire.receive_now()

    async def send(self, data: bytes | bytearray | memoryview) -> None:
        """Send all of it. Cancelled after the first byte: the rest stays here and goes out first next time.

        Cancelled before, nothing of ``data`` is sent.
        """
        async with self._writing:
            with self._typed():
                await self._flush()
                self._rest = memoryview(bytes(data))
                await self._flush()

    async def half_close(self) -> None:
        """Say that no more will be sent; the other side still may. Sends an unsent rest first.

        Raises :class:`CapabilityNotSupported` over TLS, where Python's ssl cannot close one direction
        without losing what is on its way back.
        """
        if isinstance(self._wire.sock, ssl.SSLSocket):
            raise CapabilityNotSupported(
                "A TLS connection to the engine cannot be closed in one direction only.",
                hint="Let the program end by itself, or use a Unix socket (for example forwarded by ssh).",
            )
        async with self._writing:
            with self._typed():
                await self._flush()
                self._wire.end_sending()

    def release(self) -> tuple[Wire, bytes]:
        """Hand over the connection, and the bytes that came with the head of the answer.

        Whoever takes it closes it; nothing here may be used any more.
        """
        early, self._early = self._early, b""
        return self._wire, early

    def close(self) -> None:
        """Close now, whatever is unsent. May be called again."""
        self._wire.close()

    async def _flush(self) -> None:
        while self._rest:
            self._rest = self._rest[await self._wire.send_some(self._rest) :]

    @contextmanager
    def _typed(self) -> Generator[None, None, None]:
        try:
            yield
        except (OSError, anyio.ClosedResourceError) as error:
            closed = isinstance(error, anyio.ClosedResourceError)
            reason = "it was closed on this side" if closed else f"{error}"
            failure = EngineUnavailable(f"The connection of {self._operation} broke: {reason}.")
            failure.sent = True
            raise failure from error

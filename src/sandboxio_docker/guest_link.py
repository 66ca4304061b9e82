"""One connection to one guest: attach to a container's process 1, or an exec that runs a second guest.

Three layers in one place: the engine's stdout/stderr frames around the guest's own frames around many
operations. What comes on stderr is not the guest's protocol; its end is kept as last words.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Final

import anyio

from sandboxio.errors import ConnectError, SandboxError

from . import launcher
from .ending import Ending, killed_here
from .frames import Demultiplexer
from .guest_protocol import ConnectionLost, Event, GuestProtocolError, Hello, Notice, Trait, setup
from .guest_wire import GuestWire
from .hijack import Hijacked
from .mux import Channel, Mux
from .words import printable

LAST_WORDS: Final = 2000
"""Bytes of stderr that are kept to explain a guest that did not come up."""


class GuestLink:
    """Operations on one guest. ``protocol`` builds requests, ``open`` gives each operation its events."""

    def __init__(self, stream: Hijacked, ending: Ending) -> None:
        wire, early = stream.release()
        self.protocol = GuestWire()
        self.ending = ending
        self.hello: Hello | None = None
        self._demux = Demultiplexer()
        self._words = bytearray()
        self._mux: Mux[Event] = Mux(wire, self._decode)
        self._own = self._mux.open(0)
        if early:
            self._mux.feed(early)

    @property
    def last_words(self) -> str:
        """What came on stderr, shortened."""
        return printable(self._words.decode("utf-8", "replace"))

    async def send_program(self) -> None:
        """Send the guest's program; before the container starts it waits in the engine's buffers."""
        await self._own.send(launcher.program())

    async def greeting(self, variables: Mapping[str, str]) -> Hello | Notice:
        """Wait for the guest, or for the launcher's line that there is none.

        ``variables`` become the environment of every run. Raises ``ConnectionLost``.
        """
        event = await self._own.receive()
        if isinstance(event, Hello):
            self.hello = event
            self._own.post(setup(encoded(variables)))
            return event
        assert isinstance(event, Notice)
        return event

    def open(self) -> tuple[int, Channel[Event]]:
        """A new operation."""
        number = self.protocol.new_operation()
        return number, self._mux.open(number)

    async def lost(self, error: ConnectionLost) -> SandboxError:
        """The public error for a connection that broke.

        A guest that breaks the protocol is a ``ConnectError``: the sandbox has to be ended. Otherwise
        the sandbox has ended.
        """
        cause = error.__cause__
        if isinstance(cause, (GuestProtocolError, SandboxError)):
            return ConnectError(
                f"What came from inside the sandbox breaks the protocol: {cause}.",
                hint="Code in the sandbox may have interfered; create a new sandbox.",
            )
        if isinstance(cause, anyio.ClosedResourceError):
            return killed_here()
        return await self.ending.explained()

    def close(self) -> None:
        """Close the connection; with the lifeline this ends the container."""
        self._mux.close()

    def _decode(self, data: bytes) -> Generator[Event, None, None]:
        self._demux.feed(data)
        while (chunk := self._demux.next_chunk()) is not None:
            if chunk.stream == "stderr":
                self._words += chunk.data[: LAST_WORDS - len(self._words)]
            else:
                yield from self.protocol.feed(chunk.data)


def unfit(greeting: Hello | Notice) -> str:
    """Why commands cannot go through what answered; empty if they can.

    A process 1 that could not hide itself lets code inside write answers to its descriptors.
    """
    if isinstance(greeting, Notice):
        return greeting.text
    return "" if Trait.HIDDEN in greeting.traits else "no ctypes in this python3 to hide process 1 with"


def encoded(env: Mapping[str, str]) -> dict[bytes, bytes]:
    """An environment as bytes; lone surrogates stand for bytes that are not UTF-8."""
    return {as_bytes(name): as_bytes(value) for name, value in env.items()}


def as_bytes(text: str) -> bytes:
    """Text as the sandbox's kernel sees it."""
    return text.encode("utf-8", "surrogateescape")

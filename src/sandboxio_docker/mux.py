"""Many operations on one connection, without a task of its own.

Whoever waits for an answer reads for all: one operation leads, the others sleep. Whoever has something
to say writes. Three invariants make every ``await`` here a place where a task may be cancelled:

R1  Bytes are taken from the connection only by the leader, and are decoded and handed out before the next
    ``await``. None can be lost.
R2  Whenever nobody leads and somebody sleeps, a sleeper has been woken. Every way out of ``receive``
    (an event, an error, a cancellation) runs ``_pass_on``, which restores this without awaiting.
W1  Frames go out whole and in the order in which they were posted. Posting does not wait. A sender that is
    cancelled leaves the rest where it is, and the next sender, or receiver, begins with it.

There is no reader while nobody receives. So what the other side may send unasked has to be bounded (by
credit, see ``guest_protocol.py``), and the other side must go on reading while it cannot write: a sender here
may wait for it while nobody reads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

import anyio

from sandboxio.errors import SandboxError

from .guest_protocol import ConnectionLost, GuestProtocolError


class Port(Protocol):
    """A byte stream whose reads and writes lose nothing when they are cancelled.

    Both methods raise ``OSError`` for a broken connection and ``anyio.ClosedResourceError`` for one
    that was closed here, also while they wait. ``wire.Wire`` is one, plain or TLS.
    """

    async def receive_some(self) -> bytes:
        """Some bytes, ``b""`` at the end. Cancelled: none was taken."""
        ...

    async def send_some(self, data: memoryview) -> int:
        """Send at least one byte; the number sent. Cancelled: none was sent."""
        ...

    def close(self) -> None:
        """Close now; who waits, wakes."""
        ...


class Addressed(Protocol):
    """An event that belongs to an operation."""

    @property
    def op(self) -> int:
        """The operation's number; 0 is the connection itself."""
        ...


_EventT = TypeVar("_EventT", bound=Addressed)


class Channel(Generic[_EventT]):
    """One operation's end of the connection. One task at a time may receive on it."""

    def __init__(self, mux: Mux[_EventT], number: int) -> None:
        self.number = number
        self.events: deque[_EventT] = deque()
        self._mux = mux

    async def receive(self) -> _EventT:
        """The next event. Raises :class:`ConnectionLost` when there will be none.

        Sends first what is posted. A cancellation loses no event.
        """
        return await self._mux.receive(self)

    def receive_now(self) -> _EventT | None:
        """An event that is here already, without reading from the connection."""
        return self.events.popleft() if self.events else None

    def post(self, frames: bytes) -> None:
        """Line up frames; the next ``send`` or ``receive`` on this connection sends them."""
        self._mux.post(frames)

    async def send(self, frames: bytes = b"") -> None:
        """Send frames, after everything that was posted before them.

        Cancelled: they stay lined up. An operation that is given up has to be ended by a frame of its
        own (KILL), which then follows.
        """
        self._mux.post(frames)
        await self._mux.flush()

    def close(self) -> None:
        """Take no more events; later ones for this number are dropped."""
        self._mux.drop(self)


class Mux(Generic[_EventT]):
    """The connection. ``decode`` turns what was received into events, and remembers a cut-off rest.

    ``decode`` raises ``GuestProtocolError`` or a ``SandboxError`` for bytes that cannot be; that breaks
    the connection for all.
    """

    def __init__(self, port: Port, decode: Callable[[bytes], Iterable[_EventT]]) -> None:
        self._port = port
        self._decode = decode
        self._channels: dict[int, Channel[_EventT]] = {}
        self._leading = False
        self._asleep: dict[Channel[_EventT], anyio.Event] = {}  # oldest first
        self._writing = anyio.Lock(fast_acquire=True)
        self._head = memoryview(b"")
        self._outbox: deque[bytes] = deque()
        self._failure: Exception | None = None
        self._deaf: Exception | None = None  # why nothing can be sent any more

    @property
    def failure(self) -> Exception | None:
        """Why nothing more comes or goes, or None."""
        return self._failure

    def open(self, number: int) -> Channel[_EventT]:
        """A channel for the events of this number; open it before the request is sent."""
        if number in self._channels:
            raise ValueError(f"operation {number} has a channel")
        channel = Channel(self, number)
        self._channels[number] = channel
        return channel

    def drop(self, channel: Channel[_EventT]) -> None:
        """Forget a channel."""
        self._channels.pop(channel.number, None)

    # Reading

    async def receive(self, channel: Channel[_EventT]) -> _EventT:
        """See :meth:`Channel.receive`."""
        try:
            if self._head or self._outbox:
                await self._flush()
            while (event := channel.receive_now()) is None:
                self._check()
                await (self._follow(channel) if self._leading else self._lead(channel))
            return event
        finally:
            self._pass_on()

    async def _lead(self, channel: Channel[_EventT]) -> None:
        self._leading = True
        try:
            while not channel.events and self._failure is None:
                self.feed(await self._port.receive_some())
        except (OSError, anyio.ClosedResourceError) as error:
            self.fail(error)
        finally:
            self._leading = False

    async def _follow(self, channel: Channel[_EventT]) -> None:
        if channel in self._asleep:
            raise anyio.BusyResourceError("receiving from this operation")
        event = self._asleep[channel] = anyio.Event()
        try:
            await event.wait()
        finally:
            del self._asleep[channel]

    def _pass_on(self) -> None:
        if not self._leading and self._asleep:
            next(iter(self._asleep.values())).set()

    def feed(self, data: bytes) -> None:
        """Hand out what was received, also what came with the connection; ``b""`` is its end."""
        if not data:
            self.fail(EOFError("the other side has closed it"))
            return
        try:
            for event in self._decode(data):
                channel = self._channels.get(event.op)
                if channel is not None:
                    channel.events.append(event)
                    if channel in self._asleep:
                        self._asleep[channel].set()
        except (GuestProtocolError, SandboxError) as error:
            self.fail(error)

    # Writing

    def post(self, frames: bytes) -> None:
        """See :meth:`Channel.post`."""
        if frames and self._failure is None and self._deaf is None:
            self._outbox.append(frames)

    async def flush(self) -> None:
        """Send everything that is posted. Raises :class:`ConnectionLost`."""
        await self._flush()
        self._check()
        if self._deaf is not None:
            raise ConnectionLost(f"{self._deaf}") from self._deaf

    async def _flush(self) -> None:
        async with self._writing:
            while self._head or self._outbox:
                # TLS wants the same bytes again after "not now", so the head stays as it is.
                self._head = self._head or memoryview(self._outbox.popleft())
                try:
                    sent = await self._port.send_some(self._head)
                except (OSError, anyio.ClosedResourceError) as error:
                    # What the other side said before it went can still be read, up to its end.
                    self._deaf = error
                    self._discard()
                else:
                    self._head = self._head[sent:]

    def _discard(self) -> None:
        self._outbox.clear()
        self._head = memoryview(b"")

    # The end

    def _check(self) -> None:
        if self._failure is not None:
            reason = f"{self._failure}" or type(self._failure).__name__
            raise ConnectionLost(reason) from self._failure

    def fail(self, failure: Exception) -> None:
        """End it for all: events that are here can still be received, then ``ConnectionLost`` comes."""
        if self._failure is None:
            self._failure = failure
            self._discard()
        for event in self._asleep.values():
            event.set()

    def close(self) -> None:
        """Close the connection now. Synchronous; may be called again."""
        self.fail(anyio.ClosedResourceError("closed on this side"))
        self._port.close()

"""One operation of the guest channel, and the runs among them.

Another task may kill an operation while one is inside ``receive``. Both read the same events, one at a
time, and leave them in the operation, so it does not matter who of them gets which.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

import anyio

from sandboxio.adapter import Execution, Exit
from sandboxio.errors import (
    ConnectError,
    FileSystemError,
    ResourceLimitExceeded,
    SandboxError,
)
from sandboxio.models import OutputChunk

from .channel import too_long
from .guest_link import GuestLink, as_bytes, encoded
from .guest_protocol import (
    LAST,
    ConnectionLost,
    End,
    Ending,
    Event,
    Failed,
    Fate,
    Killed,
    Output,
    Reason,
)
from .hostconfig import MAX_PIDS
from .mux import Channel

KILLED: Final = 137
"""128 + SIGKILL."""
FIRST_WORD: Final = 1.0
"""Seconds until an operation of which nothing is heard asks the engine whether the sandbox is paused."""


class GuestOperation(Execution):
    """What runs and file operations have in common: events, end, kill."""

    def __init__(self, link: GuestLink) -> None:
        self._link = link
        self._op = 0
        self._channel: Channel[Event] | None = None
        self._reading = anyio.Lock(fast_acquire=True)
        self._events: deque[Event] = deque()
        self._over = False
        self._alive = False
        self._frozen = False
        self._fate: Fate | None = None

    @property
    def op(self) -> int:
        """Its number, 0 before it began."""
        return self._op

    async def begin(self, request: bytes) -> None:
        """Send the request, which was built for the number that ``number()`` gave."""
        assert self._channel is not None
        with suppress(ConnectionLost):  # what the guest said before it went is still to be read
            await self._channel.send(request)

    def number(self) -> int:
        """Open the operation."""
        self._op, self._channel = self._link.open()
        return self._op

    async def more(self, frames: bytes) -> None:
        """Send more of the request."""
        await self.begin(frames)

    def post(self, frames: bytes) -> None:
        """Line up frames for whoever sends next on this connection."""
        if self._channel is not None and frames:
            self._channel.post(frames)

    async def next_event(self) -> Event:
        """The next event. Raises the public error of a lost connection."""
        while not self._events:
            async with self._reading:
                if not self._events:
                    await self._read()
        return self._events.popleft()

    async def _read(self) -> None:
        """Read one event; the caller holds the lock."""
        if self._channel is None or self._fate is not None:
            self._events.append(Killed(self._op, Fate.DEAD))  # for the other task that waits
            return
        try:
            event = await self._heard(self._channel)
        except ConnectionLost as error:
            raise await self._link.lost(error) from error
        if isinstance(event, Killed):
            self._fate = event.fate
        self._over = self._over or isinstance(event, LAST)
        self._events.append(event)

    async def _heard(self, channel: Channel[Event]) -> Event:
        """The next event; the first one is not waited for in silence, since a paused guest is silent."""
        while not self._alive:
            with anyio.move_on_after(FIRST_WORD):
                event = await channel.receive()
                self._alive = True
                return event
            self._alive = True  # looked once
            try:
                await self._link.ending.check_paused()
            except ConnectError:
                self._frozen = True
                raise
        return await channel.receive()  # a scope for every event would cost a fast stream a fifth

    async def start(self) -> None:
        """Begin."""

    async def receive(self) -> OutputChunk | None:
        """No output."""
        return None

    async def kill(self) -> None:
        """Return when the guest has confirmed that nothing of it is left.

        A paused guest confirms nothing; it finds the request and its KILL together when it goes on.
        """
        if self._channel is None or self._fate is not None or (self._over and self.exit is not None):
            return
        try:
            await self._channel.send(self._link.protocol.kill(self._op))
        except ConnectionLost as error:
            raise await self._link.lost(error) from error
        while self._fate is None and not self._frozen:
            async with self._reading:
                if self._fate is None:
                    await self._read()
        if self._fate is Fate.SURVIVORS:
            raise ConnectError("The guest could not kill every process of a run.")
        self.exit = self.exit or Exit(KILLED)

    def close(self) -> None:
        """Forget the operation. One whose end has not come stays known, so that late frames are no breach."""
        if self._channel is None:
            return
        self._channel.close()
        if self._over or self._fate is not None:
            self._link.protocol.release(self._op)
        self._channel = None


class GuestRun(GuestOperation):
    """A command.

    Args:
        link: The connection.
        argv: Program and arguments.
        env: This run's own variables.
        seconds: The deadline, which the guest enforces too.
        programs: Programs to look for instead of ``argv[0]``; the first that exists runs.
        stdin: What the program reads; None is an stdin at its end from the beginning.
        paced: The output is read at the caller's leisure, so less may be under way.
        memory_mb: The sandbox's cap, for messages.
    """

    def __init__(
        self,
        link: GuestLink,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        seconds: float | None = None,
        programs: Sequence[str] = (),
        stdin: bytes | None = None,
        paced: bool = False,
        memory_mb: int | None = None,
    ) -> None:
        super().__init__(link)
        self._argv = argv
        self._env = env or {}
        self._seconds = seconds
        self._programs = programs
        self._stdin = stdin
        self._paced = paced
        self._memory_mb = memory_mb

    async def start(self) -> None:
        """Start the command and give it its stdin."""
        op = self.number()
        try:
            request = self._link.protocol.start(
                op,
                [as_bytes(word) for word in self._argv],
                env=encoded(self._env),
                timeout=self._seconds,
                programs=[as_bytes(name) for name in self._programs],
                has_input=self._stdin is not None,
                paced=self._paced,
            )
        except ValueError as error:
            self.close()
            raise too_long() from error
        await self.begin(request)
        if self._stdin is not None:
            await self._feed(self._stdin)

    async def receive(self) -> OutputChunk | None:
        """The next piece of output, None at the end."""
        while self.exit is None or self._events:
            event = await self.next_event()
            match event:
                case Output():
                    return self._chunk(event)
                case End():
                    self.exit = self._ended(event)
                case Failed():
                    raise self._refused(event)
                case _:
                    if self._fate is not None and not self._events:
                        self.exit = self.exit or Exit(KILLED)
        return None

    def receive_nowait(self) -> OutputChunk | None:
        """A piece that has arrived, or None."""
        while self._events:
            event = self._events.popleft()
            if isinstance(event, Output):
                return self._chunk(event)
        return None

    def _chunk(self, event: Output) -> OutputChunk:
        self.post(self._link.protocol.consumed(self._op, event.stream, len(event.data)))
        return OutputChunk("stderr" if event.stream == 2 else "stdout", event.data)

    async def _feed(self, data: bytes) -> None:
        """Send the stdin as far as the guest has room; what the program prints meanwhile is kept."""
        protocol, view = self._link.protocol, memoryview(data)
        while view and not self._over:
            room = protocol.input_room(self._op)
            if room:
                await self.more(protocol.input(self._op, view[:room]))
                view = view[room:]
            else:
                async with self._reading:
                    await self._read()
        await self.more(protocol.input_end(self._op))

    def _ended(self, event: End) -> Exit:
        if event.how & Ending.SURVIVORS:
            raise ConnectError("The guest could not kill every process of a run.")
        cap = "the memory cap" if self._memory_mb is None else f"the memory cap of {self._memory_mb} MiB"
        notes: tuple[str, ...] = ()
        if event.how & Ending.MEMORY_HINT:
            notes = (f"A process of the sandbox was killed at {cap} meanwhile.",)
        return Exit(
            event.exit_code,
            timed_out=bool(event.how & Ending.TIMED_OUT),
            limit=f"The command was killed at {cap}." if event.how & Ending.OUT_OF_MEMORY else None,
            notes=notes,
        )

    def _refused(self, event: Failed) -> SandboxError:
        if event.reason is Reason.NO_WORK_FOLDER:
            return FileSystemError(
                "The working folder /work is gone and cannot be made again.", hint="Create a new sandbox."
            )
        if event.errno_name == "E2BIG":
            return too_long()
        if event.errno_name in ("EAGAIN", "ENOMEM", "EMFILE", "ENFILE"):
            return ResourceLimitExceeded(
                f"The sandbox could not start a process ({event.errno_name}): "
                f"it is at its ceiling of {MAX_PIDS} processes, or out of memory.",
                hint="End processes in the sandbox, or create a new one.",
            )
        return ConnectError(
            f"The guest could not start the command ({event.errno_name or event.reason.name})."
        )


class GuestJob(GuestOperation):
    """A file operation: the same life, other events."""

    async def finish(self) -> Event:
        """The next event that is not ``Grant``; Done and Facts end the operation, Failed does too."""
        event = await self.next_event()
        if isinstance(event, LAST):
            self.exit = Exit(0)
        return event

"""Commands as the core runs them: start, receive, kill."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final, Literal, cast

import anyio

from sandboxio.adapter import Execution, Exit
from sandboxio.errors import (
    CapabilityNotSupported,
    ConfigurationError,
    ConnectError,
    ResourceLimitExceeded,
    SandboxError,
)
from sandboxio.models import OutputChunk

from .connection import Broken
from .envd import Command, ProcessStream
from .place import Place
from .shell import EndingFilter, Mark, run_command, with_env
from .wire import Ended, Garbled, Printed, RpcError, Started

LINGER: Final = 0.05
"""Seconds to wait for a stream's own end after the command's: then its connection can serve again."""
MARGIN: Final = 0.05
"""Seconds before a deadline at which that wait ends, so that it never makes an end in time a timeout."""
REFUSED: Final = frozenset(
    {
        "invalid_argument",
        "unauthenticated",
        "permission_denied",
        "not_found",
        "resource_exhausted",
        "unimplemented",
        "already_exists",
        "failed_precondition",
    }
)
"""Codes of an answer that is given instead of a start; with any other the command may run. envd itself says
``invalid_argument`` where it cannot start a program."""


class CommandRun(Execution):
    """One command. Its descendants are found by its mark; see :mod:`.shell`."""

    def __init__(self, place: Place, command: str | tuple[str, ...], env: Mapping[str, str]) -> None:
        self._place = place
        self._mark = Mark.new()
        variables = {**place.variables, **env}
        argv, plain = with_env(run_command(command, self._mark, variables), variables)
        self._stream: ProcessStream = place.envd.process(Command(argv, plain))
        self._filters = {"stdout": EndingFilter(self._mark), "stderr": EndingFilter(self._mark)}
        self._chunks: deque[OutputChunk] = deque()
        self._killed = False
        self._dead = False
        self._patience: float | None = None

    async def start(self) -> None:
        """Wait until the command runs."""
        try:
            await self._stream.start()
        except (RpcError, Garbled, Broken) as error:
            if isinstance(error, RpcError) and "argument list too long" in error.message.lower():
                raise _too_long() from error
            raise await self._place.explain(error, "Starting a command") from error

    async def receive(self) -> OutputChunk | None:
        """The next piece of output."""
        while not self._chunks:
            if self.exit is not None or self._killed:
                return None
            if self._told is not None:
                await self._linger()  # cancelled here, the run is killed like one that has not ended
                self.exit = Exit(self._told)
                return None
            try:
                event = await self._stream.receive()
            except (RpcError, Garbled, Broken) as error:
                if self._killed:
                    return None
                raise await self._place.explain(error, "Reading a command's output") from error
            if event is None:
                raise ConnectError(f"Sandbox {self._place.sandbox.id} did not say how a command ended.")
            self._take(event)
            if isinstance(event, Ended) and self._told is None and not event.status.startswith("signal"):
                raise self._never_started(event.exit_code)
        return self._chunks.popleft()

    def receive_nowait(self) -> OutputChunk | None:
        """Output that has arrived already."""
        try:
            while not self._chunks and (event := self._stream.receive_nowait()) is not None:
                self._take(event)
        except (RpcError, Garbled):
            pass  # the run is over and was reported; this is only about what it had printed
        return self._chunks.popleft() if self._chunks else None

    async def kill(self) -> None:
        """Kill the command and its descendants."""
        if self._dead or self.exit is not None:
            return
        self._killed = True
        if self._stream.sent and await self._may_have_started():
            # By the token too: between its start and its first line the script is not marked yet.
            await self._place.kill_marked(self._mark, self._mark.token)
        self._dead = True
        self._stream.close()

    def close(self) -> None:
        """Give the connection back, or close it."""
        self._stream.close()

    @property
    def _told(self) -> int | None:
        """The exit code that the command's own script printed, once it has on both streams."""
        codes = [each.exit_code for each in self._filters.values()]
        return None if None in codes else codes[0]

    def _take(self, event: Started | Printed | Ended) -> None:
        if isinstance(event, Printed) and event.stream in self._filters:
            self._add(event.stream, self._filters[event.stream].feed(event.data))
        elif isinstance(event, Ended):
            for stream, each in self._filters.items():
                self._add(stream, each.rest())
            self.exit = Exit(event.exit_code if self._told is None else self._told)

    def _never_started(self, code: int) -> SandboxError:
        """The error for a script that ended by itself and told no end of a command: it had started none."""
        if code in (126, 127):
            return CapabilityNotSupported(
                f"Sandbox {self._place.sandbox.id} has no usable /bin/bash, which commands need.",
                hint="Use a template built on Debian, or install bash in yours.",
            )
        return ResourceLimitExceeded(
            f"Sandbox {self._place.sandbox.id} could not start the command: the script around it could make "
            f"no process ({code}). The sandbox is at its limit of processes, or out of memory.",
            hint="End processes in the sandbox, or create a new one.",
        )

    def _add(self, stream: str, data: bytes) -> None:
        if data:
            self._chunks.append(OutputChunk(cast("Literal['stdout', 'stderr']", stream), data))

    async def _linger(self) -> None:
        """Read the stream's end if it comes at once; a background child may hold it for ever."""
        if self._patience is None:  # once, however often a call is cancelled and made again
            until = anyio.current_effective_deadline() - MARGIN
            self._patience = min(anyio.current_time() + LINGER, until)
        with anyio.CancelScope(deadline=self._patience):
            try:
                while (event := await self._stream.receive()) is not None:
                    if isinstance(event, Ended):
                        await self._stream.drain()
                        return
                    self._take(event)
            except (RpcError, Garbled, Broken):
                return  # the command has ended and said how

    async def _may_have_started(self) -> bool:
        """False if the command was refused; the answer is still on its way when a start is cancelled."""
        if self._stream.started is not None:
            return True
        try:
            await self._stream.start()
        except RpcError as error:
            return error.code not in REFUSED
        except (Garbled, Broken):
            return True
        return True


def _too_long() -> ConfigurationError:
    """The error for a command line that the kernel of the sandbox refuses with E2BIG."""
    return ConfigurationError(
        "The command is longer than Linux passes to a program: arguments and environment are together at "
        "most 2 MiB (usually), each at most 128 KiB, where a byte that is not UTF-8 counts as four.",
        hint="Write the data to a file with files.write() and pass the path.",
    )

"""Commands and cells of code as the core runs them: start, receive, kill."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, cast

import anyio

from sandboxio.adapter import Execution, Exit
from sandboxio.errors import CapabilityNotSupported, ConnectError, SandboxError
from sandboxio.models import OutputChunk

from .control import ControlPlane, Placed
from .envd import Command, Envd, ProcessStream
from .failures import PORT_CLOSED_TEXT, gone, traffic_error
from .interpreter import CellStream, ContextCreation, Interpreter
from .shell import EndingFilter, Mark, kill_command, program, quote, run_command, split_env
from .transport import Broken
from .wire import Ended, Garbled, Printed, RpcError, Started

LINGER: Final = 0.05
"""Seconds to wait for a stream's own end after the command's: then its connection can serve again."""
KILL_SECONDS: Final = 20.0
"""How long the killing script may run inside, whatever happens to its client."""
PROBE_SECONDS: Final = 5.0
LOST_KERNEL: Final = 137
"""Exit code of a cell whose interpreter went away under it, as for a process that was killed."""

Wrong = RpcError | Garbled | Broken


@dataclass
class Place:
    """One sandbox, as its runs see it."""

    sandbox: Placed
    envd: Envd
    interpreter: Interpreter
    control: ControlPlane
    variables: Mapping[str, str] = field(repr=False)
    contexts: Contexts
    folder: str | None = None

    async def explain(self, error: Wrong, what: str) -> SandboxError:
        """The error for a call that failed on its way: was it the sandbox, or the way?"""
        if isinstance(error, Broken) or (isinstance(error, RpcError) and error.code == "unavailable"):
            with anyio.move_on_after(PROBE_SECONDS):
                try:
                    await self.envd.healthy()
                except (RpcError, Broken) as answer:
                    if isinstance(answer, RpcError) and "not found" in answer.message:
                        return gone(self.sandbox.id)
        return traffic_error(error, self.sandbox.id, what)

    async def kill_marked(self, mark: Mark, word: str = "") -> None:
        """Kill everything with this mark. Raises if that cannot be confirmed."""
        command = Command(kill_command(mark, word), user="root", seconds=KILL_SECONDS)
        try:
            code, left, said = await self.envd.run(command)
        except (RpcError, Garbled, Broken) as error:
            raise await self.explain(error, "Killing a run") from error
        if code != 0:
            told = (left + said).decode("utf-8", "replace").strip()[:200]
            raise ConnectError(
                f"Processes of a run in sandbox {self.sandbox.id} could not be killed: {told}."
            )

    async def working_folder(self) -> str:
        """The folder in which commands start; asked once."""
        if self.folder is None:
            ask = Command(program('printf %s "$PWD"'), seconds=KILL_SECONDS)
            try:
                code, path, _ = await self.envd.run(ask)
            except (RpcError, Garbled, Broken) as error:
                raise await self.explain(error, "Asking for the working folder") from error
            if code != 0 or not path.startswith(b"/"):
                raise ConnectError(f"Sandbox {self.sandbox.id} did not say where commands start.")
            self.folder = path.decode("utf-8", "surrogateescape")
        return self.folder


class CommandRun(Execution):
    """One command. Its descendants are found by its mark; see :mod:`.shell`."""

    def __init__(self, place: Place, command: str | tuple[str, ...], env: Mapping[str, str]) -> None:
        self._place = place
        self._mark = Mark.new()
        plain, other = split_env({**place.variables, **env})
        argv = run_command(command, self._mark, env)
        if other:  # bytes that JSON cannot carry are set by a shell in front
            exports = " ".join(f"{quote(name)}={quote(value)}" for name, value in other.items())
            argv = program(f'export {exports}; exec "$@"', *argv)
        self._stream: ProcessStream = place.envd.process(Command(argv, plain))
        self._filters = {"stdout": EndingFilter(self._mark), "stderr": EndingFilter(self._mark)}
        self._chunks: deque[OutputChunk] = deque()
        self._killed = False
        self._dead = False

    async def start(self) -> None:
        """Wait until the command runs."""
        try:
            await self._stream.start()
        except (RpcError, Garbled, Broken) as error:
            raise await self._place.explain(error, "Starting a command") from error

    async def receive(self) -> OutputChunk | None:
        """The next piece of output."""
        while not self._chunks:
            if self.exit is not None or self._killed:
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
            code = self._told
            if self.exit is None and code is not None:
                await self._linger()
                self.exit = self.exit or Exit(code)
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
            await self._place.kill_marked(self._mark)
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
            if self._told is None and event.exit_code == 127:
                raise CapabilityNotSupported(
                    f"Sandbox {self._place.sandbox.id} has no usable /bin/bash, which commands need.",
                    hint="Use a template built on Debian, or install bash in yours.",
                )
            self.exit = Exit(event.exit_code if self._told is None else self._told)

    def _add(self, stream: str, data: bytes) -> None:
        if data:
            self._chunks.append(OutputChunk(cast("Literal['stdout', 'stderr']", stream), data))

    async def _linger(self) -> None:
        """Read the stream's end if it comes at once; a background child may hold it for ever."""
        with anyio.move_on_after(LINGER):
            try:
                while (event := await self._stream.receive()) is not None:
                    self._take(event)
                    if isinstance(event, Ended):
                        await self._stream.drain()
                        return
            except (RpcError, Garbled, Broken):
                return  # the command has ended and said how

    async def _may_have_started(self) -> bool:
        """False if envd refused the command; its answer is still on its way when a start is cancelled."""
        if self._stream.started is not None:
            return True
        try:
            await self._stream.start()
        except RpcError:
            return False
        except (Garbled, Broken):
            return True
        return True


class Contexts:
    """The interpreters of one sandbox: one for each (language, name) that was used."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[str, Mark]] = {}
        self._locks: dict[tuple[str, str], anyio.Lock] = {}

    def lock(self, key: tuple[str, str]) -> anyio.Lock:
        """Held while the interpreter of ``key`` starts."""
        return self._locks.setdefault(key, anyio.Lock())

    def get(self, key: tuple[str, str]) -> tuple[str, Mark] | None:
        return self._known.get(key)

    def add(self, key: tuple[str, str], context: str, mark: Mark) -> None:
        self._known[key] = (context, mark)

    def forget(self, context: str) -> None:
        for key in [key for key, (known, _) in self._known.items() if known == context]:
            del self._known[key]


class CodeRun(Execution):
    """One cell, in an interpreter of its own or in a named one that keeps its variables.

    The only way to stop a cell for certain is to end its interpreter; the next cell of that name gets a
    new one.
    """

    def __init__(self, place: Place, code: str, language: str, name: str | None) -> None:
        self._place = place
        self._code = code
        self._language = language
        self._key = None if name is None else (language, name)
        self._mark = Mark.new()
        self._creation: ContextCreation | None = None
        self._context: str | None = None
        self._cells: list[CellStream] = []
        self._stream: CellStream | None = None
        self._killed = False
        self._dead = False

    async def start(self) -> None:
        """Wait until the interpreter has taken the cell."""
        try:
            if self._key is None:
                await self._begin()
            else:
                async with self._place.contexts.lock(self._key):
                    known = self._place.contexts.get(self._key)
                    if known is not None:
                        self._context, self._mark = known
                    else:
                        await self._begin()
                        assert self._context is not None
                        self._place.contexts.add(self._key, self._context, self._mark)
            assert self._context is not None
            variables = self._place.variables if not self._prepared else dict[str, str]()
            self._stream = self._cell(self._code, self._context, variables)
            await self._stream.start()
        except (RpcError, Garbled, Broken) as error:
            if isinstance(error, RpcError) and error.code == "not_found" and self._context is not None:
                self._place.contexts.forget(self._context)
            raise await self._explain(error, "Starting code") from error

    async def receive(self) -> OutputChunk | None:
        """The next piece of output."""
        stream = self._stream
        if stream is None or self.exit is not None or self._killed:
            return None
        try:
            printed = await stream.receive()
        except (RpcError, Garbled, Broken) as error:
            if self._killed:
                return None
            raise await self._explain(error, "Reading the output of code") from error
        if printed is not None:
            return _chunk(printed)
        await self._finish(stream)
        return None

    def receive_nowait(self) -> OutputChunk | None:
        """Output that has arrived already."""
        try:
            printed = None if self._stream is None else self._stream.receive_nowait()
        except Garbled:
            return None  # the run is over and was reported; this is only about what it had printed
        return None if printed is None else _chunk(printed)

    async def kill(self) -> None:
        """End the interpreter, with everything that it started."""
        if self._dead or self.exit is not None:
            return
        self._killed = True
        if self._context is None and self._creation is not None and self._creation.may_exist:
            try:
                self._context = await self._creation.finish()
            except RpcError:
                self._dead = True
                return
            except (Garbled, Broken) as error:
                raise await self._explain(error, "Ending code") from error
        for cell in self._cells:
            cell.close()
        if self._context is not None:
            self._place.contexts.forget(self._context)
            await self._place.kill_marked(self._mark, self._context)
            await self._remove(self._context)
        self._dead = True

    def close(self) -> None:
        """Give the connections back, or close them."""
        for cell in self._cells:
            cell.close()
        if self._creation is not None:
            self._creation.close()

    @property
    def _prepared(self) -> bool:
        """True where the interpreter itself was told the variables and was marked."""
        return self._language == "python"

    async def _begin(self) -> None:
        folder = await self._place.working_folder()
        self._creation = self._place.interpreter.context(self._language, folder)
        self._context = await self._creation.finish()
        if self._prepared:
            cell = self._cell(_prepare(self._mark, self._place.variables), self._context, {})
            await cell.start()
            while await cell.receive() is not None:
                pass

    def _cell(self, code: str, context: str, variables: Mapping[str, str]) -> CellStream:
        cell = self._place.interpreter.cell(code, context, variables)
        self._cells.append(cell)
        return cell

    async def _finish(self, stream: CellStream) -> None:
        cell, notes = stream.cell, tuple[str, ...]()
        if cell.lost is not None:
            assert self._context is not None
            self._place.contexts.forget(self._context)
            notes = (f"the interpreter ended under the code, and its variables are gone: {cell.lost}",)
        if self._context is not None and (self._key is None or cell.lost is not None):
            await self._remove(self._context)
        code = LOST_KERNEL if cell.lost is not None else cell.exit_code
        self.exit = Exit(code, notes=notes, results=tuple(cell.results))

    async def _remove(self, context: str) -> None:
        try:
            await self._place.interpreter.remove(context)
        except (RpcError, Garbled, Broken) as error:
            raise await self._explain(error, "Ending an interpreter") from error

    async def _explain(self, error: Wrong, what: str) -> SandboxError:
        if isinstance(error, RpcError):
            if PORT_CLOSED_TEXT in error.message:
                return CapabilityNotSupported(
                    f"{what}: sandbox {self._place.sandbox.id} has no code interpreter.",
                    hint="Use the template code-interpreter-v1, or one built on it.",
                )
            if error.code == "internal" or "Failed to create context" in error.message:
                return CapabilityNotSupported(
                    f"{what}: the code interpreter does not run {self._language!r} ({error.message}).",
                    hint="Use a template that has a kernel for it.",
                )
        return await self._place.explain(error, what)


def _chunk(printed: Printed) -> OutputChunk:
    return OutputChunk("stderr" if printed.stream == "stderr" else "stdout", printed.data)


def _prepare(mark: Mark, variables: Mapping[str, str]) -> str:
    """Python that sets the sandbox's variables and marks the interpreter; leaves no name behind.

    The variables travel as JSON inside the code, because the server quotes its own ``env_vars`` only
    for values without quotes, backslashes and line ends.
    """
    locks, timeout = mark.limits
    # 10 is RLIMIT_LOCKS and 15 RLIMIT_RTTIME on Linux; Python names neither or only one of them.
    lines = (
        "import json, os, resource",
        f"os.environ.update(json.loads({json.dumps(json.dumps(dict(variables)))}))",
        f"resource.setrlimit(10, ({locks}, {locks}))",
        f"resource.setrlimit(15, ({timeout}, {timeout}))",
    )
    return f"exec({json.dumps(chr(10).join(lines))}, {{}})"

"""Cells of code as the core runs them, and the interpreters in which they run."""

from __future__ import annotations

import io
import json
import secrets
from collections.abc import Mapping
from typing import Final

import anyio

from sandboxio.adapter import Execution, Exit, bounded
from sandboxio.errors import (
    CapabilityNotSupported,
    ConfigurationError,
    ConnectError,
    SandboxError,
    SandboxGone,
)
from sandboxio.models import OutputChunk

from .connection import Broken
from .envd import Command
from .failures import PORT_CLOSED_TEXT
from .interpreter import NO_KERNEL_TEXT, CellStream, ContextCreation
from .place import HELPER_SECONDS, Place, Wrong
from .shell import Mark, program
from .wire import MAX_RESULTS, Garbled, Printed, RpcError, is_plain

LOST_KERNEL: Final = 137
"""Exit code of a cell whose interpreter went away under it, as for a process that was killed."""

REMOVAL: Final = 3.0
"""Seconds in which an interpreter must end that is not needed any longer; then it is killed."""


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

    def __init__(self, place: Place, contexts: Contexts, code: str, language: str, name: str | None) -> None:
        self._place = place
        self._contexts = contexts
        self._code = code
        self._language = language
        self._key = None if name is None else (language, name)
        self._mark = Mark.new()
        self._creation: ContextCreation | None = None
        self._context: str | None = None
        self._letter: str | None = None
        """The file that brings the variables to the interpreter, while it may be there."""
        self._cells: list[CellStream] = []
        self._stream: CellStream | None = None
        self._killed = False
        self._dead = False
        if not self._prepared:
            _check_variables(place.variables, language)

    async def start(self) -> None:
        """Wait until the interpreter has taken the cell."""
        try:
            if self._key is None:
                await self._begin()
            else:
                async with self._contexts.lock(self._key):
                    known = self._contexts.get(self._key)
                    if known is not None:
                        self._context, self._mark = known
                    else:
                        await self._begin()
                        assert self._context is not None
                        self._contexts.add(self._key, self._context, self._mark)
            assert self._context is not None
            variables = self._place.variables if not self._prepared else dict[str, str]()
            self._stream = self._cell(self._code, self._context, variables)
            await self._stream.start()
        except (RpcError, Garbled, Broken) as error:
            if isinstance(error, RpcError) and error.code == "not_found" and self._context is not None:
                self._contexts.forget(self._context)
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
            except (RpcError, Garbled, Broken) as error:
                if self._creation.refused:
                    self._dead = True
                    return
                raise await self._explain(error, "Ending code") from error
        for cell in self._cells:
            cell.close()
        if self._context is not None:
            self._contexts.forget(self._context)
            await self._place.kill_marked(self._mark, self._context)
            await self._remove(self._context)
        await self._remove_letter()
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
        if not is_plain(folder):
            raise Garbled("a working folder whose name is not UTF-8")
        self._creation = self._place.interpreter.context(self._language, folder)
        self._context = await self._creation.finish()
        if self._prepared:
            await self._prepare(self._context)

    async def _prepare(self, context: str) -> None:
        """Tell a new interpreter the variables, and mark it. One without either must run nothing."""
        if self._place.variables:
            self._letter = f"/tmp/.sandboxio-{secrets.token_hex(16)}"  # noqa: S108 - in the sandbox
            text = json.dumps(dict(self._place.variables)).encode()
            await self._place.envd.write_file(self._letter, io.BytesIO(text), len(text))
        stream = self._cell(_preparation(self._mark, self._letter), context, {})
        await stream.start()
        while await stream.receive() is not None:
            pass
        if stream.cell.lost is not None or stream.cell.exit_code != 0:
            raise Garbled("an interpreter that could not be prepared")
        self._letter = None  # the cell removed it

    def _cell(self, code: str, context: str, variables: Mapping[str, str]) -> CellStream:
        cell = self._place.interpreter.cell(code, context, variables)
        self._cells.append(cell)
        return cell

    async def _finish(self, stream: CellStream) -> None:
        cell, notes = stream.cell, tuple[str, ...]()
        if cell.lost is not None:
            assert self._context is not None
            self._contexts.forget(self._context)
            notes += (f"the interpreter ended under the code, and its variables are gone: {cell.lost}",)
        if cell.dropped:
            notes += (f"results: {cell.dropped} display outputs beyond {MAX_RESULTS >> 20} MiB are dropped",)
        put_off: list[BaseException] = []
        if self._context is not None and (self._key is None or cell.lost is not None):
            try:
                notes += await self._put_away(self._context, put_off)
            except SandboxError as error:
                if put_off:
                    raise put_off[0] from error
                raise
        code = LOST_KERNEL if cell.lost is not None else cell.exit_code
        self.exit = Exit(code, notes=notes, results=tuple(cell.results))
        if put_off:
            raise put_off[0]

    async def _put_away(self, context: str, put_off: list[BaseException]) -> tuple[str, ...]:
        """End the interpreter of a cell that has ended, and return what is to be noted about it.

        Shielded, so neither the run's deadline nor a cancellation that comes now costs the result.
        """
        why = f"this took more than {REMOVAL:g} s"
        try:
            if await bounded(lambda: self._remove(context), seconds=REMOVAL, put_off=put_off):
                return ()
        except SandboxGone:
            return ()  # the interpreter with it
        except SandboxError as error:
            why = error.message
        if not await bounded(lambda: self._place.kill_marked(self._mark, context), put_off=put_off):
            raise ConnectError(
                f"An interpreter in sandbox {self._place.sandbox.id} could neither be ended nor killed."
            )
        return (f"the interpreter was killed, for it could not be ended: {why}",)

    async def _remove(self, context: str) -> None:
        try:
            await self._place.interpreter.remove(context)
        except (RpcError, Garbled, Broken) as error:
            raise await self._explain(error, "Ending an interpreter") from error

    async def _remove_letter(self) -> None:
        if self._letter is None:
            return
        command = Command(program('rm -f -- "$1"', self._letter), user="root", seconds=HELPER_SECONDS)
        try:
            await self._place.envd.run(command)
        except (RpcError, Garbled, Broken) as error:
            raise await self._explain(error, "Removing the variables of a run") from error
        self._letter = None

    async def _explain(self, error: Wrong, what: str) -> SandboxError:
        if isinstance(error, RpcError):
            if PORT_CLOSED_TEXT in error.message:
                return CapabilityNotSupported(
                    f"{what}: sandbox {self._place.sandbox.id} has no code interpreter.",
                    hint="Use the template code-interpreter-v1, or one built on it.",
                )
            if error.code == "internal" or NO_KERNEL_TEXT in error.message:
                return CapabilityNotSupported(
                    f"{what}: the code interpreter does not run {self._language!r} ({error.message}).",
                    hint="Use a template that has a kernel for it.",
                )
        return await self._place.explain(error, what)


def _check_variables(variables: Mapping[str, str], language: str) -> None:
    """The server sets them in other languages, and takes them as JSON; commands and Python get any bytes."""
    for name, value in variables.items():
        if not is_plain(name + value):
            raise ConfigurationError(
                f"The variable {name!r} holds bytes that are not UTF-8, which {language!r} code cannot get.",
                hint="Give the sandbox a value that is UTF-8, for instance base64 of the bytes.",
            )


def _chunk(printed: Printed) -> OutputChunk:
    return OutputChunk("stderr" if printed.stream == "stderr" else "stdout", printed.data)


def _preparation(mark: Mark, letter: str | None) -> str:
    """Python that sets the sandbox's variables and marks the interpreter; leaves no name behind.

    The variables come in a file, which is gone once it is open. IPython keeps the source of every cell, in
    lists and on disk, and the server logs it; and the server puts its own ``env_vars`` into the source too.
    """
    locks, timeout = mark.limits
    opened = f"with open({letter!r}, 'rb') as file: os.unlink(file.name); os.environ.update(json.load(file))"
    # 10 is RLIMIT_LOCKS and 15 RLIMIT_RTTIME on Linux; Python names neither or only one of them.
    lines = (
        "import json, os, resource",
        "" if letter is None else opened,
        f"resource.setrlimit(10, ({locks}, {locks}))",
        f"resource.setrlimit(15, ({timeout}, {timeout}))",
    )
    return f"exec({json.dumps(chr(10).join(lines))}, {{}})"

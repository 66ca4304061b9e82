"""An adapter whose sandboxes are folders and whose commands are processes of this machine.

It isolates nothing. It is there because a real process can be seen to die, also by a test that looks at a
script from outside. ``scripts`` start with :data:`PRELUDE`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

import anyio

from sandboxio.adapter import BaseBackend, BaseSandbox, Execution, Exit, FileTransfer, SandboxRequest
from sandboxio.errors import ConnectError, PathNotFound
from sandboxio.models import Capability, FileInfo, IsolationTier, OutputChunk

PRELUDE = """
import sandboxio
from tests.sync.hostprocess import HostBackend
sandboxio.register("host", HostBackend)
"""


class HostRun(Execution):
    def __init__(self, command: str | tuple[str, ...], folder: Path, env: Mapping[str, str]) -> None:
        self._command = command if isinstance(command, str) else list(command)
        self._folder, self._env = folder, env
        self._process: anyio.abc.Process | None = None
        self._reading = False

    async def start(self) -> None:
        self._process = await anyio.open_process(
            self._command,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            cwd=self._folder,
            env={**os.environ, **self._env},
            start_new_session=True,
        )

    async def receive(self) -> OutputChunk | None:
        assert self._process is not None
        assert self._process.stdout is not None
        self._reading = True
        try:
            return OutputChunk("stdout", await self._process.stdout.receive())
        except anyio.EndOfStream:
            code = await self._process.wait()
            self.exit = Exit(code if code >= 0 else 128 - code)
            return None
        finally:
            self._reading = False

    async def kill(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            if not self._reading:
                await self._read_out(self._process)
            await self._process.aclose()
            self.exit = self.exit or Exit(137)

    async def _read_out(self, process: anyio.abc.Process) -> None:
        """To the end: asyncio keeps a pipe open whose reader has enough, and anyio 4.11 does not close it."""
        assert process.stdout is not None
        with anyio.move_on_after(1), contextlib.suppress(anyio.EndOfStream):
            while True:
                await process.stdout.receive()


class HostFiles(FileTransfer):
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def read_file(self, path: str, sink: Callable[[bytes], None]) -> None:
        try:
            sink((self._folder / path).read_bytes())
        except FileNotFoundError as error:
            raise PathNotFound(f"{path!r} does not exist.") from error

    async def write_file(self, path: str, source: BinaryIO, size: int, mode: int | None) -> None:
        (self._folder / path).write_bytes(source.read(size))

    async def list_folder(self, path: str) -> list[FileInfo]:
        return [
            FileInfo(entry.name, entry.stat().st_size, entry.is_dir())
            for entry in (self._folder / path).iterdir()
        ]

    async def make_folder(self, path: str, *, parents: bool) -> None:
        (self._folder / path).mkdir(parents=parents, exist_ok=parents)

    async def remove_path(self, path: str) -> None:
        (self._folder / path).unlink()


class HostSandbox(BaseSandbox):
    @property
    def native(self) -> Path:
        return Path(self.id)

    def _command(self, command: str | tuple[str, ...], *, env: Mapping[str, str], seconds: float) -> HostRun:
        return HostRun(command, self.native, {**self._request.variables, **env})

    def _code(self, code: str, *, language: str, context_id: str | None, seconds: float) -> HostRun:
        return HostRun(("python3", "-c", code), self.native, self._request.variables)

    def _transfer(self) -> HostFiles:
        return HostFiles(self.native)

    async def _destroy(self) -> None:
        await anyio.lowlevel.checkpoint()
        shutil.rmtree(self.native, ignore_errors=True)


class HostBackend(BaseBackend):
    name = "host"
    isolation = IsolationTier.CONTAINER
    capabilities = (
        Capability.RUN_COMMAND
        | Capability.RUN_CODE
        | Capability.STREAMING
        | Capability.FILESYSTEM
        | Capability.UPLOAD_DOWNLOAD
        | Capability.NETWORK_POLICY
    )

    async def _provision(self, request: SandboxRequest) -> HostSandbox:
        folder = Path(
            os.environ.get("SBX_TEST_HOST", tempfile.gettempdir()), f"sbx-host-{uuid.uuid4().hex[:8]}"
        )
        if (gate := request.env.get("SLOW_CREATE")) is not None:
            folder.mkdir()
            try:
                Path(gate).touch()
                await anyio.sleep_forever()
            finally:
                folder.rmdir()
        folder.mkdir()
        return self._handle(str(folder), request)

    async def _attach(self, sandbox_id: str) -> HostSandbox:
        await anyio.lowlevel.checkpoint()
        if not Path(sandbox_id).is_dir():
            raise ConnectError(f"There is no sandbox {sandbox_id!r}.")
        return self._handle(sandbox_id, SandboxRequest(timeout=300.0))

    def _handle(self, folder: str, request: SandboxRequest) -> HostSandbox:
        return HostSandbox(
            id=folder,
            backend=self.name,
            capabilities=self.capabilities,
            isolation=self.isolation,
            request=request,
            recorder=self._recorder,
        )

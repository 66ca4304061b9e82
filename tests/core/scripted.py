"""An adapter whose far side is a script: what the core's base classes do can be seen without a backend.

Every await point of the adapter is a *gate*. A test counts the gates of a whole life, and then cancels at
the first, the second, ... until each was hit. The far side is plain data (``World``), so what is left
behind can be read off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import BinaryIO

import anyio
import anyio.lowlevel

from sandboxio.adapter import BaseBackend, BaseSandbox, Execution, Exit, FileTransfer, SandboxRequest
from sandboxio.audit import AuditConfig
from sandboxio.errors import ConnectError, PathNotFound, SandboxError
from sandboxio.models import Capability, FileInfo, IsolationTier, OutputChunk

EVERYTHING = (
    Capability.RUN_COMMAND
    | Capability.RUN_CODE
    | Capability.STREAMING
    | Capability.FILESYSTEM
    | Capability.UPLOAD_DOWNLOAD
    | Capability.NETWORK_POLICY
)


@dataclass
class World:
    """The far side: what exists there, how it behaves, and the gates passed so far."""

    sandboxes: set[str] = field(default_factory=set)
    processes: set[int] = field(default_factory=set)
    files: dict[str, bytes] = field(default_factory=dict)
    output: list[OutputChunk] = field(default_factory=list)
    exit: Exit = field(default_factory=lambda: Exit(0))
    hangs: bool = False
    kill_hangs: bool = False
    kill_takes: float = 0.0
    destroy_hangs: bool = False
    kill_error: SandboxError | None = None
    destroy_error: SandboxError | None = None
    gates: int = 0
    cancel_at: int = 0
    scope: anyio.CancelScope | None = None
    on_gate: Callable[[int], None] = lambda number: None

    async def gate(self) -> None:
        self.gates += 1
        self.on_gate(self.gates)
        if self.gates == self.cancel_at and self.scope is not None:
            self.scope.cancel()
        await anyio.lowlevel.checkpoint()


class ScriptedExecution(Execution):
    def __init__(self, world: World) -> None:
        self.world = world
        self.left = list(world.output)
        self.dead = False
        self.died = anyio.Event()
        self.closed = False

    async def start(self) -> None:
        await self.world.gate()
        self.world.processes.add(id(self))
        await self.world.gate()

    async def receive(self) -> OutputChunk | None:
        await self.world.gate()
        if self.left:
            return self.left.pop(0)
        if self.world.hangs:
            await self.died.wait()
        self.world.processes.discard(id(self))
        self.exit = Exit(137) if self.dead else self.world.exit
        return None

    def receive_nowait(self) -> OutputChunk | None:
        return self.left.pop(0) if self.left else None

    async def kill(self) -> None:
        if self.world.kill_error is not None:
            raise self.world.kill_error
        if self.world.kill_hangs:
            await anyio.sleep_forever()
        await anyio.sleep(self.world.kill_takes)
        self.dead = True
        self.died.set()
        self.world.processes.discard(id(self))

    def close(self) -> None:
        self.closed = True


class ScriptedFiles(FileTransfer):
    def __init__(self, world: World) -> None:
        self.world = world

    async def read_file(self, path: str, sink: Callable[[bytes], None]) -> None:
        await self.world.gate()
        if path not in self.world.files:
            raise PathNotFound(f"{path!r} does not exist.")
        data = self.world.files[path]
        for start in range(0, len(data), 1000):
            sink(data[start : start + 1000])
            await self.world.gate()

    async def write_file(self, path: str, source: BinaryIO, size: int, mode: int | None) -> None:
        await self.world.gate()
        data = source.read(size)
        await self.world.gate()
        self.world.files[path] = data

    async def list_folder(self, path: str) -> list[FileInfo]:
        await self.world.gate()
        return [FileInfo(name, len(data), is_dir=False) for name, data in self.world.files.items()]

    async def make_folder(self, path: str, *, parents: bool) -> None:
        await self.world.gate()

    async def remove_path(self, path: str) -> None:
        await self.world.gate()
        del self.world.files[path]


class ScriptedSandbox(BaseSandbox):
    world: World

    def _command(
        self, command: str | tuple[str, ...], *, env: Mapping[str, str], seconds: float
    ) -> ScriptedExecution:
        return ScriptedExecution(self.world)

    def _code(self, code: str, *, language: str, context_id: str | None, seconds: float) -> ScriptedExecution:
        return ScriptedExecution(self.world)

    def _transfer(self) -> ScriptedFiles:
        return ScriptedFiles(self.world)

    async def _destroy(self) -> None:
        if self.world.destroy_error is not None:
            raise self.world.destroy_error
        if self.world.destroy_hangs:
            await anyio.sleep_forever()
        await anyio.lowlevel.checkpoint()
        self.world.sandboxes.discard(self.id)
        self.world.processes.clear()

    @property
    def native(self) -> object:
        return self.world


class ScriptedBackend(BaseBackend):
    name = "scripted"
    isolation = IsolationTier.CONTAINER
    capabilities = EVERYTHING

    def __init__(self, world: World | None = None, *, audit: AuditConfig | None = None) -> None:
        super().__init__(audit=audit)
        self.world = world or World()

    async def _provision(self, request: SandboxRequest) -> ScriptedSandbox:
        await self.world.gate()
        return self._handle("s-1", request)

    async def _attach(self, sandbox_id: str) -> ScriptedSandbox:
        await self.world.gate()
        if sandbox_id not in self.world.sandboxes:
            raise ConnectError(f"There is no sandbox {sandbox_id!r}.")
        return self._handle(sandbox_id, SandboxRequest(timeout=300.0))

    def _handle(self, sandbox_id: str, request: SandboxRequest) -> ScriptedSandbox:
        self.world.sandboxes.add(sandbox_id)
        made = type("Handle", (ScriptedSandbox,), {"world": self.world})
        return made(
            id=sandbox_id,
            backend=self.name,
            capabilities=self.capabilities,
            isolation=self.isolation,
            request=request,
            recorder=self._recorder,
        )

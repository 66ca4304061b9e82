"""sandboxio as a subject: both channels, both loops, and the blocking facade."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import anyio

import sandboxio
from sandboxio.sync import SyncSandbox
from sandboxio_docker import DockerBackend

from . import settings
from .subjects import AsyncSubject, Clock, Subject, make_file


class Sandboxed(AsyncSubject):
    """The calls of one sandbox, whatever backend it is of."""

    sandbox: Any

    async def make(self) -> Any:
        """A new sandbox, which the caller ends."""
        raise NotImplementedError

    async def setup(self) -> None:
        self.sandbox = await self.make()
        await self.true()

    async def teardown(self) -> None:
        await self.sandbox.kill()

    async def true(self) -> object:
        return await self.sandbox.run(["true"])

    async def code(self) -> object:
        return await self.sandbox.run_code("print(1)")

    async def small_file(self) -> None:
        await self.sandbox.files.write("small", settings.SMALL)
        assert await self.sandbox.files.read("small") == settings.SMALL

    async def stream(self, size: int) -> float:
        """Bytes per second of one stream."""
        start, seen = Clock(), 0
        async with self.sandbox.stream(settings.printing(size), timeout=300) as process:
            async for chunk in process:
                seen += len(chunk.data)
        assert seen == size
        return size / (Clock() - start)

    async def first_result(self) -> object:
        """Make a sandbox and run a command; what comes back ends it."""
        sandbox = await self.make()
        await sandbox.run(["true"])
        return sandbox.kill

    async def first_results(self, count: int) -> float:
        """Seconds until ``count`` sandboxes, opened at once, have each run a command."""
        ends: list[Any] = []

        async def one() -> None:
            ends.append(await self.first_result())

        start = Clock()
        try:
            async with anyio.create_task_group() as group:
                for _ in range(count):
                    group.start_soon(one)
            return Clock() - start
        finally:
            async with anyio.create_task_group() as group:
                for end in ends:
                    group.start_soon(end)

    async def overshoot(self) -> float:
        """Seconds by which a run outlives its timeout of 0.2 s."""
        start = Clock()
        try:
            await self.sandbox.run(["sleep", "30"], timeout=0.2)
        except sandboxio.ExecutionTimeout:
            return Clock() - start - 0.2
        raise AssertionError("it did not time out")

    async def cancelled(self) -> float:
        """Seconds from a cancellation until it has left run(), which is when the process is gone."""
        start = 0.0
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:

                async def run() -> None:
                    await self.sandbox.run(["sleep", "30"])

                group.start_soon(run)
                await anyio.sleep(0.1)
                start = Clock()
                scope.cancel()
        return Clock() - start

    async def kill(self) -> float:
        """Seconds of the kill of one process, which is confirmed gone."""
        async with self.sandbox.stream(["sleep", "60"]) as process:
            start = Clock()
            await process.kill()
            return Clock() - start

    async def move_file(self, size: int) -> tuple[float, float]:
        """Seconds to upload and to download a file of ``size`` bytes."""
        with tempfile.TemporaryDirectory() as folder:
            local, back = Path(folder, "file"), Path(folder, "back")
            make_file(local, size)
            start = Clock()
            await self.sandbox.files.upload(local, "file")
            middle = Clock()
            await self.sandbox.files.download("file", back)
            end = Clock()
            assert back.stat().st_size == size
        await self.sandbox.files.remove("file")
        return middle - start, end - middle


class Ours(Sandboxed):
    """sandboxio on Docker, on one channel and one loop."""

    def __init__(self, channel: str = "guest", loop: str = "asyncio") -> None:
        self.loop = loop
        self.channel = channel
        self.quick = channel == "guest"
        self.name = f"sandboxio {channel} ({loop})"
        # one for all sandboxes, as sandboxio.create() has it: the engine's version is asked for once
        self.backend = DockerBackend(image=settings.IMAGE, channel=channel)  # type: ignore[arg-type]

    async def make(self) -> Any:
        resources = sandboxio.Resources(cpu=settings.CPU, memory_mb=settings.MEMORY_MB)
        return await self.backend.create(resources=resources, timeout=3600)


class OursSync(Subject):
    """sandboxio's blocking facade."""

    name = "sandboxio guest (sync)"
    quick = True

    def make(self) -> SyncSandbox:
        resources = sandboxio.Resources(cpu=settings.CPU, memory_mb=settings.MEMORY_MB)
        return sandboxio.create_sync(f"docker://{settings.IMAGE}", resources=resources, timeout=3600)

    def open(self) -> None:
        self.sandbox = self.make()
        self.true()

    def close(self) -> None:
        self.sandbox.close()

    def true(self) -> object:
        return self.sandbox.run(["true"])

    def code(self) -> object:
        return self.sandbox.run_code("print(1)")

    def small_file(self) -> None:
        self.sandbox.files.write("small", settings.SMALL)
        assert self.sandbox.files.read("small") == settings.SMALL

    def stream(self, size: int) -> float:
        """Bytes per second of one stream."""
        start, seen = Clock(), 0
        with self.sandbox.stream(settings.printing(size), timeout=300) as process:
            for chunk in process:
                seen += len(chunk.data)
        assert seen == size
        return size / (Clock() - start)

    def first_result(self) -> object:
        sandbox = self.make()
        sandbox.run(["true"])
        return sandbox.close

    def overshoot(self) -> float:
        """Seconds by which a run outlives its timeout of 0.2 s."""
        start = Clock()
        try:
            self.sandbox.run(["sleep", "30"], timeout=0.2)
        except sandboxio.ExecutionTimeout:
            return Clock() - start - 0.2
        raise AssertionError("it did not time out")

    def kill(self) -> float:
        """Seconds of the kill of one process, which is confirmed gone."""
        with self.sandbox.stream(["sleep", "60"]) as process:
            start = Clock()
            process.kill()
            return Clock() - start

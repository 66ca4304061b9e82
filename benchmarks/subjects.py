"""Who is measured. Each subject holds one live sandbox and does the same small things in it.

Durations are taken where the caller of the library would take them: inside the event loop for async
libraries, around the call for blocking ones. A subject that cannot do a thing says so by leaving it out.
"""

from __future__ import annotations

import io
import subprocess
import tarfile
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any

import anyio
import anyio.from_thread

import sandboxio
from sandboxio.sync import SyncSandbox
from sandboxio_docker import DockerBackend

from . import settings

Clock = time.perf_counter


class Subject(ABC):
    """One library with one live sandbox. What it cannot do raises ``NotImplementedError``."""

    name: str

    @abstractmethod
    def open(self) -> None:
        """Make the sandbox and wait until a command has run in it."""

    @abstractmethod
    def close(self) -> None:
        """End the sandbox."""

    def times(self, thing: str, count: int) -> list[float]:
        """Seconds of ``count`` calls of the method ``thing``, one after another."""
        return [self._time(getattr(self, thing)) for _ in range(count)]

    def burst(self, count: int) -> float:
        """Seconds for ``count`` runs of ``true`` at once."""
        raise NotImplementedError

    @staticmethod
    def _time(call: Callable[[], object]) -> float:
        """Seconds of one call; what it returns, if callable, undoes it outside of the time."""
        start = Clock()
        undo = call()
        seconds = Clock() - start
        if callable(undo):
            undo()
        return seconds


class AsyncSubject(Subject):
    """A subject whose methods are coroutines of an event loop that lives as long as the sandbox."""

    loop = "asyncio"

    def open(self) -> None:
        self._stack = ExitStack()
        self._portal = self._stack.enter_context(anyio.from_thread.start_blocking_portal(self.loop))
        self._portal.call(self.setup)

    def close(self) -> None:
        try:
            self._portal.call(self.teardown)
        finally:
            self._stack.close()

    def times(self, thing: str, count: int) -> list[float]:
        return self._portal.call(self._times, getattr(self, thing), count)

    def burst(self, count: int) -> float:
        return self._portal.call(self._burst, count)

    def call(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """Run something else in the subject's loop."""
        return self._portal.call(work)

    async def _times(self, call: Callable[[], Awaitable[object]], count: int) -> list[float]:
        seconds = []
        for _ in range(count):
            start = Clock()
            undo = await call()
            seconds.append(Clock() - start)
            if callable(undo):
                await undo()
        return seconds

    async def _burst(self, count: int) -> float:
        start = Clock()
        async with anyio.create_task_group() as group:
            for _ in range(count):
                group.start_soon(self.true)
        return Clock() - start

    @abstractmethod
    async def setup(self) -> None: ...

    @abstractmethod
    async def teardown(self) -> None: ...

    @abstractmethod
    async def true(self) -> object: ...


class Floor(AsyncSubject):
    """A local subprocess: what a command costs without any sandbox."""

    def __init__(self, loop: str = "asyncio") -> None:
        self.loop = loop
        self.name = f"local subprocess ({loop})"

    async def setup(self) -> None:
        await self.true()

    async def teardown(self) -> None:
        pass

    async def true(self) -> object:
        return await anyio.run_process(["true"])

    async def code(self) -> object:
        return await anyio.run_process(["python3", "-c", "print(1)"])


class Ours(AsyncSubject):
    """sandboxio on one channel and one loop."""

    def __init__(self, channel: str = "guest", loop: str = "asyncio") -> None:
        self.loop = loop
        self.channel = channel
        self.name = f"sandboxio {channel} ({loop})"

    def backend(self) -> DockerBackend:
        return DockerBackend(image=settings.IMAGE, channel=self.channel)  # type: ignore[arg-type]

    async def make(self) -> Any:
        resources = sandboxio.Resources(cpu=settings.CPU, memory_mb=settings.MEMORY_MB)
        return await self.backend().create(resources=resources, timeout=3600)

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
        await self.sandbox.files.write("/work/small", b"x" * 1024)
        assert len(await self.sandbox.files.read("/work/small")) == 1024

    async def stream(self, size: int) -> float:
        """Bytes per second of one stream."""
        start, seen = Clock(), 0
        async with self.sandbox.stream(settings.printing(size), timeout=300) as process:
            async for chunk in process:
                seen += len(chunk.data)
        assert seen == size
        return size / (Clock() - start)

    async def first_result(self) -> object:
        """Make a sandbox and run a command; the returned one is ended by the caller."""
        sandbox = await self.make()
        await sandbox.run(["true"])
        return sandbox.kill

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


class OursSync(Subject):
    """sandboxio's blocking facade."""

    name = "sandboxio guest (sync)"

    def open(self) -> None:
        self.sandbox: SyncSandbox = sandboxio.create_sync(f"docker://{settings.IMAGE}", timeout=3600)
        self.true()

    def close(self) -> None:
        self.sandbox.close()

    def true(self) -> object:
        return self.sandbox.run(["true"])

    def code(self) -> object:
        return self.sandbox.run_code("print(1)")

    def small_file(self) -> None:
        self.sandbox.files.write("/work/small", b"x" * 1024)
        assert len(self.sandbox.files.read("/work/small")) == 1024


class DockerPy(Subject):
    """docker-py 7: ``exec_run``, ``put_archive``, ``get_archive``."""

    name = "docker-py"

    def open(self) -> None:
        import docker

        self.client = docker.DockerClient(base_url=f"unix://{settings.SOCKET}", max_pool_size=100)
        self.container = self._run()
        self.true()

    def _run(self) -> Any:
        return self.client.containers.run(
            settings.IMAGE, ["sleep", "3600"], detach=True, **settings.DOCKER_PY
        )

    def close(self) -> None:
        self.container.remove(force=True)
        self.client.close()

    def true(self) -> object:
        return self.container.exec_run(["true"])

    def code(self) -> object:
        return self.container.exec_run(["python3", "-c", "print(1)"])

    def burst(self, count: int) -> float:
        with ThreadPoolExecutor(count) as pool:
            start = Clock()
            for done in [pool.submit(self.true) for _ in range(count)]:
                done.result()
            return Clock() - start

    def small_file(self) -> None:
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            entry = tarfile.TarInfo("small")
            entry.size = 1024
            tar.addfile(entry, io.BytesIO(b"x" * 1024))
        self.container.put_archive("/tmp", archive.getvalue())
        pieces, _ = self.container.get_archive("/tmp/small")
        with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as tar:
            member = tar.extractfile("small")
            assert member is not None
            assert len(member.read()) == 1024

    def stream(self, size: int) -> float:
        start = Clock()
        _, output = self.container.exec_run(settings.printing(size), stream=True)
        seen = sum(len(piece) for piece in output)
        assert seen == size
        return size / (Clock() - start)

    def first_result(self) -> object:
        container = self._run()
        container.exec_run(["true"])
        return lambda: container.remove(force=True)


class AioDocker(AsyncSubject):
    """aiodocker on asyncio."""

    name = "aiodocker"

    async def setup(self) -> None:
        import aiodocker

        self.docker = aiodocker.Docker(url=f"unix://{settings.SOCKET}")
        self.container = await self._run()
        await self.true()

    async def _run(self) -> Any:
        config = {"Image": settings.IMAGE, "Cmd": ["sleep", "3600"], "HostConfig": settings.HOST_CONFIG}
        container = await self.docker.containers.create(config)
        await container.start()
        return container

    async def teardown(self) -> None:
        await self.container.delete(force=True)
        await self.docker.close()

    async def _exec(self, command: list[str]) -> None:
        execution = await self.container.exec(command)
        async with execution.start(detach=False) as stream:
            while await stream.read_out() is not None:
                pass
        await execution.inspect()

    async def true(self) -> None:
        await self._exec(["true"])

    async def code(self) -> None:
        await self._exec(["python3", "-c", "print(1)"])

    async def first_result(self) -> object:
        container = await self._run()
        execution = await container.exec(["true"])
        async with execution.start(detach=False) as stream:
            while await stream.read_out() is not None:
                pass
        await execution.inspect()
        return lambda: container.delete(force=True)


class LlmSandbox(Subject):
    """llm-sandbox 0.3 without its environment setup, which needs a network."""

    name = "llm-sandbox"

    def open(self) -> None:
        from llm_sandbox import SandboxSession

        self.session = SandboxSession(
            lang="python",
            image=settings.IMAGE,
            keep_template=True,
            skip_environment_setup=True,
            workdir="/tmp",
            runtime_configs=dict(settings.DOCKER_PY),
        )
        self.session.open()
        self.true()

    def close(self) -> None:
        with suppress(Exception):  # it waits ten seconds for a PID 1 that ignores SIGTERM
            self.session.container.kill()
        self.session.close()

    def true(self) -> object:
        return self.session.execute_command("true")


class DockerCommand(Subject):
    """The ``docker`` command line, one process for each command."""

    name = "docker CLI"

    def open(self) -> None:
        flags = [
            *("--network", "none", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
            *("--pids-limit", str(settings.PIDS), "--memory", f"{settings.MEMORY_MB}m"),
            *("--cpus", str(settings.CPU)),
        ]
        done = self._docker("run", "-d", *flags, settings.IMAGE, "sleep", "3600")
        self.container = done.strip()
        self.true()

    def close(self) -> None:
        self._docker("rm", "-f", self.container)

    def _docker(self, *arguments: str) -> str:
        done = subprocess.run(
            ["docker", "-H", f"unix://{settings.SOCKET}", *arguments], capture_output=True, check=True
        )
        return done.stdout.decode()

    def true(self) -> object:
        return self._docker("exec", self.container, "true")

    def code(self) -> object:
        return self._docker("exec", self.container, "python3", "-c", "print(1)")

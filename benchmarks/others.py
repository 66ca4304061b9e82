"""The other libraries as subjects, each used as its own documentation shows."""

from __future__ import annotations

import io
import subprocess
import tarfile
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from . import settings
from .subjects import AsyncSubject, Clock, Subject, make_file


def archive_of(data: bytes) -> bytes:
    """A tar archive with one file ``small``."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        entry = tarfile.TarInfo("small")
        entry.size = len(data)
        tar.addfile(entry, io.BytesIO(data))
    return archive.getvalue()


def file_of(archive: bytes) -> bytes:
    """What the file ``small`` of a tar archive holds."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        member = tar.extractfile("small")
        assert member is not None
        return member.read()


class DockerPy(Subject):
    """docker-py: ``exec_run``, ``put_archive``, ``get_archive``."""

    name = "docker-py"

    def open(self) -> None:
        import docker

        self.client = docker.DockerClient(base_url=f"unix://{settings.SOCKET}", max_pool_size=256)
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

    def small_file(self) -> None:
        self.container.put_archive("/tmp", archive_of(settings.SMALL))
        pieces, _ = self.container.get_archive("/tmp/small")
        assert file_of(b"".join(pieces)) == settings.SMALL

    def stream(self, size: int) -> float:
        """Bytes per second of one stream."""
        start = Clock()
        _, output = self.container.exec_run(settings.printing(size), stream=True)
        seen = sum(len(piece) for piece in output)
        assert seen == size
        return size / (Clock() - start)

    def first_result(self) -> object:
        container = self._run()
        container.exec_run(["true"])
        return lambda: container.remove(force=True)

    def move_file(self, size: int) -> tuple[float, float]:
        """Seconds to put a file of ``size`` bytes there and get it back, through a tar file on the disk."""
        with tempfile.TemporaryDirectory() as folder:
            local, packed, back = Path(folder, "file"), Path(folder, "packed"), Path(folder, "back")
            make_file(local, size)
            start = Clock()
            with tarfile.open(packed, "w") as tar:
                tar.add(local, "file")
            with packed.open("rb") as archive:
                self.container.put_archive("/tmp", archive)
            middle = Clock()
            pieces, _ = self.container.get_archive("/tmp/file")
            with packed.open("wb") as archive:
                for piece in pieces:
                    archive.write(piece)
            with tarfile.open(packed) as tar:
                tar.extract("file", back, filter="data")
            end = Clock()
        self.container.exec_run(["rm", "/tmp/file"])
        return middle - start, end - middle


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

    async def _exec(self, container: Any, command: list[str]) -> int:
        execution = await container.exec(command)
        seen = 0
        async with execution.start(detach=False) as stream:
            while (message := await stream.read_out()) is not None:
                seen += len(message.data)
        await execution.inspect()
        return seen

    async def true(self) -> None:
        await self._exec(self.container, ["true"])

    async def code(self) -> None:
        await self._exec(self.container, ["python3", "-c", "print(1)"])

    async def small_file(self) -> None:
        await self.container.put_archive("/tmp", archive_of(settings.SMALL))
        with await self.container.get_archive("/tmp/small") as tar:
            member = tar.extractfile("small")
            assert member is not None
            assert member.read() == settings.SMALL

    async def stream(self, size: int) -> float:
        """Bytes per second of one stream."""
        start = Clock()
        assert await self._exec(self.container, settings.printing(size)) == size
        return size / (Clock() - start)

    async def first_result(self) -> object:
        container = await self._run()
        await self._exec(container, ["true"])
        return lambda: container.delete(force=True)


class LlmSandbox(Subject):
    """llm-sandbox 0.3 without its environment setup, which needs a network."""

    name = "llm-sandbox"
    at_once = False  # 64 threads in one session: its HTTP client raises AttributeError

    def _session(self) -> Any:
        from llm_sandbox import SandboxSession

        session = SandboxSession(
            lang="python",
            image=settings.IMAGE,
            keep_template=True,
            skip_environment_setup=True,
            workdir="/tmp",
            runtime_configs={**settings.DOCKER_PY, "command": ["sleep", "3600"]},
        )
        session.open()
        return session

    def _end(self, session: Any) -> None:
        with suppress(Exception):  # closing waits ten seconds for a process 1 that ignores SIGTERM
            session.container.kill()
        session.close()

    def open(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.session = self._session()
        self.true()

    def close(self) -> None:
        self._end(self.session)
        self._folder.cleanup()

    def true(self) -> object:
        return self.session.execute_command("true")

    def small_file(self) -> None:
        local, back = Path(self._folder.name, "small"), Path(self._folder.name, "back")
        local.write_bytes(settings.SMALL)
        self.session.copy_to_runtime(str(local), "/tmp/small")
        self.session.copy_from_runtime("/tmp/small", str(back))
        assert back.read_bytes() == settings.SMALL

    def first_result(self) -> object:
        session = self._session()
        session.execute_command("true")
        return lambda: self._end(session)


class DockerCommand(Subject):
    """The ``docker`` command line, one process for each command."""

    name = "docker CLI"

    def open(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.container = self._run()
        self.true()

    def _run(self) -> str:
        flags = [
            *("--network", "none", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
            *("--pids-limit", str(settings.PIDS), "--memory", f"{settings.MEMORY_MB}m"),
            *("--cpus", str(settings.CPU)),
        ]
        return self._docker("run", "-d", *flags, settings.IMAGE, "sleep", "3600").strip()

    def close(self) -> None:
        self._docker("rm", "-f", self.container)
        self._folder.cleanup()

    def _command(self, *arguments: str) -> list[str]:
        return ["docker", "-H", f"unix://{settings.SOCKET}", *arguments]

    def _docker(self, *arguments: str) -> str:
        return subprocess.run(self._command(*arguments), capture_output=True, check=True).stdout.decode()

    def true(self) -> object:
        return self._docker("exec", self.container, "true")

    def code(self) -> object:
        return self._docker("exec", self.container, "python3", "-c", "print(1)")

    def small_file(self) -> None:
        local, back = Path(self._folder.name, "small"), Path(self._folder.name, "back")
        local.write_bytes(settings.SMALL)
        self._docker("cp", str(local), f"{self.container}:/tmp/small")
        self._docker("cp", f"{self.container}:/tmp/small", str(back))
        assert back.read_bytes() == settings.SMALL

    def stream(self, size: int) -> float:
        """Bytes per second of one stream."""
        start, seen = Clock(), 0
        command = self._command("exec", self.container, *settings.printing(size))
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            while data := process.stdout.read1(1 << 18):
                seen += len(data)
        assert seen == size
        return size / (Clock() - start)

    def first_result(self) -> object:
        container = self._run()
        self._docker("exec", container, "true")
        return lambda: self._docker("rm", "-f", container)

    def move_file(self, size: int) -> tuple[float, float]:
        """Seconds of ``docker cp`` of a file of ``size`` bytes there and back."""
        with tempfile.TemporaryDirectory() as folder:
            local, back = Path(folder, "file"), Path(folder, "back")
            make_file(local, size)
            start = Clock()
            self._docker("cp", str(local), f"{self.container}:/tmp/file")
            middle = Clock()
            self._docker("cp", f"{self.container}:/tmp/file", str(back))
            end = Clock()
        self._docker("exec", self.container, "rm", "/tmp/file")
        return middle - start, end - middle

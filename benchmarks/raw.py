"""Floors and ceilings: the engine's own calls and streams, and the guest's stream read without a look."""

from __future__ import annotations

import json
import shlex
import struct
from typing import Any

from sandboxio import Resources
from sandboxio.adapter import SandboxRequest
from sandboxio_docker import launcher
from sandboxio_docker.engine import Engine, Hijacked
from sandboxio_docker.guest_link import GuestLink
from sandboxio_docker.guest_protocol import Kind, frame
from sandboxio_docker.hostconfig import container_config
from sandboxio_docker.lifecycle import remove
from sandboxio_docker.wire import Wire

from . import settings
from .ours import Ours
from .subjects import AsyncSubject, Clock


class RawEngine(AsyncSubject):
    """create + attach + start with sandboxio's own settings, until process 1 has said a word."""

    name = "raw engine"

    async def setup(self) -> None:
        self.engine = Engine(f"unix://{settings.SOCKET}")
        await self.engine.negotiate()

    async def teardown(self) -> None:
        pass

    async def true(self) -> None:
        raise NotImplementedError

    async def first_result(self) -> object:
        container, attach = await self.started("echo ready; exec cat")
        await attach.receive()

        async def end() -> None:
            attach.close()
            await remove(self.engine, container)

        return end

    async def started(self, script: str) -> tuple[str, Hijacked]:
        """A container whose process 1 is a shell with this script: its id and connection."""
        body = container_config(
            SandboxRequest(timeout=3600, resources=Resources(cpu=settings.CPU, memory_mb=settings.MEMORY_MB)),
            image=settings.IMAGE,
            entrypoint=["/bin/sh", "-c", script],
        )
        made = await self.engine.request("POST", "/containers/create", json=body)
        container = json.loads(made.content)["Id"]
        attach = await self.engine.upgrade(
            "POST",
            f"/containers/{container}/attach",
            params={"stream": True, "stdin": True, "stdout": True, "stderr": True},
        )
        await self.engine.request("POST", f"/containers/{container}/start")
        return container, attach


class EngineStream(RawEngine):
    """What the engine itself carries: a command's own attach stream, received and thrown away.

    Nobody who streams through the engine can be faster, whatever runs inside and whoever reads.
    """

    name = "raw engine, attach"

    async def stream(self, size: int) -> float:
        """Bytes per second on the wire."""
        command = shlex.join(settings.printing(size))
        container, attach = await self.started(f"read go; {command}; read end")
        try:
            start = Clock()
            await attach.send(b"\n")
            receive_all(attach, size)
            return size / (Clock() - start)
        finally:
            attach.close()
            await remove(self.engine, container)


class EngineExecStream(EngineStream):
    """The same through exec, which is the way that docker-py takes."""

    name = "raw engine, exec"

    async def stream(self, size: int) -> float:
        """Bytes per second on the wire."""
        container, attach = await self.started("read end")
        command = {"Cmd": settings.printing(size), "AttachStdout": True, "AttachStderr": True}
        try:
            start = Clock()
            made = await self.engine.post_json(f"/containers/{container}/exec", command)
            path = f"/exec/{made['Id']}/start"
            output = await self.engine.upgrade("POST", path, json={"Detach": False, "Tty": False})
            try:
                receive_all(output, size)
            finally:
                output.close()
            return size / (Clock() - start)
        finally:
            attach.close()
            await remove(self.engine, container)


def receive_all(stream: Hijacked, size: int) -> None:
    """Receive ``size`` bytes into one buffer, blocking: nobody else is in this event loop."""
    wire, early = stream.release()
    wire.sock.setblocking(True)
    buffer, seen = bytearray(1 << 18), len(early)
    while seen < size:
        count = wire.sock.recv_into(buffer)
        assert count, "the stream ended early"
        seen += count
    wire.sock.setblocking(False)


class UnreadStream(Ours):
    """The guest's stream with its credit, thrown away as it comes: no frame is looked at."""

    def __init__(self, loop: str = "asyncio") -> None:
        super().__init__("guest", loop)
        self.name = f"guest stream, unread ({loop})"

    async def stream(self, size: int) -> float:
        """Bytes per second on the wire, of a run that prints ``size`` bytes."""
        sandbox = await self.make()
        try:
            link: GuestLink = sandbox._channel._link
            port: Wire = link._mux._port  # type: ignore[assignment]
            op = link.protocol.new_operation()
            argv = [word.encode() for word in settings.printing(size)]
            start = Clock()
            await self._send(port, link.protocol.start(op, argv))
            await self._send(port, credit(op, (1 << 20) - (256 << 10)))  # the window that a fast reader has
            seen = owed = 0
            while seen < size:
                data = await port.receive_some()
                seen += len(data)
                owed += len(data)
                if owed >= 512 << 10:
                    await self._send(port, credit(op, owed - (owed % 4096)))
                    owed %= 4096
            return size / (Clock() - start)
        finally:
            await sandbox.kill()

    async def _send(self, port: Any, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[await port.send_some(view) :]


def credit(op: int, size: int) -> bytes:
    """A CREDIT frame for stdout."""
    return frame(Kind.CREDIT, op, struct.pack(">BI", 1, size))


def program_size() -> int:
    """Bytes of the guest's program, which every create sends."""
    return len(launcher.program())

"""The floors below sandboxio: the engine's own calls, and the guest's stream read without looking at it."""

from __future__ import annotations

import json
import struct
from typing import Any

from sandboxio_docker import launcher
from sandboxio_docker.engine import Engine
from sandboxio_docker.guest_link import GuestLink
from sandboxio_docker.guest_protocol import Kind, frame
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
        body = {
            "Image": settings.IMAGE,
            "Entrypoint": ["/bin/sh", "-c", "echo ready; exec cat"],
            "Cmd": [],
            "OpenStdin": True,
            "StdinOnce": True,
            "AttachStdin": True,
            "AttachStdout": True,
            "NetworkDisabled": True,
            "HostConfig": {**settings.HOST_CONFIG, "AutoRemove": True},
        }
        made = await self.engine.request("POST", "/containers/create", json=body)
        container = json.loads(made.content)["Id"]
        attach = await self.engine.upgrade(
            "POST",
            f"/containers/{container}/attach",
            params={"stream": True, "stdin": True, "stdout": True},
        )
        await self.engine.request("POST", f"/containers/{container}/start")
        await attach.receive()

        async def end() -> None:
            attach.close()
            await remove(self.engine, container)

        return end


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

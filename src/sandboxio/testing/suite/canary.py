"""A server that counts its visitors: whoever reaches it has left the sandbox."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

import anyio
import anyio.abc

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nhi\n"


class Canary(Protocol):
    """Something a sandbox may reach. ``host`` and ``url`` are as the sandbox sees them."""

    @property
    def host(self) -> str:
        """Its name or address."""
        ...

    @property
    def url(self) -> str:
        """Its address as a URL."""
        ...

    @property
    def visits(self) -> int:
        """How many connections have come so far."""
        ...


@dataclass
class ServedCanary:
    """A small HTTP server of the suite's own."""

    host: str
    port: int = 0
    visits: int = 0

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://{self.host}:{self.port}/"

    async def answer(self, stream: anyio.abc.SocketStream) -> None:
        """Count the visitor and say something."""
        self.visits += 1
        async with stream:
            try:
                await stream.receive()
                await stream.send(ANSWER)
            except (anyio.BrokenResourceError, anyio.EndOfStream, anyio.ClosedResourceError):
                return  # it left, and it was counted


@asynccontextmanager
async def serve(host: str) -> AsyncGenerator[ServedCanary]:
    """Serve on a free port of ``host`` for the body."""
    canary = ServedCanary(host)
    async with await anyio.create_tcp_listener(local_host=host) as listener:
        canary.port = listener.extra(anyio.abc.SocketAttribute.local_port)  # noqa: S610 - not a database
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, canary.answer)  # noqa: ASYNC113 - the listener takes connections already
            yield canary
            tasks.cancel_scope.cancel()

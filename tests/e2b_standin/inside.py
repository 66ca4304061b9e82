"""The program of a guest: envd and the code interpreter on one socket that the edge talks to.

The edge names the port that a request was meant for in ``E2b-Sandbox-Port``.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Mapping
from typing import Any

# What uvicorn would import on its first request: the libraries may lie in a folder that the jail hides.
import uvicorn
import uvicorn.lifespan.off
import uvicorn.logging
import uvicorn.loops.asyncio
import uvicorn.protocols.http.h11_impl
from e2b.envd.filesystem.filesystem_connect import FilesystemASGIApplication
from e2b.envd.process.process_connect import ProcessASGIApplication
from starlette.applications import Starlette

from .egress import Forwarder
from .files import UNAUTHORIZED, FileRoutes, answer_error
from .guest import PATH, Guest
from .kernels import Interpreter
from .rpc import FilesystemService, ProcessService

ENVD_PORT, INTERPRETER_PORT = "49983", "49999"
OPEN_WITHOUT_TOKEN = {("GET", "/health"), ("GET", "/files"), ("POST", "/files")}


class GuestApp:
    """ASGI: routes a request to envd or to the interpreter."""

    def __init__(self, guest: Guest) -> None:
        self._guest = guest
        self._plain = Starlette(routes=FileRoutes(guest).routes())
        self._interpreter = Starlette(routes=Interpreter(guest).routes())
        self._services = {
            "/process.Process/": ProcessASGIApplication(ProcessService(guest), compressions=()),
            "/filesystem.Filesystem/": FilesystemASGIApplication(FilesystemService(guest), compressions=()),
        }

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http", scope["type"]
        headers = dict(scope["headers"])
        if headers.get(b"e2b-sandbox-port", b"").decode() == INTERPRETER_PORT:
            await self._interpreter(scope, receive, send)
            return
        token = headers.get(b"x-access-token", b"").decode()
        if token != self._guest.token and (scope["method"], scope["path"]) not in OPEN_WITHOUT_TOKEN:
            await answer_error(401, UNAUTHORIZED)(scope, receive, send)
            return
        for prefix, service in self._services.items():
            if scope["path"].startswith(prefix):
                await service(scope, receive, send)
                return
        await self._plain(scope, receive, send)


def serve(listener: socket.socket, connector: socket.socket | None, config: Mapping[str, Any]) -> None:
    """Serve one guest until it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update({"PATH": PATH, "HOME": "/root", "LANG": "C.UTF-8"})
    os.chdir("/")
    app = GuestApp(Guest.from_config(config))
    settings = uvicorn.Config(
        app, log_level="warning", access_log=False, lifespan="off", http="h11", loop="asyncio", ws="none"
    )
    asyncio.run(_serve(uvicorn.Server(settings), listener, connector, config))


async def _serve(
    server: uvicorn.Server,
    listener: socket.socket,
    connector: socket.socket | None,
    config: Mapping[str, Any],
) -> None:
    if connector is not None:
        await Forwarder(connector, config["egress"]).start()
    await server.serve(sockets=[listener])

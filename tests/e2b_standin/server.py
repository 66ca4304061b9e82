"""The stand-in as one ASGI application, and the process that serves it."""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Any, ClassVar

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from .control import ControlPlane
from .edge import Edge
from .faults import Faults, Rule
from .fleet import ENVD_VERSION, Fleet

ADMIN = "/__standin__"
SHOWN_HEADERS = (
    "idempotency-key",
    "user-agent",
    "connect-timeout-ms",
    "keepalive-ping-interval",
    "content-type",
)


class Protocol(H11Protocol):
    """uvicorn's HTTP/1.1, with the connection itself in the scope: faults and kills need it."""

    open: ClassVar[set[asyncio.Transport]] = set()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        Protocol.open.add(transport)
        app = self.app

        async def with_transport(scope: Any, receive: Any, send: Any) -> None:
            await app({**scope, "standin.transport": transport}, receive, send)

        self.app = with_transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        Protocol.open.discard(self.transport)
        super().connection_lost(exc)


class StandIn:
    """ASGI: control plane, edge and the admin routes of the stand-in itself."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._control = ControlPlane(fleet).app()
        self._edge = Edge(fleet)
        self._faults = Faults(self._route)
        self._requests: list[dict[str, Any]] = []
        self._admin = Starlette(
            routes=[
                Route(ADMIN + "/faults", self.add_faults, methods=["POST"]),
                Route(ADMIN + "/faults", self.clear_faults, methods=["DELETE"]),
                Route(ADMIN + "/settings", self.settings, methods=["POST"]),
                Route(ADMIN + "/state", self.state, methods=["GET"]),
                Route(ADMIN + "/reset", self.reset, methods=["POST"]),
            ]
        )

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"].startswith(ADMIN):
            await self._admin(scope, receive, send)
            return
        headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
        shown = {name: headers[name] for name in SHOWN_HEADERS if name in headers}
        target = Edge.target(dict(scope["headers"]))
        record = {"method": scope["method"], "path": scope["path"], "target": target, "headers": shown}
        self._requests.append(record)
        await self._faults(scope, receive, send)

    async def _route(self, scope: Any, receive: Any, send: Any) -> None:
        handler = self._control if Edge.target(dict(scope["headers"])) is None else self._edge
        await handler(scope, receive, send)

    async def add_faults(self, request: Request) -> Response:
        self._faults.rules.extend(Rule(**rule) for rule in await request.json())
        return Response(status_code=204)

    async def clear_faults(self, request: Request) -> Response:
        self._faults.rules.clear()
        return Response(status_code=204)

    async def settings(self, request: Request) -> Response:
        given = await request.json()
        self._fleet.envd_version = given.get("envd_version", self._fleet.envd_version)
        self._fleet.knows_network = given.get("knows_network", self._fleet.knows_network)
        return Response(status_code=204)

    async def state(self, request: Request) -> Response:
        """What is there: sandboxes, open connections, requests so far (no credentials)."""
        own = request.scope["standin.transport"]
        sandboxes = [
            {"id": item.id, "pid": item.pid, "state": item.state} for item in self._fleet.live.values()
        ]
        return JSONResponse(
            {
                "sandboxes": sandboxes,
                "connections": sum(item is not own for item in Protocol.open),
                "requests": self._requests,
                "faults": [{"match": rule.match, "used": rule.used} for rule in self._faults.rules],
            }
        )

    async def reset(self, request: Request) -> Response:
        """Back to the beginning: no sandboxes, no faults, no memory of requests."""
        for sandbox in tuple(self._fleet.live.values()):
            self._fleet.kill(sandbox)
        self._faults.rules.clear()
        self._requests.clear()
        self._fleet.envd_version = ENVD_VERSION
        self._fleet.knows_network = True
        return Response(status_code=204)


async def serve(fleet: Fleet, port: int) -> None:
    """Serve on loopback until standard input closes."""
    listener = socket.create_server(("127.0.0.1", port))
    # asyncio does this only for sockets that say IPPROTO_TCP, which these do not; accept() inherits it.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    config = uvicorn.Config(
        StandIn(fleet), log_level="critical", access_log=False, lifespan="off", http=Protocol, ws="none"
    )
    server = uvicorn.Server(config)
    loop = asyncio.get_running_loop()
    loop.add_reader(sys.stdin, lambda: _at_end(server))
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    try:
        await server.serve(sockets=[listener])
    finally:
        loop.remove_reader(sys.stdin)
        fleet.close()


def _at_end(server: uvicorn.Server) -> None:
    if not sys.stdin.buffer.raw.read(1024):  # type: ignore[attr-defined]
        server.should_exit = True
        server.force_exit = True

"""The edge: finds the sandbox that a request is for and passes bytes both ways.

A request names its sandbox in ``E2b-Sandbox-Id``, or in the host ``<port>-<id>.<domain>``. A client
that goes away is passed on to the sandbox as a closed connection.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
from starlette.responses import JSONResponse

from .faults import Dropped
from .fleet import Fleet, Sandbox
from .inside import ENVD_PORT, INTERPRETER_PORT

HOP_BY_HOP = {b"connection", b"keep-alive", b"transfer-encoding", b"te", b"trailer", b"upgrade"}
DIRECT_HOST = re.compile(r"^(\d+)-(i[0-9a-z]+)\.")


class Edge:
    """ASGI: the proxy in front of the sandboxes."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    @staticmethod
    def target(headers: dict[bytes, bytes]) -> tuple[str, str] | None:
        """The (sandbox id, port) that a request is for; None if it is for the control plane."""
        name = headers.get(b"e2b-sandbox-id")
        if name is not None:
            return name.decode(), headers.get(b"e2b-sandbox-port", ENVD_PORT.encode()).decode()
        match = DIRECT_HOST.match(headers.get(b"host", b"").decode())
        return (match[2], match[1]) if match else None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = dict(scope["headers"])
        target = self.target(headers)
        assert target is not None
        sandbox = self._fleet.live.get(target[0].partition("-")[0])
        refusal = self._refusal(sandbox, target[0], target[1], headers)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        assert sandbox is not None
        transport = scope["standin.transport"]
        sandbox.connections.add(transport)
        try:
            await self._pass_on(sandbox, target[1], scope, receive, send)
        finally:
            sandbox.connections.discard(transport)

    def _refusal(
        self, sandbox: Sandbox | None, name: str, port: str, headers: dict[bytes, bytes]
    ) -> JSONResponse | None:
        if sandbox is None or sandbox.state != "running":
            text = "The sandbox was not found"
            return JSONResponse({"sandboxId": name, "message": text, "code": 502}, 502)
        token = headers.get(b"e2b-traffic-access-token", b"").decode()
        if port != ENVD_PORT and sandbox.traffic_token is not None and token != sandbox.traffic_token:
            text = "Missing or invalid traffic access token"
            return JSONResponse({"sandboxId": name, "message": text, "code": 403}, 403)
        if port not in (ENVD_PORT, INTERPRETER_PORT):
            text = "The sandbox is running but port is not open"
            return JSONResponse({"sandboxId": name, "message": text, "port": int(port), "code": 502}, 502)
        return None

    async def _pass_on(self, sandbox: Sandbox, port: str, scope: Any, receive: Any, send: Any) -> None:
        body = _Body(receive)
        exchange = asyncio.ensure_future(_exchange(sandbox, port, scope, body, send))
        watch = asyncio.ensure_future(_cancel_when_gone(body, exchange))
        try:
            await exchange
        except (httpx.TransportError, asyncio.CancelledError):
            scope["standin.transport"].abort()
            raise Dropped from None
        finally:
            watch.cancel()


class _Body:
    """The request's body, and afterwards its disconnect."""

    def __init__(self, receive: Any) -> None:
        self._receive = receive
        self.read = asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise Dropped
            more = message.get("more_body", False)
            yield message.get("body", b"")
        self.read.set()

    async def disconnect(self) -> None:
        await self.read.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass


async def _cancel_when_gone(body: _Body, exchange: asyncio.Future[None]) -> None:
    await body.disconnect()
    exchange.cancel()


async def _exchange(sandbox: Sandbox, port: str, scope: Any, body: _Body, send: Any) -> None:
    path = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
    kept = [(name, value) for name, value in scope["headers"] if name not in HOP_BY_HOP]
    kept = [pair for pair in kept if pair[0] != b"e2b-sandbox-port"]
    kept.append((b"e2b-sandbox-port", port.encode()))
    url = httpx.URL(scheme="http", host="sandbox", raw_path=path)
    request = httpx.Request(scope["method"], url, headers=kept, content=aiter(body))
    async with httpx.AsyncHTTPTransport(uds=sandbox.address, verify=False) as transport:
        response = await transport.handle_async_request(request)
        try:
            headers = [pair for pair in response.headers.raw if pair[0].lower() not in HOP_BY_HOP]
            await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
            assert isinstance(response.stream, httpx.AsyncByteStream)
            async for chunk in response.stream:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        finally:
            await response.aclose()
    # Before the client knows that this is over: its next request may be to kill the sandbox.
    sandbox.connections.discard(scope["standin.transport"])
    await send({"type": "http.response.body", "body": b""})

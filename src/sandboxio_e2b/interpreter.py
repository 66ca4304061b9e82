"""The client of the code interpreter on port 49999: contexts, and the cells that run in them.

Source: e2b-dev/code-interpreter ``template/server`` (August 2026). A closed connection interrupts the
cell, so every cell has a connection of its own; only HTTP/1.1 ties the two together.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import anyio.lowlevel
import httpx

from . import endpoints
from .connection import Broken
from .control import Placed
from .endpoints import Settings
from .failures import NOT_FOUND_TEXT, PORT_CLOSED_TEXT, rpc_failure
from .transport import Client, Exchange
from .wire import Cell, Garbled, Printed, RpcError, parse_object

SILENCE: Final = 60.0
"""Seconds without a byte after which a cell's stream counts as dead; the server pings every five."""
CONTEXT_TIMEOUT: Final = 60.0
"""Seconds in which a kernel must start or end."""
NO_KERNEL_TEXT: Final = "Failed to create context"
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")


class ContextCreation:
    """A context that is on its way. Cancelled, it can be finished later."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._id: str | None = None
        self.refused = False
        """True once the answer is one that only comes where no kernel was started."""

    @property
    def may_exist(self) -> bool:
        """False while the server cannot have seen the request."""
        return self._exchange.sent

    async def finish(self) -> str:
        """The new context's id."""
        if self._id is None:
            response = await self._exchange.response()
            if response.status_code != 200:
                self.refused = _made_nothing(response)
                raise rpc_failure(response)
            name = parse_object(response.content).get("id")
            if not isinstance(name, str) or _NAME.fullmatch(name) is None:  # it becomes part of a URL
                raise Garbled("a context without an id that can be used")
            self._id = name
        return self._id

    def close(self) -> None:
        self._exchange.close()


def _made_nothing(response: httpx.Response) -> bool:
    """False for an answer that a gateway may have given that did not wait for the server.

    The server itself says 500 for two things (``template/server/contexts.py``): Jupyter made no kernel, or
    the kernel is there and cannot enter the folder.
    """
    if response.status_code < 500:
        return response.status_code != 408
    return any(text in response.text for text in (NO_KERNEL_TEXT, PORT_CLOSED_TEXT, NOT_FOUND_TEXT))


class CellStream:
    """One cell that runs. Closing it interrupts the cell, if the kernel can be interrupted."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self.cell = Cell()

    async def start(self) -> None:
        """Wait until the server has taken the cell."""
        head = await self._exchange.head()
        if head.status != 200:
            raise rpc_failure(await self._exchange.response())

    async def receive(self) -> Printed | None:
        """The next piece of output, None when the cell has ended. A cancelled call loses nothing."""
        await anyio.lowlevel.checkpoint()  # before anything is taken: a flood lets others run too
        while (printed := self.cell.next()) is None:
            if self.cell.ended:
                while await self._exchange.receive() is not None:
                    pass
                return None
            piece = await self._exchange.receive()
            if piece is None:
                raise Broken("the cell's output ended without its end")
            self.cell.feed(piece)
        return printed

    def receive_nowait(self) -> Printed | None:
        """A piece of output that has arrived already, or None."""
        return self.cell.next()

    def close(self) -> None:
        self._exchange.close()


class Interpreter:
    """What one sandbox's code interpreter can do."""

    def __init__(self, settings: Settings, sandbox: Placed) -> None:
        url = settings.sandbox_base(sandbox.id, endpoints.INTERPRETER_PORT, sandbox.domain)
        headers = {
            "E2b-Sandbox-Id": sandbox.id,
            "E2b-Sandbox-Port": str(endpoints.INTERPRETER_PORT),
            "User-Agent": "sandboxio",
        }
        if sandbox.token is not None:
            headers["X-Access-Token"] = sandbox.token
        if sandbox.traffic_token is not None:
            headers["E2B-Traffic-Access-Token"] = sandbox.traffic_token
        self._client = Client(url, headers, reuse=True)

    def close(self) -> None:
        self._client.close()

    def context(self, language: str, cwd: str | None) -> ContextCreation:
        """A new kernel that is not asked for yet."""
        body = {"language": language} if cwd is None else {"language": language, "cwd": cwd}
        exchange = self._client.exchange("POST", endpoints.CONTEXTS, json=body, read_timeout=CONTEXT_TIMEOUT)
        return ContextCreation(exchange)

    def cell(self, code: str, context: str, variables: Mapping[str, str]) -> CellStream:
        """A cell that is not started yet."""
        body = {"code": code, "context_id": context, "language": None, "env_vars": dict(variables) or None}
        return CellStream(self._client.exchange("POST", endpoints.EXECUTE, json=body, read_timeout=SILENCE))

    async def remove(self, context: str) -> None:
        """End a kernel, with the cell that it runs; a missing one is fine."""
        path = endpoints.ONE_CONTEXT.format(id=context)
        response: httpx.Response = await self._client.request("DELETE", path, read_timeout=CONTEXT_TIMEOUT)
        if response.status_code not in (200, 204, 404):
            raise rpc_failure(response)


__all__ = ["CellStream", "ContextCreation", "Interpreter", "RpcError"]

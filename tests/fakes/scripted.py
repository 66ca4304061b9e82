"""A scripted engine: for each path a script that says which bytes are sent, and when.

async with ScriptedEngine.on(tmp_path) as fake:
    fake.script("GET", "/containers/json", sends(answer(200, [])))
    engine = Engine(fake.url, environ={})
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from .server import Connection, Handler, Request, Server, answer, listen_unix, running

PING = answer(200, b"OK", {"Api-Version": "1.45", "Ostype": "linux", "Server": "Fake/1.0"})


def sends(*pieces: bytes, end: bool = True) -> Handler:
    """Send each piece as a read of its own; then close, or keep the connection until the client does."""

    async def script(connection: Connection, request: Request) -> None:
        for piece in pieces:
            await connection.send(piece)
        if not end:
            await connection.until_closed()

    return script


def hangs() -> Handler:
    """Answer nothing, for ever."""
    return sends(end=False)


class ScriptedEngine(Server):
    """Scripts by method and path (without the version); ``/_ping`` answers by itself."""

    patience = 5.0
    """Seconds that ``all_closed()`` waits."""

    def __init__(self, folder: Path) -> None:
        # a path under pytest's own folder can be too long for a Unix socket
        self.folder = Path(tempfile.mkdtemp(dir="/tmp", prefix="sbx-"))
        self.path = self.folder / "engine.sock"
        super().__init__(self._play, listen_unix(self.path))
        self._scripts: dict[tuple[str, str], list[Handler]] = {}
        self._unread: set[tuple[str, str]] = set()
        self.script("GET", "/_ping", sends(PING))

    @classmethod
    @asynccontextmanager
    async def on(cls, folder: Path) -> AsyncGenerator[ScriptedEngine, None]:
        fake = cls(folder)
        try:
            async with running(fake):
                yield fake
        finally:
            fake.path.unlink(missing_ok=True)
            fake.folder.rmdir()

    @property
    def url(self) -> str:
        return f"unix://{self.path}"

    def script(self, method: str, path: str, *scripts: Handler, read_body: bool = True) -> None:
        """Play ``scripts`` for the first, second, ... request; the last one for all that follow."""
        self._scripts[method, path] = list(scripts)
        if not read_body:
            self._unread.add((method, path))

    def heads_only(self, request: Request) -> bool:
        return (request.method, _bare(request.path)) in self._unread

    async def _play(self, connection: Connection, request: Request) -> None:
        scripts = self._scripts.get((request.method, _bare(request.path)))
        if not scripts:
            raise AssertionError(f"no script for {request}")
        await (scripts.pop(0) if len(scripts) > 1 else scripts[0])(connection, request)

    async def all_closed(self) -> None:
        """Wait until no client has a connection open; fails with a list if one keeps it."""
        with anyio.move_on_after(self.patience):
            while self.open:  # noqa: ASYNC110  # the socket's other end says when
                await anyio.sleep(0.001)
            return
        raise AssertionError(f"{len(self.open)} connections are still open")


def _bare(path: str) -> str:
    return re.sub(r"^/v\d+\.\d+(?=/)", "", path)

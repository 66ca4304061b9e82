"""The client of envd, E2B's agent inside a sandbox: processes and files.

Errors are :class:`RpcError` (envd refused), :class:`Garbled` and :class:`Broken`; the callers turn them
into the library's own with :mod:`.failures`, because what they mean depends on what was asked.

Sources: e2b-dev/infra ``packages/envd`` (August 2026, envd 0.6.13) and ``e2b`` 2.63.0.
"""

from __future__ import annotations

import base64
import secrets
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import BinaryIO, Final

import anyio.lowlevel

from . import endpoints
from .connection import Broken
from .control import Placed
from .endpoints import Settings
from .failures import rpc_failure
from .transport import Client, Exchange
from .wire import (
    Ended,
    Event,
    FrameParser,
    Garbled,
    Started,
    frame,
    process_event,
)

PING_SECONDS: Final = 50
"""How often envd shall say that a silent process is still there (the SDK's own choice)."""
SILENCE: Final = 2.5 * PING_SECONDS
"""Seconds without a byte after which a stream counts as dead: two pings were missed."""
START_TIMEOUT: Final = 30.0
"""Seconds in which envd must say that a process has started."""
PROBE_TIMEOUT: Final = 5.0
CHUNK: Final = 1 << 18
"""Bytes of an upload that are read and sent at a time."""

_DEFAULT_USER_SINCE = (0, 4, 0)
_RAW_UPLOAD_SINCE = (0, 5, 7)
_STREAM_HEADERS = {"Content-Type": "application/connect+json", "Connect-Protocol-Version": "1"}


@dataclass(frozen=True)
class Command:
    """A process to start. ``seconds``: envd kills it after that time, whatever happens to the client."""

    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    cwd: str | None = None
    user: str | None = None
    seconds: float | None = None


class Short(Exception):
    """There is less to send than was announced."""


class ProcessStream:
    """A process and its events. Closing the stream leaves the process running."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._parser = FrameParser()
        self._events: deque[Event] = deque()
        self._refusal: bytearray | None = None
        self.started: Started | None = None
        self.ended: Ended | None = None

    @property
    def sent(self) -> bool:
        """True once envd may have seen the request."""
        return self._exchange.sent

    async def start(self) -> Started:
        """Wait until the process runs. A cancelled call can be repeated."""
        while self.started is None:
            event = await self.receive()
            if event is None:
                raise Garbled("a process stream that ended before its start")
        return self.started

    async def receive(self) -> Event | None:
        """The next event, None after the last. A cancelled call loses nothing."""
        await anyio.lowlevel.checkpoint()  # before anything is taken: a flood lets others run too
        while (event := self.receive_nowait()) is None:
            if self._parser.ended:
                return None
            piece = await self._receive()
            if piece is None:
                # A stream without its last frame was cut, by a gateway or by the sandbox's end.
                raise Broken("the stream ended without its end")
            self._parser.feed(piece)
        return event

    def receive_nowait(self) -> Event | None:
        """An event that has arrived already, or None."""
        while (message := self._parser.next()) is not None:
            event = process_event(message)
            if isinstance(event, Started):
                self.started = event
            elif isinstance(event, Ended):
                self.ended = event
            if event is not None:
                return event
        return None

    async def _receive(self) -> bytes | None:
        head = await self._exchange.head()
        if head.status != 200 or head.content_type != "application/connect+json":
            raise rpc_failure(await self._exchange.response())
        return await self._exchange.receive()

    async def drain(self) -> None:
        """Read to the end, so that the connection can serve again."""
        while await self._exchange.receive() is not None:
            pass

    def close(self) -> None:
        self._exchange.close()


class Envd:
    """What one sandbox's envd can do."""

    def __init__(self, settings: Settings, sandbox: Placed) -> None:
        url = settings.sandbox_base(sandbox.id, endpoints.ENVD_PORT, sandbox.domain)
        headers = {
            "E2b-Sandbox-Id": sandbox.id,
            "E2b-Sandbox-Port": str(endpoints.ENVD_PORT),
            "User-Agent": "sandboxio",
        }
        if sandbox.token is not None:
            headers["X-Access-Token"] = sandbox.token
        self._client = Client(url, headers, reuse=True)
        self._version = _version(sandbox.envd_version)

    def close(self) -> None:
        self._client.close()

    def process(self, command: Command) -> ProcessStream:
        """A process that is not started yet."""
        config: dict[str, object] = {"cmd": command.argv[0], "args": list(command.argv[1:])}
        if command.env:
            config["envs"] = dict(command.env)
        if command.cwd is not None:
            config["cwd"] = command.cwd
        headers = {
            **_STREAM_HEADERS,
            **self._user(command.user),
            "Keepalive-Ping-Interval": str(PING_SECONDS),
        }
        if command.seconds is not None:
            headers["Connect-Timeout-Ms"] = str(max(1, round(command.seconds * 1000)))
        body = frame({"process": config, "stdin": False})
        exchange = self._client.exchange(
            "POST", endpoints.START, content=body, headers=headers, read_timeout=SILENCE
        )
        return ProcessStream(exchange)

    async def run(self, command: Command) -> tuple[int, bytes, bytes]:
        """Run a short helper to its end: exit code, standard output, standard error."""
        output = {"stdout": bytearray(), "stderr": bytearray(), "pty": bytearray()}
        stream = self.process(command)
        try:
            while (event := await stream.receive()) is not None:
                if isinstance(event, Ended):
                    with suppress(Broken):  # the helper has ended and said how
                        await stream.drain()
                    return event.exit_code, bytes(output["stdout"]), bytes(output["stderr"])
                if not isinstance(event, Started):
                    output[event.stream] += event.data
        finally:
            stream.close()
        raise Garbled("a process stream that ended without an exit code")

    async def healthy(self) -> bool:
        """True if envd answers. Raises :class:`RpcError` with what the edge says instead."""
        response = await self._client.request("GET", endpoints.HEALTH, read_timeout=PROBE_TIMEOUT)
        if response.status_code // 100 != 2:
            raise rpc_failure(response)
        return True

    async def read_file(self, path: str, sink: Callable[[bytes], None]) -> None:
        """Hand a file's bytes to ``sink``, piece by piece."""
        with self._client.exchange("GET", endpoints.FILES, params=self._file(path)) as exchange:
            head = await exchange.head()
            if head.status != 200:
                raise rpc_failure(await exchange.response())
            while (piece := await exchange.receive()) is not None:
                sink(piece)

    async def write_file(self, path: str, source: BinaryIO, size: int) -> None:
        """Write ``size`` bytes of ``source``; cut off, a part of them is in the file.

        Raises :class:`Short` where ``source`` has less.
        """
        raw = self._version >= _RAW_UPLOAD_SINCE
        kind, before, after = ("application/octet-stream", b"", b"") if raw else _multipart()
        headers = {"Content-Type": kind, "Content-Length": str(len(before) + size + len(after))}
        content = _pieces(before, source, size, after)
        with self._client.exchange(
            "POST", endpoints.FILES, params=self._file(path), content=content, headers=headers
        ) as exchange:
            response = await exchange.response()
        if response.status_code != 200:
            raise rpc_failure(response)

    def _user(self, name: str | None) -> dict[str, str]:
        """The header that names an account; without it envd takes its default user, if it has one."""
        if name is None and self._version >= _DEFAULT_USER_SINCE:
            return {}
        return {"Authorization": "Basic " + base64.b64encode(f"{name or 'user'}:".encode()).decode()}

    def _file(self, path: str) -> dict[str, str]:
        if self._version >= _DEFAULT_USER_SINCE:
            return {"path": path}
        return {"path": path, "username": "user"}


def _version(text: str) -> tuple[int, ...]:
    """envd's version; one that cannot be read counts as new."""
    try:
        return tuple(int(part) for part in text.split("-", maxsplit=1)[0].split("."))
    except ValueError:
        return (99,)


def _multipart() -> tuple[str, bytes, bytes]:
    boundary = secrets.token_hex(16)
    disposition = b'Content-Disposition: form-data; name="file"; filename="upload"'
    before = b"--%s\r\n%s\r\nContent-Type: application/octet-stream\r\n\r\n" % (
        boundary.encode(),
        disposition,
    )
    return f"multipart/form-data; boundary={boundary}", before, f"\r\n--{boundary}--\r\n".encode()


async def _pieces(before: bytes, source: BinaryIO, size: int, after: bytes) -> AsyncIterator[bytes]:
    if before:
        yield before
    while size > 0:
        piece = source.read(min(CHUNK, size))
        if not piece:
            raise Short
        size -= len(piece)
        yield piece
    if after:
        yield after

"""An HTTP server for tests: a Unix or TCP socket in the test's own event loop, h11, exact bytes.

It is strict where the code under test could be sloppy: it reads each request with h11, so a malformed one
fails; it serves one request a connection; it keeps count of connections that are still open, so a client
that forgets to close is seen.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import struct
import sys
import termios
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote_to_bytes

import anyio
import anyio.abc
import anyio.lowlevel
import h11

DEADLINE = 10.0
"""Seconds after which a wait of the fake itself is a failure of the test."""


@dataclass
class Request:
    method: str
    target: str
    headers: dict[str, str]
    body: bytes = b""

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def query(self) -> dict[str, str]:
        return dict(parse_qsl(self.target.partition("?")[2], keep_blank_values=True))

    @property
    def raw_query(self) -> dict[str, bytes]:
        """Values as the bytes that were sent, for names that are not UTF-8."""
        pairs = (pair.partition("=") for pair in self.target.partition("?")[2].split("&"))
        return {name: unquote_to_bytes(value) for name, _, value in pairs}

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


@dataclass(eq=False)
class Connection:
    """One client, seen from the server. Reading and writing take raw bytes."""

    sock: socket.socket
    early: bytes = b""
    """What came behind the request's head and is not part of its body."""
    closed_by_client: anyio.Event = field(default_factory=anyio.Event)

    async def send(self, data: bytes, *, in_one_read: bool = True) -> None:
        """Send, then wait until the client has taken all of it: the next piece is a read of its own."""
        view = memoryview(data)
        while view:
            await anyio.wait_writable(self.sock)
            try:
                view = view[self.sock.send(view) :]
            except BlockingIOError:
                continue
        if in_one_read:
            await self.taken()

    async def taken(self) -> None:
        with anyio.fail_after(DEADLINE):
            while unread(self.sock):
                await anyio.lowlevel.checkpoint()

    async def receive(self) -> bytes:
        if self.early:
            early, self.early = self.early, b""
            return early
        while True:
            await anyio.wait_readable(self.sock)
            try:
                data = self.sock.recv(1 << 16)
            except BlockingIOError:
                continue
            except ConnectionResetError:
                data = b""
            if not data:
                self.closed_by_client.set()
            return data

    async def until_closed(self) -> bytes:
        """Read and keep whatever comes until the client closes."""
        got = b""
        while data := await self.receive():
            got += data
        return got

    def end_sending(self) -> None:
        try:
            self.sock.shutdown(socket.SHUT_WR)
        except OSError as error:
            if error.errno not in (errno.ENOTCONN, errno.EBADF):  # the client, or we, have closed already
                raise

    def reset(self) -> None:
        """Close so that the client sees a reset instead of an orderly end (TCP)."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


def unread(sock: socket.socket) -> int:
    """Bytes that the other side has not read yet; 0 where the system cannot tell."""
    if sys.platform != "linux" or sock.fileno() < 0:
        return 0
    return int(struct.unpack("i", fcntl.ioctl(sock, termios.TIOCOUTQ, b"\0" * 4))[0])


Handler = Callable[[Connection, Request], Awaitable[None]]


class Server:
    """Takes connections, reads one request on each, and lets ``handle`` do the rest."""

    def __init__(self, handle: Handler, listener: socket.socket) -> None:
        self._handle = handle
        self._listener = listener
        self.address: Any = listener.getsockname()
        self.open: set[Connection] = set()
        self.accepted = 0
        self.requests: list[Request] = []
        self.errors: list[Exception] = []

    async def serve(self, group: anyio.abc.TaskGroup) -> None:
        while True:
            await anyio.wait_readable(self._listener)
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                continue
            except OSError as error:
                if error.errno == errno.ECONNABORTED:
                    continue
                raise
            sock.setblocking(False)
            self.accepted += 1
            connection = Connection(sock)
            self.open.add(connection)
            group.start_soon(self._one, connection)

    async def _one(self, connection: Connection) -> None:
        try:
            request = await self._request(connection)
            if request is not None:
                self.requests.append(request)
                await self._handle(connection, request)
                # not close(): a client that forgets to close its end must be seen
                if connection.sock.fileno() >= 0:
                    connection.end_sending()
                    await connection.until_closed()
        except (BrokenPipeError, ConnectionResetError):
            pass  # the client went away, as a cancelled one does
        except h11.RemoteProtocolError as error:
            if not connection.closed_by_client.is_set():  # it may go away in the middle of a request
                self.errors.append(error)
        except Exception as error:  # noqa: BLE001  # they fail the test in running()
            self.errors.append(error)
        finally:
            self.open.discard(connection)
            connection.sock.close()

    async def _request(self, connection: Connection) -> Request | None:
        """A whole request; None if the client closed before it was complete."""
        http = h11.Connection(h11.SERVER)
        request: Request | None = None
        while True:
            event = http.next_event()
            if event is h11.NEED_DATA:
                http.receive_data(await connection.receive())
            elif isinstance(event, h11.Request):
                headers = {name.decode(): value.decode() for name, value in event.headers}
                request = Request(event.method.decode(), event.target.decode(), headers)
                if self.heads_only(request):
                    connection.early = http.trailing_data[0]
                    return request
            elif isinstance(event, h11.Data):
                assert request is not None
                request.body += event.data
            elif isinstance(event, h11.EndOfMessage):
                connection.early = http.trailing_data[0]
                return request
            else:
                return None

    def heads_only(self, request: Request) -> bool:
        """True for a request whose body the handler reads by itself, or does not read at all."""
        return False


@asynccontextmanager
async def running(server: Server) -> AsyncGenerator[Server, None]:
    """Serve inside the test; at the end the handlers are cancelled, and their errors fail the test."""
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(server.serve, group)
            try:
                yield server
            finally:
                group.cancel_scope.cancel()
    finally:  # not before: a client that has just connected is still taken by then
        server._listener.close()
    if server.errors:
        raise ExceptionGroup("the fake met requests that it could not serve", server.errors)


def listen_unix(path: Path | str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.setblocking(False)
    listener.bind(os.fspath(path))
    listener.listen(4096)
    return listener


def listen_tcp() -> socket.socket:
    listener = socket.socket(socket.AF_INET)
    listener.setblocking(False)
    listener.bind(("127.0.0.1", 0))
    listener.listen(4096)
    return listener


def answer(
    status: int, body: bytes | object = b"", headers: dict[str, str] | None = None, *, reason: str = "X"
) -> bytes:
    """A whole answer; an object that is not bytes is sent as JSON."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} {reason}"]
    fields = {"Content-Length": str(len(content)), **(headers or {})}
    if not isinstance(body, bytes):
        fields.setdefault("Content-Type", "application/json")
    if status in (204, 304):
        del fields["Content-Length"]
    lines += [f"{name}: {value}" for name, value in fields.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + content

"""A non-blocking socket with awaitable progress, the same on asyncio and trio, plain or TLS.

The only awaits are "wait until readable" and "wait until writable"; what the kernel gave or took is the
last thing before a return. So a cancellation neither loses a byte nor leaves it unclear how many went out.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable
from contextlib import ExitStack, suppress
from typing import Any, Final

import anyio
import anyio.lowlevel

from sandboxio.errors import ConfigurationError

from .endpoint import Endpoint, TLSFiles

READ_SIZE: Final = 1 << 18
"""Bytes asked from the kernel at once; 256 KiB was fastest, 1 MiB slower (page faults)."""
MUCH: Final = 1 << 16
"""Bytes of one read from which on the next one is tried without waiting."""

_RETRY_CONNECT: Final = 0.005
"""Seconds between connects while a Unix socket's queue of pending connections is full."""

_NOT_NOW: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Wire:
    """A connected non-blocking socket, plain or TLS. ``close()`` is synchronous and idempotent.

    At most one task reads and one writes at a time. Methods raise ``OSError`` for a broken connection
    and ``anyio.ClosedResourceError`` if the wire was closed here, also while they wait.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.closed = False
        self._waiting = 0
        self._backlog = False  # more is probably there already: a wait costs four system calls, a look one

    async def receive_some(self) -> bytes:
        """Some bytes, ``b""`` at the end. Cancelled: nothing was taken from the connection."""
        if isinstance(self.sock, ssl.SSLSocket) and not self.closed and self.sock.pending():
            await anyio.lowlevel.checkpoint()  # decrypted already, so the socket may stay unreadable
        elif self._backlog:
            await anyio.lowlevel.checkpoint()
        else:
            await self._until(anyio.wait_readable)
        while True:
            try:
                data = self._recv()
                self._backlog = len(data) >= MUCH
                return data
            except ssl.SSLWantWriteError:
                await self._until(anyio.wait_writable)
            except (BlockingIOError, ssl.SSLWantReadError):
                await self._until(anyio.wait_readable)

    async def send_some(self, data: memoryview) -> int:
        """Send what fits, at least one byte; the number sent. Cancelled: nothing of it was sent."""
        while True:
            try:
                return self._check().send(data)
            except ssl.SSLWantReadError:
                await self._until(anyio.wait_readable)
            except (BlockingIOError, ssl.SSLWantWriteError):
                await self._until(anyio.wait_writable)

    def receive_now(self) -> bytes | None:
        """Bytes that are here already, ``b""`` at the end, None if there are none yet."""
        try:
            return self._recv()
        except _NOT_NOW:
            return None

    async def writable(self) -> None:
        """Wait until the socket accepts bytes, or its connect is decided."""
        await self._until(anyio.wait_writable)

    async def start_tls(self, context: ssl.SSLContext, host: str) -> None:
        """Encrypt from here on; ``host`` is the name that the certificate must have."""
        secure = context.wrap_socket(self._check(), server_hostname=host, do_handshake_on_connect=False)
        self.sock = secure
        while True:
            try:
                secure.do_handshake()
            except ssl.SSLWantReadError:
                await self._until(anyio.wait_readable)
            except ssl.SSLWantWriteError:
                await self._until(anyio.wait_writable)
            else:
                return

    def end_sending(self) -> None:
        """Close this direction only; not for TLS."""
        self._check().shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close now. Tasks that wait on the wire wake with ``anyio.ClosedResourceError``.

        The other side sees the end at once. The descriptor is kept until those tasks have woken: anyio's
        asyncio backend knows waits by number (4.16, ``wait_readable``), and a new connection that got
        the number meanwhile would never wake.
        """
        if self.closed:
            return
        self.closed = True
        told = False
        try:
            if self._waiting:
                with suppress(OSError):  # not connected yet
                    self.sock.shutdown(socket.SHUT_RDWR)
                anyio.notify_closing(self.sock)
                told = True
        finally:  # also where no event loop runs any more: after a loop's end, in another thread
            if not told:
                self.sock.close()

    def _check(self) -> socket.socket:
        if self.closed:
            raise anyio.ClosedResourceError
        return self.sock

    def _recv(self) -> bytes:
        try:
            return self._check().recv(READ_SIZE)
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            return b""

    async def _until(self, wait: Callable[[socket.socket], Awaitable[None]]) -> None:
        sock = self._check()
        self._waiting += 1
        try:
            await wait(sock)
        finally:
            self._waiting -= 1
            if self.closed and not self._waiting:
                sock.close()


async def connect(endpoint: Endpoint, tls: ssl.SSLContext | None) -> Wire:
    """Open a connection; a cancellation leaves none. Raises ``OSError``."""
    if endpoint.path:
        return await _connect_to(socket.AF_UNIX, endpoint.path)
    wire = await _connect_tcp(endpoint)
    with ExitStack() as undo:
        undo.callback(wire.close)
        if tls is not None:
            await wire.start_tls(tls, endpoint.host)
        undo.pop_all()
    return wire


async def _connect_tcp(endpoint: Endpoint) -> Wire:
    failure = OSError(errno.EADDRNOTAVAIL, "the host name has no address")
    for family, _, _, _, address in await _resolve(endpoint.host, endpoint.port):
        try:
            wire = await _connect_to(family, address)
        except OSError as error:
            failure = error
            continue
        wire.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # an attach connection is silent for hours; a dead peer must be noticed all the same
        wire.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return wire
    raise failure


async def _resolve(host: str, port: int) -> Iterable[tuple[int, int, int, str, Any]]:
    with suppress(socket.gaierror):  # an address as digits needs no look-up
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    # the one place where the event loop uses a thread of its own: the system's resolver blocks
    return await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)


async def _connect_to(family: int, address: Any) -> Wire:
    wire = Wire(socket.socket(family, socket.SOCK_STREAM))
    with ExitStack() as undo:
        undo.callback(wire.close)
        wire.sock.setblocking(False)
        while code := wire.sock.connect_ex(address):
            if code == errno.EINPROGRESS:
                await wire.writable()
                code = wire.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if not code:
                    break
            if code != errno.EAGAIN or family != socket.AF_UNIX:
                raise OSError(code, os.strerror(code), address)
            await anyio.sleep(_RETRY_CONNECT)  # Linux: the queue of pending connections is full
        undo.pop_all()
    return wire


def read_tls(files: TLSFiles) -> ssl.SSLContext:
    """The settings of a TLS endpoint. Raises :class:`ConfigurationError` if a file cannot be used."""
    try:
        context = ssl.create_default_context(cafile=files.ca)
        if files.cert is not None:
            # without a password callback an encrypted key would ask on the terminal
            context.load_cert_chain(files.cert, files.key, password=str)
    except OSError as error:
        names = ", ".join(str(path) for path in (files.ca, files.cert, files.key) if path)
        raise ConfigurationError(
            f"The TLS files of the engine cannot be used ({names}): {error}.",
            hint="DOCKER_CERT_PATH is a folder with ca.pem, cert.pem and key.pem, unencrypted.",
        ) from error
    # Python 3.13 asks more of a certificate than the ones that Docker's manual tells how to make have
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if not files.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context

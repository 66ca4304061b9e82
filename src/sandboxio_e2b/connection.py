"""A connection of our own: a non-blocking socket, plain or TLS, with the HTTP state on it.

The only awaits are "wait until readable" and "wait until writable", and closing is synchronous: a
cancellation can neither lose a byte nor leave a socket behind. The same code runs on asyncio and trio.
"""

from __future__ import annotations

import errno
import functools
import math
import os
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import anyio
import anyio.lowlevel
import h11
import httpx

READ_SIZE: Final = 1 << 17
CONNECT_TIMEOUT: Final = 10.0
"""Seconds for name, connection and TLS together."""
WRITE_TIMEOUT: Final = 30.0
"""Seconds in which the far side must take at least one byte."""
IDLE_SECONDS: Final = 15.0
"""How long an idle connection is kept; well below what load balancers keep one."""

_IN_PROGRESS = {0, errno.EINPROGRESS, errno.EWOULDBLOCK}


class Broken(Exception):
    """The connection could not be made, or ended before the answer did."""


class Silent(Broken):
    """Nothing came in time."""


@functools.cache
def tls_context() -> ssl.SSLContext:
    """One context for all connections: building one takes 20 ms. It belongs to no event loop."""
    context = httpx.create_ssl_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


class Wire:
    """A connected non-blocking socket and the HTTP state of its connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.http = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 18)
        self.unsent = bytearray()
        self.used = time.monotonic()
        self._waiting = False
        self._closed = False

    async def _until(self, wait: Callable[[socket.socket], Awaitable[None]], seconds: float | None) -> None:
        self._waiting = True
        try:
            with anyio.move_on_after(math.inf if seconds is None else seconds):
                await wait(self.sock)
                return
        except anyio.ClosedResourceError:
            raise Broken("the connection was closed here") from None
        finally:
            self._waiting = False
        raise Silent(f"nothing moved for {seconds:g} s")

    async def step(
        self, action: Callable[[], int | None], seconds: float | None, *, reading: bool
    ) -> int | None:
        """Do ``action``, waiting first for as long as the socket is not ready for it."""
        while True:
            if self._closed:
                raise Broken("the connection was closed here")
            try:
                return action()
            except ssl.SSLWantReadError:
                await self._until(anyio.wait_readable, seconds)
            except ssl.SSLWantWriteError:
                await self._until(anyio.wait_writable, seconds)
            except BlockingIOError:
                await self._until(anyio.wait_readable if reading else anyio.wait_writable, seconds)
            except OSError as error:
                raise Broken(_reason(error)) from error

    async def flush(self) -> None:
        """Send what is waiting; a cancelled call keeps the rest for the next."""

        def send() -> int:
            count = self.sock.send(self.unsent)
            del self.unsent[:count]
            return count

        while self.unsent:
            await self.step(send, WRITE_TIMEOUT, reading=False)

    async def fill(self, seconds: float | None) -> None:
        """Give the HTTP state some bytes, or the end of the connection."""

        def receive() -> None:
            self.http.receive_data(self.sock.recv(READ_SIZE))

        await anyio.lowlevel.checkpoint()  # what never stops sending must not keep deadlines from passing
        await self.step(receive, seconds, reading=True)

    @property
    def reusable(self) -> bool:
        """True if nothing has arrived since the last answer, not even an end."""
        if time.monotonic() - self.used > IDLE_SECONDS:
            return False
        try:  # below TLS, whose own recv() takes no flags
            socket.socket.recv(self.sock, 1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._waiting:
            anyio.notify_closing(self.sock)
        self.sock.close()


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not accepted: {error.verify_message}"
    return error.strerror or str(error) or type(error).__name__


async def connect(url: httpx.URL) -> Wire:
    """A connection to the host of ``url``, encrypted if it says https. Raises :class:`Broken`."""
    host, port = url.host, url.port or (443 if url.scheme == "https" else 80)
    with anyio.move_on_after(CONNECT_TIMEOUT):
        failure = Broken(f"{host} has no address")
        for family, address in await _addresses(host, port):
            try:
                return await _connect_one(family, address, host if url.scheme == "https" else None)
            except Broken as error:
                failure = Broken(f"{host}:{port}: {error}")
        raise failure
    raise Silent(f"no connection to {host}:{port} in {CONNECT_TIMEOUT:g} s")


_Address = tuple[socket.AddressFamily, tuple[Any, ...]]


async def _addresses(host: str, port: int) -> list[_Address]:
    kind = socket.SOCK_STREAM
    try:  # a numeric address needs no resolver, and so no thread of the event loop's
        numeric = socket.getaddrinfo(host, port, type=kind, flags=socket.AI_NUMERICHOST)
        return [(item[0], item[4]) for item in numeric]
    except (OSError, UnicodeError):  # the latter for a label that is empty or too long
        pass
    try:
        return [(item[0], item[4]) for item in await anyio.getaddrinfo(host, port, type=kind)]
    except OSError as error:
        raise Broken(f"{host}: {_reason(error)}") from error


async def _connect_one(family: socket.AddressFamily, address: tuple[Any, ...], name: str | None) -> Wire:
    sock = socket.socket(family, socket.SOCK_STREAM)
    wire = Wire(sock)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        code = sock.connect_ex(address)
        if code not in _IN_PROGRESS:
            raise Broken(os.strerror(code))
        await anyio.wait_writable(sock)
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise Broken(os.strerror(code))
        if name is not None:
            secure = tls_context().wrap_socket(sock, server_hostname=name, do_handshake_on_connect=False)
            wire.sock = secure
            await wire.step(secure.do_handshake, None, reading=True)
    except BaseException:  # a cancellation too: the socket belongs to nobody yet
        wire.close()
        raise
    return wire

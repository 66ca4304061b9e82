"""Something between an engine and a registry: it counts, it can hold an answer back, and it can cut.

It is a thread of its own: the engine asks whenever it likes, also while the test's loop does something
else.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

import anyio

PIECE = 1 << 16
PATIENCE = 20.0
"""Seconds that a wait for something to happen may take."""


def listener(address: str = "127.0.0.1") -> socket.socket:
    return socket.create_server((address, 0))


class _Pair:
    """One client and the connection to the registry on its behalf."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client, self.server = client, server
        self.passed = 0


class Proxy:
    """Use it in a ``with`` block. ``entrance`` is a listening socket; it is closed with the rest.

    ``asked`` is everything that clients sent.
    """

    def __init__(self, port: int, entrance: socket.socket | None = None) -> None:
        self._entrance = entrance or listener()
        self.host = "{}:{}".format(*self._entrance.getsockname())
        self.asked = bytearray()
        self._port = port
        self._pairs: list[_Pair] = []
        self._limit: int | None = None
        self._refusing = False
        self._orders: list[Callable[[], None]] = []
        self._wake, self._waker = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._ended = False
        self._thread = threading.Thread(target=self._work, name="registry proxy")

    # What tests say and ask

    def hold_after(self, size: int) -> None:
        """Pass on this many bytes of each connection's answer, then nothing more until ``go_on()``."""
        self._tell(lambda: setattr(self, "_limit", size))

    def go_on(self) -> None:
        self._tell(lambda: setattr(self, "_limit", None))

    def cut(self) -> None:
        """End all connections, and end each new one at once."""

        def order() -> None:
            self._refusing = True
            for pair in list(self._pairs):
                self._close(pair)

        self._tell(order)

    async def held(self) -> None:
        """Return when an answer is being held back."""
        await until(lambda: any(self._holds(pair) for pair in list(self._pairs)), "an answer to hold back")

    async def all_closed(self) -> None:
        """Return when the engine has no connection any more."""
        await until(lambda: not self._pairs, "the engine to close its connections")

    def count(self, words: bytes) -> int:
        return bytes(self.asked).count(words)

    # The thread

    def _tell(self, order: Callable[[], None]) -> None:
        self._orders.append(order)
        self._waker.send(b"!")

    def _holds(self, pair: _Pair) -> bool:
        return self._limit is not None and pair.passed >= self._limit

    def _work(self) -> None:
        while not self._ended:
            self._watch()
            for key, _ in self._selector.select():
                if key.fileobj is self._wake:
                    self._wake.recv(PIECE)
                    while self._orders:
                        self._orders.pop(0)()
                elif key.fileobj is self._entrance:
                    self._accept()
                else:
                    self._pump(key.data, key.fileobj)  # type: ignore[arg-type]

    def _watch(self) -> None:
        wanted: dict[socket.socket, _Pair | None] = {self._wake: None, self._entrance: None}
        for pair in self._pairs:
            wanted[pair.client] = pair
            if not self._holds(pair):
                wanted[pair.server] = pair
        for key in list(self._selector.get_map().values()):
            if key.fileobj not in wanted:
                self._selector.unregister(key.fileobj)
        known = {key.fileobj for key in self._selector.get_map().values()}
        for each, owner in wanted.items():
            if each not in known:
                self._selector.register(each, selectors.EVENT_READ, owner)

    def _accept(self) -> None:
        client, _ = self._entrance.accept()
        try:
            if self._refusing:
                raise ConnectionRefusedError
            server = socket.create_connection(("127.0.0.1", self._port), timeout=PATIENCE)
        except OSError:
            client.close()
            return
        client.settimeout(PATIENCE)
        self._pairs.append(_Pair(client, server))

    def _pump(self, pair: _Pair, source: socket.socket) -> None:
        if pair not in self._pairs:
            return  # closed since the selector saw it
        target = pair.server if source is pair.client else pair.client
        try:
            data = source.recv(PIECE)
            if not data:
                raise ConnectionResetError
            if source is pair.client:
                self.asked += data
            else:
                pair.passed += len(data)
            target.sendall(data)
        except OSError:
            self._close(pair)

    def _close(self, pair: _Pair) -> None:
        self._pairs.remove(pair)
        for each in (pair.client, pair.server):
            if each in self._selector.get_map():
                self._selector.unregister(each)
            each.close()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cut()
        self._tell(lambda: setattr(self, "_ended", True))
        self._thread.join()
        self._selector.close()
        for each in (self._entrance, self._wake, self._waker):
            each.close()


async def until(done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < deadline, f"waited {PATIENCE:g} s for {what}"
        await anyio.sleep(0.01)

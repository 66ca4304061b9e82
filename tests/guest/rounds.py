"""Rounds of many operations on one connection, with cancellations at every kind of place.

A round that leaves a wrong byte, a hang or a broken invariant raises. The mux is a parameter, so that
broken ones can be shown to fail.
"""

from __future__ import annotations

import random
import socket
import ssl
import subprocess
import sys
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel

from sandboxio_docker.wire import Wire
from tests.guest.peer import ASK, HEAD, KILL, KILLED, LAST, MORE, PIECE, frame, pattern

PEER = Path(__file__).with_name("peer.py")
PATIENCE = 10.0
"""Seconds after which a round counts as hanging; a round takes about 0.05."""


@dataclass(frozen=True)
class Seen:
    op: int
    kind: int
    payload: bytes


class Decoder:
    def __init__(self) -> None:
        self.buffer = bytearray()

    def __call__(self, data: bytes) -> Iterator[Seen]:
        self.buffer += data
        events: list[Seen] = []
        while len(self.buffer) >= HEAD.size:
            length, kind, op = HEAD.unpack_from(self.buffer)
            assert length <= 65536
            assert kind in {PIECE, LAST, KILLED}
            if len(self.buffer) < HEAD.size + length:
                break
            events.append(Seen(op, kind, bytes(self.buffer[HEAD.size : HEAD.size + length])))
            del self.buffer[: HEAD.size + length]
        return iter(events)


class Suspensions:
    """Awaits something and calls ``strike`` at its n-th suspension."""

    def __init__(self, coroutine: Awaitable[Any], at: int, strike: Callable[[], None]) -> None:
        self.coroutine = coroutine
        self.at = at
        self.strike = strike

    def __await__(self) -> Generator[Any, Any, Any]:
        inner = self.coroutine.__await__()
        count = 0
        answer: Any = None
        error: BaseException | None = None
        while True:
            try:
                waits = inner.send(answer) if error is None else inner.throw(error)
            except StopIteration as stop:
                return stop.value
            count += 1
            if count == self.at:
                self.strike()
            answer, error = None, None
            try:
                answer = yield waits
            except BaseException as caught:  # noqa: BLE001  # thrown on into the coroutine
                error = caught


class Rounds:
    def __init__(self, mux: Any, seed: int) -> None:
        self.mux = mux
        self.random = random.Random(seed)
        self.next = 0
        self.scopes: dict[Any, anyio.CancelScope] = {}
        self.done = 0
        self.cancelled = 0

    async def operation(self) -> None:
        self.next += 1
        op = self.next
        channel = self.mux.open(op)
        how = self.random.choice(("none", "none", "deadline", "suspension", "sniper"))
        limit = self.random.random() * 0.02 if how == "deadline" else float("inf")
        with anyio.move_on_after(limit) as scope:
            self.scopes[channel] = scope
            work = self.converse(channel, op)
            if how == "suspension":
                await Suspensions(work, self.random.choice((1, 2, 3, 5, 8)), scope.cancel)
            else:
                await work
        del self.scopes[channel]
        if scope.cancelled_caught:
            self.cancelled += 1
            with anyio.fail_after(PATIENCE, shield=True):
                await self.end(channel, op)
        else:
            self.done += 1
        channel.close()

    async def converse(self, channel: Any, op: int) -> None:
        parts = self.random.choice((1, 1, 1, 2, 4))
        for part in range(parts):
            size = self.random.choice((0, 20, 2000, 65000))
            await channel.send(frame(ASK if part == parts - 1 else MORE, op, pattern(op, part, size)))
        part = 1000
        while (event := await channel.receive()).kind != LAST:
            assert event.kind == PIECE
            assert event.payload == pattern(op, part, len(event.payload)), "a wrong byte"
            part += 1

    @staticmethod
    async def end(channel: Any, op: int) -> None:
        await channel.send(frame(KILL, op))
        while (await channel.receive()).kind != KILLED:
            pass

    async def snipe(self, stop: anyio.Event) -> None:
        """Aim at who reads, who was just woken, who sleeps, who writes."""
        while not stop.is_set():
            await anyio.sleep(self.random.random() * 0.004)
            asleep = self.mux._asleep
            woken = [c for c, event in asleep.items() if event.is_set() and c in self.scopes]
            sleeping = [c for c in asleep if c in self.scopes]
            awake = [c for c in self.scopes if c not in asleep]
            for group in self.random.sample((woken, sleeping, awake), 3):
                if group:
                    self.scopes[self.random.choice(group)].cancel()
                    break

    async def round(self, size: int) -> None:
        stop = anyio.Event()
        async with anyio.create_task_group() as group:
            group.start_soon(self.snipe, stop)
            async with anyio.create_task_group() as operations:
                for _ in range(size):
                    operations.start_soon(self.operation)
            stop.set()
        assert not self.mux._leading
        assert not self.mux._asleep
        assert not self.mux._channels
        assert not self.mux._writing.locked()


@contextmanager
def peer(seed: int, tls: tuple[Path, Path] | None = None) -> Iterator[socket.socket]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for end in (ours, theirs):  # small, so that writers have to wait
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16384)
        argv = [sys.executable, str(PEER), str(theirs.fileno()), str(seed), *map(str, tls or ())]
        process = subprocess.Popen(argv, pass_fds=[theirs.fileno()])
        theirs.close()
        ours.setblocking(False)
        try:
            yield ours
        finally:
            ours.close()
            code = process.wait(10)
    assert code == 0, "the peer saw a frame that nobody can have sent"


async def run_rounds(
    module: Any, seed: int, rounds: int, size: int = 64, tls: tuple[Path, Path] | None = None
) -> Rounds:
    with peer(seed, tls) as sock:
        wire = Wire(sock)
        if tls:
            context = ssl.create_default_context(cafile=str(tls[0]))
            await wire.start_tls(context, "localhost")
        mux = module.Mux(wire, Decoder())
        driver = Rounds(mux, seed)
        try:
            for _ in range(rounds):
                with anyio.fail_after(PATIENCE):
                    await driver.round(size)
        finally:
            mux.close()
    return driver

"""The real guest and the real mux: many operations, cancelled anywhere; the survivors are exactly right."""

from __future__ import annotations

import os
import random
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from sandboxio.testing.suite.comparing import difference
from sandboxio_docker import guest_protocol as w, launcher
from sandboxio_docker.guest_wire import GuestWire
from sandboxio_docker.mux import Channel, Mux
from sandboxio_docker.wire import Wire
from tests.guest.conftest import ANY, HAS_NAMESPACES
from tests.guest.rounds import Suspensions

ROUNDS = max(4, int(os.environ.get("SBX_TEST_ROUNDS", "40")) // 5)
SEED = int(os.environ.get("SBX_TEST_SEED", "0")) or int.from_bytes(os.urandom(4), "big")
SIZE = 64


class Connection:
    def __init__(self, sock: socket.socket) -> None:
        self.wire = GuestWire()
        self.mux: Mux[w.Event] = Mux(Wire(sock), self.wire.feed)

    def open(self) -> tuple[int, Channel[w.Event]]:
        op = self.wire.new_operation()
        return op, self.mux.open(op)

    async def until_last(self, op: int, channel: Channel[w.Event], out: bytearray) -> w.Event:
        while True:
            event = await channel.receive()
            if isinstance(event, w.Output):
                out += event.data
                channel.post(self.wire.consumed(op, event.stream, len(event.data)))
            elif isinstance(event, w.LAST):
                return event

    async def give(self, op: int, channel: Channel[w.Event], data: bytes) -> None:
        view = memoryview(data)
        while view:
            if room := self.wire.input_room(op):
                await channel.send(self.wire.input(op, view[:room]))
                view = view[room:]
            else:
                assert isinstance(await channel.receive(), w.Grant)
        await channel.send(self.wire.input_end(op))

    async def end(self, op: int, channel: Channel[w.Event]) -> None:
        await channel.send(self.wire.kill(op))
        while not isinstance(event := await channel.receive(), w.Killed):
            pass
        assert event.fate != w.Fate.SURVIVORS

    async def run(self, *argv: str) -> tuple[w.Event, bytes]:
        op, channel = self.open()
        out = bytearray()
        await channel.send(self.wire.start(op, [os.fsencode(word) for word in argv]))
        last = await self.until_last(op, channel, out)
        channel.close()
        self.wire.release(op)
        return last, bytes(out)


@asynccontextmanager
async def connected(work: Path) -> AsyncIterator[Connection]:
    if not HAS_NAMESPACES:
        pytest.skip("no PID namespaces here")
    ours, theirs = socket.socketpair()
    told = launcher.arguments(120, lifeline=True, work=os.fspath(work), localhost=False)
    argv = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    with ours, theirs:
        process = subprocess.Popen(  # noqa: ASYNC220  # once, before anything else runs
            [*argv, *launcher.with_python(told, ANY)],
            stdin=theirs, stdout=theirs, env={"PATH": os.environ["PATH"]},
        )  # fmt: skip
        theirs.close()
        ours.setblocking(False)
        connection = Connection(ours)
        own = connection.mux.open(0)
        await own.send(launcher.program())
        assert isinstance(await own.receive(), w.Hello)
        try:
            yield connection
        finally:
            connection.mux.close()
            process.wait(10)


class Play:
    def __init__(self, connection: Connection, work: Path) -> None:
        self.connection = connection
        self.work = work
        self.random = random.Random(SEED)
        self.scopes: list[anyio.CancelScope] = []
        self.done = 0
        self.cancelled = 0

    async def operation(self) -> None:
        connection = self.connection
        op, channel = connection.open()
        how = self.random.choice(("none", "deadline", "suspension", "sniper"))
        kind = self.random.choice((self.quick, self.noisy, self.reader, self.sleeper, self.writer))
        cut = how == "deadline" or kind == self.sleeper  # which would never end
        limit = self.random.random() * 0.2 if cut else float("inf")
        with anyio.move_on_after(limit) as scope:
            if how == "sniper":
                self.scopes.append(scope)
            work = kind(op, channel)
            if how == "suspension":
                await Suspensions(work, self.random.choice((1, 2, 3, 5)), scope.cancel)
            else:
                await work
        if scope.cancelled_caught:
            self.cancelled += 1
            with anyio.fail_after(20, shield=True):
                await connection.end(op, channel)
        else:
            self.done += 1
        channel.close()
        connection.wire.release(op)

    async def start(self, op: int, channel: Channel[w.Event], text: str, **options: bool) -> None:
        await channel.send(self.connection.wire.start(op, [b"sh", b"-c", text.encode()], **options))

    async def quick(self, op: int, channel: Channel[w.Event]) -> None:
        out = bytearray()
        await self.start(op, channel, f"echo {op}; exit {op % 100}")
        last = await self.connection.until_last(op, channel, out)
        assert isinstance(last, w.End)
        assert (last.exit_code, bytes(out)) == (op % 100, b"%d\n" % op)

    async def noisy(self, op: int, channel: Channel[w.Event]) -> None:
        out = bytearray()
        size = self.random.choice((100_000, 700_000))
        await self.start(op, channel, f"head -c {size} /dev/zero", paced=True)
        await self.connection.until_last(op, channel, out)
        assert bytes(out) == bytes(size)

    async def reader(self, op: int, channel: Channel[w.Event]) -> None:
        data = self.random.randbytes(self.random.choice((10, 100_000, 400_000)))
        await self.start(op, channel, "cat | wc -c", has_input=True)
        await self.connection.give(op, channel, data)
        out = bytearray()
        await self.connection.until_last(op, channel, out)
        assert int(out) == len(data)

    async def sleeper(self, op: int, channel: Channel[w.Event]) -> None:
        await self.start(op, channel, "(setsid sleep 600 &); setsid sleep 600 & sleep 600")
        await self.connection.until_last(op, channel, bytearray())

    async def writer(self, op: int, channel: Channel[w.Event]) -> None:
        name = f"file-{op}"
        data = self.random.randbytes(self.random.choice((0, 1000, 300_000)))
        await channel.send(self.connection.wire.write(op, name.encode()))
        await self.connection.give(op, channel, data)
        last = await self.connection.until_last(op, channel, bytearray())
        assert last == w.Done(op, len(data))
        assert not difference((self.work / name).read_bytes(), data)

    async def snipe(self, stop: anyio.Event) -> None:
        while not stop.is_set():
            await anyio.sleep(self.random.random() * 0.02)
            if self.scopes:
                self.scopes.pop(self.random.randrange(len(self.scopes))).cancel()

    async def round(self) -> None:
        stop = anyio.Event()
        async with anyio.create_task_group() as group:
            group.start_soon(self.snipe, stop)
            async with anyio.create_task_group() as operations:
                for _ in range(SIZE):
                    operations.start_soon(self.operation)
            stop.set()


async def processes(connection: Connection) -> list[str]:
    _, out = await connection.run("ps", "-A", "-o", "stat=,comm=")
    found = [line.split() for line in out.decode().splitlines()][1:]
    return [name for state, name in found if name != "ps" and state[0] != "Z"]


@pytest.mark.timeout(60 + 5 * ROUNDS)
async def test_many_operations_with_cancellations_everywhere(work: Path) -> None:
    print("seed", SEED)
    async with connected(work) as connection:
        survivors = [connection.open() for _ in range(3)]
        for op, channel in survivors:
            await channel.send(connection.wire.start(op, [b"sleep", b"600"]))
        play = Play(connection, work)
        for _ in range(ROUNDS):
            with anyio.fail_after(60):
                await play.round()
                left: list[str] = []
                deadline = anyio.current_time() + 20
                while left != ["sleep"] * 3:
                    assert anyio.current_time() < deadline, f"these have outlived their runs: {left}"
                    left = await processes(connection)
            assert not [name for name in os.listdir(work) if name.startswith(".sandboxio")]
            assert list(connection.wire._operations) == [op for op, _ in survivors]
        assert play.done > ROUNDS * 10
        assert play.cancelled > ROUNDS * 10
        for op, channel in survivors:
            assert channel.receive_now() is None
            await connection.end(op, channel)

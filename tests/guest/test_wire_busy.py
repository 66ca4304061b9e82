"""A connection on which much is waiting is read without waiting first; the promises stay the same."""

from __future__ import annotations

import random
import socket

import anyio
import anyio.lowlevel
import pytest

from sandboxio.testing.suite.comparing import difference
from sandboxio_docker.wire import MUCH, Wire


def pair() -> tuple[Wire, Wire]:
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setblocking(False)
    return Wire(ours), Wire(theirs)


async def send(wire: Wire, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[await wire.send_some(rest) :]


async def test_cancelled_reads_lose_nothing() -> None:
    data = random.randbytes(8 << 20)
    reader, writer = pair()
    got, cancelled, large = bytearray(), 0, 0
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send, writer, data)
            with anyio.fail_after(30):
                while len(got) < len(data):
                    with anyio.CancelScope() as scope:
                        if random.random() < 0.5:
                            scope.cancel()
                        piece = await reader.receive_some()
                        got += piece
                        large += len(piece) >= MUCH
                    cancelled += scope.cancelled_caught
    finally:
        reader.close()
        writer.close()
    assert not difference(got, data)
    assert cancelled > 10
    assert large > 10, "nothing was read without waiting"


async def test_others_run_between_reads() -> None:
    reader, writer = pair()
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await anyio.lowlevel.checkpoint()

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send, writer, bytes(4 << 20))
            tasks.start_soon(count)
            left, reads = 4 << 20, 0
            with anyio.fail_after(30):
                while left:
                    left -= len(await reader.receive_some())
                    reads += 1
            assert turns >= reads
            tasks.cancel_scope.cancel()
    finally:
        reader.close()
        writer.close()


async def test_after_much_the_end_is_still_seen_and_a_close_still_wakes() -> None:
    reader, writer = pair()
    writer.sock.setblocking(True)
    writer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    writer.sock.sendall(bytes(MUCH))
    assert len(await reader.receive_some()) == MUCH
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_closed_here, reader)
        await anyio.wait_all_tasks_blocked()
        reader.close()
    writer.close()

    reader, writer = pair()
    writer.sock.setblocking(True)
    writer.sock.sendall(bytes(MUCH))
    writer.close()
    assert len(await reader.receive_some()) == MUCH
    with anyio.fail_after(5):
        assert await reader.receive_some() == b""
    reader.close()


async def _closed_here(wire: Wire) -> None:
    with pytest.raises(anyio.ClosedResourceError):
        await wire.receive_some()

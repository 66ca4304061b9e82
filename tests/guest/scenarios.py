"""Places where a shared connection is easily lost, one after another, with a port in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio

from tests.guest.rounds import Decoder

SOON = 1.0
"""Seconds after which a scenario counts as hanging; they take none."""


class Memory:
    """A port in memory: what is sent is kept, what is put in is received."""

    def __init__(self) -> None:
        self.sent = bytearray()
        self.incoming: list[bytes | Exception] = []
        self.news = anyio.Event()
        self.room = 1 << 30
        self.closed = False

    def put(self, data: bytes | Exception) -> None:
        self.incoming.append(data)
        self.news.set()

    async def receive_some(self) -> bytes:
        while not self.incoming:
            self.news = anyio.Event()
            await self.news.wait()
        item = self.incoming.pop(0)
        if isinstance(item, Exception):
            raise item
        return item

    async def send_some(self, data: memoryview) -> int:
        while not self.room:
            self.news = anyio.Event()
            await self.news.wait()
        size = min(len(data), self.room)
        self.room -= size
        self.sent += data[:size]
        return size

    def close(self) -> None:
        self.closed = True
        self.put(anyio.ClosedResourceError())


def answer(op: int) -> bytes:
    return b"\0\0\0\0\x05" + op.to_bytes(4, "big")


class Stage:
    """Operations 1, 2, 3... that wait for one event each; 1 reads for all."""

    def __init__(self, module: Any, group: anyio.abc.TaskGroup) -> None:
        self.port = Memory()
        self.mux = module.Mux(self.port, Decoder())
        self.group = group
        self.scopes: dict[int, anyio.CancelScope] = {}
        self.got: list[int] = []

    async def wait_for(self, op: int) -> None:
        with anyio.CancelScope() as self.scopes[op]:
            await self.mux.open(op).receive()
            self.got.append(op)

    async def enter(self, *ops: int) -> None:
        for op in ops:
            self.group.start_soon(self.wait_for, op)
            await anyio.wait_all_tasks_blocked()


@asynccontextmanager
async def stage(module: Any, *ops: int) -> AsyncIterator[Stage]:
    with anyio.fail_after(SOON):
        async with anyio.create_task_group() as group:
            here = Stage(module, group)
            await here.enter(*ops)
            yield here


async def the_reader_is_cancelled(module: Any) -> None:
    async with stage(module, 1, 2) as here:
        here.scopes[1].cancel()
        await anyio.wait_all_tasks_blocked()
        here.port.put(answer(2))
    assert here.got == [2]


async def the_reader_has_its_event(module: Any) -> None:
    async with stage(module, 1, 2) as here:
        here.port.put(answer(1))
        await anyio.wait_all_tasks_blocked()
        here.port.put(answer(2))
    assert here.got == [1, 2]


async def a_sleeper_has_its_event_first(module: Any) -> None:
    async with stage(module, 1, 2) as here:
        here.port.put(answer(2))
        await anyio.wait_all_tasks_blocked()
        assert here.got == [2]
        here.port.put(answer(1))


async def the_woken_successor_has_its_event_already(module: Any) -> None:
    async with stage(module, 1, 2, 3) as here:
        here.port.put(answer(1) + answer(2))
        await anyio.wait_all_tasks_blocked()
        here.port.put(answer(3))
    assert sorted(here.got) == [1, 2, 3]


async def the_woken_successor_is_cancelled(module: Any) -> None:
    async with stage(module, 1, 2, 3) as here:
        here.scopes[1].cancel()
        here.scopes[2].cancel()
        await anyio.wait_all_tasks_blocked()
        here.port.put(answer(3))
    assert here.got == [3]


async def a_writer_is_cancelled_between_two_others(module: Any) -> None:
    async with stage(module) as here:
        here.port.room = 3
        with anyio.move_on_after(0.01):
            await here.mux.open(1).send(b"abcdef")
        here.port.room = 1 << 30
        await here.mux.open(2).send(b"ghi")
    assert here.port.sent == b"abcdefghi"


SCENARIOS = [
    the_reader_is_cancelled,
    the_reader_has_its_event,
    a_sleeper_has_its_event_first,
    the_woken_successor_has_its_event_already,
    the_woken_successor_is_cancelled,
    a_writer_is_cancelled_between_two_others,
]

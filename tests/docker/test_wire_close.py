"""A wire that is closed under a waiting task gives its descriptor's number to nobody too early."""

from __future__ import annotations

import socket

import anyio
import anyio.lowlevel
import pytest

from sandboxio_docker.wire import Wire


def pair() -> tuple[Wire, socket.socket]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    return Wire(ours), theirs


async def test_a_connection_opened_in_the_same_tick_still_wakes() -> None:
    """With the number reused at once, asyncio takes the new connection's wait away with the old one's."""
    old, peer = pair()
    caught: list[BaseException] = []

    async def wait() -> None:
        with pytest.raises(anyio.ClosedResourceError) as error:
            await old.receive_some()
        caught.append(error.value)

    async def send_later() -> None:
        while len(caught) < 1:
            await anyio.lowlevel.checkpoint()
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        other.send(b"x")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        old.close()
        new, other = pair()
        tasks.start_soon(send_later)
        try:
            with anyio.fail_after(5):
                assert await new.receive_some() == b"x"  # waits before anybody else runs
        finally:
            new.close()
            other.close()
    assert len(caught) == 1
    assert peer.recv(1) == b"", "the other side saw the end"
    assert old.sock.fileno() == -1, "the last who waited closed it"
    peer.close()


async def test_the_other_side_sees_the_end_at_once() -> None:
    wire, peer = pair()
    peer.setblocking(False)

    async def wait() -> None:
        with pytest.raises(anyio.ClosedResourceError):
            await wire.receive_some()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        wire.close()
        assert peer.recv(1) == b""
    peer.close()


async def test_without_anybody_waiting_it_is_closed_at_once() -> None:
    wire, peer = pair()
    wire.close()
    wire.close()
    assert wire.sock.fileno() == -1
    peer.close()

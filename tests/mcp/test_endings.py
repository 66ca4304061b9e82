"""The server ends while its sandbox is only half made: the moment at which no lifeline exists yet."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from subprocess import PIPE

import anyio
import pytest
from anyio.abc import Process
from sniffio import current_async_library

from sandboxio_docker import DockerBackend
from tests.fakes.engine import FakeEngine, Gate

from .test_transports import HELLO

ENDINGS = ("SIGTERM", "stdin closed")
CALL = {
    "jsonrpc": "2.0",
    "id": 2,
    "method": "tools/call",
    "params": {"name": "run_command", "arguments": {"cmd": "true"}},
}
STARTED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


@asynccontextmanager
async def calling(engine: str, image: str) -> AsyncGenerator[Process]:
    """A server over stdio, on the same loop as the test, whose first call is on its way."""
    command = [
        sys.executable,
        "-m",
        "sandboxio.mcp",
        "--backend",
        f"docker://{image}",
        "--loop",
        current_async_library() or "",
    ]
    environment = {**os.environ, "DOCKER_HOST": engine}
    async with await anyio.open_process(
        command, stdin=PIPE, stdout=PIPE, stderr=None, env=environment
    ) as server:
        assert server.stdin is not None
        lines = "".join(json.dumps(each) + "\n" for each in (HELLO, STARTED, CALL))
        await server.stdin.send(lines.encode())
        yield server


async def end(server: Process, ending: str) -> int:
    """End the server as a client does; its exit code."""
    assert server.stdin is not None
    if ending == "SIGTERM":
        server.send_signal(signal.SIGTERM)
    else:
        await server.stdin.aclose()
    with anyio.fail_after(20):
        return await server.wait()


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("operation", ["create", "start"])
async def test_a_creation_is_undone(operation: str, ending: str, tmp_path: Path) -> None:
    async with FakeEngine.on(tmp_path) as fake:
        with fake.gate(operation, "before") as gate:
            async with calling(fake.url, "python:3.12-slim") as server, anyio.create_task_group() as tasks:
                with anyio.fail_after(20):
                    await gate.reached.wait()
                if operation == "create":  # the engine does what it was asked, whoever has gone
                    tasks.start_soon(_released_a_moment_later, gate)
                assert await end(server, ending) == (143 if ending == "SIGTERM" else 0)
        assert len(fake.asked("create")) == 1
        assert not fake.containers
        await fake.all_closed()


async def _released_a_moment_later(gate: Gate) -> None:
    await anyio.sleep(0.1)
    gate.release()


@pytest.mark.engine
@pytest.mark.parametrize("ending", ENDINGS)
async def test_a_container_that_was_created_and_not_started_is_removed(
    ending: str, docker_image: str
) -> None:
    async with engine_that_starts_nothing() as (url, door), calling(url, docker_image) as server:
        with anyio.fail_after(20):
            await door.held.wait()
        assert await exists(door.container)
        await end(server, ending)
        assert not await exists(door.container)


async def exists(container: str) -> bool:
    return any(container.startswith(each.sandbox_id) for each in await DockerBackend().list_managed())


@dataclass
class Door:
    """Where a container waits that was created and may not start."""

    held: anyio.Event = field(default_factory=anyio.Event)
    container: str = ""


@asynccontextmanager
async def engine_that_starts_nothing() -> AsyncGenerator[tuple[str, Door]]:
    """The real engine behind a door that keeps every request to start a container."""
    address = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://")
    door = Door()

    async def pump(source: socket.socket, sink: socket.socket, *, guarded: bool) -> None:
        while True:
            await anyio.wait_readable(source)
            data = source.recv(1 << 16)
            if guarded and (start := re.search(rb"/containers/(\w+)/start HTTP", data)):
                door.container = start[1].decode()
                door.held.set()
            elif data:
                sink.sendall(data)  # a request and its answer fit into the buffers of a socket
            else:
                sink.shutdown(socket.SHUT_WR)
                return

    async def pass_on(client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as real:
            real.connect(address)
            async with anyio.create_task_group() as both:
                both.start_soon(partial(pump, client, real, guarded=True))
                both.start_soon(partial(pump, real, client, guarded=False))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with anyio.create_task_group() as group:

            async def accept() -> None:
                while True:
                    await anyio.wait_readable(listener)
                    group.start_soon(pass_on, listener.accept()[0])

            group.start_soon(accept)
            yield f"tcp://127.0.0.1:{listener.getsockname()[1]}", door
            group.cancel_scope.cancel()

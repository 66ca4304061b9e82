"""run, stream, files and kill are cancelled at every await, over both channels.

Case 10 and 34: when the cancellation leaves the call, the command is dead and nothing is half done; the
sandbox goes on working. Cases 31 and 33: nothing of the connections is used up.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal, get_args

import anyio
import pytest

from sandboxio import _sandbox
from sandboxio.errors import ExecutionTimeout, SandboxGone
from sandboxio.testing.suite.comparing import difference
from sandboxio_docker import DockerBackend
from sandboxio_docker.sandbox import DockerSandbox
from tests.fakes.engine import FakeEngine
from tests.fakes.inside import Inside
from tests.fakes.sweep import How, Outcome, sweep

Way = Literal["guest", "exec"]
World = tuple[DockerSandbox, Inside]


@asynccontextmanager
async def world(way: Way, folder: Path) -> AsyncGenerator[World]:
    """A sandbox on a fake engine, and what happens inside."""
    async with FakeEngine.on(folder) as fake:
        inside = Inside(fake)
        sandbox = await DockerBackend(host=fake.url, channel=way).create(timeout=60)
        try:
            yield sandbox, inside
        finally:
            await sandbox.kill()
        assert not fake.containers
        await fake.all_closed()


async def run(sandbox: DockerSandbox) -> object:
    return await sandbox.run(["echo", "hello"])


async def run_longer(sandbox: DockerSandbox) -> object:
    return await sandbox.run(["sleep", "0.2"])


async def run_code(sandbox: DockerSandbox) -> object:
    return await sandbox.run_code("print(1)\n" * 50_000)


async def stream(sandbox: DockerSandbox) -> object:
    async with sandbox.stream(["echo", "hello"]) as process:
        async for _ in process:
            pass
        return await process.wait()


async def stream_and_leave(sandbox: DockerSandbox) -> object:
    async with sandbox.stream(["yes"]) as process:
        async for _ in process:
            break
    return None


async def write(sandbox: DockerSandbox) -> object:
    return await sandbox.files.write("new", b"x" * 300_000)


async def read(sandbox: DockerSandbox) -> object:
    return await sandbox.files.read("old")


OPERATIONS = (run, run_longer, run_code, stream, stream_and_leave, write, read)


@pytest.mark.parametrize("how", get_args(How))
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
@pytest.mark.parametrize("way", ["guest", "exec"])
async def test_cancelled_at_every_await(
    way: Way, operation: Callable[[DockerSandbox], Awaitable[object]], how: How, tmp_path: Path
) -> None:
    async with world(way, tmp_path) as (sandbox, inside):
        inside.files[b"/work/old"] = b"old content"
        whole = b"x" * 300_000

        async def check(outcome: Outcome[object]) -> None:
            assert not inside.alive, f"alive after a cancellation at await {outcome.point}"
            assert not difference(inside.files.get(b"/work/new", whole), whole), "half a file"
            assert (await sandbox.run(["echo", "ok"])).stdout == "ok\n"

        began = time.monotonic()
        hit = await sweep(lambda: operation(sandbox), check, how)
        assert hit >= 1
        assert time.monotonic() - began < 1 + hit


@pytest.mark.parametrize("way", ["guest", "exec"])
async def test_the_sweep_finds_what_an_unshielded_kill_leaves(
    way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proof that the sweep above can fail."""
    async with world(way, tmp_path) as (sandbox, inside):
        alive = 0

        async def unshielded(work: Callable[[], Awaitable[None]], **_: object) -> bool:
            await work()
            return True

        async def check(outcome: Outcome[object]) -> None:
            nonlocal alive
            alive += len(inside.alive)
            with anyio.move_on_after(5):
                while inside.alive:
                    await anyio.sleep(0.01)

        with monkeypatch.context() as patch:
            patch.setattr(_sandbox, "bounded", unshielded)
            await sweep(lambda: run_longer(sandbox), check)
        assert alive > 0


@pytest.mark.parametrize("how", get_args(How))
@pytest.mark.parametrize("way", ["guest", "exec"])
async def test_kill_is_cancelled_at_every_await(way: Way, how: How, tmp_path: Path) -> None:
    """Case 34: whatever cancels kill(), the container is gone when it returns."""
    async with FakeEngine.on(tmp_path) as fake:
        Inside(fake)
        backend = DockerBackend(host=fake.url, channel=way)
        made: list[DockerSandbox] = []

        async def kill() -> None:
            await made[-1].kill()

        async def check(outcome: Outcome[None]) -> None:
            assert not fake.containers
            with pytest.raises(SandboxGone):
                await made[-1].run(["true"])
            await fake.all_closed()
            made.append(await backend.create(timeout=60))

        made.append(await backend.create(timeout=60))
        assert await sweep(kill, check, how) >= 1
        await made[-1].kill()
        await fake.all_closed()


@pytest.mark.parametrize("way", ["guest", "exec"])
async def test_a_timeout_kills_only_its_own_run(way: Way, tmp_path: Path) -> None:
    """Cases 6 and 10: the output until then is kept, the other run does not notice."""
    async with world(way, tmp_path) as (sandbox, inside):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sandbox.run, ["sleep", "0.6"])
            with pytest.raises(ExecutionTimeout) as caught:
                await sandbox.run(["yes"], timeout=0.3)
            assert inside.alive == [["sleep", "0.6"]]
        assert caught.value.partial is not None
        assert caught.value.partial.stdout.startswith("y\ny\n")


@pytest.mark.parametrize("way", ["guest", "exec"])
async def test_a_stream_is_killed_from_another_task(way: Way, tmp_path: Path) -> None:
    """Case 36: opened, read and killed in three tasks."""
    async with world(way, tmp_path) as (sandbox, inside):
        process = sandbox.stream(["sleep", "30"])
        await process.__aenter__()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(process.wait)
            await anyio.sleep(0.05)
            await process.kill()
        assert process.returncode == 137
        assert not inside.alive
        await process.__aexit__(None, None, None)


@pytest.mark.parametrize("way", ["guest", "exec"])
async def test_a_storm_of_cancellations_uses_nothing_up(way: Way, tmp_path: Path) -> None:
    """Case 31."""
    async with world(way, tmp_path) as (sandbox, inside):

        async def storm(number: int) -> None:
            for step in range(15):
                with anyio.move_on_after((number * 7 + step * 3) % 11 / 1000):
                    await sandbox.run(["echo", "x"])

        async with anyio.create_task_group() as tasks:
            for number in range(10):
                tasks.start_soon(storm, number)
        assert not inside.alive
        assert (await sandbox.run(["echo", "ok"], timeout=10)).stdout == "ok\n"


@pytest.mark.parametrize("way", ["guest", "exec"])
async def test_control_calls_do_not_queue_behind_long_streams(way: Way, tmp_path: Path) -> None:
    """Case 33: 150 commands run, and neither another command nor kill() waits for them."""
    async with world(way, tmp_path) as (sandbox, inside):

        async def long() -> None:
            with pytest.raises(SandboxGone):
                await sandbox.run(["sleep", "30"])

        async with anyio.create_task_group() as tasks:
            for _ in range(150):
                tasks.start_soon(long)
            with anyio.fail_after(20):
                while len(inside.alive) < 150:
                    await anyio.sleep(0.01)
            began = time.monotonic()
            await sandbox.run(["true"])
            await sandbox.kill()
            assert time.monotonic() - began < 5
        assert not inside.alive

"""An async sandbox serves one event loop at a time: a second one is told so and does not wait."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import pytest
from anyio.lowlevel import current_token

from sandboxio import ConfigurationError
from sandboxio.protocols import AsyncSandbox

from .scripted import ScriptedBackend, ScriptedSandbox, World

Use = Callable[[AsyncSandbox], Awaitable[Any]]
Elsewhere = Callable[[Callable[[], Awaitable[Any]]], Any]


async def streamed(sandbox: AsyncSandbox) -> None:
    async with sandbox.stream(["x"]) as process:
        await process.wait()


USES: dict[str, Use] = {
    "run": lambda sandbox: sandbox.run(["x"]),
    "run_code": lambda sandbox: sandbox.run_code("x"),
    "stream": streamed,
    "files": lambda sandbox: sandbox.files.ls("."),
}


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture(params=["asyncio", "trio"])
def elsewhere(request: pytest.FixtureRequest) -> Iterator[Elsewhere]:
    """Runs a function in another thread, in an event loop of its own, to its end."""
    with ThreadPoolExecutor(1) as pool:
        yield lambda function: pool.submit(anyio.run, function, backend=request.param).result()


@pytest.mark.parametrize("first", USES)
@pytest.mark.parametrize("second", USES)
async def test_a_second_loop_is_refused_while_the_first_is_inside(
    first: str, second: str, world: World, elsewhere: Elsewhere
) -> None:
    sandbox = await ScriptedBackend(world).create()
    refused: list[str] = []

    def meanwhile(number: int) -> None:
        world.on_gate = lambda number: None
        with pytest.raises(ConfigurationError, match="Sandbox s-1 is in use by another event loop") as caught:
            elsewhere(lambda: USES[second](sandbox))
        assert "create_sync()" in caught.value.hint
        refused.append(second)

    world.on_gate = meanwhile
    await USES[first](sandbox)
    assert refused == [second]
    await USES[second](sandbox)
    elsewhere(lambda: USES[second](sandbox))
    await sandbox.kill()


async def test_a_refused_stream_may_be_entered_later(world: World, elsewhere: Elsewhere) -> None:
    sandbox = await ScriptedBackend(world).create()
    later = sandbox.stream(["x"])
    async with sandbox.stream(["y"]):
        with pytest.raises(ConfigurationError, match="another event loop"):
            elsewhere(later.__aenter__)
    async with later as process:
        assert (await process.wait()).exit_code == 0
    await sandbox.kill()


PARTS: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "read": lambda process: process.__anext__(),
    "wait": lambda process: process.wait(),
    "kill": lambda process: process.kill(),
    "leave": lambda process: process.__aexit__(None, None, None),
}


@pytest.mark.parametrize("part", PARTS)
async def test_a_stream_is_used_in_the_loop_that_entered_it(
    part: str, world: World, elsewhere: Elsewhere
) -> None:
    sandbox = await ScriptedBackend(world).create()
    async with sandbox.stream(["x"]) as process:
        with pytest.raises(ConfigurationError, match="another event loop"):
            elsewhere(lambda: PARTS[part](process))
        assert (await process.wait()).exit_code == 0
    elsewhere(process.kill)
    assert elsewhere(process.wait).exit_code == 0
    await sandbox.kill()
    assert not world.processes


async def test_a_stream_that_does_not_begin_is_no_use(
    world: World, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = await ScriptedBackend(world).create()
    with monkeypatch.context() as patch:
        patch.setattr(sandbox._recorder, "open", lambda *a, **k: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await sandbox.stream(["x"]).__aenter__()
    elsewhere(lambda: sandbox.run(["x"]))
    await sandbox.kill()


async def test_tasks_of_one_loop_share_a_sandbox(world: World, elsewhere: Elsewhere) -> None:
    sandbox = await ScriptedBackend(world).create()

    async def one_inside_the_other() -> None:
        async with sandbox.stream(["x"]):
            await sandbox.run(["y"])
            async with sandbox.stream(["z"]):
                pass

    await one_inside_the_other()
    elsewhere(one_inside_the_other)
    await sandbox.kill()


async def test_a_loop_that_ended_inside_is_no_hindrance(world: World, elsewhere: Elsewhere) -> None:
    sandbox = await ScriptedBackend(world).create()
    forgotten = sandbox.stream(["x"])
    elsewhere(forgotten.__aenter__)
    async with sandbox.stream(["y"]):
        await forgotten.__aexit__(None, None, None)  # takes nothing away from the loop that is inside now
        with pytest.raises(ConfigurationError, match="another event loop"):
            elsewhere(lambda: sandbox.run(["z"]))
    await sandbox.kill()


async def test_any_loop_may_end_it_and_the_one_inside_closes_it(
    world: World, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed_in: list[object] = []
    monkeypatch.setattr(ScriptedSandbox, "_close", lambda self: closed_in.append(current_token()))
    sandbox = await ScriptedBackend(world).create()
    async with sandbox.stream(["x"]) as process:
        elsewhere(sandbox.kill)
        assert world.sandboxes == set()
        await process.kill()
        await anyio.wait_all_tasks_blocked()
    assert closed_in == [current_token()]


def test_a_loop_that_stands_still_is_not_left_to_close_it(
    world: World, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[None] = []
    monkeypatch.setattr(ScriptedSandbox, "_close", lambda self: closed.append(None))
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        sandbox = loop.run_until_complete(ScriptedBackend(world).create())
        loop.run_until_complete(sandbox.stream(["x"]).__aenter__())
        elsewhere(sandbox.kill)
        assert closed == [None]


@pytest.mark.parametrize("inside", [False, True])
async def test_it_is_closed_at_once_where_no_loop_is_inside(
    inside: bool, world: World, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed_in: list[object] = []
    monkeypatch.setattr(ScriptedSandbox, "_close", lambda self: closed_in.append(current_token()))
    sandbox = await ScriptedBackend(world).create()
    if inside:  # of a loop that has ended
        elsewhere(sandbox.stream(["x"]).__aenter__)
    await sandbox.kill()
    assert closed_in == [current_token()]

"""What the blocking facade hands through, and from where it may be called."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

import sandboxio
from sandboxio import (
    Capability,
    ConfigurationError,
    ConnectError,
    ExecResult,
    ExecutionTimeout,
    IsolationTier,
    PathNotFound,
    SandboxGone,
    registry,
)
from sandboxio.integrations._tool import SandboxTool
from tests.core.scripted import ScriptedBackend, World


@pytest.fixture
def world() -> Iterator[World]:
    """The far side behind ``scripted://``."""
    world = World()
    sandboxio.register("scripted", lambda: ScriptedBackend(world))
    yield world
    registry.unregister("scripted")


def portal_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "sandboxio-sync"]


# Hands through


def test_commands_code_streams_and_files(host: str, tmp_path: Path) -> None:
    with sandboxio.create_sync(host, env={"COLOUR": "green"}) as sandbox:
        assert sandbox.run(["echo", "x"]) == ExecResult(0, "x\n", "")
        assert sandbox.run("echo $COLOUR $SIZE", env={"SIZE": "2"}).stdout == "green 2\n"
        assert sandbox.run_code("print(6 * 7)").stdout == "42\n"
        with sandbox.stream(["seq", "3"]) as process:
            assert process.returncode is None
            assert b"".join(chunk.data for chunk in process) == b"1\n2\n3\n"
            assert process.wait() == ExecResult(0, "", "", streamed=True)
            assert process.returncode == 0
        sandbox.files.write("a.txt", "text")
        assert sandbox.files.read("a.txt") == b"text"
        (tmp_path / "up").write_bytes(b"\0\xff")
        sandbox.files.upload(tmp_path / "up", "b")
        sandbox.files.download("b", tmp_path / "down")
        assert (tmp_path / "down").read_bytes() == b"\0\xff"
        sandbox.files.mkdir("c/d", parents=True)
        assert [(entry.path, entry.is_dir) for entry in sandbox.files.ls()] == [
            ("a.txt", False),
            ("b", False),
            ("c", True),
        ]
        sandbox.files.remove("b")
        assert sandbox.native == Path(sandbox.id)
        assert sandbox.isolation is IsolationTier.CONTAINER
        assert Capability.STREAMING in sandbox.capabilities
        assert "SyncSandbox" in repr(sandbox)
        with sandboxio.connect_sync(host, sandbox.id) as same:
            assert same.files.read("a.txt") == b"text"


def test_a_stream_that_is_left_early_is_dead(host: str) -> None:
    with sandboxio.create_sync(host) as sandbox:
        with sandbox.stream(["yes"]) as process:
            for chunk in process:
                assert chunk.data.startswith(b"y\n")
                break
            process.kill()
            process.kill()
        assert process.wait().exit_code == 137


def test_errors_are_the_same_objects_with_their_causes(host: str) -> None:
    with sandboxio.create_sync(host) as sandbox:
        with pytest.raises(PathNotFound) as missing:
            sandbox.files.read("nothing")
        assert isinstance(missing.value.__cause__, FileNotFoundError)
        with pytest.raises(ExecutionTimeout) as late:
            sandbox.run("echo early; sleep 60", timeout=0.3)
        assert late.value.partial is not None
        assert late.value.partial.stdout == "early\n"
        with pytest.raises(ConfigurationError, match="empty"):
            sandbox.run([])
        with sandbox.stream("sleep 60", timeout=0.2) as process, pytest.raises(ExecutionTimeout):
            process.wait()
    with pytest.raises(ConnectError):
        sandboxio.connect_sync(host, "/nowhere")
    with pytest.raises(ConfigurationError, match="DSN"):
        sandboxio.create_sync("not a dsn")
    assert not portal_threads()


def test_the_bodys_exception_comes_out_and_the_sandbox_is_gone(host: str) -> None:
    with pytest.raises(LookupError) as raised, sandboxio.create_sync(host) as sandbox:
        raise LookupError("mine")
    assert raised.value.args == ("mine",)
    assert not Path(sandbox.id).exists()
    assert not portal_threads()


def test_after_the_end_everything_says_so_and_killing_is_silent(host: str) -> None:
    with sandboxio.create_sync(host) as sandbox:
        process = sandbox.stream(["true"])
        sandbox.kill()
        with pytest.raises(SandboxGone):
            sandbox.run(["true"])
    for _ in range(2):
        sandbox.kill()
        sandbox.close()
    for operation in (
        lambda: sandbox.run(["true"]),
        lambda: sandbox.stream(["true"]),
        lambda: sandbox.files.read("x"),
        process.__enter__,
        process.wait,
    ):
        with pytest.raises(SandboxGone):
            operation()
    process.kill()


def test_a_context_variable_of_the_caller_is_seen_inside(host: str) -> None:
    """Spans, for one: a trace goes on through the facade."""
    request: contextvars.ContextVar[str] = contextvars.ContextVar("request")
    seen: list[str | None] = []

    class Watched(registry.resolve("host").__class__):  # type: ignore[misc]
        async def _provision(self, asked: object) -> object:
            seen.append(request.get(None))
            return await super()._provision(asked)

    sandboxio.register("host", Watched)
    request.set("r-1")
    sandboxio.create_sync("host://").close()
    assert seen == ["r-1"]


# From where


async def test_inside_a_running_loop(host: str) -> None:
    await anyio.lowlevel.checkpoint()
    with sandboxio.create_sync(host) as sandbox:
        assert sandbox.run(["echo", "x"]).stdout == "x\n"
        with sandbox.stream(["seq", "3"]) as process:
            assert b"".join(chunk.data for chunk in process) == b"1\n2\n3\n"
    assert not portal_threads()


async def test_in_a_worker_thread_of_a_running_loop(host: str) -> None:
    def work() -> str:
        with sandboxio.create_sync(host) as sandbox:
            return sandbox.run(["echo", "x"]).stdout

    assert await anyio.to_thread.run_sync(work) == "x\n"


@pytest.mark.parametrize("call", ["run_code", "run_command"])
async def test_a_tool_call_that_is_cancelled_in_another_loop_kills_its_command(
    world: World, call: str
) -> None:
    world.hangs = True
    with sandboxio.create_sync("scripted://") as sandbox:
        with anyio.fail_after(5), anyio.move_on_after(0.2) as scope:
            await getattr(SandboxTool(sandbox), call)("sleep")
        assert scope.cancelled_caught
        assert not world.processes
        world.hangs = False
        assert (await SandboxTool(sandbox).run_command("true")).ok


@pytest.mark.one_loop("asyncio's own way to cancel")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_tool_call_that_asyncio_cancels_twice_kills_its_command(world: World) -> None:
    world.hangs, world.kill_takes = True, 0.2
    with sandboxio.create_sync("scripted://") as sandbox:
        task = asyncio.create_task(SandboxTool(sandbox).run_command("sleep"))
        await until(lambda: bool(world.processes))
        task.cancel()
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not world.processes


async def test_a_tool_call_on_a_closed_sandbox_says_so(world: World) -> None:
    with sandboxio.create_sync("scripted://") as sandbox:
        pass
    with pytest.raises(SandboxGone):
        await SandboxTool(sandbox).run_command("true")


async def test_a_tool_call_whose_sandbox_another_thread_closes_says_so(world: World) -> None:
    world.hangs = True
    sandbox = sandboxio.create_sync("scripted://")

    async def close() -> None:
        await until(lambda: bool(world.processes))
        await anyio.to_thread.run_sync(sandbox.close)

    async with anyio.create_task_group() as group:
        group.start_soon(close)
        with pytest.raises(SandboxGone), anyio.fail_after(5):
            await SandboxTool(sandbox).run_command("sleep")


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(5):
        while not condition():
            await anyio.sleep(0.01)


def test_ten_threads_share_one(host: str) -> None:
    with sandboxio.create_sync(host) as sandbox, ThreadPoolExecutor(10) as pool:
        results = list(pool.map(lambda n: sandbox.run(["echo", str(n)]).stdout, range(50)))
        assert results == [f"{n}\n" for n in range(50)]
        assert len(portal_threads()) == 1


def test_calls_of_several_threads_run_at_the_same_time(host: str) -> None:
    """Each waits for a file that the next one writes; one after another they would wait for ever."""
    with sandboxio.create_sync(host) as sandbox, ThreadPoolExecutor(5) as pool:
        ring = [f"touch started{n}; until [ -e started{(n + 1) % 5} ]; do sleep 0.01; done" for n in range(5)]
        assert [result.exit_code for result in pool.map(sandbox.run, ring)] == [0] * 5


def test_one_sandbox_is_one_thread(host: str) -> None:
    sandboxes = [sandboxio.create_sync(host) for _ in range(3)]
    assert len(portal_threads()) == 3
    for sandbox in sandboxes:
        sandbox.close()
    assert not portal_threads()


def test_a_call_from_its_own_loop_is_refused(host: str) -> None:
    """It would wait for itself."""
    sandbox = sandboxio.create_sync(host)
    refused: list[BaseException] = []

    async def inside() -> None:
        await anyio.lowlevel.checkpoint()
        try:
            sandbox.run(["true"])
        except ConfigurationError as error:
            refused.append(error)

    sandbox._portal.call(inside)
    sandbox.close()
    assert "own event loop" in str(refused[0])


# Ends


def test_closed_by_another_thread_while_a_call_waits(world: World) -> None:
    sandbox = sandboxio.create_sync("scripted://")
    world.hangs = True
    started = threading.Event()
    world.on_gate = lambda number: started.set()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(sandbox.run, ["x"])
        assert started.wait(5)
        sandbox.close()
        with pytest.raises(SandboxGone):
            waiting.result(5)
    assert not world.sandboxes
    assert not world.processes


def test_closing_and_calling_race(host: str) -> None:
    """Whatever the order: a result or ``SandboxGone``, and nobody hangs."""
    for _ in range(30):
        sandbox = sandboxio.create_sync(host)
        ends: list[str] = []

        def work() -> None:
            try:
                for _ in range(1000):
                    sandbox.files.ls()  # noqa: B023 - the threads end with the round
            except SandboxGone:
                ends.append("gone")  # noqa: B023

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        sandbox.close()
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive()
        assert ends == ["gone"] * 4


def test_dropped_without_close_it_ends_and_says_so(world: World) -> None:
    sandbox = sandboxio.create_sync("scripted://")
    assert world.sandboxes
    held = [sandbox]
    del sandbox
    with pytest.warns(ResourceWarning, match="dropped without close"):
        held.clear()
    deadline = time.monotonic() + 5
    while portal_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not portal_threads()
    assert not world.sandboxes


def test_dropped_after_kill_it_has_nothing_to_say(world: World) -> None:
    sandbox = sandboxio.create_sync("scripted://")
    sandbox.kill()
    del sandbox  # a ResourceWarning would be an error here
    deadline = time.monotonic() + 5
    while portal_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not portal_threads()


def test_its_parts_keep_it_alive(host: str) -> None:
    files = sandboxio.create_sync(host).files
    gc.collect()
    files.write("a", b"1")
    assert files.read("a") == b"1"
    files._portal.close()


def test_a_refused_kill_is_raised_and_the_thread_ends(world: World) -> None:
    world.destroy_error = ConnectError("no")
    sandbox = sandboxio.create_sync("scripted://")
    with pytest.raises(ConnectError), pytest.warns(sandboxio.OrphanedSandboxWarning):
        sandbox.close()
    assert not portal_threads()


def test_nothing_waits_for_the_garbage_collector(world: World) -> None:
    gc.collect()
    gc.disable()
    try:
        sandbox = sandboxio.create_sync("scripted://")
        watched: list[weakref.ref[object]] = [weakref.ref(sandbox), weakref.ref(sandbox._portal)]
        sandbox.run(["x"])
        try:
            sandbox.files.read("missing")
        except PathNotFound as error:
            watched.append(weakref.ref(error))
        sandbox.close()
        del sandbox
        assert [kept for ref in watched if (kept := ref()) is not None] == []
    finally:
        gc.enable()

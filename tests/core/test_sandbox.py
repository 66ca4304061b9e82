"""What the base classes promise for every adapter: deadlines, kills, states, sweeps. In virtual time."""

from __future__ import annotations

import os
import warnings
from collections.abc import Awaitable, Callable

import anyio
import anyio.lowlevel
import pytest

from sandboxio import (
    Capability,
    CapabilityNotSupported,
    ConfigurationError,
    ConnectError,
    CreateTimeout,
    ExecResult,
    ExecutionError,
    ExecutionTimeout,
    NetworkPolicy,
    OrphanedSandboxWarning,
    OutputChunk,
    ResourceLimitExceeded,
    Resources,
    SandboxGone,
    _sandbox as sandbox_module,
)
from sandboxio.adapter import Exit
from tests.harness.clocks import backend_for

from .scripted import EVERYTHING, ScriptedBackend, ScriptedSandbox, World

pytestmark = pytest.mark.virtual_time

OUT = [OutputChunk("stdout", b"one\n"), OutputChunk("stderr", b"two\n"), OutputChunk("stdout", b"three\n")]


@pytest.fixture
def world() -> World:
    return World(output=list(OUT))


@pytest.fixture
def backend(world: World) -> ScriptedBackend:
    return ScriptedBackend(world)


# Results


async def test_a_run_returns_both_streams_apart(backend: ScriptedBackend) -> None:
    async with await backend.create() as sandbox:
        assert await sandbox.run(["x"]) == ExecResult(0, "one\nthree\n", "two\n")
        assert await sandbox.run_code("x") == ExecResult(0, "one\nthree\n", "two\n")


async def test_a_stream_gives_the_chunks_and_then_an_empty_result(backend: ScriptedBackend) -> None:
    async with await backend.create() as sandbox:
        async with sandbox.stream(["x"]) as process:
            assert process.returncode is None
            assert [chunk async for chunk in process] == OUT
            first = await process.wait()
        assert first == ExecResult(0, "", "", streamed=True)
        assert await process.wait() is first
        assert process.returncode == 0


async def test_wait_reads_and_drops_what_nobody_read(backend: ScriptedBackend, world: World) -> None:
    world.exit = Exit(3, notes=("a note",))
    async with await backend.create() as sandbox, sandbox.stream(["x"]) as process:
        assert await process.wait() == ExecResult(3, "", "", streamed=True, notes=("a note",))


async def test_output_beyond_the_cap_is_dropped_and_told(backend: ScriptedBackend, world: World) -> None:
    """Case 4."""
    world.output = [OutputChunk("stdout", b"x" * 1000)] * 50
    sandbox = await backend.create()
    sandbox._output_limit = 2500
    result = await sandbox.run(["x"])
    assert (len(result.stdout), result.truncated) == (2500, True)
    assert result.notes == ("stdout: the first 2500 of 50000 bytes are kept",)
    await sandbox.kill()


# Deadlines


async def test_a_run_that_hangs_times_out_exactly_with_its_output(
    backend: ScriptedBackend, world: World
) -> None:
    """Case 6: what was printed before the timeout is kept. Case 10: the process is gone."""
    world.hangs = True
    async with await backend.create() as sandbox:
        start = anyio.current_time()
        with pytest.raises(ExecutionTimeout, match="did not end within 2 s") as caught:
            await sandbox.run(["x"], timeout=2)
        assert anyio.current_time() - start == pytest.approx(2)
        assert caught.value.partial == ExecResult(137, "one\nthree\n", "two\n")
        assert world.processes == set()


@pytest.mark.parametrize("end", ["timeout", "limit"])
async def test_an_error_about_the_partial_output_shows_no_secret(
    end: str, backend: ScriptedBackend, world: World
) -> None:
    world.output = [OutputChunk("stderr", b"token is hunter22-secret\n")]
    world.hangs = end == "timeout"
    world.exit = Exit(137, limit="The memory cap was hit.")
    async with await backend.create(secrets={"TOKEN": "hunter22-secret"}) as sandbox:
        with pytest.raises((ExecutionTimeout, ResourceLimitExceeded)) as caught:
            await sandbox.run(["x"], timeout=2)
    partial = caught.value.partial
    assert isinstance(partial, ExecResult)
    assert partial.stderr == "token is hunter22-secret\n"  # the caller's data
    with pytest.raises(ExecutionError, match=r"token is \*\*\*") as told:
        partial.raise_for_status()
    assert "hunter22" not in str(told.value)


@pytest.mark.parametrize("anyio_backend", [backend_for("asyncio", jumping=True)], ids=["asyncio"])
@pytest.mark.one_loop(reason="trio has no cancellation from outside of its scopes")
async def test_task_cancel_during_a_teardown_leaves_nothing(
    backend: ScriptedBackend, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No scope shields from it, and ``asyncio.timeout`` and ``asyncio.wait_for`` use it."""
    import asyncio

    sandbox = await backend.create()
    destroy = sandbox._destroy

    async def slowly() -> None:
        await asyncio.sleep(2)
        await destroy()

    monkeypatch.setattr(sandbox, "_destroy", slowly)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1), sandbox:
            await sandbox.run(["x"])
    assert world.sandboxes == set()
    with pytest.raises(SandboxGone, match="it was killed"):
        await sandbox.run(["x"])


@pytest.mark.parametrize("anyio_backend", [backend_for("asyncio", jumping=True)], ids=["asyncio"])
@pytest.mark.one_loop(reason="trio has no cancellation from outside of its scopes")
async def test_task_cancel_during_the_kill_of_a_run_leaves_no_process(
    backend: ScriptedBackend, world: World
) -> None:
    import asyncio

    world.hangs, world.kill_takes = True, 1
    async with await backend.create() as sandbox:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await sandbox.run(["x"], timeout=0.5)
        assert world.processes == set()
        assert world.sandboxes


@pytest.mark.parametrize("anyio_backend", [backend_for("asyncio", jumping=True)], ids=["asyncio"])
@pytest.mark.one_loop(reason="trio has no cancellation from outside of its scopes")
@pytest.mark.parametrize("why", ["it hangs", "it is refused"])
async def test_task_cancel_during_a_teardown_that_fails_warns_and_comes_out(
    why: str, backend: ScriptedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    import asyncio

    sandbox = await backend.create()

    async def fails() -> None:
        await asyncio.sleep(2 if why == "it is refused" else 100)
        raise ConnectError("The engine refused.")

    monkeypatch.setattr(sandbox, "_destroy", fails)
    with pytest.warns(OrphanedSandboxWarning), pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await sandbox.kill()


async def test_no_timeout_means_the_sandbox_s(backend: ScriptedBackend, world: World) -> None:
    world.hangs = True
    async with await backend.create(timeout=11) as sandbox:
        start = anyio.current_time()
        with pytest.raises(ExecutionTimeout):
            await sandbox.run_code("x")
        assert anyio.current_time() - start == pytest.approx(11)


async def test_a_stream_times_out_from_iteration_and_again_from_wait(
    backend: ScriptedBackend, world: World
) -> None:
    world.hangs = True
    async with await backend.create() as sandbox, sandbox.stream(["x"], timeout=2) as process:
        with pytest.raises(ExecutionTimeout):
            async for _ in process:
                pass
        assert world.processes == set()
        with pytest.raises(ExecutionTimeout):
            await process.wait()


async def test_the_callers_own_deadline_is_the_builtin_timeout(
    backend: ScriptedBackend, world: World
) -> None:
    world.hangs = True
    async with await backend.create() as sandbox:
        with pytest.raises(TimeoutError), anyio.fail_after(1):
            await sandbox.run(["x"], timeout=5)
        assert world.processes == set()


async def test_a_far_side_that_enforces_the_deadline_first_is_a_timeout_too(
    backend: ScriptedBackend, world: World
) -> None:
    world.exit = Exit(137, timed_out=True)
    async with await backend.create() as sandbox:
        with pytest.raises(ExecutionTimeout) as caught:
            await sandbox.run(["x"])
        assert caught.value.partial == ExecResult(137, "one\nthree\n", "two\n")
        async with sandbox.stream(["x"]) as process:
            with pytest.raises(ExecutionTimeout):
                await process.wait()


async def test_a_cap_that_killed_the_run_is_named(backend: ScriptedBackend, world: World) -> None:
    """Case 15."""
    world.exit = Exit(137, limit="Out of memory: the cap is 128 MiB.")
    async with await backend.create() as sandbox:
        with pytest.raises(ResourceLimitExceeded, match="the cap is 128 MiB") as caught:
            await sandbox.run(["x"])
        assert caught.value.partial == ExecResult(137, "one\nthree\n", "two\n")


async def test_a_create_that_hangs_times_out_and_leaves_nothing(
    world: World, backend: ScriptedBackend
) -> None:
    backend._provision = lambda request: anyio.sleep_forever()  # type: ignore[method-assign, assignment, return-value]
    start = anyio.current_time()
    with pytest.raises(CreateTimeout, match="within 9 s"):
        await backend.create(timeout=9)
    assert anyio.current_time() - start == pytest.approx(9)
    assert world.sandboxes == set()


async def test_file_operations_are_bounded_by_the_sandbox_s_timeout(backend: ScriptedBackend) -> None:
    async with await backend.create(timeout=4) as sandbox:
        sandbox.files._transfer.list_folder = lambda path: anyio.sleep_forever()  # type: ignore[method-assign]
        with pytest.raises(ExecutionTimeout, match="file_list of 'x' did not end within 4 s") as caught:
            await sandbox.files.ls("x")
        assert caught.value.hint == "Raise create(timeout=...): file operations inherit it."


# Ways out of a stream


@pytest.mark.parametrize("way", ["to the end", "break", "error", "cancel", "kill"])
async def test_a_stream_s_process_is_gone_after_every_way_out(
    way: str, backend: ScriptedBackend, world: World
) -> None:
    world.hangs = way != "to the end"
    async with await backend.create() as sandbox:
        with anyio.CancelScope() as scope:
            try:
                async with sandbox.stream(["x"]) as process:
                    await anext(process)
                    assert world.processes
                    if way == "error":
                        raise LookupError
                    if way == "cancel":
                        scope.cancel()
                    if way == "kill":
                        await process.kill()
                        assert world.processes == set()
                        assert (await process.wait()).exit_code == 137
                    if way in ("to the end", "cancel"):
                        await process.wait()
            except LookupError:
                assert way == "error"
        assert scope.cancelled_caught == (way == "cancel")
        assert world.processes == set()
        assert process._execution.closed  # type: ignore[attr-defined]
        assert world.sandboxes


async def test_a_stream_is_entered_once_and_only_inside_async_with(backend: ScriptedBackend) -> None:
    async with await backend.create() as sandbox:
        process = sandbox.stream(["x"])
        assert not hasattr(process, "__await__")
        with pytest.raises(ConfigurationError, match="has not started") as caught:
            await process.wait()
        assert "in blocking code `with`" in caught.value.hint
        async with process:
            pass
        with pytest.raises(ConfigurationError, match="entered before"):
            await process.__aenter__()


@pytest.mark.parametrize("later", range(6))
async def test_a_stream_killed_by_another_task_while_it_starts_does_not_run(
    later: int, backend: ScriptedBackend, world: World
) -> None:
    world.hangs = True
    codes: list[int] = []

    async def use() -> None:
        async with process:
            codes.append((await process.wait()).exit_code)

    async with await backend.create() as sandbox:
        process, gates = sandbox.stream(["x"]), world.gates
        async with anyio.create_task_group() as group:
            group.start_soon(use)
            while world.gates == gates:
                await anyio.lowlevel.checkpoint()
            for _ in range(later):
                await anyio.lowlevel.checkpoint()
            await process.kill()
            assert world.processes == set()
        assert codes == [137]
        assert process.returncode in (None, 137)


async def test_whoever_ends_a_stream_waits_for_the_kill_that_is_under_way(
    backend: ScriptedBackend, world: World
) -> None:
    world.hangs, world.kill_takes = True, 2.0
    async with await backend.create() as sandbox, anyio.create_task_group() as group:
        async with sandbox.stream(["x"]) as process:
            group.start_soon(process.kill)
            await anyio.sleep(1)
            await process.kill()
            assert world.processes == set()
        async with sandbox.stream(["x"]) as process:
            group.start_soon(process.kill)
            await anyio.sleep(1)
            assert world.processes
        assert world.processes == set(), "the block was left before the kill was done"


# Ending


@pytest.mark.parametrize("way", ["end", "error", "cancel"])
async def test_the_context_ends_the_sandbox(way: str, backend: ScriptedBackend, world: World) -> None:
    """Case 34: teardown is not cut short by the cancellation that triggered it."""
    with anyio.CancelScope() as scope:
        try:
            async with await backend.create():
                if way == "error":
                    raise LookupError
                if way == "cancel":
                    scope.cancel()
                    await anyio.lowlevel.checkpoint()
        except LookupError:
            assert way == "error"
    assert scope.cancelled_caught == (way == "cancel")
    assert world.sandboxes == set()


async def test_kill_is_idempotent_also_three_at_once(backend: ScriptedBackend, world: World) -> None:
    """Case 23."""
    sandbox = await backend.create()
    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(sandbox.kill)
    await sandbox.kill()
    assert world.sandboxes == set()


async def test_an_ended_sandbox_says_so(backend: ScriptedBackend) -> None:
    sandbox = await backend.create()
    await sandbox.kill()
    uses: list[Callable[[], Awaitable[object]]] = [
        lambda: sandbox.run(["x"]),
        lambda: sandbox.run_code("x"),
        sandbox.files.ls,
        lambda: sandbox.files.read("x"),
        lambda: sandbox.files.write("x", b""),
    ]
    for use in uses:
        with pytest.raises(SandboxGone, match="has ended: it was killed"):
            await use()
    with pytest.raises(SandboxGone):
        sandbox.stream(["x"])
    assert "ended" in repr(sandbox)


async def test_a_kill_that_hangs_is_given_up_at_the_grace_and_warns(
    backend: ScriptedBackend, world: World
) -> None:
    world.destroy_hangs = True
    sandbox = await backend.create(metadata={"tenant_id": "acme"})
    start = anyio.current_time()
    with pytest.warns(OrphanedSandboxWarning, match=r"Sandbox s-1 on backend 'scripted'.*tenant_id=acme"):
        await sandbox.kill()
    assert anyio.current_time() - start == pytest.approx(5)
    world.destroy_hangs = False
    await sandbox.kill()
    assert world.sandboxes == set()


async def test_a_refused_kill_is_an_error_but_never_replaces_the_body_s(
    backend: ScriptedBackend, world: World
) -> None:
    world.destroy_error = ConnectError("The engine refused.")
    with pytest.raises(ConnectError, match="engine refused"):
        async with await backend.create():
            pass
    with pytest.warns(OrphanedSandboxWarning), pytest.raises(LookupError) as caught:
        async with await backend.create():
            raise LookupError
    assert "The engine refused." in caught.value.__notes__[0]


async def test_a_run_that_cannot_be_killed_takes_the_sandbox_with_it(
    backend: ScriptedBackend, world: World
) -> None:
    """Design D5: never a live process that nobody can see."""
    world.hangs = world.kill_hangs = True
    sandbox = await backend.create()
    start = anyio.current_time()
    with pytest.raises(ExecutionTimeout):
        await sandbox.run(["x"], timeout=1)
    assert anyio.current_time() - start == pytest.approx(1 + sandbox_module.KILL_BOUND)
    assert world.sandboxes == set()
    with pytest.raises(SandboxGone, match="could not be confirmed dead"):
        await sandbox.run(["x"])


async def test_when_neither_run_nor_sandbox_can_be_ended_it_warns(
    backend: ScriptedBackend, world: World
) -> None:
    world.hangs = world.kill_hangs = world.destroy_hangs = True
    sandbox = await backend.create()
    with pytest.warns(OrphanedSandboxWarning), pytest.raises(ExecutionTimeout):
        await sandbox.run(["x"], timeout=1)
    world.destroy_hangs = False
    await sandbox.kill()


async def test_a_run_whose_kill_is_refused_takes_the_sandbox_with_it(
    backend: ScriptedBackend, world: World
) -> None:
    world.hangs = True
    world.kill_error = ConnectError("No.")
    sandbox = await backend.create()
    with pytest.raises(ExecutionTimeout):
        await sandbox.run(["x"], timeout=1)
    assert world.sandboxes == set()


async def test_a_sandbox_that_vanished_is_gone_with_the_output_until_then(
    backend: ScriptedBackend, world: World
) -> None:
    async with await backend.create() as sandbox:
        count = 0

        def vanish(number: int) -> None:
            nonlocal count
            count += 1
            if count == 4:
                raise SandboxGone("The engine removed it.")

        world.on_gate = vanish
        with pytest.raises(SandboxGone) as caught:
            await sandbox.run(["x"])
        world.on_gate = lambda number: None
        assert caught.value.partial is not None
        assert caught.value.partial.stdout == "one\nthree\n"  # what had arrived by then, too
        with pytest.raises(SandboxGone, match="The engine removed it"):
            await sandbox.run(["x"])


async def test_a_teardown_grace_that_is_none_is_refused_before_there_is_a_sandbox(
    backend: ScriptedBackend, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With it neither a run nor the sandbox could be ended."""
    world.sandboxes.add("s-1")
    monkeypatch.setenv("SBX_TEARDOWN_GRACE", "5s")
    for make in (backend.create, lambda: backend.connect("s-1")):
        with pytest.raises(ConfigurationError, match="SBX_TEARDOWN_GRACE must be a positive number"):
            await make()
    assert world.gates == 0


async def test_a_fork_of_the_process_may_not_use_or_end_the_sandbox(
    backend: ScriptedBackend, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = await backend.create()
    mine = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: mine + 1)
    with pytest.raises(ConfigurationError, match="this is a fork of it"):
        await sandbox.run(["x"])
    await sandbox.kill()
    assert world.sandboxes
    monkeypatch.undo()
    await sandbox.kill()
    assert world.sandboxes == set()


# Capabilities and policy


@pytest.mark.parametrize(
    ("lacks", "use"),
    [
        (Capability.RUN_COMMAND, lambda sandbox: sandbox.run(["x"])),
        (Capability.RUN_CODE, lambda sandbox: sandbox.run_code("x")),
        (Capability.FILESYSTEM, lambda sandbox: sandbox.files.read("x")),
        (Capability.FILESYSTEM, lambda sandbox: sandbox.files.ls()),
        (Capability.UPLOAD_DOWNLOAD, lambda sandbox: sandbox.files.upload("a", "b")),
        (Capability.UPLOAD_DOWNLOAD, lambda sandbox: sandbox.files.download("a", "b")),
        (Capability.STATEFUL_CODE, lambda sandbox: sandbox.run_code("x", context_id="c")),
    ],
)
async def test_what_is_not_declared_is_refused(
    lacks: Capability,
    use: Callable[[ScriptedSandbox], Awaitable[object]],
    backend: ScriptedBackend,
    world: World,
) -> None:
    backend.capabilities = EVERYTHING & ~lacks
    async with await backend.create() as sandbox:
        gates = world.gates
        with pytest.raises(CapabilityNotSupported, match=f"does not declare {lacks.name}"):
            await use(sandbox)
        assert world.gates == gates


async def test_streaming_is_refused_before_it_is_entered(backend: ScriptedBackend) -> None:
    backend.capabilities = EVERYTHING & ~Capability.STREAMING
    async with await backend.create() as sandbox:
        with pytest.raises(CapabilityNotSupported, match="STREAMING"):
            sandbox.stream(["x"])


async def test_a_backend_without_network_policy_creates_nothing(
    backend: ScriptedBackend, world: World
) -> None:
    backend.capabilities = EVERYTHING & ~Capability.NETWORK_POLICY
    with pytest.raises(CapabilityNotSupported, match="deny-by-default"):
        await backend.create()
    assert world.gates == 0


async def test_learn_and_gpu_are_refused_before_anything_is_made(
    backend: ScriptedBackend, world: World
) -> None:
    with pytest.raises(CapabilityNotSupported, match="learn"):
        await backend.create(network=NetworkPolicy(egress="learn"))
    with pytest.raises(CapabilityNotSupported, match="GPU"):
        await backend.create(resources=Resources(gpu="T4"))
    assert world.gates == 0


# The cancel sweep


async def _life(backend: ScriptedBackend) -> None:
    async with await backend.create() as sandbox:
        await sandbox.run(["x"])
        await sandbox.run_code("x")
        async with sandbox.stream(["x"]) as process:
            await anext(process)
        async with sandbox.stream(["x"]) as process:
            await process.wait()
        await sandbox.files.write("f", b"new" * 1000)
        await sandbox.files.read("f")
        await sandbox.files.ls()
        await sandbox.files.remove("f")


async def _sweep() -> tuple[int, list[str]]:
    """Cancel a whole life at gate 1, 2, 3 ...; what was found wrong after each."""
    wrong: list[str] = []
    number = 0
    while True:
        number += 1
        world = World(output=list(OUT), cancel_at=number)
        with anyio.CancelScope() as world.scope:
            await _life(ScriptedBackend(world))
        if world.gates < number:
            return number - 1, wrong
        if not world.scope.cancelled_caught:
            wrong.append(f"gate {number}: the cancellation was swallowed")
        if world.sandboxes or world.processes:
            wrong.append(f"gate {number}: left {world.sandboxes or world.processes}")


async def test_a_life_cancelled_at_any_gate_leaves_nothing() -> None:
    gates, wrong = await _sweep()
    assert wrong == []
    assert gates >= 25


async def test_without_the_shield_the_sweep_finds_leaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sweep is only worth something if it fails when the protection is taken away."""

    async def unshielded(work: Callable[[], Awaitable[None]], **_: object) -> bool:
        await work()
        return True

    monkeypatch.setattr(sandbox_module, "bounded", unshielded)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, wrong = await _sweep()
    assert len(wrong) > 15

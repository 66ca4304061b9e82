"""What a factory may give, and how its sandbox ends, whichever framework calls it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from sandboxio import (
    AuditSinkError,
    ConfigurationError,
    CreationError,
    ExecResult,
    ExecutionTimeout,
    OrphanedSandboxWarning,
    registry,
)
from sandboxio.audit import AuditConfig, AuditEvent
from sandboxio.integrations._tool import SandboxTool
from sandboxio.sync import SyncSandbox, create_sync
from sandboxio.testing import FakeBackend


async def awaited(factory: Callable[[], object]) -> object:
    return factory()


@pytest.fixture
def blocking(fake: FakeBackend) -> Any:
    """``create_sync`` of the fake that a test looks at."""
    registry.register("watched", lambda: fake)
    yield lambda: create_sync("watched://")
    registry.unregister("watched")


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "sandboxio-sync"]


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_blocking_factory_is_refused_and_its_sandbox_ended(
    is_async: bool, fake: FakeBackend, blocking: Callable[[], SyncSandbox]
) -> None:
    tool: Any = SandboxTool((lambda: awaited(blocking)) if is_async else blocking)
    for call in (tool.run_code, tool.run_command):
        with pytest.raises(ConfigurationError, match="gave a SyncSandbox") as caught:
            await call("good")
        assert "functools.partial(sandboxio.create, ...)" in caught.value.hint
        assert "create_sync(...)" in caught.value.hint
        assert threads() == []
    assert await fake.list_managed() == []
    assert [call.op for call in fake.calls if call.op.startswith("run")] == []


def test_so_it_is_for_callers_without_a_loop(fake: FakeBackend, blocking: Callable[[], SyncSandbox]) -> None:
    tool: Any = SandboxTool(blocking)
    with pytest.raises(ConfigurationError, match="gave a SyncSandbox"):
        tool.run_command_sync("good")
    assert threads() == []


async def test_a_blocking_sandbox_that_does_not_end_is_told_and_its_thread_ends(
    fake: FakeBackend, blocking: Callable[[], SyncSandbox]
) -> None:
    fake.simulate(kill_fails=OSError())
    tool: Any = SandboxTool(blocking)
    with (
        pytest.warns(OrphanedSandboxWarning, match="refused to end"),
        pytest.raises(ConfigurationError, match="gave a SyncSandbox"),
    ):
        await tool.run_command("good")
    assert threads() == []
    fake.close()


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("given", [None, "docker://", 3, object()])
async def test_a_factory_that_gives_no_sandbox_is_told_what_to_give(given: object, is_async: bool) -> None:
    tool = SandboxTool((lambda: awaited(lambda: given)) if is_async else (lambda: given))
    with pytest.raises(ConfigurationError, match=f"gave {type(given).__name__}, not") as caught:
        await tool.run_command("good")
    assert "functools.partial(sandboxio.create, ...)" in caught.value.hint


async def test_a_factory_that_gives_a_sandbox_of_yours_does_not_end_it(fake: FakeBackend) -> None:
    """Only what was made for the call ends with it; a ready sandbox is a source itself."""
    tool = SandboxTool(lambda: fake.sandbox)
    with pytest.raises(ConfigurationError, match="gave FakeSandbox, not"):
        await tool.run_command("good")
    assert (await SandboxTool(fake.sandbox).run_command("good")).ok
    fake.close()


@pytest.mark.parametrize("ending", ["kill_fails", "kill_hangs"])
async def test_a_result_is_told_also_if_its_sandbox_does_not_end(ending: str, fake: FakeBackend) -> None:
    """Whoever reads only that the kill was refused may do again what has had its effect."""
    fake.simulate(**{ending: True if ending == "kill_hangs" else OSError()})  # type: ignore[arg-type]
    with pytest.warns(OrphanedSandboxWarning) as warned:
        result = await SandboxTool(fake.create).run_command("good")
    assert result == ExecResult(0, "forty-two\n", "")
    (orphan,) = (each for each in warned if each.category is OrphanedSandboxWarning)
    (sandbox_id,) = (call.sandbox_id for call in fake.calls if call.op == "create")
    assert f"andbox {sandbox_id}" in str(orphan.message)
    assert "sandboxio reap --backend fake" in str(orphan.message)
    fake.close()


def test_so_it_is_for_callers_without_a_loop_of_their_own(fake: FakeBackend) -> None:
    fake.simulate(kill_fails=OSError())
    with pytest.warns(OrphanedSandboxWarning):
        assert SandboxTool(fake.create).run_code_sync("bad").exit_code == 3
    fake.close()


async def test_a_command_that_failed_is_told_as_before(fake: FakeBackend) -> None:
    fake.simulate(kill_fails=OSError())
    with pytest.warns(OrphanedSandboxWarning) as warned, pytest.raises(ExecutionTimeout):
        await SandboxTool(fake.create, timeout=1).run_command("slow")
    assert len(warned) == 1
    fake.simulate(create_fails=OSError())
    with pytest.raises(CreationError):
        await SandboxTool(fake.create).run_command("good")
    fake.close()


async def test_an_end_that_may_not_go_unrecorded_still_fails_the_call() -> None:
    class NoKills:
        async def emit(self, event: AuditEvent) -> None:
            if event.event == "kill":
                raise OSError

    fake = FakeBackend(audit=AuditConfig(sinks=(NoKills(),), on_sink_failure="fail"))
    with pytest.raises(AuditSinkError, match="kill may not be recorded"):
        await SandboxTool(fake.create).run_command("true")
    assert await fake.list_managed() == []

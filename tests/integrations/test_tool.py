"""What a factory may give, whichever framework calls it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from sandboxio import ConfigurationError, OrphanedSandboxWarning, registry
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

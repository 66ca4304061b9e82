"""The one place that shields: bounded, never swallowing a cancellation."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from sandboxio import ConfigurationError, OrphanedSandboxWarning
from sandboxio._teardown import bounded, teardown_grace, warn_orphan

pytestmark = pytest.mark.virtual_time


async def test_the_work_is_done_although_the_caller_is_cancelled() -> None:
    done = []

    async def work() -> None:
        await anyio.sleep(1)
        done.append(anyio.current_time())

    with anyio.CancelScope() as scope:
        start = anyio.current_time()
        scope.cancel()
        assert await bounded(work)
        await anyio.lowlevel.checkpoint()
        pytest.fail("the cancellation was swallowed")
    assert done == [pytest.approx(start + 1)]


async def test_the_work_is_given_up_at_exactly_the_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SBX_TEARDOWN_GRACE", "7.5")
    start = anyio.current_time()
    assert not await bounded(anyio.sleep_forever)
    assert anyio.current_time() - start == pytest.approx(7.5)
    assert not await bounded(anyio.sleep_forever, seconds=2)
    assert anyio.current_time() - start == pytest.approx(9.5)


async def test_a_second_cancellation_changes_nothing() -> None:
    async with anyio.create_task_group() as group:
        results: list[bool] = []

        async def victim() -> None:
            async def work() -> None:
                await anyio.sleep(3)

            results.append(await bounded(work))

        group.start_soon(victim)
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
        group.cancel_scope.cancel()
    assert results == [True]


async def test_errors_of_the_work_reach_the_caller() -> None:
    async def work() -> None:
        raise LookupError("x")

    with pytest.raises(LookupError):
        await bounded(work)


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "soon"])
def test_a_grace_that_is_no_positive_number_is_named(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SBX_TEARDOWN_GRACE", text)
    with pytest.raises(ConfigurationError, match="SBX_TEARDOWN_GRACE must be a positive number"):
        teardown_grace()


def test_the_grace_is_five_seconds_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SBX_TEARDOWN_GRACE", raising=False)
    assert teardown_grace() == 5.0
    monkeypatch.setenv("SBX_TEARDOWN_GRACE", "")
    assert teardown_grace() == 5.0


def test_an_orphan_is_named_with_backend_and_labels() -> None:
    with pytest.warns(OrphanedSandboxWarning, match=r"Sandbox x on backend 'b' .* \(labels: a=1, b=2\)"):
        warn_orphan("Sandbox x", backend="b", labels={"a": "1", "b": "2"}, why="it hung")

"""The one place that shields: bounded, never swallowing a cancellation."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from sandboxio import ConfigurationError, OrphanedSandboxWarning
from sandboxio._redact import Redactor, current
from sandboxio._teardown import bounded, teardown_grace, warn_orphan
from tests.harness.clocks import backend_for

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


@pytest.mark.parametrize("anyio_backend", [backend_for("asyncio", jumping=True)], ids=["asyncio"])
@pytest.mark.one_loop(reason="trio has no cancellation from outside of its scopes")
@pytest.mark.parametrize("cancels", [1, 3])
@pytest.mark.parametrize("when", ["before", "meanwhile"])
async def test_work_that_task_cancel_interrupts_is_done_again(cancels: int, when: str) -> None:
    import asyncio

    done: list[str] = []
    put_off: list[BaseException] = []

    async def work() -> None:
        await asyncio.sleep(2)
        done.append("work")

    async def teardown() -> bool:
        if when == "before":
            task.cancel()
        return await bounded(work, put_off=put_off)

    task = asyncio.ensure_future(teardown())
    for _ in range(cancels if when == "meanwhile" else cancels - 1):
        await asyncio.sleep(0.5)
        task.cancel()
    assert await task
    assert done == ["work"]
    assert [type(each) for each in put_off] == [asyncio.CancelledError] * cancels


@pytest.mark.parametrize("anyio_backend", [backend_for("asyncio", jumping=True)], ids=["asyncio"])
@pytest.mark.one_loop(reason="trio has no cancellation from outside of its scopes")
@pytest.mark.parametrize("cancels", [0, 2])
async def test_the_bound_holds_whoever_interrupts(cancels: int) -> None:
    import asyncio

    put_off: list[BaseException] = []
    start = anyio.current_time()
    task = asyncio.ensure_future(bounded(anyio.sleep_forever, seconds=3, put_off=put_off))
    for _ in range(cancels):
        await asyncio.sleep(1)
        task.cancel()
    assert not await task
    assert anyio.current_time() - start == pytest.approx(3)
    assert bool(put_off) == bool(cancels)


@pytest.mark.parametrize("anyio_backend", [backend_for("asyncio", jumping=True)], ids=["asyncio"])
@pytest.mark.one_loop(reason="trio has no cancellation from outside of its scopes")
async def test_work_that_always_ends_cancelled_is_not_tried_for_ever() -> None:
    import asyncio

    tries: list[BaseException] = []

    async def work() -> None:
        raise asyncio.CancelledError

    assert not await bounded(work, put_off=tries)
    assert len(tries) == 2


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


def test_a_warning_of_an_orphan_tells_no_secret_of_the_operation_it_came_from() -> None:
    outside = current.set(Redactor(["hunter22-value"]))
    try:
        with pytest.warns(OrphanedSandboxWarning) as caught:
            warn_orphan("x", backend="b", labels={"job": "hunter22-value"}, why="key hunter22-value refused")
    finally:
        current.reset(outside)
    assert "hunter22-value" not in str(caught[0].message)
    assert "key *** refused (labels: job=***)" in str(caught[0].message)

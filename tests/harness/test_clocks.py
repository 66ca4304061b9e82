from __future__ import annotations

import time

import anyio
import pytest


@pytest.mark.virtual_time
async def test_an_hour_passes_at_once() -> None:
    real = time.monotonic()
    began = anyio.current_time()
    await anyio.sleep(3600)
    assert anyio.current_time() - began == pytest.approx(3600)
    assert time.monotonic() - real < 5


@pytest.mark.virtual_time
@pytest.mark.parametrize("run", [1, 2])
async def test_each_test_gets_a_clock_of_its_own(run: int) -> None:
    assert anyio.current_time() < 1
    await anyio.sleep(1000 * run)


@pytest.mark.virtual_time
async def test_deadlines_fire_in_order_and_at_their_instant() -> None:
    fired: list[tuple[str, float]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await anyio.sleep(seconds)
        fired.append((name, round(anyio.current_time() - began, 6)))

    began = anyio.current_time()
    async with anyio.create_task_group() as tasks:
        for name, seconds in (("late", 30.0), ("early", 0.5), ("middle", 29.999)):
            tasks.start_soon(sleeper, name, seconds)
    assert fired == [("early", 0.5), ("middle", 29.999), ("late", 30.0)]


@pytest.mark.virtual_time
async def test_a_shielded_scope_ends_at_its_own_deadline() -> None:
    began = anyio.current_time()
    with anyio.move_on_after(1) as outer, anyio.move_on_after(10, shield=True):
        await anyio.sleep_forever()
    assert anyio.current_time() - began == pytest.approx(10)
    assert not outer.cancelled_caught  # left before its next checkpoint


@pytest.mark.virtual_time
async def test_runnable_tasks_keep_the_clock_still() -> None:
    began = anyio.current_time()
    with anyio.move_on_after(1):
        for _ in range(1000):
            await anyio.lowlevel.checkpoint()
    assert anyio.current_time() == began


async def test_without_the_marker_time_is_real() -> None:
    real = time.monotonic()
    await anyio.sleep(0.05)
    assert time.monotonic() - real >= 0.05

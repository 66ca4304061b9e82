"""Cancel an operation at its n-th suspension, for every n: no await point is left out by bad luck."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Generator
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, cast

import anyio

T = TypeVar("T")

How = Literal["scope", "task", "task again and again"]
"""What cancels: a scope of anyio's, or ``asyncio.Task.cancel`` (on trio there are only scopes), and that
once, or also while the operation cleans up for the first time and for the second."""
AGAIN = (0, 1, 3)
"""Suspensions after the point at which the last one cancels."""
MAX_POINTS = 500
"""More suspensions than any operation here has: a sweep that gets there does not end by itself."""


@dataclass
class Outcome(Generic[T]):
    """How one cancelled operation went."""

    point: int
    suspensions: int
    cancelled: bool
    value: T | None = None

    @property
    def reached(self) -> bool:
        """False if the operation ended before the point, so that the sweep is over."""
        return self.suspensions >= self.point


class _Steps(Generic[T]):
    """Awaits a coroutine, and calls ``at_point`` when it suspends for the n-th time, n one of ``points``."""

    def __init__(self, inner: Awaitable[T], points: Collection[int], at_point: Callable[[], None]) -> None:
        self._inner = inner
        self._points = points
        self._at_point = at_point
        self.count = 0

    def __await__(self) -> Generator[Any, Any, T]:
        steps = cast("Generator[Any, Any, T]", self._inner.__await__())
        value: Any = None
        thrown: BaseException | None = None
        while True:
            try:
                waiting_for = steps.throw(thrown) if thrown is not None else steps.send(value)
            except StopIteration as stop:
                return cast("T", stop.value)
            self.count += 1
            if self.count in self._points:
                self._at_point()
            value = thrown = None
            try:
                value = yield waiting_for
            except BaseException as error:  # noqa: BLE001  # thrown on into the coroutine
                thrown = error


async def cancelled_at(point: int, operation: Callable[[], Awaitable[T]], how: How = "scope") -> Outcome[T]:
    """Run ``operation`` and cancel it at its ``point``-th suspension (0: before it starts)."""
    if how != "scope" and _on_asyncio():
        return await _cancelled_natively(point, operation, (0,) if how == "task" else AGAIN)
    outcome: Outcome[T] = Outcome(point, 0, cancelled=True)
    with anyio.CancelScope() as scope:
        if point == 0:
            scope.cancel()
        steps = _Steps(operation(), (point,), scope.cancel)
        try:
            outcome.value = await steps
            outcome.cancelled = False
        finally:
            outcome.suspensions = steps.count
    return outcome


async def _cancelled_natively(
    point: int, operation: Callable[[], Awaitable[T]], further: Collection[int]
) -> Outcome[T]:
    outcome: Outcome[T] = Outcome(point, 0, cancelled=True)

    async def run() -> None:
        task = asyncio.current_task()
        assert task is not None
        if point == 0:
            task.cancel()
        points = [point + each for each in further]
        steps = _Steps(operation(), points, lambda: [task.cancel(), None][1])
        try:
            outcome.value = await steps
            outcome.cancelled = False
        finally:
            outcome.suspensions = steps.count

    (result,) = await asyncio.gather(asyncio.create_task(run()), return_exceptions=True)
    if result is not None and not isinstance(result, asyncio.CancelledError):
        raise result
    return outcome


def _on_asyncio() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def sweep(
    operation: Callable[[], Awaitable[T]],
    check: Callable[[Outcome[T]], Awaitable[None]],
    how: How = "scope",
) -> int:
    """Cancel at every suspension in turn and ``check`` each; the number of points that were cancelled."""
    hit = 0
    for point in range(MAX_POINTS):
        outcome = await cancelled_at(point, operation, how)
        await check(outcome)
        hit += outcome.cancelled
        if not outcome.reached:
            return hit
    raise AssertionError(f"still suspending at point {MAX_POINTS}")

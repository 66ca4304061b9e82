"""LoggingSink, QueueSink, and what a configuration may hold."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
import warnings
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from sandboxio import AuditSinkWarning, ConfigurationError
from sandboxio.audit import AuditConfig, AuditEvent, LoggingSink, NoopSink, QueueSink
from sandboxio.testing import FakeBackend, RecordingSink

from .events import event

# Configuration


@pytest.mark.parametrize("sinks", [NoopSink(), [NoopSink()], (object(),), ("stdout",), None])
def test_sinks_are_a_tuple_of_sinks(sinks: Any) -> None:
    with pytest.raises(ConfigurationError, match="tuple of sinks") as caught:
        AuditConfig(sinks=sinks)
    assert "comma" in caught.value.hint


def test_a_sink_in_place_of_a_config_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="must be an AuditConfig, got NoopSink") as caught:
        FakeBackend(audit=NoopSink())  # type: ignore[arg-type]
    assert "AuditConfig(sinks=(sink,))" in caught.value.hint


def test_the_policy_is_one_of_two() -> None:
    with pytest.raises(ConfigurationError, match='"warn" or "fail"'):
        AuditConfig(on_sink_failure="ignore")  # type: ignore[arg-type]


def test_an_event_renders_what_is_there() -> None:
    assert "code" not in event().as_dict()
    assert event(code="x", error="ExecutionTimeout").as_dict()["code"] == "x"
    assert json.loads(event(argv=("a", "b")).as_line())["argv"] == ["a", "b"]


# LoggingSink


async def test_one_line_on_the_logger_and_the_fields_beside_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "myapp.audit")
    sink = LoggingSink(logging.getLogger("myapp.audit"), level=logging.WARNING)
    await sink.emit(event(1, argv=("100%s", "%d")))
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("myapp.audit", logging.WARNING)
    assert json.loads(record.getMessage()) == json.loads(json.dumps(record.audit))  # type: ignore[attr-defined]
    assert record.audit["argv"] == ("100%s", "%d")  # type: ignore[attr-defined]


async def test_a_level_that_is_off_costs_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AuditEvent, "as_line", lambda self: pytest.fail("rendered"))
    caplog.set_level(logging.ERROR, "quiet")
    await LoggingSink(logging.getLogger("quiet")).emit(event())
    assert not caplog.records


def test_where_nothing_is_configured_nothing_is_printed() -> None:
    source = """
import anyio, logging
from sandboxio.audit import LoggingSink
from tests.audit.events import event
anyio.run(LoggingSink(level=logging.CRITICAL).emit, event())
assert not logging.getLogger().handlers
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# QueueSink


class Slow:
    """A target that answers when it is told to."""

    def __init__(self) -> None:
        self.events: list[AuditEvent] = []
        self.go = anyio.Event()
        self.asked = anyio.Event()

    async def emit(self, event: AuditEvent) -> None:
        self.asked.set()
        await self.go.wait()
        self.events.append(event)


async def until(condition: Any) -> None:
    with anyio.fail_after(10):
        while not condition():
            await anyio.sleep(0.002)


async def test_events_arrive_in_order_while_it_is_drained() -> None:
    target = RecordingSink()
    sink = QueueSink(target)
    await sink.emit(event(0))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sink.drain)
        await until(lambda: len(target.events) == 1)
        for number in range(1, 50):
            await sink.emit(event(number))
            if number % 7 == 0:
                await anyio.lowlevel.checkpoint()
        await until(lambda: len(target.events) == 50)
        tasks.cancel_scope.cancel()
    assert target.events == [event(number) for number in range(50)]


async def test_emit_does_not_wait_for_the_target() -> None:
    target = Slow()
    sink = QueueSink(target)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sink.drain)
        for number in range(10):
            await sink.emit(event(number))
        await target.asked.wait()
        assert not target.events
        target.go.set()
        await until(lambda: len(target.events) == 10)
        tasks.cancel_scope.cancel()


async def test_overflow_drops_the_oldest_and_warns() -> None:
    target = RecordingSink()
    sink = QueueSink(target, maxlen=2)
    await sink.emit(event(0))
    await sink.emit(event(1))
    with pytest.warns(AuditSinkWarning, match="holds 2 events and dropped the oldest"):
        await sink.emit(event(2))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sink.drain)
        await until(lambda: len(target.events) == 2)
        tasks.cancel_scope.cancel()
    assert target.events == [event(1), event(2)]


@pytest.mark.parametrize("maxlen", [0, -1, True, 1.5, "9"])
def test_a_queue_has_a_length(maxlen: Any) -> None:
    with pytest.raises(ConfigurationError, match="maxlen"):
        QueueSink(NoopSink(), maxlen=maxlen)


async def test_what_waits_when_draining_is_cancelled_is_handed_over_first() -> None:
    target = Slow()
    sink = QueueSink(target)
    for number in range(5):
        await sink.emit(event(number))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sink.drain)
        await target.asked.wait()
        tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await anyio.sleep(0.01)
        target.go.set()
    assert target.events == [event(number) for number in range(5)]


@pytest.mark.virtual_time
async def test_a_target_that_never_answers_does_not_hold_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SBX_AUDIT_TIMEOUT", "3")
    target = Slow()
    sink = QueueSink(target)
    for number in range(4):
        await sink.emit(event(number))
    started = anyio.current_time()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sink.drain)
            await target.asked.wait()
            tasks.cancel_scope.cancel()
    assert anyio.current_time() - started <= 6.1
    texts = [str(each.message) for each in warned]
    assert "QueueSink to Slow lost the run_code event: its target did not answer in time." in texts
    assert any("was ended with" in text for text in texts)


class Failing(RecordingSink):
    async def emit(self, event: AuditEvent) -> None:
        if event.session_id == "s-1":
            raise OSError("unreachable")
        await super().emit(event)


async def test_a_target_that_fails_once_loses_that_event_only_and_says_so() -> None:
    target = Failing()
    sink = QueueSink(target)
    for number in range(3):
        await sink.emit(event(number))
    with pytest.warns(AuditSinkWarning, match="lost the run_code event: its target raised OSError"):  # noqa: PT031 - one scene
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sink.drain)
            await until(lambda: len(target.events) == 2)
            tasks.cancel_scope.cancel()
    assert target.events == [event(0), event(2)]


async def test_it_is_drained_once() -> None:
    sink = QueueSink(RecordingSink())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sink.drain)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(ConfigurationError, match="being drained already"):
            await sink.drain()
        tasks.cancel_scope.cancel()
    with anyio.move_on_after(0.01):
        await sink.drain()  # the first one has ended


@pytest.mark.parametrize("other", ["asyncio", "trio"])
async def test_events_come_from_other_loops_and_threads(other: str) -> None:
    target = RecordingSink()
    sink = QueueSink(target)

    async def emit(first: int) -> None:
        for number in range(first, first + 20):
            await sink.emit(event(number))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sink.drain)
        await anyio.wait_all_tasks_blocked()
        threads = [
            threading.Thread(target=anyio.run, args=(emit, first), kwargs={"backend": other})
            for first in (0, 100, 200)
        ]
        for thread in threads:
            thread.start()
        await until(lambda: len(target.events) == 60)
        for thread in threads:
            thread.join()
        tasks.cancel_scope.cancel()
    for first in (0, 100, 200):
        mine = [each for each in target.events if first <= each.ts.microsecond < first + 20]
        assert mine == [event(number) for number in range(first, first + 20)]


def test_a_loop_that_ended_while_draining_is_no_obstacle() -> None:
    sink = QueueSink(RecordingSink())

    async def drain_for_a_moment() -> None:
        with anyio.move_on_after(0.01):
            await sink.drain()

    for backend in ("asyncio", "trio", "asyncio"):
        anyio.run(drain_for_a_moment, backend=backend)
        anyio.run(sink.emit, event(), backend=backend)
    assert len(sink._events) == 1


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.one_loop(reason="trio has no cancellation from outside of its scopes")
async def test_a_hand_over_that_task_cancel_interrupts_is_repeated() -> None:
    import asyncio

    target = Slow()
    sink = QueueSink(target)
    await sink.emit(event(0))
    task = asyncio.ensure_future(sink.drain())
    await target.asked.wait()
    target.go.set()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert target.events == [event(0)]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.one_loop(reason="trio has no cancellation from outside of its scopes")
async def test_a_second_task_cancel_while_the_rest_is_handed_over_loses_nothing() -> None:
    """As when a program cancels its task, does not wait for it, and ``asyncio.run`` cancels what is left."""
    import asyncio

    target = Slow()
    sink = QueueSink(target)
    for number in range(3):
        await sink.emit(event(number))
    task = asyncio.ensure_future(sink.drain())
    await target.asked.wait()
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0.01)
    target.go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert target.events == [event(number) for number in range(3)]

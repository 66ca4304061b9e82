"""The thread behind a blocking sandbox, with interrupts put exactly where they hurt."""

from __future__ import annotations

import atexit
import errno
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

import anyio
import anyio.lowlevel
import pytest

from sandboxio import _portal
from sandboxio._portal import Portal
from sandboxio.errors import ConnectError, CreationError, OrphanedSandboxWarning, SandboxGone


@pytest.fixture
def portal() -> Iterator[Portal]:
    portal = Portal()
    yield portal
    portal.close()


class Interrupts:
    """Raises KeyboardInterrupt at chosen passes of one method, before or after it does its work."""

    def __init__(self, method: Callable[..., None], *, at: set[int], after: bool = False) -> None:
        self.method, self.at, self.after, self.passes = method, at, after, 0

    def __call__(self, *arguments: object) -> None:
        self.passes += 1
        hit = self.passes in self.at
        if hit and not self.after:
            raise KeyboardInterrupt
        self.method(*arguments)
        if hit:
            raise KeyboardInterrupt


def patch(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, at: set[int], *, after: bool = False
) -> Interrupts:
    interrupts = Interrupts(getattr(owner, name), at=at, after=after)
    monkeypatch.setattr(owner, name, lambda *arguments: interrupts(*arguments))  # noqa: PLW0108 - binds to its owner
    return interrupts


def test_an_interrupted_call_is_cancelled_and_waited_for(
    portal: Portal, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[str] = []

    async def work() -> None:
        log.append("begun")
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.05)
            log.append("cleaned up")

    patch(monkeypatch, _portal._Call, "wait", {1})
    with pytest.raises(KeyboardInterrupt):
        portal.call(work)
    assert log == ["begun", "cleaned up"] or log == []  # noqa: PLR1714 - it may not have begun at all


@pytest.mark.parametrize("waiting", ["for a call", "for the end", "at exit"])
def test_an_interrupt_that_another_thread_received_ends_the_wait_too(portal: Portal, waiting: str) -> None:
    """The kernel lets any thread take what was sent to the process; Python handles it in the main one."""
    main = threading.main_thread().ident
    assert main is not None

    async def take_it() -> None:
        with anyio.fail_after(10):
            while not any(frame.f_code is _portal._Gate.wait.__code__ for frame in frames(main)):
                await anyio.sleep(0.01)
        await anyio.sleep(0.05)  # from that line into the lock
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        with anyio.move_on_after(10):
            while not raised.is_set():  # noqa: ASYNC110 - the other thread's event
                await anyio.sleep(0.01)

    raised = threading.Event()
    began = time.monotonic()
    if waiting != "for a call":
        portal.at_end(take_it)
    wait: dict[str, Callable[[], None]] = {
        "for a call": lambda: portal.call(take_it),
        "for the end": portal.close,
        "at exit": _portal._end_loops,
    }
    with pytest.raises(KeyboardInterrupt):
        wait[waiting]()
    raised.set()
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("again", ["close", "exit"])
def test_after_an_interrupted_close_the_teardown_is_still_waited_for(portal: Portal, again: str) -> None:
    ended: list[str] = []

    async def teardown() -> None:
        await anyio.sleep(0.1)  # close() waits by then
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        await anyio.sleep(0.5)
        ended.append("teardown")

    portal.at_end(teardown)
    with pytest.raises(KeyboardInterrupt):
        portal.close()
    assert ended == []
    portal.close() if again == "close" else _portal._end_loops()
    assert ended == ["teardown"]


def test_a_first_sandbox_during_shutdown_has_no_error_of_the_interpreter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in a function that a program registered with ``atexit``."""

    def too_late(function: Callable[[], None]) -> None:
        raise RuntimeError("can't register atexit after shutdown")

    monkeypatch.setattr(_portal, "_hooked", [])
    monkeypatch.setattr(atexit, "register", lambda function: None)
    monkeypatch.setattr(threading, "_register_atexit", too_late)
    Portal().close()


def frames(thread: int) -> Iterator[FrameType]:
    frame = sys._current_frames().get(thread)
    while frame is not None:
        yield frame
        frame = frame.f_back


def test_a_second_interrupt_does_not_wait(portal: Portal, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    async def stuck() -> None:
        with anyio.CancelScope(shield=True):
            while not released.is_set():  # noqa: ASYNC110 - the other thread's event
                await anyio.sleep(0.01)

    patch(monkeypatch, _portal._Call, "wait", {1, 2})
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        portal.call(stuck)
    assert time.monotonic() - began < 1
    released.set()


@pytest.mark.parametrize("after", [False, True])
def test_an_interrupt_while_handing_over(
    portal: Portal, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """Before the loop knows of the call, or when the caller does not know yet that it does."""
    ended: list[bool] = []

    async def work() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append(True)

    with monkeypatch.context() as during:
        patch(during, _portal._Loop, "_hand_over", {1}, after=after)
        with pytest.raises(KeyboardInterrupt):
            portal.call(work)
    if not after:
        assert ended == []

    async def fine() -> str:
        await anyio.lowlevel.checkpoint()
        return "fine"

    assert portal.call(fine) == "fine"


def test_an_interrupt_while_the_thread_starts_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(_portal._Gate):
        def wait(self, bound: float | None = None) -> None:
            raise KeyboardInterrupt

    real = _portal._Loop.__init__

    def init(self: _portal._Loop) -> None:
        real(self)
        self.ready = Interrupted()

    monkeypatch.setattr(_portal._Loop, "__init__", init)
    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        Portal()
    assert threading.active_count() == before


def test_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(CreationError, match="can't start new thread") as raised:
        Portal()
    assert "ulimit -u" in raised.value.hint
    assert isinstance(raised.value.__cause__, RuntimeError)


def test_ctrl_c_inside_the_start_of_a_thread_stays_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPython's ``Condition`` makes a RuntimeError of it, between two of its lines."""

    def start(self: threading.Thread) -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("release unlocked lock")

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(KeyboardInterrupt):
        Portal()


def test_no_loop_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(anyio, "run", run)
    before = threading.active_count()
    with pytest.raises(CreationError, match="Too many open files") as raised:
        Portal()
    assert isinstance(raised.value.__cause__, OSError)
    assert threading.active_count() == before


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit, LookupError])
def test_whatever_the_work_raises_is_raised_here_and_the_loop_lives_on(
    portal: Portal, kind: type[BaseException]
) -> None:
    async def fail() -> None:
        await anyio.lowlevel.checkpoint()
        raise kind

    for _ in range(2):
        with pytest.raises(kind):
            portal.call(fail)


def test_after_the_end_a_call_says_so(portal: Portal) -> None:
    portal.close()
    portal.close()
    with pytest.raises(SandboxGone):
        portal.call(anyio.lowlevel.checkpoint)


def test_a_loop_that_ended_under_the_call_is_no_untyped_error(portal: Portal) -> None:
    portal.close()
    portal._loop._closing = False  # as the caller saw it an instant before
    with pytest.raises(SandboxGone) as raised:
        portal.call(anyio.lowlevel.checkpoint)
    assert isinstance(raised.value.__cause__, RuntimeError)


def test_released_it_does_its_last_work_by_itself(portal: Portal) -> None:
    done = threading.Event()

    async def last() -> None:
        await anyio.lowlevel.checkpoint()
        done.set()

    portal.at_end(last)
    portal.release()
    assert done.wait(5)


def test_a_last_work_that_fails_is_a_warning(portal: Portal) -> None:
    async def last() -> None:
        await anyio.lowlevel.checkpoint()
        raise ConnectError("The engine refuses.")

    portal.at_end(last)
    with pytest.warns(OrphanedSandboxWarning, match="The engine refuses"):
        portal.close()


def test_a_call_that_the_end_cuts_off_says_so(portal: Portal) -> None:
    """A backend that ignores the end of its sandbox must not keep the caller waiting."""
    begun = threading.Event()
    outcome: list[BaseException] = []

    async def deaf() -> None:
        begun.set()
        await anyio.sleep_forever()

    def call() -> None:
        try:
            portal.call(deaf)
        except SandboxGone as error:
            outcome.append(error)

    caller = threading.Thread(target=call)
    caller.start()
    assert begun.wait(5)
    portal.close()
    caller.join(5)
    assert not caller.is_alive()
    assert len(outcome) == 1


def test_a_fork_is_told(portal: Portal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portal._loop, "pid", -1)
    assert portal.is_foreign
    with pytest.raises(Exception, match="this is a fork of it"):
        portal.call(anyio.lowlevel.checkpoint)
    portal.close()
    monkeypatch.undo()
    portal.call(anyio.lowlevel.checkpoint)


def test_a_call_that_comes_too_late_for_the_loop_does_not_wait_for_ever(
    portal: Portal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the caller saw when it looked: the thread ends what it finds, the caller what comes later."""
    late: list[object] = []

    def swallow(self: object, *arguments: object) -> None:
        late.append(arguments)
        portal._loop.release()

    monkeypatch.setattr(_portal._Loop, "_hand_over", swallow)  # as if the loop never got to it
    with pytest.raises(SandboxGone):
        portal.call(anyio.lowlevel.checkpoint)
    assert late
    assert not portal._loop._calls


def test_a_call_that_arrives_while_the_loop_ends_says_so(portal: Portal) -> None:
    """It was handed over in time, but its turn comes after everything was cancelled."""
    turned: list[bool] = []

    async def last() -> None:
        await anyio.lowlevel.checkpoint()
        call = _portal._Call(anyio.lowlevel.checkpoint)
        portal._loop._closing = True
        portal._loop._start(call)
        turned.append(call._done.is_open)

    portal.at_end(last)
    portal.close()
    assert turned == [True]


def test_an_interrupt_while_releasing_leaves_the_rest_to_the_last_reference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    portal = Portal()
    with monkeypatch.context() as during:
        patch(during, _portal._Loop, "release", {1})
        with pytest.raises(KeyboardInterrupt):
            portal.close()
    thread = portal._loop.thread
    assert thread.is_alive()
    del portal
    thread.join(5)
    assert not thread.is_alive()

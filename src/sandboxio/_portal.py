"""One thread with one event loop for the blocking facade: calls go in, results and errors come out.

What anyio's ``BlockingPortal`` leaves open is settled here (it is not used, since its calls wait for
Python's own locks, which an interrupt can leave in disorder):

1. Ctrl-C in the waiting thread cancels the call in the loop and waits until it has cleaned up (the
   remote process is dead then); a second Ctrl-C stops waiting.
2. A call that meets the end of the loop gets ``SandboxGone``; it never waits for ever.
3. Whatever was not closed ends by itself: when the handle is dropped (with a ``ResourceWarning``),
   or when the interpreter shuts down.
4. After a fork the child refuses calls and leaves the parent's sandbox alone.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import importlib
import os
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import anyio
from anyio.abc import TaskGroup

from ._teardown import bounded, teardown_grace
from ._wake import Wake
from .errors import (
    ConfigurationError,
    CreationError,
    OrphanedSandboxWarning,
    SandboxError,
    SandboxGone,
)

T = TypeVar("T")
_EXIT_BOUND = 30.0
"""Seconds that interpreter shutdown waits for one thread: several teardown graces."""
_LOOK_UP = 0.1
"""Seconds after which a waiting main thread handles a signal that another thread received."""
_loops: set[_Loop] = set()
_hooked: list[bool] = []


class _Gate:
    """Opened once, by one thread, for one other that waits.

    Not a ``threading.Event``: that is Python code around a lock, and an interrupt between two of its lines
    can leave the lock taken for ever, or released twice (Lib/threading.py, ``Condition``). Nor is it
    ``Thread.join``: interrupted, that makes Python 3.11 and 3.12 take the thread for ended
    (``_wait_for_tstate_lock``), and nobody waits for its teardown any more. Here a wait is calls of C, each
    of which an interrupt ends without a trace.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self.is_open = False

    def open(self) -> None:
        """Always called by the same thread; more than once does nothing."""
        if not self.is_open:
            self.is_open = True
            self._lock.release()

    def wait(self, bound: float | None = None) -> None:
        """Until it is open, or ``bound`` seconds are over."""
        until = None if bound is None else time.monotonic() + bound
        while not self.is_open and not self._lock.acquire(timeout=_patience() if until is None else _LOOK_UP):
            if until is not None and time.monotonic() >= until:
                return


def _patience() -> float:
    """Seconds that one call of C may wait in this thread; -1 for no bound.

    Any thread can receive a signal that was sent to the process, but Python handles it in the main thread,
    and nothing wakes that one from the wait for a lock (docs.python.org, signal, "Execution of Python
    signal handlers"). So the main thread looks up now and then, or a Ctrl-C would be lost.
    """
    return _LOOK_UP if threading.current_thread() is threading.main_thread() else -1


class _Call(Generic[T]):
    """One call on its way through the loop; made in the caller's thread.

    ``told`` is for a caller that does not wait in its thread: it is called when the call is done.
    """

    def __init__(self, work: Callable[[], Awaitable[T]], told: Callable[[], None] = lambda: None) -> None:
        self._work = work
        self._told = told
        self._done = _Gate()
        self._scope: anyio.CancelScope | None = None
        self._abandoned = False
        self._result: list[T] = []
        self._error: BaseException | None = None

    async def run(self) -> None:
        """In the loop: do the work and keep what came of it."""
        try:
            with anyio.CancelScope() as self._scope:
                if not self._abandoned:
                    self._result.append(await self._work())
        except anyio.get_cancelled_exc_class():
            raise  # the loop is ending
        except BaseException as error:  # noqa: BLE001 - the caller's thread raises it
            self._error = error
        finally:
            self.end()

    def cancel(self) -> None:
        """In the loop: end the work; it is done when it has cleaned up."""
        self._abandoned = True
        if self._scope is None:
            self.end()  # it has not begun and now never will
        else:
            self._scope.cancel()

    def end(self) -> None:
        """In the loop's thread: it is done, or there is no loop any more."""
        self._done.open()
        self._told()

    def wait(self) -> None:
        self._done.wait()

    def outcome(self) -> T:
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback refers to this frame
        if not self._result:
            raise _gone()
        return self._result.pop()


class _Loop:
    """What runs in the thread. Refers to no handle, so that a dropped handle can be noticed."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.thread = threading.Thread(target=self._run, name="sandboxio-sync", daemon=True)
        self.ready = _Gate()
        self.ended = _Gate()
        self.failure: BaseException | None = None
        self.at_end: Callable[[], Awaitable[None]] | None = None
        self._released = False
        self._closing = False
        self._served = False
        self._calls: set[_Call[Any]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: TaskGroup | None = None
        self._wake: Callable[[], object] | None = None

    def serve(self, call: _Call[Any]) -> None:
        """Have ``call`` run in the loop and wait for it. Raises ``SandboxGone`` if the loop has ended.

        Whoever comes first, the caller who adds its call or the thread that ends them all: it is ended, or
        sees here that nobody will.
        """
        self._calls.add(call)
        try:
            self._hand_over(self._start, call)
            call.wait()
        finally:
            self._calls.discard(call)

    def abandon(self, call: _Call[Any]) -> None:
        """Cancel ``call`` and wait until it has cleaned up."""
        self._calls.add(call)
        try:
            self._hand_over(call.cancel)
            call.wait()
        finally:
            self._calls.discard(call)

    async def serve_other_loop(self, call: _Call[Any], done: anyio.Event) -> None:
        """:meth:`serve` for a task of another loop; cancelled, it leaves when ``call`` has cleaned up."""
        self._calls.add(call)
        try:
            self._hand_over(self._start, call)
            await done.wait()
        except anyio.get_cancelled_exc_class():
            with contextlib.suppress(SandboxGone):
                self._hand_over(call.cancel)
                # what Task.cancel throws in meanwhile adds nothing to the one that is raised
                await bounded(done.wait, seconds=teardown_grace() * 2, put_off=[])
            raise
        finally:
            self._calls.discard(call)

    def _hand_over(self, function: Callable[..., None], *arguments: Any) -> None:
        if self._closing or self._loop is None:
            raise _gone()
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError as error:  # asyncio's word for a loop that has ended
            raise _gone() from error

    def _start(self, call: _Call[Any]) -> None:
        """In the loop, in a copy of the caller's context: a trace goes on inside."""
        if self._closing or self._tasks is None:
            call.end()
            return
        if (sniffio := sys.modules.get("sniffio")) is not None:  # the caller may be in a trio task
            sniffio.current_async_library_cvar.set("asyncio")
        self._tasks.start_soon(call.run)

    def release(self) -> None:
        """Let the loop end once ``at_end`` is done. From any thread, at any time, without waiting."""
        self._released = True
        wake = self._wake
        if wake is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended already
                wake()

    def _run(self) -> None:
        _loops.add(self)
        try:
            anyio.run(self._main)
        except Exception as error:
            if not self.ready.is_open:
                self.failure = error  # the starting thread reports it
            elif not (self._served and isinstance(error, RuntimeError)):
                raise
            # Python 3.12 cannot start the thread that ends an executor while the interpreter shuts down
        finally:
            self._closing = True
            for call in tuple(self._calls):
                call.end()
            _loops.discard(self)
            self.ready.open()
            self.ended.open()

    async def _main(self) -> None:
        stop = asyncio.Event()
        self._loop = loop = asyncio.get_running_loop()
        self._wake = lambda: loop.call_soon_threadsafe(stop.set)
        if self._released:
            return
        async with anyio.create_task_group() as self._tasks:
            self.ready.open()
            await stop.wait()
            await self._finish()
            self._closing = True
            self._tasks.cancel_scope.cancel()
        self._served = True

    async def _finish(self) -> None:
        if self.at_end is None:
            return
        try:
            await self.at_end()
        except SandboxError as error:  # nobody is left to raise it to
            warnings.warn(
                f"A sandbox that was never closed could not be ended: {error.message}",
                OrphanedSandboxWarning,
                stacklevel=1,
            )


class Portal:
    """A thread with an event loop, started by the constructor and ended by :meth:`close`."""

    def __init__(self) -> None:
        self._loop = _Loop()
        self._finalizer = weakref.finalize(self, _dropped, self._loop)
        self._finalizer.atexit = False
        _end_loops_at_exit()
        try:
            self._loop.thread.start()
            self._loop.ready.wait()
        except RuntimeError as error:
            if isinstance(error.__context__, KeyboardInterrupt):  # inside Thread.start, between its locks
                raise error.__context__ from None
            raise _not_started(error) from error
        except BaseException:  # Ctrl-C: nobody will have this handle
            self.close()
            raise
        if self._loop.failure is not None:
            raise _not_started(self._loop.failure) from self._loop.failure

    def call(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run ``work`` in the loop and wait for it; its errors are raised here as they are."""
        self.check_thread()
        call = _Call(work)
        try:
            self._loop.serve(call)
        except SandboxGone:
            raise
        except BaseException:  # Ctrl-C, or whatever a signal handler raised
            with contextlib.suppress(SandboxGone):
                self._loop.abandon(call)
            raise
        return call.outcome()

    async def call_from_loop(self, work: Callable[[], Awaitable[T]]) -> T:
        """:meth:`call` for a task of another loop, which goes on meanwhile; cancelled, so is ``work``."""
        self.check_thread()
        done = Wake()
        call = _Call(work, done)
        await self._loop.serve_other_loop(call, done.event)
        return call.outcome()

    def check_thread(self) -> None:
        """Raise unless this process and thread can wait for the loop."""
        if os.getpid() != self._loop.pid:
            raise ConfigurationError(
                f"This sandbox belongs to process {self._loop.pid}; this is a fork of it.",
                hint="Create a sandbox in this process, or connect_sync() to it.",
            )
        if threading.current_thread() is self._loop.thread:
            raise ConfigurationError(
                "A blocking call was made inside the sandbox's own event loop and would wait for itself.",
                hint="Call it from your own thread, or use the async API there.",
            )

    @property
    def is_foreign(self) -> bool:
        """True in a fork of the process that started the thread."""
        return os.getpid() != self._loop.pid

    def at_end(self, work: Callable[[], Awaitable[None]] | None) -> None:
        """What the loop does if it is released without further calls; None for nothing."""
        self._loop.at_end = work

    def release(self) -> None:
        """Let the thread end by itself; does not wait.

        Should an interrupt cut this short, the thread ends when the handle is dropped.
        """
        self._loop.release()
        self._finalizer.detach()

    def close(self) -> None:
        """End the thread and wait until it is gone. Idempotent; nothing happens in a fork."""
        if self.is_foreign:
            return
        self.release()
        thread = self._loop.thread
        if thread.ident is not None and thread is not threading.current_thread():
            if threading.current_thread() is threading.main_thread():
                self._loop.ended.wait()
            thread.join()


def _gone() -> SandboxGone:
    return SandboxGone("The sandbox has ended: it was closed.")


def _not_started(error: BaseException) -> CreationError:
    return CreationError(
        f"The thread and event loop of a blocking sandbox did not start: {error}.",
        hint="Free threads and file descriptors (`ulimit -u`, `ulimit -n`), or use the async API.",
    )


def _dropped(loop: _Loop) -> None:
    """The handle was collected without close(); may run in any thread, so it must not wait."""
    if os.getpid() != loop.pid:
        return
    loop.release()
    if loop.at_end is not None:
        warnings.warn(
            "A blocking sandbox was dropped without close() and is being ended; use `with`.",
            ResourceWarning,
            stacklevel=2,
        )


def _end_loops_at_exit() -> None:
    """Have shutdown end what is open; registered once, when the first loop is about to start.

    ``atexit`` comes after the last thread, which is right if threads still use a sandbox, but late:
    ``concurrent.futures`` has closed its executors then, and asyncio resolves host names in one. If no
    thread is left the sandboxes end earlier, in ``threading._register_atexit``, whose hooks run last in,
    first out (CPython, Lib/threading.py, Lib/concurrent/futures/thread.py).
    """
    if _hooked:
        return
    _hooked.append(True)
    atexit.register(_end_loops)
    with contextlib.suppress(RuntimeError):  # shutdown has begun: there is only atexit left
        importlib.import_module("concurrent.futures.thread")  # its hook must be there before ours
        if (register := getattr(threading, "_register_atexit", None)) is not None:
            register(_end_loops_if_alone)


def _end_loops_if_alone() -> None:
    here = threading.current_thread()
    if all(thread.daemon or thread is here for thread in threading.enumerate()):
        _end_loops()


def _end_loops() -> None:
    mine = [loop for loop in tuple(_loops) if loop.pid == os.getpid()]
    for loop in mine:
        loop.release()
    for loop in mine:
        loop.ended.wait(_EXIT_BOUND)
        if loop.ended.is_open:
            loop.thread.join()

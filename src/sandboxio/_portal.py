"""One thread with one event loop for the blocking facade: calls go in, results and errors come out.

What anyio's ``BlockingPortal`` leaves open is settled here:

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
import threading
import warnings
import weakref
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import anyio
from anyio.from_thread import BlockingPortal

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
_ENTRY_BOUND = 1.0
"""Seconds that a closing loop waits for calls that are just being handed over; one takes microseconds."""

_loops: set[_Loop] = set()
_hooked: list[bool] = []


class _Call(Generic[T]):
    """One call on its way through the loop; made in the caller's thread."""

    def __init__(self, work: Callable[[], Awaitable[T]]) -> None:
        self._work = work
        self._done = threading.Event()
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
            self._done.set()

    def cancel(self) -> None:
        """In the loop: end the work; it is done when it has cleaned up."""
        self._abandoned = True
        if self._scope is None:
            self._done.set()  # it has not begun and now never will
        else:
            self._scope.cancel()

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
        self.ready = threading.Event()
        self.failure: BaseException | None = None
        self.at_end: Callable[[], Awaitable[None]] | None = None
        self._released = False
        self._closing = False
        self._served = False
        self._entering: set[object] = set()
        self._portal: BlockingPortal | None = None
        self._wake: Callable[[], object] | None = None

    def spawn(self, function: Callable[[], Any]) -> None:
        """Have ``function`` run in the loop. Raises ``SandboxGone`` if the loop has ended."""
        token = object()
        self._entering.add(token)
        try:
            if self._closing or self._portal is None:
                raise _gone()
            self._portal.start_task_soon(function)
        except RuntimeError as error:  # anyio's word for a loop that has ended
            raise _gone() from error
        finally:
            self._entering.discard(token)

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
            if not self.ready.is_set():
                self.failure = error  # the starting thread reports it
            elif not (self._served and isinstance(error, RuntimeError)):
                raise
            # Python 3.12 cannot start the thread that ends an executor while the interpreter shuts down
        finally:
            self._closing = True
            _loops.discard(self)
            self.ready.set()

    async def _main(self) -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._wake = lambda: loop.call_soon_threadsafe(stop.set)
        if self._released:
            return
        async with BlockingPortal() as self._portal:
            self.ready.set()
            await stop.wait()
            await self._finish()
            self._closing = True
            with anyio.move_on_after(_ENTRY_BOUND):
                while self._entering:  # noqa: ASYNC110 - other threads change it, for microseconds
                    await anyio.sleep(0.001)
            await self._portal.stop(cancel_remaining=True)
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
            self._loop.spawn(call.run)
            call.wait()
        except SandboxGone:
            raise
        except BaseException:  # Ctrl-C, or whatever a signal handler raised
            with contextlib.suppress(SandboxGone):
                self._loop.spawn(call.cancel)
                call.wait()
            raise
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
        """Let the thread end by itself; does not wait."""
        self._finalizer.detach()
        self._loop.release()

    def close(self) -> None:
        """End the thread and wait until it is gone. Idempotent; nothing happens in a fork."""
        if self.is_foreign:
            return
        self.release()
        thread = self._loop.thread
        if thread.ident is not None and thread is not threading.current_thread():
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
    importlib.import_module("concurrent.futures.thread")  # its hook must be there before ours
    atexit.register(_end_loops)
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
        loop.thread.join(_EXIT_BOUND)

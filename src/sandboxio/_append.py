"""Whole lines at the end of a file that several processes write to.

A line is one ``write`` on a descriptor opened with ``O_APPEND``, under ``flock``, so nothing gets in
between. If the disk takes only a part, the file is cut back to where it was and the error is raised. If
a writer died inside a line, the next one starts a new line, so only the torn one is lost. Not for
network file systems that have no working ``flock``.
"""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import suppress

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar

NEW_FILE_MODE = 0o600
"""Permission bits of a file that did not exist: records are for the auditor."""

_THREADS = 4
"""Worker threads of one event loop: files are written one line at a time anyway."""

_limiter: RunVar[anyio.CapacityLimiter] = RunVar("sandboxio_append_limiter")


def append_line(path: str, line: bytes) -> None:
    """Append ``line``, which ends with a newline, to ``path``. Raises ``OSError``, and then wrote nothing."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY
    descriptor = os.open(path, flags, NEW_FILE_MODE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            _write(descriptor, line)
            return
        try:
            _write(descriptor, _start(descriptor, status.st_size) + line)
        except OSError:
            os.ftruncate(descriptor, status.st_size)
            raise
    finally:
        os.close(descriptor)


async def append_line_in_thread(path: str, line: bytes) -> None:
    """:func:`append_line` in a worker thread.

    It is not written if the deadline passes before a thread is free. Cancelled in any other way, which
    inside a shielded scope only ``asyncio.Task.cancel`` does, it is written all the same.
    """
    unclaimed = [line]  # whoever takes the line out writes it; list.pop() is atomic

    def write() -> None:
        with suppress(IndexError):
            append_line(path, unclaimed.pop())

    try:
        await anyio.to_thread.run_sync(write, limiter=_own_limiter(), abandon_on_cancel=True)
    except anyio.get_cancelled_exc_class():
        if anyio.current_time() >= anyio.current_effective_deadline():
            unclaimed.clear()
        with suppress(OSError):  # the cancellation must come out; who records warns of it
            write()
        raise


def _start(descriptor: int, size: int) -> bytes:
    """A newline, if a writer that died left its line unfinished."""
    return b"\n" if size and os.pread(descriptor, 1, size - 1) != b"\n" else b""


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _own_limiter() -> anyio.CapacityLimiter:
    """Threads of this loop's own, so that an application that has used up anyio's still gets its records."""
    try:
        return _limiter.get()
    except LookupError:
        limiter = anyio.CapacityLimiter(_THREADS)
        _limiter.set(limiter)
        return limiter

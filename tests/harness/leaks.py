"""What a test may not leave behind: descriptors, threads, tasks, child processes, changed settings."""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import anyio
import pytest

from .settings import Settings

SETTLE_SECONDS = 2.0
"""How long a thread, a task or a child may take to end after its test; most take no time."""

SESSION_VARIABLE = "SBX_TEST_SESSION"
"""Set for the whole run and inherited by every process it starts, also by daemons."""


# Descriptors


def descriptors() -> dict[int, str]:
    """Open descriptors and what they point to; empty where the system does not show them."""
    found: dict[int, str] = {}
    for folder in (Path("/proc/self/fd"), Path("/dev/fd")):
        if folder.is_dir():
            for entry in folder.iterdir():
                try:
                    found[int(entry.name)] = str(entry.readlink())
                except OSError:
                    continue  # the descriptor that lists this folder
            return found
    return found


def new_descriptors(before: dict[int, str]) -> list[str]:
    return [
        f"descriptor {number} -> {target}"
        for number, target in sorted(descriptors().items())
        if before.get(number) != target
    ]


# Threads


def _is_idle_trio_worker(thread: threading.Thread) -> bool:
    """True for a thread that trio keeps for ten seconds in case more work comes."""
    frame = sys._current_frames().get(thread.ident or 0)
    return (
        frame is not None
        and frame.f_code.co_name == "_work"
        and frame.f_code.co_filename.endswith("/trio/_core/_thread_cache.py")
    )


def new_threads(before: Iterable[threading.Thread]) -> list[str]:
    known = set(before)
    lines: list[str] = []
    for thread in threading.enumerate():
        if thread in known or _is_idle_trio_worker(thread):
            continue
        frame = sys._current_frames().get(thread.ident or 0)
        where = traceback.extract_stack(frame)[-1] if frame is not None else None
        lines.append(f"thread {thread.name!r}" + (f" at {where.filename}:{where.lineno}" if where else ""))
    return lines


# Child processes


def _has_children() -> bool:
    """One system call; the usual answer is no."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _processes() -> list[Path]:
    """The folder in /proc of each process but this one; empty where there is no /proc."""
    proc = Path("/proc")
    if not proc.is_dir():
        return []
    others = (entry for entry in proc.iterdir() if entry.name.isdigit())
    return [entry for entry in others if entry.name != str(os.getpid())]


def _command(process: Path) -> str:
    words = (process / "cmdline").read_bytes().split(b"\0")
    return b" ".join(words).decode(errors="replace").strip()


def children() -> dict[int, str]:
    """Direct children of this process, zombies included: pid to command line."""
    found: dict[int, str] = {}
    if not _has_children():
        return found
    for process in _processes():
        try:
            # "pid (name) state parent ...": the name may hold spaces and brackets
            state, parent = (process / "stat").read_text().rpartition(")")[2].split()[:2]
            command = _command(process)
        except OSError:
            continue  # it ended meanwhile
        if int(parent) == os.getpid() and "multiprocessing.resource_tracker" not in command:
            found[int(process.name)] = command or f"(state {state})"
    return found


def new_children(before: dict[int, str]) -> list[str]:
    return [f"child process {pid}: {what}" for pid, what in children().items() if pid not in before]


def processes_of_session(session: str) -> dict[int, str]:
    """Processes that inherited this run's variable, whoever their parent is now."""
    wanted = f"{SESSION_VARIABLE}={session}".encode()
    found: dict[int, str] = {}
    for process in _processes():
        try:
            if wanted in (process / "environ").read_bytes().split(b"\0"):
                found[int(process.name)] = _command(process)
        except OSError:
            continue  # it ended, or is not ours to read
    return found


def end_processes(pids: Iterable[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


# Around one test


class Watch:
    """Takes stock before a test and names what is new after it."""

    def __init__(self) -> None:
        self._descriptors = descriptors()
        self._threads = threading.enumerate()
        self._children = children()
        self._settings = Settings()

    def _left(self) -> list[str]:
        return [
            *new_descriptors(self._descriptors),
            *new_threads(self._threads),
            *new_children(self._children),
        ]

    def left(self) -> list[str]:
        """What the test left behind, once the slow have had their time to end. Settings are put back."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while (lines := self._left()) and time.monotonic() < deadline:
            time.sleep(0.01)
        return lines + self._settings.changed()


# Tasks, seen from inside the loop


def watching_tasks(test: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
    """The same async test, failing if a task it started is still there when it has passed."""

    @functools.wraps(test)
    async def watched(*args: Any, **kwargs: Any) -> None:
        before = {task.id for task in anyio.get_running_tasks()}
        await test(*args, **kwargs)
        deadline = time.monotonic() + SETTLE_SECONDS
        while left := [task for task in anyio.get_running_tasks() if task.id not in before]:
            if time.monotonic() > deadline:
                names = ", ".join(repr(task.name) for task in left)
                pytest.fail(f"the test left tasks running: {names}", pytrace=False)
            await anyio.sleep(0.01)

    return watched


def watch_tasks_of(item: pytest.Function) -> None:
    """Put the check around an async test, with or without hypothesis in between."""
    hypothesis = getattr(item.obj, "hypothesis", None)
    if hypothesis is None:
        item.obj = watching_tasks(item.obj)
        return
    inner = getattr(hypothesis.inner_test, "_anyio_original_func", hypothesis.inner_test)
    if not hasattr(inner, "_watches_tasks"):  # the twin on the other loop shares this function
        watched = watching_tasks(inner)
        watched._watches_tasks = True  # type: ignore[attr-defined]
        hypothesis.inner_test = watched

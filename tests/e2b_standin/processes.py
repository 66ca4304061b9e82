"""The processes of a guest, as envd keeps them (``packages/envd/internal/services/process``).

A process ends for its watchers when its pipes are at their end *and* it is reaped, so a background
child that holds a pipe holds the end event too, unless the process is signalled through envd. Output
that nobody watches is read and dropped; a slow watcher slows the process down.
"""

# Paths are text here, as in envd: not normalised, and bytes that are not UTF-8 kept.

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import pwd
import signal
import struct
import subprocess
import termios
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

STD_CHUNK = 32 << 10
PTY_CHUNK = 16 << 10
WATCHER_CHUNKS = 64
RETAIN_SECONDS = 30.0
# envd runs every command through a shell that resets its priorities.
WRAPPER = 'exec "${@}"'

Stream = Literal["stdout", "stderr", "pty"]


async def readable(fd: int) -> None:
    """Wait until ``fd`` can be read."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(fd, lambda: ready.done() or ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(fd)


class Watcher:
    """One stream's view of a process: a short queue, closed by either side."""

    def __init__(self) -> None:
        self._items: deque[tuple[Stream, bytes]] = deque()
        self._changed = asyncio.Event()
        self._closed = False

    async def put(self, item: tuple[Stream, bytes]) -> None:
        while len(self._items) >= WATCHER_CHUNKS and not self._closed:
            self._changed.clear()
            await self._changed.wait()
        if not self._closed:
            self._items.append(item)
            self._changed.set()

    async def get(self) -> tuple[Stream, bytes] | None:
        """The next piece of output; None at its end."""
        while not self._items:
            if self._closed:
                return None
            self._changed.clear()
            await self._changed.wait()
        self._changed.set()
        return self._items.popleft()

    def close(self) -> None:
        self._closed = True
        self._changed.set()


@dataclass(frozen=True)
class End:
    """How a process ended, in the words of Go's os.ProcessState."""

    exit_code: int
    exited: bool
    status: str
    error: str | None


@dataclass(eq=False)
class Process:
    """One running process."""

    popen: subprocess.Popen[bytes]
    command: tuple[str, ...]
    envs: Mapping[str, str]
    cwd: str | None
    tag: str | None
    terminal: int | None = None
    watchers: set[Watcher] = field(default_factory=set[Watcher])
    cut: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when nobody waits for the pipes any longer."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    end: End | None = None

    @property
    def pid(self) -> int:
        return self.popen.pid

    def watch(self) -> Watcher:
        watcher = Watcher()
        if self.ended.is_set():
            watcher.close()
        self.watchers.add(watcher)
        return watcher

    def signal(self, number: int) -> None:
        if number in (signal.SIGKILL, signal.SIGTERM):
            self.cut.set()
        self.popen.send_signal(number)

    def write(self, data: bytes) -> None:
        """Write to the standard input or the terminal; raises OSError or ValueError."""
        if self.terminal is not None:
            os.write(self.terminal, data)
        elif self.popen.stdin is None or self.popen.stdin.closed:
            raise ValueError("stdin not enabled or closed")
        else:
            self.popen.stdin.write(data)
            self.popen.stdin.flush()

    def close_stdin(self) -> None:
        if self.popen.stdin is not None:
            self.popen.stdin.close()

    def resize(self, rows: int, cols: int) -> None:
        assert self.terminal is not None
        _set_size(self.terminal, rows, cols)

    async def _pump(self, fd: int, stream: Stream, size: int) -> None:
        os.set_blocking(fd, False)
        while True:
            try:
                data = os.read(fd, size)
            except BlockingIOError:
                await readable(fd)
                continue
            except OSError as error:  # EIO: the last process left the terminal
                if error.errno != errno.EIO:
                    raise
                return
            if not data:
                return
            for watcher in tuple(self.watchers):
                await watcher.put((stream, data))

    async def run(self) -> None:
        """Pump the output until the end, then reap."""
        sources: list[tuple[int, Stream, int]] = []
        if self.terminal is not None:
            sources.append((self.terminal, "pty", PTY_CHUNK))
        else:
            assert self.popen.stdout is not None
            assert self.popen.stderr is not None
            sources.append((self.popen.stdout.fileno(), "stdout", STD_CHUNK))
            sources.append((self.popen.stderr.fileno(), "stderr", STD_CHUNK))
        pumps = asyncio.gather(*(self._pump(*source) for source in sources))
        cut = asyncio.ensure_future(self.cut.wait())
        try:
            await asyncio.wait((pumps, cut), return_when=asyncio.FIRST_COMPLETED)
            pidfd = os.pidfd_open(self.pid)
            try:
                await readable(pidfd)
            finally:
                os.close(pidfd)
            if not pumps.done():  # what is in the pipes by now still counts
                await asyncio.wait((pumps,), timeout=0.05)
        finally:
            pumps.cancel()
            cut.cancel()
            await asyncio.gather(pumps, cut, return_exceptions=True)
        self._finish(self.popen.wait())

    def _finish(self, code: int) -> None:
        for pipe in (self.popen.stdin, self.popen.stdout, self.popen.stderr):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        if self.terminal is not None:
            os.close(self.terminal)
        if code < 0:
            name = SIGNAL_TEXTS.get(-code, f"signal {-code}")
            self.end = End(-1, False, f"signal: {name}", f"signal: {name}")
        else:
            status = f"exit status {code}"
            self.end = End(code, True, status, status if code else None)
        self.ended.set()
        for watcher in self.watchers:
            watcher.close()


SIGNAL_TEXTS = {
    signal.SIGHUP: "hangup",
    signal.SIGINT: "interrupt",
    signal.SIGQUIT: "quit",
    signal.SIGABRT: "aborted",
    signal.SIGKILL: "killed",
    signal.SIGSEGV: "segmentation fault",
    signal.SIGPIPE: "broken pipe",
    signal.SIGALRM: "alarm clock",
    signal.SIGTERM: "terminated",
    signal.SIGUSR1: "user defined signal 1",
}
"""The texts of Go's syscall.Signal on Linux."""


def _set_size(terminal: int, rows: int, cols: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))


@dataclass
class Table:
    """All processes of the guest, and those that ended less than half a minute ago."""

    running: dict[int, Process] = field(default_factory=dict[int, Process])
    retained: dict[int, Process] = field(default_factory=dict[int, Process])
    _tasks: set[asyncio.Task[None]] = field(default_factory=set["asyncio.Task[None]"])

    def start(
        self,
        command: tuple[str, ...],
        *,
        account: pwd.struct_passwd,
        environment: Mapping[str, str],
        envs: Mapping[str, str],
        cwd: str,
        shown_cwd: str | None,
        tag: str | None,
        stdin: bool,
        size: tuple[int, int] | None,
    ) -> Process:
        """Start ``command`` with pipes, or on a terminal of ``size`` (rows, columns)."""
        argv = ["/bin/sh", "-c", WRAPPER, "--", *command]
        groups = os.getgrouplist(account.pw_name, account.pw_gid)
        who = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": groups}
        settings = {"cwd": cwd, "env": {**environment, **envs}, "close_fds": True, **who}
        terminal: int | None = None
        if size is not None:
            terminal, popen = _start_on_terminal(argv, size, settings)
        else:
            feed = subprocess.PIPE if stdin else subprocess.DEVNULL
            popen = subprocess.Popen(
                argv, stdin=feed, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0, **settings
            )
        process = Process(popen, command, envs, shown_cwd, tag, terminal)
        self.retained.pop(process.pid, None)
        self.running[process.pid] = process
        task = asyncio.create_task(self._run(process))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return process

    async def _run(self, process: Process) -> None:
        await process.run()
        if self.running.get(process.pid) is process:
            self.retained[process.pid] = process
            del self.running[process.pid]
            forget: Callable[[], object] = lambda: (  # noqa: E731
                self.retained.get(process.pid) is process and self.retained.pop(process.pid)
            )
            asyncio.get_running_loop().call_later(RETAIN_SECONDS, forget)

    def find(
        self, *, pid: int | None = None, tag: str | None = None, retained: bool = False
    ) -> Process | None:
        """A running process by pid or tag; with ``retained``, one that ended lately."""
        table = self.retained if retained else self.running
        if pid is not None:
            return table.get(pid)
        return next((process for process in table.values() if process.tag == tag), None)


def _start_on_terminal(
    argv: list[str], size: tuple[int, int], settings: dict[str, object]
) -> tuple[int, subprocess.Popen[bytes]]:
    ours, theirs = os.openpty()
    _set_size(ours, *size)

    def take_terminal() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    try:
        popen = subprocess.Popen(
            argv,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=take_terminal,  # noqa: PLW1509 - a guest has one thread
            **settings,  # type: ignore[call-overload]
        )
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    return ours, popen

"""The program that runs inside a sandbox: starts processes, kills them, serves files.

One file, standard library only, Python 3.8 or newer. It is process 1 of the container, or a second
guest started through the engine's exec. Frames come on descriptor 0 and go out on descriptor 1; their
form is specified in ``guest_protocol.py``, and the numbers here repeat those there.

Rules:

1.  One thread, one loop, nothing that blocks for longer than a few milliseconds. Long file operations
    are generators that are run a slice at a time. Starting a process may block: see ``Alarm``. So may
    anything that code inside has a hand in: see ``oversee``.
2.  Reading from the host never waits for writing to it. What a run prints is read only as far as the
    host granted credit, and not while much waits to be written.
3.  EOF from the host ends everything at once (the lifeline), and so does the end of the lifetime.
    Code inside cannot postpone either: nothing that it does is waited for.
4.  Code inside may run as the same user and is hostile. It gets none of our descriptors; our memory
    and /proc entries are closed to it; an answer about a process is never taken from the process.
5.  A run's processes are found by marks that they cannot take off (see ``Marks``). A kill is done when
    a scan has found none but those that were struck before, and those dead (see ``Killer``).
6.  The OOM killer must prefer every other process to this one: they get ``oom_score_adj`` 1000, and 500
    from their first instruction on. They also get nice 10 more, so that this one answers while they fill
    the CPU.
7.  Whatever goes wrong in one operation ends that operation with a code. Only a broken connection
    ends the guest.
"""

# No imports for convenience (pathlib, contextlib): each costs start time of every sandbox. Paths are bytes.
# Nothing here is anybody's API.
# ruff: noqa: SIM105, UP031, PERF203
# ruff: noqa: PTH102, PTH103, PTH104, PTH106, PTH108, PTH116, PTH118, PTH119, PTH120, PTH123, PTH208

from __future__ import annotations

import errno
import faulthandler
import fcntl
import os
import resource
import select
import stat
import struct
import sys
import termios
import time
from _thread import start_new_thread

# The modules `typing` and `signal` would cost a third of our start time; checkers know this name.
TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Generator, Iterator
    from typing import Any

    Steps = Generator[bool, None, None]
else:
    import _signal as signal

# -- Numbers of the protocol -------------------------------------------------------------------------

VERSION = 1
MAX_PAYLOAD = 64 * 1024
MAX_REQUEST = 8 * 1024 * 1024
INPUT_WINDOW = 256 * 1024
SETUP, PART, START, READ, WRITE, LIST, MKDIR, REMOVE, STAT = range(1, 10)
INPUT, INPUT_END, CREDIT, KILL, STOP = range(10, 15)
HELLO, STARTED, STDOUT, STDERR, GRANT, END, DATA, ENTRIES, DONE, ERROR, KILLED = range(65, 76)

INIT, MARKED, HIDDEN, OOM_COUNTER, ADOPTS, WORK, WORK_WRITABLE, LOCALHOST, LIFELINE = (
    1 << bit for bit in range(9)
)
TIMED_OUT, BY_HOST, OUT_OF_MEMORY, MEMORY_HINT, NOT_STARTED, SURVIVORS = (1 << bit for bit in range(6))
SYSTEM, NOT_REGULAR, TOO_LARGE, CANCELLED, BAD_REQUEST, NO_WORK_FOLDER, IN_USE = range(7)
DEAD, UNKNOWN, ALIVE = range(3)
FILE, FOLDER, LINK, OTHER = range(4)

HEAD = struct.Struct(">IBI")
U32 = struct.Struct(">I")

# -- Bounds ------------------------------------------------------------------------------------------

OUT_FULL = 512 * 1024  # bytes waiting for the host at which pipes and files are no longer read
START_BOUND = 10.0  # seconds that a program may take to start, at least
ALARM_RENEWED = START_BOUND / 5  # seconds after which the next start sets the alarm anew
ALARM_RESTS = 0.1  # seconds without a start after which it is taken back
KILL_BOUND = 1.0  # seconds until a run counts as one that cannot be killed
STOP_WALK = 0.02  # seconds of stopping a run's processes before the first SIGKILL
EARLY_BOUND = 0.005  # seconds of looking for what a new process forked before it was marked
UNBORN_BOUND = 10.0  # seconds that a number may be given out before its process is there
PATIENCE = 0.03  # seconds of killing until everything is frozen for an instant
REMEMBERED = 4096  # ended runs that can still be killed (what they left in the background)
LEFTOVER_PAUSE = 0.005  # seconds between two reads from a background process's output
LEFTOVERS = 256  # pipes of background processes that are kept open
OVERDUE = 1.0  # seconds that process 1 may take to end itself
LONGEST_SLEEP = 1e6  # seconds; epoll counts milliseconds in 31 bits
NICER = 10
DEFAULT_PATH = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SHELL_NAMES = (b"PWD", b"OLDPWD", b"SHLVL", b"_")  # what the launcher's shell adds
SIGNALS = frozenset(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}
NEVER_WAIT = os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK  # for FIFOs, and files under a lease
WALL = 0x40000000  # __WALL: children of every kind


class ProtocolBroken(Exception):
    """The host sent what no host sends."""


class Refused(Exception):
    """An operation that is not done; the argument is the reason's number."""


# -- Frames ------------------------------------------------------------------------------------------


class Link:
    """Cuts what comes into frames and lines up what goes out. Knows no descriptor."""

    def __init__(self) -> None:
        self.rest = b""
        self.out: list[bytes] = []
        self.pending = 0

    @property
    def full(self) -> bool:
        return self.pending >= OUT_FULL

    def send(self, kind: int, op: int, payload: bytes = b"") -> None:
        head = HEAD.pack(len(payload), kind, op)
        if len(payload) < 1024:
            self.out.append(head + payload)
        else:
            self.out += head, payload
        self.pending += len(head) + len(payload)

    def fail(self, op: int, reason: int, code: int = 0) -> None:
        name = errno.errorcode.get(code, "EIO") if code else ""
        self.send(ERROR, op, bytes([reason]) + name.encode())

    def frames(self, data: bytes) -> list[tuple[int, int, bytes]]:
        data = self.rest + data
        found: list[tuple[int, int, bytes]] = []
        at, size = 0, len(data)
        while size - at >= HEAD.size:
            length, kind, op = HEAD.unpack_from(data, at)
            if length > MAX_PAYLOAD:
                raise ProtocolBroken("a frame of %d bytes" % length)
            end = at + HEAD.size + length
            if end > size:
                break
            found.append((kind, op, data[at + HEAD.size : end]))
            at = end
        self.rest = data[at:]
        return found

    def sent(self, size: int) -> None:
        """``size`` bytes of ``out`` are gone."""
        self.pending -= size
        whole = 0
        while whole < len(self.out) and size >= len(self.out[whole]):
            size -= len(self.out[whole])
            whole += 1
        del self.out[:whole]
        if size:
            self.out[0] = self.out[0][size:]


def read_list(data: bytes, at: int) -> tuple[list[bytes], int]:
    (count,) = U32.unpack_from(data, at)
    at += 4
    items: list[bytes] = []
    for _ in range(count):
        (length,) = U32.unpack_from(data, at)
        at += 4 + length
        items.append(data[at - length : at])
    if at > len(data):
        raise ProtocolBroken("a list that is cut off")
    return items, at


def pairs(items: list[bytes]) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for item in items:
        name, _, value = item.partition(b"=")
        found[name] = value
    return found


# -- Processes: how they are marked, found and started -------------------------------------------------

NO_LIMIT = resource.RLIM_INFINITY
LOCKS = 10  # RLIMIT_LOCKS: without effect since Linux 2.4.25 (getrlimit(2))
RTTIME = 15  # RLIMIT_RTTIME: microseconds of real-time scheduling; a few 10^18 are no limit
TOP = 1 << 62
RUNS = 1 << 32  # runs of one guest


class Process:
    """A line of /proc/PID/stat."""

    __slots__ = ("alive", "parent", "pid", "session", "state")

    def __init__(self, pid: int, text: bytes) -> None:
        fields = text[text.rindex(b")") + 2 :].split()
        self.pid = pid
        self.state = fields[0]
        self.parent = int(fields[1])
        self.session = int(fields[3])
        # A main thread that has exited looks like a zombie while the others live on.
        self.alive = self.state not in b"ZX" or int(fields[17]) > 1


def look(pid: int) -> Process | None:
    try:
        fd = os.open("/proc/%d/stat" % pid, os.O_RDONLY)
    except OSError:
        return None
    try:
        return Process(pid, os.read(fd, 1024))
    except OSError:
        return None
    finally:
        os.close(fd)


def all_pids() -> list[int]:
    me = os.getpid()
    return [int(name) for name in os.listdir("/proc") if name[0] in "123456789" and int(name) != me]


def send_signal(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except OSError:
        return False
    return True


def limit_of(pid: int, which: int) -> int | None:
    """The hard limit of a process, zombies included; None if it is gone or not ours to see."""
    try:
        return resource.prlimit(pid, which)[1]
    except PermissionError:  # it has changed its user
        return limit_in_text(pid, b"Max file locks" if which == LOCKS else b"Max realtime timeout")
    except OSError:
        return None


def limit_in_text(pid: int, name: bytes) -> int | None:
    try:
        with open("/proc/%d/limits" % pid, "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(name):
            hard = line[len(name) :].split()[1]
            return NO_LIMIT if hard == b"unlimited" else int(hard)
    return None


class NewestProcess:
    """The number that was given to a process last: the fifth field of /proc/loadavg (proc(5))."""

    def __init__(self) -> None:
        try:
            self.fd = os.open("/proc/loadavg", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self.fd = -1

    def read(self) -> int:
        """0 if it cannot be told."""
        try:
            return int(os.pread(self.fd, 200, 0).split()[4])
        except (OSError, IndexError, ValueError):
            return 0


class Marks:
    """Tells which run a process belongs to by two resource limits that mean nothing else.

    Limits survive fork, exec, setsid and a cleared environment, and without a privilege can only be
    lowered. Run ``n`` of this guest has RTTIME = TOP - n and LOCKS = n. RTTIME is set on the guest itself
    just before the run starts, so that the run has it from its first instruction; LOCKS cannot be
    raised again and is set on the new process just after. So a process of run n always has
    ``RTTIME <= TOP - n``, ``LOCKS <= n``, and lowering either only makes more runs claim it.

    In the instant between start and the second limit a process may fork: such a child still has the
    guest's own LOCKS, ``self.last``. Every run up to what its RTTIME names claims it, so it hides from
    nothing. The innocent among them are told by their session or their parents', which nobody can join from
    outside, as long as its leader, the main process of the run, is not collected: right after the start,
    before every kill, and when the main process has ended, by when every fork of its own is done, too.

    Guests beside each other use ranges that do not overlap.
    """

    def __init__(self, first: int) -> None:
        self.number = first
        self.last = first + RUNS - 1
        self.newest = NewestProcess()
        self.seen = self.newest.read()
        self.threads: set[int] = set()  # our own, which have numbers like those of processes
        self.unborn: dict[int, float] = {}
        self.working = False
        try:
            before = {resource.getrlimit(RTTIME)[1], resource.getrlimit(LOCKS)[1]}
            resource.setrlimit(LOCKS, (self.last, self.last))
            resource.setrlimit(RTTIME, (TOP - first, TOP - first))
            kept = resource.prlimit(os.getpid(), RTTIME)[1] == TOP - first
            # Lower limits than ours are somebody else's; gVisor refuses to set any.
            self.working = kept and before == {NO_LIMIT}
        except (OSError, ValueError, AttributeError):
            self.working = False

    def next(self) -> int:
        """The number of a new run, whose process must be started now."""
        self.number += 1
        if self.working:
            limit = TOP - self.number
            resource.setrlimit(RTTIME, (limit, limit))
        return self.number

    def pin(self, pid: int, number: int) -> None:
        if self.working:
            try:
                resource.prlimit(pid, LOCKS, (number, number))
            except OSError:
                pass

    def read(self, pid: int) -> tuple[int, int] | None:
        """The lowest and the highest run that may claim the process; None if none of ours can."""
        highest = limit_of(pid, RTTIME)
        if highest is None or not 0 <= highest <= TOP:
            return None
        lowest = limit_of(pid, LOCKS)
        if lowest is None or not 0 <= lowest <= self.last:
            return None
        return (0 if lowest == self.last else lowest), TOP - highest

    def early_children(self) -> Iterator[int]:
        """Processes without their second limit among those that came since the last look.

        Each number is looked at once; one that has been given out but is not a process yet, again.
        """
        until = time.monotonic() + EARLY_BOUND
        found = self.working
        while found and time.monotonic() < until:
            found = False
            for pid in self.newcomers():
                limit = limit_of(pid, LOCKS)
                if limit is None:
                    self.unborn.setdefault(pid, until)
                    continue
                self.unborn.pop(pid, None)
                if limit == self.last:
                    found = True
                    yield pid

    def newcomers(self) -> list[int]:
        newest, seen = self.newest.read(), self.seen
        self.seen = newest
        if self.unborn:
            old = time.monotonic() - UNBORN_BOUND
            self.unborn = {pid: since for pid, since in self.unborn.items() if since > old}
        if newest == seen:
            return list(self.unborn)
        threads = self.threads.copy()
        self.threads.clear()
        if not 0 < newest - seen < 1000:
            return all_pids()
        return [*self.unborn, *(pid for pid in range(seen + 1, newest + 1) if pid not in threads)]


def own_threads() -> Iterator[int]:
    return map(int, os.listdir("/proc/self/task"))


class Alarm:
    """Ends process 1, and with it everything, where starting a process takes for ever.

    Until a new process has become its program, the kernel holds us (vfork). Code inside that stops it before
    (SIGSTOP, a lease on the program's file) would hold us with it, deaf to the host's end and to that of our
    lifetime. A thread that needs nothing of ours counts the seconds meanwhile. To make one takes a tenth of a
    start, so it stays for the next starts, until there was none for a moment.
    """

    def __init__(self, threads: set[int]) -> None:
        """``threads`` gets the number of each thread."""
        self.threads = threads
        self.needed = os.getpid() == 1
        self.since = float("-inf")
        self.rests_at = float("inf")

    def set(self) -> None:
        """Before a start."""
        if not self.needed:
            return
        now = time.monotonic()
        if now - self.since > ALARM_RENEWED:
            try:
                faulthandler.dump_traceback_later(START_BOUND + ALARM_RENEWED, exit=True, file=2)
            except RuntimeError:
                raise OSError(errno.EAGAIN, "no thread") from None
            self.since = now
            self.threads.update(own_threads())
        self.rests_at = now + ALARM_RESTS

    def rest(self) -> None:
        """When ``rests_at`` has come."""
        faulthandler.cancel_dump_traceback_later()
        self.since, self.rests_at = float("-inf"), float("inf")


class Spawner:
    """Starts a process that has nothing of ours but two pipes."""

    def __init__(self, alarm: Alarm) -> None:
        self.alarm = alarm
        self.null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        self.low = tuple(os.dup(self.null) for _ in range(3))
        self.nice = min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICER)
        self.spawn = self.fast
        if not hasattr(os, "posix_spawn"):
            self.fall_back()
        # What a new process forks before it is settled keeps what it was born with. With our own 0 the kernel
        # would prefer its parent, a shell perhaps, to it. Below 1000, so that we are not preferred meanwhile.
        try:
            self.score = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
        except OSError:
            self.score = -1
        # Our own limit of descriptors is raised for the pipes of many runs; theirs is the container's.
        self.files = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.raised = (self.files[1], self.files[1])
        if self.files[0] == self.files[1] or not set_limit(resource.RLIMIT_NOFILE, self.raised):
            self.raised = self.files

    def start(
        self, path: bytes, argv: list[bytes], env: dict[bytes, bytes], fds: tuple[int, int, int]
    ) -> int:
        """The new process's number. Raises OSError for what kept it from starting."""
        self.alarm.set()  # first: it needs a descriptor, which there may be none of below the limit of theirs
        if self.raised != self.files:
            set_limit(resource.RLIMIT_NOFILE, self.files)
        self.be_preferred(b"500")
        try:
            return self.spawn(path, argv, env, fds)
        except NotImplementedError:  # a C library without POSIX_SPAWN_SETSID
            self.fall_back()
            return self.spawn(path, argv, env, fds)
        finally:
            self.be_preferred(b"0")
            if self.raised != self.files:
                set_limit(resource.RLIMIT_NOFILE, self.raised)

    def be_preferred(self, score: bytes) -> None:
        """What the next process is born with."""
        try:
            os.write(self.score, score)
        except OSError:
            pass

    def fast(self, path: bytes, argv: list[bytes], env: dict[bytes, bytes], fds: tuple[int, int, int]) -> int:
        # glibc refuses descriptors above the limit, which is theirs now (__spawn_valid_fd): lend it low ones.
        lent = self.low if max(fds) >= self.files[0] else ()
        for fd, low in zip(fds, lent):
            os.dup2(fd, low, inheritable=False)
        actions = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(lent or fds)]
        try:
            return os.posix_spawn(
                path, argv, env, file_actions=actions, setsid=True, setsigmask=(), setsigdef=SIGNALS
            )
        finally:
            for low in lent:
                os.dup2(self.null, low, inheritable=False)

    def fall_back(self) -> None:
        """To fork. Python 3.12 warns of that beside a thread, but the alarm's runs no Python."""
        import warnings  # noqa: PLC0415 - two milliseconds that hardly any image needs

        warnings.simplefilter("ignore", DeprecationWarning)
        self.spawn = self.slow

    def slow(self, path: bytes, argv: list[bytes], env: dict[bytes, bytes], fds: tuple[int, int, int]) -> int:
        """The same by fork and exec; the new process tells through a pipe why exec failed."""
        told, tell = os.pipe2(os.O_CLOEXEC)
        try:
            pid = os.fork()
            if pid == 0:
                try:
                    os.setsid()
                    for number, fd in enumerate(fds):
                        os.dup2(fd, number)
                    for number in SIGNALS:
                        signal.signal(number, signal.SIG_DFL)
                    signal.pthread_sigmask(signal.SIG_SETMASK, ())
                    os.execve(path, argv, env)  # noqa: S606  # no shell is the point
                except OSError as error:
                    os.write(tell, U32.pack(error.errno))
                finally:
                    os._exit(127)
            os.close(tell)
            tell = -1
            code = os.read(told, 4)
        finally:
            os.close(told)
            if tell >= 0:
                os.close(tell)
        if code:
            os.waitpid(pid, 0)
            raise OSError(U32.unpack(code)[0], "exec")
        return pid

    def settle(self, pid: int) -> None:
        """What a new process should have but can only be given from outside."""
        try:
            os.setpriority(os.PRIO_PROCESS, pid, self.nice)
        except OSError:
            pass
        try:
            fd = os.open("/proc/%d/oom_score_adj" % pid, os.O_WRONLY)
        except OSError:
            return
        try:
            os.write(fd, b"1000")
        except OSError:
            pass
        finally:
            os.close(fd)


def set_limit(which: int, value: tuple[int, int]) -> bool:
    try:
        resource.setrlimit(which, value)
    except (OSError, ValueError):
        return False
    return True


class NoProgram(Exception):
    """126 or 127, and why."""

    def __init__(self, code: int, why: bytes) -> None:
        super().__init__(code)
        self.code = code
        self.why = why


def find_program(names: list[bytes], path: bytes) -> bytes:
    """The file to execute, searched as execvp does; the first name that is found counts."""
    refused = None
    for name in names:
        folders = [b""] if b"/" in name else path.split(b":")
        for folder in folders if name else []:
            file = os.path.join(folder or b".", name) if b"/" not in name else name
            try:
                mode = os.stat(file).st_mode
            except OSError as error:
                if error.errno == errno.EACCES:
                    refused = refused or (name, b"permission denied")
                continue
            if stat.S_ISDIR(mode):
                refused = refused or (name, b"is a folder")
            elif not os.access(file, os.X_OK):
                refused = refused or (name, b"permission denied")
            else:
                return file
    if refused:
        raise NoProgram(126, refused[0][:200] + b": " + refused[1])
    raise NoProgram(127, b", ".join(name[:200] for name in names) + b": not found")


class OomCounter:
    """How many processes of the sandbox the kernel has killed for memory.

    cgroup v1: ``oom_kill`` in memory.oom_control (Linux 4.13); v2: ``oom_kill`` in memory.events.
    """

    def __init__(self) -> None:
        self.fd = -1
        self.version = 0
        self.claimed = 0
        for version, path in self.places():
            try:
                self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                continue
            self.version = version
            self.claimed = self.read()
            return

    @staticmethod
    def places() -> list[tuple[int, str]]:
        own = "/"
        try:
            with open("/proc/self/cgroup", errors="surrogateescape") as file:
                own = [*(line[3:].rstrip() for line in file if line.startswith("0::")), own][0]
        except OSError:
            pass
        return [
            (1, "/sys/fs/cgroup/memory/memory.oom_control"),
            (2, "/sys/fs/cgroup/memory.events"),
            (2, "/sys/fs/cgroup%s/memory.events" % own),
        ]

    def read(self) -> int:
        if self.fd >= 0:
            try:
                lines = os.pread(self.fd, 4096, 0).splitlines()
            except OSError:
                return 0
            for line in lines:
                if line.startswith(b"oom_kill "):
                    return int(line[9:])
        return 0

    def claim(self, before: int, now: int) -> bool:
        """True if a kill since ``before`` has not yet been told as the end of another run."""
        if now <= before or now <= self.claimed:
            return False
        self.claimed = max(self.claimed, before) + 1
        return True


# -- Runs --------------------------------------------------------------------------------------------


class Stream:
    """One output pipe of a run."""

    __slots__ = ("credit", "fd", "kind", "run", "tail")

    def __init__(self, run: Run, fd: int, kind: int, credit: int) -> None:
        self.run = run
        self.fd = fd
        self.kind = kind
        self.credit = credit
        self.tail: int | None = None  # bytes to deliver yet, once the main process has ended


class Feed:
    """The stdin of a run that has one."""

    __slots__ = ("chunks", "closing", "fd", "owed", "run")

    def __init__(self, run: Run, fd: int) -> None:
        self.run = run
        self.fd = fd
        self.chunks: list[bytes] = []
        self.closing = False
        self.owed = 0


class Run:
    """A started program, until its END."""

    __slots__ = (
        "deadline", "feed", "flags", "kill", "mark", "oom_before", "op", "peak", "pid", "status",
        "streams",
    )  # fmt: skip

    def __init__(self, op: int, deadline: float, oom_before: int) -> None:
        self.op = op
        self.deadline = deadline
        self.oom_before = oom_before
        self.pid = 0
        self.mark = 0
        self.flags = 0
        self.peak = 0
        self.status: int | None = None
        self.streams: list[Stream] = []
        self.feed: Feed | None = None
        self.kill: Kill | None = None


class Leftover:
    """A pipe that a background process of an ended run still holds: read and thrown away."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd


def exit_code(status: int) -> tuple[int, int]:
    """Exit code as a shell or the engine reports it, and the signal."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return 128 + number, number
    return os.WEXITSTATUS(status), 0


class Kill:
    """One run that is being killed."""

    __slots__ = ("answers", "began", "killed", "live", "mark", "op", "rounds", "run", "stopped")

    def __init__(self, op: int, mark: int, run: Run | None, now: float) -> None:
        self.op = op
        self.mark = mark
        self.run = run
        self.began = now
        self.answers = 0
        self.rounds = 0
        self.live = 0
        self.stopped: set[int] = set()
        self.killed: set[int] = set()

    def claims(self, span: tuple[int, int] | None) -> bool:
        return span is not None and span[0] <= self.mark <= span[1]


class Killer:
    """Kills whole runs, however their processes hide, and nobody else.

    Every process that a scan of /proc finds with the run's mark gets SIGKILL; from then on it cannot fork.
    One that forks while the scan goes on is itself listed by it, living or as a zombie (its parent is in the
    run, too, or it is ours to collect). So a scan that lists no member but those that were struck before,
    and finds those dead, proves that none is left.

    Processes that multiply faster than a scan die with their process group, in one step. Those that also
    change their group, or take all of the CPU, are caught by stopping everything at once: kill(-1) is one
    step for the kernel. Only process 1 may do that; its namespace is its own.
    """

    def __init__(self, marks: Marks, mains: dict[int, Run]) -> None:
        self.marks = marks
        self.mains = mains
        self.jobs: list[Kill] = []

    def begin(self, job: Kill) -> None:
        self.jobs.append(job)

    def whose(self, pid: int) -> tuple[int, int] | None:
        """Mark a process that lacks its second mark as the run's that it descends from, if that shows."""
        process = look(pid)
        for _ in range(20):
            if process is None:
                break
            run = self.mains.get(process.session)
            if run:
                self.marks.pin(pid, run.mark)
                return run.mark, run.mark
            process = look(process.parent)
        return None

    def members(self, jobs: list[Kill]) -> Iterator[tuple[int, Kill]]:
        """The numbers of the processes of these runs, living or not."""
        if not self.marks.working:
            yield from ((process.pid, job) for process, job in self.find_by_family(jobs))
            return
        for pid in all_pids():
            span = self.marks.read(pid)
            if span and not span[0]:
                span = self.whose(pid) or span
            for job in jobs if span else ():
                if job.claims(span):
                    yield pid, job
                    break

    def find(self, jobs: list[Kill]) -> list[tuple[Process, Kill]]:
        """The same with their states."""
        if not self.marks.working:
            return self.find_by_family(jobs)
        looked = [(look(pid), job) for pid, job in self.members(jobs)]
        return [(process, job) for process, job in looked if process]

    def find_by_family(self, jobs: list[Kill]) -> list[tuple[Process, Kill]]:
        """Without marks: by parent, session and environment. A run that wants to can hide."""
        rest = [process for process in map(look, all_pids()) if process]
        found: list[tuple[Process, Kill]] = []
        for job in jobs:
            known = set(job.stopped)
            if job.run:
                known.add(job.run.pid)
            text = b"SANDBOXIO_RUN=%d" % job.mark
            grew = True
            while grew:
                mine = [
                    p for p in rest
                    if p.pid in known or p.parent in known or p.session in known
                    or environment_has(p.pid, text)
                ]  # fmt: skip
                grew = bool(mine)
                known.update(p.pid for p in mine)
                found += [(p, job) for p in mine]
                rest = [p for p in rest if p.pid not in known]
        return found

    def stop_walk(self, jobs: list[Kill]) -> None:
        """Stop what is there, so that it cannot fork while it is counted. Reaps nothing meanwhile."""
        until = time.monotonic() + STOP_WALK
        for job in jobs:
            job.rounds = 1
            if job.run and job.run.status is None:
                send_signal(-job.run.pid, signal.SIGSTOP)
        new = True
        while new and time.monotonic() < until:
            new = False
            for pid, job in self.members(jobs):
                if pid not in job.stopped:
                    send_signal(pid, signal.SIGSTOP)
                    job.stopped.add(pid)
                    new = True
        if new:  # they are too many, or too quick
            self.freeze()

    def strike(self) -> None:
        """Scan once and kill what is found.

        While there is anybody new, nothing but marks is read and nobody is counted as dead: the CPU may
        be full of them. Only then is it looked whether those that were struck are really gone.
        """
        groups = {os.getpgrp()}  # ours is no run's
        for job in self.jobs:
            job.live = 0
        for pid, job in self.members(self.jobs):
            self.kill(pid, groups)
            job.live += pid not in job.killed
            job.killed.add(pid)
        if not any(job.live for job in self.jobs):
            for process, job in self.find(self.jobs):
                job.live += process.alive

    def kill(self, pid: int, groups: set[int]) -> None:
        """Kill a member and its process group, once: the latter in one step, which no fork slips through.

        A group lies in one session and a session in one run: each begins in its own, and none can be entered.
        """
        try:
            group = os.getpgid(pid)
        except OSError:
            group = 0
        if group > 1 and group not in groups:
            groups.add(group)
            send_signal(-group, signal.SIGKILL)
        send_signal(pid, signal.SIGKILL)

    def freeze(self) -> None:
        """Stop every other process in one step, kill the members, let the others go on."""
        if os.getpid() != 1:
            return
        members = {pid for pid, _ in self.members(self.jobs)}
        others = (look(pid) for pid in all_pids() if pid not in members)
        stopped_before = {other.pid for other in others if other and other.state in b"Tt"}
        send_signal(-1, signal.SIGSTOP)
        groups = {os.getpgrp()}  # ours is no run's
        for pid, job in self.members(self.jobs):
            self.kill(pid, groups)
            members.add(pid)
            job.killed.add(pid)
        for pid in all_pids():
            if pid not in members and pid not in stopped_before:
                send_signal(pid, signal.SIGCONT)


def environment_has(pid: int, text: bytes) -> bool:
    try:
        with open("/proc/%d/environ" % pid, "rb") as file:
            return text in file.read().split(b"\0")
    except OSError:
        return False


# -- Files -------------------------------------------------------------------------------------------

GO, WAIT = True, False  # what a slice of a file operation yields: more to do, or nothing before news


class Job:
    """A file operation under way. It is not run while the way out is full."""

    __slots__ = ("chunks", "closing", "credit", "link", "op", "steps", "window")

    def __init__(self, link: Link, op: int, credit: int = 0) -> None:
        self.link = link
        self.op = op
        self.credit = self.window = credit
        self.chunks: list[bytes] = []
        self.closing = False
        self.steps: Steps

    def send(self, kind: int, payload: bytes) -> None:
        self.credit -= len(payload)
        self.link.send(kind, self.op, payload)

    def done(self, size: int = 0) -> None:
        self.link.send(DONE, self.op, struct.pack(">Q", size))


def read_file(job: Job, path: bytes, limit: int) -> Steps:
    check_regular(os.stat(path).st_mode)
    fd = os.open(path, os.O_RDONLY | NEVER_WAIT)
    try:
        info = os.fstat(fd)
        check_regular(info.st_mode)
        if limit and info.st_size > limit:
            raise Refused(TOO_LARGE)
        sent = 0
        while True:
            while job.credit <= 0:
                yield WAIT
            data = os.read(fd, min(MAX_PAYLOAD, job.credit))
            if not data:
                break
            sent += len(data)
            if limit and sent > limit:
                raise Refused(TOO_LARGE)
            job.send(DATA, data)
            yield GO
    finally:
        os.close(fd)
    job.done(sent)


def check_regular(mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "a folder")
    if not stat.S_ISREG(mode):
        raise Refused(NOT_REGULAR)


def write_file(job: Job, path: bytes, mode: int) -> Steps:
    """Into a temporary file beside the target, which then takes its place.

    A target in a folder that admits no new file, and one that is a mount, is written in place.
    """
    target, before = resolve_target(path)
    if before:
        check_regular(before.st_mode)
        if not os.access(target, os.W_OK):
            # opening it says why, as access() does not: no permission, or a read-only file system
            os.close(os.open(target, os.O_WRONLY | NEVER_WAIT))
            raise PermissionError(errno.EACCES, "not writable")
    fd, temporary = open_temporary(target, exists=before is not None)
    size = 0
    try:
        while job.chunks or not job.closing:
            if not job.chunks:
                yield WAIT
                continue
            chunk = job.chunks.pop(0)
            write_all(fd, chunk)
            size += len(chunk)
            job.link.send(GRANT, job.op, U32.pack(len(chunk)))
            yield GO
        if temporary:
            adopt(fd, before, mode)
            yield from take_place(fd, temporary, target)
            temporary = b""
        elif mode >= 0:
            os.fchmod(fd, mode)
    finally:
        os.close(fd)
        if temporary:
            try:
                os.unlink(temporary)
            except OSError:
                pass
    job.done(size)


def resolve_target(path: bytes) -> tuple[bytes, os.stat_result | None]:
    """The file that a path leads to through symbolic links, whether or not it exists yet."""
    if path.endswith(b"/"):
        raise IsADirectoryError(errno.EISDIR, "a folder")
    for _ in range(40):
        try:
            info = os.lstat(path)
        except FileNotFoundError:
            return path, None
        if not stat.S_ISLNK(info.st_mode):
            return path, info
        path = os.path.join(os.path.dirname(path), os.readlink(path))
    raise OSError(errno.ELOOP, "links in a circle")


def open_temporary(target: bytes, exists: bool) -> tuple[int, bytes]:
    name = os.path.join(os.path.dirname(target), b".sandboxio-" + os.urandom(8).hex().encode())
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(name, flags, 0o600), name
    except OSError as error:
        if not exists or error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT):
            raise
    return os.open(target, os.O_WRONLY | os.O_TRUNC | NEVER_WAIT), b""


def write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def adopt(fd: int, before: os.stat_result | None, mode: int) -> None:
    """Give the new file the owner and mode of the old one."""
    if before:
        try:
            os.fchown(fd, before.st_uid, before.st_gid)
        except OSError:
            pass  # another user's file becomes ours, as nothing else is permitted
        if mode < 0:
            mode = stat.S_IMODE(before.st_mode) & 0o1777
    os.fchmod(fd, 0o644 if mode < 0 else mode)


def take_place(fd: int, temporary: bytes, target: bytes) -> Steps:
    try:
        os.rename(temporary, target)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
    else:
        return
    # A file that is a mount point (/etc/hosts) cannot be replaced, only filled. What has the temporary file's
    # name by now may be another's FIFO; the descriptor is ours.
    os.lseek(fd, 0, os.SEEK_SET)
    out = os.open(target, os.O_WRONLY | os.O_TRUNC | NEVER_WAIT)
    try:
        while True:
            data = os.read(fd, MAX_PAYLOAD)
            if not data:
                break
            write_all(out, data)
            yield GO
    finally:
        os.close(out)
    os.unlink(temporary)


def kind_of(mode: int) -> int:
    if stat.S_ISREG(mode):
        return FILE
    if stat.S_ISDIR(mode):
        return FOLDER
    return LINK if stat.S_ISLNK(mode) else OTHER


def list_folder(job: Job, path: bytes) -> Steps:
    """Entries in the folder's own order, in frames of at most half a window."""
    size = max(1, min(MAX_PAYLOAD // 2, job.window // 2))
    batch = b""
    seen = 0
    with os.scandir(path) as entries:
        for entry in entries:
            seen += 1
            item = describe(entry)
            if len(batch) + len(item) > size:
                while job.credit < len(batch):
                    yield WAIT
                job.send(ENTRIES, batch)
                batch = b""
            batch += item
            if seen % 128 == 0:
                yield GO
    if batch:
        while job.credit < len(batch):
            yield WAIT
        job.send(ENTRIES, batch)
    job.done(seen)


def describe(entry: os.DirEntry[bytes]) -> bytes:
    try:
        info = entry.stat(follow_symlinks=False)
    except OSError:
        return b""  # gone meanwhile
    kind = kind_of(info.st_mode)
    code = kind
    if kind == LINK:
        try:
            code += 128 * entry.is_dir()
        except OSError:
            pass
    size = 0 if kind == FOLDER else info.st_size
    return struct.pack(">BQH", code, size, len(entry.name)) + entry.name


def make_folder(job: Job, path: bytes, parents: bool) -> None:
    if parents:
        at = 0
        while at >= 0:
            at = path.find(b"/", at + 1)
            ensure_folder(path if at < 0 else path[:at])
    else:
        os.mkdir(path)
    job.done()


def ensure_folder(path: bytes) -> None:
    try:
        os.mkdir(path)
    except OSError:
        if not stat.S_ISDIR(os.stat(path).st_mode):
            raise


def tell_facts(job: Job, path: bytes, follow: bool) -> None:
    info = os.stat(path) if follow else os.lstat(path)
    mode = stat.S_IMODE(info.st_mode)
    facts = (kind_of(info.st_mode), mode, info.st_size, info.st_mtime_ns)
    job.link.send(DONE, job.op, struct.pack(">BIQq", *facts))


DEEP = 64  # folders held open at once by a removal


def remove_tree(job: Job, path: bytes) -> Steps:
    """Remove a file, or a folder with all in it. Follows no symbolic link below ``path``."""
    path = path.rstrip(b"/") or b"/"
    if path == b"/":
        raise Refused(IN_USE)
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        os.unlink(path)
        job.done()
        return
    if os.path.basename(path) in (b".", b".."):  # the kernel says so, too, but only at the end
        raise OSError(errno.EINVAL, "no name")
    held: list[tuple[int, bytes]] = [(open_folder(path, None), b"")]
    try:
        while held:
            fd, name = held[-1]
            inner, more = clear_folder(fd, held[0][0], deep=len(held) >= DEEP)
            if inner:
                held.append((open_folder(inner, fd), inner))
            elif not more:
                held.pop()
                os.close(fd)
                if held:
                    os.rmdir(name, dir_fd=held[-1][0])
            yield GO
    finally:
        for fd, _ in held:
            os.close(fd)
    os.rmdir(path)
    job.done()


def open_folder(name: bytes, parent: int | None) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(name, flags, dir_fd=parent)


def clear_folder(fd: int, top: int, deep: bool) -> tuple[bytes, bool]:
    """Remove up to 128 entries. The name of a folder to go into first, and whether there may be more.

    A folder found very deep is moved to the top, so that depth costs no descriptors.
    """
    with os.scandir(fd) as entries:
        for count, entry in enumerate(entries):
            name = os.fsencode(entry.name)
            if count == 128:
                return b"", True
            if not entry.is_dir(follow_symlinks=False):
                unlink_if_there(name, fd)
            elif not remove_empty(name, fd):
                if not deep:
                    return name, True
                os.rename(name, os.urandom(12).hex(), src_dir_fd=fd, dst_dir_fd=top)
    return b"", False


def unlink_if_there(name: bytes, fd: int) -> None:
    try:
        os.unlink(name, dir_fd=fd)
    except FileNotFoundError:
        pass


def remove_empty(name: bytes, fd: int) -> bool:
    try:
        os.rmdir(name, dir_fd=fd)
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    return True


# -- The guest ---------------------------------------------------------------------------------------


class Watch:
    """The two sets of descriptors that the loop waits for. Tests bring their own."""

    def __init__(self) -> None:
        self.always = select.epoll()
        self.pipes = select.epoll()  # outputs of runs: not looked at while the way out is full
        self.owners: dict[int, Stream | Leftover | Feed] = {}

    def add(self, owner: Stream | Leftover | Feed) -> None:
        if owner.fd not in self.owners:
            self.owners[owner.fd] = owner
            if isinstance(owner, Feed):
                self.always.register(owner.fd, select.EPOLLOUT)
            else:
                self.pipes.register(owner.fd, select.EPOLLIN)

    def remove(self, owner: Stream | Leftover | Feed) -> None:
        if self.owners.pop(owner.fd, None) is not None:
            (self.always if isinstance(owner, Feed) else self.pipes).unregister(owner.fd)


class Settings:
    """What the launcher was told on its command line; nothing of it is secret."""

    def __init__(self, arguments: list[str]) -> None:
        lifetime, lifeline, work, localhost = arguments
        self.lifetime = float(lifetime)  # seconds; 0: somebody else's task
        self.lifeline = lifeline == "1"
        self.work = os.fsencode(work)
        self.localhost = localhost == "1"


class Guest:
    """All operations. Fed with bytes, clock and readiness; touches descriptors 0 and 1 nowhere."""

    def __init__(
        self, settings: Settings, env: dict[bytes, bytes], marks: Marks, spawner: Spawner, watch: Watch
    ) -> None:
        self.link = Link()
        self.settings = settings
        self.env = env
        self.marks = marks
        self.spawner = spawner
        self.watch = watch
        self.oom = OomCounter()
        self.parts: dict[int, list[bytes]] = {}
        self.runs: dict[int, Run] = {}
        self.mains: dict[int, Run] = {}  # by their main process, until that is collected
        self.killer = Killer(marks, self.mains)
        self.over: dict[int, int] = {}  # marks of ended runs, oldest first
        self.jobs: dict[int, Job] = {}
        self.ready: dict[int, Job] = {}
        self.resting: list[Leftover] = []
        self.leftovers = 0
        self.resume_at = 0.0
        self.next_deadline = float("inf")
        self.stopping = False

    # What the host sends

    def received(self, data: bytes) -> None:
        for kind, op, payload in self.link.frames(data):
            try:
                self.take(kind, op, payload)
            except (struct.error, IndexError):
                raise ProtocolBroken("a malformed frame of kind %d" % kind) from None

    def take(self, kind: int, op: int, payload: bytes) -> None:
        if kind in (INPUT, INPUT_END):
            self.take_input(op, payload, kind == INPUT_END)
        elif kind == CREDIT:
            self.take_credit(op, *struct.unpack(">BI", payload))
        elif kind == KILL:
            self.take_kill(op)
        elif kind == PART:
            self.take_part(op, payload)
        elif kind == STOP:
            self.stopping = True
        elif SETUP <= kind <= STAT:
            self.take_request(kind, op, b"".join([*self.parts.pop(op, ()), payload]))
        else:
            raise ProtocolBroken("frame kind %d" % kind)

    def take_part(self, op: int, payload: bytes) -> None:
        parts = self.parts.setdefault(op, [])
        parts.append(payload)
        if len(parts) > MAX_REQUEST // MAX_PAYLOAD + 1:
            raise ProtocolBroken("a request without end")

    def take_request(self, kind: int, op: int, body: bytes) -> None:
        if kind == SETUP:
            self.env.update(pairs(read_list(body, 0)[0]))
        elif op in self.runs or op in self.jobs:
            raise ProtocolBroken("operation %d again" % op)
        elif kind == START:
            self.start_run(op, body)
        else:
            self.start_job(kind, op, body)

    def take_input(self, op: int, data: bytes, last: bool) -> None:
        job = self.jobs.get(op)
        run = self.runs.get(op)
        target = job or (run and run.feed)
        if not target:
            return
        if last:
            target.closing = True
        elif data:
            target.chunks.append(data)
        if job:
            self.wake(job)
        elif run and run.feed:
            self.pour(run.feed)

    def take_credit(self, op: int, stream: int, size: int) -> None:
        if op in self.jobs:
            self.jobs[op].credit += size
            self.wake(self.jobs[op])
        elif op in self.runs:
            for candidate in self.runs[op].streams:
                if candidate.kind == STDOUT - 1 + stream and candidate.fd >= 0:
                    candidate.credit += size
                    self.watch.add(candidate)

    def take_kill(self, op: int) -> None:
        self.parts.pop(op, None)
        job = self.jobs.pop(op, None)
        run = self.runs.get(op)
        if job:
            self.ready.pop(op, None)
            job.steps.close()
            self.link.fail(op, CANCELLED)
            self.link.send(KILLED, op, bytes([DEAD]))
        elif run:
            run.flags |= 0 if run.kill else BY_HOST
            self.kill_run(run).answers += 1
        elif op in self.over:
            under_way = [kill for kill in self.killer.jobs if kill.op == op]
            kill = under_way[0] if under_way else Kill(op, self.over[op], None, time.monotonic())
            kill.answers += 1
            if not under_way:
                self.killer.begin(kill)
        else:
            self.link.send(KILLED, op, bytes([UNKNOWN]))

    # Starting a run

    def start_run(self, op: int, body: bytes) -> None:
        milliseconds, out, err, flags = struct.unpack_from(">QIIB", body)
        programs, at = read_list(body, 17)
        argv, at = read_list(body, at)
        own, at = read_list(body, at)
        env = {**self.env, **pairs(own)}
        deadline = time.monotonic() + milliseconds / 1000 if milliseconds else float("inf")
        run = Run(op, deadline, self.oom.read())
        try:
            self.enter_work_folder()
            path = find_program(programs or argv[:1], env.get(b"PATH", DEFAULT_PATH))
            if programs:  # an interpreter finds its library from its own name
                argv[:1] = [path]
            self.spawn(run, path, argv, env, (out, err), has_input=bool(flags & 1))
        except NoProgram as error:
            self.not_started(op, error, err)
        except Refused as error:
            self.link.fail(op, *error.args)
        except (OSError, ValueError) as error:
            self.link.fail(op, SYSTEM, getattr(error, "errno", None) or errno.EINVAL)
        else:
            self.runs[op] = run
            self.next_deadline = min(self.next_deadline, deadline)
            if flags & 2:
                self.link.send(STARTED, op, U32.pack(run.pid))

    def enter_work_folder(self) -> None:
        """Also when the code has removed it: the next run finds an empty one."""
        try:
            os.chdir(self.settings.work)
        except OSError:
            try:
                os.makedirs(self.settings.work, exist_ok=True)
                os.chdir(self.settings.work)
            except OSError as error:
                raise Refused(NO_WORK_FOLDER, error.errno) from None

    def spawn(
        self, run: Run, path: bytes, argv: list[bytes], env: dict[bytes, bytes],
        windows: tuple[int, int], has_input: bool,
    ) -> None:  # fmt: skip
        ours: list[int] = []
        theirs: list[int] = []
        try:
            for _ in windows:
                reading, writing = os.pipe2(os.O_CLOEXEC)
                ours.append(reading)
                theirs.append(writing)
            stdin = self.spawner.null
            if has_input:
                stdin, writing = os.pipe2(os.O_CLOEXEC)
                ours.append(writing)
                theirs.append(stdin)
            run.mark = self.marks.next()
            if not self.marks.working:
                env[b"SANDBOXIO_RUN"] = b"%d" % run.mark
            run.pid = self.start_program(path, argv, env, (stdin, theirs[0], theirs[1]))
        except BaseException:
            for fd in ours:
                os.close(fd)
            raise
        finally:
            for fd in theirs:
                os.close(fd)
        self.mains[run.pid] = run
        self.spawner.settle(run.pid)
        self.marks.pin(run.pid, run.mark)  # last: who lacks this mark may lack the rest, too
        self.look_for_early_children()
        for fd in ours:
            os.set_blocking(fd, False)
        for kind, fd, credit in zip((STDOUT, STDERR), ours, windows):
            stream = Stream(run, fd, kind, credit)
            run.streams.append(stream)
            if credit:
                self.watch.add(stream)
        if has_input:
            run.feed = Feed(run, ours[2])

    def look_for_early_children(self) -> None:
        """Give them what they lack, while main processes tell whose they are."""
        for early in self.marks.early_children():
            self.spawner.settle(early)
            self.killer.whose(early)

    def start_program(
        self, path: bytes, argv: list[bytes], env: dict[bytes, bytes], fds: tuple[int, int, int]
    ) -> int:
        try:
            return self.spawner.start(path, argv, env, fds)
        except OSError as error:
            if error.errno == errno.ENOENT:
                raise NoProgram(127, path[:200] + b": its interpreter is missing") from None
            if error.errno == errno.ENOEXEC:
                raise NoProgram(126, path[:200] + b": not a program of this machine") from None
            if error.errno in (errno.EACCES, errno.EPERM, errno.EISDIR, errno.ETXTBSY):
                why = os.strerror(error.errno).lower().encode()
                raise NoProgram(126, path[:200] + b": " + why) from None
            raise

    def not_started(self, op: int, error: NoProgram, credit: int) -> None:
        text = (b"sandboxio: " + error.why + b"\n")[:credit]
        if text:
            self.link.send(STDERR, op, text)
        self.link.send(END, op, struct.pack(">BiBQQ", NOT_STARTED, error.code, 0, 0, 0))

    # Streams of a run

    def drain(self, stream: Stream) -> None:
        """Read once from an output, as far as there is credit."""
        size = min(MAX_PAYLOAD, stream.credit)
        if stream.tail is not None:
            size = min(size, stream.tail)
        if size > 0:
            data, ended = read_some(stream.fd, size)
            if data:
                self.link.send(stream.kind, stream.run.op, data)
                stream.credit -= len(data)
                if stream.tail is not None:
                    stream.tail -= len(data)
            if ended:
                self.close_stream(stream)
        if stream.fd >= 0 and stream.tail == 0:
            self.leave(stream)
        elif stream.fd >= 0 and stream.credit <= 0:
            self.watch.remove(stream)
        self.try_end(stream.run)

    def close_stream(self, stream: Stream) -> None:
        self.watch.remove(stream)
        os.close(stream.fd)
        stream.fd = -1

    def leave(self, stream: Stream) -> None:
        """All of the run's own output is read; somebody in the background holds the pipe."""
        self.watch.remove(stream)
        if self.leftovers < LEFTOVERS:
            self.leftovers += 1
            self.watch.add(Leftover(stream.fd))
        else:
            os.close(stream.fd)
        stream.fd = -1

    def skim(self, leftover: Leftover) -> None:
        """Throw away what a background process prints, at a bounded rate."""
        self.watch.remove(leftover)
        try:
            data = os.read(leftover.fd, MAX_PAYLOAD)
        except BlockingIOError:
            data = b"-"
        if data:
            if not self.resting:
                self.resume_at = time.monotonic() + LEFTOVER_PAUSE
            self.resting.append(leftover)
        else:
            self.leftovers -= 1
            os.close(leftover.fd)

    def pour(self, feed: Feed) -> None:
        """Give a run its input."""
        while feed.chunks and feed.fd >= 0:
            try:
                size = os.write(feed.fd, feed.chunks[0])
            except BlockingIOError:
                break
            except OSError:  # the program has closed its stdin
                self.close_feed(feed)
                break
            feed.owed += size
            feed.chunks[0] = feed.chunks[0][size:]
            if not feed.chunks[0]:
                del feed.chunks[0]
        if feed.fd < 0:
            feed.owed += sum(map(len, feed.chunks))
            feed.chunks.clear()
        if feed.owed and (feed.owed >= INPUT_WINDOW // 4 or not feed.chunks):
            self.link.send(GRANT, feed.run.op, U32.pack(feed.owed))
            feed.owed = 0
        if feed.fd >= 0:
            if feed.chunks:
                self.watch.add(feed)
            elif feed.closing:
                self.close_feed(feed)
            else:
                self.watch.remove(feed)

    def close_feed(self, feed: Feed) -> None:
        if feed.fd >= 0:
            self.watch.remove(feed)
            os.close(feed.fd)
            feed.fd = -1

    # The end of a run

    def reap(self) -> None:
        """Collect all ended children: mains of runs, and orphans that became ours."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT | WALL)
            except ChildProcessError:
                return
            if ended is None:
                return
            run = self.mains.get(ended.si_pid)
            if run:
                self.look_for_early_children()
            # Who asks its parent to trace it (PTRACE_TRACEME) shows its stops, too, and may take one back
            # before this: then nothing is here to collect, and when there will be is up to the code inside.
            pid, status, usage = os.wait4(ended.si_pid, WALL | os.WNOHANG)
            if not pid or os.WIFSTOPPED(status):
                continue
            if run:
                del self.mains[run.pid]
                self.main_ended(run, status, usage.ru_maxrss)

    def main_ended(self, run: Run, status: int, peak: int) -> None:
        run.status = status
        run.peak = peak
        if run.feed:
            self.close_feed(run.feed)
        for stream in run.streams:
            if stream.fd >= 0:
                stream.tail = waiting_bytes(stream.fd)
                # With nothing waiting: is it at its end, or does somebody in the background hold it?
                if stream.tail == 0 and at_eof(stream.fd):
                    self.close_stream(stream)
                elif stream.tail == 0:
                    self.leave(stream)
        self.try_end(run)

    def try_end(self, run: Run) -> None:
        if run.status is not None and run.kill is None and all(s.fd < 0 for s in run.streams):
            self.end(run)

    def end(self, run: Run) -> None:
        if self.runs.pop(run.op, None) is None:
            return
        self.over[run.op] = run.mark
        if len(self.over) > REMEMBERED:
            del self.over[next(iter(self.over))]
        code, number = exit_code(signal.SIGKILL if run.status is None else run.status)
        now = self.oom.read()
        if now > run.oom_before:
            stricken = code == 128 + signal.SIGKILL and not run.flags & (TIMED_OUT | BY_HOST)
            told = stricken and self.oom.claim(run.oom_before, now)
            run.flags |= OUT_OF_MEMORY if told else MEMORY_HINT
        rise = max(0, now - run.oom_before)
        self.link.send(END, run.op, struct.pack(">BiBQQ", run.flags, code, number, rise, run.peak))

    # Killing

    def kill_run(self, run: Run) -> Kill:
        if run.kill is None:
            run.kill = Kill(run.op, run.mark, run, time.monotonic())
            self.killer.begin(run.kill)
        return run.kill

    def kill_round(self) -> None:
        killer = self.killer
        fresh = [job for job in killer.jobs if not job.rounds]
        if fresh:
            killer.stop_walk(fresh)
        self.reap()
        killer.strike()
        now = time.monotonic()
        stubborn = False
        for job in list(killer.jobs):
            job.rounds += 1
            if not job.live:
                self.reap()
                self.kill_done(job, DEAD)
            elif now - job.began > KILL_BOUND:
                self.kill_done(job, ALIVE)
            elif job.rounds > 5 and now - job.began > PATIENCE:
                stubborn = True
        if stubborn:
            killer.freeze()

    def kill_done(self, job: Kill, fate: int) -> None:
        self.killer.jobs.remove(job)
        run = job.run
        if run:
            run.kill = None
            if fate == ALIVE:
                run.flags |= SURVIVORS
            if self.mains.pop(run.pid, None):  # dead, but shown to whoever traces it before us; or alive
                self.main_ended(run, signal.SIGKILL, 0)
            if run.flags & BY_HOST or fate == ALIVE or job.answers:
                self.cut_off(run)
            self.try_end(run)
        for _ in range(job.answers):
            self.link.send(KILLED, job.op, bytes([fate]))

    def cut_off(self, run: Run) -> None:
        """End a run without waiting for credit: what fits is delivered, the rest is not wanted."""
        if run.feed:
            self.close_feed(run.feed)
        for stream in run.streams:
            while stream.fd >= 0 and stream.credit > 0 and stream.tail:
                self.drain_quietly(stream)
            if stream.fd >= 0:
                self.close_stream(stream)

    def drain_quietly(self, stream: Stream) -> None:
        size = min(MAX_PAYLOAD, stream.credit, stream.tail or 0)
        try:
            data = os.read(stream.fd, size)
        except BlockingIOError:
            data = b""
        if not data:
            self.close_stream(stream)
            return
        self.link.send(stream.kind, stream.run.op, data)
        stream.credit -= len(data)
        stream.tail = (stream.tail or 0) - len(data)

    # Files

    def start_job(self, kind: int, op: int, body: bytes) -> None:
        if kind == READ:
            limit, window = struct.unpack_from(">QI", body)
            job = Job(self.link, op, window)
            job.steps = self.steps(lambda: read_file(job, self.path(body[12:]), limit))
        elif kind == WRITE:
            (mode,) = struct.unpack_from(">i", body)
            job = Job(self.link, op)
            job.steps = self.steps(lambda: write_file(job, self.path(body[4:]), mode))
        elif kind == LIST:
            job = Job(self.link, op, U32.unpack_from(body)[0])
            job.steps = self.steps(lambda: list_folder(job, self.path(body[4:])))
        elif kind == MKDIR:
            job = Job(self.link, op)
            job.steps = self.steps(lambda: make_folder(job, self.path(body[1:]), bool(body[0])))
        elif kind == REMOVE:
            job = Job(self.link, op)
            job.steps = self.steps(lambda: remove_tree(job, self.path(body)))
        else:
            job = Job(self.link, op)
            job.steps = self.steps(lambda: tell_facts(job, self.path(body[1:]), bool(body[0])))
        self.jobs[op] = self.ready[op] = job
        if not self.link.full:
            self.slice(job)

    def steps(self, begin: Callable[[], Steps | None]) -> Steps:
        """Whatever goes wrong, goes wrong in a slice."""
        yield from begin() or ()

    def path(self, path: bytes) -> bytes:
        if not path or b"\0" in path:
            raise Refused(BAD_REQUEST)
        return os.path.join(self.settings.work, path)

    def wake(self, job: Job) -> None:
        self.ready[job.op] = job

    def slice(self, job: Job) -> None:
        """Run a file operation until its next yield."""
        try:
            more = next(job.steps)
            del self.ready[job.op]
            if more is GO:  # after those that wait already
                self.ready[job.op] = job
            return
        except StopIteration:
            pass
        except Refused as error:
            self.link.fail(job.op, *error.args)
        except (OSError, ValueError) as error:
            self.link.fail(job.op, SYSTEM, getattr(error, "errno", None) or errno.EINVAL)
        del self.jobs[job.op], self.ready[job.op]

    # Time

    def timeout(self, now: float) -> float:
        """Seconds that the loop may sleep."""
        if self.ready and not self.link.full:
            return 0
        until = min(self.next_deadline, self.spawner.alarm.rests_at)
        if self.resting:
            until = min(until, self.resume_at)
        if self.killer.jobs:
            until = min(until, now + 0.001)
        return max(0.0, until - now)

    def work(self, now: float) -> None:
        """What is due: deadlines, kills, file operations, background output."""
        if now >= self.next_deadline:
            self.check_deadlines(now)
        if now >= self.spawner.alarm.rests_at:
            self.spawner.alarm.rest()
        if self.killer.jobs:
            self.kill_round()
        for job in list(self.ready.values()):
            if self.link.full:
                break
            self.slice(job)
        if self.resting and now >= self.resume_at:
            for leftover in self.resting:
                self.watch.add(leftover)
            self.resting = []

    def check_deadlines(self, now: float) -> None:
        self.next_deadline = float("inf")
        for run in list(self.runs.values()):
            if run.deadline <= now:
                if run.kill is None and run.status is None:
                    run.flags |= TIMED_OUT
                    self.kill_run(run)
                run.deadline = float("inf")
            self.next_deadline = min(self.next_deadline, run.deadline)

    def abandon(self) -> None:
        """The host is gone for good, and the sandbox lives on: nothing waits for it any more."""
        for op in list(self.jobs):
            self.take_kill(op)
        for run in self.runs.values():
            for stream in run.streams:
                if stream.fd >= 0:
                    stream.credit = 1 << 60
                    self.watch.add(stream)
            if run.feed:
                self.close_feed(run.feed)


def read_some(fd: int, size: int) -> tuple[bytes, bool]:
    """What a pipe holds, up to ``size``, and whether it is at its end.

    A program that writes in small pieces is run once more before the next look, because it wakes us with
    each of them: frames of a few bytes would cost the host more than the sandbox.
    """
    pieces: list[bytes] = []
    left = size
    while left > size // 2:
        try:
            data = os.read(fd, left)
        except BlockingIOError:
            break
        if not data:
            return b"".join(pieces), True
        pieces.append(data)
        left -= len(data)
        if left > size // 2:
            os.sched_yield()
    return b"".join(pieces), False


def waiting_bytes(fd: int) -> int:
    try:
        return int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, bytes(4)), sys.byteorder)
    except OSError:
        return 0


def at_eof(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, 0)
    return bool(poll.poll(0))


# -- The loop ----------------------------------------------------------------------------------------


def ignore(_number: int, _frame: object) -> None:
    """A handler, so that the signal interrupts the wait."""


class Loop:
    """Descriptors 0 and 1, the clock and ended children; everything else is the guest's."""

    def __init__(self, guest: Guest, began: float) -> None:
        self.guest = guest
        self.watch = guest.watch
        self.host = True
        self.blocked = False
        self.pipes_on = False
        settings = guest.settings
        self.end_at = began + settings.lifetime if settings.lifetime else float("inf")
        self.woken, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, ignore)
        for fd in (0, 1):
            os.set_blocking(fd, False)
        self.watch.always.register(0, select.EPOLLIN)
        self.watch.always.register(1, 0)
        self.watch.always.register(self.woken, select.EPOLLIN)

    def run(self) -> None:
        guest = self.guest
        while not guest.stopping:
            self.flush()
            self.look_at_pipes(not guest.link.full)
            now = time.monotonic()
            if now >= self.end_at:
                return
            timeout = min(guest.timeout(now), self.end_at - now)
            events = self.watch.always.poll(min(timeout, LONGEST_SLEEP))
            for fd, what in events:
                self.handle(fd, what)
            guest.work(time.monotonic())

    def handle(self, fd: int, what: int) -> None:
        if fd == 0:
            self.read_host()
        elif fd == 1:
            if what & (select.EPOLLERR | select.EPOLLHUP) and self.host:
                self.lost()
            self.flush()
        elif fd == self.woken:
            os.read(self.woken, 4096)
            self.guest.reap()
        elif fd == self.watch.pipes.fileno():
            self.read_pipes()
        else:
            owner = self.watch.owners.get(fd)
            if isinstance(owner, Feed):
                self.guest.pour(owner)

    def read_host(self) -> None:
        try:
            data = os.read(0, 256 * 1024)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self.guest.received(data)
        else:
            self.watch.always.unregister(0)
            self.lost()

    def lost(self) -> None:
        """Nobody is there any more."""
        if self.guest.settings.lifeline:
            self.guest.stopping = True
            return
        if self.host:
            self.host = False
            self.watch.always.unregister(1)
            self.guest.abandon()
        link = self.guest.link
        link.out.clear()
        link.pending = 0

    def flush(self) -> None:
        link = self.guest.link
        try:
            while link.out and self.host:
                link.sent(os.writev(1, link.out[:64]))
        except BlockingIOError:
            pass
        except OSError:
            self.lost()
        if not self.host:
            self.lost()
        elif bool(link.out) != self.blocked:
            self.blocked = bool(link.out)
            self.watch.always.modify(1, select.EPOLLOUT if self.blocked else 0)

    def look_at_pipes(self, on: bool) -> None:
        if on != self.pipes_on:
            self.pipes_on = on
            if on:
                self.watch.always.register(self.watch.pipes.fileno(), select.EPOLLIN)
            else:
                self.watch.always.unregister(self.watch.pipes.fileno())

    def read_pipes(self) -> None:
        for fd, _ in self.watch.pipes.poll(0, 64):
            owner = self.watch.owners.get(fd)
            if isinstance(owner, Stream):
                self.guest.drain(owner)
            elif isinstance(owner, Leftover):
                self.guest.skim(owner)
            if self.guest.link.full:
                return


def oversee(end_at: float, lifeline: bool) -> None:
    """A second thread of process 1, which keeps rule 3 while the kernel holds the first.

    A remove or a rename waits for whoever writes to the file, and code inside can have many write to it, each
    for long. Nothing ends that wait but the end of those it is for. No answer is lost: it is over anyway.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    end = select.poll()
    if lifeline:
        end.register(0, 0)
    ended: list[tuple[int, int]] = []
    while not ended and time.monotonic() < end_at:
        ended = end.poll(1000 * max(0.0, min(end_at - time.monotonic(), LONGEST_SLEEP)) + 1)
    time.sleep(OVERDUE)
    send_signal(-1, signal.SIGKILL)
    os._exit(0)


# -- Start -------------------------------------------------------------------------------------------


def own_environment() -> dict[bytes, bytes]:
    """What the image and the engine gave us, without what a shell and Python's start-up added."""
    with open("/proc/self/environ", "rb") as file:
        env = pairs([item for item in file.read().split(b"\0") if b"=" in item])
    for name in SHELL_NAMES:
        env.pop(name, None)
    return env


def prctl(option: int, value: int = 0) -> int:
    """What prctl(2) answers, which only C can call: -1 if it failed or this Python has no way to C."""
    try:
        try:
            c: Any = __import__("_ctypes")  # the module around it takes ten times as long to load
            function = c.dlsym(c.dlopen(None, 2), "prctl")
            return int(c.call_function(function, (option, value, 0, 0, 0)))
        except AttributeError:  # these names are nobody's promise
            c = __import__("ctypes")
            return int(c.CDLL(None).prctl(option, value, 0, 0, 0))
    except (ImportError, AttributeError, OSError):
        return -1


def prepare_work_folder(work: bytes) -> int:
    try:
        os.makedirs(work, exist_ok=True)
        os.chdir(work)
    except OSError:
        return 0
    return WORK | (WORK_WRITABLE if os.access(work, os.W_OK | os.X_OK) else 0)


def ensure_localhost(write: bool) -> int:
    """Without a network the engine makes no /etc/hosts, and looking localhost up would fail."""
    text = b""
    try:
        with open("/etc/hosts", "rb") as file:
            text = file.read(65536)
    except OSError:
        pass
    if b"localhost" in text:
        return LOCALHOST
    if not write:
        return 0
    try:
        with open("/etc/hosts", "ab") as file:
            file.write(b"127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n")
    except OSError:
        return 0
    return LOCALHOST


def write_number(path: str, number: int) -> bool:
    try:
        with open(path, "w") as file:
            file.write(str(number))
    except OSError:
        return False
    return True


def greet(guest: Guest, traits: int) -> None:
    traits |= MARKED if guest.marks.working else 0
    traits |= OOM_COUNTER if guest.oom.version else 0
    traits |= LIFELINE if guest.settings.lifeline else 0
    ids = os.getuid(), os.getgid(), os.getpid(), guest.oom.version, traits
    guest.link.send(HELLO, 0, struct.pack(">4sH3BIIIBH", b"SBXG", VERSION, *sys.version_info[:3], *ids))


def ignore_signals() -> None:
    """The kernel keeps from process 1 what code inside sends and nothing handles, but for a gap.

    A signal that the first thread blocks, as it does while it starts a process, goes to any thread that does
    not; a new thread does not for a moment. What is not ignored is then fatal to all, process 1 or not.
    Source: Linux 6.1, kernel/signal.c, ``sig_ignored`` and ``complete_signal``.
    """
    for number in SIGNALS - {signal.SIGCHLD}:
        try:
            signal.signal(number, signal.SIG_IGN)
        except OSError:  # kept by what emulates another processor: then the kernel's own rule has to do
            pass


def end_everything(guest: Guest) -> None:
    """As process 1, exit is enough: the kernel kills the rest. A second guest ends its own runs."""
    if os.getpid() != 1:
        for run in list(guest.runs.values()):
            guest.kill_run(run)
        while guest.killer.jobs:
            guest.kill_round()
            time.sleep(0.001)
    os._exit(0)


def main(arguments: list[str], began: float) -> None:
    """``arguments`` are the fields of :class:`Settings`; ``began`` is when the container started."""
    settings = Settings(arguments)
    init = os.getpid() == 1
    env = own_environment()
    os.umask(0o022)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if init:
        ignore_signals()
    write_number("/proc/self/oom_score_adj", 0)
    traits = INIT if init else 0
    traits |= prepare_work_folder(settings.work) | ensure_localhost(settings.localhost)
    traits |= ADOPTS if init or prctl(36, 1) == 0 else 0  # PR_SET_CHILD_SUBREAPER
    first = 0 if init else RUNS * (1 + int.from_bytes(os.urandom(3), "big"))
    marks = Marks(first)
    guest = Guest(settings, env, marks, Spawner(Alarm(marks.threads)), Watch())
    prctl(4, 0)  # PR_SET_DUMPABLE
    traits |= HIDDEN if prctl(3) == 0 else 0  # PR_GET_DUMPABLE
    try:
        fcntl.fcntl(1, 1031, 256 * 1024)  # F_SETPIPE_SZ
    except OSError:
        pass
    greet(guest, traits)
    loop = Loop(guest, began)
    if init:
        try:
            start_new_thread(oversee, (loop.end_at, settings.lifeline))
        except RuntimeError:  # no thread to be had
            pass
        marks.threads.update(own_threads())
    try:
        loop.run()
    except ProtocolBroken as error:
        os.write(2, b"sandboxio guest: %s\n" % str(error).encode())
    end_everything(guest)

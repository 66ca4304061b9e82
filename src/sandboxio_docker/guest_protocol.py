"""The protocol between a sandbox's guest and its host: its rules, its numbers, its frames. No I/O.

``guest.py`` is the other end. It must be one file, so it repeats the numbers below; a test holds the
two together. All integers are big-endian.

A frame is ``u32 length, u8 kind, u32 operation`` and then ``length`` bytes of payload.

1.  Version. The guest's first frame is HELLO, with the protocol's version in it. Before it, and only
    there, a launcher that found no usable Python may send one line of text that starts with
    ``sandboxio: `` instead; then no frame ever follows.
2.  Size. No payload is longer than 64 KiB. A longer request travels as PART frames and ends with
    the frame that names it; the parts are put together in order.
3.  Operations. The host numbers them, rising from 1; 0 is the connection itself. START, READ, WRITE,
    LIST, MKDIR, REMOVE and STAT begin one. The guest ends each with exactly one *last* frame: END for
    a run, DONE or ERROR for everything else. ERROR also ends a run that could not be tried.
4.  KILL ends an operation early. The guest answers every KILL with exactly one KILLED, also for a
    number that it has never seen: a cancelled host cannot know whether its request had left. If the
    operation was alive its last frame comes before KILLED. KILL after END kills what a run left behind.
5.  Credit. STDOUT, STDERR, DATA and ENTRIES of an operation never exceed the bytes granted for that
    stream: first the window in the request, then CREDIT frames. INPUT of an operation never exceeds
    256 KiB plus the GRANT frames for it.
6.  No side may stop reading because it cannot write. The guest stops reading a run's pipe instead.
7.  Order. Bytes of one stream arrive in the order in which they were written. END comes after all
    output that had been written when the main process ended.
8.  Unknown operations in INPUT, INPUT_END and CREDIT are ignored by the guest: they cross its last frame.
    The host takes any frame for an operation that it does not know for a broken or hostile guest.
9.  Text from inside travels in four places only: output, file content, names of entries, and the
    launcher's line. Failures are codes: a reason from a fixed list and an errno's symbolic name.

=========== ============ ==============================================================================
host sends  kind         payload (``list`` is ``u32 count``, then ``u32 length`` and bytes for each)
=========== ============ ==============================================================================
SETUP       1            list of ``NAME=value``: environment of every run, over the image's own
PART        2            a piece of the next request of this operation
START       3            u64 timeout in ms (0: none), u32 window of stdout, u32 window of stderr, u8
                         flags (1: INPUT follows, 2: STARTED wanted), list of programs to look for, list
                         of arguments, list of ``NAME=value``. An empty list of programs: the first argument
READ        4            u64 limit in bytes (0: none), u32 window, path
WRITE       5            i32 mode (-1: keep the file's, or 0o644), path; INPUT follows
LIST        6            u32 window, path
MKDIR       7            u8 parents, path
REMOVE      8            path (a folder goes with all that it holds)
STAT        9            u8 follow the last symbolic link, path
INPUT       10           bytes for the run's stdin or the file
INPUT_END   11           empty
CREDIT      12           u8 stream (0 DATA and ENTRIES, 1 STDOUT, 2 STDERR), u32 bytes
KILL        13           empty
STOP        14           empty, operation 0: the guest kills everything and exits
=========== ============ ==============================================================================

=========== ============ ==============================================================================
guest sends kind         payload
=========== ============ ==============================================================================
HELLO       65           ``SBXG``, u16 version, 3 u8 Python version, u32 uid, u32 gid, u32 pid, u8 cgroup
                         version (0: unknown), u16 traits (see :class:`Trait`)
STARTED     66           u32 pid, as seen in the sandbox
STDOUT      67           bytes, at least one
STDERR      68           bytes, at least one
GRANT       69           u32 bytes of INPUT more
END         70           u8 flags (see :class:`Ending`), i32 exit code (128 + n for a signal), u8 signal,
                         u64 OOM kills in the sandbox since the run began, u64 peak RSS in KiB
DATA        71           bytes, at least one
ENTRIES     72           for each entry: u8 kind (:class:`EntryKind`, + 128: a link to a folder), u64 size,
                         u16 length, name; at least one
DONE        73           u64 bytes moved; for STAT: u8 kind, u32 mode, u64 size, i64 mtime in ns
ERROR       74           u8 reason (see :class:`Reason`), errno's name in ASCII (``ENOENT``), or empty
KILLED      75           u8 (see :class:`Fate`)
=========== ============ ==============================================================================
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, IntFlag

VERSION = 1
MAX_PAYLOAD = 64 * 1024
MAX_NOTICE = 512
MAX_REQUEST = 8 * 1024 * 1024
"""Bytes of one request: above what Linux takes as arguments and environment of a new program."""
INPUT_WINDOW = 256 * 1024
FIRST_WINDOW = 256 * 1024
FULL_WINDOW = 1024 * 1024
LEAST_WINDOW = 1024
PACED_BUDGET = 960 * 1024
"""Bytes granted in sum to streams that the caller reads at leisure. The engine's own handling of a
container's end blocks when more than about 1.2 MB are undelivered (moby/moby#41827)."""

NOTICE_START = b"sandboxio: "
MAGIC = b"SBXG"

HEAD = struct.Struct(">IBI")
_HELLO = struct.Struct(">4sH3BIIIBH")
_END = struct.Struct(">BiBQQ")
_ENTRY = struct.Struct(">BQH")
_FACTS = struct.Struct(">BIQq")
_COUNT = struct.Struct(">I")
_SIZE = struct.Struct(">Q")
_ERRNO = re.compile(rb"E[A-Z0-9]{1,15}\Z|\Z")


class GuestProtocolError(Exception):
    """What came from inside breaks the protocol: the guest is broken, or somebody plays guest.

    Internal: the channel turns it into the public error of the operation at hand.
    """


class ConnectionLost(Exception):
    """Nothing more will come or go on the guest's connection; the cause says why. Internal, too."""


class Kind(IntEnum):
    """Kinds of frames: below 64 from the host, above from the guest."""

    SETUP = 1
    PART = 2
    START = 3
    READ = 4
    WRITE = 5
    LIST = 6
    MKDIR = 7
    REMOVE = 8
    STAT = 9
    INPUT = 10
    INPUT_END = 11
    CREDIT = 12
    KILL = 13
    STOP = 14
    HELLO = 65
    STARTED = 66
    STDOUT = 67
    STDERR = 68
    GRANT = 69
    END = 70
    DATA = 71
    ENTRIES = 72
    DONE = 73
    ERROR = 74
    KILLED = 75


class Trait(IntFlag):
    """What the guest found out about its surroundings."""

    INIT = 1
    """It is process 1 of its PID namespace."""
    MARKS = 2
    """Runs are marked by resource limits; without, a run that hides well may survive its kill."""
    HIDDEN = 4
    """Its memory and descriptors are closed to other processes of the sandbox."""
    OOM_COUNTER = 8
    """It can tell an out-of-memory kill from any other."""
    ADOPTS = 16
    """Orphans of its runs become its children."""
    WORK_FOLDER = 32
    """The working folder exists."""
    WORK_WRITABLE = 64
    LOCALHOST = 128
    """/etc/hosts names localhost."""
    LIFELINE = 256
    """It ends when its connection ends."""


class Ending(IntFlag):
    """What is to be known about the end of a run besides its exit code."""

    TIMED_OUT = 1
    KILLED = 2
    """A KILL frame ended it."""
    OUT_OF_MEMORY = 4
    """The kernel killed it (or the command that it waited for) at the memory cap."""
    MEMORY_HINT = 8
    """The kernel killed something at the memory cap meanwhile; the run itself ended in its own way."""
    NOT_STARTED = 16
    """Exit code 126 or 127 comes from the guest, which found no such program; stderr says why."""
    SURVIVORS = 32
    """Not all its processes could be killed in time: the sandbox has to go."""


class Reason(IntEnum):
    """Why an operation failed, where an errno alone would not say it."""

    SYSTEM = 0
    """The errno says all."""
    NOT_REGULAR = 1
    """A device, FIFO or socket where a file is wanted."""
    TOO_LARGE = 2
    """The file is longer than the limit of the request."""
    CANCELLED = 3
    BAD_REQUEST = 4
    NO_WORK_FOLDER = 5
    """The working folder is gone and cannot be made again."""
    IN_USE = 6
    """The root folder cannot be removed."""


class Fate(IntEnum):
    """What became of an operation that was to be killed."""

    DEAD = 0
    UNKNOWN = 1
    SURVIVORS = 2


class EntryKind(IntEnum):
    """What a name in a folder is, without following it."""

    FILE = 0
    FOLDER = 1
    LINK = 2
    OTHER = 3


# Events


@dataclass(frozen=True, slots=True)
class Hello:
    """The guest is there."""

    op: int
    version: int
    python: tuple[int, int, int]
    uid: int
    gid: int
    pid: int
    cgroup: int
    traits: Trait


@dataclass(frozen=True, slots=True)
class Notice:
    """The launcher found no Python; ``text`` is its line, from inside and so not to be trusted."""

    op: int
    text: str


@dataclass(frozen=True, slots=True)
class Started:
    """The program of a run runs; ``pid`` as seen in the sandbox."""

    op: int
    pid: int


@dataclass(frozen=True, slots=True)
class Output:
    """Some bytes, split anywhere."""

    op: int
    stream: int
    """1 stdout, 2 stderr; 0 the content of a file."""
    data: bytes


@dataclass(frozen=True, slots=True)
class Grant:
    """So many bytes of input more may be sent."""

    op: int
    size: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One name in a folder; ``size`` in bytes, 0 for a folder."""

    name: bytes
    kind: EntryKind
    leads_to_folder: bool
    size: int


@dataclass(frozen=True, slots=True)
class Entries:
    """Some entries of a folder, in its own order; ``size`` is what they took of the credit."""

    op: int
    entries: tuple[Entry, ...]

    @property
    def wire_size(self) -> int:
        """Bytes that they took of the stream's window."""
        return sum(_ENTRY.size + len(entry.name) for entry in self.entries)

    size: int


@dataclass(frozen=True, slots=True)
class End:
    """A run has ended.

    ``peak_kib`` is the largest resident set of the program and the children that it waited for; never below
    the guest's own, in whose memory every program begins.
    """

    op: int
    how: Ending
    exit_code: int
    signal: int
    oom_kills: int
    peak_kib: int


@dataclass(frozen=True, slots=True)
class Done:
    """A file operation is done; ``size`` in bytes, for a listing in entries."""

    op: int
    size: int


@dataclass(frozen=True, slots=True)
class Facts:
    """What stat found."""

    op: int
    kind: EntryKind
    mode: int
    size: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The operation was not done, or not to its end."""

    op: int
    reason: Reason
    errno_name: str
    """``ENOENT`` and so on, or empty. Numbers differ between systems, names do not."""


@dataclass(frozen=True, slots=True)
class Killed:
    """The answer to a KILL."""

    op: int
    fate: Fate


Event = Hello | Notice | Started | Output | Grant | Entries | End | Done | Facts | Failed | Killed
LAST = (End, Done, Facts, Failed)
Parser = Callable[[int, bytes], Event]


# Requests


def frame(kind: Kind, op: int, payload: bytes | memoryview = b"") -> bytes:
    """One frame; ``payload`` is at most :data:`MAX_PAYLOAD` bytes."""
    if len(payload) > MAX_PAYLOAD:
        raise ValueError(f"a frame holds {MAX_PAYLOAD} bytes, not {len(payload)}")
    return HEAD.pack(len(payload), kind, op) + payload


def listed(items: Sequence[bytes]) -> bytes:
    pieces = [struct.pack(">I", len(items))]
    for item in items:
        pieces += struct.pack(">I", len(item)), item
    return b"".join(pieces)


def pairs(env: Mapping[bytes, bytes]) -> list[bytes]:
    return [name + b"=" + value for name, value in env.items()]


def request(kind: Kind, op: int, body: bytes) -> bytes:
    """``body`` as one frame, or as PART frames and one frame (rule 2)."""
    if len(body) > MAX_REQUEST:
        raise ValueError(f"a request holds {MAX_REQUEST} bytes, not {len(body)}")
    view = memoryview(body)
    whole = max(0, len(body) - 1) // MAX_PAYLOAD
    parts = [view[at * MAX_PAYLOAD : (at + 1) * MAX_PAYLOAD] for at in range(whole)]
    frames = [frame(Kind.PART, op, part) for part in parts]
    return b"".join([*frames, frame(kind, op, view[whole * MAX_PAYLOAD :])])


def setup(env: Mapping[bytes, bytes]) -> bytes:
    """The first request: the environment of every run, on top of the image's."""
    return request(Kind.SETUP, 0, listed(pairs(env)))


def stop() -> bytes:
    """End the sandbox: the guest kills everything and exits."""
    return frame(Kind.STOP, 0)


# Parsers of payloads: each raises ValueError or struct.error for what cannot be


def _output(stream: int) -> Parser:
    def parse(op: int, payload: bytes) -> Event:
        if not payload:
            raise ValueError("no byte")
        return Output(op, stream, payload)

    return parse


def _entries(op: int, payload: bytes) -> Entries:
    entries: list[Entry] = []
    at = 0
    while at < len(payload):
        kind, size, length = _ENTRY.unpack_from(payload, at)
        at += _ENTRY.size
        name = payload[at : at + length]
        at += length
        if len(name) != length or not name or b"/" in name or b"\0" in name or name in (b".", b".."):
            raise ValueError("no name of an entry")
        entries.append(Entry(name, EntryKind(kind & 127), bool(kind & 128), size))
    if not entries:
        raise ValueError("no entry")
    return Entries(op, tuple(entries), len(payload))


def _end(op: int, payload: bytes) -> End:
    flags, code, signal, kills, peak = _END.unpack(payload)
    if flags > 63 or not 0 <= code <= 255 or signal > 64:
        raise ValueError("no ending of a process")
    return End(op, Ending(flags), code, signal, kills, peak)


def _facts(op: int, payload: bytes) -> Facts:
    kind, mode, size, mtime = _FACTS.unpack(payload)
    return Facts(op, EntryKind(kind), mode, size, mtime)


def _failed(op: int, payload: bytes) -> Failed:
    if not _ERRNO.match(payload[1:]):
        raise ValueError("no name of an error")
    return Failed(op, Reason(payload[:1][0] if payload else 255), payload[1:].decode("ascii"))


def _done(op: int, payload: bytes) -> Done:
    return Done(op, *_SIZE.unpack(payload))


def _started(op: int, payload: bytes) -> Started:
    return Started(op, *_COUNT.unpack(payload))


def _grant(op: int, payload: bytes) -> Grant:
    (size,) = _COUNT.unpack(payload)
    if not size:
        raise ValueError("nothing granted")
    return Grant(op, size)


# What may come in an operation of which kind, besides KILLED.
PARSERS: dict[tuple[int, int], Parser] = {
    (Kind.START, Kind.STARTED): _started,
    (Kind.START, Kind.STDOUT): _output(1),
    (Kind.START, Kind.STDERR): _output(2),
    (Kind.START, Kind.GRANT): _grant,
    (Kind.START, Kind.END): _end,
    (Kind.READ, Kind.DATA): _output(0),
    (Kind.READ, Kind.DONE): _done,
    (Kind.WRITE, Kind.GRANT): _grant,
    (Kind.WRITE, Kind.DONE): _done,
    (Kind.LIST, Kind.ENTRIES): _entries,
    (Kind.LIST, Kind.DONE): _done,
    (Kind.MKDIR, Kind.DONE): _done,
    (Kind.REMOVE, Kind.DONE): _done,
    (Kind.STAT, Kind.DONE): _facts,
    **{
        (kind, Kind.ERROR): _failed
        for kind in (
            Kind.START,
            Kind.READ,
            Kind.WRITE,
            Kind.LIST,
            Kind.MKDIR,
            Kind.REMOVE,
            Kind.STAT,
        )
    },
}


def parse_hello(payload: bytes) -> Hello:
    """The first frame. Raises :class:`GuestProtocolError`."""
    try:
        magic, version, *rest = _HELLO.unpack(payload)
    except struct.error:
        raise GuestProtocolError("a malformed HELLO") from None
    if magic != MAGIC or version != VERSION:
        raise GuestProtocolError(f"the guest speaks {magic!r} version {version}")
    major, minor, micro, uid, gid, pid, cgroup, traits = rest
    if cgroup > 2:
        raise GuestProtocolError(f"cgroup version {cgroup}")
    known = Trait(traits & sum(Trait))
    return Hello(0, version, (major, minor, micro), uid, gid, pid, cgroup, known)

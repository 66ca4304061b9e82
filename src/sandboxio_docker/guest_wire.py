"""The guest protocol as the host speaks it, for one connection. No I/O, no ``await``.

The rules that are named here stand in ``guest_protocol.py``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from .guest_protocol import (
    FIRST_WINDOW,
    FULL_WINDOW,
    HEAD,
    INPUT_WINDOW,
    LEAST_WINDOW,
    MAX_NOTICE,
    MAX_PAYLOAD,
    NOTICE_START,
    PACED_BUDGET,
    PARSERS,
    Done,
    End,
    Entries,
    Event,
    Facts,
    Failed,
    Fate,
    Grant,
    GuestProtocolError,
    Hello,
    Killed,
    Kind,
    Notice,
    Output,
    frame,
    listed,
    pairs,
    parse_hello,
    request,
)
from .words import printable

LONGEST: Final = 1e9
"""Seconds, 31 years: what is longer is no other promise, and does not fit everywhere."""


class _Window:
    """The credit of one stream: what may still come, and how much to grant next."""

    __slots__ = ("credit", "owed", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.credit = size
        self.owed = 0


class _Operation:
    __slots__ = ("ended", "input_credit", "kill_sent", "kind", "paced", "windows")

    def __init__(self, kind: Kind, windows: dict[int, _Window], *, paced: bool) -> None:
        self.kind = kind
        self.windows = windows
        self.paced = paced
        self.input_credit = INPUT_WINDOW
        self.ended = False
        self.kill_sent = False

    @property
    def granted(self) -> int:
        return sum(window.size for window in self.windows.values()) if self.paced else 0


class GuestWire:
    """Builds requests, parses what comes back and keeps both sides within the rules.

    ``feed`` raises :class:`GuestProtocolError` for anything that the rules above do not allow, and
    for everything after that. It never keeps more than one incomplete frame, and per stream never
    lets through more than was granted.

    An operation is known from its request until :meth:`release`. ``paced`` operations are read at
    the caller's leisure; their windows share :data:`PACED_BUDGET`.
    """

    def __init__(self) -> None:
        self.hello: Hello | None = None
        self._rest = b""
        self._broken: str | None = None
        self._noticed = False
        self._operations: dict[int, _Operation] = {}
        self._last = 0
        self._budget = PACED_BUDGET

    # Requests: each returns the bytes to send, after the number of the operation

    def new_operation(self) -> int:
        """A number for the next request."""
        self._last += 1
        return self._last

    def start(
        self,
        op: int,
        argv: Sequence[bytes],
        *,
        env: Mapping[bytes, bytes] | None = None,
        timeout: float | None = None,
        programs: Sequence[bytes] = (),
        has_input: bool = False,
        tell: bool = False,
        paced: bool = False,
    ) -> bytes:
        """Start a run. ``timeout`` is in seconds, at most :data:`LONGEST` counts; the guest ends it then."""
        windows = self._open(op, Kind.START, (1, 2), paced=paced)
        milliseconds = 0 if timeout is None else max(1, round(min(timeout, LONGEST) * 1000))
        head = struct.pack(">QIIB", milliseconds, windows[1].size, windows[2].size, has_input + 2 * tell)
        body = head + listed(programs) + listed(argv) + listed(pairs(env or {}))
        return request(Kind.START, op, body)

    def read(self, op: int, path: bytes, *, limit: int = 0, paced: bool = False) -> bytes:
        """Read a file; ``limit`` in bytes, 0 for none."""
        windows = self._open(op, Kind.READ, (0,), paced=paced)
        return request(Kind.READ, op, struct.pack(">QI", limit, windows[0].size) + path)

    def write(self, op: int, path: bytes, *, mode: int | None = None) -> bytes:
        """Begin to write a file: :meth:`input` and :meth:`input_end` follow."""
        self._open(op, Kind.WRITE, ())
        return request(Kind.WRITE, op, struct.pack(">i", -1 if mode is None else mode) + path)

    def list_folder(self, op: int, path: bytes, *, paced: bool = False) -> bytes:
        """List a folder."""
        windows = self._open(op, Kind.LIST, (0,), paced=paced)
        return request(Kind.LIST, op, struct.pack(">I", windows[0].size) + path)

    def make_folder(self, op: int, path: bytes, *, parents: bool = False) -> bytes:
        """Make a folder; with ``parents`` also those above it, and an existing one is no error."""
        self._open(op, Kind.MKDIR, ())
        return request(Kind.MKDIR, op, bytes([parents]) + path)

    def remove(self, op: int, path: bytes) -> bytes:
        """Remove a file, a link, or a folder with all in it."""
        self._open(op, Kind.REMOVE, ())
        return request(Kind.REMOVE, op, path)

    def facts(self, op: int, path: bytes, *, follow: bool = True) -> bytes:
        """Ask for kind, mode, size and time of a path."""
        self._open(op, Kind.STAT, ())
        return request(Kind.STAT, op, bytes([follow]) + path)

    def _open(
        self, op: int, kind: Kind, streams: Iterable[int], *, paced: bool = False
    ) -> dict[int, _Window]:
        if op in self._operations or not 0 < op <= self._last:
            raise ValueError(f"operation {op} is in use or has no number")
        windows: dict[int, _Window] = {}
        for stream in streams:
            size = FIRST_WINDOW
            if paced:
                share = self._budget // (16 if stream == 2 else 4)  # little is said on stderr
                size = min(size, max(LEAST_WINDOW, share))
                self._budget -= size
            windows[stream] = _Window(size)
        self._operations[op] = _Operation(kind, windows, paced=paced)
        return windows

    def input(self, op: int, data: bytes | memoryview) -> bytes:
        """Bytes for a run's stdin or a file; at most :meth:`input_room` of them."""
        operation = self._operations[op]
        if len(data) > operation.input_credit:
            raise ValueError("more input than the guest has room for")
        operation.input_credit -= len(data)
        return frame(Kind.INPUT, op, data)

    def input_room(self, op: int) -> int:
        """Bytes that may be sent now, within one frame."""
        operation = self._operations.get(op)
        if operation is None or operation.ended:
            return 0
        return min(operation.input_credit, MAX_PAYLOAD)

    def input_end(self, op: int) -> bytes:
        """The end of a run's stdin, or of a file to write."""
        return frame(Kind.INPUT_END, op)

    def kill(self, op: int) -> bytes:
        """The KILL of an operation, in whatever state; empty if it was sent before."""
        operation = self._operations.get(op)
        if operation is None:
            raise ValueError(f"operation {op} was never requested or is released")
        if operation.kill_sent:
            return b""
        operation.kill_sent = True
        return frame(Kind.KILL, op)

    def consumed(self, op: int, stream: int, size: int) -> bytes:
        """Tell that the reader took ``size`` bytes; the CREDIT frame that is due, or nothing.

        Credit goes back when half a window was taken. A reader that had taken everything by then
        keeps up, and its window doubles up to 1 MiB.
        """
        operation = self._operations.get(op)
        if operation is None or operation.ended:
            return b""
        window = operation.windows[stream]
        window.owed += size
        if window.owed * 2 < window.size:
            return b""
        grant = window.owed
        if window.credit + window.owed >= window.size and window.size < FULL_WINDOW:
            more = min(window.size, FULL_WINDOW - window.size)
            if not operation.paced or more * 2 <= self._budget:
                self._budget -= more if operation.paced else 0
                window.size += more
                grant += more
        window.owed = 0
        window.credit += grant
        return frame(Kind.CREDIT, op, struct.pack(">BI", stream, grant))

    def release(self, op: int) -> None:
        """Forget an operation whose last frame (and KILLED, if a KILL was sent) has come."""
        operation = self._operations.pop(op, None)
        if operation is not None:
            self._budget += operation.granted

    # Parsing

    @property
    def buffered(self) -> int:
        """Bytes of the incomplete frame at hand; below ``MAX_PAYLOAD + 9``."""
        return len(self._rest)

    def feed(self, data: bytes) -> list[Event]:
        """The events in ``data``, which may be cut anywhere. Raises :class:`GuestProtocolError`."""
        if self._broken is not None:
            raise GuestProtocolError(self._broken)
        events: list[Event] = []
        try:
            self._parse(data, events)
        except GuestProtocolError as error:
            self._broken = str(error)
            self._rest = b""
            raise
        return events

    def _parse(self, data: bytes, events: list[Event]) -> None:
        data, self._rest = self._rest + data, b""
        if self.hello is None and self._greeting(data, events):
            return
        at, size = 0, len(data)
        while size - at >= HEAD.size:
            length, kind, op = HEAD.unpack_from(data, at)
            if length > MAX_PAYLOAD:
                raise GuestProtocolError(f"a frame claims {length} bytes")
            start, end = at + HEAD.size, at + HEAD.size + length
            if end > size:
                break
            events.append(self._event(kind, op, data[start:end]))
            at = end
        self._rest = data[at:]

    def _greeting(self, data: bytes, events: list[Event]) -> bool:
        """True if ``data`` holds no frame: it is the launcher's line, or the beginning of one."""
        if self._noticed:
            if data:
                raise GuestProtocolError("something follows the launcher's line")
            return True
        if not data or data[:1] == b"\0":
            return False
        line, newline, rest = data.partition(b"\n")
        known = line.startswith(NOTICE_START) or NOTICE_START.startswith(line)
        if not known or len(line) > MAX_NOTICE or rest:
            raise GuestProtocolError(f"no guest answers: {data[:40]!r}")
        if newline:
            # it becomes a part of repr(sandbox)
            text = printable(line.removeprefix(NOTICE_START).decode("ascii", "backslashreplace"))
            self._noticed = True
            events.append(Notice(0, text))
        else:
            self._rest = data
        return True

    def _event(self, kind: int, op: int, payload: bytes) -> Event:
        if (kind == Kind.HELLO) != (self.hello is None):
            raise GuestProtocolError(f"frame {kind} where HELLO has {'not ' * (self.hello is None)}come")
        if kind == Kind.HELLO:
            if op != 0:
                raise GuestProtocolError("HELLO in an operation")
            self.hello = parse_hello(payload)
            return self.hello
        operation = self._operations.get(op)
        if operation is None:
            raise GuestProtocolError(f"frame {kind} for the unknown operation {op}")
        if kind == Kind.KILLED:
            return self._killed(op, operation, payload)
        if operation.ended:
            raise GuestProtocolError(f"frame {kind} after the end of operation {op}")
        parse = PARSERS.get((operation.kind, kind))
        if parse is None:
            raise GuestProtocolError(f"frame {kind} in an operation of kind {operation.kind}")
        try:
            event = parse(op, payload)
        except (struct.error, ValueError):
            raise GuestProtocolError(f"a malformed frame of kind {kind}") from None
        self._account(operation, event, len(payload))
        return event

    def _account(self, operation: _Operation, event: Event, size: int) -> None:
        match event:
            case Output() | Entries():
                window = operation.windows[event.stream if isinstance(event, Output) else 0]
                window.credit -= size
                if window.credit < 0:
                    raise GuestProtocolError(f"operation {event.op} sent more than it may")
            case Grant():
                operation.input_credit += event.size
                if operation.input_credit > INPUT_WINDOW:
                    raise GuestProtocolError(f"operation {event.op} asks for more than it may")
            case End() | Done() | Facts() | Failed():
                operation.ended = True
            case _:
                pass

    def _killed(self, op: int, operation: _Operation, payload: bytes) -> Killed:
        if not operation.kill_sent or len(payload) != 1 or payload[0] > Fate.SURVIVORS:
            raise GuestProtocolError(f"operation {op} was killed unasked, or strangely")
        # A second KILLED finds the operation released, or no KILL open.
        operation.kill_sent = False
        operation.ended = True
        return Killed(op, Fate(payload[0]))

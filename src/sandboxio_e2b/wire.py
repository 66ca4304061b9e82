"""The formats of envd and of the code interpreter, without any I/O.

Connect streams (https://connectrpc.com/docs/protocol, "Streaming Request/Response"): each frame is one
byte of flags, four bytes of length (big-endian), and JSON. Flag 0x02 marks the last frame, which holds an
error or nothing; flag 0x01 (compressed) is never asked for. Proto-JSON leaves zero values out, writes
64-bit integers as text and bytes as base64.

The interpreter writes one JSON object per line (e2b-dev/code-interpreter, ``template/server``).

Unknown fields, events and line types are skipped: the far side is often newer than this.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, cast

from sandboxio.models import RichOutput

MAX_FRAME: Final = 8 << 20
"""Bytes of one frame; envd sends at most 32 KiB of output in one."""
MAX_LINE: Final = 64 << 20
"""Bytes of one line of the interpreter; an image or a table of a cell is one line."""
MAX_RESULTS: Final = 64 << 20
"""Characters of a cell's display outputs that are kept; what a loop displays beyond that is dropped."""
RESULT_COST: Final = 1 << 10
"""Characters that a display output counts beside its own, so that even empty ones come to an end."""

_END = 0x02
_HEADER = struct.Struct(">BI")


class Garbled(Exception):
    """The far side sent something that is not its protocol."""


class RpcError(Exception):
    """envd refused a call: Connect's ``code`` and its message."""

    def __init__(self, code: str, message: str) -> None:
        self.code = plain(code)
        self.message = plain(message)
        super().__init__(f"{self.code}: {self.message}")


def plain(text: str) -> str:
    """Text that UTF-8 can carry: JSON may hold lone surrogates, which become U+FFFD."""
    return text if is_plain(text) else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def is_plain(text: str) -> bool:
    """False for text with lone surrogates, which UTF-8 cannot carry."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def frame(message: Mapping[str, object]) -> bytes:
    """One request frame."""
    body = json.dumps(message).encode()
    return _HEADER.pack(0, len(body)) + body


class FrameParser:
    """Bytes in, messages out."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.ended = False

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def next(self) -> Mapping[str, Any] | None:
        """The next message, or None until more is fed. Raises :class:`RpcError` at a failed end."""
        if self.ended or len(self._buffer) < _HEADER.size:
            return None
        flags, length = _HEADER.unpack_from(self._buffer)
        if length > MAX_FRAME or flags & ~_END:
            raise Garbled(f"a frame with flags {flags:#x} and {length} bytes")
        if len(self._buffer) < _HEADER.size + length:
            return None
        body = parse_object(bytes(self._buffer[_HEADER.size : _HEADER.size + length]))
        del self._buffer[: _HEADER.size + length]
        if flags & _END:
            self.ended = True
            error = body.get("error")
            if error is not None:
                raise rpc_error(error)
            return None
        return body


def parse(data: bytes) -> object:
    """JSON, or :class:`Garbled`; too deep for Python's parser is no JSON either."""
    with suppress(ValueError, RecursionError):
        return json.loads(data)
    # Not in a handler, and without a quotation: the text may hold a token, and the parser's error holds it.
    raise Garbled(f"no JSON, {len(data)} bytes")


def parse_object(data: bytes) -> Mapping[str, Any]:
    """A JSON object, or :class:`Garbled`."""
    value = parse(data or b"{}")
    if not isinstance(value, dict):
        raise Garbled(f"no JSON object, {len(data)} bytes")
    return cast("dict[str, Any]", value)


def rpc_error(error: object) -> RpcError:
    """The error of a Connect error object."""
    given = mapping(error)
    return RpcError(text_of(given.get("code", "unknown")), text_of(given.get("message", "")))


@dataclass(frozen=True)
class Started:
    """The process runs under this pid."""

    pid: int


@dataclass(frozen=True)
class Printed:
    """Some output of a process; ``stream`` is stdout, stderr or pty."""

    stream: str
    data: bytes


@dataclass(frozen=True)
class Ended:
    """How a process ended: an exit code as a shell reports it, and envd's own text."""

    exit_code: int
    status: str


Event = Started | Printed | Ended


def process_event(message: Mapping[str, Any]) -> Event | None:
    """The event of a process stream's message; None for keepalives and what is not known."""
    event = mapping(message.get("event"))
    if "start" in event:
        return Started(_integer(mapping(event["start"]).get("pid", 0)))
    if "data" in event:
        for stream, text in mapping(event["data"]).items():
            if stream in ("stdout", "stderr", "pty"):
                return Printed(stream, _decode(text))
        return None
    if "end" in event:
        end = mapping(event["end"])
        status = text_of(end.get("status", ""))
        return Ended(_exit_code(_integer(end.get("exitCode", 0)), status), status)
    return None


SIGNALS: Final = {
    "hangup": 1,
    "interrupt": 2,
    "quit": 3,
    "illegal instruction": 4,
    "trace/breakpoint trap": 5,
    "aborted": 6,
    "bus error": 7,
    "floating point exception": 8,
    "killed": 9,
    "user defined signal 1": 10,
    "segmentation fault": 11,
    "user defined signal 2": 12,
    "broken pipe": 13,
    "alarm clock": 14,
    "terminated": 15,
    "stack fault": 16,
    "bad system call": 31,
}
"""What Go's os.ProcessState says of a death by signal (syscall/zerrors_linux_amd64.go)."""


def _exit_code(code: int, status: str) -> int:
    """Go reports -1 for a death by signal; a shell reports 128 + its number."""
    if not status.startswith("signal: "):
        return code & 0xFF
    name = status.removeprefix("signal: ").removesuffix(" (core dumped)")
    number = name.removeprefix("signal ")
    return 128 + (int(number) if re.fullmatch("[0-9]{1,2}", number) else SIGNALS.get(name, 9))


def mapping(value: object) -> Mapping[str, Any]:
    """A JSON object as it is, anything else as an empty one."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def text_of(value: object) -> str:
    """Text as it is, anything else as Python writes it; lists that are too deep for that are Garbled."""
    try:
        return str(value)
    except RecursionError as error:
        raise Garbled("JSON that is nested too deep") from error


def _integer(value: object) -> int:
    try:
        return int(cast("Any", value))
    except (TypeError, ValueError, OverflowError) as error:  # the last for 1e999, which is JSON too
        raise Garbled(f"no integer: {text_of(value)[:60]!r}") from error


def _decode(text: object) -> bytes:
    try:
        return base64.b64decode(cast("Any", text), validate=True)
    except (TypeError, ValueError, binascii.Error) as error:
        raise Garbled("output that is not base64") from error


MIME_TYPES: Final = {
    "text": "text/plain",
    "html": "text/html",
    "markdown": "text/markdown",
    "svg": "image/svg+xml",
    "png": "image/png",
    "jpeg": "image/jpeg",
    "pdf": "application/pdf",
    "latex": "text/latex",
    "json": "application/json",
    "javascript": "application/javascript",
    "data": "application/vnd.e2b.data+json",
    "chart": "application/vnd.e2b.chart+json",
}
"""Fields of a result line and their MIME types; the last two are E2B's own additions to Jupyter's."""


@dataclass
class Cell:
    """What one cell has printed and shown so far; feed it lines."""

    results: list[RichOutput] = field(default_factory=list[RichOutput])
    exit_code: int = 0
    lost: str | None = None
    """Why the kernel went away under the cell, in the server's words; None if it did not."""
    ended: bool = False
    dropped: int = 0
    """Display outputs that were too many to keep."""
    _kept: int = 0
    _buffer: bytearray = field(default_factory=bytearray)
    _searched: int = 0
    """Bytes of the buffer that hold no line end: a long line that comes in crumbs is looked at once."""

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def next(self) -> Printed | None:
        """The next piece of output, or None until more is fed."""
        while not self.ended:
            end = self._buffer.find(b"\n", self._searched)
            if end < 0:
                self._searched = len(self._buffer)
                if self._searched > MAX_LINE:
                    raise Garbled(f"a line of more than {MAX_LINE >> 20} MiB")
                return None
            line = bytes(self._buffer[:end])
            del self._buffer[: end + 1]
            self._searched = 0
            printed = self._line(parse_object(line)) if line.strip() else None
            if printed is not None:
                return printed
        return None

    def _line(self, line: Mapping[str, Any]) -> Printed | None:
        kind = line.get("type")
        if kind in ("stdout", "stderr"):
            return Printed(str(kind), text_of(line.get("text", "")).encode("utf-8", "surrogatepass"))
        if kind == "result":
            for output in _rich_outputs(line):
                self._keep(output)
        elif kind == "error":
            return self._error(text_of(line.get("name", "")), text_of(line.get("value", "")), line)
        elif kind == "end_of_execution":
            self.ended = True
        return None

    def _keep(self, output: RichOutput) -> None:
        size = RESULT_COST + len(output.mime_type) + len(output.data)
        if self._kept + size > MAX_RESULTS:
            self.dropped += 1
        else:
            self._kept += size
            self.results.append(output)

    def _error(self, name: str, value: str, line: Mapping[str, Any]) -> Printed | None:
        # Code can raise an exception of the same name; only the server's own come without a traceback.
        if name in LOST_KERNEL and not line.get("traceback"):
            self.lost = plain(value) or name
            return None
        self.exit_code = _system_exit(value) if name == "SystemExit" else 1
        if self.exit_code == 0 or (name == "SystemExit" and value.isdecimal()):
            return None
        text = _COLOURS.sub("", text_of(line.get("traceback") or f"{name}: {value}"))
        return Printed("stderr", (text.rstrip("\n") + "\n").encode("utf-8", "surrogatepass"))


_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
"""Tracebacks come coloured for a terminal; the text of a result is read by programs and models."""

LOST_KERNEL: Final = {"UnexpectedEndOfExecution", "WebSocketError", "ContextRestarting"}


def _system_exit(value: str) -> int:
    """The exit status that Python gives to ``SystemExit(value)``."""
    if value in ("", "None"):
        return 0
    try:
        return int(value) & 0xFF
    except ValueError:
        return 1


def _rich_outputs(line: Mapping[str, Any]) -> list[RichOutput]:
    outputs = [
        RichOutput(mime, _text(line[name])) for name, mime in MIME_TYPES.items() if line.get(name) is not None
    ]
    extra = mapping(line.get("extra"))
    return outputs + [
        RichOutput(plain(mime), _text(value)) for mime, value in extra.items() if value is not None
    ]


def _text(value: object) -> str:
    if isinstance(value, str):
        return plain(value)
    try:
        return json.dumps(value)
    except RecursionError as error:
        raise Garbled("a display output that is nested too deep") from error

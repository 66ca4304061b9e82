"""One file as a tar stream, out and in: bytes in, bytes out, no I/O, constant memory.

The engine's archive endpoints speak tar. Going out (:class:`TarWriter`) we write one regular file with the
owner, mode and time that it shall have. Coming in (:class:`TarReader`) the sandbox may have chosen every
byte: the reader gives the content of exactly one regular file and refuses anything else, with the name of
the entry. No name out of an archive ever becomes a path on this machine.

The format written is GNU tar: names are raw bytes, of any length (type ``L``), and large numbers are binary.
Go's archive/tar, which every engine uses, reads both exactly. Read are ustar, GNU and PAX.
Sources: POSIX.1-2017 pax, "ustar Interchange Format"; GNU tar manual, "Basic Tar Format".
"""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import dataclass
from typing import Final

from sandboxio.errors import FileSystemError

BLOCK: Final = 512
MAX_NAME: Final = 255
"""Bytes of a file name on every Linux file system."""
MAX_EXTENSION: Final = 1 << 18
"""Bytes of a PAX or long-name header: paths have 4096, extended attributes up to 64 KiB each."""
MAX_PADDING: Final = 1 << 20
"""Bytes of zeros behind the end; GNU tar pads to records of 10 KiB, other block sizes are rare."""
_MAX_EXTENSIONS: Final = 4

_END: Final = bytes(2 * BLOCK)
_KINDS: Final = {
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"3": "a character device",
    b"4": "a block device",
    b"5": "a folder",
    b"6": "a FIFO",
    b"7": "a contiguous file",
    b"D": "a GNU folder listing",
    b"M": "a piece of a multi-volume archive",
    b"S": "a sparse file",
    b"V": "a volume label",
}


class TarWriter:
    """A tar stream of one regular file: ``head()``, ``data()`` for each piece, ``end()``.

    ``name`` is one component, without a slash; put the folder into the request's ``path=``, since engines
    refuse an entry whose path leads through an absolute symbolic link (moby issue 53258). Text keeps bytes
    that are not UTF-8 (lone surrogates). ``mtime`` is in seconds since 1970, ``size`` in bytes.

    >>> writer = TarWriter("a.txt", 2, mode=0o644, uid=0, gid=0, mtime=0)
    >>> len(writer.head() + writer.data(b"hi") + writer.end())
    2048
    """

    def __init__(self, name: str | bytes, size: int, *, mode: int, uid: int, gid: int, mtime: float) -> None:
        self._name = name if isinstance(name, bytes) else name.encode("utf-8", "surrogateescape")
        self._left = self._size = size
        self._numbers = (mode & 0o7777, uid, gid, size, int(mtime))
        problem = _name_problem(self._name)
        if problem:
            raise FileSystemError(
                f"The file name {shown(self._name)} cannot be used: {problem}.",
                hint="Use a name of 1 to 255 bytes without a slash or a NUL byte.",
            )

    def head(self) -> bytes:
        """The headers, before the first piece of content."""
        if len(self._name) <= 100:
            return _header(self._name, self._numbers, b"0")
        name = self._name + b"\0"
        long = _header(b"././@LongLink", (0o644, 0, 0, len(name), 0), b"L")
        return long + name + _padding(len(name)) + _header(self._name[:100], self._numbers, b"0")

    def data(self, piece: bytes) -> bytes:
        """A piece of content, as it goes out. Raises if there is more than ``size``."""
        self._left -= len(piece)
        if self._left < 0:
            raise self._changed("more")
        return piece

    def end(self) -> bytes:
        """What comes after the content. Raises if there was less than ``size``."""
        if self._left:
            raise self._changed("less")
        return _padding(self._size) + _END

    def _changed(self, how: str) -> FileSystemError:
        return FileSystemError(
            f"The file {shown(self._name)} has {how} than the {self._size} bytes that were announced.",
            hint="It changed while it was read; try again when nobody writes to it.",
        )


@dataclass(frozen=True)
class Entry:
    """The one regular file of an archive. ``mode`` has permission bits only, no setuid bits."""

    name: bytes
    size: int
    mode: int
    mtime: int


class TarReader:
    """The content of the one regular file in a tar stream.

    Feed bytes as they come (``b""``: the end), then take pieces until there is none. ``entry`` is set
    before the first piece. ``done`` is True once the archive has ended properly.

    ``name``: the only name that is accepted, one component; None accepts any. ``max_size``: the most
    bytes that are accepted, None for no limit. Every refusal is a :class:`FileSystemError`.
    """

    def __init__(self, *, name: bytes | None = None, max_size: int | None = None) -> None:
        self._wanted = name
        self._max_size = max_size
        self._data = bytearray()
        self._at = 0
        self._eof = False
        self._error: FileSystemError | None = None
        self._machine = self._read()
        self.entry: Entry | None = None
        self.done = False

    def feed(self, data: bytes) -> None:
        """Add what was received; ``b""`` says that the stream has ended."""
        if not data:
            self._eof = True
        del self._data[: self._at]
        self._data += data
        self._at = 0

    def next_piece(self) -> bytes | None:
        """The next piece of the content; None if more must be fed, or at the end. Raises refusals."""
        if self._error is not None:
            raise self._error
        try:
            return next(self._machine, None)
        except FileSystemError as error:
            self._error, self.done = error, False
            raise

    # The parser is written as one straight story; a bare yield means "feed me".

    def _read(self) -> Generator[bytes | None, None, None]:
        entry = yield from self._file_header()
        if self._max_size is not None and entry.size > self._max_size:
            raise FileSystemError(
                f"The file {shown(entry.name)} has {entry.size} bytes; at most {self._max_size} are taken.",
                hint="Download it to a file, or read a part of it with a command.",
            )
        self.entry = entry
        left = entry.size
        while left:
            piece = bytes(memoryview(self._data)[self._at : self._at + left])
            if piece:
                self._at += len(piece)
                left -= len(piece)
                yield piece
            else:
                yield from self._more(f"inside {shown(entry.name)}")
        yield from self._take(-entry.size % BLOCK, "behind the file")
        yield from self._zeros()
        self.done = True

    def _file_header(self) -> Generator[None, None, Entry]:
        """Read up to the header of the file, extensions included."""
        said: dict[bytes, bytes] = {}  # what extensions say instead of the header itself
        for _ in range(_MAX_EXTENSIONS + 1):
            block = yield from self._take(BLOCK, "before a file's header")
            if not any(block):
                raise _refused(f"it holds no file{self._unreadable()}")
            _check_block(block)
            kind = block[156:157]
            if kind not in (b"L", b"K", b"x", b"g"):
                return self._entry(block, said)
            content = yield from self._extension(block)
            if kind == b"L":
                said[b"path"] = content.partition(b"\0")[0]
            elif kind != b"K":
                said |= _pax(content)
        raise _refused("it has too many extension headers")

    def _entry(self, block: bytes, said: dict[bytes, bytes]) -> Entry:
        name = said.get(b"path", _plain_name(block))
        self._check_entry(name, block[156:157])
        size = _decimal(said[b"size"]) if b"size" in said else _number(block[124:136])
        mode = _number(block[100:108]) & 0o777
        return Entry(name, size, mode, _number(block[136:148], signed=True))

    def _unreadable(self) -> str:
        # Docker 20.10 takes such a file in, and then sends an empty archive for it
        known = self._wanted is None or self._wanted.decode("utf-8", "ignore").encode() == self._wanted
        return "" if known else f": engines cannot send {shown(self._wanted or b'')}, whose name is not UTF-8"

    def _check_entry(self, name: bytes, kind: bytes) -> None:
        if kind not in (b"0", b"\0"):
            raise _refused(f"{shown(name)} is {_KINDS.get(kind, f'of the unknown type {kind!r}')}")
        problem = _name_problem(name)
        if problem:
            raise _refused(f"the name {shown(name)} is not acceptable: {problem}")
        if self._wanted is not None and name != self._wanted:
            raise _refused(f"it holds {shown(name)} instead of {shown(self._wanted)}")

    def _extension(self, block: bytes) -> Generator[None, None, bytes]:
        size = _number(block[124:136])
        if size > MAX_EXTENSION:
            raise _refused(f"an extension header claims {size} bytes")
        content = yield from self._take(size, "inside an extension header")
        yield from self._take(-size % BLOCK, "behind an extension header")
        return content

    def _zeros(self) -> Generator[None, None, None]:
        """Two blocks of zeros end an archive; some writers pad with more, up to a whole record."""
        yield from self._end_block()
        yield from self._end_block()
        padding = 0
        while padding <= MAX_PADDING:
            rest, self._at = self._data[self._at :], len(self._data)
            padding += len(rest)
            if any(rest):
                raise _refused("there is data behind its end")
            if self._eof:
                return
            self.done = True  # good as it is, and still good if only zeros follow
            yield None
        raise _refused("it does not end")

    def _end_block(self) -> Generator[None, None, None]:
        block = yield from self._take(BLOCK, "before its end")
        if any(block):
            _check_block(block)
            raise _refused(f"it holds a second entry, {shown(_plain_name(block))}")

    def _take(self, count: int, where: str) -> Generator[None, None, bytes]:
        while len(self._data) - self._at < count:
            yield from self._more(where)
        start, self._at = self._at, self._at + count
        return bytes(self._data[start : self._at])

    def _more(self, where: str) -> Generator[None, None, None]:
        if self._eof:
            raise _refused(f"it was cut off {where}")
        yield None


def shown(name: bytes) -> str:
    r"""A name for a message: quoted, escaped, not endless.

    >>> print(shown(b"a\xff\n"))
    'a\xff\n'
    """
    text = name.decode("utf-8", "backslashreplace")
    quoted = repr(text if len(text) <= 100 else f"{text[:100]}...")
    return quoted.replace("\\\\x", "\\x")


def _refused(why: str) -> FileSystemError:
    return FileSystemError(
        f"The archive from the engine is refused: {why}.",
        hint="Only regular files are transferred; look at the path with files.ls().",
    )


def _name_problem(name: bytes) -> str | None:
    """Why a name is not one component of a path; None if it is."""
    if not name:
        return "it is empty"
    if name in (b".", b".."):
        return "it is a way, not a name"
    if b"/" in name:
        return "it has more than one component"
    if b"\0" in name:
        return "it contains a NUL byte"
    if len(name) > MAX_NAME:
        return f"it has {len(name)} bytes, {MAX_NAME} is the most"
    return None


# --- blocks --------------------------------------------------------------------------------------


def _header(name: bytes, numbers: tuple[int, int, int, int, int], kind: bytes) -> bytes:
    mode, uid, gid, size, mtime = numbers
    block = bytearray(BLOCK)
    fields = ((100, 8, mode), (108, 8, uid), (116, 8, gid), (124, 12, size), (136, 12, mtime))
    block[0 : len(name)] = name
    for start, width, value in fields:
        block[start : start + width] = _field(value, width)
    block[156:157] = kind
    block[257:265] = b"ustar  \0"
    block[148:156] = b" " * 8  # the checksum is made with itself as blanks
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def _field(value: int, width: int) -> bytes:
    """A number as octal text, or binary with the top bit set where that is too long (GNU)."""
    if 0 <= value < 8 ** (width - 1):
        return b"%0*o\0" % (width - 1, value)
    if not -(256 ** (width - 1)) <= value < 256 ** (width - 1):
        raise FileSystemError(f"The number {value} does not fit into a tar header.")
    raw = bytearray(value.to_bytes(width, "big", signed=True))
    raw[0] |= 0x80
    return bytes(raw)


def _padding(size: int) -> bytes:
    return bytes(-size % BLOCK)


def _check_block(block: bytes) -> None:
    # the checksum's own field counts as blanks; old tars summed signed bytes
    rest = block[:148] + b" " * 8 + block[156:]
    unsigned = sum(rest)
    signed = unsigned - 256 * sum(byte > 127 for byte in rest)
    said = re.fullmatch(rb"[ \0]*([0-7]+)[ \0]*", block[148:156])
    if said is None or int(said[1], 8) not in (unsigned, signed):
        # only now: a file's name may begin with these two bytes
        what = "it is compressed with gzip" if block[:2] == b"\x1f\x8b" else "a header's checksum is wrong"
        raise _refused(f"{what}; this is not a tar stream")


def _number(field: bytes, *, signed: bool = False) -> int:
    """A numeric field: octal text, or binary if its top bit is set."""
    if field[0] & 0x80:
        value = int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
        if field[0] & 0x40:
            value -= 1 << (8 * len(field) - 1)
    else:
        text = field.strip(b" \0")
        if not re.fullmatch(rb"[0-7]*", text):
            raise _refused(f"{text!r} is not a number")
        value = int(text or b"0", 8)
    if value < 0 and not signed:
        raise _refused("a size or mode is negative")
    return value


def _decimal(text: bytes) -> int:
    if not re.fullmatch(rb"[0-9]{1,19}", text):
        raise _refused(f"{text[:40]!r} is not a size")
    return int(text)


def _plain_name(block: bytes) -> bytes:
    name = block[:100].partition(b"\0")[0]
    # only POSIX ustar has a prefix there; GNU uses the place for times
    prefix = block[345:500].partition(b"\0")[0] if block[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _pax(content: bytes) -> dict[bytes, bytes]:
    """The records of a PAX header: "length key=value" lines, the length counting the whole line."""
    records: dict[bytes, bytes] = {}
    while content:
        match = re.match(rb"([1-9][0-9]{0,6}) ([^=\n]+)=", content)
        end = int(match[1]) if match else 0
        if not match or not match.end() < end <= len(content) or content[end - 1 : end] != b"\n":
            raise _refused("a PAX header is malformed")
        key, value = match[2], content[match.end() : end - 1]
        if key.startswith(b"GNU.sparse."):
            raise _refused("it holds a sparse file")
        records[key] = value
        content = content[end:]
    return records

"""One file through tar: names byte for byte both ways, and every attack of case 63 refused by name."""

from __future__ import annotations

import gzip
import io
import tarfile
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, strategies as st

from sandboxio.errors import FileSystemError
from sandboxio.testing.suite.comparing import difference
from sandboxio_docker.archive import BLOCK, MAX_EXTENSION, MAX_PADDING, Entry, TarReader, TarWriter, shown

NAMES = (  # case 58, and bytes that are no text
    [b"n" * count for count in (1, 99, 100, 101, 255)]
    + ["é".encode() * 127, "漢".encode() * 85, b"a " * 60 + b"x", b"-rf", b"new\nline", b"tab\t", b"q'\"$`\\"]
    + [
        b"...",
        b".hidden",
        b"\xff\xfe",
        b"\xff" * 255,
        b"a\\..\\b",
        b"C:\\x",
        b" ",
        b"x.tar.gz",
        b"\x01",
        b"\x1f\x8b",
    ]
)


def written(name: bytes | str, data: bytes, **numbers: Any) -> bytes:
    numbers = {"mode": 0o640, "uid": 1000, "gid": 1001, "mtime": 1_700_000_000, **numbers}
    writer = TarWriter(name, len(data), **numbers)
    return writer.head() + writer.data(data) + writer.end()


def read(raw: bytes, size: int = 1 << 20, **options: Any) -> tuple[Entry, bytes]:
    """Feed ``size`` bytes at a time; what the reader gives in the end."""
    reader, got = TarReader(**options), b""
    for at in range(0, len(raw), size):
        reader.feed(raw[at : at + size])
        while piece := reader.next_piece():
            got += piece
    reader.feed(b"")
    while piece := reader.next_piece():
        got += piece
    assert reader.done
    assert reader.entry is not None
    return reader.entry, got


def members(raw: bytes) -> list[tuple[tarfile.TarInfo, bytes]]:
    """An independent look: Python's own tar module."""
    with tarfile.open(fileobj=io.BytesIO(raw), errors="surrogateescape", encoding="utf-8") as tar:
        return [(member, tar.extractfile(member).read()) for member in tar]  # type: ignore[union-attr]


def foreign(
    name: str = "f", data: bytes = b"data", *, form: int = tarfile.PAX_FORMAT, **fields: Any
) -> bytes:
    """A tar of another writer: Python's."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=form, errors="surrogateescape", encoding="utf-8") as tar:
        info = tarfile.TarInfo(name)
        for key, value in {"size": len(data), **fields}.items():
            setattr(info, key, value)
        tar.addfile(info, io.BytesIO(data))
    return raw.getvalue()


# Out


@pytest.mark.parametrize("name", NAMES)
def test_case_58_names_go_out_byte_for_byte(name: bytes) -> None:
    ((member, data),) = members(written(name, b"content"))
    assert member.name.encode("utf-8", "surrogateescape") == name
    assert data == b"content"
    assert member.isreg()
    assert written(name.decode("utf-8", "surrogateescape"), b"content") == written(name, b"content")


def test_case_54_owner_mode_and_time_go_out() -> None:
    ((member, _),) = members(written(b"f", b"", mode=0o100755, uid=1234, gid=5678, mtime=1_600_000_000.9))
    assert (member.mode, member.uid, member.gid, member.mtime) == (0o755, 1234, 5678, 1_600_000_000)


@pytest.mark.parametrize("uid", [0, 2_097_151, 2_097_152, 2**31, 2**32 - 2])
@pytest.mark.parametrize("mtime", [0, -1, 2**33, 2**40, -(2**40)])
def test_large_numbers_go_out(uid: int, mtime: int) -> None:
    ((member, _),) = members(written(b"f", b"x", uid=uid, gid=uid, mtime=mtime))
    assert (member.uid, member.gid, member.mtime) == (uid, uid, mtime)


@pytest.mark.parametrize("size", [8**11 - 1, 8**11, 2**50])
def test_large_sizes_are_announced(size: int) -> None:
    head = TarWriter(b"f", size, mode=0, uid=0, gid=0, mtime=0).head()
    assert tarfile.TarInfo.frombuf(head, "utf-8", "strict").size == size


@pytest.mark.parametrize("name", [b"", b".", b"..", b"a/b", b"/", b"/a", b"a\0b", b"n" * 256])
def test_names_that_cannot_go_out(name: bytes) -> None:
    with pytest.raises(FileSystemError, match="cannot be used") as caught:
        written(name, b"")
    assert shown(name)[:-1] in caught.value.message


@pytest.mark.parametrize(("announced", "how"), [(2, "more"), (4, "less")])
def test_a_file_that_changes_while_it_is_read(announced: int, how: str) -> None:
    writer = TarWriter(b"f", announced, mode=0, uid=0, gid=0, mtime=0)
    writer.data(b"ab")
    with pytest.raises(FileSystemError, match=f"'f' has {how} than the {announced} bytes"):
        writer.data(b"c") + writer.end()


# There and back


@given(
    st.binary(min_size=1, max_size=255).filter(lambda n: not set(n) & {0, 47} and n not in (b".", b"..")),
    st.binary(max_size=3 * BLOCK),
    st.integers(1, 700),
)
def test_there_and_back(name: bytes, data: bytes, size: int) -> None:
    entry, got = read(written(name, data), size, name=name)
    assert not difference(got, data)
    assert entry == Entry(name, len(data), 0o640, 1_700_000_000)


@given(
    st.text(min_size=1, max_size=120).filter(lambda n: not set(n) & {"/", "\0"} and n not in (".", "..")),
    st.binary(max_size=2 * BLOCK),
    st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]),
    st.integers(1, 700),
)
def test_other_writers_are_understood(name: str, data: bytes, form: int, size: int) -> None:
    name = name.encode("utf-8", "replace").decode()
    if len(name.encode()) > 255:
        return
    entry, got = read(foreign(name, data, form=form, mode=0o4711), size, name=name.encode())
    assert (entry.name, entry.size, got) == (name.encode(), len(data), data)
    assert entry.mode == 0o711, "no setuid bit"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_case_58_names_come_in_byte_for_byte(name: bytes, form: int) -> None:
    entry, got = read(foreign(name.decode("utf-8", "surrogateescape"), b"content", form=form))
    assert (entry.name, got) == (name, b"content")


def test_every_split_offset() -> None:
    raw = written(b"n" * 150, b"some content")
    for offset in range(1, len(raw)):
        reader, got = TarReader(), b""
        for piece in (raw[:offset], raw[offset:], b""):
            reader.feed(piece)
            while content := reader.next_piece():
                got += content
        assert (got, reader.done) == (b"some content", True), offset


def test_an_empty_file_and_padding_to_a_record() -> None:
    assert read(foreign("f", b""))[1] == b""
    assert len(foreign("f", b"")) == 10_240


def test_extended_attributes_are_passed_over() -> None:
    raw = foreign(pax_headers={"SCHILY.xattr.user.x": "y" * 10_000, "mtime": "1.5", "comment": "é"})
    assert read(raw)[1] == b"data"


# Case 63: what the sandbox chose


def several(*infos: tuple[str, bytes, dict[str, Any]]) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for name, data, fields in infos:
            info = tarfile.TarInfo(name)
            for key, value in {"size": len(data), **fields}.items():
                setattr(info, key, value)
            tar.addfile(info, io.BytesIO(data))
    return raw.getvalue()


def typed(kind: bytes, name: str = "evil", **fields: Any) -> bytes:
    return several((name, b"", {"type": kind, "linkname": "/etc/passwd", **fields}))


def with_block(change: Callable[[bytearray], None], *, sum_again: bool = True) -> bytes:
    """A good archive with its header changed, and the checksum made right again."""
    raw = bytearray(written(b"evil", b"x"))
    change(raw)
    if sum_again:
        raw[148:156] = b" " * 8
        raw[148:156] = b"%06o\0 " % sum(raw[:BLOCK])
    return bytes(raw)


def set_bytes(at: int, data: bytes) -> Callable[[bytearray], None]:
    def change(raw: bytearray) -> None:
        raw[at : at + len(data)] = data

    return change


def extension(kind: bytes, content: bytes, *, size: int | None = None) -> bytes:
    raw = bytearray(TarWriter(b"ext", len(content), mode=0, uid=0, gid=0, mtime=0).head())
    raw[156:157] = kind
    if size is not None:
        raw[124:136] = b"%011o\0" % size
    raw[148:156] = b" " * 8
    raw[148:156] = b"%06o\0 " % sum(raw)
    return bytes(raw) + content + bytes(-len(content) % BLOCK)


def record(key: bytes, value: bytes) -> bytes:
    body = b" " + key + b"=" + value + b"\n"
    length = len(body)
    while len(b"%d" % length) + len(body) != length:
        length = len(b"%d" % length) + len(body)
    return b"%d" % length + body


GOOD = written(b"f", b"x")

ATTACKS: dict[str, tuple[bytes, str]] = {
    "dots": (several(("../x", b"1", {})), r"'\.\./x'.*more than one component"),
    "only dots": (several(("..", b"1", {})), r"'\.\.'.*a way, not a name"),
    "absolute": (several(("/abs/x", b"1", {})), "'/abs/x'"),
    "ustar prefix": (several(("p/" * 60 + "x", b"1", {})), "more than one component"),
    "symlink": (typed(tarfile.SYMTYPE), "'evil' is a symbolic link"),
    "symlink, then below it": (
        several(("l", b"", {"type": tarfile.SYMTYPE, "linkname": "/tmp"}), ("l/x", b"1", {})),
        "'l' is a symbolic link",
    ),
    "hard link": (typed(tarfile.LNKTYPE), "'evil' is a hard link"),
    "character device": (typed(tarfile.CHRTYPE, devmajor=1, devminor=3), "'evil' is a character device"),
    "block device": (typed(tarfile.BLKTYPE), "'evil' is a block device"),
    "fifo": (typed(tarfile.FIFOTYPE), "'evil' is a FIFO"),
    "folder": (typed(tarfile.DIRTYPE), "'evil/' is a folder"),
    "contiguous": (typed(tarfile.CONTTYPE), "'evil' is a contiguous file"),
    "old sparse": (with_block(set_bytes(156, b"S")), "'evil' is a sparse file"),
    "sparse of 1 PiB": (
        extension(b"x", record(b"GNU.sparse.major", b"1") + record(b"GNU.sparse.realsize", b"1" + b"0" * 15))
        + GOOD,
        "a sparse file",
    ),
    "unknown type": (with_block(set_bytes(156, b"Z")), "'evil' is of the unknown type b'Z'"),
    "two files": (several(("a", b"1", {}), ("b", b"2", {})), "a second entry, 'b'"),
    "the same twice": (several(("a", b"1", {}), ("a", b"2", {})), "a second entry, 'a'"),
    "file, then symlink": (
        several(("a", b"1", {}), ("a", b"", {"type": tarfile.SYMTYPE, "linkname": "/"})),
        "a second entry, 'a'",
    ),
    "a million empty ones": (several(*[(f"e{n}", b"", {}) for n in range(1000)]), "a second entry, 'e1'"),
    "PAX path": (
        extension(b"x", record(b"path", b"../../etc/cron.d/x")) + GOOD,
        r"'\.\./\.\./etc/cron\.d/x'",
    ),
    "PAX path with NUL": (extension(b"x", record(b"path", b"a\0b")) + GOOD, "NUL"),
    "global PAX path": (extension(b"g", record(b"path", b"/abs")) + GOOD, "'/abs'"),
    "GNU long name": (extension(b"L", b"../x\0") + GOOD, r"'\.\./x'"),
    "name of 256": (extension(b"L", b"n" * 256) + GOOD, "256 bytes"),
    "empty name": (with_block(set_bytes(0, bytes(100))), "'' is not acceptable: it is empty"),
    "PAX size that lies": (extension(b"x", record(b"size", b"-5")) + GOOD, "not a size"),
    "PAX size of letters": (extension(b"x", record(b"size", b"1e9")) + GOOD, "not a size"),
    "PAX size beyond the end": (extension(b"x", record(b"size", b"9" * 18)) + GOOD, "cut off inside 'f'"),
    "PAX without length": (extension(b"x", b"path=x\n") + GOOD, "malformed"),
    "PAX length too long": (extension(b"x", b"99 path=x\n") + GOOD, "malformed"),
    "PAX length too short": (extension(b"x", b"6 path=x\n") + GOOD, "malformed"),
    "PAX length zero": (extension(b"x", b"0 path=x\n") + GOOD, "malformed"),
    "huge extension": (extension(b"x", b"", size=MAX_EXTENSION + 1) + GOOD, "extension header claims"),
    "many extensions": (extension(b"x", b"") * 5 + GOOD, "too many extension headers"),
    "size is no number": (with_block(set_bytes(124, b"0000000009x\0")), "not a number"),
    "size is negative": (with_block(set_bytes(124, b"\xff" * 12)), "negative"),
    "size beyond the end": (with_block(set_bytes(124, b"\x80" + b"\xff" * 11)), "cut off inside 'evil'"),
    "wrong checksum": (with_block(set_bytes(0, b"X"), sum_again=False), "checksum is wrong"),
    "checksum is no number": (with_block(set_bytes(148, b"zzzzzzzz"), sum_again=False), "checksum is wrong"),
    "gzip": (gzip.compress(GOOD, 0), "compressed with gzip"),
    "text": (b"No such file or directory" * 100, "checksum is wrong"),
    "nothing": (b"", "cut off before a file's header"),
    "only the end": (bytes(2 * BLOCK), "holds no file"),
    "data behind the end": (GOOD + b"x", "data behind its end"),
    "padding without end": (GOOD + bytes(MAX_PADDING + BLOCK), "does not end"),
    "one block of the end": (GOOD[:-BLOCK], "cut off before its end"),
}


@pytest.mark.parametrize("what", ATTACKS)
@pytest.mark.parametrize("size", [1 << 20, 333])
def test_case_63_an_attack_is_refused_by_name(what: str, size: int) -> None:
    raw, words = ATTACKS[what]
    with pytest.raises(FileSystemError, match=words) as caught:
        read(raw, size)
    assert caught.value.hint
    assert type(caught.value) is FileSystemError


def test_every_cut_off_archive_is_refused() -> None:
    raw = extension(b"x", record(b"path", b"g")) + GOOD
    for cut in range(len(raw)):
        with pytest.raises(FileSystemError, match="cut off"):
            read(raw[:cut])
    assert read(raw)[1] == b"x"


def test_a_refusal_stays(recwarn: pytest.WarningsRecorder) -> None:
    reader = TarReader()
    reader.feed(typed(tarfile.SYMTYPE))
    for _ in range(3):
        with pytest.raises(FileSystemError, match="symbolic link"):
            reader.next_piece()
        reader.feed(GOOD)
    assert not reader.done


def test_another_name_than_asked_for() -> None:
    with pytest.raises(FileSystemError, match="holds 'f' instead of 'g'"):
        read(GOOD, name=b"g")


def test_a_limit_is_checked_before_any_content() -> None:
    raw = with_block(set_bytes(124, b"%011o\0" % (1 << 30)))
    reader = TarReader(max_size=1 << 20)
    reader.feed(raw[:BLOCK])
    with pytest.raises(FileSystemError, match="'evil' has 1073741824 bytes; at most 1048576 are taken"):
        reader.next_piece()
    assert read(GOOD, max_size=1)[1] == b"x"


def test_names_in_messages_are_tame() -> None:
    assert shown(b"a\x1b[31m\n\xff") == r"'a\x1b[31m\n\xff'"
    assert len(shown(b"x" * 100_000)) < 120


@given(st.binary(max_size=3 * BLOCK))
def test_noise_is_refused(noise: bytes) -> None:
    with suppress(FileSystemError):
        read(noise, 100)
        raise AssertionError("noise was taken for an archive")


@given(st.data())
def test_a_damaged_archive_is_refused_or_gives_a_whole_file(data: st.DataObject) -> None:
    """Some bytes of an archive of four headers changed: no other outcome than these two."""
    raw = bytearray(extension(b"g", record(b"comment", b"x")) + extension(b"x", record(b"path", b"n")) + GOOD)
    for _ in range(data.draw(st.integers(1, 6))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with suppress(FileSystemError):
        entry, got = read(bytes(raw), data.draw(st.integers(1, 2000)))
        assert len(got) == entry.size
        assert b"/" not in entry.name


def test_memory_does_not_grow_with_the_file() -> None:
    """64 MiB through both directions in pieces of 64 KiB."""
    size, piece = 64 << 20, bytes(1 << 16)

    def stream() -> Iterator[bytes]:
        writer = TarWriter(b"big", size, mode=0, uid=0, gid=0, mtime=0)
        yield writer.head()
        for _ in range(size // len(piece)):
            yield writer.data(piece)
        yield writer.end()

    tracemalloc.start()
    try:
        reader, total = TarReader(), 0
        for part in stream():
            reader.feed(part)
            while content := reader.next_piece():
                total += len(content)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (total, reader.done) == (size, True)
    assert peak < 1 << 20

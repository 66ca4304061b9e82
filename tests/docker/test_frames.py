"""The multiplexed output stream: any split, huge frames without buffering, and damage that is named."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
from hypothesis import given, strategies as st

from sandboxio.models import OutputChunk
from sandboxio_docker.frames import MAX_MESSAGE, Demultiplexer, StreamDamaged


def frame(stream: int, data: bytes) -> bytes:
    return bytes([stream, 0, 0, 0]) + len(data).to_bytes(4, "big") + data


def taken(demux: Demultiplexer, *pieces: bytes) -> list[OutputChunk]:
    chunks: list[OutputChunk] = []
    for piece in pieces:
        demux.feed(piece)
        while chunk := demux.next_chunk():
            chunks.append(chunk)
    return chunks


def text_of(chunks: list[OutputChunk]) -> dict[str, bytes]:
    got = {"stdout": b"", "stderr": b""}
    for chunk in chunks:
        got[chunk.stream] += chunk.data
    return got


@given(
    st.lists(st.tuples(st.sampled_from([0, 1, 2]), st.binary(max_size=40)), max_size=10),
    st.lists(st.integers(1, 30), min_size=1, max_size=20),
)
def test_any_split_gives_the_same_bytes(frames: list[tuple[int, bytes]], sizes: list[int]) -> None:
    raw = b"".join(frame(*item) for item in frames)
    demux, chunks, at, turn = Demultiplexer(), [], 0, 0
    while at < len(raw):
        size = sizes[turn % len(sizes)]
        chunks += taken(demux, raw[at : at + size])
        at, turn = at + size, turn + 1
    assert demux.at_boundary
    chunks += taken(demux, b"")
    assert text_of(chunks) == {
        "stdout": b"".join(data for stream, data in frames if stream != 2),
        "stderr": b"".join(data for stream, data in frames if stream == 2),
    }
    assert all(chunk.data for chunk in chunks)


def test_order_is_kept_within_and_between_streams() -> None:
    raw = frame(1, b"a") + frame(2, b"b") + frame(1, b"c")
    assert taken(Demultiplexer(), raw) == [
        OutputChunk("stdout", b"a"),
        OutputChunk("stderr", b"b"),
        OutputChunk("stdout", b"c"),
    ]


def test_feeding_twice_before_taking() -> None:
    demux = Demultiplexer()
    for byte in frame(1, b"abc"):
        demux.feed(bytes([byte]))
    assert demux.next_chunk() == OutputChunk("stdout", b"abc")
    assert demux.next_chunk() is None


def test_a_frame_of_four_gigabytes_is_not_kept() -> None:
    demux = Demultiplexer()
    demux.feed(b"\x01\0\0\0\xff\xff\xff\xff")
    for _ in range(64):
        assert taken(demux, b"x" * 65_536) == [OutputChunk("stdout", b"x" * 65_536)]
        assert len(demux._data) <= 65_536 + 8
    assert not demux.at_boundary


@pytest.mark.parametrize("stream", [4, 5, 72, 255])
def test_an_unknown_stream(stream: int) -> None:
    demux = Demultiplexer()
    demux.feed(frame(1, b"good") + frame(stream, b"bad") + frame(1, b"never"))
    assert demux.next_chunk() == OutputChunk("stdout", b"good")
    for _ in range(3):
        with pytest.raises(StreamDamaged, match=f"bytes {stream:02x}00000000000003 are no frame header"):
            demux.next_chunk()


def test_output_of_a_terminal_is_no_frame() -> None:
    """A container with a TTY sends no frames; read as such it must not look like a gigantic one."""
    demux = Demultiplexer()
    demux.feed(b"hello world\r\n")
    with pytest.raises(StreamDamaged, match="68656c6c6f20776f are no frame header"):
        demux.next_chunk()


@pytest.mark.parametrize("at", [1, 2, 3])
def test_padding_must_be_zero(at: int) -> None:
    raw = bytearray(frame(1, b"x"))
    raw[at] = 1
    demux = Demultiplexer()
    demux.feed(bytes(raw))
    with pytest.raises(StreamDamaged, match="no frame header"):
        demux.next_chunk()


def test_every_cut_end_is_seen() -> None:
    raw = frame(1, b"abc") + frame(2, b"defg")
    for cut in range(len(raw) + 1):
        demux = Demultiplexer()
        got = text_of(taken(demux, raw[:cut]))
        demux.feed(b"")
        whole = cut in (0, len(frame(1, b"abc")), len(raw))
        assert demux.at_boundary == whole
        if whole:
            assert demux.next_chunk() is None
        else:
            with pytest.raises(StreamDamaged, match="cut off"):
                demux.next_chunk()
        assert got["stdout"] == raw[8 : min(cut, 11)]


def test_an_error_message_of_the_engine() -> None:
    demux = Demultiplexer()
    raw = frame(1, b"a") + frame(3, b"logger failed: \xff")
    chunks = taken(demux, raw[:15])
    assert text_of(chunks)["stdout"] == b"a"
    demux.feed(raw[15:])
    with pytest.raises(StreamDamaged, match="ended it with an error: logger failed: \ufffd"):
        demux.next_chunk()


@pytest.mark.parametrize("size", [0, MAX_MESSAGE + 1, 2**32 - 1])
def test_an_error_message_of_an_impossible_size(size: int) -> None:
    demux = Demultiplexer()
    demux.feed(b"\x03\0\0\0" + size.to_bytes(4, "big"))
    with pytest.raises(StreamDamaged, match=f"an error message of {size} bytes"):
        demux.next_chunk()


@given(st.binary(max_size=200), st.integers(0, 2**32))
def test_noise_never_does_more_than_damage(noise: bytes, seed: int) -> None:
    demux, pieces = Demultiplexer(), random.Random(seed)
    total, at = 0, 0
    with suppress(StreamDamaged):
        while at < len(noise):
            size = pieces.randint(1, 20)
            total += sum(len(chunk.data) for chunk in taken(demux, noise[at : at + size]))
            at += size
        taken(demux, b"")
    assert total <= len(noise)

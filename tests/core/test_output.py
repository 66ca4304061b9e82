"""Capture: bounded while reading, a prefix of what was printed, never half a character."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from sandboxio._output import Capture, Output
from sandboxio.models import OutputChunk

TEXT = "aé漢🙂"


@pytest.mark.parametrize("cut", range(len(TEXT.encode()) + 1))
def test_a_character_split_over_chunks_is_whole_again(cut: int) -> None:
    """Case 3: one decoder per stream, whatever the split and whatever the other stream does between."""
    output = Output(1000)
    data = TEXT.encode()
    output.add(OutputChunk("stdout", data[:cut]))
    output.add(OutputChunk("stderr", "漢".encode()[:2]))
    output.add(OutputChunk("stdout", data[cut:]))
    output.add(OutputChunk("stderr", "漢".encode()[2:]))
    assert (output.stdout.text(), output.stderr.text()) == (TEXT, "漢")


@pytest.mark.parametrize("limit", range(len(TEXT.encode()) + 2))
def test_the_limit_never_cuts_inside_a_character(limit: int) -> None:
    """Case 3: the truncation limit is counted in bytes and applied in characters."""
    capture = Capture(limit)
    capture.add(TEXT.encode())
    assert TEXT.startswith(capture.text())
    assert "\ufffd" not in capture.text()
    assert capture.truncated == (limit < len(TEXT.encode()))


def test_bytes_that_are_no_utf8_become_replacement_characters() -> None:
    capture = Capture(100)
    capture.add(b"a\xffb\xf0\x9f")
    assert capture.text() == "a\ufffdb\ufffd"


@given(st.lists(st.binary(max_size=50)), st.integers(0, 100))
def test_it_keeps_a_prefix_and_counts_everything(pieces: list[bytes], limit: int) -> None:
    """Case 4: what is kept is bounded while reading; what was printed is known to the byte."""
    capture = Capture(limit)
    for piece in pieces:
        capture.add(piece)
    whole = b"".join(pieces)
    assert capture.total == len(whole)
    assert capture.truncated == (len(whole) > limit)
    if not capture.truncated:
        assert capture.text() == whole.decode("utf-8", "replace")


def test_a_cut_stream_is_told_in_a_note() -> None:
    output = Output(4)
    output.add(OutputChunk("stderr", b"123456"))
    assert output.truncated
    assert output.notes() == ("stderr: the first 4 of 6 bytes are kept",)

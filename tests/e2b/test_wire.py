"""Frames and lines, however they are cut, and whatever a newer or hostile far side puts into them."""

from __future__ import annotations

import base64
import json
import struct
import sys
import time
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, strategies as st

from sandboxio.models import RichOutput
from sandboxio_e2b.wire import (
    MAX_FRAME,
    Cell,
    Ended,
    FrameParser,
    Garbled,
    Printed,
    RpcError,
    Started,
    frame,
    process_event,
)


def raw(flags: int, body: bytes) -> bytes:
    return struct.pack(">BI", flags, len(body)) + body


def messages(parser: FrameParser) -> list[Any]:
    found: list[Any] = []
    while (message := parser.next()) is not None:
        found.append(message)
    return found


@given(st.lists(st.dictionaries(st.text(), st.integers() | st.text())), st.data())
def test_frames_survive_every_cut(sent: list[dict[str, Any]], data: st.DataObject) -> None:
    stream = b"".join(frame(message) for message in sent) + raw(2, b"{}")
    parser, got = FrameParser(), list[Any]()
    while stream:
        cut = data.draw(st.integers(1, len(stream)))
        parser.feed(stream[:cut])
        stream = stream[cut:]
        got += messages(parser)
    assert got == sent
    assert parser.ended


def test_a_failed_end_is_raised_with_its_code() -> None:
    parser = FrameParser()
    parser.feed(raw(2, b'{"error": {"code": "deadline_exceeded", "message": "too late"}, "metadata": {}}'))
    with pytest.raises(RpcError, match="deadline_exceeded: too late") as caught:
        parser.next()
    assert caught.value.code == "deadline_exceeded"


@pytest.mark.parametrize(
    "data",
    [
        raw(1, b"{}"),  # compressed, which nobody asked for
        raw(0x80, b"{}"),
        struct.pack(">BI", 0, MAX_FRAME + 1),
        raw(0, b"[]"),
        raw(0, b"{"),
        raw(0, b"\xff"),
        raw(0, b"[" * 100_000),
        b"<html><body>Bad Gateway</body></html>",
    ],
)
def test_what_is_no_frame_is_refused(data: bytes) -> None:
    parser = FrameParser()
    parser.feed(data)
    with pytest.raises(Garbled):
        parser.next()


@given(st.binary())
def test_any_bytes_are_a_message_or_a_typed_refusal(data: bytes) -> None:
    parser = FrameParser()
    parser.feed(data)
    try:
        for message in messages(parser):
            process_event(message)
    except (Garbled, RpcError):
        pass


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.sampled_from(["event", "data", "end", "stdout"]), inner)
    ),
)


@given(_json)
def test_any_event_is_known_skipped_or_refused(event: object) -> None:
    with suppress(Garbled):
        process_event({"event": event})


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ({"start": {"pid": 7}}, Started(7)),
        ({"data": {"stdout": base64.b64encode(b"\xff\0").decode()}}, Printed("stdout", b"\xff\0")),
        ({"data": {"stderr": ""}}, Printed("stderr", b"")),
        ({"keepalive": {}}, None),
        ({"telemetry": {"n": 1}}, None),
        ({"data": {"smell": "eA=="}}, None),
        ({"end": {"exited": True, "status": "exit status 0"}}, Ended(0, "exit status 0")),
        ({"end": {"exitCode": 3, "status": "exit status 3"}}, Ended(3, "exit status 3")),
        ({"end": {"exitCode": "300"}}, Ended(44, "")),
        ({"end": {"exitCode": -1, "status": "signal: killed"}}, Ended(137, "signal: killed")),
        (
            {"end": {"exitCode": -1, "status": "signal: segmentation fault (core dumped)"}},
            Ended(139, "signal: segmentation fault (core dumped)"),
        ),
        ({"end": {"exitCode": -1, "status": "signal: signal 40"}}, Ended(168, "signal: signal 40")),
        ({"end": {"exitCode": -1, "status": "signal: something new"}}, Ended(137, "signal: something new")),
        ({"end": {"status": "signal: signal 999"}}, Ended(137, "signal: signal 999")),
        ({"end": {"status": "signal: signal " + "9" * 5000}}, Ended(137, "signal: signal " + "9" * 5000)),
    ],
)
def test_events(event: object, expected: object) -> None:
    assert process_event({"event": event, "addedLater": 1}) == expected


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", "9" * 5000, '"' + "9" * 5000 + '"', "{}"])
def test_what_is_no_integer_is_refused(number: str) -> None:
    parser = FrameParser()
    parser.feed(raw(0, b'{"event": {"end": {"exitCode": %b}}}' % number.encode()))
    with pytest.raises(Garbled) as caught:
        process_event(parser.next() or {})
    assert len(str(caught.value)) < 200


def test_text_that_utf_8_cannot_carry_is_replaced() -> None:
    """JSON may hold it; what a model or a client of MCP is answered may not."""
    cell = Cell()
    cell.feed(
        b'{"type":"result","html":"a\\ud800","extra":{"x/\\udfff":"\\ud83d\\ude00"}}\n'
        b'{"type":"error","name":"WebSocketError","value":"\\udc80"}\n'
    )
    assert cell.next() is None
    assert cell.results == [RichOutput("text/html", "a\ufffd"), RichOutput("x/\ufffd", "\U0001f600")]
    assert cell.lost == "\ufffd"
    assert RpcError("\ud800", "b\ud800").message == "b\ufffd"


def lines(*items: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(item).encode() + b"\n" for item in items)


CELL = lines(
    {"type": "number_of_executions", "execution_count": 1},
    {"type": "stdout", "text": "é\n", "timestamp": "x"},
    {"type": "keepalive"},
    {"type": "telemetry", "n": 1},
    {"type": "stderr", "text": "err\n"},
    {"type": "result", "text": "42", "png": "aGk=", "extra": {"x/y": {"a": 1}}, "is_main_result": True},
    {"type": "end_of_execution"},
)


@given(st.data())
def test_cells_survive_every_cut(data: st.DataObject) -> None:
    cell, got, stream = Cell(), list[Printed](), CELL
    while stream:
        cut = data.draw(st.integers(1, len(stream)))
        cell.feed(stream[:cut])
        stream = stream[cut:]
        while (printed := cell.next()) is not None:
            got.append(printed)
    assert got == [Printed("stdout", "é\n".encode()), Printed("stderr", b"err\n")]
    assert (cell.ended, cell.exit_code, cell.lost) == (True, 0, None)
    assert cell.results == [
        RichOutput("text/plain", "42"),
        RichOutput("image/png", "aGk="),
        RichOutput("x/y", '{"a": 1}'),
    ]


@pytest.mark.parametrize(
    ("name", "value", "code", "said"),
    [
        ("ValueError", "broken", 1, b"the trace\n"),
        ("SystemExit", "3", 3, None),
        ("SystemExit", "0", 0, None),
        ("SystemExit", "None", 0, None),
        ("SystemExit", "256", 0, None),
        ("SystemExit", "a reason", 1, b"the trace\n"),
    ],
)
def test_errors_of_a_cell(name: str, value: str, code: int, said: bytes | None) -> None:
    cell = Cell()
    trace = "\x1b[31mthe trace\x1b[39m"
    cell.feed(lines({"type": "error", "name": name, "value": value, "traceback": trace}))
    printed = cell.next()
    assert (cell.exit_code, None if printed is None else printed.data) == (code, said)


def test_a_lost_kernel_is_no_error_of_the_code() -> None:
    cell = Cell()
    cell.feed(lines({"type": "error", "name": "ContextRestarting", "value": "gone", "traceback": ""}))
    assert cell.next() is None
    assert cell.lost == "gone"


def test_an_exception_of_code_may_have_the_name_of_a_lost_kernel() -> None:
    cell = Cell()
    cell.feed(lines({"type": "error", "name": "WebSocketError", "value": "v", "traceback": "the trace"}))
    assert cell.next() == Printed("stderr", b"the trace\n")
    assert (cell.exit_code, cell.lost) == (1, None)


def test_display_outputs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandboxio_e2b.wire.MAX_RESULTS", 10_000)
    cell = Cell()
    cell.feed(lines(*({"type": "result", "text": "x" * 4_000} for _ in range(5))))
    assert cell.next() is None
    assert (len(cell.results), cell.dropped) == (1, 4)


@pytest.mark.parametrize("output", [{"text": ""}, {"json": 1}, {"extra": {"x" * 3_000: ""}}])
def test_display_outputs_that_hold_nothing_are_bounded_too(
    monkeypatch: pytest.MonkeyPatch, output: dict[str, Any]
) -> None:
    monkeypatch.setattr("sandboxio_e2b.wire.MAX_RESULTS", 10_000)
    cell = Cell()
    cell.feed(lines(*({"type": "result", **output} for _ in range(100))))
    assert cell.next() is None
    assert len(cell.results) < 10
    assert len(cell.results) + cell.dropped == 100


def test_a_long_line_that_comes_in_crumbs_costs_no_more_than_its_length() -> None:
    """A server chooses how it cuts its answer, and each piece is looked at before anybody else has a turn."""
    cell, began = Cell(), time.process_time()
    cell.feed(b'{"type":"result","text":"' + b"x" * (16 << 20))
    for _ in range(5000):
        cell.feed(b"x")
        assert cell.next() is None
    cell.feed(b'"}\n' + b'{"type":"keepalive"}\n' * 5000)
    assert cell.next() is None
    assert [len(output.data) for output in cell.results] == [(16 << 20) + 5000]
    assert time.process_time() - began < 5, "looked at from its beginning for every piece, it takes 25 s"


@pytest.mark.parametrize("data", [b"[1]\n", b"{\n", b"<html>\n", b"\xff\n"])
def test_what_is_no_line_is_refused(data: bytes) -> None:
    cell = Cell()
    cell.feed(data)
    with pytest.raises(Garbled):
        cell.next()


@pytest.mark.parametrize(
    "line",
    [
        b'{"type": "result", "json": %b}',
        b'{"type": "result", "extra": {"x/y": %b}}',
        b'{"type": "stdout", "text": %b}',
        b'{"type": "error", "name": "E", "value": %b}',
        b'{"type": "error", "name": "E", "traceback": %b}',
    ],
)
def test_json_of_any_depth_is_read_or_refused(line: bytes) -> None:
    """What is just not too deep to read may be too deep to write."""
    refused = 0
    for depth in range(sys.getrecursionlimit() - 400, sys.getrecursionlimit() + 50, 3):
        cell = Cell()
        cell.feed(line % (b"[" * depth + b"]" * depth) + b"\n")
        try:
            cell.next()
        except Garbled:
            refused += 1
    assert refused


@pytest.mark.parametrize(
    "message",
    [
        b'{"event": {"end": {"exitCode": %b}}}',
        b'{"event": {"end": {"status": %b}}}',
        b'{"event": {"data": {"stdout": %b}}}',
        b'{"error": {"code": %b, "message": %b}}',
    ],
)
def test_frames_of_any_depth_are_read_or_refused(message: bytes) -> None:
    refused = 0
    for depth in range(sys.getrecursionlimit() - 400, sys.getrecursionlimit() + 50, 3):
        nested = b"[" * depth + b"]" * depth
        body = message.replace(b"%b", nested)
        parser = FrameParser()
        parser.feed(raw(2 if b"error" in body else 0, body))
        try:
            process_event(parser.next() or {})
        except (Garbled, RpcError) as error:
            refused += isinstance(error, Garbled)
    assert refused


@given(st.lists(st.dictionaries(st.sampled_from(["type", "text", "value", "name", "extra"]), _json)))
def test_any_line_is_known_skipped_or_refused(items: list[dict[str, Any]]) -> None:
    cell = Cell()
    cell.feed(lines(*items))
    while cell.next() is not None:
        pass

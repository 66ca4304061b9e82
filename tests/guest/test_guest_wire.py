"""The host's parser takes anything and believes nothing."""

from __future__ import annotations

import ast
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from sandboxio_docker import guest_protocol as w
from sandboxio_docker.guest_protocol import GuestProtocolError, Kind
from sandboxio_docker.guest_wire import GuestWire

HELLO = struct.pack(">4sH3BIIIBH", b"SBXG", w.VERSION, 3, 12, 1, 1000, 1000, 1, 2, 511)


def greeted() -> GuestWire:
    wire = GuestWire()
    assert isinstance(wire.feed(w.frame(Kind.HELLO, 0, HELLO))[0], w.Hello)
    return wire


def end(code: int = 0, flags: int = 0, signal: int = 0) -> bytes:
    return struct.pack(">BiBQQ", flags, code, signal, 0, 0)


def with_run(**options: bool) -> tuple[GuestWire, int]:
    wire = greeted()
    op = wire.new_operation()
    wire.start(op, [b"true"], **options)
    return wire, op


# Both ends agree on the numbers


def test_the_guest_has_the_same_numbers() -> None:
    text = Path(w.__file__).with_name("guest.py").read_text()
    found: dict[str, object] = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and node.lineno < 120:
            try:
                exec(
                    compile(ast.Module([node], []), "guest.py", "exec"),
                    {"range": range, "struct": struct},
                    found,
                )
            except NameError:
                continue
    for kind in Kind:
        assert found[kind.name] == kind, kind
    names = {"MARKED": "MARKS", "WORK": "WORK_FOLDER", "BY_HOST": "KILLED", "ALIVE": "SURVIVORS"}
    for ours, theirs in (
        (w.Trait, "INIT MARKED HIDDEN OOM_COUNTER ADOPTS WORK WORK_WRITABLE LOCALHOST LIFELINE"),
        (w.Ending, "TIMED_OUT BY_HOST OUT_OF_MEMORY MEMORY_HINT NOT_STARTED SURVIVORS"),
        (w.Reason, "SYSTEM NOT_REGULAR TOO_LARGE CANCELLED BAD_REQUEST NO_WORK_FOLDER IN_USE"),
        (w.Fate, "DEAD UNKNOWN ALIVE"),
        (w.EntryKind, "FILE FOLDER LINK OTHER"),
    ):
        listed = [names.get(name, name) for name in theirs.split()]
        assert listed == [member.name for member in ours]
        assert [found[name] for name in theirs.split()] == [member.value for member in ours]
    for name in ("VERSION", "MAX_PAYLOAD", "MAX_REQUEST", "INPUT_WINDOW"):
        assert found[name] == getattr(w, name), name


# The greeting


def test_hello() -> None:
    wire = GuestWire()
    (hello,) = wire.feed(w.frame(Kind.HELLO, 0, HELLO))
    assert hello == wire.hello
    assert isinstance(hello, w.Hello)
    assert (hello.python, hello.uid, hello.pid, hello.cgroup) == ((3, 12, 1), 1000, 1, 2)
    assert w.Trait.MARKS in hello.traits


@pytest.mark.parametrize(
    ("seconds", "told"), [(None, 0), (1e-9, 1), (1.5, 1500), (1e9, 10**12), (1e17, 10**12), (1.7e308, 10**12)]
)
def test_the_time_of_a_run_in_milliseconds(seconds: float | None, told: int) -> None:
    wire = greeted()
    request = wire.start(wire.new_operation(), [b"true"], timeout=seconds)
    assert struct.unpack_from(">Q", request, w.HEAD.size) == (told,)


def test_the_launchers_line_comes_in_pieces() -> None:
    wire = GuestWire()
    for byte in b"sandboxio: no python":
        assert wire.feed(bytes([byte])) == []
    assert wire.feed(b"3\n") == [w.Notice(0, "no python3")]
    with pytest.raises(GuestProtocolError, match="follows"):
        wire.feed(b"x")


@pytest.mark.parametrize(
    "data",
    [
        b"hello\n", b"sandboxio:x", b"s" * 20, b"sandboxio: " + b"x" * 600, b"\xff", b"sandboxio: a\nb",
        b"\0\0\0\0\x48\0\0\0\0", w.frame(Kind.HELLO, 0, HELLO[:-1]), w.frame(Kind.HELLO, 0, b"X" + HELLO[1:]),
        w.frame(Kind.HELLO, 1, HELLO), w.frame(Kind.HELLO, 0, HELLO[:4] + b"\0\2" + HELLO[6:]),
        w.frame(Kind.HELLO, 0, HELLO[:21] + b"\3" + HELLO[22:]), b"\0\1\0\1" + b"\x41" + bytes(4),
    ],
)  # fmt: skip
def test_what_is_no_greeting(data: bytes) -> None:
    wire = GuestWire()
    with pytest.raises(GuestProtocolError):
        wire.feed(data)
    with pytest.raises(GuestProtocolError):
        wire.feed(w.frame(Kind.HELLO, 0, HELLO))


# What may not come


@pytest.mark.parametrize(
    "frames",
    [
        w.frame(Kind.HELLO, 0, HELLO),
        w.frame(Kind.STDOUT, 2, b"x"),
        w.frame(Kind.STDOUT, 0, b"x"),
        w.frame(Kind.STDOUT, 1, b""),
        w.frame(Kind.DATA, 1, b"x"),
        w.frame(Kind.DONE, 1, bytes(8)),
        w.frame(Kind.ENTRIES, 1, bytes(12)),
        w.frame(Kind.START, 1, b""),
        w.frame(Kind.KILLED, 1, b"\0"),
        w.frame(Kind.STARTED, 1, bytes(3)),
        w.frame(Kind.GRANT, 1, bytes(4)),
        w.frame(Kind.GRANT, 1, b"\0\0\0\1"),
        w.frame(Kind.END, 1, end(256)),
        w.frame(Kind.END, 1, end(-1)),
        w.frame(Kind.END, 1, end(0, 64)),
        w.frame(Kind.END, 1, end(0, 0, 65)),
        w.frame(Kind.END, 1, end()[:-1]),
        w.frame(Kind.END, 1, end()) + w.frame(Kind.END, 1, end()),
        w.frame(Kind.END, 1, end()) + w.frame(Kind.STDOUT, 1, b"x"),
        w.frame(Kind.ERROR, 1, b""),
        w.frame(Kind.ERROR, 1, b"\x09"),
        w.frame(Kind.ERROR, 1, b"\0" + b"ENOENT: <script>"),
        w.frame(Kind.ERROR, 1, b"\0" + b"E" + b"A" * 20),
        w.HEAD.pack(w.MAX_PAYLOAD + 1, Kind.STDOUT, 1),
        w.HEAD.pack(1, 200, 1) + b"x",
        b"".join([w.frame(Kind.STDOUT, 1, bytes(65536))] * 4) + w.frame(Kind.STDOUT, 1, b"x"),
    ],
)
def test_what_no_guest_sends(frames: bytes) -> None:
    wire, _ = with_run()
    with pytest.raises(GuestProtocolError):
        wire.feed(frames)
    with pytest.raises(GuestProtocolError):
        wire.feed(b"")
    assert wire.buffered == 0


@pytest.mark.parametrize("name", [b"", b".", b"..", b"a/b", b"a\0", b"/"])
def test_names_that_no_folder_has(name: bytes) -> None:
    wire = greeted()
    op = wire.new_operation()
    wire.list_folder(op, b".")
    good = struct.pack(">BQH", 129, 7, 1) + b"a"
    (entries,) = wire.feed(w.frame(Kind.ENTRIES, op, good))
    assert isinstance(entries, w.Entries)
    assert entries.entries == (w.Entry(b"a", w.EntryKind.FOLDER, True, 7),)
    with pytest.raises(GuestProtocolError):
        wire.feed(w.frame(Kind.ENTRIES, op, struct.pack(">BQH", 0, 7, len(name)) + name))


def test_killed_answers_one_kill() -> None:
    wire, op = with_run()
    assert wire.kill(op) == w.frame(Kind.KILL, op)
    assert wire.kill(op) == b""
    wire.feed(w.frame(Kind.END, op, end(137, 2, 9)) + w.frame(Kind.KILLED, op, b"\0"))
    with pytest.raises(GuestProtocolError):
        wire.feed(w.frame(Kind.KILLED, op, b"\0"))


def test_nothing_comes_after_killed() -> None:
    wire, op = with_run()
    wire.kill(op)
    wire.feed(w.frame(Kind.KILLED, op, b"\1"))
    with pytest.raises(GuestProtocolError):
        wire.feed(w.frame(Kind.END, op, end()))


def test_a_released_operation_is_unknown() -> None:
    wire, op = with_run()
    wire.feed(w.frame(Kind.END, op, end()))
    wire.release(op)
    with pytest.raises(GuestProtocolError):
        wire.feed(w.frame(Kind.STDOUT, op, b"x"))


# Credit


def test_credit_goes_back_at_half_and_grows_for_who_keeps_up() -> None:
    wire, op = with_run()
    half = w.FIRST_WINDOW // 2
    wire.feed(b"".join([w.frame(Kind.STDOUT, op, bytes(32768))] * 4))
    assert wire.consumed(op, 1, half - 1) == b""
    frame = wire.consumed(op, 1, 1)
    assert frame == w.frame(Kind.CREDIT, op, struct.pack(">BI", 1, half + w.FIRST_WINDOW))


def test_a_reader_that_lags_gets_no_more_than_it_took() -> None:
    wire, op = with_run()
    wire.feed(b"".join([w.frame(Kind.STDOUT, op, bytes(65536))] * 4))
    half = w.FIRST_WINDOW // 2
    assert wire.consumed(op, 1, half) == w.frame(Kind.CREDIT, op, struct.pack(">BI", 1, half))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 4), max_size=200))
def test_what_is_granted_to_paced_readers_stays_below_the_budget(batches: list[int]) -> None:
    wire = greeted()
    granted = 0
    live: list[int] = []
    for count in batches:
        for _ in range(count):
            op = wire.new_operation()
            wire.start(op, [b"x"], paced=True)
            live.append(op)
        if count == 3:
            wire.release(live.pop(0))
        granted = sum(window.size for op in live for window in wire._operations[op].windows.values())
        assert granted <= w.PACED_BUDGET + 2 * w.LEAST_WINDOW * len(live)
    for op in live:
        wire.release(op)
    assert wire._budget == w.PACED_BUDGET


def test_no_more_input_than_there_is_room_for() -> None:
    wire, op = with_run(has_input=True)
    sent = 0
    while room := wire.input_room(op):
        wire.input(op, bytes(room))
        sent += room
    assert sent == w.INPUT_WINDOW
    with pytest.raises(ValueError, match="room"):
        wire.input(op, b"x")
    wire.feed(w.frame(Kind.GRANT, op, b"\0\0\0\7"))
    assert wire.input_room(op) == 7
    wire.feed(w.frame(Kind.END, op, end()))
    assert wire.input_room(op) == 0


def test_a_long_request_travels_in_parts() -> None:
    wire = greeted()
    op = wire.new_operation()
    data = wire.start(op, [b"a" * 200_000])
    kinds: list[int] = []
    at = 0
    while at < len(data):
        length, kind, number = w.HEAD.unpack_from(data, at)
        assert number == op
        kinds.append(kind)
        at += w.HEAD.size + length
    assert kinds == [Kind.PART] * 3 + [Kind.START]
    with pytest.raises(ValueError, match="holds"):
        wire.start(wire.new_operation(), [b"a" * (w.MAX_REQUEST + 1)])
    with pytest.raises(ValueError, match="frame holds"):
        w.frame(Kind.INPUT, op, bytes(65537))


# Anything at all

kinds = st.sampled_from([*Kind, 0, 63, 64, 99, 255])
payloads = st.one_of(
    st.binary(max_size=40),
    st.just(end()),
    st.just(HELLO),
    st.binary(min_size=8, max_size=8),
    st.integers(0, 3).map(lambda n: bytes([n])),
    st.binary(max_size=20).map(lambda name: struct.pack(">BQH", 0, 1, len(name)) + name),
)
frames = st.builds(lambda k, op, p: w.HEAD.pack(len(p), k, op) + p, kinds, st.integers(0, 6), payloads)
streams = st.lists(st.one_of(frames, frames, st.binary(max_size=30)), max_size=25).map(b"".join)


@settings(max_examples=400, deadline=None)
@given(streams, st.data(), st.booleans())
def test_any_bytes_in_any_pieces(stream: bytes, data: st.DataObject, greet: bool) -> None:
    """The same events or the same error for every way to cut it, and never anything else."""

    def outcome(pieces: list[bytes]) -> tuple[list[w.Event], bool]:
        wire = greeted() if greet else GuestWire()
        requests = (
            lambda op: wire.start(op, [b"x"], has_input=True),
            lambda op: wire.read(op, b"x"),
            lambda op: wire.list_folder(op, b"x"),
            lambda op: wire.write(op, b"x"),
            lambda op: wire.facts(op, b"x"),
        )
        for request in requests:
            request(wire.new_operation())
        wire.kill(1)
        events: list[w.Event] = []
        for piece in pieces:
            assert wire.buffered < w.MAX_PAYLOAD + w.HEAD.size
            try:
                events += wire.feed(piece)
            except GuestProtocolError:
                return events, True
        return events, False

    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    whole, failed = outcome([stream])
    cut, cut_failed = outcome(pieces)
    assert failed == cut_failed
    assert failed or whole == cut

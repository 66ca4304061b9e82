"""Coverage-guided fuzzing of the host's parser of the guest protocol.

    pip install atheris
    python tests/fuzz/fuzz_guest_wire.py tests/fuzz/corpus -max_total_time=600

The first byte of an input chooses which operations are open; the rest comes from inside, in pieces whose
sizes it chooses, too. Anything but events and ``GuestProtocolError`` is a finding, and so is a parser
that keeps more than one frame, lets more through than it granted, or tells the same bytes differently
when they are cut. ``corpus/`` holds the beginnings that make every kind of frame easy to reach; it is
written by ``--make-corpus``, so that it stays with the protocol.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2] / "src")]

CORPUS = Path(__file__).with_name("corpus")


def build() -> object:
    from sandboxio_docker import guest_protocol as w
    from sandboxio_docker.guest_wire import GuestWire

    hello = w.frame(
        w.Kind.HELLO, 0, struct.pack(">4sH3BIIIBH", b"SBXG", w.VERSION, 3, 12, 1, 0, 0, 1, 1, 511)
    )

    def opened(choice: int) -> GuestWire:
        wire = GuestWire()
        if choice & 1:
            wire.feed(hello)
        paced = bool(choice & 2)
        for build in (
            lambda op: wire.start(op, [b"x"], has_input=True, tell=True, paced=paced),
            lambda op: wire.read(op, b"x", paced=paced),
            lambda op: wire.write(op, b"x"),
            lambda op: wire.list_folder(op, b"x", paced=paced),
            lambda op: wire.make_folder(op, b"x"),
            lambda op: wire.remove(op, b"x"),
            lambda op: wire.facts(op, b"x"),
        ):
            build(wire.new_operation())
        for op in range(1, 8):
            if choice & 4 and op % 2:
                wire.kill(op)
        return wire

    def outcome(choice: int, pieces: list[bytes]) -> tuple[list[w.Event], bool]:
        wire = opened(choice)
        events: list[w.Event] = []
        for piece in pieces:
            try:
                events += wire.feed(piece)
            except w.GuestProtocolError:
                assert wire.buffered == 0
                return events, True
            assert wire.buffered < w.MAX_PAYLOAD + w.HEAD.size
        received: dict[tuple[int, int], int] = {}
        for event in events:
            if isinstance(event, w.Output):
                key = event.op, event.stream
                received[key] = received.get(key, 0) + len(event.data)
        assert all(size <= w.FIRST_WINDOW for size in received.values())
        return events, False

    def one_input(data: bytes) -> None:
        if len(data) < 2:
            return
        choice, size = data[0], 1 + data[1]
        stream = data[2:]
        whole, failed = outcome(choice, [stream])
        cut, cut_failed = outcome(choice, [stream[at : at + size] for at in range(0, len(stream), size)])
        assert failed == cut_failed
        assert failed or whole == cut

    return one_input


def make_corpus() -> None:
    from sandboxio_docker import guest_protocol as w

    end = struct.pack(">BiBQQ", 0, 0, 0, 0, 0)
    entry = struct.pack(">BQH", 129, 5, 3) + b"abc"
    seeds = {
        "run": [(w.Kind.STARTED, 1, b"\0\0\0\1"), (w.Kind.STDOUT, 1, b"out"), (w.Kind.END, 1, end)],
        "killed": [(w.Kind.STDERR, 1, b"err"), (w.Kind.END, 1, end), (w.Kind.KILLED, 1, b"\0")],
        "read": [(w.Kind.DATA, 2, b"data"), (w.Kind.DONE, 2, bytes(8))],
        "write": [(w.Kind.DONE, 3, bytes(8))],
        "list": [(w.Kind.ENTRIES, 4, entry * 2), (w.Kind.DONE, 4, bytes(8))],
        "facts": [(w.Kind.DONE, 7, struct.pack(">BIQq", 0, 0o644, 5, 7))],
        "failed": [(w.Kind.ERROR, op, b"\0ENOENT") for op in range(1, 8)],
    }
    CORPUS.mkdir(exist_ok=True)
    for name, frames in seeds.items():
        choice = 5 if name == "killed" else 1
        body = b"".join(w.frame(*parts) for parts in frames)
        (CORPUS / name).write_bytes(bytes([choice, 255]) + body)
    (CORPUS / "notice").write_bytes(b"\0\3sandboxio: no python\n")


if __name__ == "__main__":
    if "--make-corpus" in sys.argv:
        make_corpus()
        sys.exit()
    import atheris

    with atheris.instrument_imports(include=["sandboxio_docker"]):
        target = build()
    atheris.Setup(sys.argv, target)
    atheris.Fuzz()

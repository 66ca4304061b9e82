"""Bounded capture of what a command prints, and its decoding.

The bound holds while reading: what is beyond it is counted and dropped, so a print loop in the sandbox
cannot grow the host's memory. The text kept is a prefix of what was printed and never ends inside a
character.
"""

from __future__ import annotations

import codecs

from .models import OutputChunk

OUTPUT_LIMIT = 8 << 20
"""Bytes kept of each stream. inspect_ai keeps 10 MiB, maf-sandbox 8 MiB; a model reads far less."""


class Capture:
    """What one stream printed, up to ``limit`` bytes."""

    def __init__(self, limit: int) -> None:
        self._kept = bytearray()
        self._limit = limit
        self.total = 0

    def add(self, data: bytes) -> None:
        room = self._limit - len(self._kept)
        self._kept += data if len(data) <= room else memoryview(data)[:room]
        self.total += len(data)

    @property
    def truncated(self) -> bool:
        return self.total > len(self._kept)

    def text(self) -> str:
        """The kept bytes as UTF-8, with U+FFFD for what is not; a cut last character is left out."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return decoder.decode(bytes(self._kept), final=not self.truncated)


class Output:
    """Both streams of one command."""

    def __init__(self, limit: int = OUTPUT_LIMIT) -> None:
        self._limit = limit
        self.stdout = Capture(limit)
        self.stderr = Capture(limit)

    def add(self, chunk: OutputChunk) -> None:
        (self.stdout if chunk.stream == "stdout" else self.stderr).add(chunk.data)

    @property
    def total(self) -> int:
        """Bytes that the command printed on both streams, kept or not."""
        return self.stdout.total + self.stderr.total

    @property
    def truncated(self) -> bool:
        return self.stdout.truncated or self.stderr.truncated

    def notes(self) -> tuple[str, ...]:
        """One sentence for each stream that was cut."""
        streams = (("stdout", self.stdout), ("stderr", self.stderr))
        return tuple(
            f"{name}: the first {self._limit} of {capture.total} bytes are kept"
            for name, capture in streams
            if capture.truncated
        )

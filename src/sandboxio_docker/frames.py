"""The engine's multiplexing of stdout and stderr over one connection: bytes in, chunks out, no I/O.

Without a terminal, attach and exec start send frames: one byte for the stream (1 stdout, 2 stderr), three
zero bytes, four bytes of length (big endian), then that many bytes. Stream 0 is what moby calls stdin and
copies to stdout; stream 3 carries an error message of the engine itself.
Source: Docker Engine API v1.41, POST /containers/{id}/attach, "Stream format"; moby pkg/stdcopy.

A frame may claim 4 GiB. Nothing here waits for a whole frame: bytes leave as they come, and only a header
is ever kept back. Whoever feeds is on the same side as the engine, but the bytes may come from a broken or
hostile one, so every header is checked.
"""

from __future__ import annotations

from typing import Final

from sandboxio.errors import ConnectError
from sandboxio.models import OutputChunk

HEADER: Final = 8
MAX_MESSAGE: Final = 1 << 16
"""Bytes of an error message (stream 3) that are believed; more is a damaged stream."""


class StreamDamaged(ConnectError):
    """What came over an attach or exec connection is not the engine's stream format, or was cut off."""

    default_hint = "The connection to the engine broke; create a new sandbox and read the engine's log."


class Demultiplexer:
    """Feed bytes as they come, then take chunks until there are none.

    >>> demux = Demultiplexer()
    >>> demux.feed(bytes([1, 0, 0, 0, 0, 0, 0, 5]) + b"he")
    >>> demux.next_chunk()
    OutputChunk(stream='stdout', data=b'he')
    >>> demux.next_chunk(), demux.at_boundary
    (None, False)
    >>> demux.feed(b"llo")
    >>> demux.next_chunk()
    OutputChunk(stream='stdout', data=b'llo')

    All state is in the object: a caller that is cancelled between two chunks loses none.
    """

    def __init__(self) -> None:
        self._data = b""
        self._at = 0  # bytes of _data that are done
        self._stream = 0
        self._left = 0  # bytes of the current frame that have not come yet
        self._message = bytearray()
        self._eof = False
        self._damage: str | None = None

    @property
    def at_boundary(self) -> bool:
        """True if everything fed was taken and no frame is half done: the stream may end here."""
        return not self._left and self._at == len(self._data)

    def feed(self, data: bytes) -> None:
        """Add what was received; ``b""`` says that the other side has ended."""
        if not data:
            self._eof = True
        self._data = self._data[self._at :] + data
        self._at = 0

    def next_chunk(self) -> OutputChunk | None:
        """The next piece of output; None if more must be fed, or if the stream has ended.

        Raises :class:`StreamDamaged` once the chunks before the damage are taken, and from then on.
        """
        while self._damage is None:
            if self._left == 0:
                header = self._data[self._at : self._at + HEADER]
                if len(header) < HEADER:
                    if not self._eof or not header:
                        return None
                    self._damage = "it was cut off inside a frame's header"
                else:
                    self._at += HEADER
                    self._begin(header)
                continue
            piece = self._data[self._at : self._at + self._left]
            if not piece:
                if not self._eof:
                    return None
                self._damage = f"it was cut off {self._left} bytes before the end of a frame"
                continue
            self._at += len(piece)
            self._left -= len(piece)
            if self._stream != 3:
                return OutputChunk("stderr" if self._stream == 2 else "stdout", piece)
            self._message += piece
            if not self._left:
                text = self._message.decode("utf-8", "replace")
                self._damage = f"the engine ended it with an error: {text}"
        raise StreamDamaged(f"The output stream is damaged: {self._damage}.")

    def _begin(self, header: bytes) -> None:
        self._stream, self._left = header[0], int.from_bytes(header[4:], "big")
        if self._stream > 3 or any(header[1:4]):
            self._damage = f"bytes {header.hex()} are no frame header"
        elif self._stream == 3 and not 0 < self._left <= MAX_MESSAGE:
            self._damage = f"the engine announces an error message of {self._left} bytes"

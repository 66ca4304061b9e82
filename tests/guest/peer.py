"""The other side of a shared connection, as a process: answers each request by its rules, at random.

``peer.py FD SEED [CERT KEY]``. A frame is ``u32 length, u8 kind, u32 operation`` and payload. The peer
never stops reading because it cannot write, and answers a KILL for what it does not know, as a guest must.
It exits with 9 when something arrives that nobody can have sent: a frame cut by a cancelled sender.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import ssl
import struct
import sys

HEAD = struct.Struct(">IBI")
MORE, ASK, KILL, PIECE, LAST, KILLED = range(1, 7)


def pattern(op: int, part: int, size: int) -> bytes:
    return random.Random(op * 65537 + part).randbytes(size)


def frame(kind: int, op: int, payload: bytes = b"") -> bytes:
    return HEAD.pack(len(payload), kind, op) + payload


class Peer(asyncio.Protocol):
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.buffer = bytearray()
        self.parts: dict[int, int] = {}
        self.live: dict[int, asyncio.Task[None]] = {}
        self.closed = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set_result(None)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while len(self.buffer) >= HEAD.size:
            length, kind, op = HEAD.unpack_from(self.buffer)
            if length > 65536 or kind not in {MORE, ASK, KILL}:
                os._exit(9)
            if len(self.buffer) < HEAD.size + length:
                return
            payload = bytes(self.buffer[HEAD.size : HEAD.size + length])
            del self.buffer[: HEAD.size + length]
            self.take(kind, op, payload)

    def take(self, kind: int, op: int, payload: bytes) -> None:
        if kind == KILL:
            task = self.live.pop(op, None)
            if task is not None:
                task.cancel()
                self.transport.write(frame(LAST, op))
            self.transport.write(frame(KILLED, op))
            return
        part = self.parts.get(op, 0)
        if payload != pattern(op, part, len(payload)):
            os._exit(9)
        self.parts[op] = part + 1
        if kind == ASK:
            self.live[op] = asyncio.get_running_loop().create_task(self.answer(op))

    async def answer(self, op: int) -> None:
        for part in range(self.random.choice((0, 0, 1, 2, 5))):
            if self.random.random() < 0.3:
                await asyncio.sleep(self.random.random() * 0.004)
            size = self.random.choice((1, 100, 5000, 60000))
            self.transport.write(frame(PIECE, op, pattern(op, 1000 + part, size)))
        self.transport.write(frame(LAST, op))
        del self.live[op]


async def main() -> None:
    sock = socket.socket(fileno=int(sys.argv[1]))
    sock.setblocking(False)
    context = None
    if len(sys.argv) > 3:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(sys.argv[3], sys.argv[4])
    loop = asyncio.get_running_loop()
    _, peer = await loop.connect_accepted_socket(lambda: Peer(int(sys.argv[2])), sock, ssl=context)
    await peer.closed


if __name__ == "__main__":
    asyncio.run(main())

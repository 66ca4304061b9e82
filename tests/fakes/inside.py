"""What runs inside the fake engine's containers: a guest or a launcher without Python, and execs.

    inside = Inside(fake)                   # containers now have a guest; execs run the same programs
    inside.without_python()                 # the launcher's line instead of a guest
    inside.alive                            # what runs at this moment: argument lists

Programs of both ways: ``echo ...``, ``true``, ``exit N``, ``sleep S``, ``yes`` (as much as is taken), ``cat``
(its stdin), ``python3 ...`` (prints how many bytes of code it got). Anything else is not found.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress

import anyio

from sandboxio_docker.guest_protocol import HEAD, MAGIC, VERSION, Fate, Kind, Trait
from sandboxio_docker.killer import DEAD, MARKER

from .engine import IO, FakeEngine

Write = Callable[[bytes, int], Awaitable[None]]
Read = Callable[[], Awaitable[bytes]]


class Inside:
    """The programs of one fake engine's containers."""

    def __init__(self, fake: FakeEngine) -> None:
        self.fake = fake
        self.alive: list[list[str]] = []
        self.started: list[list[str]] = []
        self.files: dict[bytes, bytes] = {}
        self.traits = Trait.INIT | Trait.MARKS | Trait.HIDDEN | Trait.WORK_FOLDER | Trait.LIFELINE
        fake.main = self.guest
        fake.exec = self.exec

    def without_python(self) -> None:
        self.fake.main = self.launcher

    async def launcher(self, io: IO) -> int:
        await io.write(b"sandboxio: no python3 of version 3.8 or newer\n")
        while await io.read():
            pass
        return 0

    async def guest(self, io: IO) -> int:
        return await Guest(self, io).serve()

    async def exec(self, io: IO) -> int:
        argv = list(io.config["Cmd"])
        if "sandboxio-kill" in argv:
            for mark in argv[-1].split():
                for process in self.fake.execs.values():
                    if f"{MARKER}={mark}" in process.config["Env"] and process.state == "running":
                        process.exit_code = 137
                        process.scope.cancel()
                        await process.ended.wait()
            await io.write(DEAD)
            return 0
        if "sandboxio-files" in argv:
            return await self.file_helper(argv[argv.index("sandboxio-files") + 1 :], argv[2], io)
        if argv[:2] == ["/bin/sh", "-c"] and "python3" in argv[2]:
            argv = ["python3"]
        return await self.program(argv, io.read, io.write)

    async def file_helper(self, arguments: list[str], script: str, io: IO) -> int:
        """The scripts of exec_files, by what they begin with."""
        path = re.sub(r"\\0([0-7]{3})", lambda octal: chr(int(octal[1], 8)), arguments[0]).encode("latin-1")
        if "head -c" in script:
            data = b""
            while len(data) < int(arguments[1]):
                if not (piece := await io.read()):
                    return 71
                data += piece
            self.files[path] = data
            return 0
        if 'cat "$p"' in script:
            if path not in self.files:
                return 64
            await io.write(self.files[path] + arguments[1].encode())
            return 0
        if "rm -rf" in script:
            return 0 if self.files.pop(path, None) is not None else 64
        return 0

    async def program(self, argv: list[str], read: Read, write: Write) -> int:
        """One program, known by its name; it is in ``alive`` while it runs."""
        self.started.append(argv)
        self.alive.append(argv)
        try:
            return await self._run(argv, read, write)
        finally:
            self.alive.remove(argv)

    async def _run(self, argv: list[str], read: Read, write: Write) -> int:
        name, *rest = argv
        if name == "echo":
            await write(" ".join(rest).encode() + b"\n", 1)
        elif name == "exit":
            return int(rest[0])
        elif name == "sleep":
            await anyio.sleep(float(rest[0]))
        elif name == "yes":
            while True:
                await write(b"y\n" * 512, 1)
                await anyio.sleep(0.001)
        elif name in ("cat", "python3"):
            data = b""
            while piece := await read():
                data += piece
            await write(data if name == "cat" else b"%d\n" % len(data), 1)
        elif name != "true":
            await write(f"{name}: not found\n".encode(), 2)
            return 127
        return 0


class Guest:
    """One connection's guest: the protocol of guest_protocol.py, as far as the fake programs need it."""

    def __init__(self, inside: Inside, io: IO) -> None:
        self.inside = inside
        self.io = io
        self.buffer = bytearray()
        self.parts: dict[int, bytes] = {}
        self.scopes: dict[int, anyio.CancelScope] = {}
        self.inputs: dict[int, anyio.Event] = {}
        self.content: dict[int, bytearray] = {}
        self.room: dict[int, int] = {}
        self.credited = anyio.Event()
        self.writing = anyio.Lock()

    async def serve(self) -> int:
        head = await self.take(12)
        if head is None or await self.take(int.from_bytes(head[4:8], "big")) is None:
            return 0
        traits = self.inside.traits
        await self.send(
            Kind.HELLO, 0, struct.pack(">4sH3BIIIBH", MAGIC, VERSION, 3, 12, 0, 0, 0, 1, 2, traits)
        )
        async with anyio.create_task_group() as tasks:
            while (head := await self.take(HEAD.size)) is not None:
                length, kind, op = HEAD.unpack(head)
                payload = await self.take(length)
                if payload is None:
                    break
                await self.handle(tasks, Kind(kind), op, payload)
            tasks.cancel_scope.cancel()
        return 0

    async def take(self, size: int) -> bytes | None:
        while len(self.buffer) < size:
            if not (piece := await self.io.read()):
                return None
            self.buffer += piece
        data = bytes(self.buffer[:size])
        del self.buffer[:size]
        return data

    async def send(self, kind: Kind, op: int, payload: bytes = b"") -> None:
        async with self.writing:
            await self.io.write(HEAD.pack(len(payload), kind, op) + payload)

    async def handle(self, tasks: anyio.abc.TaskGroup, kind: Kind, op: int, payload: bytes) -> None:
        if kind is Kind.PART:
            self.parts[op] = self.parts.get(op, b"") + payload
        elif kind is Kind.INPUT:
            self.content[op] += payload
            await self.send(Kind.GRANT, op, struct.pack(">I", len(payload)))
        elif kind is Kind.INPUT_END:
            if op in self.inputs:
                self.inputs[op].set()
        elif kind is Kind.CREDIT:
            if op in self.room:
                self.room[op] += struct.unpack(">BI", payload)[1]
            self.credited.set()
            self.credited = anyio.Event()
        elif kind is Kind.KILL:
            await self.kill(op)
        elif kind not in (Kind.SETUP, Kind.STOP):
            self.scopes[op] = anyio.CancelScope()
            self.inputs[op] = anyio.Event()
            self.content[op] = bytearray()
            tasks.start_soon(self.operate, self.scopes[op], kind, op, self.parts.pop(op, b"") + payload)

    async def kill(self, op: int) -> None:
        scope = self.scopes.pop(op, None)
        if scope is not None:
            scope.cancel()
            while op in self.inputs:
                await anyio.lowlevel.checkpoint()
        await self.send(Kind.KILLED, op, bytes([Fate.DEAD if scope else Fate.UNKNOWN]))

    async def operate(self, scope: anyio.CancelScope, kind: Kind, op: int, body: bytes) -> None:
        last = b""
        try:
            with scope:
                last = await (self.run(op, body) if kind is Kind.START else self.file(kind, op, body))
        finally:
            if last or scope.cancel_called:  # else the guest itself ends, and says nothing any more
                with anyio.CancelScope(shield=True), suppress(OSError):
                    if kind is Kind.START:
                        await self.send(Kind.END, op, last or struct.pack(">BiBQQ", 2, 137, 9, 0, 0))
                    elif not last:
                        await self.send(Kind.ERROR, op, bytes([3]))
            self.scopes.pop(op, None)
            self.inputs.pop(op)

    async def run(self, op: int, body: bytes) -> bytes:
        _, self.room[op], _, _ = struct.unpack_from(">QIIB", body)
        _, at = _listed(body, 17)
        argv, _ = _listed(body, at)

        async def write(data: bytes, stream: int = 1) -> None:
            while self.room[op] < len(data):
                await self.credited.wait()
            self.room[op] -= len(data)
            await self.send(Kind.STDOUT if stream == 1 else Kind.STDERR, op, data)

        async def read() -> bytes:
            await self.inputs[op].wait()
            data, self.content[op] = bytes(self.content[op]), bytearray()
            return data

        code = await self.inside.program([word.decode() for word in argv], read, write)
        return struct.pack(">BiBQQ", 0, code, 0, 0, 0)

    async def file(self, kind: Kind, op: int, body: bytes) -> bytes:
        files, path = (
            self.inside.files,
            b"/work/" + body[{Kind.READ: 12, Kind.WRITE: 4, Kind.LIST: 4}.get(kind, 0) :],
        )
        done = b"\0" * 8
        if kind is Kind.WRITE:
            await self.inputs[op].wait()
            files[path] = bytes(self.content[op])
        elif kind is Kind.READ and path in files:
            await self.send(Kind.DATA, op, files[path])
        elif kind is Kind.REMOVE and path in files:
            del files[path]
        elif kind in (Kind.READ, Kind.REMOVE):
            await self.send(Kind.ERROR, op, b"\0ENOENT")
            return done
        await self.send(Kind.DONE, op, done)
        return done


def _listed(data: bytes, at: int) -> tuple[list[bytes], int]:
    (count,) = struct.unpack_from(">I", data, at)
    at += 4
    found: list[bytes] = []
    for _ in range(count):
        (length,) = struct.unpack_from(">I", data, at)
        found.append(data[at + 4 : at + 4 + length])
        at += 4 + length
    return found, at

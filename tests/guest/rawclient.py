"""A blocking client of the guest, for tests: one thread, one operation after another or side by side."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from sandboxio_docker import guest_protocol as w, launcher
from sandboxio_docker.guest_wire import GuestWire


class Closed(Exception):
    """The guest has gone."""


class Client:
    """Speaks the protocol over two blocking-or-not functions; keeps every event it has seen."""

    def __init__(
        self, send: Callable[[bytes], None], receive: Callable[[float], bytes], limit: float = 20
    ) -> None:
        self.wire = GuestWire()
        self.send = send
        self._receive = receive
        self.limit = limit
        self.events: dict[int, list[w.Event]] = defaultdict(list)
        self.output: dict[tuple[int, int], bytearray] = defaultdict(bytearray)
        self.credit = True

    def pump(self, seconds: float) -> None:
        data = self._receive(seconds)
        for event in self.wire.feed(data):
            self.events[event.op].append(event)
            if isinstance(event, w.Output):
                self.output[event.op, event.stream] += event.data
                self.give_back(event.op, event.stream, len(event.data))
            elif isinstance(event, w.Entries):
                self.give_back(event.op, 0, event.size)

    def give_back(self, op: int, stream: int, size: int) -> None:
        if self.credit and (frame := self.wire.consumed(op, stream, size)):
            self.send(frame)

    def until(self, op: int, *kinds: type, seconds: float | None = None) -> Any:
        """The first event of one of these kinds in the operation."""
        end = time.monotonic() + (seconds or self.limit)
        while True:
            for event in self.events[op]:
                if isinstance(event, kinds):
                    return event
            left = end - time.monotonic()
            if left <= 0:
                raise AssertionError(f"nothing of {kinds} in time: {self.events[op]}")
            self.pump(left)

    def hello(self) -> w.Hello:
        return self.until(0, w.Hello, w.Notice)

    def last(self, op: int) -> Any:
        return self.until(op, *w.LAST)

    def start(self, *argv: str | bytes, **options: Any) -> int:
        op = self.wire.new_operation()
        self.send(self.wire.start(op, [os.fsencode(a) for a in argv], **options))
        return op

    def run(self, *argv: str | bytes, **options: Any) -> tuple[w.End, bytes, bytes]:
        op = self.start(*argv, **options)
        end = self.last(op)
        return end, bytes(self.output[op, 1]), bytes(self.output[op, 2])

    def sh(self, text: str, **options: Any) -> tuple[w.End, bytes, bytes]:
        return self.run("/bin/sh", "-c", text, **options)

    def feed(self, op: int, data: bytes) -> None:
        view = memoryview(data)
        while view:
            room = self.wire.input_room(op)
            if not room:
                if any(isinstance(e, w.LAST) for e in self.events[op]):
                    return
                self.pump(self.limit)
                continue
            self.send(self.wire.input(op, view[:room]))
            view = view[room:]
        self.send(self.wire.input_end(op))

    def read(self, path: str | bytes, **options: Any) -> bytes | w.Failed:
        op = self.wire.new_operation()
        self.send(self.wire.read(op, os.fsencode(path), **options))
        last = self.last(op)
        return bytes(self.output[op, 0]) if isinstance(last, w.Done) else last

    def write(self, path: str | bytes, data: bytes, **options: Any) -> Any:
        op = self.wire.new_operation()
        self.send(self.wire.write(op, os.fsencode(path), **options))
        self.feed(op, data)
        return self.last(op)

    def ls(self, path: str | bytes) -> Any:
        op = self.wire.new_operation()
        self.send(self.wire.list_folder(op, os.fsencode(path)))
        last = self.last(op)
        if isinstance(last, w.Failed):
            return last
        return [e for event in self.events[op] if isinstance(event, w.Entries) for e in event.entries]

    def request(self, build: Callable[..., bytes], path: str | bytes, **options: Any) -> Any:
        op = self.wire.new_operation()
        self.send(build(op, os.fsencode(path), **options))
        return self.last(op)

    def kill(self, op: int, seconds: float | None = None) -> w.Killed:
        self.send(self.wire.kill(op))
        return self.until(op, w.Killed, seconds=seconds)


class Local(Client):
    """A guest as a child process, in a PID namespace of its own unless told otherwise."""

    def __init__(
        self,
        python: str,
        work: str,
        *,
        lifetime: float = 120,
        lifeline: bool = True,
        namespace: bool = True,
        env: Mapping[str, str] | None = None,
        command: Sequence[str] | None = None,
        setup: Mapping[bytes, bytes] | None = None,
        program: bytes | None = None,
        **options: Any,
    ) -> None:
        told = launcher.arguments(lifetime, lifeline=lifeline, work=work, localhost=False)
        argv = list(command or launcher.with_python(told, python))
        if namespace:
            argv = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", *argv]
        self.theirs, self.ours = socket.socketpair()
        out_r, out_w = os.pipe()
        self.process = subprocess.Popen(
            argv,
            stdin=self.theirs,
            stdout=out_w,
            stderr=subprocess.PIPE,
            env={"PATH": os.environ["PATH"]} if env is None else dict(env),
        )
        self.theirs.close()
        os.close(out_w)
        self.out = out_r
        super().__init__(self._send, self._read, **options)
        try:
            self.send(program or launcher.program())
            if setup:
                self.send(w.setup(setup))
        except OSError:
            self.close()
            raise

    def _send(self, data: bytes) -> None:
        self.ours.sendall(data)

    def _read(self, seconds: float) -> bytes:
        if not select.select([self.out], [], [], seconds)[0]:
            return b""
        data = os.read(self.out, 1 << 18)
        if not data:
            raise Closed
        return data

    def wait(self, seconds: float = 10) -> int:
        return self.process.wait(seconds)

    def errors(self) -> str:
        assert self.process.stderr
        return self.process.stderr.read().decode()

    def close(self) -> None:
        self.ours.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            assert self.process.stderr
            self.process.stderr.close()
            os.close(self.out)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

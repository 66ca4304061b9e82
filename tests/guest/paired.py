"""Both ends of the protocol in memory: the real guest without its loop, the real host's wire, no process.

Programs are played by the test: their pipes are real, so that their buffers and ends are the kernel's.
What travels between the ends lies in two buffers and moves only when the test says so, in any pieces.
"""

from __future__ import annotations

import os
import random
import select
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from sandboxio_docker import guest_protocol as w
from sandboxio_docker.guest_wire import GuestWire

SIZES = (1, 7, 100, 4000, 30_000, 70_000)


class Watch:
    def __init__(self) -> None:
        self.owners: dict[int, Any] = {}

    def add(self, owner: Any) -> None:
        self.owners.setdefault(owner.fd, owner)

    def remove(self, owner: Any) -> None:
        self.owners.pop(owner.fd, None)


class Program:
    """A program that does what it is told to: its ends of the pipes."""

    def __init__(self, pid: int, stdin: int, out: int, err: int) -> None:
        self.pid = pid
        self.fds = {1: out, 2: err}
        self.stdin = stdin
        for fd in (stdin, out, err):
            os.set_blocking(fd, False)
        self.wrote = {1: bytearray(), 2: bytearray()}
        self.read = bytearray()
        self.had_all = False
        self.greedy = pid % 2 == 0  # does not end by itself before its input does
        self.ended = False

    def write(self, stream: int, data: bytes) -> None:
        try:
            size = os.write(self.fds[stream], data)
        except BlockingIOError:
            return
        self.wrote[stream] += data[:size]

    def take_input(self) -> None:
        with suppress(BlockingIOError):
            data = os.read(self.stdin, 65536)
            self.read += data
            self.had_all = not data

    def close(self) -> None:
        self.ended = True
        for fd in (self.stdin, *self.fds.values()):
            os.close(fd)


class Alarm:
    rests_at = float("inf")


class Spawner:
    def __init__(self) -> None:
        self.alarm = Alarm()
        self.null = os.open("/dev/null", os.O_RDWR)
        self.programs: dict[int, Program] = {}
        self.next = 100

    def start(self, _path: bytes, _argv: list[bytes], _env: object, fds: tuple[int, int, int]) -> int:
        self.next += 1
        self.programs[self.next] = Program(self.next, *map(os.dup, fds))
        return self.next

    def settle(self, pid: int) -> None:
        pass


class Marks:
    working = True

    def __init__(self) -> None:
        self.number = 0

    def next(self) -> int:
        self.number += 1
        return self.number

    def pin(self, pid: int, number: int) -> None:
        pass

    def early_children(self) -> Iterator[int]:
        return iter(())


class Operation:
    """What the host has seen of one operation."""

    def __init__(self, op: int, kind: str) -> None:
        self.op = op
        self.kind = kind
        self.out = {0: bytearray(), 1: bytearray(), 2: bytearray()}
        self.untaken = {0: 0, 1: 0, 2: 0}
        self.last: Any = None
        self.kill_sent = False
        self.killed: Any = None
        self.input = b""
        self.input_sent = 0
        self.input_closed = False
        self.before: bytes | None = None


class Pair:
    def __init__(self, module: ModuleType, work: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.lazy = self.random.random() < 0.4  # a host that lets the way out fill up
        self.module = module
        self.work = work
        settings = module.Settings(["0", "1", os.fspath(work), "0"])
        self.spawner = Spawner()
        self.watch = Watch()
        self.guest = module.Guest(settings, {b"PATH": b"/bin"}, Marks(), self.spawner, self.watch)
        self.guest.kill_round = self.kill_round
        self.program_of: dict[int, Program] = {}
        self.wire = GuestWire()
        self.to_guest = bytearray()
        self.to_host = bytearray()
        self.operations: dict[int, Operation] = {}
        self.background: list[Program] = []
        module.greet(self.guest, 0)
        self.collect()

    # The guest's surroundings

    def kill_round(self) -> None:
        """In place of /proc and signals: everything that is to die, dies."""
        for job in list(self.guest.killer.jobs):
            if job.run and job.run.status is None:
                program = self.spawner.programs[job.run.pid]
                program.close()
                self.guest.mains.pop(job.run.pid)
                self.guest.main_ended(job.run, 9, 0)
            self.guest.kill_done(job, self.module.DEAD)

    def step(self) -> None:
        """One turn of the guest's loop."""
        poll = select.poll()
        for fd, owner in list(self.watch.owners.items()):
            poll.register(fd, select.POLLOUT if type(owner).__name__ == "Feed" else select.POLLIN)
        for fd, _ in poll.poll(0):
            owner = self.watch.owners.get(fd)
            name = type(owner).__name__
            if name == "Feed":
                self.guest.pour(owner)
            elif name == "Stream" and not self.guest.link.full:
                self.guest.drain(owner)
            elif name == "Leftover":
                self.guest.skim(owner)
        self.guest.work(time.monotonic() + 1)
        self.collect()

    def collect(self) -> None:
        """What the guest has lined up, as far as a full way out lets it."""
        link = self.guest.link
        room = 600_000 - len(self.to_host)
        data = b"".join(link.out)[: max(0, room)]
        self.to_host += data
        link.sent(len(data))

    # The way between

    def carry_to_guest(self, size: int) -> None:
        data = bytes(self.to_guest[:size])
        del self.to_guest[:size]
        if data:
            self.guest.received(data)
        for run in self.guest.mains.values():
            self.program_of[run.op] = self.spawner.programs[run.pid]
        self.collect()

    def carry_to_host(self, size: int) -> None:
        data = bytes(self.to_host[:size])
        del self.to_host[:size]
        for event in self.wire.feed(data):
            if event.op:
                self.saw(self.operations[event.op], event)
        self.collect()

    def saw(self, operation: Operation, event: w.Event) -> None:
        match event:
            case w.Output(stream=stream, data=data):
                operation.out[stream] += data
                operation.untaken[stream] += len(data)
            case w.End() | w.Done() | w.Failed():
                assert operation.last is None, "two ends"
                operation.last = event
            case w.Killed():
                assert operation.kill_sent
                assert operation.killed is None, "one kill, two answers"
                operation.killed = event
            case _:
                pass

    # What the host does

    def request(self, kind: str) -> Operation:
        op = self.wire.new_operation()
        operation = self.operations[op] = Operation(op, kind)
        paced = self.random.random() < 0.5
        if kind == "run":
            has_input = self.random.random() < 0.4
            if has_input:
                operation.input = self.random.randbytes(self.random.choice(SIZES) * 8)
            else:
                operation.input_closed = True
            self.to_guest += self.wire.start(op, [b"sh"], has_input=has_input, paced=paced)
        elif kind == "write":
            operation.input = self.random.randbytes(self.random.choice(SIZES) * 8)
            target = self.work / f"file-{op % 3}"
            operation.before = target.read_bytes() if target.exists() else None
            self.to_guest += self.wire.write(op, os.fsencode(target))
        else:
            self.to_guest += self.wire.read(op, b"content", paced=paced)
        return operation

    def some_operation(self) -> Operation | None:
        return self.random.choice([*self.operations.values()]) if self.operations else None

    def send_input(self, operation: Operation) -> None:
        if operation.input_closed or operation.kill_sent:
            return
        room = min(self.wire.input_room(operation.op), self.random.choice(SIZES))
        piece = operation.input[operation.input_sent : operation.input_sent + room]
        if piece:
            self.to_guest += self.wire.input(operation.op, piece)
            operation.input_sent += len(piece)
        if operation.input_sent == len(operation.input):
            operation.input_closed = True
            self.to_guest += self.wire.input_end(operation.op)

    def take_output(self, operation: Operation) -> None:
        for stream, size in operation.untaken.items():
            if size:
                part = self.random.choice((size, max(1, size // 3)))
                operation.untaken[stream] -= part
                self.to_guest += self.wire.consumed(operation.op, stream, part)

    def kill(self, operation: Operation) -> None:
        if not operation.kill_sent:
            operation.kill_sent = True
            self.to_guest += self.wire.kill(operation.op)

    # What programs do

    def some_program(self) -> Program | None:
        live = [p for p in self.spawner.programs.values() if not p.ended]
        return self.random.choice(live) if live else None

    def program_ends(self, program: Program) -> None:
        if program.greedy and not program.had_all:
            return
        run = self.guest.mains.pop(program.pid, None)
        if run is None:
            return
        if self.random.random() < 0.3:
            self.background.append(program)
            program.ended = True
        else:
            program.close()
        self.guest.main_ended(run, self.random.choice((0, 256, 9)), 0)
        self.collect()

    def background_goes_on(self) -> None:
        for program in self.background:
            for fd in program.fds.values():
                with suppress(BlockingIOError, BrokenPipeError):
                    os.write(fd, b"later")

    # One thing after another

    def act(self) -> None:
        program = self.some_program()
        operation = self.some_operation()
        size = self.random.choice(SIZES)
        choice = self.random.random()
        if choice < 0.08:
            self.request(self.random.choice(("run", "run", "write", "read")))
        elif choice < 0.25:
            self.carry_to_guest(size)
        elif choice < 0.42:
            if not self.lazy or self.random.random() < 0.05:
                self.carry_to_host(size)
        elif choice < 0.6:
            self.step()
        elif choice < 0.72 and program:
            program.write(self.random.choice((1, 2)), self.random.randbytes(size))
        elif choice < 0.77 and program:
            program.take_input()
        elif choice < 0.8 and program:
            self.program_ends(program)
        elif choice < 0.88 and operation:
            self.send_input(operation)
        elif choice < 0.96 and operation:
            self.take_output(operation)
        elif choice < 0.98 and operation:
            self.kill(operation)
        else:
            self.background_goes_on()

    def finish(self) -> None:
        """Let everything come to its end; what does not, hangs."""
        for _ in range(3000):
            self.carry_to_guest(len(self.to_guest))
            self.step()
            self.carry_to_host(len(self.to_host))
            for program in [p for p in self.spawner.programs.values() if not p.ended]:
                program.take_input()
                if self.random.random() < 0.05:
                    self.program_ends(program)
            for operation in self.operations.values():
                self.send_input(operation)
                self.take_output(operation)
            if all(self.is_over(operation) for operation in self.operations.values()):
                return
        stuck = [vars(o) for o in self.operations.values() if not self.is_over(o)]
        raise AssertionError(f"these never end: {str(stuck)[:2000]}")

    @staticmethod
    def is_over(operation: Operation) -> bool:
        if operation.kill_sent:
            return operation.killed is not None
        return operation.last is not None

    def check(self) -> None:
        programs = list(self.spawner.programs.values())
        started = [o for o in self.operations.values() if o.kind == "run" and o.last is not None]
        assert len(programs) >= len(started)
        for operation in self.operations.values():
            self.check_one(operation)
        assert not self.guest.runs
        assert not self.guest.jobs
        assert not self.guest.link.out

    def check_one(self, operation: Operation) -> None:
        whole = operation.last is not None and not operation.kill_sent
        if operation.killed is not None and operation.killed.fate == w.Fate.DEAD:
            assert operation.last is not None, "killed, and no end of it"
        if operation.kind == "read":
            content = (self.work / "content").read_bytes()
            assert content.startswith(bytes(operation.out[0]))
            assert not whole or bytes(operation.out[0]) == content
        elif operation.kind == "write" and whole:
            assert operation.last == w.Done(operation.op, len(operation.input))
        elif operation.kind == "run" and operation.last is not None:
            program = self.program_of[operation.op]
            for stream in (1, 2):
                assert program.wrote[stream].startswith(operation.out[stream]), "a wrong byte"
                assert not whole or program.wrote[stream] == operation.out[stream], "output is missing"
            assert operation.input.startswith(bytes(program.read)), "wrong input"
            assert not whole or not program.greedy or program.read == operation.input, "lost input"

    def close(self) -> None:
        for owner in list(self.watch.owners.values()):
            os.close(owner.fd)
        for leftover in self.guest.resting:
            os.close(leftover.fd)
        for run in self.guest.runs.values():
            for stream in run.streams:
                if stream.fd >= 0 and stream.fd not in self.watch.owners:
                    os.close(stream.fd)
            if run.feed and run.feed.fd >= 0 and run.feed.fd not in self.watch.owners:
                os.close(run.feed.fd)
        for job in self.guest.jobs.values():
            job.steps.close()
        for program in self.spawner.programs.values():
            if not program.ended:
                program.close()
        for program in self.background:
            program.close()
        for fd in (self.spawner.null, self.guest.oom.fd):
            if fd >= 0:
                os.close(fd)

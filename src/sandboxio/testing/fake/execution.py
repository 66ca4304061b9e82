"""Runs of the fake: what the core asks of every adapter, done in virtual time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import anyio
import anyio.lowlevel

from sandboxio._wake import Wake
from sandboxio.adapter import Execution, Exit
from sandboxio.models import OutputChunk

from .jobs import Job, Run
from .machine import Machine
from .steps import Program

KILLED = 137


class FakeExecution(Execution):
    """One run. ``program`` makes the program when the run starts; ``text`` and ``env`` identify it."""

    def __init__(
        self,
        machine: Machine,
        program: Callable[[Run], Program],
        *,
        text: str,
        env: Mapping[str, str],
        seconds: float,
    ) -> None:
        self._machine = machine
        self._program = program
        self._text = text
        self._env = env
        self._seconds = seconds
        self._run = Run()
        self._job: Job | None = None
        self._interrupt: Wake | None = None
        self._unwatch: Callable[[], None] | None = None

    async def start(self) -> None:
        await anyio.lowlevel.checkpoint()
        machine = self._machine
        machine.check()
        self._interrupt = Wake()
        self._unwatch = machine.watch(self._interrupt)
        self._job = machine.launch(self._run, self._program(self._run), self._text, self._env)
        self._run.deadline = self._job.wakes_at + self._seconds
        machine.settle()

    async def receive(self) -> OutputChunk | None:
        await anyio.lowlevel.checkpoint()
        assert self._job is not None
        assert self._interrupt is not None
        machine, clock = self._machine, self._machine.clock
        while self.exit is None:
            if machine.ended is not None:
                machine.check()
            now = clock.now
            self._run.advance(min(now, machine.expires_at))
            if (chunk := self._run.pipe.take()) is not None:
                return chunk
            if self._job.error is not None:
                raise self._job.error
            if self._job.exit_code is not None:
                self._end(self._job.exit_code)
            elif now >= self._run.deadline:
                self._run.kill()
                self._end(KILLED, timed_out=True)
            elif now >= machine.expires_at:
                machine.check()
            else:
                until = min(self._job.wakes_at, self._run.deadline, machine.expires_at)
                await clock.wait(until, self._interrupt.event)
        return None

    def receive_nowait(self) -> OutputChunk | None:
        return self._run.pipe.take()

    async def kill(self) -> None:
        self._run.kill()
        if self.exit is None:
            self._end(KILLED)
        if self._interrupt is not None:
            self._interrupt.event.set()

    def close(self) -> None:
        if self._unwatch is not None:
            self._unwatch()

    def _end(self, exit_code: int, *, timed_out: bool = False) -> None:
        run = self._run
        run.deadline = math.inf  # it was for the command, not for what the command left behind
        self.exit: Exit | None = Exit(
            exit_code,
            timed_out=timed_out,
            results=run.results,
            notes=run.notes,
            network_denials=run.denials,
        )

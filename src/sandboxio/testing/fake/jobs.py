"""Virtual processes: programs, and how far they have come."""

from __future__ import annotations

import math
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sandboxio.errors import SandboxError
from sandboxio.models import OutputChunk, RichOutput

from .steps import Pause, Program, err

PIPE_SIZE = 64 << 10
"""Bytes that a program may print before somebody reads; Linux: pipe(7), "Pipe capacity"."""


class Pipe:
    """What was printed and not read yet."""

    def __init__(self) -> None:
        self._chunks: deque[OutputChunk] = deque()
        self._size = 0

    @property
    def full(self) -> bool:
        return self._size >= PIPE_SIZE

    def put(self, chunk: OutputChunk) -> None:
        if chunk.data:
            self._chunks.append(chunk)
            self._size += len(chunk.data)

    def take(self) -> OutputChunk | None:
        if not self._chunks:
            return None
        chunk = self._chunks.popleft()
        self._size -= len(chunk.data)
        return chunk


class Job:
    """One process. It goes on by itself up to an instant, or until its pipe is full."""

    def __init__(self, program: Program, pipe: Pipe, text: str, env: Mapping[str, str], now: float) -> None:
        self.pipe = pipe
        self.text = text
        self.env = env
        self.wakes_at: float = now
        self.exit_code: int | None = None
        self.error: SandboxError | None = None
        self._program = program

    def advance(self, until: float) -> None:
        """Do what happens up to the virtual instant ``until``."""
        while self.exit_code is None and self.wakes_at <= until and not self.pipe.full:
            try:
                step = next(self._program)
            except StopIteration as end:
                self.exit_code = end.value
            except SandboxError as error:
                self.exit_code, self.error = 255, error
            except Exception as error:  # noqa: BLE001 - a fault of the fake, which is no failure of the host's
                self.exit_code = 255
                self.pipe.put(err(_fault(error)))
            except BaseException:  # the host's own interrupt; a program that has raised never ends
                self.exit_code = 255
                raise
            else:
                if isinstance(step, Pause):
                    self.wakes_at += step.seconds
                else:
                    self.pipe.put(step)

    def kill(self) -> None:
        """Stop at once."""
        if self.exit_code is None:
            self.exit_code = 137
            self._program.close()


def _fault(error: Exception) -> bytes:
    """What is said where the fake itself fails: enough to report it, and what to do until it is mended."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    text = (
        f"sandboxio.testing: the fake failed in {Path(place.filename).name}, line {place.lineno}: "
        f"{''.join(traceback.format_exception_only(error)).strip()}; please report this. "
        "Until then, script an answer with on_run() or on_run_code()\n"
    )
    return text.encode("utf-8", "backslashreplace")


@dataclass
class Run:
    """One call of ``run``, ``stream`` or ``run_code``: its processes and what is counted for it.

    Nothing in it goes on after ``deadline``, a virtual instant.
    """

    pipe: Pipe = field(default_factory=Pipe)
    jobs: list[Job] = field(default_factory=list[Job])
    denials: int = 0
    shells: int = 0
    deadline: float = math.inf
    results: tuple[RichOutput, ...] | None = None
    notes: tuple[str, ...] = ()
    on_kill: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])

    def spawn(self, program: Program, text: str, env: Mapping[str, str], now: float) -> Job:
        """Start a process of this run."""
        job = Job(program, self.pipe, text, env, now)
        self.jobs.append(job)
        return job

    def advance(self, until: float) -> None:
        """Let every process of this run do what happens up to ``until``."""
        for job in list(self.jobs):
            job.advance(min(until, self.deadline))
        self.jobs = [job for job in self.jobs if job.exit_code is None or job is self.jobs[0]]

    def kill(self) -> None:
        """End every process of this run."""
        for job in self.jobs:
            job.kill()
        while self.on_kill:
            self.on_kill.pop()()

    @property
    def alive(self) -> list[Job]:
        return [job for job in self.jobs if job.exit_code is None]

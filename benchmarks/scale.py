"""How the cost grows: with runs at once, with sandboxes, with the size of a file."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from . import settings
from .measures import Measure, Progress, close_all, open_all
from .others import DockerCommand, DockerPy
from .ours import Ours
from .subjects import AsyncSubject, Clock, Floor, Subject

CONCURRENCY = (1, 4, 16, 64, 256)
SANDBOXES = (1, 10, 50, 100, 200)
SIZES = tuple(1 << power for power in range(10, 31, 4))
MANY_THREADS = 64
"""Blocking libraries get no more at once: each takes a thread, and the engine is saturated long before."""


def runs_at_once(say: Progress, *, rounds: int = 3) -> list[Measure]:
    """Commands per second by how many run at once."""
    subjects = open_all([Floor(), Ours("guest"), Ours("guest", "trio"), Ours("exec"), DockerPy()], say)
    measures = []
    try:
        for count in CONCURRENCY:
            measure = Measure(f"at_once_{count}", "1/s", "more")
            for _ in range(rounds):
                for subject in subjects:
                    if count <= MANY_THREADS or subject.quick:
                        measure.add(subject.name, count / subject.burst(count))
            say(f"{count} runs at once")
            measures.append(measure)
    finally:
        close_all(subjects)
    return measures


def sandboxes(say: Progress) -> list[Measure]:
    """Seconds until all of N sandboxes, opened at once, have run a command."""
    subjects = open_all([Ours("guest"), Ours("guest", "trio"), DockerPy()], say)
    measures = []
    try:
        for count in SANDBOXES:
            measure = Measure(f"sandboxes_{count}", "s", "less")
            for subject in subjects:
                if isinstance(subject, AsyncSubject):
                    measure.add(subject.name, subject.value("first_results", count))
                elif count <= MANY_THREADS:
                    measure.add(subject.name, _in_threads(subject, count))
            say(f"{count} sandboxes at once")
            measures.append(measure)
    finally:
        close_all(subjects)
    return measures


def _in_threads(subject: Subject, count: int) -> float:
    with ThreadPoolExecutor(count) as pool:
        start = Clock()
        ends = [made.result() for made in [pool.submit(subject.first_result) for _ in range(count)]]
        seconds = Clock() - start
        list(pool.map(lambda end: end(), ends))  # type: ignore[operator]
    return seconds


def file_sizes(say: Progress, sizes: Sequence[int] = SIZES) -> list[Measure]:
    """Seconds of one upload and one download by size."""
    everyone: list[Subject] = [Floor(), Ours("guest"), Ours("guest", "trio"), Ours("exec")]
    subjects = open_all([*everyone, DockerPy(), DockerCommand()], say)
    measures = []
    try:
        for size in sizes:
            up = Measure(f"upload_{size}", "s", "less")
            down = Measure(f"download_{size}", "s", "less")
            for _ in range(1 if size >= 1 << 28 else 3):
                for subject in subjects:
                    there, back = subject.value("move_file", size)
                    up.add(subject.name, there)
                    down.add(subject.name, back)
            say(f"files of {size / settings.MIB:g} MiB")
            measures += [up, down]
    finally:
        close_all(subjects)
    return measures

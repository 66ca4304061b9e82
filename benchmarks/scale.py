"""How the cost grows: with runs at once, with sandboxes, with the size of a file."""

from __future__ import annotations

from typing import Any

import anyio

import sandboxio

from . import settings
from .measures import Measure, Progress
from .subjects import Clock, DockerPy, Ours

CONCURRENCY = (1, 4, 16, 64, 256)
SANDBOXES = (1, 10, 50, 100, 200)
SIZES = tuple(1 << power for power in range(10, 31, 4))


def runs_at_once(say: Progress, *, rounds: int = 3) -> list[Measure]:
    """Commands per second by how many run at once."""
    measures = []
    subjects = [Ours("guest"), Ours("guest", "trio"), DockerPy()]
    for subject in subjects:
        subject.open()
    try:
        for count in CONCURRENCY:
            measure = Measure(f"at_once_{count}", "1/s", "more")
            for _ in range(rounds):
                for subject in subjects:
                    if count <= 64 or isinstance(subject, Ours):  # docker-py: one thread each, 64 are enough
                        measure.add(subject.name, count / subject.burst(count))
            say(f"{count} runs at once")
            measures.append(measure)
    finally:
        for subject in subjects:
            subject.close()
    return measures


def sandboxes(say: Progress) -> Measure:
    """Seconds until all of N sandboxes, opened at once, have run a command."""
    measure = Measure("sandboxes_at_once", "s", "less")
    for count in SANDBOXES:
        measure.add(str(count), anyio.run(_open_many, count))
        say(f"{count} sandboxes at once")
    return measure


async def _open_many(count: int) -> float:
    subject = Ours("guest")
    made: list[Any] = []
    start = Clock()

    async def one() -> None:
        sandbox = await subject.backend().create(resources=sandboxio.Resources(memory_mb=128), timeout=3600)
        made.append(sandbox)
        await sandbox.run(["true"])

    try:
        async with anyio.create_task_group() as group:
            for _ in range(count):
                group.start_soon(one)
        return Clock() - start
    finally:
        async with anyio.create_task_group() as group:
            for sandbox in made:
                group.start_soon(sandbox.kill)


def file_sizes(say: Progress) -> list[Measure]:
    """Seconds of one upload and one download by size."""
    return anyio.run(_files, say)


async def _files(say: Progress) -> list[Measure]:
    up, down = Measure("upload_by_size", "s", "less"), Measure("download_by_size", "s", "less")
    subject = Ours("guest")
    async with anyio.TemporaryDirectory() as folder, await subject.make() as sandbox:
        local, back = anyio.Path(folder, "file"), anyio.Path(folder, "back")
        for size in SIZES:
            async with await local.open("wb") as file:
                await file.truncate(size)
            for _ in range(1 if size >= 1 << 28 else 3):
                start = Clock()
                await sandbox.files.upload(str(local), "/work/file")
                middle = Clock()
                await sandbox.files.download("/work/file", str(back))
                up.add(str(size), middle - start)
                down.add(str(size), Clock() - middle)
            say(f"files of {size / settings.MIB:g} MiB")
    return [up, down]

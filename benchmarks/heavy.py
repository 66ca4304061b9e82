"""Measures that need a process of their own: memory growth, many streams, many sandboxes.

``python -m benchmarks.heavy NAME LOOP`` runs one and prints its figures as one JSON object.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import psutil

import sandboxio
from sandboxio_docker import DockerBackend

from . import settings
from .others import DockerPy
from .subjects import Clock, make_file

Figures = dict[str, float]
GIB = 1 << 30


def rss() -> int:
    """Resident bytes of this process."""
    return psutil.Process().memory_info().rss


async def make(channel: Any = "guest", **options: Any) -> Any:
    backend = DockerBackend(image=settings.IMAGE, channel=channel)
    return await backend.create(timeout=3600, **options)


async def transfer(channel: str = "guest", size: int = GIB) -> Figures:
    """Upload and download one file: seconds, and how much this process grew meanwhile."""
    figures: Figures = {}
    with tempfile.TemporaryDirectory() as folder:
        local, back = Path(folder, "big"), Path(folder, "back")
        make_file(local, size)
        async with await make(channel) as sandbox:
            await sandbox.files.write("/work/warm", b"x" * (1 << 20))
            await sandbox.files.read("/work/warm")
            for name, move in (
                ("upload", lambda: sandbox.files.upload(local, "/work/big")),
                ("download", lambda: sandbox.files.download("/work/big", back)),
            ):
                seconds, growth = await watched(move)
                figures[f"{name}_s"], figures[f"{name}_rss_growth_mb"] = seconds, growth / settings.MIB
        assert back.stat().st_size == size
    return figures


async def transfer_docker_py(size: int = GIB) -> Figures:
    """The same through docker-py, which needs a tar file of it on the disk."""
    subject = DockerPy()
    subject.open()
    moved: list[float] = []
    try:
        _, growth = await watched(
            lambda: anyio.to_thread.run_sync(lambda: moved.extend(subject.move_file(size)))
        )
    finally:
        subject.close()
    return {"upload_s": moved[0], "download_s": moved[1], "rss_growth_mb": growth / settings.MIB}


async def watched(work: Callable[[], Awaitable[object]]) -> tuple[float, int]:
    """Seconds of ``work`` and the most by which this process grew while it ran."""
    before, most = rss(), 0
    start = Clock()
    async with anyio.create_task_group() as group:

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, rss() - before)
                await anyio.sleep(0.05)

        group.start_soon(watch)
        await work()
        seconds = Clock() - start
        most = max(most, rss() - before)
        group.cancel_scope.cancel()
    return seconds, most


async def many_streams(channel: str = "guest", count: int = 500, sandboxes: int = 3) -> Figures:
    """Open ``count`` live streams at once; every one must progress, and a kill must stay immediate."""
    seen = [0] * count
    threads = threading.active_count()
    made = [await make(channel, resources=sandboxio.Resources(memory_mb=2048)) for _ in range(sandboxes)]
    try:
        async with anyio.create_task_group() as group:
            everyone = anyio.Event()

            async def follow(number: int) -> None:
                command = ["sh", "-c", "while :; do echo x; sleep 1; done"]
                async with made[number % sandboxes].stream(command, timeout=600) as process:
                    async for chunk in process:
                        seen[number] += len(chunk.data)
                        if all(seen):
                            everyone.set()

            start = Clock()
            for number in range(count):
                group.start_soon(follow, number)
            with anyio.fail_after(120):
                await everyone.wait()
            all_seen = Clock() - start
            again = list(seen)
            start = Clock()
            with anyio.fail_after(60):
                while any(now <= before for now, before in zip(seen, again, strict=True)):
                    await anyio.sleep(0.05)
            progressed = Clock() - start
            most_threads = threading.active_count()
            start = Clock()
            async with made[0].stream(["sleep", "60"]) as process:
                await process.kill()
            kill = Clock() - start
            group.cancel_scope.cancel()
    finally:
        for sandbox in made:
            await sandbox.kill()
    return {
        "streams": count,
        "all_first_output_s": all_seen,
        "all_progressed_s": progressed,
        "kill_s": kill,
        "threads_added": most_threads - threads,
    }


async def many_sandboxes(count: int = 100) -> Figures:
    """Open ``count`` sandboxes at once, and what each costs while it idles."""
    before = rss()
    made: list[Any] = []
    start = Clock()

    async def one() -> None:
        sandbox = await make(resources=sandboxio.Resources(memory_mb=128))
        made.append(sandbox)
        await sandbox.run(["true"])

    try:
        async with anyio.create_task_group() as group:
            for _ in range(count):
                group.start_soon(one)
        opened = Clock() - start
        grown = (rss() - before) / count
        inside = [await idle_memory(sandbox) for sandbox in made[:5]]
    finally:
        start = Clock()
        async with anyio.create_task_group() as group:
            for sandbox in made:
                group.start_soon(sandbox.kill)
        closed = Clock() - start
    return {
        "sandboxes": count,
        "open_s": opened,
        "close_s": closed,
        "client_kb_each": grown / 1024,
        "guest_mb_each": sum(inside) / len(inside) / settings.MIB,
    }


async def idle_memory(sandbox: Any) -> float:
    """Bytes that the guest holds, by its own /proc entry."""
    result = await sandbox.run(["sh", "-c", "grep VmRSS /proc/1/status"])
    return float(result.stdout.split()[1]) * 1024


BOTH = ("asyncio", "trio")

HEAVY: dict[str, tuple[Callable[[], Awaitable[Figures]], tuple[str, ...]]] = {
    "transfer": (transfer, BOTH),
    "transfer_exec": (partial(transfer, "exec"), BOTH),
    "transfer_docker_py": (transfer_docker_py, ("asyncio",)),
    "many_streams": (many_streams, BOTH),
    "many_streams_exec": (partial(many_streams, "exec"), BOTH),
    "many_sandboxes": (many_sandboxes, BOTH),
}
"""Name: what takes the figures, and the loops it is taken on."""

BOUNDED = ("transfer", "many_streams")
"""Those that the bounds need."""


def main() -> None:
    name, loop = sys.argv[1:3]
    figures = anyio.run(HEAVY[name][0], backend=loop)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()

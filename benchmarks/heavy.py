"""Measures that need a process of their own: memory growth, many streams, many sandboxes.

``python -m benchmarks.heavy NAME LOOP`` runs one and prints its figures as one JSON object.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import psutil

import sandboxio
from sandboxio_docker import DockerBackend

from . import settings
from .subjects import Clock

Figures = dict[str, float]
GIB = 1 << 30


def rss() -> int:
    """Resident bytes of this process."""
    return psutil.Process().memory_info().rss


async def make(**options: Any) -> Any:
    backend = DockerBackend(image=settings.IMAGE)
    return await backend.create(timeout=3600, **options)


async def transfer(size: int = GIB) -> Figures:
    """Upload and download one file: seconds, and how much this process grew meanwhile."""
    figures: Figures = {}
    with tempfile.TemporaryDirectory() as folder:
        local, back = Path(folder, "big"), Path(folder, "back")
        with local.open("wb") as file:
            file.truncate(size)
        async with await make() as sandbox:
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


async def many_streams(count: int = 500, sandboxes: int = 2) -> Figures:
    """Open ``count`` live streams at once; every one must progress, and a kill must stay immediate."""
    seen = [0] * count
    threads = threading.active_count()
    made = [await make(resources=sandboxio.Resources(memory_mb=2048)) for _ in range(sandboxes)]
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


HEAVY: dict[str, Callable[[], Awaitable[Figures]]] = {
    "transfer": transfer,
    "many_streams": many_streams,
    "many_sandboxes": many_sandboxes,
}


def main() -> None:
    name, loop = sys.argv[1:3]
    figures = anyio.run(HEAVY[name], backend=loop)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()

"""What a subject of the measurements is: it holds one live sandbox and does the same small things in it.

Durations are taken where the caller of the library would take them: inside the event loop for async
libraries, around the call for blocking ones. A subject that cannot do a thing lacks the method, and is
left out of that measure.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread

from . import settings

Clock = time.perf_counter


class Subject(ABC):
    """One library with one live sandbox; its methods block. ``true`` is what every subject has."""

    name: str
    quick = False
    """Whether a call takes about a millisecond: then a round has ten, else two."""
    at_once = True
    """Whether many threads or tasks may use one sandbox."""

    @abstractmethod
    def open(self) -> None:
        """Make the sandbox and wait until a command has run in it."""

    @abstractmethod
    def close(self) -> None:
        """End the sandbox."""

    def times(self, thing: str, count: int) -> list[float]:
        """Seconds of ``count`` calls of the method ``thing``, one after another."""
        return [self._time(getattr(self, thing)) for _ in range(count)]

    def value(self, thing: str, *arguments: Any) -> Any:
        """A figure, or several, that the method ``thing`` takes by itself."""
        return getattr(self, thing)(*arguments)

    def burst(self, count: int) -> float:
        """Seconds for ``count`` runs of ``true`` at once, a thread for each."""
        with ThreadPoolExecutor(count) as pool:
            start = Clock()
            for done in [pool.submit(self.true) for _ in range(count)]:  # type: ignore[attr-defined]
                done.result()
            return Clock() - start

    @staticmethod
    def _time(call: Callable[[], object]) -> float:
        """Seconds of one call; what it returns, if callable, undoes it outside of the time."""
        start = Clock()
        undo = call()
        seconds = Clock() - start
        if callable(undo):
            undo()
        return seconds


class AsyncSubject(Subject):
    """A subject whose methods are coroutines of an event loop that lives as long as the sandbox."""

    loop = "asyncio"

    def open(self) -> None:
        self._stack = ExitStack()
        self._portal = self._stack.enter_context(anyio.from_thread.start_blocking_portal(self.loop))
        try:
            self._portal.call(self.setup)
        except BaseException:
            self._stack.close()
            raise

    def close(self) -> None:
        try:
            self._portal.call(self.teardown)
        finally:
            self._stack.close()

    def times(self, thing: str, count: int) -> list[float]:
        return self._portal.call(self._times, getattr(self, thing), count)

    def value(self, thing: str, *arguments: Any) -> Any:
        return self._portal.call(getattr(self, thing), *arguments)

    def burst(self, count: int) -> float:
        return self._portal.call(self._burst, count)

    async def _times(self, call: Callable[[], Awaitable[object]], count: int) -> list[float]:
        seconds = []
        for _ in range(count):
            start = Clock()
            undo = await call()
            seconds.append(Clock() - start)
            if callable(undo):
                await undo()
        return seconds

    async def _burst(self, count: int) -> float:
        start = Clock()
        async with anyio.create_task_group() as group:
            for _ in range(count):
                group.start_soon(self.true)
        return Clock() - start

    @abstractmethod
    async def setup(self) -> None: ...

    @abstractmethod
    async def teardown(self) -> None: ...

    @abstractmethod
    async def true(self) -> object: ...


class Floor(AsyncSubject):
    """A local subprocess and a local file: what a thing costs without any sandbox."""

    quick = True

    def __init__(self, loop: str = "asyncio") -> None:
        self.loop = loop
        self.name = f"local subprocess ({loop})"

    async def setup(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        await self.true()

    async def teardown(self) -> None:
        self._folder.cleanup()

    async def true(self) -> object:
        return await anyio.run_process(["true"])

    async def code(self) -> object:
        return await anyio.run_process(["python3", "-c", "print(1)"])

    async def small_file(self) -> None:
        path = anyio.Path(self._folder.name, "small")
        await path.write_bytes(settings.SMALL)
        assert await path.read_bytes() == settings.SMALL

    async def stream(self, size: int) -> float:
        """Bytes per second of one pipe."""
        start, seen = Clock(), 0
        async with await anyio.open_process(settings.printing(size), stderr=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            async for data in process.stdout:
                seen += len(data)
        assert seen == size
        return size / (Clock() - start)

    async def kill(self) -> float:
        """Seconds from the kill of a process until it was waited for."""
        async with await anyio.open_process(["sleep", "60"]) as process:
            start = Clock()
            process.kill()
            await process.wait()
            return Clock() - start

    async def move_file(self, size: int) -> tuple[float, float]:
        """Seconds to copy a file of ``size`` bytes there and back."""
        one, two, three = (Path(self._folder.name, name) for name in ("one", "two", "three"))
        make_file(one, size)
        start = Clock()
        await anyio.run_process(["cp", str(one), str(two)])
        middle = Clock()
        await anyio.run_process(["cp", str(two), str(three)])
        end = Clock()
        return middle - start, end - middle


def make_file(path: Path, size: int) -> None:
    """``size`` bytes that are really on the disk: holes would make copying cheap."""
    block = bytes(range(256)) * 4096
    with path.open("wb") as file:
        left = size
        while left:
            left -= file.write(block[: min(left, len(block))])

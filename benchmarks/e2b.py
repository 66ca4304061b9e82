"""The E2B adapter beside E2B's own client, both at the tests' stand-in of the service.

What differs between the two is the client: the stand-in is a process on this machine, so these figures
say nothing about the service itself.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sandboxio
from tests.e2b_standin.running import problem, stand_in

from . import settings
from .measures import Measure, Progress, calls, close_all, open_all, values
from .ours import Sandboxed
from .subjects import AsyncSubject, Clock


class OursOnE2B(Sandboxed):
    """sandboxio's adapter."""

    def __init__(self, loop: str = "asyncio") -> None:
        self.loop = loop
        self.name = f"sandboxio e2b ({loop})"

    async def make(self) -> Any:
        return await sandboxio.create("e2b://base", timeout=600)


class E2BClient(AsyncSubject):
    """E2B's ``AsyncSandbox``, which needs asyncio."""

    name = "e2b AsyncSandbox"

    async def make(self) -> Any:
        import e2b

        return await e2b.AsyncSandbox.create("base", timeout=600, allow_internet_access=False)

    async def setup(self) -> None:
        self.sandbox = await self.make()
        await self.true()

    async def teardown(self) -> None:
        await self.sandbox.kill()

    async def true(self) -> object:
        return await self.sandbox.commands.run("true")

    async def small_file(self) -> None:
        await self.sandbox.files.write("/home/user/small", settings.SMALL)
        assert await self.sandbox.files.read("/home/user/small", format="bytes") == settings.SMALL

    async def stream(self, size: int) -> float:
        """Bytes per second of one stream."""
        seen = 0

        def take(text: str) -> None:
            nonlocal seen
            seen += len(text)

        start = Clock()
        await self.sandbox.commands.run(shlex.join(settings.printing(size)), on_stdout=take, timeout=300)
        assert seen == size
        return size / (Clock() - start)

    async def first_result(self) -> object:
        sandbox = await self.make()
        await sandbox.commands.run("true")
        return sandbox.kill


@contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    """These variables in ``os.environ`` for the body."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def beside_the_sdk(rounds: int, say: Progress, *, size: int = 20 << 20) -> list[Measure]:
    """The same small things as on Docker; nothing where the stand-in cannot run, which is said."""
    if reason := problem():
        say(f"E2B is left out: {reason}")
        return []
    with stand_in() as service, environment(service.environment):
        subjects = open_all([OursOnE2B(), OursOnE2B("trio"), E2BClient()], say)
        try:
            taken = [
                calls(subjects, "true", rounds, say),
                calls(subjects, "small_file", rounds, say),
                calls(subjects, "first_result", rounds, say, slow=1),
                values(subjects, "stream", max(3, rounds // 4), say, size, name="stream_20mb", unit="B/s"),
            ]
        finally:
            close_all(subjects)
    for measure in taken:
        measure.name = f"e2b_{measure.name}"
    return taken

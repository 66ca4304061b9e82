"""The one sandbox of a server process: made at the first call, ended with the server."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio

from sandboxio.errors import SandboxGone
from sandboxio.protocols import AsyncSandbox


class Holder:
    """Makes the sandbox once, however many calls come at once, and makes another when it has gone.

    A call that finds the sandbox gone fails and says so, for its files and processes are lost; the next
    call gets a new sandbox.
    """

    def __init__(self, make: Callable[[], Awaitable[AsyncSandbox]]) -> None:
        self._make = make
        self._making = anyio.Lock()
        self._sandbox: AsyncSandbox | None = None

    @asynccontextmanager
    async def sandbox(self) -> AsyncGenerator[AsyncSandbox]:
        """The sandbox, for one call."""
        async with self._making:
            if self._sandbox is None:
                self._sandbox = await self._make()
            sandbox = self._sandbox
        try:
            yield sandbox
        except SandboxGone:
            if self._sandbox is sandbox:
                self._sandbox = None
            raise

    async def close(self) -> None:
        """End the sandbox, if there is one."""
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            await sandbox.kill()

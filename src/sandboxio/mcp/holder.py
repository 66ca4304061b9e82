"""The one sandbox of a server process: made at the first call, ended with the server."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio

from sandboxio.adapter import bounded
from sandboxio.errors import SandboxGone
from sandboxio.protocols import AsyncSandbox


class Holder:
    """Makes the sandbox once, however many calls come at once, and makes another when it has gone.

    A call that finds the sandbox gone fails and says so, for its files and processes are lost; the next
    call gets a new sandbox. Once closed, it makes no more.
    """

    def __init__(self, make: Callable[[], Awaitable[AsyncSandbox]]) -> None:
        self._make = make
        self._making = anyio.Lock()
        self._attempt: anyio.CancelScope | None = None
        self._sandbox: AsyncSandbox | None = None
        self._closed = False

    @asynccontextmanager
    async def sandbox(self) -> AsyncGenerator[AsyncSandbox]:
        """The sandbox, for one call.

        Raises what ``create()`` raises, and ``SandboxGone`` once the server ends.
        """
        async with self._making:
            sandbox = self._sandbox or await self._made()
        try:
            yield sandbox
        except SandboxGone:
            if self._sandbox is sandbox:
                self._sandbox = None
            raise

    async def close(self) -> None:
        """End the sandbox, also one that is just being made; idempotent, and done even when cancelled."""
        self._closed = True
        if self._attempt is not None:
            self._attempt.cancel()
        put_off: list[BaseException] = []
        await bounded(self._undone, put_off=put_off)
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            await sandbox.kill()
        if put_off:
            raise put_off[0]

    async def _made(self) -> AsyncSandbox:
        if not self._closed:
            with anyio.CancelScope() as self._attempt:
                self._sandbox = await self._make()
        if self._closed or self._sandbox is None:
            raise SandboxGone(
                "The server is ending, and its sandbox with it.", hint="Start the server again."
            )
        return self._sandbox

    async def _undone(self) -> None:
        """Wait until a creation that was broken off has removed what there was."""
        async with self._making:
            pass

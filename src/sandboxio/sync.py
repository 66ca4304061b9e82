"""The blocking facade: the async API for code without an event loop.

Every method here hands its arguments to its async twin and waits; there is no adapter logic. A
sandbox has an event loop in a thread of its own, from :func:`create_sync` until :meth:`SyncSandbox.close`:
N sandboxes are N threads, and every call (for a stream every chunk) costs a change of threads, about a
tenth of a millisecond. For many sandboxes at once use the async API.

One sandbox may be used from several threads. Ctrl-C interrupts a waiting call: the remote process is
killed, then ``KeyboardInterrupt`` goes on its way. It works inside a running event loop too (a
notebook), which stands still for as long as the call takes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from . import api
from ._portal import Portal
from .errors import SandboxGone
from .models import (
    DEFAULT_NETWORK,
    DEFAULT_TIMEOUT,
    BackendConfig,
    Capability,
    ExecResult,
    FileInfo,
    IsolationTier,
    NetworkPolicy,
    OutputChunk,
    Resources,
)
from .protocols import AsyncFileSystem, AsyncSandbox, Process

T = TypeVar("T")


def create_sync(
    target: str | BackendConfig | None = None,
    *,
    template: str | None = None,
    resources: Resources = Resources(),
    network: NetworkPolicy = DEFAULT_NETWORK,
    env: dict[str, str] | None = None,
    secrets: dict[str, str] | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    metadata: dict[str, str] | None = None,
    require_isolation: IsolationTier | None = None,
) -> SyncSandbox:
    r"""Create a sandbox and wait for it; arguments and errors as in :func:`sandboxio.create`.

    Interrupted, it leaves no sandbox and no thread behind.

    >>> with create_sync("fake://") as sandbox:
    ...     sandbox.run(["echo", "hello"]).stdout
    'hello\n'
    """
    return _open(
        partial(
            api.create,
            target,
            template=template,
            resources=resources,
            network=network,
            env=env,
            secrets=secrets,
            timeout=timeout,
            metadata=metadata,
            require_isolation=require_isolation,
        )
    )


def connect_sync(target: str | BackendConfig, sandbox_id: str) -> SyncSandbox:
    """A handle on a running sandbox; see :func:`sandboxio.connect`. Closing it ends the sandbox.

    >>> with create_sync("fake://") as mine:
    ...     with connect_sync("fake://", mine.id) as same:
    ...         same.id == mine.id
    True
    """
    return _open(partial(api.connect, target, sandbox_id))


def _open(make: Callable[[], Awaitable[AsyncSandbox]]) -> SyncSandbox:
    portal = Portal()

    async def enter() -> AsyncSandbox:
        sandbox = await make()
        portal.at_end(sandbox.kill)  # from here on the thread ends it, whoever is interrupted where
        return await sandbox.__aenter__()

    try:
        return SyncSandbox(portal.call(enter), portal)
    except BaseException:  # nobody gets the handle
        portal.close()
        raise


async def use_in_its_loop(sandbox: SyncSandbox, use: Callable[[AsyncSandbox], Awaitable[T]]) -> T:
    r"""What ``use`` makes of ``sandbox``, awaited by a task of another event loop, which goes on meanwhile.

    Cancelled, ``use`` is cancelled in the sandbox's loop: its command is dead before this returns.

    >>> import anyio
    >>> async def main():
    ...     return (await use_in_its_loop(sandbox, lambda inner: inner.run("echo hello"))).stdout
    >>> with create_sync("fake://") as sandbox:
    ...     anyio.run(main)
    'hello\n'
    """
    return await sandbox._portal.call_from_loop(partial(use, sandbox._sandbox))  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - its own kind


class SyncSandbox:
    """A live sandbox; a context manager whose exit ends it. Made by :func:`create_sync`."""

    def __init__(self, sandbox: AsyncSandbox, portal: Portal) -> None:
        self._sandbox = sandbox
        self._portal = portal
        self._files = SyncFileSystem(sandbox.files, portal)

    @property
    def id(self) -> str:
        """The backend's stable id."""
        return self._sandbox.id

    @property
    def capabilities(self) -> Capability:
        """What this sandbox can do."""
        return self._sandbox.capabilities

    @property
    def isolation(self) -> IsolationTier:
        """The tier of this sandbox."""
        return self._sandbox.isolation

    def run(
        self,
        cmd: str | list[str],
        *,
        timeout: float | None = None,
        env: dict[str, str] | None = None,
    ) -> ExecResult:
        """Run a command to its end: a list as it is, a string through a shell.

        Raises ``ExecutionTimeout``, ``ResourceLimitExceeded``, ``SandboxGone``. A non-zero exit code is
        a result.
        """
        return self._portal.call(partial(self._sandbox.run, cmd, timeout=timeout, env=env))

    def run_code(
        self,
        code: str,
        *,
        language: str = "python",
        context_id: str | None = None,
        timeout: float | None = None,
    ) -> ExecResult:
        """Run code in an interpreter; raises as :meth:`run` does."""
        return self._portal.call(
            partial(
                self._sandbox.run_code,
                code,
                language=language,
                context_id=context_id,
                timeout=timeout,
            )
        )

    def stream(
        self,
        cmd: str | list[str],
        *,
        timeout: float | None = None,
        env: dict[str, str] | None = None,
    ) -> SyncProcess:
        """A command whose output is read while it runs: ``with sandbox.stream(...) as process``."""

        async def build() -> Process:
            return self._sandbox.stream(cmd, timeout=timeout, env=env)

        return SyncProcess(self._portal.call(build), self._portal)

    def kill(self) -> None:
        """End the sandbox; idempotent. The thread stays until :meth:`close`."""
        if not self._portal.is_foreign:
            self._end(self._sandbox.kill)

    def close(self) -> None:
        """End the sandbox, then its thread; idempotent, and done by leaving ``with``."""
        try:
            self.kill()
        finally:
            self._portal.close()

    @property
    def files(self) -> SyncFileSystem:
        """The files of this sandbox."""
        return self._files

    @property
    def native(self) -> object:
        """The provider's own async object, bound to this sandbox's loop; outside the semver contract."""
        return self._sandbox.native

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if not self._portal.is_foreign:
                self._end(partial(self._sandbox.__aexit__, kind, error, trace))
        finally:
            self._portal.close()

    def __repr__(self) -> str:
        return f"<SyncSandbox of {self._sandbox!r}>"

    def _end(self, work: Callable[[], Awaitable[None]]) -> None:
        with suppress(SandboxGone):  # closed before, or by another thread just now
            self._portal.call(work)
            self._portal.at_end(None)


class SyncProcess:
    r"""One streamed command: a context manager that iterates its output.

    The command starts on entering and is dead on leaving, as for :class:`sandboxio.protocols.Process`.
    Each chunk costs a change of threads.

    >>> with create_sync("fake://") as sandbox, sandbox.stream(["echo", "hello"]) as process:
    ...     b"".join(chunk.data for chunk in process)
    b'hello\n'
    """

    def __init__(self, process: Process, portal: Portal) -> None:
        self._process = process
        self._portal = portal

    def __enter__(self) -> Self:
        started: list[Process] = []

        async def enter() -> None:
            started.append(await self._process.__aenter__())

        try:
            self._portal.call(enter)
            return self
        except BaseException as error:
            if (
                started
            ):  # Ctrl-C came when the command ran already, and `with` will not leave what it never had
                self.__exit__(type(error), error, error.__traceback__)
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._portal.is_foreign:
            with suppress(SandboxGone):  # closed before, and the command with it
                self._portal.call(partial(self._process.__aexit__, kind, error, trace))

    def __iter__(self) -> Iterator[OutputChunk]:
        chunks = self._process.__aiter__()

        async def receive() -> OutputChunk | None:
            return await anext(chunks, None)

        while (chunk := self._portal.call(receive)) is not None:
            yield chunk

    def wait(self) -> ExecResult:
        """The result, with ``streamed=True``; unread output is read and dropped. Idempotent."""
        return self._portal.call(self._process.wait)

    def kill(self) -> None:
        """Kill the command and its descendants; idempotent."""
        with suppress(SandboxGone):
            self._portal.call(self._process.kill)

    @property
    def returncode(self) -> int | None:
        """The exit code, or None while the command runs."""
        return self._process.returncode


class SyncFileSystem:
    """Files of one sandbox; paths and errors as for :class:`sandboxio.protocols.AsyncFileSystem`."""

    def __init__(self, files: AsyncFileSystem, portal: Portal) -> None:
        self._files = files
        self._portal = portal

    def read(self, path: str) -> bytes:
        """The bytes of a regular file."""
        return self._portal.call(partial(self._files.read, path))

    def write(self, path: str, data: bytes | str) -> None:
        """Write a file atomically; text is encoded as UTF-8."""
        self._portal.call(partial(self._files.write, path, data))

    def upload(self, local: str | Path, remote: str) -> None:
        """Copy a regular file of the host into the sandbox."""
        self._portal.call(partial(self._files.upload, local, remote))

    def download(self, remote: str, local: str | Path) -> None:
        """Copy a regular file of the sandbox to the host, atomically."""
        self._portal.call(partial(self._files.download, remote, local))

    def ls(self, path: str = ".") -> list[FileInfo]:
        """The entries of a folder, sorted by path."""
        return self._portal.call(partial(self._files.ls, path))

    def mkdir(self, path: str, *, parents: bool = False) -> None:
        """Make a folder; with ``parents`` also those above it."""
        self._portal.call(partial(self._files.mkdir, path, parents=parents))

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with all that is in it."""
        self._portal.call(partial(self._files.remove, path))

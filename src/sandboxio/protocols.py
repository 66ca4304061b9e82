"""The ports: what an adapter implements and what a caller may rely on.

They are structural: a third party need not inherit anything. Types alone prove little, so an adapter
counts as conforming when it passes ``sandboxio.testing.suite.BackendContractSuite``. Most adapters are
shorter on top of :mod:`sandboxio.adapter`.

Keyword arguments are named and typed everywhere; there is no ``**kwargs``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

from .models import (
    BackendConfig,
    Capability,
    Diagnosis,
    ExecResult,
    FileInfo,
    IsolationTier,
    ManagedSandbox,
    NetworkPolicy,
    OutputChunk,
    Progress,
    Resources,
)


class Process(Protocol):
    """One streamed command: an async context manager that iterates its output.

    The command starts on entering. Left before its end (a ``break``, an exception, a cancellation), it is
    dead with its descendants; what a command that ended by itself left in the background goes on, as for
    ``run``. Order is kept within a stream, not between the two.

    Its timeout counts from entering until its end has been read: a reader that pauses uses up the command's
    time, as a command that prints waits for its reader.
    """

    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
    def __aiter__(self) -> AsyncIterator[OutputChunk]: ...

    async def wait(self) -> ExecResult:
        """The result (``streamed=True``, empty texts); reads and drops unread output. Idempotent."""
        ...

    async def kill(self) -> None:
        """Kill the command and its descendants; idempotent."""
        ...

    @property
    def returncode(self) -> int | None:
        """The exit code, or None while the command runs."""
        ...


class AsyncFileSystem(Protocol):
    """Files of one sandbox. Every path is a sandbox path, except the two named ``local``.

    A relative path starts where ``run()`` starts. Names are kept byte for byte: bytes that are not
    UTF-8 travel as lone surrogates. A missing path raises ``PathNotFound``, any other failure
    ``FileSystemError``.
    """

    async def read(self, path: str) -> bytes:
        """The bytes of a regular file, up to the backend's limit for reading into memory."""
        ...

    async def write(self, path: str, data: bytes | str) -> None:
        """Write a file whole or not at all; text is encoded as UTF-8."""
        ...

    async def upload(self, local: str | Path, remote: str) -> None:
        """Copy a regular host file into the sandbox, streamed, with its permission bits."""
        ...

    async def download(self, remote: str, local: str | Path) -> None:
        """Copy a regular sandbox file to the host, streamed; on failure ``local`` is as before."""
        ...

    async def ls(self, path: str = ".") -> list[FileInfo]:
        """The entries of a folder, sorted by path."""
        ...

    async def mkdir(self, path: str, *, parents: bool = False) -> None:
        """Make a folder; ``parents`` makes those above too and accepts an existing one."""
        ...

    async def remove(self, path: str) -> None:
        """Remove a file, or a folder and all in it; links are not followed."""
        ...


class AsyncSandbox(Protocol):
    """A live sandbox: an async context manager whose exit ends it."""

    @property
    def id(self) -> str:
        """Stable and unique within the backend for the sandbox's life."""
        ...

    @property
    def capabilities(self) -> Capability:
        """What this very sandbox can do."""
        ...

    @property
    def isolation(self) -> IsolationTier:
        """How this very sandbox is isolated."""
        ...

    async def run(
        self,
        cmd: str | list[str],
        *,
        timeout: float | None = None,
        env: dict[str, str] | None = None,
    ) -> ExecResult:
        """Run a command to its end; a list never goes through a shell.

        ``timeout`` is in seconds; None inherits the sandbox's, it never means "no limit". ``env`` is added
        for this call. Raises ``ExecutionTimeout``, ``ResourceLimitExceeded``, ``SandboxGone``; never for a
        non-zero exit. Cancelled, the command is dead before the cancellation leaves.
        """
        ...

    async def run_code(
        self,
        code: str,
        *,
        language: str = "python",
        context_id: str | None = None,
        timeout: float | None = None,
    ) -> ExecResult:
        """Run code in an interpreter; ``context_id`` keeps state and needs ``STATEFUL_CODE``."""
        ...

    def stream(
        self,
        cmd: str | list[str],
        *,
        timeout: float | None = None,
        env: dict[str, str] | None = None,
    ) -> Process:
        """A command to be read while it runs; not a coroutine, it starts on ``async with``."""
        ...

    async def kill(self) -> None:
        """End the sandbox; idempotent, bounded, and safe inside a shielded scope."""
        ...

    @property
    def files(self) -> AsyncFileSystem:
        """Its files."""
        ...

    @property
    def native(self) -> object:
        """The provider's own object; outside the semver contract."""
        ...

    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


@runtime_checkable
class Backend(Protocol):
    """Makes sandboxes. One object may serve several event loops, one after another or at once."""

    @property
    def name(self) -> str:
        """The scheme of its DSN."""
        ...

    @property
    def capabilities(self) -> Capability:
        """What its sandboxes can do in general."""
        ...

    @property
    def isolation(self) -> IsolationTier:
        """The tier of the sandboxes that ``create()`` will make."""
        ...

    async def create(
        self,
        *,
        template: str | None = None,
        resources: Resources = Resources(),
        network: NetworkPolicy = NetworkPolicy(),
        env: dict[str, str] | None = None,
        secrets: dict[str, str] | None = None,
        timeout: float = 300,
        metadata: dict[str, str] | None = None,
    ) -> AsyncSandbox:
        """A usable sandbox with policy and caps in force, or an error and nothing left."""
        ...

    async def connect(self, sandbox_id: str) -> AsyncSandbox:
        """A handle on a running sandbox; raises ``ConnectError`` and creates nothing."""
        ...


@runtime_checkable
class ReapableBackend(Backend, Protocol):
    """A backend that can list and end what it holds under sandboxio's label."""

    async def list_managed(self, *, labels: Mapping[str, str] | None = None) -> list[ManagedSandbox]:
        """What the provider holds, ended sandboxes included; ``labels`` narrows by metadata."""
        ...

    async def kill_managed(self, sandbox_id: str) -> bool:
        """True if it was ended now, False if it was gone already. Raises ``ConnectError``."""
        ...


@runtime_checkable
class DiagnosableBackend(Backend, Protocol):
    """A backend that contributes its lines to ``sandboxio doctor``."""

    async def diagnose(self) -> Diagnosis:
        """What works here and what does not, each failure with its fix.

        Answers within seconds, creates nothing, and makes no call that costs money. What it can explain
        it returns as a failed check; a ``SandboxError`` that escapes becomes one.
        """
        ...


@runtime_checkable
class ReportingBackend(Backend, Protocol):
    """A backend whose ``create()`` may take long enough to want a progress bar."""

    def reporting(self, report: Callable[[Progress], object]) -> Backend:
        """A backend that calls ``report`` during ``create()``, inside its event loop; does no I/O."""
        ...


@runtime_checkable
class ConfigurableBackend(Backend, Protocol):
    """A backend whose own config class has fields beyond :class:`BackendConfig`."""

    def configured(self, config: BackendConfig) -> Backend:
        """A backend that applies the adapter's own fields of ``config``; does no I/O.

        Its ``isolation`` and ``capabilities`` are those of the sandboxes that it will create, so that
        ``require_isolation`` is judged before anything is provisioned.
        """
        ...

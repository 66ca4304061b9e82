"""An adapter that repeats what it was told wherever an adapter could: errors, causes, notes, logs, warnings.

Its far side is this object. ``says`` decides how the next operation ends.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import BinaryIO, ClassVar

import anyio
import anyio.lowlevel

from sandboxio import (
    AuthError,
    Capability,
    ConnectError,
    CreationError,
    FileInfo,
    FileSystemError,
    IsolationTier,
    OutputChunk,
    RateLimitError,
    ResourceLimitExceeded,
    SandboxGone,
)
from sandboxio.adapter import BaseBackend, BaseSandbox, Execution, Exit, FileTransfer, SandboxRequest
from sandboxio.audit import AuditConfig

client_log = logging.getLogger("parrot_http")
"""Stands for the logger of an HTTP client that the adapter uses."""

PROVIDER_KEY = "pk-" + "0123456789abcdef" * 2
TOKEN_OF_SANDBOX = "tok-" + "fedcba9876543210" * 2


@dataclass
class Far:
    """The far side: what lives there, what was asked, and how the next request ends."""

    says: str = "yes"
    live: set[str] = field(default_factory=set)
    running: int = 0
    output: list[OutputChunk] = field(default_factory=list)
    exit: Exit = field(default_factory=lambda: Exit(0))
    reached: anyio.Event = field(default_factory=anyio.Event)

    async def asked(self, what: str) -> None:
        """One request about ``what``, which ends as ``says`` says."""
        client_log.debug("request: POST http://far/%s", what)
        await anyio.lowlevel.checkpoint()
        if self.says == "hangs":
            self.reached.set()
            await anyio.sleep_forever()
        if self.says in ENDINGS:
            ENDINGS[self.says](what)


def _with_cause(what: str) -> None:
    try:
        raise OSError(errno.ECONNREFUSED, f"refused {what}", f"/run/{what}")
    except OSError as error:
        raised = ConnectError(f"The far side refused: {what}", hint=f"Try without {what}.")
        raised.add_note(f"The request was {what}")
        client_log.exception("failed: %s", what)
        raise raised from error


def _while_handling(what: str) -> None:
    try:
        raise ValueError({"body": what})
    except ValueError:
        raise CreationError(f"broken answer: {what}") from None


def _raises(kind: Callable[[str], Exception]) -> Callable[[str], None]:
    def ending(what: str) -> None:
        raise kind(f"It said {what}")

    return ending


ENDINGS: dict[str, Callable[[str], None]] = {
    "an error with a cause": _with_cause,
    "an error with a context": _while_handling,
    "gone": _raises(SandboxGone),
    "throttled": _raises(RateLimitError),
    "unauthorised": _raises(AuthError),
    "a file error": _raises(FileSystemError),
    "a limit": _raises(ResourceLimitExceeded),
    "a bug": _raises(RuntimeError),
}


class ParrotExecution(Execution):
    def __init__(self, far: Far, what: str) -> None:
        self.far = far
        self.what = what
        self.left = list(far.output)

    async def start(self) -> None:
        self.far.running += 1
        await self.far.asked(self.what)

    async def receive(self) -> OutputChunk | None:
        await anyio.lowlevel.checkpoint()
        if self.left:
            return self.left.pop(0)
        if self.exit is None:
            self.far.running -= 1
            self.exit = self.far.exit
        return None

    async def kill(self) -> None:
        await anyio.lowlevel.checkpoint()
        if self.exit is None:
            self.far.running -= 1
            self.exit = Exit(137)


class ParrotFiles(FileTransfer):
    def __init__(self, far: Far, known: str) -> None:
        self.far = far
        self.known = known

    async def read_file(self, path: str, sink: Callable[[bytes], None]) -> None:
        await self.far.asked(f"{path} {self.known}")
        sink(b"content")

    async def write_file(self, path: str, source: BinaryIO, size: int, mode: int | None) -> None:
        await self.far.asked(f"{path} {source.read(size)!r} {self.known}")

    async def list_folder(self, path: str) -> list[FileInfo]:
        await self.far.asked(f"{path} {self.known}")
        return [FileInfo(path, 1, is_dir=False)]

    async def make_folder(self, path: str, *, parents: bool) -> None:
        await self.far.asked(f"{path} {self.known}")

    async def remove_path(self, path: str) -> None:
        await self.far.asked(f"{path} {self.known}")


class ParrotSandbox(BaseSandbox):
    far: Far

    @property
    def known(self) -> str:
        return f"{self._request.variables} {PROVIDER_KEY} {TOKEN_OF_SANDBOX} {self._request.metadata}"

    def _credentials(self) -> Iterable[str]:
        return (TOKEN_OF_SANDBOX,)

    def _command(
        self, command: str | tuple[str, ...], *, env: Mapping[str, str], seconds: float
    ) -> ParrotExecution:
        return ParrotExecution(self.far, f"{command} {env} {self.known}")

    def _code(self, code: str, *, language: str, context_id: str | None, seconds: float) -> ParrotExecution:
        return ParrotExecution(self.far, f"{code} {self.known}")

    def _transfer(self) -> ParrotFiles:
        return ParrotFiles(self.far, self.known)

    async def _destroy(self) -> None:
        await self.far.asked(f"kill {self.known}")
        self.far.live.discard(self.id)

    @property
    def native(self) -> object:
        return self.far


class ParrotBackend(BaseBackend):
    name = "parrot"
    isolation = IsolationTier.CONTAINER
    capabilities = ~Capability.TUNNELS
    loggers: ClassVar[tuple[str, ...]] = ("parrot_http",)

    def __init__(self, far: Far | None = None, *, audit: AuditConfig | None = None) -> None:
        super().__init__(audit=audit)
        self.far = far or Far()

    def _credentials(self) -> Iterable[str]:
        return (PROVIDER_KEY,)

    async def _provision(self, request: SandboxRequest) -> ParrotSandbox:
        await self.far.asked(f"{request.template} {request.variables} {request.metadata} {PROVIDER_KEY}")
        return self._handle(f"p-{len(self.far.live)}", request)

    async def _attach(self, sandbox_id: str) -> ParrotSandbox:
        await self.far.asked(f"{sandbox_id} {PROVIDER_KEY}")
        return self._handle(sandbox_id, SandboxRequest(timeout=300.0, metadata={"tenant_id": "acme"}))

    def _handle(self, sandbox_id: str, request: SandboxRequest) -> ParrotSandbox:
        self.far.live.add(sandbox_id)
        kind = type("ParrotHandle", (ParrotSandbox,), {"far": self.far})
        return kind(
            id=sandbox_id,
            backend=self.name,
            capabilities=self.capabilities,
            isolation=self.isolation,
            request=request,
            recorder=self._recorder,
        )

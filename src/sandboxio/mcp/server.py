"""The server: six tools over one sandbox.

A sandbox error reaches the model as a tool error with its code and fix; any other exception is hidden by
the SDK, for it may be a bug or hold a secret. A cancelled call kills its command, since ``run`` does.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

import anyio
from mcp.server.auth.provider import TokenVerifier
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import Field

import sandboxio
from sandboxio.errors import SandboxError
from sandboxio.mcp.answers import Entry, FileContent, Info, Listing, Result, Written
from sandboxio.mcp.holder import Holder
from sandboxio.model_text import render_for_model
from sandboxio.models import BackendConfig, Capability, NetworkPolicy
from sandboxio.protocols import AsyncSandbox
from sandboxio.target import with_timeout

T = TypeVar("T")
LIFE = 3600.0
"""Seconds, where neither the DSN nor the options give a timeout."""
HEARTBEAT = 2.0
"""Seconds between two progress notes of a call that still runs."""
MOST_ENTRIES = 1000
INSTRUCTIONS = (
    "Runs code and commands in one isolated sandbox that lives as long as this server. Files survive between "
    "calls, variables and processes of run_python do not. There is no network unless sandbox_info says so."
)


@dataclass(frozen=True)
class Settings:
    """Fixed when the process starts. ``backend`` is a DSN; ``timeout`` (seconds) bounds sandbox and calls.

    ``config`` is what the two say together: without ``timeout`` that of the DSN holds, or an hour. Raises
    ``ConfigurationError`` if either is wrong or they contradict each other.
    """

    backend: str
    timeout: float | None = None
    egress: Literal["deny", "allow"] = "deny"
    config: BackendConfig = field(init=False)

    def __post_init__(self) -> None:
        """Find here what is wrong, not at the first call of a client."""
        object.__setattr__(self, "config", with_timeout(self.backend, self.timeout, default=LIFE))

    async def create(self) -> AsyncSandbox:
        """A sandbox as configured."""
        return await sandboxio.create(
            self.config,
            network=NetworkPolicy(egress=self.egress),
            metadata={"app": "mcp"},
        )


def build(
    settings: Settings,
    holder: Holder | None = None,
    *,
    auth: AuthSettings | None = None,
    token_verifier: TokenVerifier | None = None,
) -> MCPServer[Holder]:
    """A server, ready to be run on any transport. Its sandbox, ``holder``'s, ends with its lifespan."""

    @asynccontextmanager
    async def lifespan(server: MCPServer[Holder]) -> AsyncGenerator[Holder]:
        kept = holder or Holder(settings.create)
        try:
            yield kept
        finally:
            await kept.close()

    server: MCPServer[Holder] = MCPServer(
        "sandboxio",
        instructions=INSTRUCTIONS,
        lifespan=lifespan,
        auth=auth,
        token_verifier=token_verifier,
        log_level="WARNING",
    )
    _add_tools(server, settings)
    return server


def _add_tools(server: MCPServer[Holder], settings: Settings) -> None:
    online = settings.egress == "allow"
    runs = ToolAnnotations(
        read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=online
    )
    reads = ToolAnnotations(read_only_hint=True, open_world_hint=False)
    writes = ToolAnnotations(
        read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False
    )
    server.add_tool(run_python, annotations=runs, structured_output=True)
    server.add_tool(run_command, annotations=runs, structured_output=True)
    server.add_tool(read_file, annotations=reads, structured_output=True)
    server.add_tool(write_file, annotations=writes, structured_output=True)
    server.add_tool(list_files, annotations=reads, structured_output=True)

    async def sandbox_info(context: Context[Holder, Any]) -> Info:
        """Tell which sandbox this is, how it is isolated, what it can do and which policy holds."""
        return await _call(context, partial(_info, settings))

    server.add_tool(sandbox_info, annotations=reads, structured_output=True)


async def run_python(
    code: Annotated[str, Field(description="The complete Python program. Print what you want to see.")],
    context: Context[Holder, Any],
) -> Result:
    """Run Python 3 code in the sandbox and return exit code, stdout and stderr."""
    return Result.of(await _call(context, lambda sandbox: sandbox.run_code(code), beats=True))


async def run_command(
    cmd: Annotated[str, Field(description="The command, as typed into a shell. There is no input.")],
    context: Context[Holder, Any],
) -> Result:
    """Run one shell command in the sandbox and return exit code, stdout and stderr."""
    return Result.of(await _call(context, lambda sandbox: sandbox.run(cmd), beats=True))


async def read_file(
    path: Annotated[
        str, Field(description="A path in the sandbox; relative ones start in the working folder.")
    ],
    context: Context[Holder, Any],
) -> FileContent:
    """Read a file of the sandbox: text if it is UTF-8, else base64."""
    return FileContent.of(await _call(context, lambda sandbox: sandbox.files.read(path)))


async def write_file(
    path: Annotated[
        str, Field(description="A path in the sandbox; relative ones start in the working folder.")
    ],
    content: Annotated[str, Field(description="The whole new content.")],
    context: Context[Holder, Any],
    encoding: Annotated[
        Literal["utf-8", "base64"], Field(description='"base64" for content that is not text.')
    ] = "utf-8",
) -> Written:
    """Write a file of the sandbox, whole or not at all."""
    data = _decoded(content, encoding)
    await _call(context, lambda sandbox: sandbox.files.write(path, data))
    return Written(path=path, size=len(data))


async def list_files(
    context: Context[Holder, Any],
    path: Annotated[str, Field(description="A folder in the sandbox; by default the working folder.")] = ".",
) -> Listing:
    """List the entries of a folder of the sandbox."""
    entries = await _call(context, lambda sandbox: sandbox.files.ls(path))
    return Listing(entries=_some(entries), left_out=max(0, len(entries) - MOST_ENTRIES))


def _some(entries: Iterable[Any]) -> list[Entry]:
    return [Entry.of(entry) for _, entry in zip(range(MOST_ENTRIES), entries, strict=False)]


def _decoded(content: str, encoding: str) -> bytes:
    try:
        return base64.b64decode(content, validate=True) if encoding == "base64" else content.encode()
    except (binascii.Error, ValueError) as error:
        raise ToolError(f"content is not {encoding}: {error}") from error


async def _info(settings: Settings, sandbox: AsyncSandbox) -> Info:
    return Info(
        sandbox_id=sandbox.id,
        backend=settings.config.backend,
        isolation=sandbox.isolation.value,
        capabilities=[flag.name for flag in Capability if flag in sandbox.capabilities and flag.name],
        egress=settings.egress,
        timeout_s=settings.config.timeout,
    )


async def _call(
    context: Context[Holder, Any], use: Callable[[AsyncSandbox], Awaitable[T]], *, beats: bool = False
) -> T:
    """One use of the sandbox, with progress while it lasts, and our errors made readable for a model."""
    holder = context.request_context.lifespan_context
    try:
        async with holder.sandbox() as sandbox:
            return await (_with_progress(context, use(sandbox)) if beats else use(sandbox))
    except SandboxError as error:
        raise ToolError(render_for_model(error)) from error


async def _with_progress(context: Context[Holder, Any], work: Awaitable[T]) -> T:
    """Tell the client every two seconds that the call is still at it."""

    async def beat() -> None:
        began = anyio.current_time()
        while True:
            await anyio.sleep(HEARTBEAT)
            elapsed = anyio.current_time() - began
            await context.report_progress(round(elapsed, 1), None, f"running for {elapsed:.0f} s")

    results: list[T] = []
    failure: SandboxError | None = None
    async with anyio.create_task_group() as group:
        group.start_soon(beat)
        try:
            results.append(await work)
        except SandboxError as error:
            failure = error  # leaves as itself, not inside the group's exception group
        group.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return results[0]

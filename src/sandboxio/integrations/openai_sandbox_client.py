"""OpenAI Agents SDK: sandboxio as the SDK's own sandbox client, so that ``SandboxAgent`` runs by a DSN.

    client = SbxSandboxClient()
    options = SbxSandboxOptions(target="docker://python:3.12-slim")
    config = RunConfig(sandbox=SandboxRunConfig(client=client, options=options))
    await Runner.run(agent, "...", run_config=config)

Network, caps and timeouts are sandboxio's defaults unless the options say otherwise. A non-zero exit is a
result; a timeout is the SDK's ``ExecTimeoutError``, a sandbox that has gone its ``ExecTransportError``.
Terminals, exposed ports and other users are not supported and say so.
"""

from __future__ import annotations

import io
import posixpath
import tempfile
import uuid
from pathlib import Path
from typing import Literal

from agents.sandbox.errors import (
    ExecTimeoutError,
    ExecTransportError,
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
    WorkspaceStartError,
)
from agents.sandbox.manifest import Manifest
from agents.sandbox.session import (
    BaseSandboxClient,
    BaseSandboxClientOptions,
    BaseSandboxSession,
    SandboxSession,
    SandboxSessionState,
)
from agents.sandbox.snapshot import SnapshotBase, SnapshotSpec, resolve_snapshot
from agents.sandbox.types import ExecResult, User

import sandboxio
from sandboxio.errors import (
    CapabilityNotSupported,
    ConfigurationError,
    ConnectError,
    ExecutionTimeout,
    FileSystemError,
    PathNotFound,
    ResourceLimitExceeded,
    SandboxError,
)
from sandboxio.models import NetworkPolicy
from sandboxio.protocols import AsyncSandbox
from sandboxio.target import with_timeout

OUTPUT_LIMIT = 8 << 20
"""Bytes kept of each stream of a command; the rest is read and dropped."""
CANNOT_RUN = 126
"""Exit code of a command that no kernel could start, as a shell gives it."""


SDK_ROOT = str(Manifest.model_fields["root"].default)
"""Where the SDK has a workspace unless the manifest says otherwise: ``/workspace``."""


LIFE = 3600.0
"""Seconds that a sandbox lives where neither its options nor its target give a timeout."""


class SbxSandboxOptions(BaseSandboxClientOptions):
    """Where and how sandboxes are made.

    ``timeout`` is in seconds and bounds the sandbox's life; without it that of ``target`` holds, or an hour.
    """

    type: Literal["sandboxio"] = "sandboxio"  # pyright: ignore[reportIncompatibleVariableOverride] - the SDK's way
    target: str = "docker://"
    timeout: float | None = None
    egress: Literal["deny", "allow"] = "deny"


class SbxSandboxState(SandboxSessionState):
    """What is needed to find a sandbox again."""

    type: Literal["sandboxio"] = "sandboxio"  # pyright: ignore[reportIncompatibleVariableOverride] - the SDK's way
    options: SbxSandboxOptions
    sandbox_id: str


class SbxSandboxClient(BaseSandboxClient[SbxSandboxOptions]):
    """Makes, finds again and deletes sandboxes for the SDK."""

    backend_id = "sandboxio"
    supports_default_options = True

    async def create(
        self,
        *,
        snapshot: SnapshotSpec | SnapshotBase | None = None,
        manifest: Manifest | None = None,
        options: SbxSandboxOptions | None = None,
    ) -> SandboxSession:
        """A new sandbox. Cancelled, it leaves none behind."""
        chosen = options or SbxSandboxOptions()
        checked = self._validate_manifest_for_create(manifest or Manifest())
        session_id = uuid.uuid4()
        # All that can fail comes before there is a sandbox that nobody would hold.
        state = SbxSandboxState(
            session_id=session_id,
            manifest=checked,
            snapshot=resolve_snapshot(snapshot, str(session_id)),
            options=chosen,
            sandbox_id="",
        )
        sandbox = await _create(chosen)
        state.sandbox_id = sandbox.id
        return self._wrap_session(SbxSandboxSession(state, sandbox))

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        """The same sandbox if it still runs, else a new one that the SDK fills from the snapshot."""
        if not isinstance(state, SbxSandboxState):
            raise TypeError(f"SbxSandboxClient cannot resume a state of type {state.type!r}")
        try:
            sandbox = await sandboxio.connect(state.options.target, state.sandbox_id)
        except ConnectError:
            sandbox = await _create(state.options)
            state = state.model_copy(update={"sandbox_id": sandbox.id, "workspace_root_ready": False})
        return self._wrap_session(SbxSandboxSession(state, sandbox))

    async def delete(self, session: SandboxSession) -> SandboxSession:
        """End the sandbox; idempotent."""
        inner = session._inner  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - the SDK gives no other way
        if not isinstance(inner, SbxSandboxSession):
            raise TypeError("SbxSandboxClient.delete takes its own sessions")
        await inner.sandbox.kill()
        return session

    def deserialize_session_state(self, payload: dict[str, object]) -> SandboxSessionState:
        """A state as the SDK stored it."""
        return self._deserialize_session_state_payload(payload, SbxSandboxState)


class SbxSandboxSession(BaseSandboxSession):
    """One sandbox, as the SDK uses it."""

    def __init__(self, state: SbxSandboxState, sandbox: AsyncSandbox) -> None:
        self.state: SandboxSessionState = state
        self.sandbox = sandbox

    async def _prepare_backend_workspace(self) -> None:
        root = self.state.manifest.root
        script = 'mkdir -p "$0" 2>/dev/null && test -w "$0" || pwd -P'
        try:
            said = (await self.sandbox.run(["sh", "-c", script, root])).stdout.strip()
        except SandboxError as error:
            raise WorkspaceStartError(path=Path(root), cause=error) from error
        if said and root == SDK_ROOT:
            # Not every image lets its user write there, E2B's do not: the workspace is below the home then.
            moved = {"root": posixpath.join(said, "workspace")}
            self.state.manifest = self.state.manifest.model_copy(update=moved)

    async def _exec_internal(self, *command: str | Path, timeout: float | None = None) -> ExecResult:
        argv = [str(word) for word in command]
        # Until the SDK has made the workspace there is no such folder to start in.
        placed = ["sh", "-c", 'cd "$0" 2>/dev/null; exec "$@"', str(self._workspace_root_path()), *argv]
        kept = {"stdout": bytearray(), "stderr": bytearray()}
        if timeout is not None and timeout <= 0:  # a model may ask for it, and its tool knows this error
            raise ExecTimeoutError(command=argv, timeout_s=timeout)
        try:
            async with self.sandbox.stream(placed, timeout=timeout) as process:
                async for chunk in process:
                    room = OUTPUT_LIMIT - len(kept[chunk.stream])
                    kept[chunk.stream] += chunk.data[:room]
                ended = (await process.wait()).exit_code
        except ExecutionTimeout as error:
            raise ExecTimeoutError(command=argv, timeout_s=timeout, cause=error) from error
        except ConfigurationError as error:  # the command is too long or holds NUL: its author can mend that
            ended = CANNOT_RUN
            kept["stderr"] += f"{error}\n".encode()
        except ResourceLimitExceeded as error:
            ended = 137 if error.partial is None else error.partial.exit_code
            kept["stderr"] += f"\n{error}\n".encode()
        except SandboxError as error:
            raise ExecTransportError(
                command=argv, cause=error, message=str(error), retryable=False
            ) from error
        return ExecResult(stdout=bytes(kept["stdout"]), stderr=bytes(kept["stderr"]), exit_code=ended)

    async def read(self, path: Path, *, user: str | User | None = None) -> io.IOBase:
        """A file of the workspace."""
        _no_other_user(user)
        try:
            return io.BytesIO(await self.sandbox.files.read(self._path(path)))
        except PathNotFound as error:
            raise WorkspaceReadNotFoundError(path=path, cause=error) from error
        except SandboxError as error:
            raise WorkspaceArchiveReadError(path=path, cause=error) from error

    async def write(self, path: Path, data: io.IOBase, *, user: str | User | None = None) -> None:
        """Write a file of the workspace, with the folders above it."""
        _no_other_user(user)
        target = self._path(path, for_write=True)
        content = data.read()
        try:
            await self.sandbox.files.mkdir(posixpath.dirname(target), parents=True)
            await self.sandbox.files.write(target, content)
        except SandboxError as error:
            raise WorkspaceArchiveWriteError(path=path, cause=error, message=str(error)) from error

    async def running(self) -> bool:
        """True if a command still gets through."""
        try:
            return (await self.sandbox.run(["true"], timeout=10)).ok
        except SandboxError:
            return False

    async def persist_workspace(self) -> io.IOBase:
        """The workspace as a tar stream, in a temporary file of this machine that has no name."""
        archive = f"/tmp/.sandboxio-{uuid.uuid4().hex}.tar"  # noqa: S108 - a path in the sandbox
        skipped = [f"--exclude=./{name.as_posix()}" for name in self._persist_workspace_skip_relpaths()]
        root = self._workspace_root_path()
        with tempfile.TemporaryDirectory() as folder:
            local = Path(folder, "workspace.tar")
            try:
                await self._tar(["-C", str(root), *skipped, "-cf", archive, "."], root, reading=True)
                await self.sandbox.files.download(archive, local)
                await self.sandbox.files.remove(archive)
            except SandboxError as error:
                raise WorkspaceArchiveReadError(path=root, cause=error) from error
            return _opened(local)

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        """Unpack a tar stream into the workspace; what it writes stays in the sandbox."""
        archive = f"/tmp/.sandboxio-{uuid.uuid4().hex}.tar"  # noqa: S108 - a path in the sandbox
        root = self._workspace_root_path()
        try:
            await self.sandbox.files.write(archive, data.read())
            await self.sandbox.files.mkdir(str(root), parents=True)
            await self._tar(["-C", str(root), "-xf", archive], root, reading=False)
            await self.sandbox.files.remove(archive)
        except SandboxError as error:
            raise WorkspaceArchiveWriteError(path=root, cause=error, message=str(error)) from error

    async def _tar(self, arguments: list[str], root: Path, *, reading: bool) -> None:
        done = await self.sandbox.run(["tar", *arguments])
        if not done.ok:
            cause = FileSystemError(f"tar in the sandbox exited with {done.exit_code}: {done.stderr[:500]}")
            if reading:
                raise WorkspaceArchiveReadError(path=root, cause=cause)
            raise WorkspaceArchiveWriteError(path=root, cause=cause, message=str(cause))

    async def _shutdown_backend(self) -> None:
        await self.sandbox.kill()

    def _path(self, path: Path, *, for_write: bool = False) -> str:
        return self.normalize_path(path, for_write=for_write).as_posix()


async def _create(options: SbxSandboxOptions) -> AsyncSandbox:
    return await sandboxio.create(
        with_timeout(options.target, options.timeout, default=LIFE),
        network=NetworkPolicy(egress=options.egress),
        metadata={"app": "openai-agents"},
    )


def _opened(path: Path) -> io.IOBase:
    return path.open("rb")


def _no_other_user(user: str | User | None) -> None:
    if user is not None:
        raise CapabilityNotSupported(
            "Files of another user of the sandbox cannot be reached.", hint="Leave user= out."
        )

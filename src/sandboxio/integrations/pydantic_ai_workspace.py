"""Pydantic AI: a sandbox as the workspace that an agent run works in.

    workspace = SandboxWorkspace("docker://python:3.12-slim", timeout=3600)
    try:
        await agent.run("...", workspace=workspace)
    finally:
        await workspace.destroy()

It implements ``WorkspaceBackend`` and ``SupportsCommands`` of ``pydantic_ai.workspaces``, and passes that
package's conformance suite; the framework derives its file operations from the commands. The sandbox is
made at the first operation, or attached to by ``ref``, and never destroyed by a run: ``destroy`` is yours.
"""

from __future__ import annotations

from collections.abc import Mapping

import anyio

import sandboxio
from sandboxio.adapter import bounded, teardown_grace
from sandboxio.api import backend_of
from sandboxio.errors import (
    BackendNotInstalled,
    ConfigurationError,
    ConnectError,
    ExecutionTimeout,
    ResourceLimitExceeded,
    SandboxGone,
)
from sandboxio.models import DEFAULT_NETWORK, DEFAULT_TIMEOUT, ExecResult, NetworkPolicy, Resources
from sandboxio.protocols import AsyncSandbox, ReapableBackend

try:
    from pydantic_ai.workspaces import (
        CommandResult,
        WorkspaceCommand,
        WorkspaceOutputLimitError,
        WorkspaceRef,
        WorkspaceTimeoutError,
        WorkspaceUnavailableError,
    )
except ModuleNotFoundError as _missing:
    raise BackendNotInstalled(
        "Workspaces begin with Pydantic AI 2.56.", hint='pip install --upgrade "pydantic-ai-slim>=2.56"'
    ) from _missing

PROVIDER = "sandboxio"


class SandboxWorkspace:
    """A workspace in a sandbox of any backend; ``target`` is a DSN such as ``"e2b://"``.

    Args:
        target: Where the sandbox is made, or was made if ``ref`` is given.
        ref: The sandbox of an earlier workspace; if it is gone, no other is made in its place.
        timeout: Seconds that the sandbox lives and that a command without its own timeout may take.
        network, resources, env: As in :func:`sandboxio.create`.
    """

    def __init__(
        self,
        target: str = "docker://",
        *,
        ref: WorkspaceRef | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        network: NetworkPolicy = DEFAULT_NETWORK,
        resources: Resources = Resources(),
        env: dict[str, str] | None = None,
    ) -> None:
        if ref is not None and ref.provider != PROVIDER:
            raise ConfigurationError(f"The ref is of provider {ref.provider!r}, not of sandboxio.")
        self._target = target
        self._ref = ref
        self._timeout = timeout
        self._network = network
        self._resources = resources
        self._env = env
        self._sandbox: AsyncSandbox | None = None
        self._first = anyio.Lock()
        self._folder: str | None = None
        self._destroyed = False

    @property
    def ref(self) -> WorkspaceRef | None:
        """The sandbox's identity; None until it is made, then the same for good."""
        return self._ref

    async def working_dir(self) -> str:
        """The folder in which commands start, with links resolved."""
        if self._folder is None:
            result = await self.run(["sh", "-c", "pwd -P"])
            self._folder = result.stdout.removesuffix("\n")
        return self._folder

    async def run(
        self,
        command: WorkspaceCommand,
        *,
        shell: bool = False,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> CommandResult:
        """Run a command to its end; see ``pydantic_ai.workspaces.SupportsCommands``."""
        if isinstance(command, str) is not shell:
            raise TypeError("a string needs shell=True, a list of arguments shell=False")
        words = command if isinstance(command, str) else list(command)
        try:
            sandbox = await self._opened()
            try:
                result = await sandbox.run(words, env=dict(env or {}), timeout=timeout)
            except ConfigurationError as error:  # what the framework calls it; anything else it tries again
                raise ValueError(str(error)) from error
        except ExecutionTimeout as error:
            printed = error.partial or ExecResult(137, "", "")
            raise WorkspaceTimeoutError(str(error), stdout=printed.stdout, stderr=printed.stderr) from error
        except (SandboxGone, ConnectError) as error:
            raise WorkspaceUnavailableError(str(error)) from error
        except ResourceLimitExceeded as error:
            if error.partial is None:
                raise
            note = f"{error.partial.stderr}\n{error}\n"  # a death in a live sandbox is a result here
            return CommandResult(exit_code=error.partial.exit_code, stdout=error.partial.stdout, stderr=note)
        if result.truncated:
            raise WorkspaceOutputLimitError(
                "; ".join(result.notes),
                limit=len(result.stdout) + len(result.stderr),
                stdout=result.stdout,
                stderr=result.stderr,
            )
        return CommandResult(exit_code=result.exit_code, stdout=result.stdout, stderr=result.stderr)

    async def destroy(self) -> None:
        """End the sandbox: the one that was made or is being made, or that of ``ref``. Idempotent.

        No operation after it makes another. Raises ``ConnectError`` if the sandbox of ``ref`` may run on: its
        provider cannot be reached in time, or does not list its sandboxes and knows none of that name.
        """
        self._destroyed = True
        put_off: list[BaseException] = []
        unreached: ConnectError | None = None
        if self._sandbox is None and (ref := self._ref) is not None:
            finished = await bounded(self._attach, put_off=put_off)
            if not finished and self._sandbox is None:
                unreached = ConnectError(f"Sandbox {ref.id} was not reached within {teardown_grace():g} s.")
        if self._sandbox is not None:
            await self._sandbox.kill()
        if put_off:
            raise put_off[0] from unreached
        if unreached is not None:
            raise unreached

    async def _attach(self) -> None:
        assert self._ref is not None
        try:
            self._sandbox = await sandboxio.connect(self._target, self._ref.id)
        except ConnectError:
            backend = backend_of(self._target)
            if not isinstance(backend, ReapableBackend):
                raise
            await backend.kill_managed(self._ref.id)  # knows if it has ended; connect() does not tell

    async def _opened(self) -> AsyncSandbox:
        """The sandbox, made or attached to once however many operations come first."""
        async with self._first:
            if self._sandbox is None:
                if self._destroyed:
                    raise SandboxGone("The workspace was destroyed.", hint="Make another SandboxWorkspace.")
                if self._ref is not None:
                    self._sandbox = await sandboxio.connect(self._target, self._ref.id)
                else:
                    self._sandbox = await sandboxio.create(
                        self._target,
                        timeout=self._timeout,
                        network=self._network,
                        resources=self._resources,
                        env=self._env,
                    )
                    self._ref = WorkspaceRef(provider=PROVIDER, id=self._sandbox.id)
                if self._destroyed:  # meanwhile
                    await self._sandbox.kill()
        return self._sandbox

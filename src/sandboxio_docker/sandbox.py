"""A sandbox on Docker: the base class, with a channel for what happens inside."""

from __future__ import annotations

from collections.abc import Mapping

from sandboxio.adapter import (
    BaseProcess,
    BaseSandbox,
    Execution,
    FileTransfer,
    Recorder,
    SandboxRequest,
)
from sandboxio.errors import CapabilityNotSupported
from sandboxio.models import Capability, IsolationTier

from .channel import SHELL, Channel
from .lifecycle import remove
from .native import DockerContainer


class DockerSandbox(BaseSandbox):
    """One container.

    Args:
        container: The handle.
        channel: How commands and files get in.
        about: Which channel it is and why, for the repr.

    """

    def __init__(
        self,
        *,
        container: DockerContainer,
        channel: Channel,
        about: str,
        capabilities: Capability,
        isolation: IsolationTier,
        request: SandboxRequest,
        recorder: Recorder,
        output_limit: int,
    ) -> None:
        self._container = container
        self._channel = channel
        self._about = about
        self._at_leisure = False
        super().__init__(
            id=container.id,
            backend="docker",
            capabilities=capabilities,
            isolation=isolation,
            request=request,
            recorder=recorder,
            output_limit=output_limit,
        )

    @property
    def native(self) -> DockerContainer:
        """The container: ``id``, ``engine``, ``inspect()``. Outside the semver contract."""
        return self._container

    def require(self, capability: Capability, what: str) -> None:
        """Raise unless this sandbox declares ``capability`` and is still usable."""
        if capability is Capability.RUN_CODE and capability not in self._capabilities:
            raise CapabilityNotSupported(
                f"This sandbox does not declare RUN_CODE, which {what} needs: its image has no Python.",
                hint="Use an image with python3, or run() another interpreter of the image.",
            )
        super().require(capability, what)

    def stream(
        self,
        cmd: str | list[str],
        *,
        timeout: float | None = None,
        env: dict[str, str] | None = None,
    ) -> BaseProcess:
        """A command whose output is read while it runs: ``async with sandbox.stream(...) as process``."""
        self._at_leisure = True
        try:
            return super().stream(cmd, timeout=timeout, env=env)
        finally:
            self._at_leisure = False

    def _command(
        self, command: str | tuple[str, ...], *, env: Mapping[str, str], seconds: float
    ) -> Execution:
        argv = (SHELL, "-c", command) if isinstance(command, str) else command
        return self._channel.command(argv, env=env, seconds=seconds, paced=self._at_leisure)

    def _code(self, code: str, *, language: str, context_id: str | None, seconds: float) -> Execution:
        if language.lower() not in ("python", "python3", "py"):
            raise CapabilityNotSupported(
                f"The Docker backend runs Python code, not {language!r}.",
                hint="Write the code to a file with files.write() and run() its interpreter.",
            )
        return self._channel.code(code, seconds=seconds)

    def _transfer(self) -> FileTransfer:
        return self._channel.files

    async def _destroy(self) -> None:
        self._release()
        await remove(self._container.engine, self._container.id)

    def _close(self) -> None:
        self._channel.close()

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]} channel={self._about}>"

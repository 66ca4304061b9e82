"""One E2B sandbox, complete."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from sandboxio.adapter import OUTPUT_LIMIT, BaseSandbox, Recorder, SandboxRequest
from sandboxio.errors import CapabilityNotSupported
from sandboxio.models import Capability, IsolationTier

from .cells import CodeRun, Contexts
from .commands import CommandRun
from .control import ControlPlane, Placed
from .endpoints import Settings
from .envd import Envd
from .files import Files
from .interpreter import Interpreter
from .native import native_sandbox
from .place import Place

CAPABILITIES: Final = (
    Capability.RUN_COMMAND
    | Capability.RUN_CODE
    | Capability.STATEFUL_CODE
    | Capability.STREAMING
    | Capability.FILESYSTEM
    | Capability.UPLOAD_DOWNLOAD
    | Capability.NETWORK_POLICY
)
LANGUAGES: Final = {
    "python": "python",
    "javascript": "javascript",
    "js": "javascript",
    "typescript": "typescript",
    "ts": "typescript",
    "r": "r",
    "java": "java",
    "bash": "bash",
}
"""What E2B's interpreter can be asked for; a template may have fewer."""


class E2BSandbox(BaseSandbox):
    """A microVM at E2B.

    A string given to ``run`` or ``stream`` goes through ``bash -l -c``, a list runs as it is, both as
    the template's default user. ``run_code`` without ``context_id`` starts an interpreter for the call
    and ends it afterwards.
    """

    def __init__(
        self,
        *,
        sandbox: Placed,
        settings: Settings,
        control: ControlPlane,
        isolation: IsolationTier,
        request: SandboxRequest,
        recorder: Recorder,
        output_limit: int = OUTPUT_LIMIT,
    ) -> None:
        super().__init__(
            id=sandbox.id,
            backend="e2b",
            capabilities=CAPABILITIES,
            isolation=isolation,
            request=request,
            recorder=recorder,
            output_limit=output_limit,
        )
        self._settings = settings
        self._native: Any = None
        self._place = Place(
            sandbox=sandbox,
            envd=Envd(settings, sandbox),
            interpreter=Interpreter(settings, sandbox),
            control=control,
            variables=request.variables,
        )
        self._contexts = Contexts()

    def _command(
        self, command: str | tuple[str, ...], *, env: Mapping[str, str], seconds: float
    ) -> CommandRun:
        # No deadline for envd: it would close the pipes of background children too when it passes. The
        # core kills the command in time, and a crashed creator's sandbox ends with its lifetime.
        del seconds
        return CommandRun(self._place, command, env)

    def _code(self, code: str, *, language: str, context_id: str | None, seconds: float) -> CodeRun:
        del seconds
        known = LANGUAGES.get(language.lower())
        if known is None:
            raise CapabilityNotSupported(
                f"E2B's code interpreter does not know the language {language!r}.",
                hint=f"It knows {', '.join(sorted(set(LANGUAGES.values())))}.",
            )
        return CodeRun(self._place, self._contexts, code, known, context_id)

    def _transfer(self) -> Files:
        return Files(self._place, self)

    async def _destroy(self) -> None:
        await self._place.control.kill(self.id)

    def _close(self) -> None:
        self._place.envd.close()
        self._place.interpreter.close()

    def _credentials(self) -> Iterable[str]:
        sandbox = self._place.sandbox
        return [token for token in (sandbox.token, sandbox.traffic_token) if token is not None]

    @property
    def native(self) -> Any:
        """E2B's own ``AsyncSandbox``, built at first use without I/O; outside the semver contract.

        Its methods need asyncio, and ports other than envd's need its traffic access token.
        """
        if self._native is None:
            self._native = native_sandbox(self._settings, self._place.sandbox)
        return self._native

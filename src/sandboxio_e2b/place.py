"""One sandbox, as its runs and files see it: the ways to it, and what a failure on the way means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import anyio

from sandboxio.errors import ConnectError, SandboxError

from .connection import Broken
from .control import ControlPlane, Placed
from .envd import Command, Envd
from .failures import NOT_FOUND_TEXT, gone, traffic_error
from .interpreter import Interpreter
from .shell import Mark, kill_command, program
from .wire import Garbled, RpcError

HELPER_SECONDS: Final = 20.0
"""How long a helping script may run inside, whatever happens to its client."""
PROBE_SECONDS: Final = 5.0

Wrong = RpcError | Garbled | Broken


@dataclass
class Place:
    """One sandbox, as its runs see it."""

    sandbox: Placed
    envd: Envd
    interpreter: Interpreter
    control: ControlPlane
    variables: Mapping[str, str] = field(repr=False)
    folder: str | None = None

    async def explain(self, error: Wrong, what: str) -> SandboxError:
        """The error for a call that failed on its way: was it the sandbox, or the way?"""
        if isinstance(error, Broken) or (isinstance(error, RpcError) and error.code == "unavailable"):
            with anyio.move_on_after(PROBE_SECONDS):
                try:
                    await self.envd.healthy()
                except (RpcError, Broken) as answer:
                    if isinstance(answer, RpcError) and NOT_FOUND_TEXT in answer.message:
                        return gone(self.sandbox.id)
        return traffic_error(error, self.sandbox.id, what)

    async def kill_marked(self, mark: Mark, word: str = "") -> None:
        """Kill everything with this mark. Raises if that cannot be confirmed."""
        command = Command(kill_command(mark, word), user="root", seconds=HELPER_SECONDS)
        try:
            code, left, said = await self.envd.run(command)
        except (RpcError, Garbled, Broken) as error:
            raise await self.explain(error, "Killing a run") from error
        if code != 0:
            told = (left + said).decode("utf-8", "replace").strip()[:200]
            raise ConnectError(
                f"Processes of a run in sandbox {self.sandbox.id} could not be killed: {told}."
            )

    async def working_folder(self) -> str:
        """The folder in which commands start; asked once."""
        if self.folder is None:
            ask = Command(program('printf %s "$PWD"'), seconds=HELPER_SECONDS)
            try:
                code, path, _ = await self.envd.run(ask)
            except (RpcError, Garbled, Broken) as error:
                raise await self.explain(error, "Asking for the working folder") from error
            if code != 0 or not path.startswith(b"/"):
                raise ConnectError(f"Sandbox {self.sandbox.id} did not say where commands start.")
            self.folder = path.decode("utf-8", "surrogateescape")
        return self.folder

"""What a virtual program sees of its sandbox."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from .jobs import Run
from .network import Network
from .steps import Program
from .tree import HOME, Tree


@dataclass(frozen=True)
class Context:
    """Surroundings of one program.

    ``start`` makes another process of the same run: a background child. ``variables`` are the names of
    an interpreter's context. ``stdin`` is None where it is a folder, which can be opened but not read.
    ``depth`` is how many shells are around the program.
    """

    tree: Tree
    network: Network
    run: Run
    env: dict[str, str]
    start: Callable[[Program, str, dict[str, str]], None]
    cwd: str = HOME
    stdin: bytes | None = b""
    variables: dict[str, Any] = field(default_factory=dict[str, Any])
    depth: int = 0

    def but(self, **changes: Any) -> Context:
        """The same, changed in some fields."""
        return replace(self, **changes)

    def reach(self, host: str) -> bool:
        """Try to reach a host; a refusal is counted for the run."""
        if self.network.reach(host):
            return True
        self.run.denials += 1
        return False

"""What ``sandbox.native`` is on Docker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .engine import Engine


@dataclass(frozen=True)
class DockerContainer:
    """A live handle on the container behind a sandbox; outside the semver contract.

    ``engine.request(method, path)`` reaches everything that the Docker Engine API offers.

    >>> DockerContainer("3f2a", Engine("unix:///var/run/docker.sock")).id
    '3f2a'
    """

    id: str
    engine: Engine

    async def inspect(self) -> dict[str, Any]:
        """``GET /containers/{id}/json``. Raises ``ConnectError`` once the container is gone."""
        return await self.engine.get_object(f"/containers/{self.id}/json")

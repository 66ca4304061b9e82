"""The adapter's own configuration: what a DSN cannot say and ``create()`` has no argument for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sandboxio.errors import ConfigurationError
from sandboxio.models import BackendConfig

DEFAULT_IMAGE = "python:3.12-slim"

ChannelChoice = Literal["auto", "guest", "exec"]
"""How commands reach the container; see :class:`sandboxio_docker.DockerBackend`."""


@dataclass(frozen=True, kw_only=True)
class DockerConfig(BackendConfig):
    """A typed target for ``sandboxio.create()`` on Docker.

    ``template`` is an image reference. ``runtime`` is the name of an OCI runtime that the engine knows
    (``"runsc"`` for gVisor); None is the engine's default.

    >>> DockerConfig(template="python:3.12-slim", runtime="runsc").backend
    'docker'
    """

    backend: str = "docker"
    runtime: str | None = None

    def __post_init__(self) -> None:
        if self.runtime is not None and (
            not isinstance(self.runtime, str) or not self.runtime.strip() or "\0" in self.runtime
        ):
            raise ConfigurationError(
                f"DockerConfig.runtime must be the name of a runtime or None, got {self.runtime!r}.",
                hint="`docker info` lists the runtimes that the engine knows.",
            )

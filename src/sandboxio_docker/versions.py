"""Which version of the Docker Engine API is spoken: no I/O, only the choice.

Every path starts with a version. An engine refuses versions outside its own range with status 400
("client version 1.24 is too old"): Docker 29 serves nothing below 1.44, Docker 20.10 nothing above 1.41.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from sandboxio.errors import ConfigurationError

from .faults import EngineUnavailable

LEAST_API: Final = "1.41"
"""Docker 20.10 and Podman 4: the oldest engines that this adapter is tested on."""
NEWEST_API: Final = "1.52"
"""Docker 29.0: the newest list of changes that was read for this adapter. Newer engines still serve it."""


@dataclass(frozen=True)
class Versions:
    """The API version in use and what the engine says of itself, ``""`` where it says nothing.

    ``engine_least`` is only asked for when the engine is newer than this adapter.
    """

    used: str
    engine: str
    engine_least: str = ""
    os_type: str = ""
    server: str = ""

    @property
    def podman(self) -> bool:
        """True for Podman's Docker-compatible service."""
        return self.server.startswith("Libpod")


def choose(where: str, wanted: str, newest: str, least: str) -> str:
    """The version to use: the newest that both sides speak, or the one that the user asked for.

    ``where`` is the engine's address for messages; ``wanted`` is DOCKER_API_VERSION; ``newest`` and
    ``least`` are what the engine says, ``""`` where it says nothing: such an engine gets ``LEAST_API``.
    """
    if newest and numbers(newest) < numbers(LEAST_API):
        raise EngineUnavailable(
            f"The engine at {where} is too old: it speaks API {newest}; "
            f"the least version needed is {LEAST_API} (Docker 20.10).",
            hint="Upgrade Docker to 20.10 or newer.",
        )
    if least and numbers(least) > numbers(NEWEST_API):
        raise EngineUnavailable(
            f"The engine at {where} is too new: it speaks API {least} and newer; "
            f"this adapter speaks up to {NEWEST_API}.",
            hint="Upgrade sandboxio.",
        )
    if not wanted:
        return min(newest or LEAST_API, NEWEST_API, key=numbers)
    low = max(LEAST_API, least or LEAST_API, key=numbers)
    high = min(NEWEST_API, newest or NEWEST_API, key=numbers)
    if not numbers(low) <= numbers(wanted) <= numbers(high):
        raise ConfigurationError(
            f"DOCKER_API_VERSION={wanted} cannot be used: {where} and this adapter share {low} to {high}.",
            hint="Unset DOCKER_API_VERSION; the version is negotiated.",
        )
    return wanted


def numbers(version: str) -> tuple[int, ...]:
    """``"1.41"`` as ``(1, 41)``, for comparing; empty if it is not a version."""
    return tuple(map(int, version.split("."))) if re.fullmatch(r"\d{1,4}\.\d{1,4}", version) else ()

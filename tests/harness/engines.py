"""What a test may need and a machine may lack, and what a run may not leave on an engine."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from scripts import engine_api

from .leaks import SESSION_VARIABLE

MANAGED_LABEL = "io.sandboxio.managed=true"
SESSION_LABEL = "io.sandboxio.session"

SETTLE_SECONDS = 10.0
"""How long the engine may take to remove what it was told to, after the last test."""


# What is there?


@functools.cache
def engine_problem() -> str | None:
    """Why no test can use an engine, or None if one answers."""
    return engine_api.engine_problem()


def e2b_problem() -> str | None:
    return None if os.environ.get("E2B_API_KEY") else "E2B_API_KEY is not set"


@functools.cache
def image_problem(image: str) -> str | None:
    """Why tests cannot use this image; they never pull one."""
    if engine_api.has_image(image):
        return None
    return f"the engine has no image {image}: run 'make engine', or set SBX_TEST_IMAGE to one it has"


@dataclass(frozen=True)
class Need:
    """Something outside that tests with `marker` cannot do without."""

    marker: str
    problem: Callable[[], str | None]


NEEDS = {
    "docker": Need("engine", engine_problem),
    "e2b": Need("e2b", e2b_problem),
}


# What is left?


def _process_is_ours_or_gone(pid: str, session: str) -> bool:
    if pid == str(os.getpid()):
        return True
    try:
        environment = Path("/proc", pid, "environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return True  # a creator that died: its sandbox had to go with it
    except OSError:
        return False  # somebody else's process
    return f"{SESSION_VARIABLE}={session}".encode() in environment


def managed_containers(since: float, session: str) -> list[str]:
    """Sandboxes that this run made and that still exist, running or not.

    `since` is the Unix time at which the run began. Others may use the engine at the same time: a
    sandbox whose creator lives and is no process of this run is theirs.
    """
    return [
        f"container {found['Names'][0].lstrip('/')} ({found['Id'][:12]}, {found['State']})"
        for found in engine_api.containers({"label": [MANAGED_LABEL]})
        if found["Created"] >= int(since)
        and _process_is_ours_or_gone(found["Labels"].get(SESSION_LABEL, ""), session)
    ]


def containers_left(since: float, session: str) -> list[str]:
    """As `managed_containers`, once those that the engine is just removing have gone."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while (left := managed_containers(since, session)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left

"""Case 25, as a table: whatever a program does when it is killed, its sandbox goes with it.

The same file runs on each engine: `make engines` prints the times beside each other.
"""

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Generator

import anyio
import pytest

from sandboxio_docker import DockerBackend

from .creators import MOMENTS, creator, held
from .images import ask

pytestmark = pytest.mark.engine

BOUND = 1.0
"""Seconds from the death of the creator until its container is gone."""
NOISE = 20
"""On a busy machine the bound grows by this many times the slowest look at the engine: that is its noise."""
FOLLOWS = 0.3
"""Seconds in which a create that was on its way may still bring its container about."""
LATER = (0.0, 0.05, 0.15, 0.3)
"""Seconds after which a creator is killed in the middle of create()."""


@pytest.fixture
def label() -> Generator[str]:
    name = uuid.uuid4().hex
    yield name
    for left in held(name):
        ask("DELETE", f"/containers/{left['Id']}", force="1")


def gone_after(label: str, running: Callable[[str], int], at_least: float = 0.0) -> float:
    """Seconds until ``running`` says 0; fails when that takes longer than it may."""
    began, slowest = time.monotonic(), 0.0
    while True:
        asked = time.monotonic()
        count = running(label)
        now = time.monotonic()
        slowest = max(slowest, now - asked)
        if not count and now - began >= at_least:
            return asked - began
        bound = max(at_least, BOUND) + NOISE * slowest
        assert now - began < bound, f"still {count} after {now - began:.2f} s, may be {bound:.2f}"
        time.sleep(0.02)


def all_held(label: str) -> int:
    return len(held(label))


def started(label: str) -> int:
    return sum(each["State"] != "created" for each in held(label))


@pytest.mark.parametrize("moment", MOMENTS[1:])
@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_killed_while_it_uses_the_sandbox(
    moment: str,
    loop: str,
    docker_image: str,
    channel: str,
    label: str,
    record_property: Callable[[str, object], None],
) -> None:
    with creator(docker_image, channel, label, loop, moment=moment) as process:
        assert held(label)
        process.kill()
        process.wait()
        seconds = gone_after(label, all_held)
    record_property(f"killed in {moment}", f"{seconds:.3f}")


@pytest.mark.parametrize("later", LATER)
def test_killed_while_it_creates(
    later: float, docker_image: str, label: str, record_property: Callable[[str, object], None]
) -> None:
    """Nothing runs on. Between create and start the engine holds a container that no connection ends: at
    most that one is left, has never run, and is found by its labels."""
    with creator(docker_image, "auto", label, "asyncio", moment="create") as process:
        time.sleep(later)
        process.kill()
        process.wait()
        seconds = gone_after(label, started, at_least=FOLLOWS)
    record_property("killed in create", f"{max(0.0, seconds - FOLLOWS):.3f}")

    async def reap() -> None:
        backend = DockerBackend()
        for left in await backend.list_managed(labels={"test": label}):
            assert left.state == "stopped"
            assert await backend.kill_managed(left.sandbox_id)

    anyio.run(reap)
    assert not held(label)


@pytest.mark.parametrize("moment", MOMENTS[1:])
def test_without_the_lifeline_it_stays_for_reap(
    moment: str, docker_image: str, channel: str, label: str
) -> None:
    """SBX_DOCKER_REAPER=0: it runs on after its creator, and `sandboxio reap` lists and removes it."""
    with creator(docker_image, channel, label, "asyncio", moment=moment, SBX_DOCKER_REAPER="0") as process:
        process.kill()
        process.wait()
        killed = time.monotonic()
        while time.monotonic() < killed + BOUND:  # as long as it would need to go
            assert [each["State"] for each in held(label)] == ["running"]
            time.sleep(0.1)
    (container,) = held(label)
    reap = [sys.executable, "-m", "sandboxio", "reap", "--backend", "docker", "--label", f"test={label}"]
    assert container["Id"][:12] in subprocess.run(reap, check=True, capture_output=True, text=True).stdout
    subprocess.run([*reap, "--kill"], check=True, capture_output=True)
    assert not held(label)

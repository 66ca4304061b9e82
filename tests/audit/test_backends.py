"""The canary on the fake and on Docker over both channels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sandboxio import NetworkPolicy
from sandboxio.adapter import BaseBackend
from sandboxio.audit import AuditConfig
from sandboxio.testing import FakeBackend
from sandboxio_docker import DockerBackend

from .backends import show_nothing
from .test_canary import Surfaces, surfaces as surfaces


@pytest.fixture(
    params=[
        "fake",
        pytest.param("docker-guest", marks=pytest.mark.engine),
        pytest.param("docker-exec", marks=pytest.mark.engine),
    ]
)
def make(request: pytest.FixtureRequest) -> Iterator[Callable[[AuditConfig], BaseBackend]]:
    kind = str(request.param)
    if kind != "fake":
        image = request.getfixturevalue("docker_image")
        channel: Any = kind.removeprefix("docker-")
        yield lambda audit: DockerBackend(image=image, channel=channel, audit=audit)
        return
    fakes: list[FakeBackend] = []

    def fake(audit: AuditConfig) -> FakeBackend:
        fakes.append(FakeBackend(audit=audit))
        return fakes[-1]

    yield fake
    for each in fakes:
        each.close()


async def test_nothing_shows_the_canary(
    make: Callable[[AuditConfig], BaseBackend], surfaces: Surfaces, tmp_path: Path
) -> None:
    await show_nothing(make(surfaces.config()), surfaces, tmp_path)


async def test_denials_are_told_where_they_are_counted_and_are_zero_elsewhere(
    make: Callable[[AuditConfig], BaseBackend], surfaces: Surfaces
) -> None:
    backend = make(surfaces.config())
    async with await backend.create(network=NetworkPolicy()) as sandbox:
        await sandbox.run(["curl", "--max-time", "1", "http://nowhere.invalid/"])
    # Without a network there is nobody who could count; the field says "none reported", not "none tried".
    assert surfaces.recorded.events[1].network_denials == (1 if isinstance(backend, FakeBackend) else 0)

"""A fake that knows three programs: one that prints, one that fails, one that hangs."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from sandboxio import ExecResult
from sandboxio.protocols import AsyncSandbox
from sandboxio.testing import FakeBackend
from sandboxio_docker import DockerBackend


@pytest.fixture
def fake() -> FakeBackend:
    backend = FakeBackend()
    for script in (backend.on_run, backend.on_run_code):
        script(match="good", returns=ExecResult(0, "forty-two\n", ""))
        script(match="bad", returns=ExecResult(3, "", "no such file\n"))
        script(match="slow", hangs=True)
    return backend


@pytest.fixture
async def sandbox(docker_image: str) -> AsyncIterator[AsyncSandbox]:
    """A real container."""
    async with await DockerBackend(image=docker_image).create(timeout=120) as made:
        yield made

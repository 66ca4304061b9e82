"""A fake that knows the programs of the table in failures.py, and a real container."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from sandboxio.protocols import AsyncSandbox
from sandboxio.testing import FakeBackend
from sandboxio_docker import DockerBackend

from . import failures


@pytest.fixture
def fake() -> FakeBackend:
    return failures.scripted()


@pytest.fixture
async def sandbox(docker_image: str) -> AsyncIterator[AsyncSandbox]:
    """A real container."""
    async with await DockerBackend(image=docker_image).create(timeout=120) as made:
        yield made

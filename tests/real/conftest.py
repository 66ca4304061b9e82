"""Sandboxes on the engine that DOCKER_HOST names, over each channel."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from typing import Any

import pytest

from sandboxio_docker import DockerBackend
from sandboxio_docker.sandbox import DockerSandbox
from scripts.engine import Problem

from . import images
from .own_engine import OwnEngine, own_engine


@pytest.fixture(params=["guest", "exec"])
def channel(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def backend(docker_image: str, channel: Any) -> DockerBackend:
    return DockerBackend(image=docker_image, channel=channel)


@pytest.fixture
async def sandbox(backend: DockerBackend) -> AsyncGenerator[DockerSandbox]:
    async with await backend.create(timeout=300) as made:
        yield made  # type: ignore[misc]


@pytest.fixture(scope="session")
def without_python(docker_image: str) -> Generator[str]:
    """Debian's own shell and tools, and no Python."""
    script = "rm -f /usr/bin/python3* /usr/local/bin/python*"
    with images.derived(docker_image, "no-python", script=script) as name:
        yield name


@pytest.fixture(scope="session")
def without_shell(docker_image: str) -> Generator[str]:
    """Python and no shell, as distroless Python images are."""
    shells = "/bin/sh /bin/dash /bin/bash /usr/bin/sh /usr/bin/dash /usr/bin/bash"
    script = f"python3 -c 'import os; [os.remove(p) for p in \"{shells}\".split() if os.path.lexists(p)]'"
    with images.derived(docker_image, "no-shell", script=script) as name:
        yield name


@pytest.fixture(scope="session")
def with_nothing(docker_image: str) -> Generator[str]:
    """One file that is no program."""
    with images.imported("nothing", {"hello.txt": b"hello"}) as name:
        yield name


@pytest.fixture(scope="session")
def busybox_image(docker_image: str) -> Generator[str]:
    program = images.busybox()
    if program is None:
        pytest.skip("this machine has no static busybox: apt-get install busybox-static")
    with images.of_busybox(program) as name:
        yield name


@pytest.fixture(scope="session")
def engine_of_tests(docker_image: str) -> Generator[OwnEngine]:
    """An engine that no one else uses; see ``own_engine.py``."""
    try:
        with own_engine(docker_image) as made:
            yield made
    except Problem as problem:
        pytest.skip(str(problem))

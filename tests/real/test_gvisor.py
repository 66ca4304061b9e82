"""gVisor for real: on an engine that knows ``runsc``, and a runtime that only bears its name on any other."""

from __future__ import annotations

import functools
import json
import struct
from collections.abc import Generator
from typing import Any

import anyio
import pytest

import sandboxio
from sandboxio import IsolationTier
from sandboxio.errors import ConfigurationError
from sandboxio_docker import DockerBackend, DockerConfig, kernel
from sandboxio_docker.isolation import LABEL

from . import images
from .own_engine import POSING, OwnEngine

pytestmark = [pytest.mark.engine, pytest.mark.timeout(120)]

RUNTIME = "runsc"


@functools.cache
def runtime_problem() -> str | None:
    """Why nothing can run on gVisor here, or None."""
    if RUNTIME in json.loads(images.ask("GET", "/info")).get("Runtimes", {}):
        return None
    return f"the engine knows no runtime {RUNTIME!r}: make engines brings up one that does"


@pytest.fixture
def gvisor(docker_image: str, channel: Any) -> DockerBackend:
    if problem := runtime_problem():
        pytest.skip(problem)
    return DockerBackend(image=docker_image, channel=channel, runtime=RUNTIME)


@pytest.fixture(scope="module")
def as_user(docker_image: str) -> Generator[str]:
    """Whose user is not root."""
    if problem := runtime_problem():
        pytest.skip(problem)
    script = "useradd -u 1234 app"
    with images.derived(docker_image, "gvisor-user", "USER app", script=script) as name:
        yield name


SEES = """
import ctypes, os
buffer = ctypes.create_string_buffer(4096)
size = ctypes.CDLL(None).klogctl(3, buffer, 4096)
print(os.uname().release, b"Starting gVisor" in buffer.raw[:max(size, 0)])
print(sorted(os.listdir("/work")), os.getuid())
"""


async def test_a_sandbox_on_gvisor(gvisor: DockerBackend) -> None:
    """Reported, there, and without a trace of the proof; a second handle knows it, too."""
    async with await gvisor.create(timeout=120) as sandbox:
        assert sandbox.isolation is IsolationTier.GVISOR
        seen = (await sandbox.run_code(SEES)).stdout.splitlines()
        assert seen[0].endswith(" True")
        assert seen[1] == "[] 0"
        found = await sandbox.native.inspect()  # type: ignore[attr-defined]
        assert found["HostConfig"]["Runtime"] == RUNTIME
        assert found["Config"]["Labels"][LABEL] == "gvisor"
        again = await DockerBackend().connect(sandbox.id)
        assert again.isolation is IsolationTier.GVISOR
        assert (await again.run(["echo", "x"])).stdout == "x\n"
        await again.kill()


async def test_an_ordinary_user_on_gvisor(gvisor: DockerBackend, as_user: str) -> None:
    """Its folder is its own and empty: the proof was removed by the user itself."""
    async with await gvisor.create(template=as_user, timeout=120) as sandbox:
        assert sandbox.isolation is IsolationTier.GVISOR
        seen = (await sandbox.run_code(SEES)).stdout.splitlines()
        assert seen[0].endswith(" True")
        assert seen[1] == "[] 1234"
        await sandbox.files.write("mine", b"x")


async def test_an_image_without_a_shell_on_gvisor(docker_image: str, without_shell: str) -> None:
    if problem := runtime_problem():
        pytest.skip(problem)
    async with await DockerBackend(runtime=RUNTIME).create(template=without_shell, timeout=120) as sandbox:
        assert sandbox.isolation is IsolationTier.GVISOR
        assert (await sandbox.run(["python3", "-c", "print(1)"])).stdout == "1\n"


async def test_gvisor_can_be_required(docker_image: str) -> None:
    """The whole way, by the name of the backend that is installed."""
    if problem := runtime_problem():
        pytest.skip(problem)
    config = DockerConfig(template=docker_image, runtime=RUNTIME, timeout=120)
    async with await sandboxio.create(config, require_isolation=IsolationTier.GVISOR) as sandbox:
        assert sandbox.isolation is IsolationTier.GVISOR


# A runtime that only bears the name; these need no gVisor


async def held(backend: DockerBackend) -> list[str]:
    return [each.sandbox_id for each in await backend.list_managed()]


async def test_a_runtime_that_only_bears_the_name(
    engine_of_tests: OwnEngine, docker_image: str, channel: Any
) -> None:
    """Refused with the kernel's own word; nothing is left."""
    if not engine_of_tests.running:
        await anyio.to_thread.run_sync(engine_of_tests.start)
    backend = DockerBackend(image=docker_image, channel=channel, runtime=POSING, host=engine_of_tests.host)
    with pytest.raises(ConfigurationError, match="is not gVisor: the kernel inside says 'Linux "):
        await backend.create(timeout=60)
    assert not await held(backend)
    async with await backend.configured(DockerConfig(runtime="runc")).create(timeout=60) as plain:
        assert plain.isolation is IsolationTier.CONTAINER


LOG = b"<6>[    0.000000] Starting gVisor..."
FORGED = struct.pack("<4sii390s6x128s", kernel.MAGIC, len(LOG), 1, b"Linux", LOG)
"""What an image would say if it were asked."""

LIAR = f"""#!/usr/bin/python3
import os, sys, time
os.write(1, {FORGED!r} + b"\\n")
time.sleep(60)
"""


@pytest.fixture(scope="module")
def lying_image(engine_of_tests: OwnEngine, docker_image: str) -> Generator[str]:
    """Whose shell and Python say that they run on gVisor, whatever they are told to do."""
    if not engine_of_tests.running:
        engine_of_tests.start()
    name = "sandboxio-test:liar"
    script = (
        'cp /usr/bin/python3 /usr/bin/real; printf %s "$LIAR" | sed s,bin/python3,bin/real, >/usr/bin/liar; '
        "chmod 755 /usr/bin/liar; ln -sf liar /usr/bin/python3; ln -sf liar /usr/bin/sh"
    )
    ask = engine_of_tests.ask
    body = {
        "Image": docker_image,
        "Entrypoint": ["/bin/bash", "-c", script],
        "Cmd": [],
        "Env": [f"LIAR={LIAR}"],
    }
    made = json.loads(ask("POST", "/containers/create", {**body, "NetworkDisabled": True}))["Id"]
    ask("POST", f"/containers/{made}/start")
    assert json.loads(ask("POST", f"/containers/{made}/wait"))["StatusCode"] == 0
    ask("POST", f"/commit?container={made}&repo=sandboxio-test&tag=liar", {})
    ask("DELETE", f"/containers/{made}?force=1")
    yield name
    ask("DELETE", f"/images/{name}?force=1")


async def test_an_image_cannot_talk_its_way_to_gvisor(engine_of_tests: OwnEngine, lying_image: str) -> None:
    """It is not asked, and none of its programs is run before the kernel is known."""
    backend = DockerBackend(image=lying_image, runtime=POSING, host=engine_of_tests.host)
    with pytest.raises(ConfigurationError, match="is not gVisor: the kernel inside says 'Linux "):
        await backend.create(timeout=60)
    assert not await held(backend)


async def test_that_image_does_lie(engine_of_tests: OwnEngine, lying_image: str) -> None:
    """The test above is worth something: asked, the image would have said what was wanted."""
    ask = engine_of_tests.ask
    body = {
        "Image": lying_image,
        "Entrypoint": ["/bin/sh", "-c", "true"],
        "NetworkDisabled": True,
        "Tty": True,
    }
    made = json.loads(ask("POST", "/containers/create", body))["Id"]
    try:
        ask("POST", f"/containers/{made}/start")
        with anyio.fail_after(20):
            while b"Starting gVisor" not in ask("GET", f"/containers/{made}/logs?stdout=1"):
                await anyio.sleep(0.05)
    finally:
        ask("DELETE", f"/containers/{made}?force=1")
    seen = kernel.parse(FORGED)
    assert seen is not None
    assert seen.is_gvisor

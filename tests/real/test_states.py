"""Containers in every state that connect, list and reap may meet, and very many of them."""

from __future__ import annotations

import json
import os
import resource
import threading
import time
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import anyio
import pytest

from sandboxio.errors import ConfigurationError, ConnectError, SandboxError
from sandboxio_docker import DockerBackend
from sandboxio_docker.labels import MANAGED, META, TIMEOUT
from scripts import engine_api

from .creators import held
from .images import ask

pytestmark = [pytest.mark.engine, pytest.mark.timeout(120)]

CROWD = 200


@pytest.fixture
def label() -> str:
    return uuid.uuid4().hex


@contextmanager
def container(image: str, label: str, *argv: str, managed: bool = True, **host: Any) -> Generator[str]:
    """A container made without the code under test; not started."""
    labels = {f"{META}test": label, TIMEOUT: "60"} | ({MANAGED: "true"} if managed else {})
    body = {"Image": image, "Entrypoint": list(argv), "Labels": labels, "HostConfig": host}
    name = json.loads(ask("POST", "/containers/create", {**body, "NetworkDisabled": True}))["Id"]
    try:
        yield name
    finally:
        for each in held(label):
            if each["Id"] == name:
                ask("DELETE", f"/containers/{name}", force="1", v="1")


async def refusal(backend: DockerBackend, sandbox_id: str) -> str:
    """Why a sandbox cannot be joined; soon, and with a fix."""
    began = time.monotonic()
    with pytest.raises(ConnectError) as caught:
        await backend.connect(sandbox_id)
    assert time.monotonic() - began < 10
    assert caught.value.hint
    return caught.value.message


async def test_what_cannot_be_joined(backend: DockerBackend, docker_image: str, label: str) -> None:
    """Unknown, never started, dead, foreign, paused: each has its own sentence, and none is harmed."""
    assert "no sandbox" in await refusal(backend, "0" * 64)
    assert "no sandbox" in await refusal(backend, "sandboxio-no-such-name")
    with container(docker_image, label, "sleep", "60") as made:
        assert "has ended (created)" in await refusal(backend, made)
        ask("POST", f"/containers/{made}/start")
        ask("POST", f"/containers/{made}/pause")
        assert "is paused" in await refusal(backend, made)
        ask("POST", f"/containers/{made}/unpause")
        ask("POST", f"/containers/{made}/kill")
        ask("POST", f"/containers/{made}/wait")
        assert "has ended (exited)" in await refusal(backend, made)
    with container(docker_image, label, "sleep", "60", managed=False) as foreign:
        ask("POST", f"/containers/{foreign}/start")
        assert "not a sandbox of sandboxio" in await refusal(backend, foreign)
        with pytest.raises(ConnectError, match="not a sandbox"):
            await backend.kill_managed(foreign)
        assert [each["State"] for each in held(label)] == ["running"]


async def until_it_fails(joined: Any) -> None:
    """Use a handle until its sandbox has ended; whatever comes is a typed error."""
    try:
        while True:
            await joined.run(["true"], timeout=20)
    except SandboxError:
        pass
    joined.mark_gone("the test is over")


async def test_one_that_is_just_stopping(backend: DockerBackend, docker_image: str, label: str) -> None:
    """It lets SIGTERM pass, so the engine waits: joining works or says that it has ended; it never hangs."""
    with container(docker_image, label, "python3", "-c", "import time; time.sleep(60)") as made:
        ask("POST", f"/containers/{made}/start")

        async def stop() -> None:
            await anyio.to_thread.run_sync(lambda: ask("POST", f"/containers/{made}/stop", t="2"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stop)
            with anyio.fail_after(30):
                while True:
                    try:
                        joined = await backend.connect(made)
                    except ConnectError:
                        break
                    await until_it_fails(joined)
        assert "has ended" in await refusal(backend, made)


async def test_reap_in_every_state(docker_image: str, label: str) -> None:
    """Never started, running, paused, dead, killed for memory: listed as what it is, and removed."""
    backend = DockerBackend(image=docker_image)
    eats = "x = [bytearray(1 << 20) for _ in range(500)]"
    memory: dict[str, Any] = {"Memory": 32 << 20, "MemorySwap": 32 << 20}
    with (
        container(docker_image, label, "sleep", "60") as new,
        container(docker_image, label, "sleep", "60") as running,
        container(docker_image, label, "sleep", "60") as paused,
        container(docker_image, label, "false") as dead,
        container(docker_image, label, "python3", "-c", eats, **memory) as oom,
        container(docker_image, label, "sleep", "60") as taken,
    ):
        for each in (running, paused, dead, oom, taken):
            ask("POST", f"/containers/{each}/start")
        ask("POST", f"/containers/{paused}/pause")
        for each in (dead, oom):
            ask("POST", f"/containers/{each}/wait")
        assert json.loads(ask("GET", f"/containers/{oom}/json"))["State"]["OOMKilled"]
        ask("DELETE", f"/containers/{taken}", force="1")

        found = {each.sandbox_id: each for each in await backend.list_managed(labels={"test": label})}
        assert {name: each.state for name, each in found.items()} == {
            new: "stopped",
            running: "running",
            paused: "paused",
            dead: "stopped",
            oom: "stopped",
        }
        for each in found.values():
            assert each.backend == "docker"
            assert each.created_at is not None
            assert await backend.kill_managed(each.sandbox_id) is True
            assert await backend.kill_managed(each.sandbox_id) is False
        assert await backend.kill_managed(taken) is False
        assert not held(label)


async def test_a_removal_that_has_begun_elsewhere(backend: DockerBackend, label: str) -> None:
    """Two removals at once, ours the second: it returns when the container is gone, and not before."""
    sandbox = await backend.create(timeout=60, metadata={"test": label})

    def elsewhere() -> None:
        status, _ = engine_api.request("DELETE", f"/containers/{sandbox.id}?force=1")
        assert status in (204, 404, 409)  # whoever comes second is told so

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(anyio.to_thread.run_sync, elsewhere)
        await sandbox.kill()
        assert not held(label)
    assert await backend.kill_managed(sandbox.id) is False


async def test_metadata_comes_back_as_it_went(docker_image: str, label: str) -> None:
    """Whatever text is allowed round-trips through the labels; what is not is refused before any request."""
    odd = {
        "test": label,
        "k=v": "=,;",
        "ünï": "\U0001f600\n\t",
        "io.sandboxio.managed": "no",
    }
    backend = DockerBackend(image=docker_image)
    async with await backend.create(timeout=60, metadata=odd) as sandbox:
        (found,) = await backend.list_managed(labels={"test": label})
        assert found.labels == odd
        assert (await backend.list_managed(labels={"test": label, "k=v": "="})) == []
        assert sandbox.id == found.sandbox_id
    for wrong in ({"": "b"}, {"a\0": "b"}, {"a": "b\0"}, {"a": "\ud800"}, {"a": 1}):
        with pytest.raises(ConfigurationError):
            await backend.create(timeout=60, metadata=wrong)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_very_many_at_once(docker_image: str, label: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of this process or of the engine runs out, each answers, and all go."""
    monkeypatch.setenv("SBX_TEARDOWN_GRACE", "120")  # the engine takes its time for so many ends at once
    backend = DockerBackend(image=docker_image)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    before, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    made: list[Any] = []
    room = anyio.CapacityLimiter(20)  # a client that starts 200 at one moment only waits for the engine

    async def one(number: int) -> None:
        async with room:
            sandbox = await backend.create(timeout=380, metadata={"test": label})
        made.append(sandbox)
        assert (await sandbox.run(["echo", str(number)], timeout=100)).stdout == f"{number}\n"

    async def end(sandbox: Any) -> None:
        async with room:
            await sandbox.kill()

    try:
        async with anyio.create_task_group() as tasks:
            for number in range(CROWD):
                tasks.start_soon(one, number)
        assert len(held(label)) == CROWD
        most = len(os.listdir("/proc/self/fd"))
        assert most - before <= CROWD + 20, "one connection each"
        assert most < soft
        assert threading.active_count() <= threads + 1, "trio keeps one; none for each sandbox"
    finally:
        async with anyio.create_task_group() as tasks:
            for sandbox in made:
                tasks.start_soon(end, sandbox)
    assert not held(label)

"""Docker, over both channels, on the engine that DOCKER_HOST names."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, ClassVar, Literal, NoReturn

import anyio
import pytest

from sandboxio import Resources
from sandboxio.audit import AuditConfig
from sandboxio.testing import RecordingSink
from sandboxio.testing.suite import BackendContractSuite
from sandboxio.testing.suite.canary import Canary, serve
from sandboxio_docker import DockerBackend
from sandboxio_docker.engine import Engine, EngineError, Fault
from sandboxio_docker.native import DockerContainer
from scripts import engine_api


class SilentEngine(Engine):
    """Takes every request and answers none."""

    async def negotiate(self) -> NoReturn:
        await anyio.sleep_forever()
        raise AssertionError

    async def request(self, *_: Any, **__: Any) -> NoReturn:
        await anyio.sleep_forever()
        raise AssertionError


class RefusingEngine(Engine):
    """Answers every request with a failure."""

    async def negotiate(self) -> NoReturn:
        raise self._failure()

    async def request(self, *_: Any, **__: Any) -> NoReturn:
        raise self._failure()

    def _failure(self) -> EngineError:
        return EngineError.of("the request", 500, "the disk of the engine is on fire")


@contextmanager
def another_engine(holder: Any, engine: Engine) -> Generator[None]:
    """Inside, ``holder`` speaks to another engine."""
    real = holder._engine
    holder._engine = engine
    try:
        yield
    finally:
        holder._engine = real


@contextmanager
def another_container_engine(sandbox: Any, engine: Engine) -> Generator[None]:
    real = sandbox._container
    sandbox._container = DockerContainer(real.id, engine)
    try:
        yield
    finally:
        sandbox._container = real


def bridge_address() -> str:
    """This machine as a container on the engine's bridge sees it."""
    status, body = engine_api.request("GET", "/networks/bridge")
    assert status == 200, body
    config = json.loads(body)["IPAM"]["Config"][0]
    return str(config.get("Gateway") or ipaddress.ip_network(config["Subnet"])[1])


class DockerContract(BackendContractSuite):
    """What is the same for both channels."""

    pytestmark: ClassVar = [pytest.mark.anyio, pytest.mark.engine]
    channel: ClassVar[Literal["guest", "exec"]]

    cmd_exhaust_memory: ClassVar = ["python3", "-c", "x = [bytearray(1 << 20) for _ in range(1024)]"]

    @pytest.fixture
    def backend(self, docker_image: str) -> DockerBackend:  # type: ignore[override]
        sink = self.audit_sink
        assert sink is not None
        return DockerBackend(image=docker_image, channel=self.channel, audit=AuditConfig(sinks=(sink,)))

    async def applied_resources(self, sandbox: Any) -> Resources:
        host = (await sandbox.native.inspect())["HostConfig"]
        assert host["MemorySwap"] == host["Memory"], "swap is a part of the cap"
        return Resources(cpu=host["NanoCpus"] / 1e9, memory_mb=host["Memory"] >> 20)

    async def expire_sandbox(self, sandbox: Any) -> None:
        try:
            await Engine().request("POST", f"/containers/{sandbox.id}/kill")
        except EngineError as error:
            # Podman answers when the container has ended, and sometimes finds that it was removed by then
            if error.fault is not Fault.NO_SUCH_CONTAINER:
                raise

    def simulate_slow_create(self) -> Any:
        return another_engine(self.backend, SilentEngine())

    def simulate_provider_failure(self) -> Any:
        return another_engine(self.backend, RefusingEngine())

    def simulate_kill_hang(self, sandbox: Any) -> Any:
        return another_container_engine(sandbox, SilentEngine())

    def simulate_kill_failure(self, sandbox: Any) -> Any:
        return another_container_engine(sandbox, RefusingEngine())

    @asynccontextmanager
    async def canary(self) -> AsyncGenerator[Canary]:
        async with serve(bridge_address()) as canary:
            yield canary


class TestDockerGuest(DockerContract):
    audit_sink = RecordingSink()
    channel = "guest"


class TestDockerExec(DockerContract):
    audit_sink = RecordingSink()
    channel = "exec"

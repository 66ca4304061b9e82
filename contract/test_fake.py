"""The fake: everything declared, little declared, almost nothing declared, and of an unknown tier."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

from sandboxio import Capability, IsolationTier, Resources
from sandboxio.audit import AuditConfig
from sandboxio.errors import ResourceLimitExceeded
from sandboxio.testing import FakeBackend, RecordingSink
from sandboxio.testing.suite import BackendContractSuite
from sandboxio.testing.suite.base import MARK
from sandboxio.testing.suite.honesty import CapabilityTests


@dataclass
class FakeCanary:
    """A host of the fake's network; ``visits`` counts over all sandboxes of the backend."""

    backend: FakeBackend
    host: str = "canary.example"
    url: str = "http://canary.example/"

    @property
    def visits(self) -> int:
        return self.backend.reached.count(self.host)


class FakeProbes:
    """What a test of the fake can bring about; the rest is as for any backend."""

    backend: Any
    allowlists_supported = True
    rich_outputs = True
    cmd_exhaust_memory = ["sh", "-c", "exhaust memory"]  # noqa: RUF012

    def code_hang(self, mark: str) -> str:
        return f"import time\ntime.sleep(3600)  # {MARK}={mark}"

    async def processes_marked(self, sandbox: Any, mark: str) -> list[str]:
        native = self.backend.machine(sandbox.id)
        return [job.text for job in native.processes() if job.env.get(MARK) == mark or mark in job.text]

    async def applied_resources(self, sandbox: Any) -> Resources:
        return sandbox.native.resources

    async def expire_sandbox(self, sandbox: Any) -> None:
        self.backend.expire(sandbox.id)

    @contextmanager
    def simulated_with(self, **how: Any) -> Generator[None]:
        self.backend.simulate(**how)
        try:
            yield
        finally:
            self.backend.simulate()

    def simulate_slow_create(self) -> Any:
        return self.simulated_with(create_takes=3600)

    def simulate_provider_failure(self) -> Any:
        return self.simulated_with(create_fails=RuntimeError("the data centre is on fire"))

    @contextmanager
    def simulate_missing_credential(self) -> Generator[str]:
        with self.simulated_with(auth_missing=True):
            yield "SBX_FAKE_TOKEN"

    def simulate_kill_hang(self, sandbox: Any) -> Any:
        return self.simulated_with(kill_hangs=True)

    def simulate_kill_failure(self, sandbox: Any) -> Any:
        return self.simulated_with(kill_fails=RuntimeError("not now"))

    @asynccontextmanager
    async def canary(self) -> AsyncGenerator[FakeCanary]:
        yield FakeCanary(self.backend)


def _fake(sink: RecordingSink | None = None, **options: Any) -> FakeBackend:
    fake = FakeBackend(audit=AuditConfig(sinks=(sink,)) if sink is not None else None, **options)
    fake.on_run("exhaust memory", raises=ResourceLimitExceeded("The memory cap of 128 MiB was hit."))
    return fake


class TestFake(FakeProbes, BackendContractSuite):
    audit_sink = RecordingSink()
    backend = _fake(audit_sink)


class TestFakeOfAnUnknownTier(FakeProbes, BackendContractSuite):
    audit_sink = RecordingSink()
    output_limit = 1 << 20
    backend = _fake(audit_sink, isolation=IsolationTier.UNKNOWN, output_limit=output_limit)


class TestFakeWithLittle(FakeProbes, BackendContractSuite):
    output_limit = 1 << 20
    backend = _fake(
        capabilities=Capability.RUN_COMMAND | Capability.RUN_CODE | Capability.NETWORK_POLICY,
        output_limit=output_limit,
    )
    rich_outputs = False


class TestFakeWithAlmostNothing(FakeProbes, BackendContractSuite):
    backend = _fake(capabilities=Capability.NETWORK_POLICY)


class TestFakeWithNothing(FakeProbes, CapabilityTests):
    """No policy can be kept, so nothing is ever created: all else would be skipped."""

    backend = _fake(capabilities=Capability(0))

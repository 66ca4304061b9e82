"""E2B, on the stand-in of tests/e2b_standin; and on the real service for people with a key."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest

from sandboxio.audit import AuditConfig
from sandboxio.testing import RecordingSink
from sandboxio.testing.suite import BackendContractSuite
from sandboxio.testing.suite.base import MARK
from sandboxio_e2b import E2BBackend
from sandboxio_e2b.control import ControlPlane, Placed
from sandboxio_e2b.endpoints import Settings, read_settings
from sandboxio_e2b.envd import Command
from sandboxio_e2b.native import native_sandbox
from tests.e2b_standin.fixtures import standin as standin, standin_process as standin_process
from tests.e2b_standin.running import StandInProcess


@pytest.fixture(scope="session")
def client_of_e2b() -> None:
    """E2B's client starts a runtime at its first use and keeps it; no test shall seem to leave it."""
    nobody = Placed("i0", "0.6.13", None, None, None, {}, "running", None)
    native_sandbox(Settings(api_key="e2b_0"), nobody)


class E2BContract(BackendContractSuite):
    """What is the same on the stand-in and on the real service."""

    resource_caps_supported = False
    allowlists_supported = True
    rich_outputs = True

    async def processes_marked(self, sandbox: Any, mark: str) -> list[str]:
        # As root: kernels are root's, here and at E2B.
        look = 'grep -l -F "$0" /proc/[0-9]*/environ 2>/dev/null; true'
        command = Command(["sh", "-c", look, f"{MARK}={mark}"], user="root")
        _, found, _ = await sandbox._place.envd.run(command)
        return [line.split("/")[2] for line in found.decode().splitlines()]

    async def expire_sandbox(self, sandbox: Any) -> None:
        await ControlPlane(read_settings()).kill(sandbox.id)

    @contextmanager
    def simulate_missing_credential(self) -> Iterator[str]:
        key = os.environ.pop("E2B_API_KEY")
        try:
            yield "E2B_API_KEY"
        finally:
            os.environ["E2B_API_KEY"] = key


class TestE2B(E2BContract):
    """On the stand-in: every probe is there."""

    pytestmark: ClassVar = [
        pytest.mark.anyio,
        pytest.mark.usefixtures("standin_process", "client_of_e2b"),
    ]
    audit_sink = RecordingSink()
    canary_host: ClassVar = "127.0.0.77"  # this machine, as sandboxes of the stand-in see it

    @pytest.fixture
    def backend(self, standin: StandInProcess) -> E2BBackend:  # type: ignore[override]
        self.standin = standin
        return _recording(self.audit_sink)

    def simulate_slow_create(self) -> Any:
        return self.standin.faulty("POST /v2/sandboxes$", "delay", seconds=2, late=True)

    def simulate_provider_failure(self) -> Any:
        return self.standin.faulty("POST /v2/sandboxes$", "status", status=500, body='{"message": "on fire"}')

    def simulate_kill_hang(self, sandbox: Any) -> Any:
        return self.standin.faulty(f"DELETE /sandboxes/{sandbox.id}", "delay", seconds=30)

    def simulate_kill_failure(self, sandbox: Any) -> Any:
        return self.standin.faulty(f"DELETE /sandboxes/{sandbox.id}", "status", status=500)


class TestRealE2B(E2BContract):
    """On E2B itself, with somebody's key; nothing can be made to fail there, so some probes are missing."""

    pytestmark: ClassVar = [
        pytest.mark.anyio,
        pytest.mark.e2b,
        pytest.mark.slow,
        pytest.mark.timeout(300),
        pytest.mark.usefixtures("client_of_e2b"),
    ]
    audit_sink = RecordingSink()

    @pytest.fixture
    def backend(self) -> E2BBackend:  # type: ignore[override]
        return _recording(self.audit_sink)


def _recording(sink: RecordingSink | None) -> E2BBackend:
    assert sink is not None
    return E2BBackend(audit=AuditConfig(sinks=(sink,)))

"""Two adapters as a third party would write them, and the contract on both.

The "provider" is a fake behind its public methods; what counts is how little stands around it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn, Self

from sandboxio import Capability, IsolationTier, NetworkPolicy, Resources
from sandboxio.adapter import BaseBackend, BaseSandbox, SandboxRequest
from sandboxio.errors import ConnectError
from sandboxio.models import ExecResult, ManagedSandbox
from sandboxio.testing import FakeBackend
from sandboxio.testing.suite import BackendContractSuite

CAPABILITIES = Capability.RUN_COMMAND | Capability.NETWORK_POLICY
NO_CAPS, DENY = Resources(), NetworkPolicy()


# Without a base class: the ports are structural.


class FlySandbox:
    def __init__(self, machine: Any) -> None:
        self.native, self.id, self.files = machine, machine.id, machine.files
        self.capabilities, self.isolation = CAPABILITIES, IsolationTier.UNKNOWN
        self.run_code, self.stream, self.kill = machine.run_code, machine.stream, machine.kill

    async def run(
        self, cmd: str | list[str], *, timeout: float | None = None, env: dict[str, str] | None = None
    ) -> ExecResult:
        return await self.native.run(cmd, timeout=timeout, env=env)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()


class FlyBackend:
    name, capabilities, isolation = "fly", CAPABILITIES, IsolationTier.UNKNOWN

    def __init__(self, provider: FakeBackend) -> None:
        self.provider = provider

    async def create(
        self,
        *,
        template: str | None = None,
        resources: Resources = NO_CAPS,
        network: NetworkPolicy = DENY,
        env: dict[str, str] | None = None,
        secrets: dict[str, str] | None = None,
        timeout: float = 300,
        metadata: dict[str, str] | None = None,
    ) -> FlySandbox:
        made = await self.provider.create(
            template=template,
            resources=resources,
            network=network,
            env=env,
            secrets=secrets,
            timeout=timeout,
            metadata=metadata,
        )
        return FlySandbox(made)

    async def connect(self, sandbox_id: str) -> FlySandbox:
        return FlySandbox(await self.provider.connect(sandbox_id))


class TestFly(BackendContractSuite):
    backend = FlyBackend(FakeBackend(capabilities=CAPABILITIES, output_limit=1 << 20))
    output_limit = 1 << 20
    allowlists_supported = True

    async def processes_marked(self, sandbox: Any, mark: str) -> list[str]:
        held = self.backend.provider.machine(sandbox.id)
        return [job.text for job in held.processes() if mark in job.env.values()]


# On the base classes: the primitives alone.


class WallSandbox(BaseSandbox):
    """A sandbox with an id, labels and an end, and nothing else."""

    native = object()

    async def _destroy(self) -> None:
        HELD.pop(self.id, None)

    def _never(self, *_: Any, **__: Any) -> NoReturn:
        raise AssertionError("undeclared, so the base class refuses before")

    _command = _code = _transfer = _never


class WallBackend(BaseBackend):
    name = "wall"
    capabilities = Capability.NETWORK_POLICY
    isolation = IsolationTier.MICROVM

    async def _provision(self, request: SandboxRequest) -> WallSandbox:
        number = f"wall-{len(HELD)}-{id(request)}"
        HELD[number] = request
        return await self._attach(number)

    async def _attach(self, sandbox_id: str) -> WallSandbox:
        if sandbox_id not in HELD:
            raise ConnectError(f"There is no sandbox {sandbox_id!r}.")
        return WallSandbox(
            id=sandbox_id,
            backend=self.name,
            capabilities=self.capabilities,
            isolation=self.isolation,
            request=HELD[sandbox_id],
            recorder=self._recorder,
        )

    async def list_managed(self, *, labels: Mapping[str, str] | None = None) -> list[ManagedSandbox]:
        return [
            ManagedSandbox(each, self.name, "running", labels=dict(request.metadata))
            for each, request in HELD.items()
            if (labels or {}).items() <= request.metadata.items()
        ]

    async def kill_managed(self, sandbox_id: str) -> bool:
        return HELD.pop(sandbox_id, None) is not None


HELD: dict[str, SandboxRequest] = {}


class TestWall(BackendContractSuite):
    backend = WallBackend()
    deviations = {  # noqa: RUF012
        "test_a_disk_cap_that_cannot_be_kept_is_refused": "a wall has no disk, and does not say so",
    }

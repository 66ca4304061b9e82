"""The fake backend: sandboxes in memory, for tests of code that uses sandboxio."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel

from sandboxio.adapter import OUTPUT_LIMIT, BaseBackend, BaseSandbox, SandboxRequest
from sandboxio.audit import AuditConfig, AuditEvent, config_of
from sandboxio.errors import (
    CapabilityNotSupported,
    ConfigurationError,
    ConnectError,
    CreateTimeout,
    SandboxError,
)
from sandboxio.models import (
    DEFAULT_TIMEOUT,
    BackendConfig,
    Capability,
    ExecResult,
    IsolationTier,
    ManagedSandbox,
    NetworkPolicy,
    Resources,
)
from sandboxio.testing.recording import RecordingSink

from .clock import VirtualClock
from .machine import Machine
from .sandbox import Call, FakeSandbox, copied
from .script import Kind, Rule, Script
from .simulation import Simulation

if TYPE_CHECKING:
    from sandboxio.sync import SyncSandbox

EVERYTHING = (
    Capability.RUN_COMMAND
    | Capability.RUN_CODE
    | Capability.STATEFUL_CODE
    | Capability.STREAMING
    | Capability.FILESYSTEM
    | Capability.UPLOAD_DOWNLOAD
    | Capability.NETWORK_POLICY
)
"""What the fake can do: nothing that no backend of this release can do."""
_numbers = itertools.count(1)


class FakeBackend(BaseBackend):
    r"""Sandboxes that execute nothing, for tests; it passes the contract suite.

    Args:
        capabilities: What to declare; a part of the default, to test how code copes with less.
        isolation: What to report. The fake isolates nothing, whatever it reports.
        audit: As for every backend; ``events`` has all events, with or without it.
        time_scale: Real seconds per virtual second, at most 1: a hang of 300 s takes 3 s.
        output_limit: Bytes kept of each stream of ``run`` and ``run_code``.

    Commands go through a small virtual shell, code is recognised and not executed, and ``on_run`` and
    ``on_run_code`` script everything else. ``simulate`` makes the provider misbehave. Objects of one
    fake may be used from several event loops, but not from two threads at the same time.

    >>> import anyio
    >>> from sandboxio.testing import FakeBackend
    >>> fake = FakeBackend()
    >>> fake.on_run(match="pytest", returns=ExecResult(1, "1 failed\n", ""))
    >>> async def main():
    ...     async with await fake.create() as sandbox:
    ...         return (await sandbox.run(["pytest", "-q"])).stdout
    >>> anyio.run(main)
    '1 failed\n'
    >>> [call.op for call in fake.calls]
    ['create', 'run', 'kill']
    """

    name = "fake"

    def __init__(
        self,
        *,
        capabilities: Capability = EVERYTHING,
        isolation: IsolationTier = IsolationTier.CONTAINER,
        audit: AuditConfig | None = None,
        time_scale: float = 0.01,
        output_limit: int = OUTPUT_LIMIT,
    ) -> None:
        if beyond := capabilities & ~EVERYTHING:
            raise ConfigurationError(
                f"The fake cannot do {beyond}: it does not emulate what no backend of this release has."
            )
        if not 0 < time_scale <= 1:  # slower than real, a command that ends in time would be timed out
            raise ConfigurationError(f"time_scale must be above 0 and at most 1, got {time_scale!r}.")
        self._sink = RecordingSink()
        given = config_of(audit)
        super().__init__(
            audit=AuditConfig(
                sinks=(self._sink, *given.sinks),
                on_sink_failure=given.on_sink_failure,
                capture_code=given.capture_code,
            )
        )
        self.capabilities = capabilities
        self.isolation = isolation
        self.calls: list[Call] = []
        self._scale = time_scale
        self._output_limit = output_limit
        self._clock = VirtualClock(time_scale)
        self._script = Script()
        self._simulation = Simulation()
        self._machines: dict[str, Machine] = {}
        self._ids = itertools.count(1)
        self._config: BackendConfig | None = None
        self._original = self
        self._own: FakeSandbox | None = None
        self._own_sync: SyncSandbox | None = None

    # What a test looks at.

    @property
    def sandbox(self) -> FakeSandbox:
        """A ready sandbox with the default policy; made on first use, without an event loop."""
        if self._own is None:
            self._own = self._made(SandboxRequest(timeout=DEFAULT_TIMEOUT))
            self.calls.append(Call("create", self._own.id, timeout=DEFAULT_TIMEOUT))
        return self._own

    @property
    def sync_sandbox(self) -> SyncSandbox:
        """The same sandbox behind the blocking facade, for tests and tools that are not async.

        It has a thread of its own until :meth:`close`.
        """
        from sandboxio import registry, sync  # noqa: PLC0415 - most tests need no thread

        if self._own_sync is None:
            name = f"fake_{next(_numbers)}"
            registry.register(name, lambda: self)
            try:
                self._own_sync = sync.connect_sync(f"{name}://", self.sandbox.id)
            finally:
                registry.unregister(name)
        return self._own_sync

    @property
    def reached(self) -> list[str]:
        """Hosts that commands and code have reached, where the policy allowed it."""
        return [host for machine in self._machines.values() for host in machine.network.reached]

    def machine(self, sandbox_id: str) -> Machine:
        """What the provider holds behind an id, whoever has a handle on it."""
        if sandbox_id not in self._machines:
            raise ConnectError(f"The fake never had a sandbox {sandbox_id!r}.")
        return self._machines[sandbox_id]

    @property
    def events(self) -> list[AuditEvent]:
        """Every audit event so far, redacted as for any sink."""
        return self._sink.events

    def close(self) -> None:
        """End every sandbox, and the thread of ``sync_sandbox``."""
        sync, self._own_sync, self._own = self._own_sync, None, None
        self._simulation = Simulation()
        if sync is not None:
            sync.close()
        for machine in self._machines.values():
            machine.end("the fake was closed")

    # What a test arranges.

    def on_run(
        self,
        match: str = "",
        returns: ExecResult | None = None,
        *,
        raises: SandboxError | None = None,
        hangs: bool = False,
        takes: float = 0.0,
        times: int | None = None,
    ) -> None:
        """Script the answer to every ``run`` and ``stream`` whose command contains ``match``.

        An argument list counts as its items with a blank between. ``returns`` is printed and returned;
        with ``hangs`` the command prints it and then runs until its timeout; ``raises`` is raised;
        ``takes`` virtual seconds pass before. ``times`` limits how often this answers. The newest rule
        that matches wins.
        """
        self._add("run", match, returns, raises, hangs, takes, times)

    def on_run_code(
        self,
        match: str = "",
        returns: ExecResult | None = None,
        *,
        raises: SandboxError | None = None,
        hangs: bool = False,
        takes: float = 0.0,
        times: int | None = None,
    ) -> None:
        """Script the answer to every ``run_code`` whose code contains ``match``; as :meth:`on_run`."""
        self._add("run_code", match, returns, raises, hangs, takes, times)

    def simulate(
        self,
        *,
        create_takes: float = 0.0,
        create_fails: BaseException | None = None,
        kill_hangs: bool = False,
        kill_fails: BaseException | None = None,
        auth_missing: bool = False,
        rate_limited: float | None = None,
        times: int | None = None,
    ) -> None:
        """Make the provider misbehave, until the next call; without arguments it is well again.

        Args:
            create_takes: Virtual seconds; beyond the timeout of ``create()`` it is ``CreateTimeout``.
            create_fails: Becomes the cause of a ``CreationError``.
            kill_hangs: A kill is never answered: ``OrphanedSandboxWarning`` when the grace is over.
            kill_fails: Becomes the cause of a ``ConnectError`` from ``kill()``.
            auth_missing: ``AuthError`` that names ``SBX_FAKE_TOKEN``.
            rate_limited: ``RateLimitError`` with this ``retry_after``, in seconds.
            times: The number of creations that this holds for.
        """
        self._simulation = Simulation(
            create_takes, create_fails, kill_hangs, kill_fails, auth_missing, rate_limited, times
        )

    def expire(self, sandbox_id: str) -> None:
        """Let the provider reclaim a sandbox: whatever uses it meets ``SandboxGone``."""
        self.machine(sandbox_id).end("the provider reclaimed it")

    # What the core asks of an adapter.

    def _check(self, request: SandboxRequest) -> None:
        if request.resources.disk_mb is not None:
            raise CapabilityNotSupported(
                "The fake has no disk cap, as no backend of this release has.",
                hint="Leave Resources(disk_mb=...) out.",
            )

    async def create(
        self,
        *,
        template: str | None = None,
        resources: Resources = Resources(),
        network: NetworkPolicy = NetworkPolicy(),
        env: dict[str, str] | None = None,
        secrets: dict[str, str] | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        metadata: dict[str, str] | None = None,
    ) -> BaseSandbox:
        """A new sandbox, noted in ``calls`` whether it comes about or not."""
        call = Call(
            "create",
            "",
            timeout=timeout,
            template=template,
            resources=resources,
            network=network,
            env=copied(env),
            secrets=copied(secrets),
            metadata=copied(metadata),
            config=self._config,
        )
        self.calls.append(call)
        sandbox = await super().create(
            template=template,
            resources=resources,
            network=network,
            env=env,
            secrets=secrets,
            timeout=timeout,
            metadata=metadata,
        )
        self.calls[:] = [
            replace(each, sandbox_id=sandbox.id) if each is call else each for each in self.calls
        ]
        return sandbox

    async def _provision(self, request: SandboxRequest) -> FakeSandbox:
        simulation = self._original._simulation.for_creation()  # noqa: SLF001 - a copy of itself
        await anyio.lowlevel.checkpoint()
        simulation.refuse_creation()
        if simulation.create_takes:
            seconds = min(simulation.create_takes, request.timeout)
            await self._clock.wait(self._clock.now + seconds, anyio.Event())
            if simulation.create_takes >= request.timeout:
                raise CreateTimeout(f"No usable sandbox came up within {request.timeout:g} s.")
        return self._made(request)

    async def _attach(self, sandbox_id: str) -> FakeSandbox:
        self.calls.append(Call("connect", sandbox_id))
        await anyio.lowlevel.checkpoint()
        machine = self.machine(sandbox_id)
        machine.expire_if_due()
        if machine.ended is not None:
            raise ConnectError(f"Sandbox {sandbox_id!r} has ended: {machine.ended}.")
        # The creator's values travel with its own calls, as on every backend.
        return self._handle(machine, replace(machine.request, env={}, secrets={}))

    def configured(self, config: BackendConfig) -> FakeBackend:
        """This fake for one creation by a typed config; its own fields are in ``calls[...].config``."""
        same = copy.copy(self)
        same._config = config  # noqa: SLF001 - a copy of itself
        return same

    async def list_managed(self, *, labels: Mapping[str, str] | None = None) -> list[ManagedSandbox]:
        """The running sandboxes; an ended one is gone at once, as on E2B."""
        await anyio.lowlevel.checkpoint()
        wanted = (labels or {}).items()
        for machine in self._machines.values():
            machine.expire_if_due()
        return [
            ManagedSandbox(machine.id, self.name, "running", machine.created_at, dict(machine.labels))
            for machine in self._machines.values()
            if machine.ended is None and wanted <= machine.labels.items()
        ]

    async def kill_managed(self, sandbox_id: str) -> bool:
        """End a sandbox by its id; False if it had ended or never was."""
        await anyio.lowlevel.checkpoint()
        machine = self._machines.get(sandbox_id)
        if machine is None or machine.ended is not None:
            return False
        self._original._simulation.refuse_kill()  # noqa: SLF001 - a copy of itself
        machine.end("it was killed by its id")
        return True

    # Shared steps.

    def _add(
        self,
        kind: Kind,
        match: str,
        returns: ExecResult | None,
        raises: SandboxError | None,
        hangs: bool,
        takes: float,
        times: int | None,
    ) -> None:
        self._script.add(Rule(kind, match, returns, raises, hangs, takes, times))

    def _made(self, request: SandboxRequest) -> FakeSandbox:
        machine = Machine(f"fake-{next(self._ids):04}", request, self._clock)
        self._machines[machine.id] = machine
        return self._handle(machine, request)

    def _handle(self, machine: Machine, request: SandboxRequest) -> FakeSandbox:
        return FakeSandbox(
            machine,
            request=request,
            backend=self.name,
            capabilities=self.capabilities,
            isolation=self.isolation,
            recorder=self._recorder,
            script=self._script,
            simulation=lambda: self._original._simulation,  # noqa: SLF001 - a copy of itself
            calls=self.calls,
            scale=self._scale,
            output_limit=self._output_limit,
        )

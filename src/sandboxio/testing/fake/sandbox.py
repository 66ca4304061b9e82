"""The fake's sandbox: a handle on a :class:`Machine`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import cast

import anyio
import anyio.lowlevel

from sandboxio.adapter import (
    BaseProcess,
    BaseSandbox,
    Execution,
    FileTransfer,
    Recorder,
    Redactor,
    SandboxRequest,
)
from sandboxio.errors import CapabilityNotSupported
from sandboxio.models import BackendConfig, Capability, ExecResult, IsolationTier, NetworkPolicy, Resources

from .execution import FakeExecution
from .jobs import Run
from .machine import Machine
from .python import python
from .script import Kind, Rule, Script
from .shell import shell, start
from .simulation import Simulation
from .steps import Program
from .transfer import FakeTransfer


@dataclass(frozen=True)
class Call:
    """One call on the fake, with the arguments as the caller gave them.

    ``op`` is create, connect, run, run_code, stream, kill, file_read, file_write, file_list, file_mkdir
    or file_remove. ``timeout`` is None where the caller left it out of a run. The creation's policy
    repeats in every call of its sandbox, for it holds for the sandbox's life.

    A failing test prints calls, so the repr leaves ``env`` and ``secrets`` out and shows ``***`` where a
    text holds a secret of the sandbox or of the call; ``redactor`` knows those of the sandbox.
    """

    op: str
    sandbox_id: str
    command: str | tuple[str, ...] | None = None
    code: str | None = None
    language: str | None = None
    context_id: str | None = None
    path: str | None = None
    timeout: float | None = None
    template: str | None = None
    resources: Resources = Resources()
    network: NetworkPolicy = NetworkPolicy()
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    secrets: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    config: BackendConfig | None = None
    redactor: Redactor = field(default=Redactor(), repr=False, compare=False)

    def __repr__(self) -> str:
        redactor = self.redactor.also(_texts(self.secrets).values()).including(_texts(self.env))
        shown = (
            f"{each.name}={_redacted(getattr(self, each.name), redactor)!r}"
            for each in fields(self)
            if each.repr
        )
        return f"Call({', '.join(shown)})"


class FakeSandbox(BaseSandbox):
    """Nothing is executed: commands go through a virtual shell, code is recognised."""

    def __init__(
        self,
        machine: Machine,
        *,
        request: SandboxRequest,
        backend: str,
        capabilities: Capability,
        isolation: IsolationTier,
        recorder: Recorder,
        script: Script,
        simulation: Callable[[], Simulation],
        calls: list[Call],
        scale: float,
        output_limit: int,
    ) -> None:
        super().__init__(
            id=machine.id,
            backend=backend,
            capabilities=capabilities,
            isolation=isolation,
            request=request,
            recorder=recorder,
            output_limit=output_limit,
        )
        self._machine = machine
        self._script = script
        self._simulation = simulation
        self._calls = calls
        self._scale = scale

    # The calls, noted and handed on.

    async def run(
        self, cmd: str | list[str], *, timeout: float | None = None, env: dict[str, str] | None = None
    ) -> ExecResult:
        self._note("run", command=_command(cmd), timeout=timeout, env=copied(env))
        return await super().run(cmd, timeout=timeout, env=env)

    async def run_code(
        self,
        code: str,
        *,
        language: str = "python",
        context_id: str | None = None,
        timeout: float | None = None,
    ) -> ExecResult:
        self._note("run_code", code=code, language=language, context_id=context_id, timeout=timeout)
        return await super().run_code(code, language=language, context_id=context_id, timeout=timeout)

    def stream(
        self, cmd: str | list[str], *, timeout: float | None = None, env: dict[str, str] | None = None
    ) -> BaseProcess:
        self._note("stream", command=_command(cmd), timeout=timeout, env=copied(env))
        return super().stream(cmd, timeout=timeout, env=env)

    async def kill(self) -> None:
        self._note("kill")
        await super().kill()

    # What the core asks of an adapter.

    def _command(
        self, command: str | tuple[str, ...], *, env: Mapping[str, str], seconds: float
    ) -> Execution:
        text = command if isinstance(command, str) else " ".join(command)

        def program(run: Run) -> Program:
            context = self._machine.context(run, {**self._request.variables, **env})
            return shell(command, context) if isinstance(command, str) else start(command, context)

        return self._execution("run", text, program, env=env, seconds=seconds)

    def _code(self, code: str, *, language: str, context_id: str | None, seconds: float) -> Execution:
        if language != "python":
            raise CapabilityNotSupported(
                f"The fake recognises python only, not {language!r}.", hint='Use language="python".'
            )
        interactive = Capability.STATEFUL_CODE in self.capabilities

        def program(run: Run) -> Program:
            context = self._machine.context(run, self._request.variables, context_id)
            return python(code, context, interactive=interactive)

        return self._execution("run_code", code, program, env={}, seconds=seconds)

    def _transfer(self) -> FileTransfer:
        return FakeTransfer(self._machine, lambda operation, path: self._note(operation, path=path))

    async def _destroy(self) -> None:
        simulation = self._simulation()
        await anyio.lowlevel.checkpoint()
        if simulation.kill_hangs:
            await anyio.sleep_forever()
        simulation.refuse_kill()
        self._machine.end("it was killed")

    def _grace(self) -> float:
        """Virtual for a hang that was simulated, real otherwise: a busy machine is no hang."""
        return super()._grace() * (self._scale if self._simulation().kill_hangs else 1)

    @property
    def native(self) -> Machine:
        """The virtual machine behind this handle."""
        return self._machine

    def _execution(
        self,
        kind: Kind,
        text: str,
        program: Callable[[Run], Program],
        *,
        env: Mapping[str, str],
        seconds: float,
    ) -> Execution:
        def scripted_or_virtual(run: Run) -> Program:
            rule = self._script.answer(kind, text)
            if rule is None:
                return program(run)
            return _scripted(rule, run)

        everything = {**self._request.variables, **env}
        return FakeExecution(self._machine, scripted_or_virtual, text=text, env=everything, seconds=seconds)

    def _note(self, op: str, **given: object) -> None:
        known = {"network": self._machine.request.network}
        self._calls.append(Call(op, self.id, redactor=self.redactor, **{**known, **given}))  # type: ignore[arg-type]


def _scripted(rule: Rule, run: Run) -> Program:
    if rule.returns is not None:
        run.results, run.notes = rule.returns.results, rule.returns.notes
    return rule.program()


def _redacted(value: object, redactor: Redactor) -> object:
    if isinstance(value, str):
        return redactor.text(value)
    if isinstance(value, tuple):
        return tuple(_redacted(each, redactor) for each in cast("tuple[object, ...]", value))
    return value


def _texts(given: Mapping[str, str]) -> dict[str, str]:
    """What may hold a secret; a call is noted before it is checked."""
    return {name: value for name, value in given.items() if isinstance(name, str) and isinstance(value, str)}


def copied(given: dict[str, str] | None) -> dict[str, str]:
    """As it was at the call; what is no mapping is refused by whoever runs it."""
    return dict(given) if isinstance(given, Mapping) else {}


def _command(cmd: str | list[str]) -> str | tuple[str, ...]:
    return tuple(cmd) if isinstance(cmd, (list, tuple)) else cmd

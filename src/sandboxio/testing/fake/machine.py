"""One virtual sandbox as its provider holds it. Several handles may point at one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from sandboxio.adapter import SandboxRequest
from sandboxio.errors import SandboxGone
from sandboxio.models import Resources

from .clock import VirtualClock
from .context import Context
from .jobs import Job, Run
from .network import Network
from .steps import Program
from .tree import Tree

BASE_ENV = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
}
DEFAULT_CPU = 1.0
DEFAULT_MEMORY_MB = 512


class Machine:
    """Files, processes and network of one sandbox, until it has ended.

    This is what ``native`` returns. ``labels`` is the creator's metadata, ``resources`` the caps in
    force, ``template`` the name that was asked for.
    """

    def __init__(self, sandbox_id: str, request: SandboxRequest, clock: VirtualClock) -> None:
        self.id = sandbox_id
        self.request = request
        self.template: str | None = request.template
        self.labels: dict[str, str] = dict(request.metadata)
        self.created_at: datetime = datetime.now(UTC)
        self.clock = clock
        self.expires_at: float = clock.now + request.timeout
        self.tree: Tree = Tree()
        self.network: Network = Network(request.network)
        self.resources: Resources = _applied(request.resources)
        self.ended: str | None = None
        self._runs: list[Run] = []
        self._contexts: dict[str, dict[str, Any]] = {}
        self._interrupts: set[Callable[[], None]] = set()

    def check(self) -> None:
        """Raise ``SandboxGone`` if the sandbox has ended; let everything in it go on until now."""
        self.expire_if_due()
        if self.ended is not None:
            raise SandboxGone(f"Sandbox {self.id} has ended: {self.ended}.")
        self.settle()

    def expire_if_due(self) -> None:
        """End the sandbox if its lifetime is over."""
        if self.clock.now >= self.expires_at:
            self.end(f"its lifetime of {self.request.timeout:g} s is over")

    def settle(self) -> None:
        """Let every process do what happens until now."""
        for run in self._runs:
            run.advance(self.clock.now)
        self._runs = [run for run in self._runs if run.alive]

    def end(self, why: str) -> None:
        """End the sandbox with all that runs in it."""
        if self.ended is None:
            self.ended = why
            for run in self._runs:
                run.kill()
            self._runs.clear()
            for interrupt in tuple(self._interrupts):  # of runs in any loop
                interrupt()

    def context(self, run: Run, env: Mapping[str, str], context_id: str | None = None) -> Context:
        """What a program of ``run`` sees."""
        variables: dict[str, Any] = {}
        if context_id is not None:
            variables = self._contexts.setdefault(context_id, {})
            run.on_kill.append(variables.clear)  # a killed interpreter has lost its state

        def start(program: Program, text: str, its_env: dict[str, str]) -> None:
            job = run.spawn(program, text, its_env, self.clock.now)
            job.advance(self.clock.now)

        full = {**BASE_ENV, **env}
        return Context(self.tree, self.network, run, full, start, variables=variables)

    def launch(self, run: Run, program: Program, text: str, env: Mapping[str, str]) -> Job:
        """Start the main process of a run."""
        self._runs.append(run)
        return run.spawn(program, text, env, self.clock.now)

    def processes(self) -> list[Job]:
        """Whatever is alive in the sandbox now."""
        self.settle()
        return [job for run in self._runs for job in run.alive]

    def watch(self, interrupt: Callable[[], None]) -> Callable[[], None]:
        """Have ``interrupt`` called when the sandbox ends; the result undoes that."""
        self._interrupts.add(interrupt)
        return lambda: self._interrupts.discard(interrupt)


def _applied(asked: Resources) -> Resources:
    return Resources(
        cpu=DEFAULT_CPU if asked.cpu is None else asked.cpu,
        memory_mb=DEFAULT_MEMORY_MB if asked.memory_mb is None else asked.memory_mb,
    )

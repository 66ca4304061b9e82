"""``sandboxio demo``: five steps that show whether a backend works here, each timed."""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import anyio

from sandboxio import registry
from sandboxio._dsn import parse
from sandboxio.errors import OrphanedSandboxWarning, SandboxError
from sandboxio.models import BackendConfig, Capability
from sandboxio.protocols import AsyncSandbox, ReportingBackend

from . import egress
from .output import Output, error_dict

HELP: str = "create a sandbox, run code in it, show that it cannot reach the network, remove it"
DEFAULT_TARGET = "docker://python:3.12-slim"
EXAMPLES: str = """\
examples:
  sandboxio demo                              Docker, python:3.12-slim
  sandboxio demo --backend docker://my-image  another image
  sandboxio demo --backend fake://            no Docker; runs nothing for real
  sandboxio demo --json                       the same for programs

The sandbox runs under the default policy, which lets nothing out; no option weakens it.
The first run pulls the image.

exit codes:
  0    all steps passed
  1    one failed (also if the network was reached)
  2    wrong usage
  130  interrupted
"""
GREETING = "hello from the sandbox"
STEPS = ("create", "run_code", "stream", "egress", "teardown")
_WIDTH = max(map(len, STEPS))

Status = Literal["ok", "failed", "skipped"]


@dataclass(frozen=True)
class Step:
    """How one step went. ``ms`` is its duration in milliseconds, None if it did not run."""

    name: str
    status: Status
    ms: int | None
    detail: str
    error: SandboxError | None = None

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        return {
            "name": self.name,
            "status": self.status,
            "ms": self.ms,
            "detail": self.detail,
            "error": None if self.error is None else error_dict(self.error),
        }


@dataclass
class Demo:
    """The run of one demo; steps are printed as they end."""

    config: BackendConfig
    output: Output
    steps: list[Step] = field(default_factory=list[Step])
    sandbox: AsyncSandbox | None = None

    @property
    def failed(self) -> bool:
        """True if a step failed."""
        return any(step.status == "failed" for step in self.steps)

    async def run(self) -> None:
        """All steps. What was created is torn down, whatever happened and even when interrupted."""
        await self._step("create", self._create)
        if self.sandbox is None:
            return
        try:
            await self._step("run_code", self._run_code)
            await self._step("stream", self._stream)
            await self._step("egress", self._egress)
        except BaseException as error:
            await self.sandbox.__aexit__(type(error), error, error.__traceback__)
            raise
        await self._step("teardown", self._teardown)

    async def _step(self, name: str, work: Callable[[], Awaitable[tuple[Status, str]]]) -> None:
        started = time.monotonic()
        error: SandboxError | None = None
        try:
            status, detail = await work()
        except SandboxError as failure:
            self.output.traceback(failure)
            status, detail, error = "failed", failure.message, failure
        elapsed = None if status == "skipped" else round((time.monotonic() - started) * 1000)
        step = Step(name, status, elapsed, detail, error)
        self.steps.append(step)
        _print(step, self.output)

    async def _create(self) -> tuple[Status, str]:
        config = self.config
        backend = registry.resolve(config.backend)
        with self.output.progress() as bar:
            if isinstance(backend, ReportingBackend):
                backend = backend.reporting(bar)
            sandbox = await backend.create(template=config.template, timeout=config.timeout)
        self.sandbox = sandbox
        return "ok", f"{config.backend} sandbox {sandbox.id[:12]}, tier {sandbox.isolation.value}"

    async def _run_code(self) -> tuple[Status, str]:
        result = await self._live.run_code(f"print({GREETING!r})", timeout=60)
        if result.stdout == f"{GREETING}\n" and result.ok:
            return "ok", f"it printed: {GREETING}"
        printed = result.stdout + result.stderr
        return "failed", f"expected {GREETING!r}, got exit code {result.exit_code}, {printed!r}"

    async def _stream(self) -> tuple[Status, str]:
        if Capability.STREAMING not in self._live.capabilities:
            return "skipped", "this backend does not stream"
        text, chunks = b"", 0
        async with self._live.stream(["seq", "1", "5"], timeout=60) as process:
            async for chunk in process:
                text, chunks = text + chunk.data, chunks + 1
            result = await process.wait()
        if text.split() == [b"1", b"2", b"3", b"4", b"5"] and result.ok:
            return "ok", f"five lines in {chunks} chunk{'' if chunks == 1 else 's'}"
        return "failed", f"expected the numbers 1 to 5, got exit code {result.exit_code}, {text!r}"

    async def _egress(self) -> tuple[Status, str]:
        attempt = await self._live.run_code(egress.ATTEMPT, timeout=30)
        interfaces = await self._live.run_code(egress.INTERFACES, timeout=30)
        verdict = egress.judge(attempt, interfaces)
        return "ok" if verdict.verdict == "denied" else "failed", f"{verdict.verdict}: {verdict.detail}"

    async def _teardown(self) -> tuple[Status, str]:
        with warnings.catch_warnings():
            warnings.simplefilter("error", OrphanedSandboxWarning)
            try:
                await self._live.__aexit__(None, None, None)
            except OrphanedSandboxWarning as warning:
                return "failed", str(warning)
        return "ok", "the sandbox is gone"

    @property
    def _live(self) -> AsyncSandbox:
        assert self.sandbox is not None
        return self.sandbox


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--backend",
        metavar="DSN",
        type=_target,
        default=DEFAULT_TARGET,
        help=f"what to run on (default: {DEFAULT_TARGET})",
    )


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Run the steps; 1 if one failed."""
    demo = Demo(arguments.backend, output)
    started = time.monotonic()
    anyio.run(demo.run)
    total = round((time.monotonic() - started) * 1000)
    output.payload(
        {
            "ok": not demo.failed,
            "backend": demo.config.backend,
            "template": demo.config.template,
            "sandbox_id": None if demo.sandbox is None else demo.sandbox.id,
            "isolation": None if demo.sandbox is None else demo.sandbox.isolation.value,
            "total_ms": total,
            "steps": [step.as_dict() for step in demo.steps],
        }
    )
    output.line()
    output.line(f"{'It does not work yet' if demo.failed else 'It works'} ({total / 1000:.1f} s).")
    return 1 if demo.failed else 0


def _target(text: str) -> BackendConfig:
    try:
        return parse(text)
    except SandboxError as error:
        raise argparse.ArgumentTypeError(f"{error.message} {error.hint}") from error


def _print(step: Step, output: Output) -> None:
    status = {"ok": "ok", "failed": "FAIL", "skipped": "skip"}[step.status]
    elapsed = "" if step.ms is None else f"{step.ms} ms"
    output.status(status, f"{step.name:<{_WIDTH}}  {elapsed:>8}", step.detail, name_width=_WIDTH + 10)
    if step.error is not None:
        output.line(f"fix: {step.error.hint}", indent=8, hang=2)
        output.line(f"docs: {step.error.url}", indent=8, hang=2)

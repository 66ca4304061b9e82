"""One canary through everything: no operation, ending, sink or surface shows a secret in any encoding.

The adapter of these tests repeats what it was told in errors, causes, notes and logs. Every surface that
somebody may read is collected as text and searched for every encoding of every secret. That a surface
would show the canary if nothing were redacted is proven, too: see the last test.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sandboxio import ConfigurationError, NetworkPolicy, OutputChunk, Resources, SandboxGone
from sandboxio._record import OperationRecord
from sandboxio._redact import Redactor
from sandboxio.adapter import BaseSandbox
from sandboxio.audit import AuditConfig, AuditEvent, FileSink, LoggingSink, NoopSink, QueueSink
from sandboxio.testing import RecordingSink

from .encoded import found_in
from .operations import OPERATIONS, Operation
from .parrot import ENDINGS, PROVIDER_KEY, TOKEN_OF_SANDBOX, Far, ParrotBackend
from .test_exceptions import everything_shown

SECRET = 'it\'s a "canary" /?&=+%7 \\ é'
VARIABLE = "v-4b1d7f0c95e2a683"
SECRETS = [SECRET, VARIABLE, PROVIDER_KEY, TOKEN_OF_SANDBOX]
ENDS = ["yes", *ENDINGS, "hangs", "cancelled"]


STUCK_TOO = ("run", "stream", "download")
"""Operations that are tried with a sink that never answers, too: they close their record in three ways."""


class Refusing:
    """A sink that shows what it was given."""

    quick = True

    async def emit(self, event: AuditEvent) -> None:
        raise RuntimeError(f"cannot store {event} {event.as_line()}")


class Stuck:
    """A sink that never answers."""

    quick = False

    async def emit(self, event: AuditEvent) -> None:
        await anyio.sleep_forever()


@dataclass
class Surfaces:
    """Everything that somebody may read, by name."""

    folder: Path
    log: pytest.LogCaptureFixture
    spans: InMemorySpanExporter
    warned: list[warnings.WarningMessage]
    recorded: RecordingSink = field(default_factory=RecordingSink)
    behind_queue: RecordingSink = field(default_factory=RecordingSink)
    raised: list[BaseException] = field(default_factory=list)
    objects: list[object] = field(default_factory=list)

    def texts(self) -> dict[str, str]:
        formatter = logging.Formatter("%(message)s")
        return {
            "log records": "\n".join(formatter.format(record) for record in self.log.records),
            "what log records carry": "\n".join(repr(vars(record)) for record in self.log.records),
            "spans": "\n".join(span.to_json() for span in self.spans.get_finished_spans()),
            "spans as Python shows them": "\n".join(
                repr(span.attributes) for span in self.spans.get_finished_spans()
            ),
            "warnings": "\n".join(str(each.message) for each in self.warned),
            "exceptions": "\n".join(map(everything_shown, self.raised)),
            "events": "\n".join(map(repr, self.recorded.events)),
            "events as lines": "\n".join(event.as_line() for event in self.recorded.events),
            "events behind a queue": "\n".join(map(repr, self.behind_queue.events)),
            "the audit file": self.file.read_text() if self.file.exists() else "",
            "reprs": "\n".join(map(repr, self.objects)),
        }

    @property
    def file(self) -> Path:
        return self.folder / "audit.jsonl"

    def config(self, *more: object, on_sink_failure: str = "warn") -> AuditConfig:
        queue = QueueSink(self.behind_queue)
        self.objects.append(queue)
        sinks = (
            NoopSink(),
            LoggingSink(level=logging.DEBUG),
            FileSink(self.file),
            self.recorded,
            queue,
            *more,
        )
        return AuditConfig(sinks=sinks, on_sink_failure=on_sink_failure, capture_code=True)  # type: ignore[arg-type]

    def assert_silent(self, secrets: Sequence[str] = SECRETS) -> None:
        shown = {
            f"{name}: {secret!r} {encodings}"
            for name, text in self.texts().items()
            for secret in secrets
            if (encodings := found_in(text, secret))
        }
        if shown:
            pytest.fail("\n".join(sorted(shown)), pytrace=False)


@pytest.fixture
def surfaces(
    tmp_path: Path, spans: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> Iterator[Surfaces]:
    caplog.set_level(logging.DEBUG)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        yield Surfaces(tmp_path, caplog, spans, warned)


@asynccontextmanager
async def draining(config: AuditConfig) -> AsyncGenerator[None]:
    queues = [sink for sink in config.sinks if isinstance(sink, QueueSink)]
    async with anyio.create_task_group() as tasks:
        for queue in queues:
            tasks.start_soon(queue.drain)
        yield
        tasks.cancel_scope.cancel()


async def sandbox_of(backend: ParrotBackend) -> BaseSandbox:
    return await backend.create(
        template="image:1",
        secrets={"CANARY": SECRET},
        env={"SERVICE_TOKEN": VARIABLE, "PLAIN": "ordinary"},
        resources=Resources(cpu=1, memory_mb=64),
        network=NetworkPolicy(egress="deny"),
        metadata={"tenant_id": f"acme {SECRET}", "session_id": "s-1", "note": SECRET},
        timeout=30,
    )


async def attempt(surfaces: Surfaces, call: Callable[[], object], *, end: str, far: Far) -> None:
    """Make the call and let it end as said; what it raises is a surface."""
    far.says = "hangs" if end == "cancelled" else end
    far.reached = anyio.Event()
    try:
        if end == "cancelled":
            async with anyio.create_task_group() as tasks:

                async def cancel() -> None:
                    await far.reached.wait()
                    tasks.cancel_scope.cancel()

                tasks.start_soon(cancel)
                try:
                    await call()  # type: ignore[misc]
                except BaseException as error:
                    surfaces.raised.append(error)
                    raise
        else:
            await call()  # type: ignore[misc]
    except Exception as error:  # noqa: BLE001 - whatever it raises is a surface
        surfaces.raised.append(error)
    finally:
        far.says = "yes"


@pytest.mark.virtual_time
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(("event", "operation"), OPERATIONS.values(), ids=OPERATIONS)
async def test_an_operation(
    surfaces: Surfaces, event: str, operation: Operation, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandboxio.audit.append_line_in_thread", append_without_a_thread)
    far, config = Far(), surfaces.config()
    backend = ParrotBackend(far, audit=config)
    async with draining(config):
        sandbox = await sandbox_of(backend)
        surfaces.objects += [backend, sandbox, sandbox.files, sandbox.redactor, sandbox.subject()]
        surfaces.objects.append(OperationRecord("exec", sandbox.subject(), argv=(SECRET,), code=SECRET))
        await attempt(surfaces, lambda: operation(sandbox, SECRET, surfaces.folder), end=end, far=far)
        await sandbox.kill()

    assert bool(surfaces.raised) == (end != "yes")
    await attempt(surfaces, lambda: sandbox.run(["again"]), end="yes", far=far)
    assert isinstance(surfaces.raised[-1], SandboxGone), "which tells why"
    expected = ["create", event, "kill"][: 2 if end == "gone" else 3]  # what is gone is not killed
    assert [each.event for each in surfaces.recorded.events] == expected
    assert [each.event for each in surfaces.behind_queue.events] == expected
    assert len(surfaces.file.read_text().splitlines()) == len(expected)
    assert [span.name.split()[1] for span in surfaces.spans.get_finished_spans()] == expected
    surfaces.assert_silent()


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("operation", "end"),
    [
        (operation, end)
        for operation in ("create", "connect", "kill", "leaving the context")
        for end in ENDS
        if (operation, end) != ("connect", "hangs")  # only its adapter bounds it
    ],
)
async def test_the_life_of_a_sandbox(
    surfaces: Surfaces, operation: str, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandboxio.audit.append_line_in_thread", append_without_a_thread)
    far, config = Far(), surfaces.config()
    backend = ParrotBackend(far, audit=config)
    if operation == "create":
        await attempt(surfaces, lambda: sandbox_of(backend), end=end, far=far)
    elif operation == "connect":
        await attempt(surfaces, lambda: backend.connect("p-7"), end=end, far=far)
    else:
        sandbox = await sandbox_of(backend)
        surfaces.objects += [backend, sandbox]

        async def leave() -> None:
            async with sandbox:
                far.says, says = "yes", far.says
                await sandbox.run(["x", SECRET])
                far.says = says
                raise ValueError("the body's own")

        await attempt(surfaces, sandbox.kill if operation == "kill" else leave, end=end, far=far)
        surfaces.objects.append(sandbox)
    assert surfaces.recorded.events[-1].event == {"leaving the context": "kill"}.get(operation, operation)
    surfaces.assert_silent()


@pytest.mark.virtual_time
@pytest.mark.parametrize("on_sink_failure", ["warn", "fail"])
@pytest.mark.parametrize("end", ["yes", "an error with a cause", "cancelled"])
@pytest.mark.parametrize(
    ("event", "operation", "sink"),
    [
        (*OPERATIONS[name], sink)
        for name in OPERATIONS
        for sink in (Refusing(), Stuck())
        if name in STUCK_TOO or sink.quick
    ],
    ids=lambda value: type(value).__name__ if hasattr(value, "emit") else None,
)
async def test_a_sink_that_fails(
    surfaces: Surfaces,
    event: str,
    operation: Operation,
    end: str,
    sink: object,
    on_sink_failure: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sandboxio.audit.append_line_in_thread", append_without_a_thread)
    far = Far()
    sandbox = await sandbox_of(ParrotBackend(far, audit=surfaces.config()))
    failing = ParrotBackend(far, audit=surfaces.config(sink, on_sink_failure=on_sink_failure))
    sandbox._recorder = failing._recorder
    await attempt(surfaces, lambda: operation(sandbox, SECRET, surfaces.folder), end=end, far=far)
    assert [each.event for each in surfaces.recorded.events] == ["create", event]
    assert bool(surfaces.raised) == (on_sink_failure == "fail" or end != "yes")
    assert bool(surfaces.warned) == (on_sink_failure == "warn" or end != "yes")
    surfaces.assert_silent()


async def append_without_a_thread(path: str, line: bytes) -> None:
    """A thread's time is not this loop's, whose clock jumps; threads are test_sinks' matter."""
    from sandboxio._append import append_line

    await anyio.lowlevel.checkpoint()
    append_line(path, line)


# Before an operation begins

REFUSED: dict[str, Callable[[BaseSandbox, Path], object]] = {
    "a path with NUL": lambda sandbox, folder: sandbox.files.read(f"{SECRET}\0"),
    "a path that is none": lambda sandbox, folder: sandbox.files.ls({SECRET}),  # type: ignore[arg-type]
    "text that is no UTF-8": lambda sandbox, folder: sandbox.files.write(SECRET, f"{SECRET}\ud800"),
    "no local file": lambda sandbox, folder: sandbox.files.upload(folder / SECRET, "/x"),
    "no local folder": lambda sandbox, folder: sandbox.files.download("/x", folder / SECRET / "x"),
    "code that is no UTF-8": lambda sandbox, folder: sandbox.run_code(f"{SECRET}\ud800"),
    "a timeout that is none": lambda sandbox, folder: sandbox.run(["x"], timeout=SECRET),  # type: ignore[arg-type]
    "a command that is none": lambda sandbox, folder: sandbox.run({"x": SECRET}),  # type: ignore[arg-type]
    "a value that is none": lambda sandbox, folder: sandbox.run(["x"], env={"TOKEN": f"{SECRET}\0"}),
    "a language that is none": lambda sandbox, folder: sandbox.run_code("x", language=[SECRET]),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED)
async def test_a_refused_argument(surfaces: Surfaces, call: Callable[[BaseSandbox, Path], object]) -> None:
    sandbox = await sandbox_of(ParrotBackend())
    await attempt(surfaces, lambda: call(sandbox, surfaces.folder), end="yes", far=Far())
    assert surfaces.raised
    surfaces.assert_silent()


@pytest.mark.parametrize(
    "wrong",
    [
        {"template": ["x", SECRET]},
        {"timeout": SECRET},
        {"metadata": {"k": f"{SECRET}\0"}},
        {"secrets": {"CANARY": SECRET, "X": f"{SECRET}\0"}},
        {"secrets": {"CANARY": f"{SECRET}\ud800"}},
        {"env": {"CANARY": SECRET}},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
async def test_a_refused_create(surfaces: Surfaces, wrong: dict[str, object]) -> None:
    arguments = {"secrets": {"CANARY": SECRET}, **wrong}
    await attempt(surfaces, lambda: ParrotBackend().create(**arguments), end="yes", far=Far())  # type: ignore[arg-type]
    assert [type(error) for error in surfaces.raised] == [ConfigurationError]
    surfaces.assert_silent()


# What the program prints


async def test_output_is_the_callers_data_and_the_exception_about_it_is_not(surfaces: Surfaces) -> None:
    far = Far(output=[OutputChunk("stderr", f"first\n{'x' * 190} {SECRET}\n".encode())])
    far.exit = type(far.exit)(1)
    sandbox = await sandbox_of(ParrotBackend(far, audit=surfaces.config()))
    result = await sandbox.run(["x"])
    assert SECRET in result.stderr
    with pytest.raises(Exception, match=r"x{20} \*{3}") as caught:
        result.raise_for_status()
    surfaces.raised.append(caught.value)
    caught.value.result = None  # type: ignore[attr-defined]
    surfaces.assert_silent()


# These tests can fail


@pytest.mark.virtual_time
async def test_without_redaction_every_surface_shows_the_canary(
    surfaces: Surfaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandboxio.audit.append_line_in_thread", append_without_a_thread)
    monkeypatch.setattr(Redactor, "patterns", ())
    far, config = Far(), surfaces.config(Refusing())
    backend = ParrotBackend(far, audit=config)
    async with draining(config):
        sandbox = await sandbox_of(backend)
        _, operation = OPERATIONS["run_code"]
        await attempt(
            surfaces,
            lambda: operation(sandbox, SECRET, surfaces.folder),
            end="an error with a cause",
            far=far,
        )
        far.says = "an error with a cause"
        with pytest.raises(ValueError, match="mine"):
            async with sandbox:
                raise ValueError("mine")
    silent = [name for name, text in surfaces.texts().items() if not found_in(text, SECRET)]
    assert silent == ["reprs"], "reprs leave secrets out by themselves"

"""Operations as spans, seen by the real SDK."""

from __future__ import annotations

import ast
import logging
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import pytest
from opentelemetry import context, trace
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from sandboxio import (
    ExecutionTimeout,
    NetworkPolicy,
    OutputChunk,
    Resources,
    SandboxError,
    SandboxWarning,
    otel,
)
from sandboxio.adapter import Exit
from sandboxio.audit import AuditConfig
from sandboxio.testing import RecordingSink
from tests.core.scripted import ScriptedBackend, World

from .operations import OPERATIONS
from .parrot import Far, ParrotBackend

SRC = Path(otel.__file__).parent


def named(spans: InMemorySpanExporter, event: str) -> ReadableSpan:
    (span,) = [each for each in spans.get_finished_spans() if each.name == f"execute_tool {event}"]
    return span


def parent_id(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def id_of(span: Any) -> int:
    return int(span.get_span_context().span_id)


async def test_what_a_span_says(spans: InMemorySpanExporter) -> None:
    far = Far(output=[OutputChunk("stdout", b"12345")], exit=Exit(3, network_denials=2))
    made = ParrotBackend(far, audit=AuditConfig(capture_code=True))
    async with await made.create(metadata={"tenant_id": "acme", "session_id": "s-1"}) as sandbox:
        await sandbox.run(["prog", "arg"])
        await sandbox.run_code("print(1)")
    span = named(spans, "exec")
    assert span.kind is SpanKind.INTERNAL
    assert span.attributes is not None
    measured = dict(span.attributes)
    assert isinstance(measured.pop("sandboxio.duration_ms"), int)
    assert len(str(measured.pop("sandboxio.code_sha256"))) == 64
    assert measured == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "exec",
        "sandboxio.backend": "parrot",
        "sandboxio.isolation": "container",
        "sandboxio.sandbox.id": sandbox.id,
        "sandboxio.tenant_id": "acme",
        "sandboxio.session_id": "s-1",
        "sandboxio.exit_code": 3,
        "sandboxio.bytes_in": 0,
        "sandboxio.bytes_out": 5,
        "sandboxio.network_denials": 2,
        "sandboxio.argv": ("prog", "arg"),
    }
    assert span.status.status_code is StatusCode.UNSET, "a non-zero exit code is a result"
    assert span.instrumentation_scope is not None
    assert span.instrumentation_scope.name == "sandboxio"
    assert span.instrumentation_scope.schema_url == "https://opentelemetry.io/schemas/1.37.0"
    assert otel.SEMCONV_VERSION == "1.37.0"
    assert named(spans, "run_code").attributes["sandboxio.code"] == "print(1)"  # type: ignore[index]
    assert named(spans, "kill").attributes["sandboxio.sandbox.id"] == sandbox.id  # type: ignore[index]


async def test_a_created_sandbox_has_its_policy_on_the_span(spans: InMemorySpanExporter) -> None:
    made = await ParrotBackend().create(
        template="image:1",
        network=NetworkPolicy(allow=("pypi.org",)),
        resources=Resources(cpu=0.5),
        timeout=60,
    )
    await made.kill()
    attributes = named(spans, "create").attributes
    assert attributes is not None
    assert {k: v for k, v in attributes.items() if ".policy." in k} == {
        "sandboxio.policy.template": "image:1",
        "sandboxio.policy.egress": "deny",
        "sandboxio.policy.allow": ("pypi.org",),
        "sandboxio.policy.ingress_ports": (),
        "sandboxio.policy.cpu": 0.5,
        "sandboxio.policy.timeout_s": 60,
    }


# Every operation, every end


def wrong_values(attributes: Any) -> list[str]:
    wrong: list[str] = []
    for name, value in attributes.items():
        values = value if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
        kinds = {type(each) for each in values}
        if len(kinds) > 1 or not kinds <= {str, bool, int, float}:
            wrong.append(f"{name}={value!r}")
    return wrong


@pytest.mark.virtual_time
@pytest.mark.parametrize("end", ["yes", "hangs", "cancelled", "an error with a cause", "a bug"])
@pytest.mark.parametrize(("event", "operation"), OPERATIONS.values(), ids=OPERATIONS)
async def test_every_operation_has_one_valid_span(
    event: str,
    operation: Any,
    end: str,
    spans: InMemorySpanExporter,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    far = Far()
    sandbox = await ParrotBackend(far).create(timeout=5, metadata={})
    far.says = end
    raised: BaseException | None = None
    with anyio.CancelScope() as scope:
        if end == "cancelled":
            scope.cancel()
        try:
            await operation(sandbox, "value", tmp_path)
        except Exception as error:  # noqa: BLE001 - what it raises is what the span has to tell
            raised = error
    far.says = "yes"
    await sandbox.kill()
    span = named(spans, event)
    assert span.end_time is not None
    assert span.attributes is not None
    assert not wrong_values(span.attributes)
    assert [r for r in caplog.records if r.name.startswith("opentelemetry")] == []
    assert span.attributes.get("error.type") == (None if raised is None else type(raised).__name__)
    assert span.attributes.get("sandboxio.cancelled") == (True if end == "cancelled" else None)
    assert span.status.status_code is (StatusCode.UNSET if raised is None else StatusCode.ERROR)
    assert not span.events, "no stack traces: they would tell what nobody redacted"
    if isinstance(raised, SandboxError):
        assert span.status.description == raised.message
    elif raised is not None:
        assert span.status.description == type(raised).__name__


@pytest.mark.virtual_time
async def test_a_timeout_is_an_error_and_the_deadline_of_the_caller_is_none(
    spans: InMemorySpanExporter,
) -> None:
    sandbox = await ScriptedBackend(World(hangs=True)).create()
    with pytest.raises(ExecutionTimeout):
        await sandbox.run(["x"], timeout=1)
    with anyio.move_on_after(1):
        await sandbox.run_code("x")
    await sandbox.kill()
    assert named(spans, "exec").attributes["error.type"] == "ExecutionTimeout"  # type: ignore[index]
    assert "error.type" not in named(spans, "run_code").attributes  # type: ignore[operator]


# Sizes and characters


async def test_argv_and_code_are_limited_and_valid_text(spans: InMemorySpanExporter) -> None:
    sandbox = await ParrotBackend(audit=AuditConfig(capture_code=True)).create()
    await sandbox.run(["x" * 5000, "a\udcff", *(str(n) for n in range(100))])
    await sandbox.run_code("y" * 100_000)
    await sandbox.kill()
    argv = named(spans, "exec").attributes["sandboxio.argv"]  # type: ignore[index]
    assert isinstance(argv, tuple)
    assert argv[0] == "x" * 1023 + "…"
    assert str(argv[1]).startswith("a�")
    assert (len(argv), argv[-1]) == (65, "[38 more]")
    code = named(spans, "run_code").attributes["sandboxio.code"]  # type: ignore[index]
    assert len(str(code)) == 32_768


async def test_a_cut_never_shows_half_a_secret(spans: InMemorySpanExporter) -> None:
    sandbox = await ParrotBackend().create(secrets={"T": "hunter22-hunter22"})
    await sandbox.run(["x" * 1015 + "hunter22-hunter22"])
    await sandbox.kill()
    assert "hunter" not in str(named(spans, "exec").attributes)


# Parents and children


class Instrumented(Far):
    """A far side whose client makes spans, as an instrumented HTTP client does."""

    async def asked(self, what: str) -> None:
        with trace.get_tracer("http").start_as_current_span("POST"):
            await super().asked(what)


async def test_spans_nest_in_the_callers_and_the_clients_nest_in_them(
    spans: InMemorySpanExporter, tmp_path: Path
) -> None:
    tracer = trace.get_tracer("app")
    with tracer.start_as_current_span("invoke_agent") as agent:
        sandbox = await ParrotBackend(Instrumented()).create()
        for event, operation in OPERATIONS.values():
            await operation(sandbox, "value", tmp_path)
            assert trace.get_current_span() is agent, event
        await sandbox.kill()
    finished = spans.get_finished_spans()
    mine = [span for span in finished if span.name.startswith("execute_tool")]
    assert len(mine) == len(OPERATIONS) + 2
    assert {parent_id(span) for span in mine} == {id_of(agent)}
    clients = [span for span in finished if span.name == "POST"]
    assert sorted(map(parent_id, clients), key=str) == sorted(map(id_of, mine), key=str)


async def test_the_body_of_a_stream_keeps_its_own_current_span(spans: InMemorySpanExporter) -> None:
    tracer = trace.get_tracer("app")
    sandbox = await ParrotBackend(Far(output=[OutputChunk("stdout", b"x")] * 3)).create()
    with tracer.start_as_current_span("agent") as agent:
        async with sandbox.stream(["x"]) as process:
            assert trace.get_current_span() is agent
            async for _ in process:
                assert trace.get_current_span() is agent
        assert trace.get_current_span() is agent
    await sandbox.kill()
    assert parent_id(named(spans, "stream")) == id_of(agent)


async def test_one_task_waits_for_a_process_and_another_kills_it(
    spans: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
    sandbox = await ScriptedBackend(World(hangs=True)).create()
    before = context.get_current()
    async with sandbox.stream(["x"]) as process:
        for _ in range(2):
            async with anyio.create_task_group() as tasks:

                async def wait() -> None:
                    with anyio.move_on_after(0.05):
                        await process.wait()
                    assert context.get_current() == before

                tasks.start_soon(wait)
                await anyio.wait_all_tasks_blocked()
                await process.kill()
                assert context.get_current() == before
    await sandbox.kill()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert named(spans, "stream").end_time


async def test_tasks_side_by_side_have_their_own_parents(spans: InMemorySpanExporter) -> None:
    tracer = trace.get_tracer("app")
    sandbox = await ParrotBackend().create()
    parents: dict[str, int] = {}

    async def agent(name: str) -> None:
        with tracer.start_as_current_span(name) as span:
            parents[name] = id_of(span)
            for _ in range(3):
                await sandbox.run([name])
                await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        for number in range(8):
            tasks.start_soon(agent, f"agent-{number}")
    await sandbox.kill()
    runs = [span for span in spans.get_finished_spans() if span.name == "execute_tool exec"]
    assert len(runs) == 24
    for span in runs:
        assert span.attributes is not None
        assert parent_id(span) == parents[span.attributes["sandboxio.argv"][0]]  # type: ignore[index]


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_the_parent_is_right_across_a_portals_thread(spans: InMemorySpanExporter, loop: str) -> None:
    with (
        anyio.from_thread.start_blocking_portal(loop) as portal,
        trace.get_tracer("app").start_as_current_span("blocking caller") as caller,
    ):
        sandbox = portal.call(ParrotBackend().create)
        portal.call(sandbox.run, ["x"])
        portal.call(sandbox.kill)
    assert {parent_id(span) for span in spans.get_finished_spans()[:3]} == {id_of(caller)}


async def test_spans_end_when_the_operation_does_whatever_the_sinks_do(spans: InMemorySpanExporter) -> None:
    class Refusing:
        async def emit(self, event: object) -> None:
            assert spans.get_finished_spans(), "the span has ended before"
            raise OSError

    sandbox = await ParrotBackend().create()
    sandbox._recorder = ParrotBackend(
        audit=AuditConfig(sinks=(Refusing(),), on_sink_failure="fail")
    )._recorder
    with pytest.raises(SandboxError):
        await sandbox.run(["x"])
    assert named(spans, "exec").end_time


# Who decides


async def test_a_sampler_that_drops_costs_no_event(
    monkeypatch: pytest.MonkeyPatch, spans: InMemorySpanExporter
) -> None:
    dropping = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", dropping)
    monkeypatch.setattr("sandboxio._record.AuditEvent", lambda **_: pytest.fail("rendered"))
    sandbox = await ParrotBackend().create()
    await sandbox.run(["x"])
    await sandbox.kill()
    assert not spans.get_finished_spans()


async def test_the_applications_limits_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = TracerProvider(span_limits=SpanLimits(max_attribute_length=5), shutdown_on_exit=False)
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    sandbox = await ParrotBackend().create()
    await sandbox.run(["long argument"])
    await sandbox.kill()
    assert named(exporter, "exec").attributes["sandboxio.argv"] == ("long ",)  # type: ignore[index]


class Faulty(SpanProcessor):
    """A processor with a bug."""

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        if span.name.endswith("create"):
            raise RuntimeError("bug")

    def on_end(self, span: Any) -> None:
        raise RuntimeError("bug")


async def test_a_faulty_span_processor_fails_no_operation(provider: TracerProvider) -> None:
    provider.add_span_processor(Faulty())
    world = World()
    with pytest.warns(SandboxWarning, match="raised RuntimeError at the (start|end) of a span"):  # noqa: PT031 - one scene
        sandbox = await ScriptedBackend(world).create()
        assert (await sandbox.run(["x"])).ok
        await sandbox.kill()
    assert not world.sandboxes
    assert trace.get_current_span() is trace.INVALID_SPAN


class Refusing(trace.NonRecordingSpan):
    """A span of another implementation of the API, with a bug."""

    def is_recording(self) -> bool:
        return True

    def set_attributes(self, attributes: Any) -> None:
        raise RuntimeError("bug")


async def test_a_span_that_refuses_attributes_fails_no_operation(
    provider: TracerProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = Refusing(trace.INVALID_SPAN_CONTEXT)
    monkeypatch.setattr("opentelemetry.sdk.trace.Tracer.start_span", lambda *_, **__: refusing)
    sink = RecordingSink()
    with pytest.warns(SandboxWarning, match="raised RuntimeError at the end of a span"):  # noqa: PT031 - one scene
        sandbox = await ScriptedBackend(World(), audit=AuditConfig(sinks=(sink,))).create()
        assert (await sandbox.run(["x"])).ok
        await sandbox.kill()
    assert [event.event for event in sink.events] == ["create", "exec", "kill"]


class Unsure(trace.NonRecordingSpan):
    """One that does not even tell if it records."""

    def is_recording(self) -> bool:
        raise RuntimeError("bug")


def not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The API looks for what this variable names, and raises ``StopIteration`` if it is not installed."""
    monkeypatch.setenv("OTEL_PYTHON_TRACER_PROVIDER", "not_installed")
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)


def no_tracer(monkeypatch: pytest.MonkeyPatch) -> None:
    def get_tracer(*args: Any, **options: Any) -> Any:
        raise RuntimeError("bug")

    provider = TracerProvider()
    monkeypatch.setattr(provider, "get_tracer", get_tracer)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)


def unsure(monkeypatch: pytest.MonkeyPatch) -> None:
    span = Unsure(trace.INVALID_SPAN_CONTEXT)
    monkeypatch.setattr("opentelemetry.sdk.trace.Tracer.start_span", lambda *_, **__: span)


@pytest.mark.parametrize("broken", [not_there, no_tracer, unsure])
async def test_a_provider_without_a_tracer_and_a_span_without_state_fail_no_operation(
    provider: TracerProvider, monkeypatch: pytest.MonkeyPatch, broken: Callable[[pytest.MonkeyPatch], None]
) -> None:
    broken(monkeypatch)
    sink = RecordingSink()
    with pytest.warns(SandboxWarning, match="raised (RuntimeError|StopIteration) at the"):  # noqa: PT031 - one scene
        sandbox = await ScriptedBackend(World(), audit=AuditConfig(sinks=(sink,))).create()
        assert (await sandbox.run(["x"])).ok
        await sandbox.kill()
    assert [event.event for event in sink.events] == ["create", "exec", "kill"]


async def test_contexts_are_left_as_they_were(
    spans: InMemorySpanExporter, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    before = context.get_current()
    sandbox = await ParrotBackend().create()
    for _, operation in OPERATIONS.values():
        with anyio.CancelScope() as scope:
            scope.cancel()
            await operation(sandbox, "value", tmp_path)
    process = sandbox.stream(["x"])
    await process.__aenter__()  # entered in one task and left in another, as an exit stack may do
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(process.__aexit__, None, None, None)
    await sandbox.kill()
    assert context.get_current() == before
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING] == []


# Imports


def run_python(source: str) -> str:
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_nothing_is_imported_for_an_application_that_does_not_trace() -> None:
    source = """
import sys, anyio
import sandboxio, sandboxio.otel, sandboxio.audit
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
from tests.audit.parrot import ParrotBackend
async def main():
    async with await ParrotBackend().create() as sandbox:
        await sandbox.run(["x"])
anyio.run(main)
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""
    assert run_python(source) == "[]"


def test_without_the_package_everything_works() -> None:
    source = """
import sys, anyio
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "opentelemetry":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
from tests.audit.parrot import ParrotBackend
async def main():
    async with await ParrotBackend().create() as sandbox:
        print((await sandbox.run(["x"])).exit_code)
anyio.run(main)
"""
    assert run_python(source) == "0"


def test_without_a_provider_no_span_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    for nobody in (None, trace.NoOpTracerProvider()):
        monkeypatch.setattr(trace, "_TRACER_PROVIDER", nobody)
        assert otel.start_span("exec", "docker") is None


def test_a_provider_set_after_the_first_operation_is_used() -> None:
    source = """
import anyio
from opentelemetry import trace
from tests.audit.parrot import ParrotBackend
async def main():
    async with await ParrotBackend().create() as sandbox:
        await sandbox.run(["before"])
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
        provider, exporter = TracerProvider(), InMemorySpanExporter()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        assert isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider), "nobody started one"
        trace.set_tracer_provider(provider)
        await sandbox.run(["after"])
        print([span.attributes["sandboxio.argv"] for span in exporter.get_finished_spans()])
anyio.run(main)
"""
    assert run_python(source) == "[('after',)]"


# One file knows the names


def test_no_other_file_writes_an_attribute_name() -> None:
    names = ("gen_ai.", "sandboxio.policy.", "sandboxio.sandbox.", "sandboxio.argv", "error.type")
    breaches = [
        f"{path.name}:{node.lineno}: {node.value!r}"
        for path in SRC.rglob("*.py")
        if path != Path(otel.__file__)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith(names)
    ]
    assert not breaches

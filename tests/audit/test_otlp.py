"""End to end: operations, the SDK's batch processor, the OTLP exporter, and a collector's receiving end."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from sandboxio import ConnectError
from sandboxio.audit import AuditConfig

from .encoded import found_in
from .parrot import PROVIDER_KEY, Far, ParrotBackend

SECRET = 'it\'s a "canary" /?&=+%7 \\ é'


class Collector(ThreadingHTTPServer):
    """Takes OTLP over HTTP as protobuf (OTLP specification 1.x, section "OTLP/HTTP")."""

    daemon_threads = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.bodies: list[bytes] = []
        self.paths: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1/traces"

    @property
    def requests(self) -> list[ExportTraceServiceRequest]:
        return [ExportTraceServiceRequest.FromString(body) for body in self.bodies]

    @property
    def spans(self) -> list[Span]:
        return [
            span
            for request in self.requests
            for of_resource in request.resource_spans
            for of_scope in of_resource.scope_spans
            for span in of_scope.spans
        ]


class Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.paths.append(self.path)
        self.server.bodies.append(body)
        answer = ExportTraceServiceResponse().SerializeToString()
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(answer)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    server = Collector()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def exporting(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> TracerProvider:
    """A provider as an application sets one up; the test shuts it down, which sends what waits."""
    provider = TracerProvider(resource=Resource({"service.name": "agent"}), shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint=collector.url, compression=Compression.Gzip, timeout=10)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    return provider


def value_of(value: AnyValue) -> object:
    if value.WhichOneof("value") == "array_value":
        return [value_of(each) for each in value.array_value.values]
    return getattr(value, str(value.WhichOneof("value")))


async def test_spans_arrive_whole_in_their_trace_and_without_secrets(
    collector: Collector, exporting: TracerProvider
) -> None:
    far = Far()
    with trace.get_tracer("agent").start_as_current_span("invoke_agent"):
        made = ParrotBackend(far, audit=AuditConfig(capture_code=True))
        async with await made.create(secrets={"CANARY": SECRET}, metadata={"tenant_id": "acme"}) as sandbox:
            await sandbox.run(["curl", f"http://x/{SECRET}", "lone \udcff surrogate"])
            await sandbox.run_code(f"token = {SECRET!r}")
            far.says = "an error with a cause"
            with pytest.raises(ConnectError):
                await sandbox.files.read(f"/{SECRET}")
            far.says = "yes"
    exporting.shutdown()

    assert set(collector.paths) == {"/v1/traces"}
    spans = {span.name: span for span in collector.spans}
    assert sorted(spans) == sorted(
        [
            "invoke_agent",
            *(f"execute_tool {event}" for event in ("create", "exec", "run_code", "file_read", "kill")),
        ]
    )
    agent = spans.pop("invoke_agent")
    for span in spans.values():
        assert (span.parent_span_id, span.trace_id) == (agent.span_id, agent.trace_id)
        assert span.end_time_unix_nano >= span.start_time_unix_nano > 0
        assert span.kind == Span.SPAN_KIND_INTERNAL

    exec_span = {each.key: value_of(each.value) for each in spans["execute_tool exec"].attributes}
    assert exec_span["gen_ai.operation.name"] == "execute_tool"
    assert exec_span["gen_ai.tool.name"] == "exec"
    assert exec_span["sandboxio.tenant_id"] == "acme"
    assert exec_span["sandboxio.exit_code"] == 0
    assert exec_span["sandboxio.argv"][:2] == ["curl", "http://x/***"]  # type: ignore[index]
    failed = spans["execute_tool file_read"]
    assert failed.status.code == Status.STATUS_CODE_ERROR
    assert "refused: /***" in failed.status.message

    (scope,) = {
        (of_scope.scope.name, of_scope.schema_url)
        for request in collector.requests
        for of_resource in request.resource_spans
        for of_scope in of_resource.scope_spans
        if of_scope.scope.name != "agent"
    }
    assert scope == ("sandboxio", "https://opentelemetry.io/schemas/1.37.0")
    sent = b"".join(collector.bodies).decode("utf-8", "replace")
    assert not found_in(sent, SECRET)
    assert not found_in(sent, PROVIDER_KEY)
    assert "token = " in sent


async def test_a_collector_that_is_down_fails_no_operation(
    collector: Collector, exporting: TracerProvider, caplog: pytest.LogCaptureFixture
) -> None:
    exporter = OTLPSpanExporter(endpoint="http://127.0.0.1:9/v1/traces", timeout=0.2)
    exporting.add_span_processor(BatchSpanProcessor(exporter))
    async with await ParrotBackend().create(secrets={"CANARY": SECRET}) as sandbox:
        assert (await sandbox.run(["x", SECRET])).ok
    exporting.shutdown()
    assert len(collector.spans) == 3
    assert not found_in(caplog.text, SECRET)

"""Operations as OpenTelemetry spans: the only file that knows a span attribute's name.

The convention is the GenAI part of OpenTelemetry's semantic conventions, version 1.37.0, section
"Execute tool span" (docs/gen-ai/gen-ai-spans.md); it has no words for a sandbox, so the rest is
``sandboxio.*``. A newer version is a change of this file and a line in the changelog.

Only the API is used, and only once the application has imported it and set a tracer provider: until
then an operation costs one dictionary look-up. Nothing is exported, configured or started here.
"""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Final

from .audit import AuditEvent
from .errors import SandboxWarning

if TYPE_CHECKING:
    from contextvars import Token

    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer, TracerProvider
    from opentelemetry.util.types import AttributeValue

SEMCONV_VERSION: Final = "1.37.0"
SCHEMA_URL: Final = f"https://opentelemetry.io/schemas/{SEMCONV_VERSION}"
SCOPE: Final = "sandboxio"
"""Name of the instrumentation scope of every span."""

OPERATION: Final = "execute_tool"
CANCELLED: Final = "cancelled"
"""``AuditEvent.error`` of an operation that its caller cancelled: no error, so no ``error.type``."""

MAX_ARGUMENTS: Final = 64
MAX_ARGUMENT: Final = 1024
MAX_CODE: Final = 32_768
"""Characters, like the one above. Exporters send whole batches, and collectors refuse large ones."""

_tracer: tuple[TracerProvider, Tracer] | None = None
"""The tracer of the provider seen last; making one costs more than a span."""


class OperationSpan:
    """The span of one operation. Between ``attach`` and ``detach`` it is current; ``finish`` ends it.

    A pair belongs to one task; several tasks may be inside at once, and the operation may be entered as
    often as it needs: between its steps a stream's caller has its own current span.
    """

    def __init__(self, span: Span) -> None:
        self._span = span

    @property
    def recording(self) -> bool:
        """False if a sampler dropped it: then it only carries the parent on."""
        try:
            return self._span.is_recording()
        except Exception as error:  # noqa: BLE001 - spans are foreign code, which must fail no operation
            _warn("end", error)
            return False

    def attach(self) -> Token[Context]:
        """Make it the current span of this task; the token undoes that."""
        from opentelemetry import context, trace  # noqa: PLC0415 - imported by the application before

        return context.attach(trace.set_span_in_context(self._span))

    def detach(self, token: Token[Context]) -> None:
        """Make the span current that was so before ``attach``."""
        from opentelemetry import context  # noqa: PLC0415 - imported by the application before

        context.detach(token)

    def finish(self, event: AuditEvent | None, problem: str | None) -> None:
        """End the span with what is known; ``problem`` is the redacted text of a failure."""
        from opentelemetry.trace import Status, StatusCode  # noqa: PLC0415 - imported by the application

        try:
            if event is not None:
                self._span.set_attributes(_attributes(event))
                if event.error is not None and event.error != CANCELLED:
                    self._span.set_status(
                        Status(StatusCode.ERROR, _text(problem or event.error, MAX_ARGUMENT))
                    )
        except Exception as error:  # noqa: BLE001 - spans and their processors are foreign code, which must
            _warn("end", error)  # neither fail a kill() nor cost the sinks their event
        finally:
            self._end()

    def _end(self) -> None:
        try:
            self._span.end()
        except Exception as error:  # noqa: BLE001 - as above
            _warn("end", error)


def start_span(event: str, backend: str) -> OperationSpan | None:
    """A span below the current one; None if the application has set no tracer provider."""
    if "opentelemetry.trace" not in sys.modules:
        return None
    attributes: dict[str, AttributeValue] = {
        "gen_ai.operation.name": OPERATION,
        "gen_ai.tool.name": event,
        "sandboxio.backend": backend,
    }
    try:
        tracer = _current_tracer()
        if tracer is None:
            return None
        return OperationSpan(tracer.start_span(f"{OPERATION} {event}", attributes=attributes))
    except Exception as error:  # noqa: BLE001 - providers, samplers and span processors are foreign code, as above
        _warn("start", error)
        return None


def _current_tracer() -> Tracer | None:
    global _tracer  # noqa: PLW0603 - a cache of one
    from opentelemetry import trace  # noqa: PLC0415 - imported by the application before

    provider = trace.get_tracer_provider()
    if isinstance(provider, (trace.ProxyTracerProvider, trace.NoOpTracerProvider)):
        return None
    if _tracer is None or _tracer[0] is not provider:
        _tracer = provider, provider.get_tracer(SCOPE, schema_url=SCHEMA_URL)
    return _tracer[1]


def _attributes(event: AuditEvent) -> dict[str, AttributeValue]:
    values: dict[str, AttributeValue | None] = {
        "sandboxio.isolation": event.isolation.value,
        "sandboxio.sandbox.id": event.sandbox_id or None,
        "sandboxio.tenant_id": event.tenant_id,
        "sandboxio.session_id": event.session_id,
        "sandboxio.exit_code": event.exit_code,
        "sandboxio.duration_ms": event.duration_ms,
        "sandboxio.bytes_in": event.bytes_in,
        "sandboxio.bytes_out": event.bytes_out,
        "sandboxio.network_denials": event.network_denials,
        "sandboxio.code_sha256": event.code_sha256,
        "sandboxio.argv": None if event.argv is None else _argv(event.argv),
        "sandboxio.code": None if event.code is None else _text(event.code, MAX_CODE),
        "sandboxio.cancelled": True if event.error == CANCELLED else None,
        "error.type": None if event.error == CANCELLED else event.error,
        **_policy(event),
    }
    return {
        name: _text(value, MAX_CODE) if isinstance(value, str) else value
        for name, value in values.items()
        if value is not None
    }


def _policy(event: AuditEvent) -> dict[str, AttributeValue | None]:
    if (policy := event.policy) is None:
        return {}
    return {
        "sandboxio.policy.template": policy.template,
        "sandboxio.policy.egress": policy.network.egress,
        "sandboxio.policy.allow": _argv(policy.network.allow),
        "sandboxio.policy.ingress_ports": policy.network.ingress_ports,
        "sandboxio.policy.cpu": policy.resources.cpu,
        "sandboxio.policy.memory_mb": policy.resources.memory_mb,
        "sandboxio.policy.disk_mb": policy.resources.disk_mb,
        "sandboxio.policy.gpu": policy.resources.gpu,
        "sandboxio.policy.timeout_s": policy.timeout,
    }


def _argv(values: tuple[str, ...]) -> tuple[str, ...]:
    shown = tuple(_text(value, MAX_ARGUMENT) for value in values[:MAX_ARGUMENTS])
    left_out = len(values) - len(shown)
    return (*shown, f"[{left_out} more]") if left_out else shown


def _text(text: str, limit: int) -> str:
    """Valid UTF-8 of bounded length: one lone surrogate would make an exporter drop its whole batch."""
    cut = text if len(text) <= limit else f"{text[: limit - 1]}…"
    return cut.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def _warn(what: str, error: Exception) -> None:
    warnings.warn(
        f"The tracer provider raised {type(error).__name__} at the {what} of a span; the operation goes on.",
        SandboxWarning,
        stacklevel=4,
    )

"""Audit events and the sinks that receive them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Literal, Protocol

from .models import IsolationTier


@dataclass(frozen=True)
class AuditEvent:
    """One finished operation, redacted. ``duration_ms`` is milliseconds, ``bytes_*`` are bytes."""

    ts: datetime
    event: str
    sandbox_id: str
    backend: str
    isolation: IsolationTier
    tenant_id: str | None
    session_id: str | None
    code_sha256: str
    argv: tuple[str, ...] | None
    exit_code: int | None
    duration_ms: int
    bytes_in: int
    bytes_out: int
    network_denials: int
    code: str | None = None

    def as_dict(self) -> dict[str, object]:
        """The event as JSON-ready values; what every line-writing sink renders."""
        return {**asdict(self), "ts": self.ts.isoformat(), "isolation": self.isolation.value}


class AuditSink(Protocol):
    """Where events go. ``emit`` is awaited inline, so it returns promptly; buffering is the sink's job."""

    async def emit(self, event: AuditEvent) -> None: ...


class NoopSink:
    """Records nothing; the default."""

    async def emit(self, event: AuditEvent) -> None:
        pass


@dataclass(frozen=True)
class AuditConfig:
    """How one backend instance records its operations."""

    sinks: tuple[AuditSink, ...] = ()
    on_sink_failure: Literal["warn", "fail"] = "warn"
    capture_code: bool = False

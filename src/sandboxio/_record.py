"""One record per operation: opened before it starts, redacted and rendered once when it ends.

``BaseSandbox`` and ``BaseBackend`` open and close records; adapters never do.
"""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

from ._redact import Redactor
from ._teardown import bounded, seconds_from_environment
from .audit import AuditConfig, AuditEvent, AuditSink
from .errors import AuditSinkError, AuditSinkWarning
from .models import IsolationTier

DEFAULT_AUDIT_TIMEOUT = 5.0


@dataclass(frozen=True)
class Subject:
    """Whom a record is about."""

    sandbox_id: str
    isolation: IsolationTier
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    redactor: Redactor = field(default_factory=Redactor, repr=False)


@dataclass
class OperationRecord:
    """What is known of one operation while it runs; fields are filled in as they become known."""

    event: str
    subject: Subject
    argv: tuple[str, ...] | None = None
    code: str | None = field(default=None, repr=False)
    bytes_in: int = 0
    bytes_out: int = 0
    exit_code: int | None = None
    network_denials: int = 0
    ts: datetime = field(default_factory=lambda: datetime.now(UTC))
    started: float = field(default_factory=time.monotonic)


class Recorder:
    """Renders the records of one backend instance to its sinks."""

    def __init__(self, backend: str, audit: AuditConfig | None = None) -> None:
        self.backend = backend
        self.audit = audit or AuditConfig()

    def open(
        self,
        event: str,
        subject: Subject,
        *,
        argv: tuple[str, ...] | None = None,
        code: str | None = None,
        bytes_in: int = 0,
    ) -> OperationRecord:
        return OperationRecord(event, subject, argv=argv, code=code, bytes_in=bytes_in)

    async def close(self, record: OperationRecord, error: BaseException | None = None) -> None:
        """Redact ``error`` in place and hand the event to every sink; raises ``AuditSinkError``."""
        if error is not None:
            record.subject.redactor.scrub(error)
        if not self.audit.sinks:
            return
        event = self._event(record)
        for sink in self.audit.sinks:
            await self._emit(sink, event)

    @asynccontextmanager
    async def operation(
        self,
        event: str,
        subject: Subject,
        *,
        argv: tuple[str, ...] | None = None,
        code: str | None = None,
        bytes_in: int = 0,
    ) -> AsyncGenerator[OperationRecord]:
        """Open a record for the body and close it however the body ends."""
        record = self.open(event, subject, argv=argv, code=code, bytes_in=bytes_in)
        try:
            yield record
        except BaseException as error:  # recorded and re-raised, cancellation included
            await self.close(record, error)
            raise
        await self.close(record)

    def _event(self, record: OperationRecord) -> AuditEvent:
        subject, redact = record.subject, record.subject.redactor.text
        hashed = record.code if record.code is not None else "\0".join(record.argv or ())
        return AuditEvent(
            ts=record.ts,
            event=record.event,
            sandbox_id=subject.sandbox_id,
            backend=self.backend,
            isolation=subject.isolation,
            tenant_id=subject.metadata.get("tenant_id"),
            session_id=subject.metadata.get("session_id"),
            code_sha256=hashlib.sha256(hashed.encode("utf-8", "surrogateescape")).hexdigest(),
            argv=None if record.argv is None else tuple(map(redact, record.argv)),
            exit_code=record.exit_code,
            duration_ms=round((time.monotonic() - record.started) * 1000),
            bytes_in=record.bytes_in,
            bytes_out=record.bytes_out,
            network_denials=record.network_denials,
            code=redact(record.code)
            if self.audit.capture_code and record.code is not None
            else None,
        )

    async def _emit(self, sink: AuditSink, event: AuditEvent) -> None:
        limit = seconds_from_environment("SBX_AUDIT_TIMEOUT", DEFAULT_AUDIT_TIMEOUT)
        cause: Exception | None = None
        try:
            done = await bounded(lambda: sink.emit(event), seconds=limit)
        except (
            Exception
        ) as error:  # a sink is the user's code: any failure of it is the sink's failure
            done, cause = False, error
        if done:
            return
        why = f"{type(sink).__name__} {'did not answer in time' if cause is None else 'raised ' + type(cause).__name__}"
        if self.audit.on_sink_failure == "fail":
            raise AuditSinkError(f"{why}; the {event.event} operation is not recorded.") from cause
        warnings.warn(
            f"{why}; the {event.event} operation is not recorded.", AuditSinkWarning, stacklevel=3
        )

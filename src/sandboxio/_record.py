"""One record per operation: opened before it starts, redacted and rendered once when it ends.

::

    record -> redacted AuditEvent -> the sinks of the backend instance
                                  -> a span, if the application traces

``BaseSandbox`` and ``BaseBackend`` open and close records; adapters never do. A record is closed however
its operation ends. While sinks are awaited, cancellation waits (bounded by ``SBX_AUDIT_TIMEOUT`` for each
sink), so a cancelled operation is recorded like any other.
"""

from __future__ import annotations

import hashlib
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import TracebackType

import anyio

from ._logs import redact_logs_of
from ._redact import Redactor, current
from ._scrub import scrub
from ._teardown import bounded
from .audit import AuditConfig, AuditEvent, AuditPolicy, AuditSink, NoopSink, audit_timeout, config_of
from .errors import AuditSinkError, AuditSinkWarning, ConfigurationError, SandboxError
from .models import IsolationTier
from .otel import CANCELLED, OperationSpan, start_span


@dataclass(frozen=True)
class Subject:
    """Whom a record is about."""

    sandbox_id: str
    isolation: IsolationTier
    metadata: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    redactor: Redactor = field(default_factory=Redactor, repr=False)


@dataclass
class OperationRecord:
    """What is known of one operation while it runs; fields are filled in as they become known."""

    event: str
    subject: Subject
    argv: tuple[str, ...] | None = field(default=None, repr=False)
    code: str | None = field(default=None, repr=False)
    bytes_in: int = 0
    bytes_out: int = 0
    exit_code: int | None = None
    network_denials: int = 0
    policy: AuditPolicy | None = field(default=None, repr=False)
    error: str | None = None
    problem: str | None = None
    span: OperationSpan | None = None
    outside: BaseException | None = field(default_factory=sys.exception, repr=False)
    began: float = field(default_factory=time.time)
    started: float = field(default_factory=time.monotonic)

    def failed(self, error: BaseException) -> None:
        """Note that the operation raised ``error``, which is redacted already."""
        if isinstance(error, (anyio.get_cancelled_exc_class(), GeneratorExit)):
            self.broken_off()
            return
        self.error = type(error).__qualname__
        if isinstance(error, SandboxError):  # the text of another exception may tell more than we know
            self.problem = error.message

    def broken_off(self) -> None:
        """Note that the caller did not want the rest, which is no failure."""
        self.error = CANCELLED

    def inside(self) -> Inside:
        """``with record.inside():`` surrounds each step of the operation.

        Spans made there are children of its span, and what the adapter's libraries log is redacted. Several
        tasks may be inside at once, as when one waits for a process and another kills it.
        """
        return Inside(self)


class Inside:
    """One task's stay inside of an operation; see :meth:`OperationRecord.inside`."""

    __slots__ = ("_record", "_redactor", "_span")

    def __init__(self, record: OperationRecord) -> None:
        self._record = record

    def __enter__(self) -> None:
        span = self._record.span
        self._redactor = current.set(self._record.subject.redactor)
        self._span = None if span is None else span.attach()

    def __exit__(self, *_: object) -> None:
        if self._record.span is not None and self._span is not None:
            self._record.span.detach(self._span)
        current.reset(self._redactor)


class Recorder:
    """Renders the records of one backend instance.

    Args:
        backend: Its name.
        audit: Its sinks and how to treat them.
        credentials: Gives the provider's keys and tokens, which are redacted like ``secrets=``.
        loggers: Whose records are redacted while an operation runs.
    """

    def __init__(
        self,
        backend: str,
        audit: AuditConfig | None = None,
        *,
        credentials: Callable[[], Iterable[str]] = tuple,
        loggers: Iterable[str] = (),
    ) -> None:
        self.backend = backend
        self.audit: AuditConfig = config_of(audit)
        self.credentials = credentials
        redact_logs_of(loggers)
        self._sinks = tuple(sink for sink in self.audit.sinks if type(sink) is not NoopSink)

    def check(self) -> None:
        """Raise ``ConfigurationError`` now for what would otherwise make every record fail."""
        if self._sinks:
            audit_timeout()

    def open(
        self,
        event: str,
        subject: Subject,
        *,
        argv: tuple[str, ...] | None = None,
        code: str | None = None,
        bytes_in: int = 0,
        policy: AuditPolicy | None = None,
    ) -> OperationRecord:
        """A record that has to be closed, and its span."""
        span = start_span(event, self.backend)
        return OperationRecord(event, subject, argv, code, bytes_in, policy=policy, span=span)

    async def close(self, record: OperationRecord, error: BaseException | None = None) -> None:
        """End the record: its span, then every sink. ``error`` is what will be raised in any case.

        Raises ``AuditSinkError`` if a sink failed, the policy is ``"fail"`` and ``error`` is None.
        """
        if not self._sinks and record.span is None:
            return
        traced = record.span is not None and record.span.recording
        event = self._event(record) if self._sinks or traced else None
        if record.span is not None:
            record.span.finish(event, record.problem)
        if event is not None and self._sinks:
            await self._deliver(event, error, record)

    def operation(
        self,
        event: str,
        subject: Subject,
        *,
        argv: tuple[str, ...] | None = None,
        code: str | None = None,
        bytes_in: int = 0,
        policy: AuditPolicy | None = None,
        failed: Callable[[Exception], None] | None = None,
    ) -> Operation:
        """``async with``: a record around the body, closed however the body ends.

        Errors that leave are redacted; ``failed`` then sees them before the sinks do.
        """
        return Operation(
            self,
            lambda: self.open(event, subject, argv=argv, code=code, bytes_in=bytes_in, policy=policy),
            failed,
        )

    def _event(self, record: OperationRecord) -> AuditEvent:
        subject, redact = record.subject, record.subject.redactor.text
        argv = None if record.argv is None else tuple(map(redact, record.argv))
        code = None if record.code is None else redact(record.code)
        hashed = code if code is not None else "\0".join(argv or ())
        tenant, session = subject.metadata.get("tenant_id"), subject.metadata.get("session_id")
        return AuditEvent(
            ts=datetime.fromtimestamp(record.began, UTC),
            event=record.event,
            sandbox_id=redact(subject.sandbox_id),
            backend=self.backend,
            isolation=subject.isolation,
            tenant_id=None if tenant is None else redact(tenant),
            session_id=None if session is None else redact(session),
            code_sha256=hashlib.sha256(hashed.encode("utf-8", "surrogateescape")).hexdigest(),
            argv=argv,
            exit_code=record.exit_code,
            duration_ms=round((time.monotonic() - record.started) * 1000),
            bytes_in=record.bytes_in,
            bytes_out=record.bytes_out,
            network_denials=record.network_denials,
            code=code if self.audit.capture_code else None,
            error=record.error,
            policy=_redacted(record.policy, redact),
        )

    async def _deliver(self, event: AuditEvent, error: BaseException | None, record: OperationRecord) -> None:
        """Hand ``event`` to every sink, whatever becomes of the others."""
        failures: list[str] = []
        cause: BaseException | None = None
        interruption: BaseException | None = None
        for sink in self._sinks:
            try:
                await _emit(sink, event)
            except _SinkFailed as failure:
                failures.append(str(failure))
                cause = cause or failure.__cause__
                if failure.__cause__ is not None:
                    scrub(failure.__cause__, record.subject.redactor, outside=record.outside)
            except anyio.get_cancelled_exc_class() as cancelled:  # noqa: ASYNC103 - raised again below
                failures.append(f"{type(sink).__name__} was cancelled")
                interruption = cancelled if _task_was_cancelled() else interruption
        if failures:
            self._report(
                f"{', '.join(failures)}; {event.event} may not be recorded.", cause, error or interruption
            )
        if interruption is not None and not isinstance(error, anyio.get_cancelled_exc_class()):
            raise interruption

    def _report(self, message: str, cause: BaseException | None, raised: BaseException | None) -> None:
        if self.audit.on_sink_failure == "fail":
            if raised is None:
                raise AuditSinkError(message) from cause
            raised.add_note(f"Besides: {message}")
        warnings.warn(message, AuditSinkWarning, stacklevel=6)


class Operation:
    """One record around a body; see :meth:`Recorder.operation`."""

    def __init__(
        self,
        recorder: Recorder,
        opening: Callable[[], OperationRecord],
        failed: Callable[[Exception], None] | None,
    ) -> None:
        self._recorder = recorder
        self._opening = opening
        self._failed = failed
        self._record: OperationRecord | None = None

    async def __aenter__(self) -> OperationRecord:
        self._record = record = self._opening()
        self._inside = record.inside()
        self._inside.__enter__()
        return record

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        record = self._record
        assert record is not None
        self._inside.__exit__()
        if error is not None:
            scrub(error, record.subject.redactor, outside=record.outside)
            record.failed(error)
            if self._failed is not None and isinstance(error, Exception):
                self._failed(error)
        await self._recorder.close(record, error)


class _SinkFailed(Exception):
    """One sink did not take one event; the cause is its exception, if it raised one."""


async def _emit(sink: AuditSink, event: AuditEvent) -> None:
    name = type(sink).__name__
    try:
        limit = audit_timeout()
    except ConfigurationError as error:
        raise _SinkFailed(f"{name} was not asked ({error.message})") from error
    try:
        done = await bounded(lambda: sink.emit(event), seconds=limit)
    except Exception as error:  # a sink is the user's code: any failure of it is the sink's failure
        raise _SinkFailed(f"{name} raised {type(error).__name__}") from error
    if not done:
        raise _SinkFailed(f"{name} did not answer within {limit:g} s")


def _task_was_cancelled() -> bool:
    """False if a sink let out a cancellation that nobody asked this task for; only asyncio can tell."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is None or anyio.get_cancelled_exc_class() is not asyncio.CancelledError:
        return True
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _redacted(policy: AuditPolicy | None, redact: Callable[[str], str]) -> AuditPolicy | None:
    if policy is None:
        return None
    template = None if policy.template is None else redact(policy.template)
    network = replace(policy.network, allow=tuple(map(redact, policy.network.allow)))
    return replace(policy, template=template, network=network)

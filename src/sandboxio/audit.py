"""Audit events and the sinks that receive them.

Every operation of a sandbox makes one :class:`AuditEvent`, however it ends, and each sink of the
backend's :class:`AuditConfig` gets it before the operation returns. What is in an event is redacted.
"""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections import deque
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal, Protocol

import anyio
import anyio.lowlevel

from ._append import append_line_in_thread
from ._redact import Redactor
from ._teardown import bounded, seconds_from_environment
from ._wake import Wake
from .errors import AuditSinkWarning, ConfigurationError
from .models import IsolationTier, NetworkPolicy, Resources

DEFAULT_AUDIT_TIMEOUT = 5.0
"""Seconds that one ``emit`` may take unless ``SBX_AUDIT_TIMEOUT`` says otherwise."""


@dataclass(frozen=True)
class AuditPolicy:
    """What a sandbox was created with. ``timeout`` is in seconds; None stands for the backend's default."""

    template: str | None
    network: NetworkPolicy
    resources: Resources
    timeout: float


@dataclass(frozen=True)
class AuditEvent:
    """One finished operation, redacted.

    ``ts`` is when it began, in UTC; ``duration_ms`` is milliseconds; ``bytes_in`` and ``bytes_out`` are
    bytes into and out of the sandbox. ``event`` is ``create``, ``connect``, ``kill``, ``exec``,
    ``run_code``, ``stream``, or ``file_`` and ``read``, ``write``, ``upload``, ``download``, ``list``,
    ``mkdir``, ``remove``. ``argv`` of a file operation is the sandbox path. ``code_sha256`` is of the
    redacted code, or else of the redacted argv joined by NUL, as UTF-8. ``network_denials`` counts
    blocked attempts that the backend reported; a backend that reports none leaves it 0.

    ``error`` is the name of the exception that the operation raised, or ``"cancelled"``; ``policy``
    belongs to ``create``.
    """

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
    error: str | None = None
    policy: AuditPolicy | None = None

    def as_dict(self) -> dict[str, object]:
        """The event as JSON-ready values. ``code``, ``error`` and ``policy`` are left out where None."""
        values: dict[str, object] = dict(vars(self))
        values |= {"ts": self.ts.isoformat(), "isolation": self.isolation.value}
        for name in _OPTIONAL:
            if values[name] is None:
                del values[name]
        if self.policy is not None:
            values["policy"] = asdict(self.policy)
        return values

    def as_line(self) -> str:
        """The event as one line of JSON in ASCII, without a newline; what every sink here writes."""
        return json.dumps(self.as_dict())


_OPTIONAL = ("code", "error", "policy")


class AuditSink(Protocol):
    """Where events go.

    ``emit`` is awaited by the operation that it tells of, so it returns promptly; buffering is the
    sink's job. It may take ``SBX_AUDIT_TIMEOUT`` seconds, during which only native cancellation
    (``asyncio.Task.cancel``) can interrupt it. It may be called from several tasks, loops and threads.
    """

    async def emit(self, event: AuditEvent) -> None:
        """Take one event."""
        ...


@dataclass(frozen=True)
class AuditConfig:
    """How one backend instance records its operations.

    Args:
        sinks: Each gets every event, in this order.
        on_sink_failure: What happens when a sink raises or takes longer than ``SBX_AUDIT_TIMEOUT``
            seconds. ``"warn"``: an ``AuditSinkWarning``, the operation goes on. ``"fail"``: the
            operation raises ``AuditSinkError``; one that had failed anyway keeps its own exception
            and gets a note.
        capture_code: Whether events and spans carry the redacted code beside its hash.
    """

    sinks: tuple[AuditSink, ...] = ()
    on_sink_failure: Literal["warn", "fail"] = "warn"
    capture_code: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.sinks, tuple) or not all(
            callable(getattr(sink, "emit", None)) for sink in self.sinks
        ):
            raise ConfigurationError(
                f"AuditConfig.sinks must be a tuple of sinks, got {self.sinks!r}.",
                hint="Write a tuple, with its comma: AuditConfig(sinks=(LoggingSink(),)).",
            )
        if self.on_sink_failure not in ("warn", "fail"):
            raise ConfigurationError(
                f'AuditConfig.on_sink_failure must be "warn" or "fail", got {self.on_sink_failure!r}.'
            )


def config_of(audit: AuditConfig | None) -> AuditConfig:
    """What a backend's ``audit=`` means. Raises ``ConfigurationError`` for a sink without its config."""
    if audit is None:
        return AuditConfig()
    if not isinstance(audit, AuditConfig):
        raise ConfigurationError(
            f"audit must be an AuditConfig, got {type(audit).__name__}.",
            hint="Write audit=AuditConfig(sinks=(sink,)).",
        )
    return audit


def audit_timeout() -> float:
    """Seconds that one ``emit`` may take. Raises ``ConfigurationError`` if the variable is no number."""
    return seconds_from_environment("SBX_AUDIT_TIMEOUT", DEFAULT_AUDIT_TIMEOUT)


def redactor_of(sandbox: object) -> Redactor:
    """What takes the secrets of ``sandbox`` out of text, for whoever shows its output to somebody else.

    ``redactor_of(sandbox).text(...)`` redacts a text, ``.stream()`` one that arrives in pieces. For a
    sandbox that is not built on :mod:`sandboxio.adapter` it knows no secrets.
    """
    inner = getattr(sandbox, "_sandbox", sandbox)  # a blocking sandbox holds the async one
    redactor = getattr(inner, "redactor", None)
    return redactor if isinstance(redactor, Redactor) else Redactor()


class NoopSink:
    """Records nothing; the default."""

    async def emit(self, event: AuditEvent) -> None:
        """Do nothing."""


class LoggingSink:
    """One JSON line per event on a logger, with the fields as ``record.audit``.

    It configures no handler: where the line goes is the application's logging configuration. A handler
    that blocks, blocks the event loop. Without a ``logger`` it is ``sandboxio.audit``.
    """

    def __init__(self, logger: logging.Logger | None = None, level: int = logging.INFO) -> None:
        if logger is None:
            library = logging.getLogger("sandboxio")
            if not library.handlers:  # or logging would print errors itself where nothing is configured
                library.addHandler(logging.NullHandler())
            logger = logging.getLogger("sandboxio.audit")
        self._logger = logger
        self._level = level

    async def emit(self, event: AuditEvent) -> None:
        """Log the event."""
        if self._logger.isEnabledFor(self._level):
            self._logger.log(self._level, event.as_line(), extra={"audit": event.as_dict()})


class FileSink:
    """One JSON line per event at the end of a file, written in a worker thread.

    The file is opened for each line, so it may be rotated by renaming. Several processes may write to
    it: lines stay whole, also when the disk fills up (see ``_append.py``). A new file gets mode 0600. A
    relative ``path`` of the host is resolved now. Lines are not forced to the disk (no ``fsync``).
    """

    def __init__(self, path: str | Path) -> None:
        self._path = os.path.abspath(path)  # noqa: PTH100 - nothing is resolved, as logging.FileHandler does

    async def emit(self, event: AuditEvent) -> None:
        """Append the event. Raises ``OSError`` if the file cannot take it whole."""
        await append_line_in_thread(self._path, event.as_line().encode() + b"\n")


class QueueSink:
    """Keeps events for ``target`` until :meth:`drain` hands them on; for sinks that use the network.

    ``emit`` returns at once. If more than ``maxlen`` events wait, the oldest is dropped and an
    ``AuditSinkWarning`` is emitted. Events may come from any event loop or thread.
    """

    def __init__(self, target: AuditSink, maxlen: int = 1000) -> None:
        if isinstance(maxlen, bool) or not isinstance(maxlen, int) or maxlen < 1:
            raise ConfigurationError(f"QueueSink(maxlen=...) must be a positive number, got {maxlen!r}.")
        self._target = target
        self._maxlen = maxlen
        self._events: deque[AuditEvent] = deque()  # its append and popleft are atomic
        self._wake: Wake | None = None

    async def emit(self, event: AuditEvent) -> None:
        """Queue the event."""
        self._events.append(event)
        if len(self._events) > self._maxlen:
            self._events.popleft()
            warnings.warn(
                f"QueueSink holds {self._maxlen} events and dropped the oldest: is drain() running?",
                AuditSinkWarning,
                stacklevel=2,
            )
        if (wake := self._wake) is not None:
            wake()

    async def drain(self) -> None:
        """Hand events to the target until cancelled; run it in a task of your own, once per sink.

        Each hand-over may take ``SBX_AUDIT_TIMEOUT`` seconds; one that fails is an ``AuditSinkWarning``
        and the event is lost. Cancelled, it hands over what still waits, for that long in total, and
        warns if that was not enough. A hand-over that ``asyncio.Task.cancel`` interrupts is repeated.
        """
        if self._wake is not None:
            raise ConfigurationError("This QueueSink is being drained already.", hint="Run drain() once.")
        try:
            while True:
                self._wake = wake = Wake()
                await self._hand_over_all()
                await wake.event.wait()
        finally:
            self._wake = None
            put_off: list[BaseException] = []
            await bounded(self._hand_over_all, seconds=audit_timeout(), put_off=put_off)
            if self._events:
                self._warn(f"was ended with {len(self._events)} events waiting")
            if put_off:
                raise put_off[0]

    async def _hand_over_all(self) -> None:
        while self._events:
            await self._hand_over()
            await anyio.lowlevel.checkpoint()  # each hand-over is shielded for itself

    async def _hand_over(self) -> None:
        event = self._events.popleft()
        try:
            done = await bounded(lambda: self._target.emit(event), seconds=audit_timeout())
        except anyio.get_cancelled_exc_class():
            self._events.appendleft(event)
            raise
        except Exception as error:  # noqa: BLE001 - the target is the user's code; its failures are warned of
            self._warn(f"lost the {event.event} event: its target raised {type(error).__name__}")
        else:
            if not done:
                self._warn(f"lost the {event.event} event: its target did not answer in time")

    def _warn(self, what: str) -> None:
        warnings.warn(f"QueueSink to {type(self._target).__name__} {what}.", AuditSinkWarning, stacklevel=3)

"""An audit event of the tests."""

from __future__ import annotations

from datetime import UTC, datetime

from sandboxio import IsolationTier
from sandboxio.audit import AuditEvent


def event(number: int = 0, **fields: object) -> AuditEvent:
    values: dict[str, object] = {
        "ts": datetime(2026, 9, 19, 10, 0, 0, number, tzinfo=UTC),
        "event": "run_code",
        "sandbox_id": "8c2af94cd1bc",
        "backend": "docker",
        "isolation": IsolationTier.CONTAINER,
        "tenant_id": "acme",
        "session_id": f"s-{number}",
        "code_sha256": "0" * 64,
        "argv": None,
        "exit_code": 0,
        "duration_ms": 115,
        "bytes_in": 42,
        "bytes_out": 6,
        "network_denials": 0,
    }
    return AuditEvent(**{**values, **fields})  # type: ignore[arg-type]

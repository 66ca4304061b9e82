"""An audit sink that keeps what it is given."""

from __future__ import annotations

from sandboxio.audit import AuditEvent


class RecordingSink:
    """Keeps every event in ``events``, oldest first."""

    def __init__(self) -> None:
        self.events: list[AuditEvent] = []

    async def emit(self, event: AuditEvent) -> None:
        """Keep the event."""
        self.events.append(event)

    def clear(self) -> None:
        """Forget what was recorded so far."""
        self.events.clear()

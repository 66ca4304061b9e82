"""Secret values out of what other libraries log while an operation runs.

An HTTP client may log a URL, and a URL may hold a path that holds a secret. An adapter names the loggers
of the libraries it uses (``BaseBackend.loggers``); records that they make inside an operation are
redacted before any handler sees them. Outside of operations, and elsewhere, nothing is touched.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from ._redact import current
from ._scrub import scrub


class _RedactingFilter(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        redactor = current.get()
        if redactor is None or not redactor.patterns:
            return True
        try:
            text = record.getMessage()
        except Exception:  # noqa: BLE001 - logging itself reports a call whose arguments do not fit, and goes on
            record.msg, record.args = "%s", (f"{record.msg!r} {record.args!r}",)
            text = record.getMessage()
        if (cleaned := redactor.text(text)) is not text:
            record.msg, record.args = cleaned, None
        if record.exc_info and record.exc_info[1] is not None:
            scrub(record.exc_info[1], redactor)
        return True


def redact_logs_of(names: Iterable[str]) -> None:
    """Filter these loggers from now on; once each. A filter of a logger does not reach its children."""
    for name in names:
        logger = logging.getLogger(name)
        if not any(isinstance(each, _RedactingFilter) for each in logger.filters):
            logger.addFilter(_RedactingFilter())

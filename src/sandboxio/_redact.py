"""Secret values out of text. (First form: whole values; encodings and streams follow.)"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

MASK = "***"
MIN_SECRET = 4
"""Characters: shorter values would mask ordinary text, so they are not searched for."""
CREDENTIAL_NAME = re.compile(r"(?i)key|token|secret|passw|credential|auth|session|cookie|private")
"""Names of environment variables whose values are treated as secrets."""


class Redactor:
    """Replaces every known secret in a text by ``***``, longest first, overlaps as one."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets = frozenset(value for value in secrets if len(value) >= MIN_SECRET)
        values = sorted(self._secrets, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, values))) if values else None

    def including(self, env: Mapping[str, str]) -> Redactor:
        """This redactor and the values of those variables whose names look like credentials."""
        found = {value for name, value in env.items() if CREDENTIAL_NAME.search(name)}
        return Redactor(self._secrets | found) if found else self

    def text(self, text: str) -> str:
        return text if self._pattern is None else self._pattern.sub(MASK, text)

    def scrub(self, error: BaseException) -> None:
        """Redact ``error``, its notes and its causes in place."""
        seen: set[int] = set()
        pending: list[BaseException | None] = [error]
        while pending:
            each = pending.pop()
            if each is None or id(each) in seen:
                continue
            seen.add(id(each))
            each.args = tuple(self.text(arg) if isinstance(arg, str) else arg for arg in each.args)
            for name in ("message", "hint"):
                if isinstance(value := getattr(each, name, None), str):
                    setattr(each, name, self.text(value))
            if notes := getattr(each, "__notes__", None):
                each.__notes__ = [self.text(note) for note in notes]
            pending += [each.__cause__, each.__context__]

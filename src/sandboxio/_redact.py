"""Secret values out of text: whole texts, and texts that arrive in pieces.

One pass: the ranges of all secrets in all their forms are found first, ranges that overlap or touch
are joined, and each joined range becomes one ``***``. So the order of the secrets plays no part, and a
secret inside another one leaves no tail. What counts as a form of a secret is in ``_encodings.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from functools import cached_property

from ._encodings import MIN_SECRET as MIN_SECRET, forms, too_short as too_short

MASK = "***"

CREDENTIAL_NAME = re.compile(
    r"(?i)key|token|secret|passw|passphrase|_pwd|(?:^|_)pass(?:$|_)|_pat(?:$|_)|credential|auth|session|cookie"
    r"|private|signature"
)
"""Names of environment variables whose values count as secrets."""

CREDENTIAL_VALUE = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY"
    r"|^(?:sk-|gh[opsu]_|github_pat_|glpat-|xox[abprs]-|AKIA|ASIA|AIza|ya29\.|e2b_|eyJ[\w-]+\.eyJ)"
    r"|^[a-z][a-z0-9+.-]*://[^/\s:@]*:(?P<password>[^/\s@]+)@"
)
"""Values that look like credentials whatever the variable is called: keys, tokens, URLs with a password."""

PLAIN_WORDS = frozenset({"true", "false", "none", "null", "auto", "basic", "bearer", "default", "disabled"})
"""Settings that stand in variables such as AUTH_MODE; masking these words would hide nothing."""

Range = tuple[int, int]


class Redactor:
    """Replaces every known secret in a text by ``***``. Immutable; compiled when it is first needed.

    >>> Redactor(["blue", "bluebird", "bird-77"]).text("a bluebird-77 is blue")
    'a *** is ***'
    """

    def __init__(self, secrets: Iterable[str] = (), *, base: Redactor | None = None) -> None:
        known: frozenset[str] = frozenset() if base is None else base._values  # noqa: SLF001 - its own kind
        self._base = base
        self._new = frozenset(secrets) - known
        self._values: frozenset[str] = known | self._new

    @cached_property
    def patterns(self) -> tuple[str, ...]:
        """The texts that are looked for, each once."""
        known = () if self._base is None else self._base.patterns
        own = frozenset[str]().union(*map(forms, self._new)) if self._new else frozenset[str]()
        return (*known, *own.difference(known))

    def also(self, secrets: Iterable[str]) -> Redactor:
        """This redactor and ``secrets``; what is compiled already is used again."""
        new = frozenset(secrets) - self._values
        return Redactor(new, base=self) if new else self

    def including(self, env: Mapping[str, str]) -> Redactor:
        """This redactor and the values of ``env`` that look like credentials, by name or by themselves."""
        return self.also(_credentials(env))

    def text(self, text: str) -> str:
        """``text`` with its secrets replaced; the same object if it holds none."""
        ranges = self.ranges(text)
        return _masked(text, ranges, len(text)) if ranges else text

    def excerpt(self, text: str, limit: int) -> str:
        """What the first ``limit`` characters of ``text`` may show: a secret across the cut is replaced."""
        window = text[: limit + max(map(len, self.patterns), default=0)]
        return _masked(window, self.ranges(window), limit)

    def finds(self, text: str) -> bool:
        """True if ``text`` holds a secret."""
        return any(pattern in text for pattern in self.patterns)

    def stream(self) -> StreamRedactor:
        """A redactor for one text that arrives in pieces."""
        return StreamRedactor(self)

    def ranges(self, text: str) -> list[Range]:
        """Where its secrets are, in order; ranges do not touch."""
        present = [pattern for pattern in self.patterns if pattern in text]
        return _joined(found for pattern in present for found in _occurrences(text, pattern))

    def __repr__(self) -> str:
        return f"<Redactor of {len(self._values)} values>"


current: ContextVar[Redactor | None] = ContextVar("sandboxio_redactor", default=None)
"""The redactor of the operation that runs in this context."""


def cleaned(text: str) -> str:
    """``text`` without the secrets of the operation that runs in this context."""
    redactor = current.get()
    return text if redactor is None else redactor.text(text)


class StreamRedactor:
    """The redacted form of one text that arrives in pieces, as early as possible.

    Held back is only what may be the beginning of a secret, so what comes out joined together is what
    :meth:`Redactor.text` makes of the whole, wherever the pieces were cut.

    >>> stream = Redactor(["hunter22"]).stream()
    >>> [stream.feed("it is hun"), stream.feed("ter22, or hunt"), stream.finish()]
    ['it is ', '***, or ', 'hunt']
    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held = ""
        self._masked = -1  # characters of _held under the mask that came out last; -1: none came out last

    def feed(self, text: str) -> str:
        """What can be shown once ``text`` has arrived."""
        text = self._held + text
        return self._advance(text, len(text) - self._beginning_at_end_of(text))

    def finish(self) -> str:
        """The rest: nothing more arrives."""
        return self._advance(self._held, len(self._held))

    def _advance(self, text: str, end: int) -> str:
        if end == 0:
            self._held = text
            return ""
        ranges = self._redactor.ranges(text)
        if self._masked >= 0:
            ranges = _joined([(0, self._masked), *ranges])
        shown = _masked(text, ranges, end)
        if self._masked >= 0:
            shown = shown.removeprefix(MASK)  # it came out with the piece before
        reach = max((stop for start, stop in ranges if start < end), default=-1)
        self._masked = reach - end if reach >= end else -1
        self._held = text[end:]
        return shown

    def _beginning_at_end_of(self, text: str) -> int:
        """Length of the longest end of ``text`` that a secret may begin with."""
        longest = 0
        for pattern in self._redactor.patterns:
            position = max(0, len(text) - len(pattern) + 1)
            while (position := text.find(pattern[0], position, len(text) - longest)) >= 0:
                if pattern.startswith(text[position:]):
                    longest = len(text) - position
                    break
                position += 1
        return longest


def _credentials(env: Mapping[str, str]) -> Iterator[str]:
    for name, value in env.items():
        shape = CREDENTIAL_VALUE.search(value)
        if (shape or CREDENTIAL_NAME.search(name)) and value.strip().lower() not in PLAIN_WORDS:
            yield value
        if shape and shape["password"]:
            yield shape["password"]


def _occurrences(text: str, pattern: str) -> Iterator[Range]:
    """The ranges of ``pattern`` in ``text``, those that overlap as one, in linear time."""
    start = text.find(pattern)
    while start >= 0:
        end = start + len(pattern)
        # Only the last of the occurrences that begin inside this one is looked for.
        while (last := text.rfind(pattern, end - len(pattern) + 1, end + len(pattern) - 1)) >= 0:
            end = last + len(pattern)
        yield start, end
        start = text.find(pattern, end)


def _joined(ranges: Iterable[Range]) -> list[Range]:
    """The ranges in order, with those that overlap or touch made one."""
    joined: list[Range] = []
    for start, end in sorted(ranges):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def _masked(text: str, ranges: Iterable[Range], end: int) -> str:
    """``text`` up to ``end``, with each range that begins before it as one mask."""
    pieces: list[str] = []
    position = 0
    for start, stop in ranges:
        if start >= end:
            break
        pieces += (text[position:start], MASK)
        position = stop
    pieces.append(text[position:end])
    return "".join(pieces)

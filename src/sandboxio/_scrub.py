"""Secret values out of exceptions, in place: an exception that left the library is safe to log.

Redacted are the text, the arguments, the attributes and the notes of an exception, of everything in
its ``__cause__`` and ``__context__`` chains, of the members of groups, and of exceptions that it has as
arguments or attributes, as ``urllib.error.URLError`` has its reason. Left alone are:

- what the sandboxed program printed (``partial``, ``result``): that is the caller's data;
- the exception that the caller was handling when it called, and what hangs on that one;
- the type, the identity and the arguments of cancellations and other exceptions that are no errors;
- the variables in the frames of a traceback, which Python itself does not show.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import cast

from ._redact import Redactor

_FIELDS: dict[type[BaseException], tuple[str, ...]] = {
    OSError: ("strerror", "filename", "filename2"),
    UnicodeError: ("object", "reason"),
    ImportError: ("msg", "name", "path"),
    SyntaxError: ("msg", "filename", "text"),
    NameError: ("name",),
    AttributeError: ("name",),
}
"""What builtin exceptions keep outside of ``args`` and ``__dict__``."""

_DEEPEST = 5
"""Levels of lists, tuples and mappings that are looked into."""


class _Redacted(Exception):
    """Stands for an exception in a chain whose own text cannot be changed."""


class guarded:  # noqa: N801 - used like a function
    """``with guarded(redactor):`` redacts what leaves the body."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._outside: BaseException | None = None

    def __enter__(self) -> None:
        self._outside = sys.exception()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            scrub(error, self._redactor, outside=self._outside)


def scrub(error: BaseException, redactor: Redactor, *, outside: BaseException | None = None) -> None:
    """Redact ``error`` in place, up to ``outside``: what the caller was handling before it called."""
    if not redactor.patterns:
        return
    seen, chain, pending = {id(outside)}, list[BaseException](), [error]
    while pending:
        each = pending.pop()
        if id(each) not in seen:
            seen.add(id(each))
            chain.append(each)
            pending += [below for _, below in _links(each)]
    telling: set[int] = set()
    for each in reversed(chain):  # what hangs on an exception comes before it
        clean = _clean(each, redactor)
        for link, below in _links(each):
            if link and id(below) in telling:
                _replace(each, link, _stand_in(below, redactor))
            elif id(below) in telling:
                clean = False  # it shows its members and arguments, and they cannot be exchanged
        if not clean:
            telling.add(id(each))


def _links(error: BaseException) -> Iterator[tuple[str, BaseException]]:
    """The exceptions that hang on ``error``, with the attribute that can be set to another one."""
    for link in ("__cause__", "__context__"):
        below: BaseException | None = getattr(error, link)
        if below is not None:
            yield link, below
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        yield from (("", member) for member in group.exceptions)
    for held in (*error.args, *vars(error).values()):
        if isinstance(held, BaseException):
            yield "", held


def _clean(error: BaseException, redactor: Redactor) -> bool:
    """Redact what can be changed of ``error``; False if its text still tells a secret."""
    if notes := getattr(error, "__notes__", None):
        _set(error, "__notes__", [redactor.text(str(note)) for note in notes])
    if not isinstance(error, Exception):
        return True
    if (args := _value(error.args, redactor)) is not error.args:
        _set(error, "args", args)
    fields = {name for kind, names in _FIELDS.items() if isinstance(error, kind) for name in names}
    for name in (*vars(error), *fields):
        value = getattr(error, name, None)
        if name != "__notes__" and (cleaned := _value(value, redactor)) is not value:
            _set(error, name, cleaned)
    return not redactor.finds(_shown(error))


def _set(error: BaseException, name: str, value: object) -> None:
    """Past a ``__setattr__`` of its own: a frozen dataclass refuses. What cannot be set shows in its text."""
    with suppress(AttributeError, TypeError):
        object.__setattr__(error, name, value)


def _value(value: object, redactor: Redactor, depth: int = 0) -> object:
    """``value`` without secrets: text, bytes, and plain containers of them; the same object if unchanged."""
    if isinstance(value, str):
        return redactor.text(value) if type(value) is str else value
    if type(value) is bytes:
        text = value.decode("utf-8", "surrogateescape")
        cleaned = redactor.text(text)
        return value if cleaned is text else cleaned.encode("utf-8", "surrogateescape")
    if depth == _DEEPEST or type(value) not in (list, tuple, set, frozenset, dict):
        return value
    if isinstance(value, dict):
        mapping = cast("dict[object, object]", value)
        pairs = mapping.items()
        cleaned_pairs = [
            (_value(key, redactor, depth + 1), _value(item, redactor, depth + 1)) for key, item in pairs
        ]
        same = all(a is c and b is d for (a, b), (c, d) in zip(pairs, cleaned_pairs, strict=True))
        return mapping if same else dict(cleaned_pairs)
    items = list(cast("list[object]", value))
    cleaned_items = [_value(item, redactor, depth + 1) for item in items]
    if all(old is new for old, new in zip(items, cleaned_items, strict=True)):
        return value
    return cast("type[list[object]]", type(value))(cleaned_items)


def _shown(error: BaseException) -> str:
    try:
        return f"{error}\n{error!r}"
    except Exception:  # noqa: BLE001 - the text of a foreign exception is foreign code, and no text tells nothing
        return ""


def _stand_in(error: BaseException, redactor: Redactor) -> _Redacted:
    kind = type(error)
    stand_in = _Redacted(redactor.text(f"{kind.__module__}.{kind.__qualname__}: {error}"))
    return stand_in.with_traceback(error.__traceback__)


def _replace(error: BaseException, link: str, other: BaseException) -> None:
    suppressed = error.__suppress_context__  # which setting __cause__ would change
    _set(error, link, other)
    _set(error, "__suppress_context__", suppressed)

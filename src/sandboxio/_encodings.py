"""The texts in which one secret value is looked for.

Covered, each on its own and for every line of a value with several lines:

- the value as it is, and without the blanks around it;
- base64, the standard and the URL-safe alphabet (RFC 4648, sections 4 and 5), at each of the three
  alignments that bytes before the value can give it, padded or not;
- hexadecimal digits, lower or upper case;
- percent escapes (RFC 3986, section 2.1) with the usual sets of characters left alone, and forms;
- the escapes of JSON, of Python's ``repr`` of text and of bytes, of shells and of HTML, also one
  inside another.

Not covered: base64 wrapped into lines, base64 or hex of an encoded text, UTF-16, hex digits with
separators, compression, encryption, another spelling (``ABC`` for ``abc``), and any part of a value.
Replacing values keeps accidents out of logs; it is no boundary against code that wants to tell.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Callable, Iterator
from urllib.parse import quote_from_bytes, quote_plus

MIN_SECRET = 4
"""Characters. A shorter value is not looked for: it would blot out ordinary text."""

_PERCENT_SAFE = ("", "/", "!~*'()", ":/?#[]@!$&'()*+,;=")
"""What encoders leave alone: everything escaped, RFC 3986 paths, encodeURIComponent, encodeURI."""


def too_short(value: str) -> bool:
    """True for a value that is not looked for."""
    return len(value.strip()) < MIN_SECRET


def forms(value: str) -> frozenset[str]:
    """Every text that gives ``value`` away; empty if it is too short.

    >>> {"pass word", "pass+word", "pass%20word", "7061737320776f7264"} <= forms("pass word")
    True
    """
    found: set[str] = set()
    for part in {value, value.strip(), *(line.strip() for line in re.split(r"[\r\n]+", value))}:
        if not too_short(part):
            try:
                data = part.encode("utf-8", "surrogateescape")
            except UnicodeEncodeError:  # no sandbox can hold it; the message that refuses it must not either
                found.update((part, _repr(part)))
                continue
            found.update((part, data.hex(), data.hex().upper()), _base64(data))
            if not re.fullmatch(r"[\w.-]+", part, re.ASCII):  # characters that nobody escapes
                found.update(_escaped(part), _percent(data))
    return frozenset(form for form in found if len(form) >= MIN_SECRET)


def _base64(data: bytes) -> Iterator[str]:
    """The digits that depend on ``data`` alone, whatever stands around it.

    A digit that it shares with the byte before is left out; so up to four of its bits may show.
    """
    for before in range(3):
        text = base64.b64encode(bytes(before) + data).decode("ascii")
        first = (8 * before + 5) // 6
        whole = 8 * (before + len(data)) // 6
        for form in (text[first:whole], text[first:].rstrip("="), text[first:]):
            yield form
            yield form.translate({ord("+"): "-", ord("/"): "_"})


def _percent(data: bytes) -> Iterator[str]:
    for safe in _PERCENT_SAFE:
        for form in (quote_from_bytes(data, safe), quote_plus(data, safe)):
            yield form
            yield re.sub(r"%[0-9A-F]{2}", lambda escape: escape[0].lower(), form)


def _escaped(value: str) -> set[str]:
    """The escapes of ``value``, and the escapes of those."""
    once = {escape(value) for escape in _ESCAPES}
    return once | {escape(form) for form in once - {value} for escape in _ESCAPES}


def _json_ascii(value: str) -> str:
    return json.dumps(value)[1:-1]


def _json(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)[1:-1]


def _json_of_go(value: str) -> str:
    """Go's ``encoding/json`` escapes what HTML could misread, too."""
    return re.sub(r"[<>&\u2028\u2029]", lambda found: f"\\u{ord(found[0]):04x}", _json(value))


def _json_slashes(value: str) -> str:
    return _json_ascii(value).replace("/", "\\/")


def _repr(value: str) -> str:
    """As in ``repr`` of a longer text that holds both kinds of quotes."""
    return repr('"' + value)[2:-1] if "'" in value else repr(value)[1:-1]


def _repr_quotes_bare(value: str) -> str:
    return _repr(value).replace("\\'", "'")


def _repr_bytes(value: str) -> str:
    data = value.encode("utf-8", "surrogateescape")
    return repr(b'"' + data)[3:-1] if b"'" in data else repr(data)[2:-1]


def _repr_bytes_quotes_bare(value: str) -> str:
    return _repr_bytes(value).replace("\\'", "'")


def _shell_quoted(value: str) -> str:
    """Inside the single quotes of Python's ``shlex.quote``."""
    return value.replace("'", "'\"'\"'")


def _shell_quoted_bare(value: str) -> str:
    """Inside single quotes, as people write it."""
    return value.replace("'", "'\\''")


def _shell_double_quoted(value: str) -> str:
    return re.sub(r'([\\"$`])', r"\\\1", value)


def _shell_backslashes(value: str) -> str:
    """As in ``printf %q`` of bash, for values on one line."""
    return re.sub(r"([^\w@%+=:./-])", r"\\\1", value)


_ESCAPES: tuple[Callable[[str], str], ...] = (
    _json_ascii,
    _json,
    _json_of_go,
    _json_slashes,
    _repr,
    _repr_quotes_bare,
    _repr_bytes,
    _repr_bytes_quotes_bare,
    _shell_quoted,
    _shell_quoted_bare,
    _shell_double_quoted,
    _shell_backslashes,
    html.escape,
)

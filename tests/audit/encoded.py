"""The encodings of a secret, made here with the standard library and not with the code under test."""

from __future__ import annotations

import base64
import html
import json
import re
import shlex
from collections.abc import Callable
from urllib.parse import quote, quote_plus

Encoding = Callable[[str], str]


def _base64(before: bytes = b"", after: bytes = b"", *, url_safe: bool = False) -> Encoding:
    def encode(value: str) -> str:
        encoder = base64.urlsafe_b64encode if url_safe else base64.b64encode
        return encoder(before + value.encode() + after).decode()

    return encode


MASKED_WHOLE: dict[str, Encoding] = {
    "as it is": str,
    "base64": _base64(),
    "base64, URL-safe": _base64(url_safe=True),
    "base64 without padding": lambda value: _base64()(value).rstrip("="),
    "hex": lambda value: value.encode().hex(),
    "upper-case hex": lambda value: value.encode().hex().upper(),
    "percent": quote,
    "percent, everything": lambda value: quote(value, safe=""),
    "percent in lower case": lambda value: re.sub("%..", lambda found: found[0].lower(), quote(value)),
    "form": quote_plus,
    "JSON": lambda value: json.dumps(value)[1:-1],
    "JSON in UTF-8": lambda value: json.dumps(value, ensure_ascii=False)[1:-1],
    "JSON in JSON": lambda value: json.dumps(json.dumps(value))[3:-3],
    "JSON as Go writes it": lambda value: (
        json.dumps(value, ensure_ascii=False)[1:-1]
        .replace("<", "\\u003c")
        .replace(">", "\\u003e")
        .replace("&", "\\u0026")
        .replace("\u2028", "\\u2028")
        .replace("\u2029", "\\u2029")
    ),
    "shell": lambda value: shlex.quote("[" + value)[2:-1],
    "repr": lambda value: repr([value])[2:-2],
    "repr of bytes": lambda value: repr([value.encode()])[3:-2],
    "repr of JSON": lambda value: repr(json.dumps(value))[2:-2],
    "HTML": html.escape,
}
"""Nothing at all may be left of these."""

MASKED_WITHIN: dict[str, Encoding] = {
    f"base64 between {len(before)} and {len(after)} bytes{', URL-safe' if url_safe else ''}": _base64(
        before, after, url_safe=url_safe
    )
    for before in (b"", b"k", b"k=", b"key")
    for after in (b"", b";", b";x", b";xy")
    for url_safe in (False, True)
}
"""Of these, what is around the secret may be left, and a digit that it shares with that."""


NOT_COVERED: dict[str, Encoding] = {
    "UTF-16": lambda value: value.encode("utf-16-le").hex(),
    "twice base64": lambda value: _base64()(_base64()(value)),
    "hex with colons": lambda value: value.encode().hex(":"),
    "wrapped base64": lambda value: base64.encodebytes(bytes(50) + value.encode()).decode(),
    "other case": lambda value: value.swapcase(),
    "backwards": lambda value: value[::-1],
    "a part": lambda value: value[1:],
}
"""Stated as not covered in the documentation; here so that the statement stays true."""


def tellings(value: str) -> dict[str, str]:
    """Name of an encoding to a text that must appear nowhere."""
    return {name: encode(value) for name, encode in MASKED_WHOLE.items()} | {
        f"base64 at offset {offset}": base64.b64encode(bytes(offset) + value.encode() + b"!!!").decode()[
            (8 * offset + 5) // 6 :
        ][: (8 * (offset % 3 + len(value.encode()))) // 6 - (8 * offset + 5) // 6]
        for offset in range(3)
    }


def found_in(text: str, value: str) -> list[str]:
    """The encodings of ``value`` that ``text`` shows."""
    return [name for name, telling in tellings(value).items() if telling in text]

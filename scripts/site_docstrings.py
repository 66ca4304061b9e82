"""Docstrings for the site: roles become links, and examples blocks of code (mkdocs.yml names this file)."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

ROLE = re.compile(r":\w+:`~?([\w.]+)`")


def markdown(text: str) -> str:
    """``text`` with roles as code and each ``>>>`` example in a block."""
    text = ROLE.sub(lambda match: f"`{match[1]}`", text)
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        starts = line.startswith(">>> ")
        if starts and not inside:
            lines += [*([""] if lines and lines[-1] else []), "```pycon"]
            inside = True
        elif inside and not line.strip():
            lines.append("```")
            inside = False
        lines.append(line)
    return "\n".join([*lines, "```"] if inside else lines)


class Docstrings(Extension):
    """Changes each docstring before it is parsed."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)

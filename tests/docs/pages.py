"""What stands in a Markdown page: fenced blocks, shell commands, links and anchors."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
        ROOT / "contract/README.md",
        ROOT / "docker/mcp/README.md",
    ]
)
"""Every page whose links are checked."""

NOT_EXECUTED = re.compile(r"<!-- not executed: (.+) -->")
REAL_ADAPTER = re.compile(r"<!-- executed on the real adapter: (.+) -->")

Way = Literal["program", "pytest", "real adapter", "not executed"]


@dataclass(frozen=True)
class Block:
    """A fenced block. ``line`` is the page's line with its first line of text, from 1."""

    language: str
    text: str
    line: int
    above: str

    @property
    def way(self) -> Way:
        """How a Python block is executed; the comment above the fence decides."""
        if NOT_EXECUTED.fullmatch(self.above):
            return "not executed"
        if REAL_ADAPTER.fullmatch(self.above):
            return "real adapter"
        return "pytest" if re.search(r"^(async )?def test_", self.text, re.MULTILINE) else "program"


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(text: str) -> list[Block]:
    """Every fenced block, in order. An unclosed fence is an error."""
    found: list[Block] = []
    opened: tuple[str, int, str] | None = None
    kept: list[str] = []
    above = ""
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            if opened is None:
                opened, kept = (line.strip("`").strip(), number + 1, above), []
            else:
                language, start, comment = opened
                found.append(Block(language, "\n".join(kept) + "\n", start, comment))
                opened = None
        elif opened is not None:
            kept.append(line)
        if line.strip():
            above = line.strip()
    if opened is not None:
        raise ValueError(f"the fence before line {opened[1]} is never closed")
    return found


def commands(text: str) -> Iterator[str]:
    """Shell commands of a page: blocks of a shell, ``run:`` lines of YAML, and `sandboxio ...` inline."""
    for block in blocks(text):
        joined = block.text.replace("\\\n", " ")
        if block.language == "console":
            yield from (line[2:] for line in joined.splitlines() if line.startswith("$ "))
        elif block.language in ("bash", "sh"):
            yield from (line for line in joined.splitlines() if line.strip())
        elif block.language == "yaml":
            yield from re.findall(r"^\s*(?:- )?run: (.+)$", joined, re.MULTILINE)
    outside = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    yield from re.findall(r"`((?:sandboxio|python -m sandboxio\.mcp) [^`]*)`", outside)


def own_arguments(command: str) -> tuple[str, list[str]] | None:
    """``("sandboxio" or "mcp", arguments)`` of a command of ours, None for any other."""
    words = shlex.split(command, comments=True)
    while words and re.fullmatch(r"[A-Z0-9_]+=.*", words[0]):
        words = words[1:]
    for stop in ("|", "&&", ">", ";", "||"):
        if stop in words:
            words = words[: words.index(stop)]
    if words[:1] in (["sandboxio"], ["sbx"]):
        return "sandboxio", words[1:]
    if words[:3] == ["python", "-m", "sandboxio.mcp"]:
        return "mcp", words[3:]
    return None


def links(text: str) -> list[str]:
    """Targets of links that lead to a file or an anchor; code is no link."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    prose = re.sub(r"`[^`\n]*`", "code", prose)
    return re.findall(r"\]\((?!https?://|mailto:)([^)\s]+)\)", prose)


def anchors(text: str) -> set[str]:
    """Anchors of the headings as GitHub makes them."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} (.+)$", prose, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        number, name = 0, slug
        while name in found:
            number += 1
            name = f"{slug}-{number}"
        found.add(name)
    return found


def dead_links(page: Path) -> list[str]:
    """Links of ``page`` that lead nowhere."""
    dead: list[str] = []
    for link in links(page.read_text()):
        target, _, anchor = link.partition("#")
        path = (page.parent / target) if target else page
        if not path.exists() or (anchor and anchor not in anchors(path.read_text())):
            dead.append(link)
    return dead

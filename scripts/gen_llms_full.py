"""Writes every page that docs/llms.txt lists into one file, for tools that read a whole text at once.

    python -m scripts.gen_llms_full llms-full.txt

The pages stand in the order of the list; a folder's README brings the other pages of its folder along.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIST = ROOT / "docs/llms.txt"


def pages() -> list[Path]:
    """The listed pages, each once, and behind a README of docs/ the other pages of its folder."""
    found: dict[Path, None] = {}
    for target in re.findall(r"\]\(([^)]+)\)", LIST.read_text()):
        page = (LIST.parent / target).resolve()
        found[page] = None
        if page.name == "README.md" and page.parent.parent == LIST.parent:
            found.update(dict.fromkeys(sorted(page.parent.glob("*.md"))))
    return list(found)


def full_text() -> str:
    """The list, then each page under a line with its path."""
    parts = [LIST.read_text().strip()]
    parts += [f"<!-- {page.relative_to(ROOT)} -->\n\n{page.read_text().strip()}" for page in pages()]
    return "\n\n".join(parts) + "\n"


def main(arguments: list[str]) -> int:
    """Write the file that is named; without a name, to stdout."""
    if len(arguments) > 1:
        sys.stderr.write("usage: python -m scripts.gen_llms_full [FILE]\n")
        return 2
    text = full_text()
    if arguments:
        Path(arguments[0]).write_text(text)
    else:
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

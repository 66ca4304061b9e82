"""Whether each promise of docs/guarantees.md was proved: its test ran, passed somewhere and failed nowhere.

python -m scripts.guarantees FILE     FILE comes from `pytest --outcomes FILE`, of one run or of several

One line for each promise. Exit 1 if one was not proved. `make test` ends with this; a run of a few tests by
hand does not.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs/guarantees.md"


def promises(text: str) -> list[tuple[str, str]]:
    """Every promise of the page with its proof, ``path::test`` or ``path`` for all tests of a file."""
    rows = re.findall(r"^\| (?!Promise|-)(.+?) \| (.+?) \|$", text, re.MULTILINE)
    return [(promise, proof.strip("`")) for promise, proof in rows]


@dataclass
class Seen:
    """How a proof ended, and in which files it ran."""

    outcomes: Counter[str] = field(default_factory=Counter)
    files: Counter[str] = field(default_factory=Counter)

    @property
    def problem(self) -> str:
        """Why this proves nothing; empty if it does."""
        if not self.outcomes:
            return "did not run"
        if self.outcomes["failed"]:
            return f"failed {self.outcomes['failed']} times"
        if not self.outcomes["passed"]:
            return ", ".join(f"{outcome} {count} times" for outcome, count in self.outcomes.items())
        return ""


def seen(lines: Iterable[str]) -> dict[str, Seen]:
    """What a file of outcomes says of each test and of each file of tests."""
    found: dict[str, Seen] = {}
    for text in lines:
        entry = json.loads(text)
        names = {*entry["places"], *(place.partition("::")[0] for place in entry["places"])}
        for name in names:
            each = found.setdefault(name, Seen())
            each.outcomes[entry["outcome"]] += 1
            if entry["outcome"] == "passed":
                each.files[entry["test"].partition("::")[0]] += 1
    return found


def report(page: str, lines: Iterable[str]) -> tuple[list[str], int]:
    """A line for each promise, and how many are not proved."""
    found, told, unproved = seen(lines), [], 0
    for promise, proof in promises(page):
        each = found.get(proof, Seen())
        if each.problem:
            unproved += 1
            told.append(f"NOT PROVED  {promise}: {proof} {each.problem}")
        else:
            where = ", ".join(f"{file} {count}x" for file, count in sorted(each.files.items()))
            told.append(f"proved      {promise}: {where}")
    return told, unproved


def main(arguments: list[str]) -> int:
    """Print the report; the exit code."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m scripts.guarantees FILE\n")
        return 2
    with Path(arguments[0]).open() as lines:
        told, unproved = report(PAGE.read_text(), lines)
    print("\n".join(told))
    print(f"{len(told) - unproved} of {len(told)} promises proved")
    return 1 if unproved or not told else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

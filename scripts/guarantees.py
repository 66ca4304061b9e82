"""Whether each promise of docs/guarantees.md was proved: its test ran, passed somewhere and failed nowhere.

python -m scripts.guarantees FILE [UNSTEADY]

FILE comes from `pytest --outcomes FILE`, of one run or of several. UNSTEADY comes from `scripts.run_pass`:
tests that failed once and then passed three times on their own. A promise that such a test stands for is
called unsteady, not proved. One line for each promise; exit 1 if one was not proved. `make test` ends with
this; a run of a few tests by hand does not.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Container, Iterable
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

    @property
    def verdict(self) -> str:
        """``proved``, ``unsteady`` or ``NOT PROVED``."""
        if self.problem:
            return "NOT PROVED"
        return "unsteady" if self.outcomes["unsteady"] else "proved"


def seen(lines: Iterable[str], unsteady: Container[str] = ()) -> dict[str, Seen]:
    """What a file of outcomes says of each test and of each file of tests."""
    found: dict[str, Seen] = {}
    for text in lines:
        entry = json.loads(text)
        if entry["outcome"] == "failed" and ascii(entry["test"])[1:-1] in unsteady:
            entry["outcome"] = "unsteady"
        names = {*entry["places"], *(place.partition("::")[0] for place in entry["places"])}
        for name in names:
            each = found.setdefault(name, Seen())
            each.outcomes[entry["outcome"]] += 1
            if entry["outcome"] == "passed":
                each.files[entry["test"].partition("::")[0]] += 1
    return found


def report(page: str, lines: Iterable[str], unsteady: Container[str] = ()) -> list[tuple[str, str]]:
    """The verdict and the line of each promise."""
    found, told = seen(lines, unsteady), list[tuple[str, str]]()
    for promise, proof in promises(page):
        each = found.get(proof, Seen())
        where = ", ".join(f"{file} {count}x" for file, count in sorted(each.files.items()))
        reason = f"{proof} {each.problem}" if each.problem else where
        told.append((each.verdict, f"{each.verdict:<12}{promise}: {reason}"))
    return told


def main(arguments: list[str]) -> int:
    """Print the report; the exit code."""
    if not 1 <= len(arguments) <= 2:
        sys.stderr.write("usage: python -m scripts.guarantees FILE [UNSTEADY]\n")
        return 2
    unsteady = Path(arguments[1]).read_text().splitlines() if arguments[1:] else []
    with Path(arguments[0]).open() as lines:
        told = report(PAGE.read_text(), lines, unsteady)
    print("\n".join(line for _, line in told))
    count = Counter(verdict for verdict, _ in told)
    print(f"{count['proved']} of {len(told)} promises proved, {count['unsteady']} unsteady")
    return 1 if count["NOT PROVED"] or not told else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

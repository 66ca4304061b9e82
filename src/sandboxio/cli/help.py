"""How ``--help`` is laid out: as wide as the terminal, with tables in two columns where they fit."""

from __future__ import annotations

import argparse
import itertools
import re
import shutil
import textwrap

WIDEST = 100
"""Columns beyond which lines of text are hard to read."""
NARROW = 60
"""Columns from which options and their explanations stand side by side."""
_ROW = re.compile(r"  (\S.*?)(?: {2,}(\S.*))?")


class HelpFormatter(argparse.HelpFormatter):
    """Wraps descriptions and epilogs line by line; lines that start with two spaces are a table.

    A row of it is a command (or a code, or a variable) and, after two spaces or more, what it does. Where
    the two do not fit beside each other, the explanation goes below. No word is broken: a command stays
    fit to be copied.
    """

    def __init__(self, prog: str) -> None:
        columns = min(shutil.get_terminal_size().columns, WIDEST)
        # Too narrow for two columns: explanations of options go below them.
        super().__init__(prog, max_help_position=24 if columns >= NARROW else 10, width=columns - 1)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        filled: list[str] = []
        for is_table, lines in itertools.groupby(text.splitlines(), lambda line: line.startswith("  ")):
            if is_table:
                filled += _table([_ROW.fullmatch(line) for line in lines], width)
            else:
                for line in lines:
                    filled += _wrapped(line, width, "", "") or [""]
        return "\n".join(indent + line for line in filled)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return _wrapped(text, width, "", "")


def _table(rows: list[re.Match[str] | None], width: int) -> list[str]:
    cells = [(row[1], row[2] or "") for row in rows if row is not None]
    column = 4 + max(len(left) for left, _ in cells)
    beside = column <= width // 4 or all(column + len(right) <= width for _, right in cells)
    lines: list[str] = []
    for left, right in cells:
        if beside:
            lines += _wrapped(f"{f'  {left}':<{column}}{right}", width, "", " " * column)
        else:
            lines += _wrapped(left, width, "  ", "    ")
            lines += _wrapped(right, width, "      ", "      ")
    return lines


def _wrapped(text: str, width: int, first: str, further: str) -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=further,
        break_long_words=False,
        break_on_hyphens=False,
    )

"""Compare data of any size, and say in one line where it differs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress, count
from operator import ne

SHOWN = 20
"""Items shown on each side of a difference."""


def difference(actual: Sequence[object], expected: Sequence[object]) -> str:
    """Where two strings, or two kinds of bytes, first differ, with their lengths; ``""`` if they are equal.

    For more than a screenful: with ``CI`` set, pytest (9.2, ``_pytest/assertion/util.py``) answers
    ``assert actual == expected`` with a full diff, which takes minutes for 200 KB.
    """
    if actual == expected:
        return ""
    shorter = min(len(actual), len(expected))
    at = next(compress(count(), map(ne, actual, expected)), shorter)
    around = slice(max(0, at - SHOWN), at + SHOWN)
    return (
        f"differs from {at} on ({len(actual)} long, {len(expected)} expected): "
        f"{actual[around]!r} instead of {expected[around]!r}"
    )

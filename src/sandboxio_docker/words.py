"""Words of an image's programs, or of an engine that repeats them, as a message may have them."""

from __future__ import annotations


def printable(text: str) -> str:
    r"""One line without anything that a terminal obeys: escape sequences, marks that turn text around.

    >>> printable("no\x1b[2J\r\n python")
    'no\ufffd[2J python'
    """
    line = " ".join(text.split())
    return line if line.isprintable() else "".join(c if c.isprintable() else "\ufffd" for c in line)

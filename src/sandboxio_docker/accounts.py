"""The numbers of an image's user and group, out of its ``USER`` and its own files, as the engine finds them.

A name of digits is a number, whatever the files say. Source: moby/sys/user, GetExecUser.
"""

from __future__ import annotations

import re
from typing import Final

from sandboxio.errors import CreationError

MAX_ID: Final = (1 << 31) - 1
"""The largest user or group (moby/sys/user, maxID)."""
CORRECT: Final = "Correct USER in the image, or the file."
"""The fix for most of what can be wrong."""

_DIGITS: Final = re.compile("[0-9]{1,10}")


def find_user(name: str, number: int | None, passwd: bytes) -> tuple[int, int]:
    """User and group by a name, or by the number that the name is. Raises ``CreationError``."""
    for fields in _lines(passwd):
        if len(fields) > 3 and (fields[0] == name if number is None else _is(fields[2], number)):
            return _needed(fields[2], name, "/etc/passwd"), _needed(fields[3], name, "/etc/passwd")
    if number is None:
        raise CreationError(f"The image's user {name!r} is not in its /etc/passwd.", hint=CORRECT)
    return number, 0


def find_group(name: str, groups: bytes) -> int:
    """A group's number. Raises ``CreationError``."""
    for fields in _lines(groups):
        if len(fields) > 2 and fields[0] == name:
            return _needed(fields[2], name, "/etc/group")
    raise CreationError(f"The image's group {name!r} is not in its /etc/group.", hint=CORRECT)


def _lines(content: bytes) -> list[list[str]]:
    # not splitlines(), which knows more ends of a line than the engine does
    return [line.strip().split(":") for line in content.decode("utf-8", "surrogateescape").split("\n")]


def _is(field: str, number: int) -> bool:
    return bool(_DIGITS.fullmatch(field)) and int(field) == number


def _needed(field: str, name: str, file: str) -> int:
    """A number of a line that counts. The engine takes 0, root, for one that it cannot read."""
    if not _DIGITS.fullmatch(field):
        raise CreationError(
            f"The line of {name!r} in the image's {file} has {field[:40]!r} for a number.",
            hint=f"Correct {file} in the image.",
        )
    return _in_range(field)


def number_of(text: str) -> int | None:
    """The number that a user or group of an image's ``USER`` is, None for a name.

    >>> number_of("1000"), number_of("app")
    (1000, None)
    """
    return _in_range(text) if text.isascii() and text.isdecimal() else None


def _in_range(digits: str) -> int:
    number = int(digits) if _DIGITS.fullmatch(digits) else MAX_ID + 1
    if number > MAX_ID:
        raise CreationError(
            f"The image's user or group {digits[:40]} is larger than {MAX_ID}, an engine's largest.",
            hint=CORRECT,
        )
    return number

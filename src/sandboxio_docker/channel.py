"""How commands and files reach a container: the port that both channels fill in.

A channel belongs to one sandbox and one connection, and lives as long as the sandbox. It is made after
the container runs; making one does no I/O.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Literal

from sandboxio.adapter import Execution, FileTransfer
from sandboxio.errors import ConfigurationError

SHELL = "/bin/sh"
"""What runs a command given as one string."""

_COOKIE = re.compile(r"\A((?:[ \t\f]*(?:#.*)?\r?\n)?[ \t\f]*#.*?cod)i(ng[:=][ \t]*[-\w.]+)")
"""PEP 263: a comment in one of the first two lines that names the file's encoding."""


class Channel(ABC):
    """Starts commands in one container and moves its files."""

    name: ClassVar[Literal["guest", "exec"]]
    files: FileTransfer

    @abstractmethod
    def command(
        self, argv: tuple[str, ...], *, env: Mapping[str, str], seconds: float, paced: bool
    ) -> Execution:
        """A run of ``argv`` without a shell; stdin is at its end from the beginning. No I/O yet.

        ``seconds`` is the deadline, for a channel that can enforce it inside. ``paced`` says that the
        output is read at the caller's leisure.
        """

    @abstractmethod
    def code(self, code: str, *, seconds: float) -> Execution:
        """A run of Python code in an interpreter of the image. No I/O yet."""

    @abstractmethod
    def close(self) -> None:
        """Close every connection of this channel. Synchronous; may be called again."""


def source_bytes(code: str) -> bytes:
    """Code as an interpreter reads it from its stdin, always UTF-8.

    A coding cookie would make the interpreter decode the UTF-8 as something else, so it is blunted;
    line and column numbers stay.

    >>> source_bytes("# -*- coding: latin-1 -*-")
    b'# -*- codxng: latin-1 -*-'
    """
    return _COOKIE.sub(r"\1x\2", code.removeprefix("\ufeff"), count=1).encode()


def too_long() -> ConfigurationError:
    """The error for a command line that the kernel of the sandbox refuses with E2BIG."""
    return ConfigurationError(
        "Arguments and environment are together longer than Linux passes to a program (usually 2 MiB).",
        hint="Write the data to a file with files.write() and pass the path.",
    )

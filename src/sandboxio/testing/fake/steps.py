"""What a virtual program does, step by step.

A program is a generator: it yields pauses and output, and returns its exit code. It has no event loop
and no thread, so stopping it is dropping it.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import TypeAlias

from sandboxio.models import OutputChunk

PIECE = 32 << 10
"""Bytes of one chunk of a program that prints much."""


@dataclass(frozen=True)
class Pause:
    """Nothing happens for this many virtual seconds."""

    seconds: float


FOREVER = Pause(math.inf)

Program: TypeAlias = Generator[Pause | OutputChunk, None, int]


def out(data: bytes | str) -> OutputChunk:
    """Something on stdout."""
    return OutputChunk("stdout", encoded(data))


def err(data: bytes | str) -> OutputChunk:
    """Something on stderr."""
    return OutputChunk("stderr", encoded(data))


def encoded(data: bytes | str) -> bytes:
    """Text as bytes; lone surrogates stand for bytes that are not UTF-8."""
    return data if isinstance(data, bytes) else data.encode("utf-8", "surrogateescape")


def fixed(exit_code: int, *chunks: OutputChunk) -> Program:
    """A program that prints some chunks and ends."""
    for chunk in chunks:
        if chunk.data:
            yield chunk
    return exit_code

# /// script
# requires-python = ">=3.11"
# dependencies = ["sandboxio[docker,e2b]"]
# ///
"""One function, several providers: only the DSN changes.

    python 02_swap_backends.py [DSN ...]

E2B needs E2B_API_KEY; without it, this program says so and goes on.
"""

from __future__ import annotations

import sys

import anyio

import sandboxio
from sandboxio import Capability


async def count_words(dsn: str, text: str) -> str:
    """The same code for every backend; what a backend can do is asked, not guessed from its name."""
    async with await sandboxio.create(dsn, timeout=120) as sandbox:
        await sandbox.files.write("text.txt", text)
        result = await sandbox.run("cat text.txt")
        result.raise_for_status()
        words = len(result.stdout.split())
        state = "keeps" if Capability.STATEFUL_CODE in sandbox.capabilities else "does not keep"
        return f"{words} words; tier {sandbox.isolation.value}, {state} variables between calls"


async def main(targets: list[str]) -> None:
    for dsn in targets:
        try:
            print(f"{dsn}: {await count_words(dsn, 'one two three')}")
        except sandboxio.SandboxError as error:
            print(f"{dsn}: {error}")


anyio.run(main, sys.argv[1:] or ["docker://python:3.12-slim", "e2b://code-interpreter-v1"])

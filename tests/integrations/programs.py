"""What the scripted agents of every framework run in a real container, and what they have to read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from sandboxio.protocols import AsyncSandbox

Loop: TypeAlias = Callable[[AsyncSandbox, tuple[str, ...]], Awaitable[list[str]]]
"""An agent that calls its code tool with each program; the texts that its model read."""

CASES = {
    "print(6 * 7)": ("exit code: 0", "42"),
    "import sys; print('no such file', file=sys.stderr); sys.exit(3)": ("exit code: 3", "no such file"),
    "print('before', flush=True); import time; time.sleep(60)": ("SBX_E1302", "Fix: ", "before"),
    "import urllib.request as u; u.urlopen('http://127.0.0.1:9/')": ("exit code: 1", "refused"),
}


async def reads_what_really_happened(loop: Loop, sandbox: AsyncSandbox) -> None:
    """Output, a failing program, a timeout with what was printed before, and a live sandbox after it."""
    seen = await loop(sandbox, tuple(CASES))
    assert len(seen) == len(CASES)
    for text, parts in zip(seen, CASES.values(), strict=True):
        assert all(part in text for part in parts), text


async def reads_that_the_sandbox_went(loop: Loop, sandbox: AsyncSandbox) -> None:
    await sandbox.kill()
    (text,) = await loop(sandbox, ("print(6 * 7)",))
    assert "SBX_E1204" in text
    assert "Fix: " in text
    assert "Traceback" not in text

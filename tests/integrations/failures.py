"""Case 85 as a table: what goes wrong, whether it is an error for the model, and what the model reads.

Each framework's tests call their tool with each program, and so do the tests of the MCP server.
"""

from __future__ import annotations

from dataclasses import dataclass

from sandboxio import ExecResult, ResourceLimitExceeded, SandboxGone
from sandboxio.testing import FakeBackend

SECRET = "hunter22-canary"
"""Given to each sandbox in ``secrets=``; no error may tell it."""


@dataclass(frozen=True)
class Case:
    program: str
    is_error: bool
    says: tuple[str, ...]


CASES = {
    "it exits with 3": Case("bad", False, ("3", "no such file")),
    "a program is missing": Case("missing", False, ("127", "not found")),
    "it prints too much": Case("long", False, ("30000 characters left out",)),
    "it takes too long": Case("slow", True, ("[SBX_E1302] ", "Fix: ", "printed before")),
    "the sandbox has gone": Case("vanishing", True, ("[SBX_E1204] ", "Fix: ")),
    "it is out of memory": Case("greedy", True, ("[SBX_E1402] ", "Fix: ")),
}


def scripted(detail: str = SECRET) -> FakeBackend:
    """A fake that answers as the table says; ``detail`` is in the text of errors."""
    backend = FakeBackend()
    for script in (backend.on_run, backend.on_run_code):
        script(match="good", returns=ExecResult(0, "forty-two\n", ""))
        script(match="bad", returns=ExecResult(3, "", "no such file\n"))
        script(match="missing", returns=ExecResult(127, "", "sh: x: not found\n"))
        script(match="long", returns=ExecResult(0, "x" * 50_000, ""))
        script(match="slow", returns=ExecResult(0, "printed before\n", ""), hangs=True)
        script(match="vanishing", raises=SandboxGone(f"It was removed, with {detail}."))
        script(match="greedy", raises=ResourceLimitExceeded(f"Out of memory, with {detail}."))
    return backend


def check(case: Case, text: str, *, is_error: bool) -> None:
    """What every adapter owes its model."""
    assert is_error == case.is_error, text
    assert all(part in text for part in case.says), text
    assert "Traceback" not in text
    assert SECRET not in text

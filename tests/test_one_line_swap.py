"""One function of somebody's program, three DSNs, the same outcome."""

from __future__ import annotations

import pytest

import sandboxio
from tests.e2b_standin.fixtures import standin as standin, standin_process as standin_process
from tests.e2b_standin.running import StandInProcess


async def word_count(target: str, text: str) -> dict[str, object]:
    """What a program of a user does; nothing in it knows the backend."""
    async with await sandboxio.create(target, timeout=120) as sandbox:
        await sandbox.files.write("input.txt", text)
        counted = await sandbox.run_code("print(1 + 2)")
        listed = await sandbox.run(["cat", "input.txt"])
        failed = await sandbox.run(["cat", "missing.txt"])
        try:
            await sandbox.run(["sleep", "60"], timeout=0.5)
        except sandboxio.SandboxTimeout as error:
            late = type(error).__name__
        try:
            await sandbox.files.read("missing.txt")
        except sandboxio.SandboxError as error:
            missing = error.code
        async with sandbox.stream(["cat", "input.txt"]) as process:
            streamed = b"".join([chunk.data async for chunk in process])
        return {
            "counted": counted.stdout,
            "listed": listed.stdout,
            "failed": failed.ok,
            "late": late,
            "missing": missing,
            "streamed": streamed,
        }


EXPECTED = {
    "counted": "3\n",
    "listed": "one two three\n",
    "failed": False,
    "late": "ExecutionTimeout",
    "missing": "SBX_E1701",
    "streamed": b"one two three\n",
}


async def test_on_the_fake() -> None:
    assert await word_count("fake://", "one two three\n") == EXPECTED


@pytest.mark.engine
async def test_on_docker(docker_image: str) -> None:
    assert await word_count(f"docker://{docker_image}", "one two three\n") == EXPECTED


async def test_on_e2b(standin: StandInProcess) -> None:
    assert await word_count("e2b://", "one two three\n") == EXPECTED

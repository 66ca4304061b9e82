"""Many calls of one tool at once on a real container: this tool is one that works on both loops."""

from __future__ import annotations

import json

import anyio
import pytest

from sandboxio.integrations.openai_agents import make_command_tool
from sandboxio.protocols import AsyncSandbox
from sandboxio_docker import DockerBackend

from .test_tools import invoke

pytestmark = pytest.mark.engine


async def sleeping(sandbox: AsyncSandbox) -> str:
    return (await sandbox.run("cat /proc/[0-9]*/comm 2>/dev/null | grep -c sleep")).stdout


async def test_twenty_calls_of_which_five_take_too_long(sandbox: AsyncSandbox) -> None:
    tool = make_command_tool(sandbox, timeout=8)
    seen: dict[int, str] = {}

    async def call(number: int) -> None:
        command = "echo begun; sleep 600" if number % 4 == 3 else f"echo number {number}; exit {number % 3}"
        seen[number] = await invoke(tool, json.dumps({"command": command}))

    async with anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(call, number)
    for number, text in seen.items():
        if number % 4 == 3:
            assert text.startswith("[SBX_E1302] ")
            assert text.endswith("begun")
        else:
            assert text == f"exit code: {number % 3}\nstdout:\nnumber {number}"
    assert await sleeping(sandbox) == "0\n"


async def test_an_agent_that_is_cancelled_in_mid_call_leaves_no_process(sandbox: AsyncSandbox) -> None:
    tool = make_command_tool(sandbox)
    async with anyio.create_task_group() as group:
        group.start_soon(invoke, tool, json.dumps({"command": "touch begun; sleep 600 & sleep 600"}))
        with anyio.fail_after(20):
            while not (await sandbox.run("test -e begun")).ok:
                await anyio.sleep(0.02)
        group.cancel_scope.cancel()
    assert await sleeping(sandbox) == "0\n"


async def test_a_container_that_is_killed_from_outside_in_mid_call_is_told(sandbox: AsyncSandbox) -> None:
    tool = make_command_tool(sandbox)
    texts: list[str] = []

    async def call() -> None:
        texts.append(await invoke(tool, json.dumps({"command": "touch begun; sleep 600"})))

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        with anyio.fail_after(20):
            while not (await sandbox.run("test -e begun")).ok:
                await anyio.sleep(0.02)
        await DockerBackend().kill_managed(sandbox.id)
    assert texts[0].startswith("[SBX_E1204] ")
    assert "Fix: " in texts[0]

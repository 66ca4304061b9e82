"""The server with real containers: whatever way it ends, nothing is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters

from sandboxio_docker import DockerBackend

from .test_transports import HELLO

pytestmark = pytest.mark.engine
GONE_WITHIN = 10.0


async def assert_gone(sandbox_id: str) -> None:
    with anyio.move_on_after(GONE_WITHIN):
        while any(each.sandbox_id == sandbox_id for each in await DockerBackend().list_managed()):
            await anyio.sleep(0.05)
        return
    pytest.fail(f"container {sandbox_id} is still there after {GONE_WITHIN} s")


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
async def test_a_client_runs_code_in_a_container(loop: str, docker_image: str) -> None:
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "sandboxio.mcp", "--backend", f"docker://{docker_image}", "--loop", loop],
        env=dict(os.environ),
    )
    async with Client(server) as client:
        info: Any = (await client.call_tool("sandbox_info", {})).structured_content
        result: Any = (await client.call_tool("run_python", {"code": "print(6 * 7)"})).structured_content
        assert (result["exit_code"], result["stdout"]) == (0, "42\n")
        denied: Any = (
            await client.call_tool("run_python", {"code": "import socket\nprint(socket.if_nameindex())"})
        ).structured_content
        assert "eth0" not in denied["stdout"]
    await assert_gone(info["sandbox_id"])


@pytest.mark.parametrize("ending", ["stdin closed", "SIGTERM", "SIGKILL"])
async def test_every_end_of_the_server_in_mid_call_ends_the_container(ending: str, docker_image: str) -> None:
    def call(number: int, tool: str, **arguments: str) -> str:
        params = {"name": tool, "arguments": arguments}
        return json.dumps({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}) + "\n"

    command = [sys.executable, "-m", "sandboxio.mcp", "--backend", f"docker://{docker_image}"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as server:  # noqa: ASYNC220 - nothing else runs
        assert server.stdin is not None
        assert server.stdout is not None
        started = json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}) + "\n"
        server.stdin.write(json.dumps(HELLO) + "\n" + started + call(2, "sandbox_info"))
        server.stdin.flush()
        answers: dict[int, Any] = {}
        while 2 not in answers:
            message = json.loads(server.stdout.readline())
            answers[message.get("id", 0)] = message
        sandbox_id = answers[2]["result"]["structuredContent"]["sandbox_id"]
        server.stdin.write(call(3, "run_command", cmd="sleep 600"))
        server.stdin.flush()
        if ending == "stdin closed":
            server.stdin.close()
        else:
            server.send_signal(getattr(signal, ending))
        server.wait(15)
    await assert_gone(sandbox_id)

"""The canary in what models and people read: tool results of the integrations, and the command line.

The adapter repeats what it was told; what the sandboxed program prints is not in question here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from mcp import Client
from mcp_types import CallToolResult

import sandboxio
from sandboxio import SandboxError
from sandboxio.integrations import langgraph, pydantic_ai
from sandboxio.mcp.server import Settings, build
from sandboxio.model_text import render_for_model

from .encoded import found_in
from .parrot import ENDINGS, PROVIDER_KEY, TOKEN_OF_SANDBOX, Far, ParrotBackend

SECRET = 'it\'s a "canary" /?&=+%7 \\ é'
OURS = [end for end in ENDINGS if end != "a bug"]


@pytest.fixture
def far() -> Iterator[Far]:
    """The far side of ``parrot://``, where every sandbox gets the canary as a secret."""

    class Backend(ParrotBackend):
        async def create(self, **options: Any) -> Any:
            return await super().create(**{**options, "secrets": {"CANARY": SECRET}})

    backend = Backend()
    sandboxio.register("parrot", lambda: backend)
    yield backend.far
    sandboxio.registry.unregister("parrot")


def assert_silent(text: str) -> None:
    for secret in (SECRET, PROVIDER_KEY, TOKEN_OF_SANDBOX):
        assert not found_in(text, secret), text


def shown_by(result: CallToolResult) -> str:
    return "".join(getattr(block, "text", "") for block in result.content) + repr(result.structured_content)


@pytest.mark.parametrize("end", ENDINGS)
async def test_an_mcp_client_reads_no_secret(far: Far, end: str) -> None:
    async with Client(build(Settings("parrot://"))) as client:
        for tool, arguments in {
            "run_command": {"cmd": f"curl '{SECRET}'"},
            "run_python": {"code": f"x = {SECRET!r}"},
            "read_file": {"path": f"/{SECRET}"},
            "write_file": {"path": f"/{SECRET}", "content": SECRET},
            "list_files": {"path": f"/{SECRET}"},
        }.items():
            far.says = end
            result = await client.call_tool(tool, arguments)
            far.says = "yes"
            assert result.is_error
            assert_silent(shown_by(result))
            if end in OURS and end != "gone":
                assert "***" in shown_by(result)


@pytest.mark.filterwarnings("ignore::sandboxio.OrphanedSandboxWarning")  # its kill fails the same way
@pytest.mark.parametrize("end", OURS)
def test_a_langchain_tool_shows_no_secret(far: Far, end: str) -> None:
    async def factory() -> Any:
        sandbox = await sandboxio.create("parrot://")
        far.says = end
        return sandbox

    call = {"type": "tool_call", "id": "c1", "name": "t", "args": {"command": f"curl '{SECRET}'"}}
    message = langgraph.make_command_tool(factory).invoke(call)
    far.says = "yes"
    assert message.status == "error"
    assert "***" in message.content
    assert_silent(repr(message))


@pytest.mark.parametrize("end", OURS)
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.one_loop(reason="pydantic-ai runs on asyncio")
async def test_a_pydantic_ai_tool_shows_no_secret(far: Far, end: str) -> None:
    sandbox = await sandboxio.create("parrot://")
    tool = pydantic_ai.make_command_tool(sandbox)
    far.says = end
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever it raises is what is shown
        await tool.function(f"curl '{SECRET}'")  # type: ignore[call-arg, misc]
    far.says = "yes"
    assert "***" in str(caught.value)
    assert_silent(f"{caught.value} {caught.value!r} {caught.value.__cause__!r}")


@pytest.mark.parametrize("end", OURS)
async def test_the_words_for_a_model_show_no_secret(far: Far, end: str) -> None:
    sandbox = await sandboxio.create("parrot://")
    far.says = end
    with pytest.raises(SandboxError) as caught:
        await sandbox.run(["x", SECRET])
    far.says = "yes"
    assert "***" in render_for_model(caught.value)
    assert_silent(render_for_model(caught.value))


# The command line

COMMANDS = [
    ["doctor"],
    ["doctor", "--json"],
    ["reap", "--backend", "e2b"],
    ["reap", "--backend", "e2b", "--kill", "--json"],
    ["demo", "--backend", "e2b://"],
]


@pytest.mark.slow
@pytest.mark.parametrize("debug", ["0", "1"])
@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_the_command_line_shows_no_key(arguments: list[str], debug: str) -> None:
    key = "e2b_" + "0123456789abcdef" * 2
    environment = {
        **os.environ,
        "E2B_API_KEY": key,
        "E2B_API_URL": "http://127.0.0.1:9",  # nobody answers there
        "SBX_DEBUG": debug,
        "SBX_TEARDOWN_GRACE": "1",
    }
    done = subprocess.run(
        [sys.executable, "-m", "sandboxio", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    output = done.stdout + done.stderr
    assert output
    if arguments[0] != "doctor":
        assert done.returncode == 1, output
    assert not found_in(output, key)

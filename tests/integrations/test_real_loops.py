"""Scripted agents of each framework with real code in a real container."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pydantic_ai.models
import pytest
from agents import Agent as OpenAIAgent, RunConfig, Runner, set_tracing_disabled
from agents.testing import ScriptedModel, assistant_message, function_call
from langchain.agents import create_agent
from langchain_core.messages import ToolMessage
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from sandboxio.integrations import langgraph, openai_agents, pydantic_ai as ours
from sandboxio.protocols import AsyncSandbox
from sandboxio_docker import DockerBackend

from .test_langgraph import ScriptedModel as ScriptedChatModel, says

pytestmark = [
    pytest.mark.engine,
    pytest.mark.one_loop("the frameworks' agent loops need asyncio"),
]
pydantic_ai.models.ALLOW_MODEL_REQUESTS = False

PROGRAMS = (
    "print(6 * 7)",
    "import sys; print('no such file', file=sys.stderr); sys.exit(3)",
    "print('before', flush=True); import time; time.sleep(60)",
    "import urllib.request as u; u.urlopen('http://127.0.0.1:9/')",
)
SEEN = (
    ["exit code: 0", "42"],
    ["exit code: 3", "no such file"],
    ["SBX_E1302", "Fix: ", "before"],
    ["exit code: 1", "refused"],
)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def sandbox(docker_image: str) -> AsyncIterator[AsyncSandbox]:
    async with await DockerBackend(image=docker_image).create(timeout=120) as made:
        yield made


async def langgraph_loop(sandbox: AsyncSandbox, programs: tuple[str, ...]) -> list[str]:
    agent = create_agent(
        ScriptedChatModel(messages=says(*programs)), tools=[langgraph.make_code_tool(sandbox, timeout=2)]
    )
    answer = await agent.ainvoke({"messages": [("user", "go")]})
    return [message.text for message in answer["messages"] if isinstance(message, ToolMessage)]


async def openai_loop(sandbox: AsyncSandbox, programs: tuple[str, ...]) -> list[str]:
    set_tracing_disabled(True)
    turns = [
        [function_call("run_python", {"code": code}, call_id=f"c{number}")]
        for number, code in enumerate(programs)
    ]
    model = ScriptedModel([*turns, [assistant_message("done")]])
    agent = OpenAIAgent(name="t", tools=[openai_agents.make_code_tool(sandbox, timeout=2)], model=model)
    answer = await Runner.run(agent, "go", run_config=RunConfig(tracing_disabled=True))
    return [item.output for item in answer.new_items if item.type == "tool_call_output_item"]


async def pydantic_loop(sandbox: AsyncSandbox, programs: tuple[str, ...]) -> list[str]:
    left = iter(programs)

    async def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        code = next(left, None)
        return ModelResponse(
            parts=[TextPart("done") if code is None else ToolCallPart("run_python", {"code": code})]
        )

    answer = await PydanticAgent(FunctionModel(model), tools=[ours.make_code_tool(sandbox, timeout=2)]).run(
        "go"
    )
    parts = [part for message in answer.all_messages() for part in message.parts]
    return [str(part.content) for part in parts if isinstance(part, ToolReturnPart)]


LOOPS = [langgraph_loop, openai_loop, pydantic_loop]


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
async def test_the_model_reads_what_really_happened(loop: Callable[..., Any], sandbox: AsyncSandbox) -> None:
    """Case 85 on a real engine."""
    seen = await loop(sandbox, PROGRAMS)
    assert len(seen) == len(PROGRAMS)
    for text, parts in zip(seen, SEEN, strict=True):
        assert all(part in text for part in parts), text


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
async def test_a_sandbox_that_went_is_told_and_the_loop_ends_well(
    loop: Callable[..., Any], sandbox: AsyncSandbox
) -> None:
    await sandbox.kill()
    (text,) = await loop(sandbox, PROGRAMS[:1])
    assert "SBX_E1204" in text
    assert "Fix: " in text

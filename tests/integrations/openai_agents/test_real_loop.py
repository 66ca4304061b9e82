"""A scripted agent of the OpenAI Agents SDK whose code runs in a real container."""

from __future__ import annotations

import pytest
from agents import Agent, RunConfig, Runner

from sandboxio.integrations.openai_agents import make_code_tool
from sandboxio.protocols import AsyncSandbox
from tests.integrations import programs

from .scripted import ScriptedModel, call, says

pytestmark = [pytest.mark.engine, pytest.mark.one_loop("the SDK's runner starts asyncio tasks")]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def loop(sandbox: AsyncSandbox, codes: tuple[str, ...]) -> list[str]:
    turns = [[call("run_python", f"c{number}", code=code)] for number, code in enumerate(codes)]
    model = ScriptedModel(*turns, [says("done")])
    agent = Agent(name="tester", tools=[make_code_tool(sandbox, timeout=3)], model=model)
    answer = await Runner.run(agent, "go", run_config=RunConfig(tracing_disabled=True))
    assert answer.final_output == "done"
    return [item.output for item in answer.new_items if item.type == "tool_call_output_item"]


async def test_the_model_reads_what_really_happened(sandbox: AsyncSandbox) -> None:
    """Case 85 on a real engine."""
    await programs.reads_what_really_happened(loop, sandbox)


async def test_a_sandbox_that_went_is_told_and_the_loop_ends_well(sandbox: AsyncSandbox) -> None:
    await programs.reads_that_the_sandbox_went(loop, sandbox)

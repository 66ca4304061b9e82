"""A scripted LangChain agent whose code runs in a real container."""

from __future__ import annotations

import pytest
from langchain.agents import create_agent
from langchain_core.messages import ToolMessage

from sandboxio.integrations.langgraph import make_code_tool
from sandboxio.protocols import AsyncSandbox
from tests.integrations import programs

from .test_tools import ScriptedModel, says

pytestmark = [
    pytest.mark.engine,
    pytest.mark.one_loop("langchain_core runs callbacks with asyncio.gather (callbacks/manager.py)"),
]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def loop(sandbox: AsyncSandbox, codes: tuple[str, ...]) -> list[str]:
    agent = create_agent(ScriptedModel(messages=says(*codes)), tools=[make_code_tool(sandbox, timeout=3)])
    answer = await agent.ainvoke({"messages": [("user", "go")]})
    assert answer["messages"][-1].text == "done"
    return [message.text for message in answer["messages"] if isinstance(message, ToolMessage)]


async def test_the_model_reads_what_really_happened(sandbox: AsyncSandbox) -> None:
    """Case 85 on a real engine."""
    await programs.reads_what_really_happened(loop, sandbox)


async def test_a_sandbox_that_went_is_told_and_the_loop_ends_well(sandbox: AsyncSandbox) -> None:
    await programs.reads_that_the_sandbox_went(loop, sandbox)

"""A scripted Pydantic AI agent whose code runs in a real container."""

from __future__ import annotations

import pydantic_ai.models
import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from sandboxio.integrations.pydantic_ai import make_code_tool
from sandboxio.protocols import AsyncSandbox
from tests.integrations import programs

pytestmark = [pytest.mark.engine, pytest.mark.one_loop("the framework's agent loop needs asyncio")]
pydantic_ai.models.ALLOW_MODEL_REQUESTS = False


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def loop(sandbox: AsyncSandbox, codes: tuple[str, ...]) -> list[str]:
    left = iter(codes)

    async def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        code = next(left, None)
        part = TextPart("done") if code is None else ToolCallPart("run_python", {"code": code})
        return ModelResponse(parts=[part])

    answer = await Agent(FunctionModel(model), tools=[make_code_tool(sandbox, timeout=3)]).run("go")
    assert answer.output == "done"
    parts = [part for message in answer.all_messages() for part in message.parts]
    return [str(part.content) for part in parts if isinstance(part, ToolReturnPart)]


async def test_the_model_reads_what_really_happened(sandbox: AsyncSandbox) -> None:
    """Case 85 on a real engine."""
    await programs.reads_what_really_happened(loop, sandbox)


async def test_a_sandbox_that_went_is_told_and_the_loop_ends_well(sandbox: AsyncSandbox) -> None:
    await programs.reads_that_the_sandbox_went(loop, sandbox)

"""Pydantic AI tools: a scripted agent reads output, failures and fixes."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import pydantic_ai.models
import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    RetryPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

from sandboxio import BackendNotInstalled
from sandboxio.integrations.pydantic_ai import make_code_tool, make_command_tool
from sandboxio.testing import FakeBackend
from tests.integrations.failures import CASES, SECRET, Case, check

pydantic_ai.models.ALLOW_MODEL_REQUESTS = False
KINDS = pytest.mark.parametrize(
    ("make", "name", "argument"),
    [(make_code_tool, "run_python", "code"), (make_command_tool, "run_command", "command")],
)


@KINDS
@pytest.mark.one_loop("the framework's agent loop needs asyncio")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_an_agent_sees_output_failure_and_timeout_and_goes_on(
    make: Any, name: str, argument: str, fake: FakeBackend
) -> None:
    programs = iter(("good", "bad", "slow"))

    async def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        program = next(programs, None)
        if program is None:
            return ModelResponse(parts=[TextPart("done")])
        return ModelResponse(parts=[ToolCallPart(name, {argument: program})])

    agent = Agent(FunctionModel(model), tools=[make(fake.create, timeout=1)])
    answer = await agent.run("go")
    seen = [
        part
        for message in answer.all_messages()
        for part in message.parts
        if isinstance(part, ToolReturnPart)
    ]
    assert [part.outcome for part in seen] == ["success", "success", "failed"]
    assert "forty-two" in str(seen[0].content)
    assert "exit code: 3" in str(seen[1].content)
    assert "SBX_E1302" in str(seen[2].content)
    assert answer.output == "done"
    assert await fake.list_managed() == []


def calling(name: str, *calls: dict[str, Any]) -> FunctionModel:
    """A model that makes these calls, one a turn."""
    left = iter(calls)

    async def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        arguments = next(left, None)
        return ModelResponse(parts=[TextPart("done") if arguments is None else ToolCallPart(name, arguments)])

    return FunctionModel(model)


@KINDS
@pytest.mark.one_loop("the framework's agent loop needs asyncio")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_every_failure_is_what_the_table_says(
    make: Any, name: str, argument: str, case: Case, fake: FakeBackend
) -> None:
    """Case 85."""
    async with await fake.create(secrets={"TOKEN": SECRET}) as sandbox:
        agent = Agent(calling(name, {argument: case.program}), tools=[make(sandbox, timeout=1)])
        answer = await agent.run("go")
    parts = [part for message in answer.all_messages() for part in message.parts]
    (seen,) = (part for part in parts if isinstance(part, ToolReturnPart))
    check(case, str(seen.content), is_error=seen.outcome == "failed")
    assert answer.output == "done"


@KINDS
@pytest.mark.one_loop("the framework's agent loop needs asyncio")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("wrong", [{"code": ["ls"], "command": 3}, {}, {"other": "x"}])
async def test_wrong_arguments_are_told_to_the_model_and_run_nothing(
    make: Any, name: str, argument: str, wrong: dict[str, Any], fake: FakeBackend
) -> None:
    """Case 87."""
    agent = Agent(calling(name, wrong), tools=[make(fake.create)])
    answer = await agent.run("go")
    parts = [part for message in answer.all_messages() for part in message.parts]
    (told,) = (part for part in parts if isinstance(part, (RetryPromptPart, ToolReturnPart)))
    assert getattr(told, "outcome", "retried") == "retried"
    assert argument in str(told.content)
    assert answer.output == "done"
    assert fake.calls == []


@KINDS
def test_the_schema_has_one_argument_and_no_more(
    make: Any, name: str, argument: str, fake: FakeBackend
) -> None:
    """Case 87."""
    schema = make(fake.create).function_schema.json_schema
    assert list(schema["properties"]) == schema["required"] == [argument]
    assert schema["additionalProperties"] is False


def test_an_older_version_is_told_what_workspaces_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydantic_ai.workspaces", None)
    monkeypatch.delitem(sys.modules, "sandboxio.integrations.pydantic_ai_workspace", raising=False)
    with pytest.raises(BackendNotInstalled, match=r"pydantic-ai-slim>=2\.56"):
        importlib.import_module("sandboxio.integrations.pydantic_ai_workspace")

"""OpenAI Agents tools: strict schemas, errors and bad arguments that the model can read, a scripted loop."""

from __future__ import annotations

import json
from typing import Any

import pytest
from agents import Agent, RunConfig, Runner
from agents.tool_context import ToolContext

from sandboxio.integrations.openai_agents import make_code_tool, make_command_tool
from sandboxio.testing import FakeBackend
from tests.integrations.failures import CASES, SECRET, Case, check

from .scripted import ScriptedModel, call, says

KINDS = pytest.mark.parametrize(
    ("make", "argument"), [(make_code_tool, "code"), (make_command_tool, "command")]
)


async def invoke(tool: Any, arguments: str) -> str:
    context = ToolContext(context=None, tool_name=tool.name, tool_call_id="c1", tool_arguments=arguments)
    return await tool.on_invoke_tool(context, arguments)


@KINDS
async def test_the_model_reads_output_failures_and_fixes(make: Any, argument: str, fake: FakeBackend) -> None:
    """Case 85: a non-zero exit is a result, a timeout an error with its fix."""
    tool = make(fake.create, timeout=1)
    assert await invoke(tool, json.dumps({argument: "good"})) == "exit code: 0\nstdout:\nforty-two"
    assert await invoke(tool, json.dumps({argument: "bad"})) == "exit code: 3\nstderr:\nno such file"
    slow = await invoke(tool, json.dumps({argument: "slow"}))
    assert slow.startswith("[SBX_E1302] ")
    assert "Fix: " in slow
    assert await fake.list_managed() == []


@KINDS
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_every_failure_is_what_the_table_says(
    make: Any, argument: str, case: Case, fake: FakeBackend
) -> None:
    """Case 85. The SDK has no flag: the text of an error begins with its code."""
    async with await fake.create(secrets={"TOKEN": SECRET}) as sandbox:
        text = await invoke(make(sandbox, timeout=1), json.dumps({argument: case.program}))
    check(case, text, is_error=text.startswith("[SBX_"))


@KINDS
@pytest.mark.parametrize("arguments", ["not json", "{}", '{"code": 3, "command": 3}', '{"other": "x"}'])
async def test_wrong_arguments_are_told_to_the_model(
    make: Any, argument: str, arguments: str, fake: FakeBackend
) -> None:
    text = await invoke(make(fake.create), arguments)
    assert text.startswith("The call was not understood: ")
    assert await fake.list_managed() == []


async def test_an_ordinary_exception_stays_hidden() -> None:
    """It may be a bug or hold a secret; older versions of the SDK would show its text."""

    async def broken() -> Any:
        raise LookupError("internal detail")

    text = await invoke(make_code_tool(broken), '{"code": "x"}')
    assert "internal detail" not in text
    assert "error occurred" in text


@KINDS
def test_the_schema_is_strict(make: Any, argument: str, fake: FakeBackend) -> None:
    """Case 87: every property required, nothing besides, no free dict."""
    tool = make(fake.create)
    schema = tool.params_json_schema
    assert tool.strict_json_schema
    assert list(schema["properties"]) == schema["required"] == [argument]
    assert schema["properties"][argument]["type"] == "string"
    assert schema["properties"][argument]["description"]
    assert schema["additionalProperties"] is False


@pytest.mark.one_loop("the SDK's runner starts asyncio tasks")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_an_agent_sees_output_failure_and_timeout_and_goes_on(fake: FakeBackend) -> None:
    programs = enumerate(("good", "bad", "slow"))
    turns = [[call("run_python", f"c{number}", code=code)] for number, code in programs]
    model = ScriptedModel(*turns, [says("done")])
    agent = Agent(name="tester", tools=[make_code_tool(fake.create, timeout=1)], model=model)
    answer = await Runner.run(agent, "go", run_config=RunConfig(tracing_disabled=True))
    assert model.left == []
    seen = [item.output for item in answer.new_items if item.type == "tool_call_output_item"]
    assert "forty-two" in seen[0]
    assert "exit code: 3" in seen[1]
    assert "SBX_E1302" in seen[2]
    assert answer.final_output == "done"

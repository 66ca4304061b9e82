"""LangChain tools: both ways of calling, artifacts, readable errors, and LangChain's own suites."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anyio
import pytest
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import StructuredTool
from langchain_tests.integration_tests import ToolsIntegrationTests
from langchain_tests.unit_tests import ToolsUnitTests

from sandboxio import ExecResult
from sandboxio.integrations.langgraph import make_code_tool, make_command_tool
from sandboxio.sync import create_sync
from sandboxio.testing import FakeBackend
from tests.integrations.failures import CASES, SECRET, Case, check

pytestmark = pytest.mark.one_loop("langchain_core runs callbacks with asyncio.gather (callbacks/manager.py)")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def call(argument: str, text: str) -> dict[str, Any]:
    return {"type": "tool_call", "id": "c1", "name": "t", "args": {argument: text}}


@pytest.mark.parametrize(("make", "argument"), [(make_code_tool, "code"), (make_command_tool, "command")])
class TestBothTools:
    async def test_awaited_it_gives_text_and_artifact(
        self, make: Any, argument: str, fake: FakeBackend
    ) -> None:
        async with await fake.create() as sandbox:
            message = await make(sandbox).ainvoke(call(argument, "good"))
        assert isinstance(message, ToolMessage)
        assert message.content == "exit code: 0\nstdout:\nforty-two"
        assert message.artifact == ExecResult(0, "forty-two\n", "")
        assert message.status == "success"

    def test_called_it_gives_the_same(self, make: Any, argument: str, fake: FakeBackend) -> None:
        message = make(fake.create).invoke(call(argument, "good"))
        assert (message.content, message.status) == ("exit code: 0\nstdout:\nforty-two", "success")
        assert anyio.run(fake.list_managed) == []

    def test_a_failing_program_is_a_result(self, make: Any, argument: str, fake: FakeBackend) -> None:
        """Case 85: a non-zero exit is not an error of the tool."""
        message = make(fake.create).invoke(call(argument, "bad"))
        assert (message.content, message.status) == ("exit code: 3\nstderr:\nno such file", "success")

    def test_a_timeout_is_an_error_with_its_fix(self, make: Any, argument: str, fake: FakeBackend) -> None:
        """Case 85."""
        message = make(fake.create, timeout=1).invoke(call(argument, "slow"))
        assert message.status == "error"
        assert message.content.startswith("[SBX_E1302] ")
        assert "Fix: " in message.content
        assert anyio.run(fake.list_managed) == []

    def test_a_sync_call_on_an_async_sandbox_says_what_to_use(
        self, make: Any, argument: str, fake: FakeBackend
    ) -> None:
        class Async:  # looks like a live sandbox of some other loop
            run = run_code = None

        message = make(Async()).invoke(call(argument, "good"))
        assert message.status == "error"
        assert "ainvoke" in message.content

    def test_the_schema_has_one_argument_and_no_more(
        self, make: Any, argument: str, fake: FakeBackend
    ) -> None:
        """Case 87."""
        schema = make(fake.create).args_schema.model_json_schema()
        assert list(schema["properties"]) == schema["required"] == [argument]
        assert schema["additionalProperties"] is False


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_every_failure_is_what_the_table_says(case: Case, fake: FakeBackend) -> None:
    """Case 85."""
    async with await fake.create(secrets={"TOKEN": SECRET}) as sandbox:
        for make, argument in ((make_code_tool, "code"), (make_command_tool, "command")):
            message = await make(sandbox, timeout=1).ainvoke(call(argument, case.program))
            check(case, message.text, is_error=message.status == "error")


WRONG = ({"code": ["ls"]}, {}, {"code": "good", "timeout": 99}, {"code": None}, {"cmd": "good"})


async def test_wrong_arguments_are_told_to_the_model_and_run_nothing(fake: FakeBackend) -> None:
    """Case 87: also one that would lift the host's timeout."""
    requests = [{"name": "run_python", "args": args, "id": f"c{i}"} for i, args in enumerate(WRONG)]
    turns = [AIMessage(content="", tool_calls=[request]) for request in requests]
    model = ScriptedModel(messages=iter([*turns, AIMessage(content="done")]))
    answer = await create_agent(model, tools=[make_code_tool(fake.create)]).ainvoke(
        {"messages": [("user", "go")]}
    )
    seen = [message for message in answer["messages"] if isinstance(message, ToolMessage)]
    assert [message.status for message in seen] == ["error"] * len(WRONG)
    assert all("code" in message.text or "timeout" in message.text for message in seen)
    assert answer["messages"][-1].text == "done"
    assert fake.calls == []


async def test_a_sync_sandbox_serves_both_kinds_of_callers() -> None:
    with create_sync("fake://") as sandbox:
        tool = make_command_tool(sandbox)
        assert tool.invoke(call("command", "echo x")).content == "exit code: 0\nstdout:\nx"
        assert (await tool.ainvoke(call("command", "echo y"))).content == "exit code: 0\nstdout:\ny"


class ScriptedModel(GenericFakeChatModel):
    def bind_tools(self, tools: Any, **options: Any) -> ScriptedModel:
        return self


def says(*calls: str) -> Iterator[AIMessage]:
    for number, code in enumerate(calls):
        request = {"name": "run_python", "args": {"code": code}, "id": f"c{number}", "type": "tool_call"}
        yield AIMessage(content="", tool_calls=[request])
    yield AIMessage(content="done")


async def test_an_agent_sees_output_failure_and_timeout_and_goes_on(fake: FakeBackend) -> None:
    model = ScriptedModel(messages=says("good", "bad", "slow"))
    agent = create_agent(model, tools=[make_code_tool(fake.create, timeout=1)])
    answer = await agent.ainvoke({"messages": [("user", "go")]})
    seen = [message for message in answer["messages"] if isinstance(message, ToolMessage)]
    assert [message.status for message in seen] == ["success", "success", "error"]
    assert "forty-two" in seen[0].text
    assert "exit code: 3" in seen[1].text
    assert "SBX_E1302" in seen[2].text
    assert answer["messages"][-1].text == "done"


class TestUnits(ToolsUnitTests):
    """LangChain's own requirements of a tool."""

    @property
    def tool_constructor(self) -> StructuredTool:
        return make_code_tool(FakeBackend().create)

    @property
    def tool_invoke_params_example(self) -> dict[str, Any]:
        return {"code": "print(6 * 7)"}


class TestIntegration(ToolsIntegrationTests):
    """LangChain's own calls of a tool."""

    @property
    def tool_constructor(self) -> StructuredTool:
        return make_code_tool(FakeBackend().create)

    @property
    def tool_invoke_params_example(self) -> dict[str, Any]:
        return {"code": "print(6 * 7)"}

"""LangChain and LangGraph: sandbox tools as ``langchain_core.tools.StructuredTool``.

    agent = create_agent(model, tools=[make_code_tool(sandbox)])

Works with ``invoke`` and ``ainvoke``. The text for the model is the tool's content, the
:class:`~sandboxio.ExecResult` its artifact. A sandbox error is raised as ``ToolException``, which the tool
handles: the model reads the code and the fix in a message of status "error", and the run goes on.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from typing import TypeAlias

from sandboxio.errors import BackendNotInstalled, SandboxError
from sandboxio.model_text import render_for_model, render_result
from sandboxio.models import ExecResult

from . import _tool
from ._tool import SandboxTool, Source

try:
    from langchain_core.tools import StructuredTool, ToolException
    from pydantic import BaseModel, Field
except ModuleNotFoundError as _missing:
    raise BackendNotInstalled(
        "LangChain is not installed.", hint='pip install "sandboxio[langgraph]"'
    ) from _missing

Answer: TypeAlias = tuple[str, ExecResult]
_structured = partial(
    StructuredTool.from_function, response_format="content_and_artifact", handle_tool_error=True
)


class _Code(BaseModel, extra="forbid"):
    code: str = Field(description=_tool.CODE_ARGUMENT)


class _Command(BaseModel, extra="forbid"):
    command: str = Field(description=_tool.COMMAND_ARGUMENT)


def make_code_tool(
    source: Source,
    *,
    name: str = _tool.CODE_NAME,
    description: str = _tool.CODE_DESCRIPTION,
    timeout: float | None = None,
) -> StructuredTool:
    """A tool that runs Python code in the sandbox. ``timeout`` is in seconds, None the sandbox's."""
    tool = SandboxTool(source, timeout)

    def code_sync(code: str) -> Answer:
        with _told():
            return _answer(tool.run_code_sync(code))

    async def code_async(code: str) -> Answer:
        with _told():
            return _answer(await tool.run_code(code))

    return _structured(code_sync, code_async, name=name, description=description, args_schema=_Code)


def make_command_tool(
    source: Source,
    *,
    name: str = _tool.COMMAND_NAME,
    description: str = _tool.COMMAND_DESCRIPTION,
    timeout: float | None = None,
) -> StructuredTool:
    """A tool that runs a shell command in the sandbox. ``timeout`` is in seconds, None the sandbox's."""
    tool = SandboxTool(source, timeout)

    def command_sync(command: str) -> Answer:
        with _told():
            return _answer(tool.run_command_sync(command))

    async def command_async(command: str) -> Answer:
        with _told():
            return _answer(await tool.run_command(command))

    return _structured(command_sync, command_async, name=name, description=description, args_schema=_Command)


def _answer(result: ExecResult) -> Answer:
    return render_result(result), result


@contextmanager
def _told() -> Generator[None]:
    try:
        yield
    except SandboxError as error:
        raise ToolException(render_for_model(error)) from error

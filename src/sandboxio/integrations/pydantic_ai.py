"""Pydantic AI: sandbox tools as ``pydantic_ai.Tool``.

    agent = Agent(model, tools=[make_code_tool(sandbox)])

A sandbox error is raised as ``ToolFailed``: the model reads the code and the fix, no retry budget is spent,
and the run goes on. For whole workspaces see :mod:`sandboxio.integrations.pydantic_ai_workspace`.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Annotated

from sandboxio.errors import BackendNotInstalled, SandboxError
from sandboxio.model_text import render_for_model, render_result
from sandboxio.models import ExecResult

from . import _tool
from ._tool import SandboxTool, Source

try:
    from pydantic import Field
    from pydantic_ai import Tool
    from pydantic_ai.exceptions import ToolFailed
except ModuleNotFoundError as _missing:
    raise BackendNotInstalled(
        "Pydantic AI is not installed.", hint='pip install "sandboxio[pydantic-ai]"'
    ) from _missing


def make_code_tool(
    source: Source,
    *,
    name: str = _tool.CODE_NAME,
    description: str = _tool.CODE_DESCRIPTION,
    timeout: float | None = None,
) -> Tool[object]:
    """A tool that runs Python code in the sandbox. ``timeout`` is in seconds, None the sandbox's."""
    tool = SandboxTool(source, timeout)

    async def run_code(code: Annotated[str, Field(description=_tool.CODE_ARGUMENT)]) -> str:
        return await _answer(tool.run_code(code))

    return Tool(run_code, takes_ctx=False, name=name, description=description)


def make_command_tool(
    source: Source,
    *,
    name: str = _tool.COMMAND_NAME,
    description: str = _tool.COMMAND_DESCRIPTION,
    timeout: float | None = None,
) -> Tool[object]:
    """A tool that runs a shell command in the sandbox. ``timeout`` is in seconds, None the sandbox's."""
    tool = SandboxTool(source, timeout)

    async def run_command(command: Annotated[str, Field(description=_tool.COMMAND_ARGUMENT)]) -> str:
        return await _answer(tool.run_command(command))

    return Tool(run_command, takes_ctx=False, name=name, description=description)


async def _answer(call: Awaitable[ExecResult]) -> str:
    try:
        return render_result(await call)
    except SandboxError as error:
        raise ToolFailed(render_for_model(error)) from error

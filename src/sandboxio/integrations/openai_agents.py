"""OpenAI Agents SDK: sandbox tools as ``agents.FunctionTool``, with strict schemas.

    agent = Agent(name="analyst", tools=[make_code_tool(functools.partial(sandboxio.create, "e2b://"))])

A sandbox error is rendered for the model; wrong arguments are told to it as well, so that it can mend its
call. The text of any other exception is not for a model: it may be a bug, or hold a secret.
"""

from __future__ import annotations

from typing import Annotated, Any

from sandboxio.errors import BackendNotInstalled, SandboxError
from sandboxio.model_text import ERROR_LIMIT, clip, render_for_model, render_result

from . import _tool
from ._tool import SandboxTool, Source

try:
    from agents import FunctionTool, ModelBehaviorError, RunContextWrapper, function_tool
    from pydantic import Field

    from sandboxio.integrations.openai_sandbox_client import (
        SbxSandboxClient as SbxSandboxClient,
        SbxSandboxOptions as SbxSandboxOptions,
    )
except ModuleNotFoundError as _missing:
    raise BackendNotInstalled(
        "The OpenAI Agents SDK is not installed.", hint='pip install "sandboxio[openai-agents]"'
    ) from _missing


def make_code_tool(
    source: Source,
    *,
    name: str = _tool.CODE_NAME,
    description: str = _tool.CODE_DESCRIPTION,
    timeout: float | None = None,
) -> FunctionTool:
    """A tool that runs Python code in the sandbox. ``timeout`` is in seconds, None the sandbox's."""
    tool = SandboxTool(source, timeout)

    async def run_code(code: Annotated[str, Field(description=_tool.CODE_ARGUMENT)]) -> str:
        return render_result(await tool.run_code(code))

    return function_tool(
        run_code, name_override=name, description_override=description, failure_error_function=explain_failure
    )


def make_command_tool(
    source: Source,
    *,
    name: str = _tool.COMMAND_NAME,
    description: str = _tool.COMMAND_DESCRIPTION,
    timeout: float | None = None,
) -> FunctionTool:
    """A tool that runs a shell command in the sandbox. ``timeout`` is in seconds, None the sandbox's."""
    tool = SandboxTool(source, timeout)

    async def run_command(command: Annotated[str, Field(description=_tool.COMMAND_ARGUMENT)]) -> str:
        return render_result(await tool.run_command(command))

    return function_tool(
        run_command,
        name_override=name,
        description_override=description,
        failure_error_function=explain_failure,
    )


def explain_failure(context: RunContextWrapper[Any], error: Exception) -> str:
    """What the model reads when a tool call fails; the SDK calls this."""
    if isinstance(error, SandboxError):
        return render_for_model(error)
    if isinstance(error, ModelBehaviorError):
        return f"The call was not understood: {clip(str(error), ERROR_LIMIT)}"
    return "An error occurred while running the tool."  # the SDK's own text tells the exception before 0.22

"""What the tools of every framework have in common: where the sandbox comes from, and the words.

A *source* is a ready sandbox, used by all calls and owned by you, or a factory, called once for each tool
call, whose sandbox ends with the call. A factory is async, as ``sandboxio.create`` is. A ready
``SyncSandbox`` serves both kinds of callers; a ready async sandbox belongs to its event loop and so serves
async callers only.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias, cast

from anyio.from_thread import start_blocking_portal

from sandboxio.errors import AuditSinkError, ConfigurationError, OrphanedSandboxWarning, SandboxError
from sandboxio.models import ExecResult
from sandboxio.protocols import AsyncSandbox
from sandboxio.sync import SyncSandbox, use_in_its_loop

Factory: TypeAlias = Callable[[], Awaitable[AsyncSandbox]]
Source: TypeAlias = AsyncSandbox | SyncSandbox | Factory

CODE_NAME = "run_python"
CODE_DESCRIPTION = (
    "Run Python 3 code in an isolated sandbox and return its exit code, stdout and stderr. Print what you "
    "want to see. Unless told otherwise there is no network, nothing can be installed, and variables do not "
    "survive between calls; files in the working folder may. Long output is cut in the middle."
)
CODE_ARGUMENT = "The complete Python program to run."
COMMAND_NAME = "run_command"
COMMAND_DESCRIPTION = (
    "Run one shell command in an isolated sandbox and return its exit code, stdout and stderr. There is no "
    "terminal and no input: use flags instead of answering prompts. Unless told otherwise there is no "
    "network. Long output is cut in the middle."
)
COMMAND_ARGUMENT = "The command, as typed into a shell."


@dataclass(frozen=True)
class SandboxTool:
    """One kind of call on a source. ``timeout`` is in seconds; None inherits the sandbox's."""

    source: Source
    timeout: float | None = None

    async def run_code(self, code: str) -> ExecResult:
        """Run Python code; raises ``SandboxError``, never for a non-zero exit."""
        return await self._with_sandbox(lambda sandbox: sandbox.run_code(code, timeout=self.timeout))

    async def run_command(self, command: str) -> ExecResult:
        """Run a shell command; raises ``SandboxError``, never for a non-zero exit."""
        return await self._with_sandbox(lambda sandbox: sandbox.run(command, timeout=self.timeout))

    def run_code_sync(self, code: str) -> ExecResult:
        """:meth:`run_code` for callers without an event loop."""
        if isinstance(self.source, SyncSandbox):
            return self.source.run_code(code, timeout=self.timeout)
        return self._in_a_loop_of_its_own(lambda: self.run_code(code))

    def run_command_sync(self, command: str) -> ExecResult:
        """:meth:`run_command` for callers without an event loop."""
        if isinstance(self.source, SyncSandbox):
            return self.source.run(command, timeout=self.timeout)
        return self._in_a_loop_of_its_own(lambda: self.run_command(command))

    async def _with_sandbox(self, use: Callable[[AsyncSandbox], Awaitable[ExecResult]]) -> ExecResult:
        if isinstance(self.source, SyncSandbox):
            return await use_in_its_loop(self.source, use)
        if not callable(self.source):
            return await use(self.source)
        return await _used_once(await _made(self.source), use)

    def _in_a_loop_of_its_own(self, call: Callable[[], Awaitable[ExecResult]]) -> ExecResult:
        if not callable(self.source):
            raise ConfigurationError(
                "This tool holds an async sandbox, which works only in its own event loop.",
                hint="Call the tool with await (ainvoke), or give it create_sync(...) or a factory.",
            )
        with start_blocking_portal() as portal:
            return portal.call(call)


async def _made(factory: Callable[[], object]) -> AsyncSandbox:
    """The sandbox of one call, if ``factory`` gives one; callers of a tool need no type checker."""
    given = factory()
    if awaitable := inspect.isawaitable(given):
        given = await given
    if isinstance(given, SyncSandbox):
        with given:  # ends it and its thread; the loop stands still for that, as it did for its creation
            raise ConfigurationError(
                "The factory of this tool gave a SyncSandbox, which holds up the agent's loop; it was ended.",
                hint="Pass functools.partial(sandboxio.create, ...), or one create_sync(...) for all calls.",
            )
    if awaitable and all(hasattr(given, name) for name in ("run", "run_code", "__aenter__", "__aexit__")):
        return cast("AsyncSandbox", given)
    raise ConfigurationError(
        f"The factory of this tool gave {type(given).__name__}, not an awaitable of an async sandbox.",
        hint="Pass functools.partial(sandboxio.create, ...), or a ready sandbox without a factory.",
    )


async def _used_once(
    sandbox: AsyncSandbox, use: Callable[[AsyncSandbox], Awaitable[ExecResult]]
) -> ExecResult:
    """What ``use`` gives, and the sandbox ended; if only that is refused, it is a warning.

    A model that read the refusal in place of the result would repeat a command that has had its effect.
    """
    result: ExecResult | None = None
    try:
        async with sandbox as entered:
            result = await use(entered)
    except AuditSinkError:
        raise  # the sandbox has ended, and whoever asked for "fail" wants no answer without its record
    except SandboxError as error:
        if result is None:
            raise
        warnings.warn(
            f"Sandbox {sandbox.id} of a tool call that has its result may still exist: {error}",
            OrphanedSandboxWarning,
            stacklevel=2,
        )
    return result

"""Fakes that are broken on purpose, each in one way, and the tests of the contract that must notice.

Collected only by `test_sabotage.py`, in a run of its own: every class here fails.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, cast

import anyio
import anyio.lowlevel

from contract.test_fake import FakeProbes
from sandboxio import Capability, NetworkPolicy, Resources
from sandboxio.adapter import BaseProcess, SandboxRequest
from sandboxio.audit import AuditConfig
from sandboxio.errors import (
    CreationError,
    ExecutionTimeout,
    PathNotFound,
    ResourceLimitExceeded,
    SandboxError,
    SandboxGone,
)
from sandboxio.models import ExecResult, OutputChunk, RichOutput
from sandboxio.testing import FakeBackend, RecordingSink
from sandboxio.testing.fake.execution import FakeExecution
from sandboxio.testing.fake.machine import Machine
from sandboxio.testing.fake.sandbox import FakeSandbox
from sandboxio.testing.suite import BackendContractSuite
from sandboxio.testing.suite.base import LABEL


class Broken(FakeProbes, BackendContractSuite):
    """A fake with one fault. A subclass changes the backend, the sandbox, the run or the process."""

    catches: ClassVar[set[str]]
    """The tests that must fail, on both loops; all others must not."""
    may_catch: ClassVar[set[str]] = set()
    """Tests that meet the fault only if two deadlines come in one order."""
    thorough: ClassVar[bool] = False
    """Whether the whole suite runs, or only the areas of the tests that must fail."""
    patience = 15.0
    output_limit = 1 << 20

    class Backend(FakeBackend):
        pass

    class Sandbox(FakeSandbox):
        pass

    class Execution(FakeExecution):
        pass

    class Process(BaseProcess):
        pass

    @classmethod
    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.audit_sink = RecordingSink()
        cls.backend = cls.made()
        cls.backend.on_run(
            "exhaust memory", raises=ResourceLimitExceeded("The memory cap of 128 MiB was hit.")
        )

    @classmethod
    def made(cls) -> FakeBackend:
        return cls.wired(cls.Backend)(
            audit=AuditConfig(sinks=(cls.audit_sink,)), output_limit=cls.output_limit
        )

    @classmethod
    def wired(cls, kind: type[FakeBackend]) -> type[FakeBackend]:
        """The backend's class, making sandboxes, runs and processes of the broken kinds."""
        suite = cls

        class Sandbox(suite.Sandbox):  # type: ignore[name-defined, misc]
            def _execution(self, *arguments: Any, **named: Any) -> Any:
                execution = super()._execution(*arguments, **named)
                execution.__class__ = suite.Execution
                return execution

            def stream(self, *arguments: Any, **named: Any) -> Any:
                process = super().stream(*arguments, **named)
                if isinstance(process, BaseProcess):
                    process.__class__ = suite.Process
                return process

        for name in ("run", "run_code", "stream"):  # the overrides below are shorter than the port
            vars(Sandbox).get(name, getattr(Sandbox, name)).__signature__ = inspect.signature(
                getattr(FakeSandbox, name)
            )

        class Backend(kind):  # type: ignore[valid-type, misc]
            def _handle(self, machine: Machine, request: SandboxRequest) -> FakeSandbox:
                sandbox = super()._handle(machine, request)
                sandbox.__class__ = Sandbox
                return sandbox

        return Backend


# Policy


class TestDenyIsIgnored(Broken):
    thorough = True
    catches: ClassVar = {"test_deny_denies"}

    class Backend(FakeBackend):
        async def _provision(self, request: SandboxRequest) -> FakeSandbox:
            if request.network == NetworkPolicy():
                request = replace(request, network=NetworkPolicy(egress="allow"))
            return await super()._provision(request)


class TestAllowlistOpensEverything(Broken):
    catches: ClassVar = {"test_an_allowlist_permits_what_it_lists_and_nothing_else"}

    class Backend(FakeBackend):
        async def _provision(self, request: SandboxRequest) -> FakeSandbox:
            if request.network.allow:
                request = replace(request, network=NetworkPolicy(egress="allow"))
            return await super()._provision(request)


class TestCapsAreIgnored(Broken):
    thorough = True
    catches: ClassVar = {"test_caps_that_were_asked_for_are_in_force"}

    class Backend(FakeBackend):
        async def _provision(self, request: SandboxRequest) -> FakeSandbox:
            return await super()._provision(replace(request, resources=Resources()))


class TestNoCapsByDefault(Broken):
    catches: ClassVar = {"test_caps_are_in_force_when_nobody_asks"}

    class Backend(FakeBackend):
        async def _provision(self, request: SandboxRequest) -> FakeSandbox:
            sandbox = await super()._provision(request)
            sandbox.native.resources = request.resources
            return sandbox


class TestIngressPortsAreIgnored(Broken):
    catches: ClassVar = {"test_ingress_ports_are_refused"}

    class Backend(FakeBackend):
        def _check_policy(self, request: SandboxRequest) -> None:
            super()._check_policy(replace(request, network=replace(request.network, ingress_ports=())))


class TestLearningIsTakenForDeny(Broken):
    catches: ClassVar = {"test_learning_egress_is_refused"}

    class Backend(FakeBackend):
        def _check_policy(self, request: SandboxRequest) -> None:
            super()._check_policy(
                replace(request, network=NetworkPolicy(ingress_ports=request.network.ingress_ports))
            )


class TestDiskCapIsIgnored(Broken):
    catches: ClassVar = {"test_a_disk_cap_that_cannot_be_kept_is_refused"}

    class Backend(FakeBackend):
        def _check(self, request: SandboxRequest) -> None:
            pass


# Cancellation and teardown


class TestOrphanAfterCancel(Broken):
    patience = 1.5
    thorough = True
    catches: ClassVar = {
        "test_cancelling_run_kills_the_command",
        "test_cancelling_run_kills_a_command_that_ignores_signals",
        "test_cancelling_run_code_kills_the_code",
        "test_cancelling_a_stream_kills_the_command",
        "test_stream_left_by_break_leaves_nothing",
        "test_stream_left_by_an_exception_leaves_nothing",
        "test_stream_left_by_a_cancellation_leaves_nothing",
    }

    class Execution(FakeExecution):
        async def kill(self) -> None:
            self._end(137)


class TestOrphanAfterTimeout(Broken):
    patience = 1.5
    catches: ClassVar = {
        "test_a_run_timeout_raises_and_kills",
        "test_a_run_timeout_kills_what_ignores_signals",
        "test_run_code_timeout_raises_and_kills",
        "test_stream_that_timed_out_leaves_nothing",
    }

    class Execution(FakeExecution):
        async def receive(self) -> OutputChunk | None:
            chunk = await super().receive()
            if self.exit is not None and self.exit.timed_out and self._job is not None:
                self._job.exit_code = None
                self._machine._runs.append(self._run)
                self._job.wakes_at = float("inf")
            return chunk


class TestStreamBreakLeavesAnOrphan(Broken):
    patience = 1.5
    catches: ClassVar = {"test_stream_left_by_break_leaves_nothing"}

    class Process(BaseProcess):
        async def __aexit__(self, *leaving: object) -> None:
            if leaving[1] is None and self.returncode is None:
                self._down = anyio.Event()
                self._down.set()  # as if it had been put down
            await super().__aexit__(*leaving)


class TestStreamExceptionLeavesAnOrphan(Broken):
    patience = 1.5
    catches: ClassVar = {"test_stream_left_by_an_exception_leaves_nothing"}

    class Process(BaseProcess):
        async def __aexit__(self, *leaving: object) -> None:
            if isinstance(leaving[1], ValueError):
                self._down = anyio.Event()
                self._down.set()  # as if it had been put down
            await super().__aexit__(*leaving)


class TestCancellationIsWrapped(Broken):
    thorough = True
    catches: ClassVar = {
        "test_cancelling_run_kills_the_command",
        "test_cancelling_run_kills_a_command_that_ignores_signals",
        "test_the_deadline_of_the_caller_is_no_sandbox_timeout",
    }

    class Sandbox(FakeSandbox):
        async def run(self, *arguments: Any, **named: Any) -> ExecResult:
            try:
                return await super().run(*arguments, **named)
            except anyio.get_cancelled_exc_class() as error:
                raise ExecutionTimeout("It was cancelled.") from error


class TestCancelledKillDoesNothing(Broken):
    patience = 1.5
    catches: ClassVar = {
        "test_a_cancelled_kill_still_ends_it",
        "test_leaving_the_context_while_cancelled_still_ends_it",
    }

    class Sandbox(FakeSandbox):
        async def kill(self) -> None:
            await anyio.lowlevel.checkpoint()
            await super().kill()


class TestKillIsNotIdempotent(Broken):
    thorough = True
    catches: ClassVar = {
        "test_kill_is_idempotent",
        "test_kill_works_inside_a_shielded_scope",
        "test_a_managed_sandbox_is_ended_by_its_id",
    }

    class Sandbox(FakeSandbox):
        async def kill(self) -> None:
            self._check_usable()
            await super().kill()


class TestKillOnlyForgets(Broken):
    patience = 1.5
    catches: ClassVar = {
        "test_an_ended_sandbox_is_not_held_by_the_provider",
        "test_kill_ends_it",
        "test_leaving_the_context_ends_it",
        "test_an_exception_in_the_context_ends_it_and_passes_through",
        "test_kills_at_the_same_time_all_succeed",
        "test_kill_ends_what_runs_and_tells_it",
        "test_connecting_to_an_ended_sandbox_is_refused",
        "test_connecting_gives_a_handle_on_the_same_sandbox",
        "test_it_may_be_made_used_and_ended_in_different_tasks",
        "test_leaving_the_context_while_cancelled_still_ends_it",
        "test_a_cancelled_kill_still_ends_it",
        "test_kill_works_inside_a_shielded_scope",
        "test_a_kill_without_answer_ends_with_a_warning",
        "test_a_refused_kill_is_a_connect_error",
        "test_cancelling_create_leaves_nothing",
    }

    class Sandbox(FakeSandbox):
        async def _destroy(self) -> None:
            await anyio.lowlevel.checkpoint()


class TestKillByIdIsAlwaysNews(Broken):
    catches: ClassVar = {"test_a_managed_sandbox_is_ended_by_its_id"}

    class Backend(FakeBackend):
        async def kill_managed(self, sandbox_id: str) -> bool:
            await super().kill_managed(sandbox_id)
            return True


class TestLeavingDoesNotEnd(Broken):
    patience = 1.5
    catches: ClassVar = {
        "test_leaving_the_context_ends_it",
        "test_an_exception_in_the_context_ends_it_and_passes_through",
        "test_leaving_the_context_while_cancelled_still_ends_it",
        "test_it_may_be_made_used_and_ended_in_different_tasks",
        "test_connecting_gives_a_handle_on_the_same_sandbox",
    }

    class Sandbox(FakeSandbox):
        async def __aexit__(self, *leaving: object) -> None:
            pass


class TestTeardownIsUnbounded(Broken):
    patience = 1.5
    catches: ClassVar = {"test_a_kill_without_answer_ends_with_a_warning"}

    class Sandbox(FakeSandbox):
        def _grace(self) -> float:
            return 5.0


class TestNoWarningOfAnOrphan(Broken):
    catches: ClassVar = {"test_a_kill_without_answer_ends_with_a_warning"}

    class Sandbox(FakeSandbox):
        def _warn_orphan(self, why: str) -> None:
            pass


class TestRefusedKillIsSilent(Broken):
    catches: ClassVar = {"test_a_refused_kill_is_a_connect_error"}

    class Sandbox(FakeSandbox):
        async def kill(self) -> None:
            with suppress(SandboxError):
                await super().kill()


class TestCancelledCreateLeavesASandbox(Broken):
    patience = 1.5
    catches: ClassVar = {"test_cancelling_create_leaves_nothing"}

    class Backend(FakeBackend):
        async def _provision(self, request: SandboxRequest) -> FakeSandbox:
            sandbox = await super()._provision(request)
            await anyio.sleep(0.15)
            return sandbox


class TestCreateIsShielded(Broken):
    patience = 1.5
    catches: ClassVar = {"test_cancelling_a_slow_create_is_not_held_up"}

    class Backend(FakeBackend):
        async def _provision(self, request: SandboxRequest) -> FakeSandbox:
            with anyio.CancelScope(shield=True):
                return await super()._provision(request)


# Timeouts


class TestTimeoutIsNotRaised(Broken):
    patience = 1.5
    thorough = True
    catches: ClassVar = {
        "test_a_run_timeout_raises_and_kills",
        "test_a_run_timeout_kills_what_ignores_signals",
        "test_a_run_timeout_keeps_what_was_printed",
        "test_a_run_timeout_spares_other_runs",
        "test_the_deadline_of_the_caller_is_no_sandbox_timeout",
        "test_a_run_that_times_out_leaves_one_record",
    }

    class Sandbox(FakeSandbox):
        async def run(self, cmd: Any, *, timeout: Any = None, env: Any = None) -> ExecResult:
            if isinstance(timeout, int) and not isinstance(timeout, bool) and 0 < timeout < 60:
                timeout = 560
            return await super().run(cmd, timeout=timeout, env=env)


class TestPartialOutputAsSuccess(Broken):
    thorough = True
    catches: ClassVar = {
        "test_a_run_timeout_raises_and_kills",
        "test_a_run_timeout_kills_what_ignores_signals",
        "test_a_run_timeout_keeps_what_was_printed",
        "test_a_run_timeout_spares_other_runs",
        "test_the_deadline_of_the_caller_is_no_sandbox_timeout",
        "test_a_run_that_times_out_leaves_one_record",
    }
    may_catch: ClassVar = {"test_the_lifetime_ends_a_sandbox_in_use"}

    class Sandbox(FakeSandbox):
        async def run(self, *arguments: Any, **named: Any) -> ExecResult:
            try:
                return await super().run(*arguments, **named)
            except ExecutionTimeout as error:
                return cast("ExecResult", error.partial)


class TestPartialOutputIsLost(Broken):
    catches: ClassVar = {"test_a_run_timeout_keeps_what_was_printed"}

    class Sandbox(FakeSandbox):
        async def run(self, *arguments: Any, **named: Any) -> ExecResult:
            try:
                return await super().run(*arguments, **named)
            except ExecutionTimeout as error:
                error.partial = None
                raise


class TestBuiltinTimeoutErrorEscapes(Broken):
    thorough = True
    catches: ClassVar = {
        "test_a_run_timeout_raises_and_kills",
        "test_a_run_timeout_kills_what_ignores_signals",
        "test_a_run_timeout_keeps_what_was_printed",
        "test_a_run_timeout_spares_other_runs",
        "test_the_deadline_of_the_caller_is_no_sandbox_timeout",
        "test_a_run_that_times_out_leaves_one_record",
        "test_errors_carry_code_hint_and_page",
        "test_secrets_appear_nowhere",
    }
    may_catch: ClassVar = {"test_the_lifetime_ends_a_sandbox_in_use"}

    class Sandbox(FakeSandbox):
        async def run(self, *arguments: Any, **named: Any) -> ExecResult:
            try:
                return await super().run(*arguments, **named)
            except ExecutionTimeout as error:
                raise TimeoutError from error


class TestTimeoutEndsOtherRuns(Broken):
    catches: ClassVar = {"test_a_run_timeout_spares_other_runs"}
    # It still runs at the timeout, however busy the machine is.
    cmd_slow: ClassVar = ["sh", "-c", "echo a; sleep 200; echo b"]

    class Execution(FakeExecution):
        async def receive(self) -> OutputChunk | None:
            chunk = await super().receive()
            if self.exit is not None and self.exit.timed_out:
                for run in self._machine._runs:
                    run.kill()
            return chunk


class TestExpiryIsCalledATimeout(Broken):
    catches: ClassVar = {
        "test_an_expired_sandbox_is_gone",
        "test_a_sandbox_that_expires_under_a_run",
        "test_the_lifetime_ends_a_sandbox_in_use",
        "test_kill_ends_what_runs_and_tells_it",
        "test_connecting_gives_a_handle_on_the_same_sandbox",
        "test_a_managed_sandbox_is_ended_by_its_id",
    }

    class Execution(FakeExecution):
        async def start(self) -> None:
            try:
                await super().start()
            except SandboxGone as error:
                raise ExecutionTimeout("It took too long.") from error

        async def receive(self) -> OutputChunk | None:
            try:
                return await super().receive()
            except SandboxGone as error:
                raise ExecutionTimeout("It took too long.") from error


# Output


class TestStdoutAndStderrAreMixed(Broken):
    thorough = True
    catches: ClassVar = {
        "test_run_keeps_stdout_and_stderr_apart",
        "test_run_a_string_goes_through_a_shell",
        "test_run_a_program_that_cannot_start",
        "test_a_run_timeout_keeps_what_was_printed",
        "test_run_code_prints",
        "test_run_code_that_is_not_python_fails_with_its_reason",
        "test_run_code_that_raises_fails_with_its_reason",
        "test_run_code_without_a_context_keeps_nothing",
        "test_stream_tells_stdout_from_stderr",
        "test_stream_starts_when_it_is_entered",
        "test_stream_env_and_arguments",
    }

    class Execution(FakeExecution):
        async def receive(self) -> OutputChunk | None:
            chunk = await super().receive()
            return None if chunk is None else OutputChunk("stdout", chunk.data)


class TestOrderIsLost(Broken):
    thorough = True
    catches: ClassVar = {
        "test_stream_keeps_the_order_within_a_stream",
        "test_run_output_below_the_cap_is_whole",
        "test_run_output_is_capped_and_says_so",
        "test_run_decodes_text_longer_than_any_buffer",
    }
    may_catch: ClassVar = {"test_stream_one_task_reads_while_another_waits"}  # it may get small pieces only

    class Execution(FakeExecution):
        async def receive(self) -> OutputChunk | None:
            chunk = await super().receive()
            later = self._run.pipe.take() if chunk is not None and len(chunk.data) > 10_000 else None
            if chunk is None or later is None:
                return chunk
            if later.stream != chunk.stream:
                return OutputChunk(chunk.stream, chunk.data + later.data)
            return OutputChunk(chunk.stream, later.data + chunk.data)


class TestCapIsIgnored(Broken):
    catches: ClassVar = {"test_run_output_is_capped_and_says_so"}

    @classmethod
    def made(cls) -> FakeBackend:
        return cls.wired(cls.Backend)(audit=AuditConfig(sinks=(cls.audit_sink,)), output_limit=1 << 30)


class TestTruncationIsSilent(Broken):
    catches: ClassVar = {"test_run_output_is_capped_and_says_so"}

    class Sandbox(FakeSandbox):
        async def run(self, *arguments: Any, **named: Any) -> ExecResult:
            return replace(await super().run(*arguments, **named), truncated=False)


class TestEachChunkIsDecodedOnItsOwn(Broken):
    catches: ClassVar = {
        "test_run_decodes_characters_that_arrive_in_pieces",
        "test_run_decodes_text_longer_than_any_buffer",
    }

    class Execution(FakeExecution):
        async def receive(self) -> OutputChunk | None:
            chunk = await super().receive()
            if chunk is None:
                return None
            return OutputChunk(chunk.stream, chunk.data.decode("utf-8", "replace").encode())


class TestBackgroundChildHoldsTheRun(Broken):
    patience = 1.5
    catches: ClassVar = {"test_run_does_not_wait_for_a_background_child"}

    class Execution(FakeExecution):
        async def receive(self) -> OutputChunk | None:
            chunk = await super().receive()
            if chunk is None and self._run.alive:
                await anyio.sleep_forever()
            return chunk


# Commands and code


class TestListGoesThroughAShell(Broken):
    catches: ClassVar = {"test_run_a_list_goes_through_no_shell"}

    class Sandbox(FakeSandbox):
        def _command(self, command: Any, **named: Any) -> Any:
            if command[:2] == ("echo", "x"):
                command = " ".join(command)
            return super()._command(command, **named)


class TestEnvironmentStays(Broken):
    catches: ClassVar = {"test_run_env_is_added_for_one_call"}

    class Sandbox(FakeSandbox):
        def _command(self, command: Any, *, env: Mapping[str, str], seconds: float) -> Any:
            self.native.__dict__.setdefault("kept", {}).update(env)
            return super()._command(command, env=self.native.__dict__["kept"], seconds=seconds)


class TestHostEnvironmentLeaks(Broken):
    catches: ClassVar = {"test_run_sees_nothing_of_the_host_environment"}

    class Sandbox(FakeSandbox):
        def _command(self, command: Any, *, env: Mapping[str, str], seconds: float) -> Any:
            import os

            host = {key: value for key, value in os.environ.items() if key == "SBX_SUITE_HOST"}
            return super()._command(command, env={**host, **env}, seconds=seconds)


class TestUnknownLanguageIsTakenForPython(Broken):
    catches: ClassVar = {"test_run_code_refuses_a_language_it_does_not_have"}

    class Sandbox(FakeSandbox):
        def _code(self, code: str, *, language: str, context_id: str | None, seconds: float) -> Any:
            return super()._code(code, language="python", context_id=context_id, seconds=seconds)


class TestContextsShareVariables(Broken):
    catches: ClassVar = {"test_a_context_keeps_variables"}

    class Sandbox(FakeSandbox):
        def _code(self, code: str, *, language: str, context_id: str | None, seconds: float) -> Any:
            if context_id in ("one", "two") and "x" in code:
                context_id = "shared"
            return super()._code(code, language=language, context_id=context_id, seconds=seconds)


class TestRichOutputsAreMadeUp(Broken):
    catches: ClassVar = {"test_run_code_has_rich_outputs_only_if_declared"}
    rich_outputs = False

    class Sandbox(FakeSandbox):
        async def run_code(self, *arguments: Any, **named: Any) -> ExecResult:
            result = await super().run_code(*arguments, **named)
            return replace(result, results=(RichOutput("text/plain", result.stdout),))


# Streams


class TestStreamCanBeAwaited(Broken):
    catches: ClassVar = {"test_stream_cannot_be_awaited"}

    class Process(BaseProcess):
        def __await__(self) -> Any:
            yield


class TestWaitIsNotIdempotent(Broken):
    thorough = True
    catches: ClassVar = {"test_stream_wait_is_idempotent_and_drops_unread_output"}

    class Process(BaseProcess):
        async def wait(self) -> ExecResult:
            if self.__dict__.setdefault("waited", False):
                raise RuntimeError("already waited")
            self.__dict__["waited"] = True
            return await super().wait()


class TestWaitGivesTheOutputAgain(Broken):
    catches: ClassVar = {
        "test_stream_wait_gives_the_end_without_output",
        "test_stream_wait_is_idempotent_and_drops_unread_output",
        "test_blocking_calls_work_and_leave_no_thread",
    }

    class Process(BaseProcess):
        async def wait(self) -> ExecResult:
            return replace(await super().wait(), stdout="again", streamed=False)


class TestStreamKillEndsOtherRuns(Broken):
    catches: ClassVar = {"test_stream_kill_spares_other_runs"}

    class Process(BaseProcess):
        async def kill(self) -> None:
            await super().kill()
            for run in self._execution._machine._runs:  # type: ignore[attr-defined]
                run.kill()


class TestStreamWorksUndeclared(Broken):
    catches: ClassVar = {"test_stream_is_refused_before_it_is_entered"}

    @classmethod
    def made(cls) -> FakeBackend:
        backend = super().made()
        backend.capabilities &= ~Capability.STREAMING
        return backend

    class Sandbox(FakeSandbox):
        def stream(self, *arguments: Any, **named: Any) -> Any:
            self._capabilities |= Capability.STREAMING
            try:
                return super().stream(*arguments, **named)
            finally:
                self._capabilities &= ~Capability.STREAMING


# Files


class TestRelativePathsDiffer(Broken):
    thorough = True
    catches: ClassVar = {
        "test_files_and_commands_see_the_same_files",
        "test_connecting_gives_a_handle_on_the_same_sandbox",
        "test_run_decodes_text_longer_than_any_buffer",
    }

    class Sandbox(FakeSandbox):
        def _transfer(self) -> Any:
            transfer = super()._transfer()
            tree = copy.copy(self.native.tree)
            real = type(tree)
            for name in ("read", "write", "make_folder", "remove", "entries"):
                original = getattr(real, name)

                def elsewhere(path: str, *rest: Any, original: Any = original, **named: Any) -> Any:
                    return original(tree, path, *rest, start="/root", **named)

                setattr(tree, name, elsewhere)
            transfer._machine = copy.copy(self.native)
            transfer._machine.tree = tree
            self.native.__dict__.setdefault("others", []).append(transfer._machine)
            return transfer


class TestMissingFilesAreEmpty(Broken):
    catches: ClassVar = {
        "test_files_that_are_missing",
        "test_files_that_are_of_another_kind",
        "test_files_under_names_that_tools_take_for_something_else",
        "test_files_of_the_host_are_out_of_reach",
        "test_a_file_operation_leaves_one_record",
        "test_transfer_of_what_is_missing_changes_nothing",
        "test_blocking_calls_raise_the_same_errors",
    }

    class Sandbox(FakeSandbox):
        def _transfer(self) -> Any:
            transfer = super()._transfer()
            read = transfer.read_file

            async def read_file(path: str, sink: Any) -> None:
                with suppress(PathNotFound):
                    await read(path, sink)

            transfer.read_file = read_file  # type: ignore[method-assign]
            return transfer


class TestADashIsStandardInput(Broken):
    catches: ClassVar = {"test_files_under_names_that_tools_take_for_something_else"}

    class Sandbox(FakeSandbox):
        def _transfer(self) -> Any:
            transfer = super()._transfer()
            read = transfer.read_file

            async def read_file(path: str, sink: Any) -> None:
                if path != "-":  # which is at its end
                    await read(path, sink)

            transfer.read_file = read_file  # type: ignore[method-assign]
            return transfer


class TestFilesOfTheHostAreRead(Broken):
    catches: ClassVar = {"test_files_of_the_host_are_out_of_reach"}

    class Sandbox(FakeSandbox):
        def _transfer(self) -> Any:
            transfer = super()._transfer()
            read = transfer.read_file

            async def read_file(path: str, sink: Any) -> None:
                if path.startswith("/") and Path(path).is_file() and "host-secret" in path:
                    sink(Path(path).read_bytes())
                else:
                    await read(path, sink)

            transfer.read_file = read_file  # type: ignore[method-assign]
            return transfer


class TestLineEndsAreChanged(Broken):
    catches: ClassVar = {
        "test_files_round_trip_any_bytes",
        "test_files_write_text_as_utf8",
        "test_transfer_round_trips_any_bytes",
        "test_files_of_several_megabytes",
    }

    class Sandbox(FakeSandbox):
        def _transfer(self) -> Any:
            transfer = super()._transfer()
            read = transfer.read_file

            async def read_file(path: str, sink: Any) -> None:
                await read(path, lambda data: sink(data.replace(b"\r", b"")))

            transfer.read_file = read_file  # type: ignore[method-assign]
            return transfer


class TestPermissionsAreLost(Broken):
    catches: ClassVar = {"test_transfer_keeps_the_permission_to_execute"}

    class Sandbox(FakeSandbox):
        def _transfer(self) -> Any:
            transfer = super()._transfer()
            write = transfer.write_file

            async def write_file(path: str, source: Any, size: int, mode: int | None) -> None:
                await write(path, source, size, None)

            transfer.write_file = write_file  # type: ignore[method-assign]
            return transfer


# Honesty, errors, records


class TestConnectCreates(Broken):
    thorough = True
    catches: ClassVar = {
        "test_connecting_to_an_unknown_sandbox_is_refused",
        "test_blocking_calls_raise_the_same_errors",
    }

    class Backend(FakeBackend):
        async def _attach(self, sandbox_id: str) -> FakeSandbox:
            if sandbox_id not in self._machines:
                return self._made(SandboxRequest(timeout=300))
            return await super()._attach(sandbox_id)


class TestMetadataIsDropped(Broken):
    thorough = True
    catches: ClassVar = {"test_metadata_reaches_the_labels_of_the_provider"}

    class Backend(FakeBackend):
        async def _provision(self, request: SandboxRequest) -> FakeSandbox:
            sandbox = await super()._provision(request)
            labels = sandbox.native.labels
            sandbox.native.labels = {LABEL: labels[LABEL]} if LABEL in labels else {}
            return sandbox


class TestDeclaresWhatNoPortHas(Broken):
    thorough = True
    catches: ClassVar = {"test_every_declared_capability_has_its_methods"}

    @classmethod
    def made(cls) -> FakeBackend:
        backend = super().made()
        backend.capabilities |= Capability.PTY
        return backend


class TestProviderErrorEscapes(Broken):
    thorough = True
    catches: ClassVar = {"test_a_failure_of_the_provider_is_mapped_and_kept_as_cause"}

    class Backend(FakeBackend):
        async def _provision(self, request: SandboxRequest) -> FakeSandbox:
            try:
                return await super()._provision(request)
            except CreationError as error:
                if error.__cause__ is not None and type(error) is CreationError:
                    raise error.__cause__ from None
                raise


class TestCauseIsDropped(Broken):
    catches: ClassVar = {"test_a_failure_of_the_provider_is_mapped_and_kept_as_cause"}

    class Backend(FakeBackend):
        async def _provision(self, request: SandboxRequest) -> FakeSandbox:
            try:
                return await super()._provision(request)
            except CreationError as error:
                if error.__cause__ is not None:
                    raise CreationError("It failed.") from None
                raise


class TestCredentialIsNotNamed(Broken):
    catches: ClassVar = {"test_a_missing_credential_is_named"}

    class Backend(FakeBackend):
        async def _provision(self, request: SandboxRequest) -> FakeSandbox:
            try:
                return await super()._provision(request)
            except SandboxError as error:
                error.hint = "Log in."
                error.message = error.message.replace("SBX_FAKE_TOKEN", "it")
                raise


class TestSecretInARecord(Broken):
    thorough = True
    catches: ClassVar = {"test_secrets_appear_nowhere"}

    class Sandbox(FakeSandbox):
        async def run(self, cmd: Any, **named: Any) -> ExecResult:
            before = len(self._recorder.audit.sinks[0].events)
            try:
                return await super().run(cmd, **named)
            finally:
                for sink in self._recorder.audit.sinks:
                    if isinstance(cmd, list) and len(sink.events) > before:
                        sink.events[-1] = replace(sink.events[-1], argv=tuple(cmd))


class TestSecretInARepr(Broken):
    catches: ClassVar = {"test_secrets_appear_nowhere"}

    class Sandbox(FakeSandbox):
        def __repr__(self) -> str:
            return f"<sandbox with {self.native.request.secrets}>"


class TestSecretInAnError(Broken):
    catches: ClassVar = {"test_secrets_appear_nowhere"}

    class Sandbox(FakeSandbox):
        async def run(self, cmd: Any, **named: Any) -> ExecResult:
            try:
                return await super().run(cmd, **named)
            except ExecutionTimeout as error:
                error.add_note(f"the command was {cmd}")
                raise


class TestTwoRecordsForARun(Broken):
    catches: ClassVar = {
        "test_a_run_leaves_one_record",
        "test_a_run_that_times_out_leaves_one_record",
    }

    class Sandbox(FakeSandbox):
        async def run(self, *arguments: Any, **named: Any) -> ExecResult:
            async with self._recorder.operation("exec", self.subject()):
                return await super().run(*arguments, **named)


class TestSignatureIsOpen(Broken):
    catches: ClassVar = {"test_signatures_are_those_of_the_ports"}

    class Backend(FakeBackend):
        async def create(self, **options: Any) -> Any:
            return await super().create(**options)

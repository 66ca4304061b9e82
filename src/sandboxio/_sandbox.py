"""A live sandbox, whatever the backend: everything but the primitives that an adapter supplies.

Life of a sandbox: ``creating -> running -> killed | gone``. Every operation after that raises
``SandboxGone``; ``kill()`` stays silent.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cached_property
from types import TracebackType
from typing import Self

import anyio
import anyio.lowlevel

from ._files import BaseFileSystem, FileTransfer
from ._loops import OneLoop
from ._output import OUTPUT_LIMIT, Output
from ._process import BaseProcess, Execution, collect, result_of
from ._record import Operation, OperationRecord, Recorder, Subject
from ._redact import Redactor, cleaned
from ._request import SandboxRequest, check_code, check_command, check_env, check_timeout
from ._scrub import guarded
from ._teardown import bounded, teardown_grace, warn_orphan
from .errors import (
    AuditSinkError,
    CapabilityNotSupported,
    ConfigurationError,
    ExecutionTimeout,
    SandboxError,
    SandboxGone,
)
from .models import Capability, ExecResult, IsolationTier, quote_stderr
from .registry import supporting

KILL_BOUND = 3.0
"""Seconds to confirm that one run is dead, before the sandbox goes with it.

With a saturated CPU quota a confirmation was seen to take 2.3 s."""


class BaseSandbox(ABC):
    """A live sandbox, complete but for the primitives below.

    Args:
        id: The backend's stable id.
        backend: The backend's name, as in a DSN.
        capabilities, isolation: Of this instance, not of the backend in general.
        request: What it was created with: timeout, env, secrets, metadata, policy. For a connected
            sandbox, what its labels tell.
        recorder: The backend instance's recorder (``BaseBackend._recorder``).
        output_limit: Bytes kept of each stream of ``run`` and ``run_code``.
    """

    def __init__(
        self,
        *,
        id: str,  # noqa: A002 - the specification's name
        backend: str,
        capabilities: Capability,
        isolation: IsolationTier,
        request: SandboxRequest,
        recorder: Recorder,
        output_limit: int = OUTPUT_LIMIT,
    ) -> None:
        self._id = id
        self._backend = backend
        self._capabilities = capabilities
        self._isolation = isolation
        self._request = request
        self._recorder = recorder
        self._output_limit = output_limit
        self._owner_pid = os.getpid()
        self._one_loop = OneLoop(f"Sandbox {id}")
        self._gone: str | None = None
        self._files: BaseFileSystem | None = None

    # What an adapter supplies.

    @abstractmethod
    def _command(
        self, command: str | tuple[str, ...], *, env: Mapping[str, str], seconds: float
    ) -> Execution:
        """A run of ``command`` (text goes to a shell, a tuple does not); no I/O yet.

        ``env`` is only this call's; the adapter adds the sandbox's own. ``seconds`` is the deadline,
        for backends that can enforce it on the far side as well.
        """

    @abstractmethod
    def _code(self, code: str, *, language: str, context_id: str | None, seconds: float) -> Execution:
        """A run of ``code``; no I/O yet. Refuse a language that the backend has not."""

    @abstractmethod
    def _transfer(self) -> FileTransfer:
        """The file primitives; called once, before the first file operation that is declared."""

    @abstractmethod
    async def _destroy(self) -> None:
        """End the sandbox and return when it is gone; success if it was gone already.

        Runs shielded and bounded, and once more if ``asyncio.Task.cancel`` interrupts it. Raises
        ``ConnectError`` if the backend refuses.
        """

    def _grace(self) -> float:
        """Seconds that ending the sandbox may take; another value than the setting's is for test doubles."""
        return teardown_grace()

    def _close(self) -> None:  # noqa: B027 - most adapters hold nothing
        """Release what the host holds for this sandbox; synchronous, raises nothing, may be called again.

        Called after ``_destroy``, by the event loop that uses the sandbox if another one ends it.
        """

    def _release(self) -> None:
        """Have ``_close`` called where it belongs, for an adapter that has to release before it destroys."""
        self._one_loop.call(self._close)

    def _credentials(self) -> Iterable[str]:
        """Secrets that the provider made for this sandbox (access tokens); redacted like ``secrets=``.

        Asked once, at the sandbox's first operation.
        """
        return ()

    @property
    @abstractmethod
    def native(self) -> object:
        """The provider's own object; outside the semver contract."""

    # What callers use.

    @property
    def id(self) -> str:
        """Stable and unique within the backend."""
        return self._id

    @property
    def capabilities(self) -> Capability:
        """What this sandbox can do."""
        return self._capabilities

    @property
    def isolation(self) -> IsolationTier:
        """How this sandbox is isolated."""
        return self._isolation

    @property
    def files(self) -> BaseFileSystem:
        """Its files."""
        if self._files is None:
            self._files = BaseFileSystem(self, self._transfer)
        return self._files

    async def run(
        self,
        cmd: str | list[str],
        *,
        timeout: float | None = None,
        env: dict[str, str] | None = None,
    ) -> ExecResult:
        """Run a command to its end. A list goes to the program as it is, a string to a shell.

        A non-zero exit code is a result. Raises ``ExecutionTimeout`` when ``timeout`` seconds (default:
        the sandbox's) are over, ``ResourceLimitExceeded``, ``SandboxGone``. Cancelled or timed out, the
        command is dead with all its descendants before the exception leaves this call.
        """
        self.require(Capability.RUN_COMMAND, "run()")
        with guarded(self.redactor):
            command, seconds, extra = check_command(cmd), self._seconds(timeout), check_env(env)
        subject = self.subject(extra)
        with guarded(subject.redactor):
            execution = self._command(command, env=extra, seconds=seconds)
        with self._one_loop.use():
            async with self._operation("exec", subject, argv=_argv(command)) as record:
                return await self._collect(execution, seconds, record)

    async def run_code(
        self,
        code: str,
        *,
        language: str = "python",
        context_id: str | None = None,
        timeout: float | None = None,
    ) -> ExecResult:
        """Run code in an interpreter; several megabytes are fine. Raises as :meth:`run` does.

        ``context_id`` keeps variables between calls and needs ``Capability.STATEFUL_CODE``.
        """
        self.require(Capability.RUN_CODE, "run_code()")
        with guarded(self.redactor):
            check_code(code, language, context_id)
            if context_id is not None:
                self.require(Capability.STATEFUL_CODE, "run_code(context_id=...)")
            seconds = self._seconds(timeout)
            execution = self._code(code, language=language, context_id=context_id, seconds=seconds)
        size = len(code.encode())
        with self._one_loop.use():
            async with self._operation("run_code", self.subject(), code=code, bytes_in=size) as record:
                return await self._collect(execution, seconds, record)

    def stream(
        self,
        cmd: str | list[str],
        *,
        timeout: float | None = None,
        env: dict[str, str] | None = None,
    ) -> BaseProcess:
        """A command whose output is read while it runs: ``async with sandbox.stream(...) as process``."""
        self.require(Capability.STREAMING, "stream()")
        with guarded(self.redactor):
            command, seconds, extra = check_command(cmd), self._seconds(timeout), check_env(env)
        subject = self.subject(extra)
        with guarded(subject.redactor):
            execution = self._command(command, env=extra, seconds=seconds)

        use = self._one_loop.use()

        def opened() -> OperationRecord:
            self._check_usable()
            use.__enter__()
            try:
                return self._recorder.open("stream", subject, argv=_argv(command))
            except BaseException:  # a warning of the tracer's that is an error
                use.__exit__()
                raise

        async def closed(record: OperationRecord, error: BaseException | None) -> None:
            use.__exit__()
            await self._recorder.close(record, error)

        return BaseProcess(
            execution, self, seconds=seconds, opened=opened, closed=closed, check_loop=use.check
        )

    async def kill(self) -> None:
        """End the sandbox. Idempotent, bounded by ``SBX_TEARDOWN_GRACE``, and done even when cancelled.

        Emits ``OrphanedSandboxWarning`` if the grace ends first; raises ``ConnectError`` if the backend
        refuses.
        """
        if self._gone is not None or os.getpid() != self._owner_pid:
            return
        async with self._recorder.operation("kill", self.subject()):
            await self._end("it was killed")
        await anyio.lowlevel.checkpoint_if_cancelled()

    async def __aenter__(self) -> Self:
        return self  # no checkpoint here: between create() and the body nothing may be cancelled

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            await self.kill()
        else:
            await self.kill_because_of(error)

    def __repr__(self) -> str:
        state = "running" if self._gone is None else "ended"
        caps = "|".join(flag.name or "" for flag in self._capabilities)
        label = f"{self._backend}:{self._id[:12]} {self._isolation.value}"
        return f"<{type(self).__name__} {label} {state} caps={caps}>"

    # What the parts of a sandbox need of it.

    @property
    def redactor(self) -> Redactor:
        """Takes the secrets of this sandbox out of text, for whoever shows its output to somebody else."""
        return self._secrets

    @cached_property
    def _secrets(self) -> Redactor:
        return self._request.redactor.also((*self._recorder.credentials(), *self._credentials()))

    async def kill_because_of(self, error: BaseException) -> None:
        """End the sandbox while ``error`` is on its way to the caller: what fails here is noted there."""
        try:
            await self.kill()
        except AuditSinkError as failure:
            error.add_note(f"Besides: {failure.message}")  # the sandbox has ended, only unrecorded
        except SandboxError as failure:
            error.add_note(f"The sandbox could not be ended: {failure}")
            self._warn_orphan(failure.message)

    def require(self, capability: Capability, what: str) -> None:
        """Raise unless this sandbox declares ``capability`` and is still usable."""
        if capability not in self._capabilities:
            raise capability_error(self._backend, capability, what)
        self._check_usable()

    async def put_down(self, execution: Execution) -> None:
        """Kill a run; if it cannot be confirmed dead in time, end the whole sandbox.

        Raises nothing but what ``asyncio.Task.cancel`` threw in meanwhile, once all is done.
        """
        put_off: list[BaseException] = []
        why = await self._try_to_kill(execution, put_off)
        if why is not None:
            try:
                await self._end(why)
            except SandboxError as error:
                self._warn_orphan(error.message)
        if put_off:
            raise put_off[0]

    async def _try_to_kill(self, execution: Execution, put_off: list[BaseException]) -> str | None:
        """None if the run is dead, or why the whole sandbox has to be ended."""
        try:
            seconds = min(KILL_BOUND, self._grace())
            if await bounded(execution.kill, seconds=seconds, put_off=put_off):
                return None
        except SandboxGone as error:
            self.mark_gone(error.message)
            return None
        except SandboxError as error:
            return f"a run could not be killed ({error.message}), so the whole sandbox was ended"
        return "a run could not be confirmed dead, so the whole sandbox was ended"

    def describe_timeout(self, seconds: float) -> str:
        """The sentence of an ``ExecutionTimeout``."""
        return f"The command did not end within {seconds:g} s and was killed."

    def mark_gone(self, why: str) -> None:
        """Remember that the sandbox has ended; later calls say ``why``."""
        if self._gone is None:
            self._gone = self.redactor.text(cleaned(why)).rstrip(".")  # the call may have secrets of its own
            self._release()

    @asynccontextmanager
    async def file_operation(
        self, event: str, path: str, *, bytes_in: int = 0
    ) -> AsyncGenerator[OperationRecord]:
        """Record around one file operation, with the sandbox's timeout as its deadline."""
        with self._one_loop.use():
            async with self._operation(event, self.subject(), argv=(path,), bytes_in=bytes_in) as record:
                with anyio.move_on_after(self._request.timeout) as scope:
                    yield record
                if scope.cancelled_caught:
                    raise ExecutionTimeout(
                        f"{event} of {path!r} did not end within {self._request.timeout:g} s.",
                        hint="Raise create(timeout=...): file operations inherit it.",
                    )

    # Shared steps.

    async def _collect(self, execution: Execution, seconds: float, record: OperationRecord) -> ExecResult:
        output = Output(self._output_limit)
        try:
            ended = await collect(execution, self, output, seconds=seconds)
        except SandboxError as error:
            partial = getattr(error, "partial", None)
            if isinstance(partial, ExecResult):
                record.exit_code = partial.exit_code
                quote_stderr(partial, record.subject.redactor.excerpt)
            raise
        finally:
            record.bytes_out = output.total
            if execution.exit is not None:
                record.network_denials = execution.exit.network_denials
        record.exit_code = ended.exit_code
        return result_of(output, ended, record.subject.redactor)

    def _operation(
        self,
        event: str,
        subject: Subject,
        *,
        argv: tuple[str, ...] | None = None,
        code: str | None = None,
        bytes_in: int = 0,
    ) -> Operation:
        return self._recorder.operation(
            event, subject, argv=argv, code=code, bytes_in=bytes_in, failed=self._notice
        )

    def _notice(self, error: Exception) -> None:
        if isinstance(error, SandboxGone):
            self.mark_gone(error.message)

    def subject(self, env: Mapping[str, str] | None = None) -> Subject:
        """Whom a record of this sandbox is about; ``env`` is the call's own, for redaction."""
        redactor = self.redactor.including(env) if env else self.redactor
        return self._subject if redactor is self.redactor else replace(self._subject, redactor=redactor)

    @cached_property
    def _subject(self) -> Subject:
        return Subject(self._id, self._isolation, self._request.metadata, self.redactor)

    def _seconds(self, timeout: float | None) -> float:
        return self._request.timeout if timeout is None else check_timeout(timeout)

    def _check_usable(self) -> None:
        if self._gone is not None:
            raise SandboxGone(f"Sandbox {self._id} has ended: {self._gone}.")
        if os.getpid() != self._owner_pid:
            raise ConfigurationError(
                f"Sandbox {self._id} belongs to process {self._owner_pid}; this is a fork of it.",
                hint="Create a sandbox in this process, or connect() to it.",
            )

    async def _end(self, why: str) -> None:
        """Destroy under the bounded shield, whatever is cancelled outside."""
        put_off: list[BaseException] = []
        try:
            finished = await bounded(self._destroy, seconds=self._grace(), put_off=put_off)
        except SandboxGone:
            finished = True
        except SandboxError as error:
            if not put_off:
                raise
            self._warn_orphan(error.message)
            raise put_off[0] from error
        if finished:
            self.mark_gone(why)
        else:
            self._warn_orphan(f"it did not end within {teardown_grace():g} s")
        if put_off:
            raise put_off[0]

    def _warn_orphan(self, why: str) -> None:
        redact = self.redactor.text
        labels = {key: redact(value) for key, value in self._request.metadata.items()}
        warn_orphan(f"Sandbox {self._id}", backend=self._backend, labels=labels, why=redact(why))


def capability_error(backend: str, capability: Capability, what: str) -> CapabilityNotSupported:
    """The refusal of ``what``, naming the backends that can do it."""
    able = supporting(capability)
    return CapabilityNotSupported(
        f"Backend {backend!r} does not declare {capability.name}, which {what} needs.",
        hint=f"These can: {', '.join(able)}." if able else "No installed backend declares it.",
    )


def _argv(command: str | tuple[str, ...]) -> tuple[str, ...]:
    return (command,) if isinstance(command, str) else command

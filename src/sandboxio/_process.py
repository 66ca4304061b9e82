"""Runs: the port that an adapter fills in, and what the core makes of it.

An adapter supplies an :class:`Execution`; deadline, capture, kill on every way out, records and errors
are done here, once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self, TypeVar

import anyio
import anyio.lowlevel

from ._output import OUTPUT_LIMIT, Output
from ._record import OperationRecord
from ._redact import Redactor
from ._scrub import guarded
from ._teardown import bounded, teardown_grace
from .errors import (
    ConfigurationError,
    ExecutionTimeout,
    ResourceLimitExceeded,
    SandboxError,
    SandboxGone,
)
from .models import ExecResult, OutputChunk, RichOutput, quote_stderr

T = TypeVar("T")
KILLED = 137
"""Exit code of a run that was killed before it ended: 128 + SIGKILL."""


@dataclass(frozen=True)
class Exit:
    """How a run ended, as the adapter reports it.

    ``exit_code`` as in ``ExecResult``. ``timed_out``: the far side enforced the deadline before the
    host did. ``limit``: a sentence naming the resource cap that killed the run, or None. ``notes``
    and ``results`` go into the ``ExecResult`` as they are; ``network_denials``, the attempts that the
    network policy stopped, where the backend counts them, into the audit event.
    """

    exit_code: int
    timed_out: bool = False
    limit: str | None = None
    notes: tuple[str, ...] = ()
    results: tuple[RichOutput, ...] | None = None
    network_denials: int = 0


class Execution(ABC):
    """One command of a sandbox, as an adapter runs it. Built without I/O.

    ``start`` once, ``receive`` until it returns None, ``close`` at the end. Whenever that order is
    broken off (error, deadline, cancellation, ``break``), even in the middle of ``start``, the core
    calls ``kill`` under a bounded shield before ``close``.
    """

    exit: Exit | None = None
    """Set by the time ``receive`` returns None."""

    @abstractmethod
    async def start(self) -> None:
        """Start the command. Cancelled half-way, the command may or may not run: ``kill`` follows."""

    @abstractmethod
    async def receive(self) -> OutputChunk | None:
        """The next piece of output, or None when the run has ended. A cancelled call loses no byte."""

    def receive_nowait(self) -> OutputChunk | None:
        """A piece that has arrived and was not received, or None; read after ``kill`` for partial output."""
        return None

    @abstractmethod
    async def kill(self) -> None:
        """Return when the command and all its descendants are dead, started or not. Idempotent.

        Runs shielded and bounded, and again if ``asyncio.Task.cancel`` interrupts it; may run while
        another task is inside ``receive``, which then returns None or raises.
        """

    def close(self) -> None:  # noqa: B027 - most adapters hold nothing
        """Release what the host holds for this run. Synchronous, so nothing can interrupt it."""


class Owner(Protocol):
    """What a run needs of its sandbox."""

    async def put_down(self, execution: Execution) -> None:
        """Kill the run; if it cannot be killed in time, the whole sandbox. Raises only a cancellation."""
        ...

    def describe_timeout(self, seconds: float) -> str: ...

    def mark_gone(self, why: str) -> None: ...


@asynccontextmanager
async def running(execution: Execution, owner: Owner) -> AsyncGenerator[None]:
    """For the body the run may live; afterwards it has ended, one way or another."""
    try:
        yield
    finally:
        try:
            if execution.exit is None:
                await owner.put_down(execution)
        finally:
            execution.close()


async def collect(execution: Execution, owner: Owner, output: Output, *, seconds: float) -> Exit:
    """Run to the end. Raises ``ExecutionTimeout`` and friends with the output printed until then."""
    timed_out = False
    try:
        async with running(execution, owner):
            with anyio.move_on_after(seconds) as scope:
                await execution.start()
                while (chunk := await execution.receive()) is not None:
                    output.add(chunk)
            timed_out = scope.cancelled_caught
    except SandboxGone as error:
        error.partial = _partial(execution, output)
        raise
    if timed_out or execution.exit is None:
        raise timeout_error(owner, seconds, _partial(execution, output))
    raise_for_exit(execution.exit, owner, seconds, result_of(output, execution.exit))
    return execution.exit


def raise_for_exit(ended: Exit, owner: Owner, seconds: float, partial: ExecResult) -> None:
    """Turn an end that was forced by a limit into its error."""
    if ended.timed_out:
        raise timeout_error(owner, seconds, partial)
    if ended.limit is not None:
        error = ResourceLimitExceeded(ended.limit)
        error.partial = partial
        raise error


def timeout_error(owner: Owner, seconds: float, partial: ExecResult | None) -> ExecutionTimeout:
    error = ExecutionTimeout(owner.describe_timeout(seconds))
    error.partial = partial
    return error


def result_of(output: Output, ended: Exit, redactor: Redactor | None = None) -> ExecResult:
    """The result; ``redactor`` is for the line of stderr that ``raise_for_status`` quotes."""
    result = ExecResult(
        ended.exit_code,
        output.stdout.text(),
        output.stderr.text(),
        results=ended.results,
        truncated=output.truncated,
        notes=ended.notes + output.notes(),
    )
    if redactor is not None and not result.ok:
        quote_stderr(result, redactor.excerpt)
    return result


def _partial(execution: Execution, output: Output) -> ExecResult:
    """What a run that did not end by itself had printed."""
    while (chunk := execution.receive_nowait()) is not None:
        output.add(chunk)
    return result_of(output, execution.exit or Exit(KILLED))


class BaseProcess:
    """The ``Process`` of every adapter that uses :mod:`sandboxio.adapter`.

    ``opened`` makes its record when it starts, ``closed`` hands the record on when it is over. ``check_loop``
    refuses an event loop that it was not entered in.
    """

    def __init__(
        self,
        execution: Execution,
        owner: Owner,
        *,
        seconds: float,
        opened: Callable[[], OperationRecord],
        closed: Callable[[OperationRecord, BaseException | None], Awaitable[None]],
        check_loop: Callable[[], None],
    ) -> None:
        self._execution = execution
        self._owner = owner
        self._seconds = seconds
        self._deadline = 0.0
        self._opened = opened
        self._closed = closed
        self._check_loop = check_loop
        self._record: OperationRecord | None = None
        self._outcome: ExecResult | SandboxError | None = None
        self._bytes = 0
        self._killed = False
        self._left = False
        self._starting: anyio.CancelScope
        self._entered: anyio.Event
        self._down: anyio.Event | None = None
        self._reading: anyio.Lock
        self._iterated = False
        self._kept = deque[OutputChunk]()  # what wait() read while somebody iterates
        self._kept_bytes = 0

    async def __aenter__(self) -> Self:
        if self._record is not None:
            raise ConfigurationError("This process was entered before.", hint="Call stream() again.")
        self._record = record = self._opened()
        self._starting, self._entered = anyio.CancelScope(), anyio.Event()
        self._reading = anyio.Lock(fast_acquire=True)
        self._deadline = anyio.current_time() + self._seconds
        try:
            with record.inside(), guarded(record.subject.redactor):
                await self._start()
        except BaseException as error:  # put down and re-raised, cancellation included
            record.failed(error)
            self._notice(error)
            await self._finish(record, error)
            raise
        finally:
            self._entered.set()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._record is not None and not self._left:
            self._check_loop()
            await self._finish(self._record, error)

    def __aiter__(self) -> AsyncIterator[OutputChunk]:
        return self

    async def __anext__(self) -> OutputChunk:
        self._iterated = True
        chunk = await self._receive(self._take_kept)
        if chunk is None:
            raise StopAsyncIteration
        return chunk

    async def wait(self) -> ExecResult:
        """The result, with ``streamed=True``; unread output is read and dropped. Idempotent.

        Another task may iterate meanwhile: what is read here is kept for it, up to ``OUTPUT_LIMIT`` bytes.
        """
        while (chunk := await self._receive()) is not None:
            if self._iterated and self._kept_bytes + len(chunk.data) <= OUTPUT_LIMIT:
                self._kept.append(chunk)
                self._kept_bytes += len(chunk.data)
        assert isinstance(self._outcome, ExecResult)
        return self._outcome

    async def kill(self) -> None:
        """Kill the command and its descendants; returns when they are dead. Idempotent."""
        if self._record is None or (self._outcome is not None and not self._killed):
            return
        self._check_loop()
        self._killed = True
        if not self._entered.is_set():  # the task that enters puts it down: only it knows how far it got
            self._starting.cancel()
            await bounded(self._entered.wait, seconds=teardown_grace() * 2)
        with self._record.inside():
            await self._put_down()
        await anyio.lowlevel.checkpoint_if_cancelled()

    @property
    def returncode(self) -> int | None:
        """The exit code, or None while the command runs."""
        ended = self._execution.exit
        return None if ended is None else ended.exit_code

    def _take_kept(self) -> OutputChunk | None:
        if not self._kept:
            return None
        chunk = self._kept.popleft()
        self._kept_bytes -= len(chunk.data)
        return chunk

    async def _receive(self, first: Callable[[], OutputChunk | None] = lambda: None) -> OutputChunk | None:
        """What ``first`` has, or the next piece. One task at a time, so that none sleeps through the end."""
        record = self._record
        if record is None:
            raise ConfigurationError(
                "The process has not started.",
                hint="Enter it first: `async with sandbox.stream(...) as process:`, in blocking code `with`.",
            )
        if self._outcome is None:
            self._check_loop()
            async with self._reading:
                if (kept := first()) is not None:
                    return kept
                if self._outcome is None and (chunk := await self._advance(record)) is not None:
                    return chunk
        elif (kept := first()) is not None:
            return kept
        if isinstance(self._outcome, SandboxError):
            raise self._outcome
        return None

    async def _advance(self, record: OperationRecord) -> OutputChunk | None:
        """The next piece from the run, or None and its outcome."""
        try:
            with record.inside(), guarded(record.subject.redactor):
                chunk = await self._before_deadline(self._execution.receive)
                if chunk is not None:
                    self._bytes += len(chunk.data)
                    return chunk
                self._outcome = self._streamed_result()
                if self._execution.exit is not None and not self._killed:
                    raise_for_exit(self._execution.exit, self._owner, self._seconds, self._outcome)
        except SandboxError as error:
            self._notice(error)
            self._outcome = error
        return None

    def _notice(self, error: BaseException) -> None:
        if isinstance(error, SandboxGone):
            self._owner.mark_gone(error.message)

    async def _before_deadline(self, step: Callable[[], Awaitable[T]]) -> T:
        with anyio.CancelScope(deadline=self._deadline):
            return await step()
        await self._put_down()
        raise timeout_error(self._owner, self._seconds, self._streamed_result())

    async def _start(self) -> None:
        with self._starting:
            await self._before_deadline(self._execution.start)
        if self._starting.cancelled_caught:  # killed by another task
            await self._put_down()
            self._outcome = self._streamed_result()

    async def _put_down(self) -> None:
        """Kill the run, once; who comes while another task is at it waits for that one."""
        if self._down is None:
            self._down = down = anyio.Event()
            try:
                await self._owner.put_down(self._execution)
            except BaseException:
                self._down = None  # not done: the next one tries again
                raise
            finally:
                down.set()
        else:
            await bounded(self._down.wait, seconds=teardown_grace() * 2)

    def _streamed_result(self) -> ExecResult:
        ended = self._execution.exit or Exit(KILLED)
        return ExecResult(ended.exit_code, "", "", results=ended.results, streamed=True, notes=ended.notes)

    async def _finish(self, record: OperationRecord, error: BaseException | None) -> None:
        self._left = True
        self._kept.clear()
        try:
            if self._execution.exit is None or self._killed:
                with record.inside(), guarded(record.subject.redactor):
                    await self._put_down()
        except BaseException as failure:  # a second Task.cancel, a warning that is an error; raised again
            if record.error is None:
                record.failed(failure)
            await self._conclude(record, failure)
            raise
        await self._conclude(record, error)

    async def _conclude(self, record: OperationRecord, error: BaseException | None) -> None:
        """Let go of the run and hand its record on, whatever became of it."""
        self._execution.close()
        if isinstance(self._outcome, SandboxError):
            record.failed(self._outcome)
        elif error is not None and record.error is None:
            record.broken_off()  # an exception of the body is the caller's, not the command's
        if self._outcome is None:
            self._outcome = self._streamed_result()
        record.exit_code = self.returncode
        record.bytes_out = self._bytes
        if self._execution.exit is not None:
            record.network_denials = self._execution.exit.network_denials
        await self._closed(record, error)

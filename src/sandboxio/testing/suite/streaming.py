"""``stream``: output while the command runs, and its end in every way there is."""

from __future__ import annotations

import inspect

import anyio
import pytest

from sandboxio.errors import ExecutionTimeout, SandboxGone
from sandboxio.models import Capability, OutputChunk
from sandboxio.protocols import AsyncSandbox, Process

from .base import MARK, Contract, needs, new_mark
from .comparing import difference


async def collected(process: Process) -> dict[str, bytes]:
    """All output of a process, by stream."""
    found = {"stdout": b"", "stderr": b""}
    async for chunk in process:
        assert isinstance(chunk, OutputChunk)
        assert isinstance(chunk.data, bytes)
        found[chunk.stream] += chunk.data
    return found


class StreamTests(Contract):
    """Row "Streaming"."""

    @needs(Capability.STREAMING)
    async def test_stream_cannot_be_awaited(self) -> None:
        async with self.sandbox() as sandbox:
            process = sandbox.stream(self.cmd_both)
            assert not inspect.isawaitable(process), "a forgotten `async with` must fail at once"
            assert process.returncode is None

    @needs(Capability.STREAMING)
    async def test_stream_starts_when_it_is_entered(self) -> None:
        async with self.sandbox() as sandbox:
            process = sandbox.stream(self.cmd_both)
            async with process as entered:
                assert (await collected(entered))["stdout"] == b"out\n"

    @needs(Capability.STREAMING)
    async def test_stream_tells_stdout_from_stderr(self) -> None:
        async with self.sandbox() as sandbox, sandbox.stream(self.cmd_both) as process:
            assert await collected(process) == {"stdout": b"out\n", "stderr": b"err\n"}

    @needs(Capability.STREAMING)
    async def test_stream_keeps_the_order_within_a_stream(self) -> None:
        async with self.sandbox() as sandbox, sandbox.stream([*self.cmd_count, "100000"]) as process:
            output = await collected(process)
        assert not difference(output["stdout"], b"".join(b"%d\n" % number for number in range(1, 100_001)))
        assert output["stderr"] == b""

    @needs(Capability.STREAMING)
    async def test_stream_output_comes_while_the_command_runs(self) -> None:
        async with self.sandbox() as sandbox, sandbox.stream(self.cmd_hang, timeout=300) as process:
            async with self.within(self.patience, "the first output of a command that goes on"):
                first = await anext(aiter(process))
            assert first == OutputChunk("stdout", b"ready\n")
            assert process.returncode is None

    @needs(Capability.STREAMING)
    async def test_stream_wait_gives_the_end_without_output(self) -> None:
        async with self.sandbox() as sandbox, sandbox.stream([*self.cmd_exit, "3"]) as process:
            assert (await collected(process))["stdout"] == b""
            result = await process.wait()
            assert result.streamed
            assert (result.exit_code, result.stdout, result.stderr) == (3, "", "")
            assert process.returncode == 3

    @needs(Capability.STREAMING)
    async def test_stream_one_task_reads_while_another_waits(self) -> None:
        found: dict[str, bytes] = {}
        async with self.sandbox() as sandbox, sandbox.stream([*self.cmd_count, "100000"]) as process:

            async def read() -> None:
                found.update(await collected(process))

            async with (
                self.within(self.patience, "a reader and a waiter"),
                anyio.create_task_group() as group,
            ):
                group.start_soon(read)
                await anyio.wait_all_tasks_blocked()
                assert (await process.wait()).exit_code == 0
        assert not difference(found["stdout"], b"".join(b"%d\n" % number for number in range(1, 100_001)))

    @needs(Capability.STREAMING)
    async def test_stream_two_tasks_share_the_output(self) -> None:
        found: list[bytes] = []
        async with self.sandbox() as sandbox, sandbox.stream(self.cmd_both) as process:

            async def read() -> None:
                found.extend([chunk.data async for chunk in process])

            async with self.within(self.patience, "two readers"), anyio.create_task_group() as group:
                group.start_soon(read)
                group.start_soon(read)
        assert sorted(b"".join(found).split()) == [b"err", b"out"]

    @needs(Capability.STREAMING)
    async def test_stream_wait_is_idempotent_and_drops_unread_output(self) -> None:
        async with self.sandbox() as sandbox, sandbox.stream([*self.cmd_count, "100000"]) as process:
            first = await process.wait()
            assert await process.wait() == first
            assert first.streamed
            assert first.stdout == ""
            assert await collected(process) == {"stdout": b"", "stderr": b""}

    @needs(Capability.STREAMING)
    async def test_stream_env_and_arguments(self) -> None:
        async with self.sandbox() as sandbox:
            async with sandbox.stream([*self.cmd_printenv, "HERE"], env={"HERE": "$x"}) as process:
                assert (await collected(process))["stdout"] == b"$x\n"
            async with sandbox.stream("echo one; echo two >&2; exit 5") as process:
                assert await collected(process) == {"stdout": b"one\n", "stderr": b"two\n"}
                assert (await process.wait()).exit_code == 5

    @needs(Capability.STREAMING)
    async def test_stream_many_at_once(self) -> None:
        lines: dict[int, int] = {}

        async def count(number: int) -> None:
            async with sandbox.stream([*self.cmd_count, str(1000 + number)]) as process:
                lines[number] = (await collected(process))["stdout"].count(b"\n")

        async with self.sandbox() as sandbox, self.tasks() as tasks:
            for number in range(20):
                tasks.start_soon(count, number)
        assert lines == {number: 1000 + number for number in range(20)}

    @needs(Capability.STREAMING, Capability.RUN_COMMAND)
    async def test_stream_that_nobody_reads_holds_nobody_up(self) -> None:
        async with (
            self.sandbox() as sandbox,
            sandbox.stream([*self.cmd_count, "3000000"], timeout=300),
            self.within(self.patience, "a run beside a stream that nobody reads"),
        ):
            assert (await sandbox.run([*self.cmd_echo, "x"])).stdout == "x\n"

    @needs(Capability.STREAMING)
    async def test_stream_timeout_comes_out_of_the_iteration_and_of_wait(self) -> None:
        async with self.sandbox() as sandbox:
            async with (
                sandbox.stream(self.cmd_hang, timeout=2) as process,
                self.within(2 + self.patience, "a stream with a timeout of two seconds"),
            ):
                with pytest.raises(ExecutionTimeout):
                    await collected(process)
            async with (
                sandbox.stream(self.cmd_hang, timeout=2) as process,
                self.within(2 + self.patience, "a stream with a timeout of two seconds"),
            ):
                with pytest.raises(ExecutionTimeout):
                    await process.wait()

    @needs(Capability.STREAMING)
    async def test_stream_kill_is_idempotent_and_ends_the_iteration(self) -> None:
        async with self.sandbox() as sandbox, sandbox.stream(self.cmd_hang, timeout=300) as process:
            async with self.within(self.patience, "a stream that was killed"):
                assert (await anext(aiter(process))).data
                await process.kill()
                await process.kill()
                await collected(process)
            assert (await process.wait()).exit_code != 0

    @needs(Capability.STREAMING)
    async def test_stream_kill_spares_other_runs(self) -> None:
        async with (
            self.sandbox() as sandbox,
            sandbox.stream(self.cmd_slow, timeout=300) as slow,
            sandbox.stream(self.cmd_hang, timeout=300) as process,
            self.within(4 + self.patience, "a run beside one that was killed"),
        ):
            assert (await anext(aiter(slow))).data
            assert (await anext(aiter(process))).data
            await process.kill()
            assert (await collected(slow))["stdout"].endswith(b"b\n")
            assert (await slow.wait()).exit_code == 0

    @needs(Capability.STREAMING)
    async def test_stream_in_an_ended_sandbox_is_refused(self) -> None:
        async with self.sandbox() as sandbox:
            await sandbox.kill()
            with pytest.raises(SandboxGone):
                async with sandbox.stream(self.cmd_both):
                    pass


class StreamCleanupTests(Contract):
    """Row "Streaming cleanup": four ways to leave, and no process after any of them."""

    async def read_out(self, process: Process) -> None:
        """Enter the stream, and read all of it."""
        async with process:
            await collected(process)

    async def ready(self, process: Process) -> None:
        """Read the first output, so that the command certainly runs."""
        assert (await anext(aiter(process))).data

    @needs(Capability.STREAMING, Capability.RUN_COMMAND)
    async def test_stream_read_to_its_end_leaves_nothing(self) -> None:
        mark = new_mark()
        async with self.sandbox() as sandbox:
            async with sandbox.stream(self.cmd_both, env={MARK: mark}) as process:
                await collected(process)
            await self.assert_no_orphans(sandbox, mark)

    @needs(Capability.STREAMING, Capability.RUN_COMMAND)
    async def test_stream_left_by_break_leaves_nothing(self) -> None:
        mark = new_mark()
        async with self.sandbox() as sandbox:
            async with sandbox.stream(self.cmd_hang, env={MARK: mark}, timeout=500) as process:
                async for _ in process:
                    break
            await self.assert_no_orphans(sandbox, mark)

    @needs(Capability.STREAMING, Capability.RUN_COMMAND)
    async def test_stream_left_by_an_exception_leaves_nothing(self) -> None:
        mark, mine = new_mark(), ValueError("mine")
        async with self.sandbox() as sandbox:
            with pytest.raises(ValueError, match="mine") as caught:  # noqa: PT012 - raised inside on purpose
                async with sandbox.stream(self.cmd_hang, env={MARK: mark}, timeout=500) as process:
                    await self.ready(process)
                    raise mine
            assert caught.value is mine
            await self.assert_no_orphans(sandbox, mark)

    @needs(Capability.STREAMING, Capability.RUN_COMMAND)
    async def test_stream_left_by_a_cancellation_leaves_nothing(self) -> None:
        mark, inside = new_mark(), anyio.Event()

        async def stay(sandbox: AsyncSandbox) -> None:
            async with sandbox.stream(self.cmd_hang, env={MARK: mark}, timeout=500) as process:
                await self.ready(process)
                inside.set()
                await anyio.sleep_forever()

        async with self.sandbox() as sandbox:
            self.assert_cancelled(await self.cancelled(lambda: stay(sandbox), inside.wait))
            await self.assert_no_orphans(sandbox, mark)

    @needs(Capability.STREAMING, Capability.RUN_COMMAND)
    async def test_stream_that_timed_out_leaves_nothing(self) -> None:
        mark = new_mark()
        async with self.sandbox() as sandbox:
            with pytest.raises(ExecutionTimeout):
                await self.read_out(sandbox.stream(self.cmd_deaf, env={MARK: mark}, timeout=2))
            await self.assert_no_orphans(sandbox, mark)

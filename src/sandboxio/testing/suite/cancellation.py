"""Cancellation: it comes out as what it is, and nothing stays behind."""

from __future__ import annotations

import time
import warnings
from typing import cast

import anyio
import pytest

from sandboxio.errors import ConnectError, OrphanedSandboxWarning
from sandboxio.models import Capability
from sandboxio.protocols import AsyncSandbox

from .base import MARK, Contract, needs, new_mark


class CancellationTests(Contract):
    """Rows "Cancellation" and "Cancellation identity"."""

    @needs(Capability.RUN_COMMAND)
    async def test_cancelling_run_kills_the_command(self) -> None:
        mark = new_mark()
        async with self.sandbox() as sandbox:
            outcome = await self.cancelled(
                lambda: sandbox.run(self.cmd_hang, env={MARK: mark}, timeout=500),
                lambda: self.assert_running(sandbox, mark),
            )
            self.assert_cancelled(outcome)
            await self.assert_no_orphans(sandbox, mark)
            assert (await sandbox.run([*self.cmd_echo, "still here"])).stdout == "still here\n"

    @needs(Capability.RUN_COMMAND)
    async def test_cancelling_run_kills_a_command_that_ignores_signals(self) -> None:
        mark = new_mark()
        async with self.sandbox() as sandbox:
            outcome = await self.cancelled(
                lambda: sandbox.run(self.cmd_deaf, env={MARK: mark}, timeout=500),
                lambda: self.assert_running(sandbox, mark),
            )
            self.assert_cancelled(outcome)
            await self.assert_no_orphans(sandbox, mark)

    @needs(Capability.RUN_CODE, Capability.RUN_COMMAND)
    async def test_cancelling_run_code_kills_the_code(self) -> None:
        mark = new_mark()
        async with self.sandbox() as sandbox:
            outcome = await self.cancelled(
                lambda: sandbox.run_code(self.code_hang(mark), timeout=500),
                lambda: self.assert_running(sandbox, mark),
            )
            self.assert_cancelled(outcome)
            await self.assert_no_orphans(sandbox, mark)
            assert (await sandbox.run_code("print('still here')")).stdout == "still here\n"

    @needs(Capability.STREAMING, Capability.RUN_COMMAND)
    async def test_cancelling_a_stream_kills_the_command(self) -> None:
        mark = new_mark()

        async def read(sandbox: AsyncSandbox) -> None:
            async with sandbox.stream(self.cmd_hang, env={MARK: mark}, timeout=500) as process:
                async for _ in process:
                    pass

        async with self.sandbox() as sandbox:
            outcome = await self.cancelled(lambda: read(sandbox), lambda: self.assert_running(sandbox, mark))
            self.assert_cancelled(outcome)
            await self.assert_no_orphans(sandbox, mark)

    @pytest.mark.parametrize("delay", [0.0, 0.005, 0.03, 0.1, 0.3])
    async def test_cancelling_create_leaves_nothing(self, delay: float) -> None:
        label = new_mark()

        async def create() -> AsyncSandbox:
            return await self.created(label=label)

        outcome = await self.cancelled(create, lambda: anyio.sleep(delay))
        if isinstance(outcome, BaseException):
            self.assert_cancelled(outcome)
        else:  # it was quicker than the cancellation
            await cast("AsyncSandbox", outcome).kill()
        await self.assert_nothing_left(label)

    async def test_cancelling_a_slow_create_is_not_held_up(self) -> None:
        label = new_mark()
        with self.simulated("simulate_slow_create"):
            began = time.monotonic()
            outcome = await self.cancelled(lambda: self.created(label=label), lambda: anyio.sleep(0.1))
            assert time.monotonic() - began < self.patience, "create() as a whole must not be shielded"
            self.assert_cancelled(outcome)
        await self.assert_nothing_left(label)

    async def test_leaving_the_context_while_cancelled_still_ends_it(self) -> None:
        label, inside = new_mark(), anyio.Event()

        async def live(sandbox: AsyncSandbox) -> None:
            async with sandbox:
                inside.set()
                await anyio.sleep_forever()

        async with self.sandbox(label=label) as sandbox:
            self.assert_cancelled(await self.cancelled(lambda: live(sandbox), inside.wait))
            await self.assert_nothing_left(label)

    async def test_a_cancelled_kill_still_ends_it(self) -> None:
        label = new_mark()
        async with self.sandbox(label=label) as sandbox:
            with anyio.CancelScope() as scope:
                scope.cancel()
                await sandbox.kill()
                await anyio.lowlevel.checkpoint()
            assert scope.cancelled_caught, "kill() must not swallow the cancellation"
            await self.assert_nothing_left(label)

    async def test_kill_works_inside_a_shielded_scope(self) -> None:
        label = new_mark()
        async with self.sandbox(label=label) as sandbox:
            with anyio.CancelScope() as scope:
                scope.cancel()
                with anyio.CancelScope(shield=True):
                    await sandbox.kill()
                    await sandbox.kill()
            await self.assert_nothing_left(label)

    async def test_a_kill_without_answer_ends_with_a_warning(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SBX_TEARDOWN_GRACE", "1")
        async with self.sandbox(metadata={"tenant_id": "acme"}) as sandbox:
            with (
                self.simulated("simulate_kill_hang", sandbox),
                warnings.catch_warnings(record=True) as caught,
            ):
                warnings.simplefilter("always")
                async with self.within(self.patience, "a kill that the provider does not answer"):
                    await sandbox.kill()
        texts = [str(each.message) for each in caught if each.category is OrphanedSandboxWarning]
        assert len(texts) == 1, f"one OrphanedSandboxWarning was expected, got {texts}"
        for expected in (sandbox.id, self.backend.name, "tenant_id", "acme"):
            assert expected in texts[0]

    async def test_a_refused_kill_is_a_connect_error(self) -> None:
        async with self.sandbox() as sandbox:
            with self.simulated("simulate_kill_failure", sandbox):
                with pytest.raises(ConnectError) as caught:
                    await sandbox.kill()
                assert "sandboxio reap" in caught.value.hint
                assert "--kill" in caught.value.hint
            await sandbox.kill()

    async def test_a_refused_kill_does_not_replace_the_exception_of_the_body(self) -> None:
        mine = ValueError("mine")
        async with self.sandbox() as sandbox:
            with self.simulated("simulate_kill_failure", sandbox), warnings.catch_warnings(record=True):
                warnings.simplefilter("always")
                with pytest.raises(ValueError, match="mine") as caught:
                    async with sandbox:
                        raise mine
                assert caught.value is mine

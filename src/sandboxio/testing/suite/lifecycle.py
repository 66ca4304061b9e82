"""A sandbox from its creation to its end."""

from __future__ import annotations

import pytest

from sandboxio.errors import ConnectError, SandboxError, SandboxGone
from sandboxio.models import Capability
from sandboxio.protocols import AsyncSandbox, ReapableBackend

from .base import MARK, Contract, needs, new_mark


class LifecycleTests(Contract):
    """Row "Lifecycle" of the contract."""

    async def ended(self, sandbox: AsyncSandbox) -> None:
        """Fail unless every operation on the sandbox says that it is gone."""
        if Capability.RUN_COMMAND in self.backend.capabilities:
            with pytest.raises(SandboxGone):
                await sandbox.run([*self.cmd_echo, "hello"])
        with pytest.raises(ConnectError):
            await self.backend.connect(sandbox.id)

    async def test_a_sandbox_is_usable_when_create_returns(self) -> None:
        async with self.sandbox() as sandbox:
            assert isinstance(sandbox.id, str)
            assert sandbox.id
            assert sandbox.native is not None
            if Capability.RUN_COMMAND in self.backend.capabilities:
                result = await sandbox.run([*self.cmd_echo, "hello"])
                assert (result.exit_code, result.stdout) == (0, "hello\n")

    async def test_two_sandboxes_have_two_ids(self) -> None:
        async with self.sandbox() as one, self.sandbox() as two:
            assert one.id != two.id

    @needs(Capability.RUN_COMMAND, Capability.FILESYSTEM)
    async def test_sandboxes_made_at_once_share_nothing(self) -> None:
        async def live(number: int) -> None:
            async with self.sandbox(env={"NUMBER": str(number)}) as sandbox:
                await sandbox.files.write("number", str(number))
                result = await sandbox.run([*self.cmd_printenv, "NUMBER"])
                assert result.stdout == f"{number}\n"
                assert await sandbox.files.read("number") == str(number).encode()

        async with self.tasks() as tasks:
            for number in range(3):
                tasks.start_soon(live, number)

    async def test_kill_ends_it(self) -> None:
        async with self.sandbox() as sandbox:
            await sandbox.kill()
            await self.ended(sandbox)

    async def test_leaving_the_context_ends_it(self) -> None:
        async with self.sandbox() as sandbox:
            async with sandbox as entered:
                assert entered is sandbox
            await self.ended(sandbox)

    async def test_an_exception_in_the_context_ends_it_and_passes_through(self) -> None:
        mine = ValueError("mine")
        async with self.sandbox() as sandbox:
            with pytest.raises(ValueError, match="mine") as caught:
                async with sandbox:
                    raise mine
            assert caught.value is mine
            await self.ended(sandbox)

    async def test_an_ended_sandbox_is_not_held_by_the_provider(self) -> None:
        label = new_mark()
        async with self.sandbox(label=label) as sandbox:
            held = await self.probe("provider_sandboxes", label)
            assert [each.sandbox_id for each in held] == [sandbox.id]
            await sandbox.kill()
            await self.assert_nothing_left(label)

    async def test_kill_is_idempotent(self) -> None:
        async with self.sandbox() as sandbox:
            for _ in range(3):
                await sandbox.kill()

    async def test_kills_at_the_same_time_all_succeed(self) -> None:
        async with self.sandbox() as sandbox:
            async with self.tasks() as tasks:
                for _ in range(3):
                    tasks.start_soon(sandbox.kill)
            await self.ended(sandbox)

    @needs(Capability.RUN_COMMAND)
    async def test_kill_ends_what_runs_and_tells_it(self) -> None:
        mark, caught = new_mark(), list[SandboxError]()

        async def hang(sandbox: AsyncSandbox) -> None:
            try:
                await sandbox.run(self.cmd_hang, env={MARK: mark}, timeout=500)
            except SandboxError as error:
                caught.append(error)

        async with (
            self.sandbox() as sandbox,
            self.within(3 * self.patience, "a run in a killed sandbox"),
            self.tasks() as tasks,
        ):
            tasks.start_soon(hang, sandbox)
            await self.assert_running(sandbox, mark)
            await sandbox.kill()
        assert [type(error) for error in caught] == [SandboxGone]

    async def test_kill_is_bounded(self) -> None:
        async with self.sandbox() as sandbox, self.within(self.patience, "a kill"):
            await sandbox.kill()

    async def test_connecting_to_an_unknown_sandbox_is_refused(self) -> None:
        with pytest.raises(ConnectError):
            await self.backend.connect("no-such-sandbox-" + new_mark())

    async def test_connecting_to_an_ended_sandbox_is_refused(self) -> None:
        async with self.sandbox() as sandbox:
            await sandbox.kill()
            with pytest.raises(ConnectError):
                await self.backend.connect(sandbox.id)

    @needs(Capability.RUN_COMMAND)
    async def test_connecting_gives_a_handle_on_the_same_sandbox(self) -> None:
        async with self.sandbox() as sandbox:
            if Capability.FILESYSTEM in self.backend.capabilities:
                await sandbox.files.write("shared", "yes\n")
            async with await self.backend.connect(sandbox.id) as same:
                assert same.id == sandbox.id
                assert (await same.run([*self.cmd_echo, "hello"])).stdout == "hello\n"
                if Capability.FILESYSTEM in self.backend.capabilities:
                    assert (await same.run([*self.cmd_cat, "shared"])).stdout == "yes\n"
            with pytest.raises(SandboxGone):
                await sandbox.run([*self.cmd_echo, "hello"])

    async def test_it_may_be_made_used_and_ended_in_different_tasks(self) -> None:
        async def enter(sandbox: AsyncSandbox) -> None:
            await sandbox.__aenter__()

        async def use(sandbox: AsyncSandbox) -> None:
            if Capability.RUN_COMMAND in self.backend.capabilities:
                assert (await sandbox.run([*self.cmd_echo, "hello"])).ok

        async def end(sandbox: AsyncSandbox) -> None:
            await sandbox.__aexit__(None, None, None)

        async with self.sandbox() as sandbox:
            for step in (enter, use, end):
                async with self.tasks() as tasks:
                    tasks.start_soon(step, sandbox)
            await self.ended(sandbox)

    async def test_a_managed_sandbox_is_ended_by_its_id(self) -> None:
        if not isinstance(self.backend, ReapableBackend):
            pytest.skip(f"{type(self.backend).__name__} has no list_managed() and kill_managed()")
        async with self.sandbox() as sandbox:
            listed = await self.backend.list_managed()
            assert [each.state for each in listed if each.sandbox_id == sandbox.id] == ["running"]
            assert all(each.backend == self.backend.name for each in listed)
            assert await self.backend.kill_managed(sandbox.id) is True
            await self.ended(sandbox)
            assert await self.backend.kill_managed(sandbox.id) is False
            await sandbox.kill()
        assert await self.backend.kill_managed("no-such-sandbox-" + new_mark()) is False

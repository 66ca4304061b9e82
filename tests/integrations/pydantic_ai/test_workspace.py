"""The workspace against Pydantic AI's own conformance suite: Docker, the stand-in of E2B, and the fake."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest

pytest.importorskip("pydantic_ai.workspaces", reason="workspaces begin with pydantic-ai 2.56")

from pydantic_ai.messages import WorkspaceRef
from pydantic_ai.workspaces import Workspace, WorkspaceBackend, WorkspaceError, WorkspaceUnavailableError
from pydantic_ai.workspaces.conformance import WorkspaceBackendSuite

import sandboxio
from sandboxio import ConfigurationError, ConnectError, registry
from sandboxio.integrations.pydantic_ai_workspace import SandboxWorkspace
from sandboxio.testing import FakeBackend
from tests.e2b_standin.fixtures import standin as standin, standin_process as standin_process
from tests.e2b_standin.running import StandInProcess


class OnSandboxio(WorkspaceBackendSuite):
    """The suite's fixtures; a subclass says where the sandboxes are made."""

    @pytest.fixture
    def target(self) -> str:
        raise NotImplementedError

    @pytest.fixture
    async def made(self) -> AsyncIterator[list[SandboxWorkspace]]:
        workspaces: list[SandboxWorkspace] = []
        yield workspaces
        for workspace in workspaces:
            await workspace.destroy()

    @pytest.fixture
    async def backend(self, target: str, made: list[SandboxWorkspace]) -> SandboxWorkspace:
        made.append(SandboxWorkspace(target))
        return made[-1]

    @pytest.fixture
    def fresh_backend(self, target: str, made: list[SandboxWorkspace]) -> Callable[[], WorkspaceBackend]:
        def fresh() -> SandboxWorkspace:
            made.append(SandboxWorkspace(target))
            return made[-1]

        return fresh

    @pytest.fixture
    def attach_backend(
        self, target: str, made: list[SandboxWorkspace]
    ) -> Callable[[WorkspaceRef], WorkspaceBackend]:
        def attach(ref: WorkspaceRef) -> SandboxWorkspace:
            made.append(SandboxWorkspace(target, ref=ref))
            return made[-1]

        return attach

    @pytest.fixture
    def destroy_environment(self) -> Callable[[Any], Awaitable[None]]:
        async def destroy(backend: SandboxWorkspace) -> None:
            await backend.destroy()

        return destroy


@pytest.mark.engine
class TestWorkspaceOnDocker(OnSandboxio):
    @pytest.fixture
    def target(self, docker_image: str) -> str:
        return f"docker://{docker_image}"


class TestWorkspaceAtTheStandInOfE2B(OnSandboxio):
    @pytest.fixture
    def target(self, standin: StandInProcess) -> str:
        return "e2b://"


SCRIPTS = "the command is a shell script, and the fake's shell knows single commands only"
FILES = "the framework makes its file operations out of shell scripts, which the fake does not run"
LACKING = {
    "test_stdin_is_at_eof": SCRIPTS,
    "test_command_output_is_complete": SCRIPTS,
    "test_background_child_does_not_hold_up_completed_command": "the fake has no processes",
    "test_run_starts_in_cwd": FILES,
    "test_cancellation_stops_foreground_work": "the fake has no processes",
    "test_concurrent_first_use_shares_one_environment": FILES,
    "test_large_file_round_trip": FILES,
    "test_bytes_round_trip_and_write_creates_parents": FILES,
    "test_exists": FILES,
    "test_stat_and_list_dir": FILES,
    "test_make_dir_creates_parents_and_is_idempotent": FILES,
    "test_commands_and_files_share_one_environment": FILES,
    "test_missing_paths_raise_file_not_found": FILES,
    "test_reading_a_directory_raises_is_a_directory": FILES,
    "test_listing_a_file_raises_not_a_directory": FILES,
    "test_writing_to_a_directory_raises_is_a_directory": FILES,
    "test_symlink_loop_does_not_break_listing": FILES,
    "test_fifo_read_does_not_wait_for_writer": FILES,
    "test_permission_denied_uses_builtin_error": FILES,
    "test_file_as_parent_raises_not_a_directory": FILES,
    "test_making_a_directory_over_a_file_raises_file_exists": FILES,
    "test_remove_deletes_a_file_or_a_tree": FILES,
    "test_remove_refuses_the_working_dir_and_its_ancestors": FILES,
    "test_realpath_and_entries_follow_symlinks": FILES,
    "test_writes_go_through_a_symlink": FILES,
    "test_a_backend_attached_by_ref_reaches_the_same_environment": FILES,
    "test_a_backend_attached_by_ref_reaches_a_detached_process": "the fake has no processes",
    "test_destroying_environment_during_command_raises_unavailable": FILES,
}
"""What the fake cannot serve."""


class TestWorkspaceOnTheFake(OnSandboxio):
    @pytest.fixture
    def target(self) -> str:
        return "fake://"


for lacking in LACKING:  # an older suite has fewer tests
    if hasattr(WorkspaceBackendSuite, lacking):
        setattr(TestWorkspaceOnTheFake, lacking, None)


async def test_what_the_fake_cannot_serve_is_said() -> None:
    """The reason for the list above: an operation on files is a script, and the error tells what to do."""
    workspace = SandboxWorkspace("fake://")
    with pytest.raises(WorkspaceError, match="script this command with on_run"):
        await Workspace(workspace).exists("x")
    await workspace.destroy()


def test_a_ref_of_another_provider_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="provider 'other'"):
        SandboxWorkspace(ref=WorkspaceRef(provider="other", id="x"))


@pytest.mark.parametrize(
    ("command", "options"),
    [
        (["echo", "a\0b"], {}),
        (["echo", "x" * 140_000], {}),
        ([""], {}),
        (["echo"], {"timeout": -1}),
        (["echo"], {"env": {"A=B": "x"}}),
    ],
    ids=["NUL", "too long", "empty", "timeout", "env"],
)
async def test_an_argument_that_no_command_can_have_is_a_value_error(
    fake: FakeBackend, command: list[str], options: dict[str, Any]
) -> None:
    workspace = SandboxWorkspace("fake://")
    with pytest.raises(ValueError, match="SBX_E1000"):
        await workspace.run(command, **options)
    assert (await workspace.run(["echo", "1"])).exit_code == 0
    await workspace.destroy()


@pytest.fixture
def fake() -> Iterator[FakeBackend]:
    fake = FakeBackend()
    sandboxio.register("fake", lambda: fake)
    yield fake
    registry.unregister("fake")


async def test_a_workspace_that_was_only_named_is_destroyed(fake: FakeBackend) -> None:
    first = SandboxWorkspace("fake://")
    await first.run(["echo", "1"])
    again = SandboxWorkspace("fake://", ref=first.ref)
    with anyio.CancelScope() as scope:
        scope.cancel()  # as in the `finally` of a run that is cancelled
        await again.destroy()
    assert await fake.list_managed() == []
    await SandboxWorkspace("fake://", ref=first.ref).destroy()  # gone already
    await first.destroy()


async def test_destroy_says_so_if_the_named_sandbox_may_run_on(fake: FakeBackend) -> None:
    first = SandboxWorkspace("fake://")
    await first.run(["echo", "1"])

    async def unreachable(sandbox_id: str) -> Any:
        await anyio.lowlevel.checkpoint()
        raise ConnectError(f"Nobody answers for {sandbox_id}.")

    fake.connect = unreachable  # type: ignore[method-assign]
    fake.simulate(kill_fails=OSError("no route"))
    with pytest.raises(ConnectError):
        await SandboxWorkspace("fake://", ref=first.ref).destroy()
    fake.simulate()
    await SandboxWorkspace("fake://", ref=first.ref).destroy()
    assert await fake.list_managed() == []


async def test_destroy_says_so_if_nobody_answers_in_time(
    fake: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = SandboxWorkspace("fake://")
    await first.run(["echo", "1"])
    assert first.ref is not None

    async def silent(sandbox_id: str) -> Any:
        await anyio.sleep_forever()

    fake.connect = silent  # type: ignore[method-assign]
    monkeypatch.setenv("SBX_TEARDOWN_GRACE", "0.05")
    with pytest.raises(ConnectError, match=first.ref.id):
        await SandboxWorkspace("fake://", ref=first.ref).destroy()
    assert len(await fake.list_managed()) == 1
    await first.destroy()


async def test_a_workspace_destroyed_while_it_is_made_leaves_nothing(fake: FakeBackend) -> None:
    create, making, go_on = fake.create, anyio.Event(), anyio.Event()

    async def slow(**options: Any) -> Any:
        making.set()
        await go_on.wait()
        return await create(**options)

    fake.create = slow  # type: ignore[method-assign]
    workspace = SandboxWorkspace("fake://")

    async def use() -> None:
        with pytest.raises(WorkspaceUnavailableError):
            await workspace.run(["echo", "1"])

    async with anyio.create_task_group() as group:
        group.start_soon(use)
        await making.wait()
        await workspace.destroy()
        go_on.set()
    assert await fake.list_managed() == []


async def test_a_destroyed_workspace_makes_no_other_sandbox(fake: FakeBackend) -> None:
    workspace = SandboxWorkspace("fake://")
    await workspace.destroy()
    with pytest.raises(WorkspaceUnavailableError, match="destroyed"):
        await workspace.run(["echo", "1"])
    assert await fake.list_managed() == []

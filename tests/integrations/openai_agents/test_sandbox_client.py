"""sandboxio as the OpenAI Agents SDK's sandbox client: a scripted SandboxAgent on Docker and on E2B."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from agents import RunConfig, Runner
from agents.sandbox import SandboxAgent, SandboxRunConfig
from agents.sandbox.errors import (
    ExecTimeoutError,
    ExecTransportError,
    WorkspaceReadNotFoundError,
)

import sandboxio
from sandboxio import ExecResult, registry
from sandboxio.integrations.openai_agents import SbxSandboxClient, SbxSandboxOptions
from sandboxio.testing import FakeBackend
from tests.e2b_standin.fixtures import standin as standin, standin_process as standin_process

from .scripted import ScriptedModel, call, says

pytestmark = pytest.mark.one_loop("the SDK's sessions and runner use asyncio")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session", params=[pytest.param("docker", marks=pytest.mark.engine), "e2b"])
def place(request: pytest.FixtureRequest) -> str:
    """A DSN is all that differs; E2B is its stand-in."""
    if request.param == "docker":
        return f"docker://{request.getfixturevalue('docker_image')}"
    request.getfixturevalue("standin_process")
    return "e2b://"


@pytest.fixture
def options(place: str, request: pytest.FixtureRequest) -> SbxSandboxOptions:
    if place == "e2b://":
        request.getfixturevalue("standin")
    return SbxSandboxOptions(target=place, timeout=120)


@pytest.fixture
def registered() -> Iterator[FakeBackend]:
    """What ``fake://`` means in a test."""
    fake = FakeBackend()
    sandboxio.register("fake", lambda: fake)
    yield fake
    registry.unregister("fake")


@pytest.fixture
async def session(options: SbxSandboxOptions) -> AsyncIterator[Any]:
    client = SbxSandboxClient()
    made = await client.create(options=options)
    await made.start()
    yield made
    await client.delete(made)


async def test_commands_have_bytes_exit_codes_and_no_terminal(session: Any) -> None:
    result = await session.exec("printf '\\377out'; echo err >&2; exit 3")
    assert (result.stdout, result.stderr, result.exit_code) == (b"\xffout", b"err\n", 3)


async def test_a_timeout_and_a_sandbox_that_went_are_the_sdk_s_errors(session: Any) -> None:
    with pytest.raises(ExecTimeoutError):
        await session.exec("sleep 60", timeout=0.5)
    await session._inner.sandbox.kill()
    with pytest.raises(ExecTransportError, match="SBX_E1204"):
        await session.exec("true")
    assert not await session.running()


async def test_files_and_workspaces_move(session: Any, options: SbxSandboxOptions) -> None:
    await session.write(Path("folder/a.txt"), io.BytesIO(b"data"))
    assert (await session.read(Path("folder/a.txt"))).read() == b"data"
    root = session.state.manifest.root
    assert root == ("/workspace" if options.target.startswith("docker") else "/home/user/workspace")
    assert (await session.exec("pwd; cat folder/a.txt")).stdout == f"{root}\ndata".encode()
    with pytest.raises(WorkspaceReadNotFoundError):
        await session.read(Path("nothing"))
    archive = await session.persist_workspace()
    client = SbxSandboxClient()
    other = await client.create(options=options)
    try:
        await other.start()
        await other.hydrate_workspace(archive)
        assert (await other.read(Path("folder/a.txt"))).read() == b"data"
    finally:
        archive.close()
        await client.delete(other)


async def test_a_state_that_was_stored_finds_the_same_sandbox(
    session: Any, options: SbxSandboxOptions
) -> None:
    client = SbxSandboxClient()
    stored = client.serialize_session_state(session.state)
    assert options.target in str(stored)
    again = await client.resume(client.deserialize_session_state(dict(stored)))
    assert again._inner.sandbox.id == session._inner.sandbox.id
    again._inner.sandbox._close()  # the first session ends the sandbox


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"cmd": "echo x", "yield_time_ms": 0}, "timed out after 0.000 seconds"),
        ({"cmd": "echo a\0b"}, "SBX_E1000"),
        ({"cmd": "cat > f <<E\n" + "x" * 140_000 + "\nE"}, "longer than 131071 bytes"),
    ],
    ids=["no time", "NUL", "too long"],
)
async def test_a_command_that_cannot_be_run_is_told_to_the_model_and_the_run_goes_on(
    asked: dict[str, Any], told: str, registered: FakeBackend
) -> None:
    registered.on_run(match="", returns=ExecResult(0, "", ""))
    model = ScriptedModel([call("exec_command", "c1", **asked)], [says("done")])
    sandbox = SandboxRunConfig(client=SbxSandboxClient(), options=SbxSandboxOptions(target="fake://"))
    answer = await Runner.run(
        SandboxAgent(name="tester", model=model),
        "go",
        run_config=RunConfig(tracing_disabled=True, sandbox=sandbox),
    )
    (seen,) = [item.output for item in answer.new_items if item.type == "tool_call_output_item"]
    assert told in seen
    assert answer.final_output == "done"


@pytest.mark.parametrize(
    ("target", "given", "effective"),
    [
        ("fake://", None, 3600),
        ("fake://x", 300, 300),
        ("fake://x?timeout=600", None, 600),
        ("fake://x?timeout=600", 600, 600),
    ],
)
async def test_the_timeout_is_the_given_one_or_that_of_the_target_or_an_hour(
    target: str, given: float | None, effective: float, registered: FakeBackend
) -> None:
    client = SbxSandboxClient()
    session = await client.create(options=SbxSandboxOptions(target=target, timeout=given))
    await client.delete(session)
    assert [call.timeout for call in registered.calls if call.op == "create"] == [effective]


@pytest.mark.parametrize("given", [300, float("nan"), 0, -1])
async def test_a_second_or_wrong_timeout_makes_no_sandbox(given: float, registered: FakeBackend) -> None:
    options = SbxSandboxOptions(target="fake://x?timeout=600", timeout=given)
    with pytest.raises(sandboxio.ConfigurationError, match="timeout"):
        await SbxSandboxClient().create(options=options)
    assert registered.calls == []


async def test_a_sandbox_agent_runs_in_a_container_and_leaves_none(options: SbxSandboxOptions) -> None:
    model = ScriptedModel([call("exec_command", "c1", cmd="echo $((6 * 7)); exit 3")], [says("done")])
    agent = SandboxAgent(name="tester", model=model)
    answer = await Runner.run(
        agent,
        "go",
        run_config=RunConfig(
            tracing_disabled=True, sandbox=SandboxRunConfig(client=SbxSandboxClient(), options=options)
        ),
    )
    assert model.left == []
    seen = [item.output for item in answer.new_items if item.type == "tool_call_output_item"]
    assert "42" in seen[0]
    assert "3" in seen[0]
    assert answer.final_output == "done"
    backend = registry.resolve(options.target.partition(":")[0])
    assert await backend.list_managed(labels={"app": "openai-agents"}) == []

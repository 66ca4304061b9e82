"""The six tools through the SDK's own client, in memory: both loops, both eras of the protocol."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp_types import CallToolResult

import sandboxio
from sandboxio import ExecResult, RichOutput
from sandboxio.mcp import server as server_module
from sandboxio.mcp.server import Settings, build
from sandboxio.testing import FakeBackend
from tests.integrations import failures
from tests.integrations.failures import CASES, Case, check

ERAS = ("auto", "legacy")


@pytest.fixture(autouse=True)
def fake() -> Iterator[FakeBackend]:
    backend = failures.scripted("no secret: the server has none")
    sandboxio.register("docker", lambda: backend)
    yield backend
    sandboxio.registry.unregister("docker")


@asynccontextmanager
async def connected(era: Any, backend: str = "docker://", **settings: Any) -> AsyncIterator[Client]:
    async with Client(build(Settings(backend, **settings)), mode=era) as client:
        yield client


def text(result: CallToolResult) -> str:
    return "".join(getattr(block, "text", "") for block in result.content)


@pytest.mark.parametrize("era", ERAS)
async def test_six_tools_with_schemas_and_annotations(era: str) -> None:
    """Case 87, as far as MCP goes: typed arguments, nothing that could change the configuration."""
    async with connected(era) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert sorted(tools) == [
        "list_files",
        "read_file",
        "run_command",
        "run_python",
        "sandbox_info",
        "write_file",
    ]
    assert list(tools["run_python"].input_schema["properties"]) == ["code"]
    assert list(tools["run_command"].input_schema["properties"]) == ["cmd"]
    assert tools["sandbox_info"].input_schema.get("properties", {}) == {}
    for tool in tools.values():
        assert tool.description
        assert tool.output_schema
        assert tool.annotations is not None
    reading = [name for name, tool in tools.items() if tool.annotations.read_only_hint]  # type: ignore[union-attr]
    assert sorted(reading) == ["list_files", "read_file", "sandbox_info"]


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(("tool", "argument"), [("run_python", "code"), ("run_command", "cmd")])
async def test_output_failure_and_timeout(era: str, tool: str, argument: str, fake: FakeBackend) -> None:
    """Case 85: a non-zero exit is a result; a timeout is an error with its fix."""
    async with connected(era, timeout=1) as client:
        good = await client.call_tool(tool, {argument: "good"})
        assert not good.is_error
        assert good.structured_content["stdout"] == "forty-two\n"  # type: ignore[index]
        bad = await client.call_tool(tool, {argument: "bad"})
        assert not bad.is_error
        assert bad.structured_content["exit_code"] == 3  # type: ignore[index]
        slow = await client.call_tool(tool, {argument: "slow"})
        assert slow.is_error
        assert "SBX_E1302" in text(slow)
        assert "Fix: " in text(slow)
        assert "Traceback" not in text(slow)
    assert await fake.list_managed() == []


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_every_failure_is_what_the_table_says(era: str, case: Case) -> None:
    """Case 85: the same table that the tools of the frameworks are held to."""
    for tool, argument in (("run_python", "code"), ("run_command", "cmd")):
        async with connected(era, timeout=1) as client:
            result = await client.call_tool(tool, {argument: case.program})
            check(case, text(result), is_error=result.is_error)


@pytest.mark.parametrize("era", ERAS)
async def test_an_unknown_argument_changes_nothing(era: str, fake: FakeBackend) -> None:
    """Case 87: no client can lift what the host has set."""
    wishes = {"cmd": "good", "timeout": 99_999, "egress": "allow", "backend": "docker://other", "context": {}}
    async with connected(era, timeout=7) as client:
        assert not (await client.call_tool("run_command", wishes)).is_error
        info = (await client.call_tool("sandbox_info", {"egress": "allow"})).structured_content
    assert info is not None
    assert (info["egress"], info["timeout_s"]) == ("deny", 7)
    assert fake.calls[0].network == sandboxio.NetworkPolicy(egress="deny")
    assert [call.timeout for call in fake.calls if call.op == "run"] in ([None], [7])


@pytest.mark.parametrize("era", ERAS)
async def test_twenty_calls_at_once_of_which_some_are_cut_off(era: str, fake: FakeBackend) -> None:
    """Each gets its own answer, whatever becomes of its neighbours."""
    seen: dict[int, str] = {}

    async def call(client: Client, number: int) -> None:
        with anyio.move_on_after(0.3 if number % 4 == 3 else 60):
            program = ("good", "bad", "long", "slow")[number % 4]
            result = await client.call_tool("run_command", {"cmd": program})
            seen[number] = str(result.structured_content)

    async with connected(era) as client:
        async with anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(call, client, number)
        assert sorted(seen) == [number for number in range(20) if number % 4 != 3]
        for number, shown in seen.items():
            assert ("forty-two", "no such file", "left out")[number % 4] in shown
        assert not (await client.call_tool("run_command", {"cmd": "good"})).is_error
    assert await fake.list_managed() == []


@pytest.mark.parametrize("era", ERAS)
async def test_long_output_keeps_head_and_tail_and_says_so(era: str) -> None:
    async with connected(era) as client:
        shown = (await client.call_tool("run_command", {"cmd": "long"})).structured_content
    assert shown is not None
    assert shown["truncated"] is True
    assert "30000 characters left out" in shown["stdout"]


@pytest.mark.parametrize("era", ERAS)
async def test_display_outputs_are_cut_like_streams_and_images_stay_whole(
    era: str, fake: FakeBackend
) -> None:
    plot, table = RichOutput("image/png", "aGk=" * 10_000), RichOutput("text/html", "x" * 15_000)
    cases = {"few": (plot, table), "long": (table,) * 1000, "many": (RichOutput("text/plain", ""),) * 1000}
    seen: dict[str, Any] = {}
    for match, results in cases.items():
        fake.on_run_code(match=match, returns=ExecResult(0, "", "", results=results))
    async with connected(era) as client:
        for match in cases:
            seen[match] = (await client.call_tool("run_python", {"code": match})).structured_content
    assert [each["data"] for each in seen["few"]["results"]] == [plot.data, table.data]
    assert not seen["few"]["truncated"]
    for match in ("long", "many"):
        assert seen[match]["truncated"] is True
        assert sum(len(str(each)) for each in seen[match]["results"]) < 21_000
        left_out = 1000 - len(seen[match]["results"])
        assert seen[match]["notes"] == [f"{left_out} display outputs are left out"]


@pytest.mark.parametrize("era", ERAS)
async def test_files_round_trip_as_text_and_as_base64(era: str) -> None:
    async with connected(era) as client:
        data = bytes(range(256))
        await client.call_tool("write_file", {"path": "t", "content": "é漢🙂"})
        await client.call_tool(
            "write_file", {"path": "b", "content": base64.b64encode(data).decode(), "encoding": "base64"}
        )
        read = (await client.call_tool("read_file", {"path": "t"})).structured_content
        assert read == {"content": "é漢🙂", "encoding": "utf-8", "size": len("é漢🙂".encode())}
        read = (await client.call_tool("read_file", {"path": "b"})).structured_content
        assert read is not None
        assert (read["encoding"], base64.b64decode(read["content"])) == ("base64", data)
        listed = (await client.call_tool("list_files", {})).structured_content
        assert listed is not None
        assert [entry["path"].rpartition("/")[2] for entry in listed["entries"]] == ["b", "t"]
        missing = await client.call_tool("read_file", {"path": "nothing"})
        assert missing.is_error
        assert "SBX_E1701" in text(missing)
        wrong = await client.call_tool("write_file", {"path": "x", "content": "?", "encoding": "base64"})
        assert wrong.is_error
        assert "not base64" in text(wrong)


@pytest.mark.parametrize("era", ERAS)
async def test_info_tells_the_policy_and_no_tool_changes_it(era: str, fake: FakeBackend) -> None:
    async with connected(era) as client:
        info = (await client.call_tool("sandbox_info", {})).structured_content
    assert info is not None
    assert (info["backend"], info["isolation"], info["egress"]) == ("docker", "container", "deny")
    assert fake.calls[0].network == sandboxio.NetworkPolicy(egress="deny")


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    ("backend", "given", "effective"),
    [
        ("docker://", None, 3600),
        ("docker://x", 300, 300),
        ("docker://x?timeout=600", None, 600),
        ("docker://x?timeout=300", None, 300),
        ("docker://x?timeout=600", 600, 600),
    ],
)
async def test_the_sandbox_gets_the_timeout_that_info_tells(
    era: str, backend: str, given: float | None, effective: float, fake: FakeBackend
) -> None:
    async with connected(era, backend, timeout=given) as client:
        info = (await client.call_tool("sandbox_info", {})).structured_content
    assert info is not None
    assert (info["backend"], info["timeout_s"]) == ("docker", effective)
    assert [call.timeout for call in fake.calls if call.op == "create"] == [effective]


def test_two_timeouts_end_the_start() -> None:
    with pytest.raises(sandboxio.ConfigurationError, match="given twice"):
        Settings("docker://x?timeout=600", 300.0)


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("run_python", {}),
        ("run_python", {"code": 3}),
        ("run_python", {"code": "a\ud800"}),
        ("run_command", {"cmd": ""}),
        ("run_command", {"cmd": ["ls"]}),
        ("read_file", {"path": "a\0b"}),
        ("no_such_tool", {"x": 1}),
    ],
)
async def test_a_wrong_call_is_an_error_and_the_server_goes_on(era: str, tool: str, arguments: Any) -> None:
    async with connected(era) as client:
        try:
            result = await client.call_tool(tool, arguments)
        except (ValueError, UnicodeError):
            pass  # the client itself could not put it into JSON
        else:
            assert result.is_error
        assert not (await client.call_tool("run_command", {"cmd": "good"})).is_error


@pytest.mark.parametrize("era", ERAS)
async def test_five_megabytes_of_code_arrive(era: str, fake: FakeBackend) -> None:
    code = "x = 'good'\n" + "#" * 5_000_000
    async with connected(era) as client:
        assert not (await client.call_tool("run_python", {"code": code})).is_error
    assert any(call.op == "run_code" for call in fake.calls)


@pytest.mark.parametrize("era", ERAS)
async def test_one_sandbox_serves_all_calls_also_at_once_and_ends_with_the_server(
    era: str, fake: FakeBackend
) -> None:
    async with connected(era) as client:
        assert await fake.list_managed() == []
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(client.call_tool, "run_command", {"cmd": "good"})
        assert len(await fake.list_managed()) == 1
    assert await fake.list_managed() == []
    assert [call.op for call in fake.calls].count("create") == 1


@pytest.mark.parametrize("era", ERAS)
async def test_a_sandbox_that_went_is_told_once_and_then_replaced(era: str, fake: FakeBackend) -> None:
    async with connected(era) as client:
        info = (await client.call_tool("sandbox_info", {})).structured_content
        fake.expire(info["sandbox_id"])  # type: ignore[index]
        gone = await client.call_tool("run_command", {"cmd": "good"})
        assert gone.is_error
        assert "SBX_E1204" in text(gone)
        assert not (await client.call_tool("run_command", {"cmd": "good"})).is_error
    assert await fake.list_managed() == []


@pytest.mark.parametrize("era", ERAS)
async def test_a_bug_shows_the_model_nothing(era: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(settings: Settings) -> Any:
        raise LookupError("internal detail")

    monkeypatch.setattr(Settings, "create", broken)
    async with connected(era) as client:
        result = await client.call_tool("run_command", {"cmd": "good"})
    assert result.is_error
    assert "internal detail" not in text(result)


@pytest.mark.parametrize("era", ERAS)
async def test_a_long_call_reports_progress_and_a_cancelled_one_is_killed(
    era: str, fake: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "HEARTBEAT", 0.01)
    heard = anyio.Event()

    async def progress(value: float, total: float | None, message: str | None) -> None:
        assert value >= 0
        assert total is None
        assert message is not None
        assert message.startswith("running for")
        heard.set()

    async with connected(era) as client:
        async with anyio.create_task_group() as group:

            async def call() -> None:
                await client.call_tool("run_command", {"cmd": "slow"}, progress_callback=progress)

            group.start_soon(call)
            with anyio.fail_after(10):
                await heard.wait()
            group.cancel_scope.cancel()
        assert not (await client.call_tool("run_command", {"cmd": "good"})).is_error
    assert await fake.list_managed() == []

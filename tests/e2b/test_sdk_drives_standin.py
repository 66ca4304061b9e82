"""E2B's own clients, unmodified, against the stand-in: what they rely on, it does.

The library's adapter is tested against the stand-in too; without this file both could share one
misunderstanding.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import anyio
import e2b
import e2b_code_interpreter as interpreter
import httpx
import pytest
from e2b import (
    AuthenticationException,
    CommandExitException,
    FileNotFoundException,
    NotFoundException,
    PtySize,
    SandboxException,
    SandboxNotFoundException,
    SandboxQuery,
    SandboxState,
    TimeoutException,
)
from e2b.exceptions import SandboxNotRunningException, SandboxUnreachableException

from sandboxio.testing.suite.comparing import difference
from tests.e2b_standin.running import StandInProcess

pytestmark = [
    pytest.mark.one_loop("E2B's clients need asyncio"),
    pytest.mark.leaves("E2B's clients keep their connections for ever"),
]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def do(value: Any) -> Any:
    """The value, awaited if this is the asynchronous client."""
    return await value if inspect.isawaitable(value) else value


class Client:
    """One of the two clients, with the names that both have."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.sandbox: Any = e2b.Sandbox if kind == "sync" else e2b.AsyncSandbox
        self.interpreter: Any = interpreter.Sandbox if kind == "sync" else interpreter.AsyncSandbox

    async def create(self, **options: Any) -> Any:
        options = {"template": "base", "timeout": 120, "retries": 0, **options}
        return await do(self.sandbox.create(**options))


@pytest.fixture(params=["sync", "async"])
def client(request: pytest.FixtureRequest, standin: StandInProcess) -> Client:
    return Client(request.param)


@pytest.fixture
async def sandbox(client: Client) -> AsyncIterator[Any]:
    made = await client.create()
    yield made
    await do(made.kill())


# Life of a sandbox


async def test_create_info_and_kill(client: Client) -> None:
    made = await client.create(metadata={"team": "a b/c"}, envs={"WHO": "world"})
    info = await do(made.get_info())
    assert info.sandbox_id == made.sandbox_id
    assert info.metadata == {"team": "a b/c"}
    assert info.state == SandboxState.RUNNING
    assert info.started_at < info.end_at
    assert (await do(made.commands.run("echo $WHO"))).stdout == "world\n"
    assert await do(made.is_running())
    assert await do(made.kill())
    assert not await do(made.kill())
    assert not await do(made.is_running())
    with pytest.raises(SandboxNotFoundException):
        await do(client.sandbox.get_info(made.sandbox_id))


async def test_connect_keeps_what_is_there(client: Client, sandbox: Any) -> None:
    await do(sandbox.files.write("note", "x"))
    before = (await do(sandbox.get_info())).end_at
    other = await do(client.sandbox.connect(sandbox.sandbox_id, timeout=10))
    assert await do(other.files.read("note")) == "x"
    assert (await do(other.get_info())).end_at == before, "connect must not shorten a lifetime"
    await do(client.sandbox.connect(sandbox.sandbox_id, timeout=600))
    assert (await do(other.get_info())).end_at > before


async def test_lists_by_metadata_and_state_in_pages(client: Client) -> None:
    made = [await client.create(metadata={"batch": "1 & 2", "n": str(n)}) for n in range(3)]
    await client.create(metadata={"batch": "other"})
    await do(made[0].pause())
    pages = client.sandbox.list(query=SandboxQuery(metadata={"batch": "1 & 2"}), limit=2)
    first = await do(pages.next_items())
    assert [len(first), pages.has_next] == [2, True]
    second = await do(pages.next_items())
    assert [len(second), pages.has_next] == [1, False]
    assert {item.sandbox_id for item in [*first, *second]} == {item.sandbox_id for item in made}
    paused = client.sandbox.list(query=SandboxQuery(state=[SandboxState.PAUSED]))
    assert [item.sandbox_id for item in await do(paused.next_items())] == [made[0].sandbox_id]


async def test_set_timeout_ends_a_sandbox(client: Client) -> None:
    made = await client.create()
    await do(made.set_timeout(1))
    deadline = time.monotonic() + 10
    running = True
    while running:
        assert time.monotonic() < deadline, "the lifetime did not end"
        await anyio.sleep(0.1)
        with suppress(httpx.RemoteProtocolError):  # it ended under the question
            running = await do(made.is_running())
    with pytest.raises(SandboxNotRunningException):
        await do(made.commands.run("true"))


async def test_pause_cuts_off_and_connect_resumes(client: Client, sandbox: Any) -> None:
    await do(sandbox.files.write("kept", "yes"))
    assert await do(sandbox.pause())
    assert not await do(sandbox.pause()), "a second pause says that it is paused"
    assert not await do(sandbox.is_running())
    await do(sandbox.connect())
    assert await do(sandbox.files.read("kept")) == "yes"


async def test_metrics_and_network_updates(client: Client, sandbox: Any) -> None:
    metrics = await do(sandbox.get_metrics())
    assert metrics[0].cpu_count > 0
    await do(sandbox.update_network({"deny_out": ["10.0.0.0/8"]}))
    assert (await do(sandbox.get_info())).network["deny_out"] == ["10.0.0.0/8"]
    with pytest.raises(SandboxException, match="ALL_TRAFFIC"):
        await do(sandbox.update_network({"allow_out": ["example.org"]}))


async def test_no_internet_access_means_loopback_only(client: Client) -> None:
    made = await client.create(allow_internet_access=False)
    links = (
        await do(made.commands.run("ls /sys/class/net /proc/sys/net/ipv4/conf; cat /proc/net/route"))
    ).stdout
    assert "eth0" not in (await do(made.commands.run("cat /proc/net/dev"))).stdout
    assert links.rstrip().endswith("IRTT"), f"there is a route: {links}"
    await do(made.kill())


async def test_refusals(client: Client) -> None:
    with pytest.raises(AuthenticationException):
        await client.create(api_key="e2b_" + "1" * 40)
    with pytest.raises(SandboxException, match="template 'nope' not found"):
        await client.create(template="nope")
    with pytest.raises(SandboxException, match="Timeout cannot be greater"):
        await client.create(timeout=10**6)


# Commands


async def test_run_reports_streams_and_exit_codes(client: Client, sandbox: Any) -> None:
    result = await do(sandbox.commands.run("echo out; echo err >&2"))
    assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 0)
    with pytest.raises(CommandExitException) as failed:
        await do(sandbox.commands.run("echo gone >&2; exit 3"))
    assert (failed.value.exit_code, failed.value.stderr) == (3, "gone\n")
    with pytest.raises(CommandExitException) as failed:
        await do(sandbox.commands.run("no-such-program"))
    assert failed.value.exit_code == 127


async def test_run_takes_environment_folder_and_user(client: Client, sandbox: Any) -> None:
    run = sandbox.commands.run
    assert (await do(run("echo $A-$HOME", envs={"A": "1"}))).stdout == "1-/home/user\n"
    assert (await do(run("pwd", cwd="/tmp"))).stdout == "/tmp\n"
    assert (await do(run("whoami", user="root"))).stdout == "root\n"
    with pytest.raises(AuthenticationException, match="invalid username: 'nobody-here'"):
        await do(run("true", user="nobody-here"))
    with pytest.raises(SandboxException, match="cwd '/nowhere' does not exist"):
        await do(run("true", cwd="/nowhere"))


async def test_background_commands_are_listed_fed_and_killed(client: Client, sandbox: Any) -> None:
    handle = await do(sandbox.commands.run("cat; echo end", background=True, stdin=True))
    assert handle.pid in [item.pid for item in await do(sandbox.commands.list())]
    await do(sandbox.commands.send_stdin(handle.pid, "hello\n"))
    await do(sandbox.commands.close_stdin(handle.pid))
    assert (await do(handle.wait())).stdout == "hello\nend\n"
    sleeper = await do(sandbox.commands.run("sleep 60", background=True))
    assert await do(sandbox.commands.kill(sleeper.pid))
    with pytest.raises(CommandExitException):
        await do(sleeper.wait())
    assert not await do(sandbox.commands.kill(sleeper.pid))


async def test_connect_to_a_running_command_sees_its_end(client: Client, sandbox: Any) -> None:
    first = await do(sandbox.commands.run("cat; exit 5", background=True, stdin=True))
    second = await do(sandbox.commands.connect(first.pid))
    await do(sandbox.commands.close_stdin(first.pid))
    for handle in (first, second):
        with pytest.raises(CommandExitException) as failed:
            await do(handle.wait())
        assert failed.value.exit_code == 5
    late = await do(sandbox.commands.connect(first.pid))
    with pytest.raises(CommandExitException):
        await do(late.wait())


async def test_a_command_timeout_ends_the_command(client: Client, sandbox: Any) -> None:
    with pytest.raises(TimeoutException):
        await do(sandbox.commands.run("sleep 60", timeout=0.5))
    deadline = time.monotonic() + 10
    while await do(sandbox.commands.list()):
        assert time.monotonic() < deadline, "the command outlived its deadline"
        await anyio.sleep(0.05)


async def test_a_sandbox_killed_under_a_command(client: Client) -> None:
    made = await client.create()
    handle = await do(made.commands.run("sleep 60", background=True))
    await do(made.kill())
    with pytest.raises(SandboxNotRunningException):
        await do(handle.wait())


async def test_a_large_output_arrives_whole(client: Client, sandbox: Any) -> None:
    result = await do(sandbox.commands.run("head -c 3000000 /dev/zero | tr '\\0' x"))
    assert len(result.stdout) == 3_000_000


async def test_a_terminal(client: Client, sandbox: Any) -> None:
    seen: list[bytes] = []
    size = PtySize(rows=30, cols=100)
    if client.kind == "sync":
        handle = sandbox.pty.create(size)
    else:
        handle = await sandbox.pty.create(size, on_data=seen.append)
    await do(sandbox.pty.resize(handle.pid, PtySize(rows=41, cols=123)))
    await do(sandbox.pty.send_stdin(handle.pid, b"stty size; tty; exit\n"))
    if client.kind == "sync":
        handle.wait(on_pty=seen.append)
    else:
        await handle.wait()
    assert b"41 123" in b"".join(seen)
    assert b"/dev/pts/" in b"".join(seen)
    other = (
        sandbox.pty.create(size)
        if client.kind == "sync"
        else await sandbox.pty.create(size, on_data=seen.append)
    )
    assert await do(sandbox.pty.kill(other.pid))


# Files


async def test_files_are_written_and_read(client: Client, sandbox: Any) -> None:
    files = sandbox.files
    blob = bytes(range(256)) * 1000
    await do(files.write("text", "grüße"))
    assert await do(files.read("text")) == "grüße"
    await do(files.write("deep/er/blob", blob))
    assert not difference(bytes(await do(files.read("deep/er/blob", format="bytes"))), blob)
    await do(files.write("raw", blob, use_octet_stream=True))
    await do(files.write("zipped", blob, use_octet_stream=True, gzip=True))
    for name in ("raw", "zipped"):
        assert not difference(bytes(await do(files.read(name, format="bytes"))), blob)
    stream = await do(files.read("raw", format="stream"))
    pieces = [piece async for piece in stream] if client.kind == "async" else list(stream)
    assert not difference(b"".join(pieces), blob)
    with pytest.raises(FileNotFoundException):
        await do(files.read("missing"))
    with pytest.raises(SandboxException, match="is a directory"):
        await do(files.read("deep"))


async def test_metadata_is_replaced_by_each_upload(client: Client, sandbox: Any) -> None:
    written = await do(sandbox.files.write("f", "1", metadata={"author": "me", "stage": "x"}))
    assert written.metadata == {"author": "me", "stage": "x"}
    await do(sandbox.files.write("f", "2", metadata={"stage": "y"}))
    assert (await do(sandbox.files.get_info("f"))).metadata == {"stage": "y"}


async def test_folders(client: Client, sandbox: Any) -> None:
    files = sandbox.files
    assert await do(files.make_dir("a/b"))
    assert not await do(files.make_dir("a/b")), "it exists already"
    await do(files.write("a/b/c", "1"))
    await do(sandbox.commands.run("ln -s /home/user/a/b/c link; ln -s nowhere broken"))
    assert sorted(item.path for item in await do(files.list("a", depth=2))) == [
        "/home/user/a/b",
        "/home/user/a/b/c",
    ]
    info = await do(files.get_info("link"))
    assert info.symlink_target == "/home/user/a/b/c"
    renamed = await do(files.rename("a/b/c", "a/d"))
    assert renamed.path == "/home/user/a/d"
    assert [await do(files.exists(name)) for name in ("a/d", "a/b/c")] == [True, False]
    await do(files.remove("a"))
    await do(files.remove("a"))
    assert not await do(files.exists("a"))
    with pytest.raises(NotFoundException):
        await do(files.list("a"))


async def test_folders_are_watched(client: Client, sandbox: Any) -> None:
    await do(sandbox.files.make_dir("watched"))
    seen: list[Any] = []
    if client.kind == "sync":
        watch = sandbox.files.watch_dir("watched")
    else:
        watch = await sandbox.files.watch_dir("watched", on_event=seen.append)
    await do(sandbox.files.write("watched/new", "1"))
    deadline = time.monotonic() + 10
    while not any(event.name == "new" and event.type.value == "create" for event in seen):
        assert time.monotonic() < deadline, f"no event: {seen}"
        seen += watch.get_new_events() if client.kind == "sync" else []
        await anyio.sleep(0.02)
    await do(watch.stop())


# Code


async def test_code_runs_in_contexts(client: Client) -> None:
    made = await do(client.interpreter.create(timeout=120, retries=0))
    execution = await do(made.run_code("print('hi'); x = 41\nx + 1"))
    assert execution.logs.stdout == ["hi\n"]
    assert execution.text == "42"
    assert (await do(made.run_code("x"))).text == "41", "the default context keeps its variables"
    failed = await do(made.run_code("1/0"))
    assert failed.error.name == "ZeroDivisionError"
    shown = await do(
        made.run_code(
            "from IPython.display import HTML, JSON, display\ndisplay(HTML('<b>x</b>'), JSON({'a': 1}))"
        )
    )
    assert [result.html or result.json for result in shown.results] == ["<b>x</b>", {"a": 1}]
    other = await do(made.create_code_context(cwd="/tmp"))
    assert (await do(made.run_code("import os; os.getcwd()", context=other))).text == "/tmp"
    assert (await do(made.run_code("x", context=other))).error.name == "NameError"
    assert len(await do(made.list_code_contexts())) == 2
    await do(made.run_code("y = 1", context=other))
    await do(made.restart_code_context(other))
    assert (await do(made.run_code("y", context=other))).error.name == "NameError"
    await do(made.remove_code_context(other))
    assert len(await do(made.list_code_contexts())) == 1
    await do(made.kill())


async def test_code_sees_variables_and_is_interrupted(client: Client) -> None:
    made = await do(client.interpreter.create(timeout=120, retries=0, envs={"ALL": "1"}))
    execution = await do(made.run_code("import os; os.environ['ALL'] + os.environ['ONE']", envs={"ONE": "2"}))
    assert execution.text == "12"
    assert (await do(made.run_code("os.environ.get('ONE')"))).text in (None, "None")
    with pytest.raises(TimeoutException):
        await do(made.run_code("import time; time.sleep(60)", timeout=1))
    assert (await do(made.run_code("1 + 1", timeout=10))).text == "2", "the cell holds the kernel"
    await do(made.kill())


async def test_a_kernel_that_dies_is_told_and_replaced(client: Client) -> None:
    made = await do(client.interpreter.create(timeout=120, retries=0))
    died = await do(made.run_code("import os; os._exit(1)", timeout=20))
    assert died.error.name == "ContextRestarting"
    assert (await do(made.run_code("1 + 1", timeout=20))).text == "2"
    await do(made.kill())


async def test_a_template_without_the_interpreter_port(client: Client, standin: StandInProcess) -> None:
    made = await client.create()
    host = made.get_host(8080)
    assert host.startswith("8080-")
    standin.fault("POST /process.Process/Start", "status", status=502, body='{"message": "port is not open"}')
    with pytest.raises(SandboxUnreachableException):
        await do(made.commands.run("true"))
    await do(made.kill())


# Faults, as E2B's clients see them


async def test_retry_after_is_obeyed_by_the_client(client: Client, standin: StandInProcess) -> None:
    standin.fault("POST /v2/sandboxes$", "status", status=429, headers={"Retry-After": "1"})
    began = time.monotonic()
    made = await client.create(retries=1, idempotency_key="one-two")
    assert time.monotonic() - began >= 1
    keys = [
        item["headers"]["idempotency-key"] for item in standin.requests if item["path"] == "/v2/sandboxes"
    ]
    assert keys == ["one-two", "one-two"]
    again = await client.create(idempotency_key="one-two")
    assert again.sandbox_id == made.sandbox_id, "a key makes one sandbox"
    await do(made.kill())


async def test_unknown_fields_and_events_are_ignored(client: Client, standin: StandInProcess) -> None:
    standin.fault(".", "unknown", times=0)
    made = await client.create()
    assert (await do(made.commands.run("echo 1"))).stdout == "1\n"
    await do(made.files.write("f", "2"))
    assert await do(made.files.read("f")) == "2"
    await do(made.kill())


async def test_a_reset_in_mid_stream(client: Client, standin: StandInProcess, sandbox: Any) -> None:
    standin.fault("POST /process.Process/Start", "reset", after=60)
    with pytest.raises(Exception, match=r"(?i)reset|closed|stream|body|connection") as caught:
        await do(sandbox.commands.run("for i in 1 2 3 4 5 6 7 8 9; do echo $i; sleep 0.05; done"))
    assert not isinstance(caught.value, SandboxNotRunningException)


async def test_an_old_envd(client: Client, standin: StandInProcess) -> None:
    standin.use_envd("0.5.0")
    made = await client.create()
    await do(made.files.write("f", "1", use_octet_stream=True))  # the client knows better and sends a form
    assert {item["headers"]["content-type"].partition(";")[0] for item in standin.requests[1:]} == {
        "multipart/form-data"
    }
    handle = await do(made.commands.run("cat", background=True, stdin=True))
    with pytest.raises(SandboxException, match="doesn't support closing stdin"):
        await do(made.commands.close_stdin(handle.pid))
    await do(made.kill())

"""The server as a process: stdio and HTTP, each on both loops, with polite and impolite clients."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import anyio.to_thread
import httpx
import pytest
from mcp import Client, StdioServerParameters
from sniffio import current_async_library

LOOPS = ("asyncio", "trio")
COMMAND = [sys.executable, "-m", "sandboxio.mcp", "--backend", "fake://"]
TOKEN = "a-token-of-the-tests-0123456789"
HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "tests", "version": "0"},
    },
}


def environment(**changes: str) -> dict[str, str]:
    return {**os.environ, "PYTHONWARNINGS": "default", **changes}


# stdio


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("era", ["auto", "legacy"])
async def test_a_client_over_stdio(loop: str, era: Any) -> None:
    server = StdioServerParameters(command=COMMAND[0], args=[*COMMAND[1:], "--loop", loop], env=environment())
    async with Client(server, mode=era) as client:
        result = await client.call_tool("run_command", {"cmd": "echo hello"})
        assert result.structured_content["stdout"] == "hello\n"  # type: ignore[index]
        read = await client.call_tool("run_command", {"cmd": "cat"})  # a child must not eat the protocol
        assert not read.is_error


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--timeout", "nan"], "timeout must be positive and finite, got nan"),
        (["--timeout", "0"], "timeout must be positive and finite, got 0.0"),
        (["--timeout", "-1"], "timeout must be positive and finite, got -1.0"),
        (
            ["--backend", "fake://x?timeout=600", "--timeout", "300"],
            "given twice, as 300 and in the DSN as 600",
        ),
        (["--backend", "fake://x?timeout=long"], "The DSN's timeout must be a number of seconds, got 'long'"),
        (["--backend", "fake"], "'fake' is not a DSN"),
    ],
)
def test_a_wrong_dsn_or_timeout_ends_the_start(loop: str, options: list[str], message: str) -> None:
    done = subprocess.run(
        [*COMMAND, *options, "--loop", loop],
        stdin=subprocess.DEVNULL,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("[SBX_E1000] ")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("loop", LOOPS)
def test_stdout_is_json_rpc_and_the_end_of_stdin_ends_the_server(loop: str) -> None:
    """Case 84."""
    calls = [HELLO, {"jsonrpc": "2.0", "method": "notifications/initialized"}]
    calls += [
        {
            "jsonrpc": "2.0",
            "id": number,
            "method": "tools/call",
            "params": {"name": "run_command", "arguments": {"cmd": command}},
        }
        for number, command in ((2, "echo out; echo err >&2"), (3, "seq 100000"), (4, "cat"))
    ]
    server = subprocess.Popen(
        [*COMMAND, "--loop", loop],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment(),
        text=True,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    with server:
        server.stdin.write("".join(json.dumps(call) + "\n" for call in calls))
        server.stdin.flush()
        answers = {}
        while len(answers) < 4:
            message = json.loads(server.stdout.readline())
            assert message["jsonrpc"] == "2.0"
            if "id" in message:
                answers[message["id"]] = message
        server.stdin.close()
        start = time.monotonic()
        assert server.stdout.read() == ""
        assert server.wait(10) == 0
        assert time.monotonic() - start < 5
    assert answers[2]["result"]["structuredContent"]["stderr"] == "err\n"


@pytest.mark.parametrize("loop", LOOPS)
def test_a_client_that_vanishes_before_its_answer_ends_the_server(loop: str) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*COMMAND, "--loop", loop], env=environment(), text=True, **pipes) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        assert server.stderr is not None
        server.stdin.write(json.dumps(HELLO) + "\n")
        server.stdin.flush()
        assert json.loads(server.stdout.readline())["id"] == 1
        server.stdout.close()
        server.stdin.write(json.dumps({"jsonrpc": "2.0", "id": 2, "method": "ping"}) + "\n")
        server.stdin.close()
        assert server.wait(20) == 0
        assert "Traceback" not in server.stderr.read()


@pytest.mark.parametrize("loop", LOOPS)
def test_what_is_no_message_is_survived(loop: str) -> None:
    """Lone surrogates, bytes that are not UTF-8, no JSON, no message: the next call is answered."""
    call = b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"run_command","arguments":%b}}'
    lines = [
        json.dumps(HELLO).encode(),
        b'{"jsonrpc":"2.0","method":"notifications/initialized"}',
        call % (2, b'{"cmd":"echo \\ud800"}'),
        call % (3, b'{"cmd":"echo \xff\xfe"}'),
        *(b"not json", b"[]", b"{}", b"null", b"\0\1", b'{"jsonrpc":"2.0","id":4,"method":"nothing"}'),
        call % (5, b'{"cmd":"echo ok"}'),
    ]
    command = [*COMMAND, "--loop", loop]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, env=environment(), **pipes) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(b"\n".join(lines) + b"\n")
        server.stdin.flush()
        answers: dict[int, Any] = {}
        while 5 not in answers:
            message = json.loads(server.stdout.readline())
            answers[message.get("id")] = message
        assert answers[5]["result"]["structuredContent"]["stdout"] == "ok\n"
        server.stdin.close()
        assert server.wait(20) == 0


@pytest.mark.parametrize("loop", LOOPS)
def test_sigterm_ends_the_server(loop: str) -> None:
    server = subprocess.Popen(
        [*COMMAND, "--loop", loop],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(),
        text=True,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    with server:
        server.stdin.write(json.dumps(HELLO) + "\n")
        server.stdin.flush()
        assert json.loads(server.stdout.readline())["id"] == 1
        server.send_signal(signal.SIGTERM)
        assert server.wait(10) == 128 + signal.SIGTERM


# HTTP


@contextmanager
def serving(*options: str, **variables: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A server on a free port; yields its address once it listens."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [*COMMAND, "--transport", "streamable-http", "--port", str(port), *options]
    with subprocess.Popen(command, env=environment(**variables)) as server:
        try:
            _wait_until_open(port, server)
            yield f"http://127.0.0.1:{port}/mcp", server
        finally:
            server.terminate()
            server.wait(15)


def _wait_until_open(port: int, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            assert server.poll() is None, f"the server ended with {server.returncode}"
            assert time.monotonic() < deadline, f"nothing listens on {port} after 20 s"
            time.sleep(0.02)
        else:
            return


@pytest.mark.parametrize("loop", LOOPS)
def test_an_address_that_cannot_be_listened_on_is_said_without_a_traceback(loop: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        busy = taken.getsockname()[1]
        no_name = "a" * 64  # longer than a label may be (RFC 1035, section 2.3.4), so nobody is asked for it
        for host, port in (("127.0.0.1", busy), ("127.0.0.1", 99_999), (no_name, 8000)):
            where = ["--host", host, "--allowed-host", host, "--port", str(port)]
            done = subprocess.run(
                [*COMMAND, "--transport", "streamable-http", "--loop", loop, *where],
                env=environment(SBX_MCP_TOKEN="t" * 43),
                capture_output=True,
                text=True,
                timeout=30,
                check=False,
            )
            assert done.returncode == 1
            assert done.stderr.startswith(f"[SBX_E1000] Nothing can listen on {host}, port {port}: ")
            assert "Traceback" not in done.stderr


# The SDK's client leaves async generators to the garbage collector, which trio tells.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("loop", LOOPS)
async def test_a_client_over_http(loop: str) -> None:
    with serving("--loop", loop) as (url, _):
        for era in ("auto", "legacy"):
            async with Client(url, mode=era) as client:
                result = await client.call_tool("run_command", {"cmd": "echo hello"})
                assert result.structured_content["stdout"] == "hello\n"  # type: ignore[index]
                big = await client.call_tool("write_file", {"path": "big", "content": "x" * 10_000_000})
                assert big.structured_content["size"] == 10_000_000  # type: ignore[index]


def post(url: str, **headers: str) -> int:
    accept = {"Accept": "application/json, text/event-stream"}
    with httpx.Client(trust_env=False) as client:
        return client.post(url, json=HELLO, headers={**accept, **headers}).status_code


def test_a_foreign_host_or_origin_is_refused() -> None:
    """DNS rebinding: a page in a browser must not reach a server on this machine."""
    with serving() as (url, _):
        assert post(url) == 200
        assert post(url, Host="attacker.example") == 421
        assert post(url, Origin="http://attacker.example") == 403


def test_with_a_token_nobody_comes_in_without_it() -> None:
    with serving("--host", "0.0.0.0", "--allowed-host", "127.0.0.1:*", SBX_MCP_TOKEN=TOKEN) as (url, _):
        assert post(url) == 401
        assert post(url, Authorization="Bearer wrong") == 401
        assert post(url, Authorization=f"Bearer {TOKEN}") == 200
        assert post(url, Authorization=f"Bearer {TOKEN}", Host="attacker.example") == 421


@pytest.mark.parametrize(
    ("options", "variables", "message"),
    [
        (["--host", "0.0.0.0"], {"SBX_MCP_TOKEN": TOKEN}, "--allowed-host"),
        (["--host", "0.0.0.0", "--allowed-host", "x.example"], {}, "SBX_MCP_TOKEN"),
        ([], {"SBX_MCP_TOKEN": "short"}, "fewer than 16 characters"),
    ],
)
def test_an_open_door_is_refused_at_the_start(
    options: list[str], variables: dict[str, str], message: str
) -> None:
    command = [*COMMAND, "--transport", "streamable-http", *options]
    done = subprocess.run(
        command, env=environment(**variables), capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 1
    assert message in done.stderr
    assert "SBX_E1000" in done.stderr
    assert done.stdout == ""
    assert "short" not in done.stderr.replace("shorter", "")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_client_that_vanishes_in_mid_call_leaves_the_server_well() -> None:
    with serving() as (url, server):
        async with httpx.AsyncClient(trust_env=False) as client:
            call = {
                "jsonrpc": "2.0",
                "id": 2,
                "method": "tools/call",
                "params": {"name": "run_command", "arguments": {"cmd": "sleep 600"}},
            }
            with anyio.move_on_after(0.5):
                await client.post(url, json=call, headers={"Accept": "application/json, text/event-stream"})
        async with Client(url) as polite:
            assert not (await polite.call_tool("run_command", {"cmd": "echo x"})).is_error
        assert server.poll() is None


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_sigterm_ends_an_http_server_whose_client_waits_for_an_answer() -> None:
    """Both HTTP servers wait for answers that are on their way; this one would come in ten minutes."""
    running = anyio.Event()

    async def progress(value: float, total: float | None, message: str | None) -> None:
        running.set()

    with serving("--loop", current_async_library() or "") as (url, server):
        async with anyio.create_task_group() as tasks:

            async def call() -> None:
                async with Client(url) as client:
                    result = await client.call_tool(
                        "run_command", {"cmd": "sleep 600"}, progress_callback=progress
                    )
                    assert result.is_error
                    assert "SBX_E1204" in str(result.content)

            tasks.start_soon(call)
            with anyio.fail_after(20):
                await running.wait()
            server.terminate()
            assert await anyio.to_thread.run_sync(server.wait, 20) == 128 + signal.SIGTERM


class Session:
    """A client of the older protocol by hand, for requests that no SDK would send."""

    def __init__(self, client: httpx.AsyncClient, url: str) -> None:
        self.client, self.url = client, url
        self.headers = {"Accept": "application/json, text/event-stream"}

    async def start(self) -> Session:
        answer = await self.client.post(self.url, json=HELLO, headers=self.headers)
        self.headers["Mcp-Session-Id"] = answer.headers["mcp-session-id"]
        await self.tell("notifications/initialized")
        return self

    async def tell(self, method: str, **params: Any) -> None:
        message = {"jsonrpc": "2.0", "method": method, "params": params}
        assert (await self.client.post(self.url, json=message, headers=self.headers)).status_code == 202

    def call(self, cmd: str) -> Any:
        """Request number 2, as a stream of lines."""
        params = {"name": "run_command", "arguments": {"cmd": cmd}, "_meta": {"progressToken": 1}}
        message = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params}
        return self.client.stream("POST", self.url, json=message, headers=self.headers)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_session_cannot_reach_the_calls_of_another() -> None:
    """They share the sandbox, and nothing else: not answers, not progress, not cancellation."""
    loop = current_async_library() or ""
    with serving("--loop", loop) as (url, _):
        async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
            first, second = await Session(client, url).start(), await Session(client, url).start()
            async with first.call("sleep 600") as stream:
                lines = stream.aiter_lines()
                assert "running for" in await _next_with(lines, "data: {")
                await second.tell("notifications/cancelled", requestId=2)
                async with second.call("echo mine") as other:
                    assert "mine" in await _next_with(other.aiter_lines(), "data: {")
                assert "running for" in await _next_with(lines, "data: {")  # the first goes on
                await first.tell("notifications/cancelled", requestId=2)
                left = [line async for line in lines if "result" in line]
                assert not any("exit_code" in line for line in left)


async def _next_with(lines: Any, start: str) -> str:
    with anyio.fail_after(20):
        async for line in lines:
            if line.startswith(start):
                return str(line)
    raise AssertionError("the stream ended")


@pytest.mark.parametrize("loop", LOOPS)
def test_a_client_that_asks_a_thousand_times_and_goes_leaves_nothing(loop: str) -> None:
    call = {"jsonrpc": "2.0", "method": "tools/call"}
    call["params"] = {"name": "run_command", "arguments": {"cmd": "sleep 600"}}  # type: ignore[assignment]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*COMMAND, "--loop", loop], env=environment(), text=True, **pipes) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        assert server.stderr is not None
        lines = [HELLO, {"jsonrpc": "2.0", "method": "notifications/initialized"}]
        lines += [{**call, "id": number} for number in range(2, 1002)]
        server.stdin.write("".join(json.dumps(line) + "\n" for line in lines))
        server.stdin.flush()
        assert json.loads(server.stdout.readline())["id"] == 1
        server.stdout.close()
        server.stdin.close()
        assert server.wait(30) == 0
        assert "Traceback" not in server.stderr.read()


def test_help_shows_examples_and_a_wrong_option_is_a_usage_error() -> None:
    done = subprocess.run([*COMMAND, "--help"], capture_output=True, text=True, check=True)
    assert "examples:" in done.stdout
    done = subprocess.run([*COMMAND, "--nope"], capture_output=True, text=True, check=False)
    assert done.returncode == 2

"""One command through docker exec, against an engine that says exactly what the test wants."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from sandboxio.adapter import BaseSandbox, Exit
from sandboxio.errors import (
    ConfigurationError,
    ConnectError,
    FileSystemError,
    PathNotFound,
    ResourceLimitExceeded,
    SandboxError,
    SandboxGone,
)
from sandboxio_docker import ending, engine as engine_client, exec_run
from sandboxio_docker.channel import source_bytes
from sandboxio_docker.channel_exec import ExecChannel
from sandboxio_docker.ending import Ending
from sandboxio_docker.engine import Engine, EngineUnavailable
from sandboxio_docker.exec_files import ExecFiles, escaped
from sandboxio_docker.exec_run import UNSURE, ExecHost, ExecRun
from sandboxio_docker.frames import StreamDamaged
from sandboxio_docker.killer import DEAD
from tests.fakes.scripted import ScriptedEngine, hangs, sends
from tests.fakes.server import Connection, Request, Server, answer, listen_tcp, running

UPGRADED = b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"
OLD = b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.docker.raw-stream\r\n\r\n"
RUNS = {"Running": True, "ExitCode": None, "Pid": 7}


def frame(stream: int, data: bytes) -> bytes:
    return bytes([stream, 0, 0, 0]) + len(data).to_bytes(4, "big") + data


def ended(code: int, pid: int = 7) -> bytes:
    return answer(200, {"Running": False, "ExitCode": code, "Pid": pid})


@asynccontextmanager
async def world(folder: Path) -> AsyncGenerator[tuple[ScriptedEngine, ExecHost]]:
    """A running container C; each exec is E, prints nothing and ends with 0."""
    async with ScriptedEngine.on(folder) as fake:
        engine = Engine(fake.url, environ={})
        fake.script("POST", "/containers/C/exec", sends(answer(201, {"Id": "E"})))
        fake.script("POST", "/exec/E/start", sends(UPGRADED))
        fake.script("GET", "/exec/E/json", sends(ended(0)))
        fake.script("GET", "/events", sends(answer(200, b"")))
        fake.script(
            "GET", "/containers/C/json", sends(answer(200, {"State": {"Running": True, "ExitCode": 0}}))
        )
        host = ExecHost(engine, "C", Ending(engine, "C", 300.0, 128))
        yield fake, host
        host.close()
        await fake.all_closed()


async def collect(run: ExecRun) -> tuple[Exit, bytes, bytes]:
    """Start, read to the end: how it ended, stdout, stderr."""
    output = {"stdout": b"", "stderr": b""}
    await run.start()
    while (chunk := await run.receive()) is not None:
        output[chunk.stream] += chunk.data
    run.close()
    assert run.exit is not None
    return run.exit, output["stdout"], output["stderr"]


@pytest.mark.parametrize("head", [UPGRADED, OLD], ids=["101", "200"])
async def test_the_answer_may_be_cut_anywhere(head: bytes, tmp_path: Path) -> None:
    """Case 1: a fast command's frames come glued to the head of the answer."""
    whole = head + frame(1, b"ready\n") + frame(2, b"oops")
    async with world(tmp_path) as (fake, host):
        for cut in range(1, len(whole)):
            fake.script("POST", "/exec/E/start", sends(whole[:cut], whole[cut:]))
            assert await collect(ExecRun(host, ["echo", "ready"])) == (Exit(0), b"ready\n", b"oops")


async def test_what_is_asked_of_the_engine(tmp_path: Path) -> None:
    """Cases 7 and 19: no terminal, no stdin. Case 68: the environment goes as it is."""
    async with world(tmp_path) as (fake, host):
        host.variables = {"A": "sandbox", "B": "sandbox"}
        await collect(ExecRun(host, ["x", "y z"], env={"B": "call", "C": "l1\nl2 $HOME"}))
        create, start = (request.json for request in fake.requests if request.method == "POST")
        assert (create["AttachStdin"], create["Tty"], start["Tty"], start["Detach"]) == (False,) * 4
        assert create["Cmd"] == ["x", "y z"]
        assert create["WorkingDir"] == "/work"
        *env, marker = create["Env"]
        assert env == ["A=sandbox", "B=call", "C=l1\nl2 $HOME"]
        assert marker.startswith("SANDBOXIO_RUN=")


async def test_a_child_in_the_background_does_not_hold_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cases 9 and 45: the connection stays open, and the engine says that the command has ended.

    Such an end is told, since a connection that stalls looks the same.
    """
    monkeypatch.setattr(exec_run, "SILENCE", 0.2)
    async with world(tmp_path) as (fake, host):
        fake.script("POST", "/exec/E/start", sends(UPGRADED + frame(1, b"started\n"), end=False))
        fake.script("GET", "/exec/E/json", sends(answer(200, RUNS)), sends(ended(3)))
        for _ in range(2):
            began = time.monotonic()
            assert await collect(ExecRun(host, ["sh"])) == (Exit(3, notes=(UNSURE,)), b"started\n", b"")
            assert time.monotonic() - began < 2


async def test_a_child_that_prints_for_ever_does_not_hold_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leaves no silence in which the engine would be asked, and none after the end."""
    monkeypatch.setattr(exec_run, "QUIET_MOST", 0.2)
    monkeypatch.setattr(exec_run, "LATEST", 0.2)

    async def prints(connection: Connection, request: Request) -> None:
        await connection.send(UPGRADED)
        while True:
            await connection.send(frame(1, b"x"))
            await anyio.sleep(0.01)

    async with world(tmp_path) as (fake, host):
        fake.script("POST", "/exec/E/start", prints)
        with anyio.fail_after(20):
            ended_so, out, _ = await collect(ExecRun(host, ["sh"]))
        assert (ended_so, set(out)) == (Exit(0, notes=(UNSURE,)), {ord("x")})


async def test_a_stall_after_the_end_cuts_nothing(tmp_path: Path) -> None:
    """The engine says that the command has ended, and its output is still on the way."""

    async def stalls(connection: Connection, request: Request) -> None:
        await connection.send(UPGRADED + frame(1, b"a beginning, "))
        await anyio.sleep(0.5)
        await connection.send(frame(1, b"an end"))

    async with world(tmp_path) as (fake, host):
        fake.script("POST", "/exec/E/start", stalls)
        assert await collect(ExecRun(host, ["cat"])) == (Exit(0), b"a beginning, an end", b"")


@pytest.mark.parametrize("end", [frame(1, b"abc")[:-1], frame(1, b"abc")[:5]], ids=["data", "header"])
async def test_a_connection_that_ends_inside_a_frame_is_no_end(end: bytes, tmp_path: Path) -> None:
    async with world(tmp_path) as (fake, host):
        fake.script("POST", "/exec/E/start", sends(UPGRADED + frame(1, b"x") + end))
        with pytest.raises(StreamDamaged):
            await collect(ExecRun(host, ["cat"]))


async def test_a_connection_that_is_reset_is_no_end(tmp_path: Path) -> None:
    """Only a command with an stdin may leave some of it unread."""

    async def closes(connection: Connection, request: Request) -> None:
        await connection.send(UPGRADED + frame(1, b"a beginning"))
        connection.reset()

    async with world(tmp_path) as (fake, _), running(Server(fake._play, listen_tcp())) as server:
        fake.script("POST", "/exec/E/start", closes)
        engine = Engine(f"tcp://127.0.0.1:{server.address[1]}", environ={})
        host = ExecHost(engine, "C", Ending(engine, "C", 300.0, 128))
        with pytest.raises(EngineUnavailable, match="reset"):
            await collect(ExecRun(host, ["cat"]))
        host.close()


async def test_a_silent_command_is_not_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 18: the client's own read timeout ends no run."""
    monkeypatch.setattr(engine_client, "READ_TIMEOUT", 0.1)

    async def slowly(connection: Connection, request: Request) -> None:
        await connection.send(UPGRADED)
        await anyio.sleep(0.5)
        fake.script("GET", "/exec/E/json", sends(ended(0)))
        await connection.send(frame(1, b"ok"))

    async with world(tmp_path) as (fake, host):
        fake.script("GET", "/exec/E/json", sends(answer(200, RUNS)))
        fake.script("POST", "/exec/E/start", slowly)
        assert await collect(ExecRun(host, ["sleep"])) == (Exit(0), b"ok", b"")


async def test_output_closed_early_is_not_the_end(tmp_path: Path) -> None:
    """A daemon closes its outputs and runs on."""
    async with world(tmp_path) as (fake, host):
        fake.script("GET", "/exec/E/json", *[sends(answer(200, RUNS))] * 3, sends(ended(5)))
        assert await collect(ExecRun(host, ["daemon"])) == (Exit(5), b"", b"")
        assert sum(request.path.endswith("/exec/E/json") for request in fake.requests) == 4


NOT_FOUND = 'OCI runtime exec failed: exec failed: unable to start container process: exec: "x": '
REFUSALS = [
    (NOT_FOUND + "executable file not found in $PATH: unknown", 127),
    (NOT_FOUND + "stat x: no such file or directory: unknown", 127),
    (NOT_FOUND + "permission denied: unknown", 126),
    (NOT_FOUND + "is a directory: unknown", 126),
]


@pytest.mark.parametrize(("words", "code"), REFUSALS)
async def test_a_program_that_cannot_start(words: str, code: int, tmp_path: Path) -> None:
    """Case 14: 127 for what is missing, 126 for the rest, and the reason is never in stdout."""
    async with world(tmp_path) as (fake, host):
        fake.script("POST", "/exec/E/start", sends(UPGRADED + frame(1, f"{words}\r\n".encode())))
        fake.script("GET", "/exec/E/json", sends(ended(126, pid=0)))
        assert await collect(ExecRun(host, ["x"])) == (Exit(code), b"", f"{words}\n".encode())


@pytest.mark.parametrize(("words", "code"), REFUSALS)
async def test_a_program_that_cannot_start_told_by_the_status(words: str, code: int, tmp_path: Path) -> None:
    """Newer engines answer with an error instead of a stream."""
    async with world(tmp_path) as (fake, host):
        fake.script("POST", "/exec/E/start", sends(answer(400, {"message": words})))
        assert await collect(ExecRun(host, ["x"])) == (Exit(code), b"", f"{words}\n".encode())


async def test_a_command_may_print_what_an_engine_would_say(tmp_path: Path) -> None:
    async with world(tmp_path) as (fake, host):
        words = (NOT_FOUND + "executable file not found in $PATH: unknown\r\n").encode()
        fake.script("POST", "/exec/E/start", sends(UPGRADED + frame(1, words)))
        fake.script("GET", "/exec/E/json", sends(ended(0)))
        assert await collect(ExecRun(host, ["cat"])) == (Exit(0), words, b"")
        fake.script("POST", "/exec/E/start", sends(UPGRADED + frame(1, words) + frame(1, b"more")))
        assert await collect(ExecRun(host, ["cat"])) == (Exit(0), words + b"more", b"")


async def test_an_interrupted_start_is_tried_once_more(tmp_path: Path) -> None:
    """Case 46: with a new exec, and only where it is certain that nothing was started."""
    words = "OCI runtime exec failed: starting process: interrupted system call: unknown"
    async with world(tmp_path) as (fake, host):
        fake.script(
            "POST",
            "/exec/E/start",
            sends(answer(500, {"message": words})),
            sends(UPGRADED + frame(1, b"x")),
        )
        assert await collect(ExecRun(host, ["true"])) == (Exit(0), b"x", b"")
        assert len(created(fake)) == 2
        fake.requests.clear()
        fake.script("POST", "/exec/E/start", sends(answer(500, {"message": words})))
        with pytest.raises(ConnectError, match="interrupted system call"):
            await collect(ExecRun(host, ["true"]))
        assert len(created(fake)) == 2, "not for ever"


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("OCI runtime exec failed: exec failed: error executing setns process: exit status 1", ConnectError),
        ("OCI runtime exec failed: fork: resource temporarily unavailable", ResourceLimitExceeded),
        ("unable to find user x: no matching entries in passwd file", ConnectError),
    ],
)
@pytest.mark.parametrize("by_status", [False, True])
async def test_a_failure_of_the_engine_is_no_result(
    words: str, kind: type[SandboxError], by_status: bool, tmp_path: Path
) -> None:
    """Case 17: an exec that meets the end of its container has no exit code."""
    async with world(tmp_path) as (fake, host):
        told = answer(500, {"message": words})
        start = told if by_status else UPGRADED + frame(1, f"{words}\r\n".encode())
        fake.script("POST", "/exec/E/start", sends(start))
        fake.script("GET", "/exec/E/json", sends(ended(126, pid=0)))
        with pytest.raises(kind):
            await collect(ExecRun(host, ["true"]))


STOPPED = "OCI runtime exec failed: exec failed: cannot exec in a stopped state: unknown"


@pytest.mark.parametrize("by_status", [False, True])
async def test_a_container_counts_as_gone_once_the_engine_says_so(
    by_status: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 17: an exec that meets the end of its container; the runtime may know of it before the engine."""
    async with world(tmp_path) as (fake, host):
        told = answer(500, {"message": STOPPED})
        start = told if by_status else UPGRADED + frame(1, f"{STOPPED}\r\n".encode())
        fake.script("POST", "/exec/E/start", sends(start))
        fake.script("GET", "/exec/E/json", sends(ended(126, pid=0)))
        running, over = (answer(200, {"State": {"Running": runs, "ExitCode": 0}}) for runs in (True, False))
        fake.script("GET", "/containers/C/json", *[sends(running)] * 8, sends(over))
        with pytest.raises(SandboxGone):
            await collect(ExecRun(host, ["true"]))
        monkeypatch.setattr(ending, "FOLLOWS_KILL", 0.2)
        fake.script("GET", "/containers/C/json", sends(running))
        with pytest.raises(ConnectError, match="could not start") as caught:
            await collect(ExecRun(host, ["true"]))
        assert not isinstance(caught.value, SandboxGone)


@pytest.mark.parametrize("name", ["is not running", "unauthorized", "pid limit", "container is paused"])
@pytest.mark.parametrize("by_status", [False, True])
async def test_the_name_of_a_program_is_no_failure_of_the_engine(
    name: str, by_status: bool, tmp_path: Path
) -> None:
    words = NOT_FOUND.replace('"x"', f'"{name}"') + "executable file not found in $PATH: unknown"
    async with world(tmp_path) as (fake, host):
        told = answer(400, {"message": words})
        start = told if by_status else UPGRADED + frame(1, f"{words}\r\n".encode())
        fake.script("POST", "/exec/E/start", sends(start))
        fake.script("GET", "/exec/E/json", sends(ended(126, pid=0)))
        assert await collect(ExecRun(host, [name])) == (Exit(127), b"", f"{words}\n".encode())


async def test_a_command_that_reads_only_a_part_of_its_stdin(tmp_path: Path) -> None:
    """The engine closes with unread bytes, which resets the connection; what was printed counts."""

    async def closes(connection: Connection, request: Request) -> None:
        await connection.send(UPGRADED + frame(2, b"disk full\n"))
        connection.sock.close()

    async with world(tmp_path) as (fake, host):
        fake.script("POST", "/exec/E/start", closes)
        fake.script("GET", "/exec/E/json", sends(ended(1)))
        run = ExecRun(host, ["head"], stdin=bytes(1 << 20))
        assert await collect(run) == (Exit(1), b"", b"disk full\n")


async def test_an_engine_that_stops_reading_after_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Docker 20.10 now and then neither reads on nor closes when the program has ended."""
    monkeypatch.setattr(exec_run, "SILENCE", 0.2)

    async def stalls(connection: Connection, request: Request) -> None:
        await connection.send(UPGRADED + frame(2, b"disk full\n"))
        await connection.closed_by_client.wait()

    async with world(tmp_path) as (fake, host):
        fake.script("POST", "/exec/E/start", stalls)
        fake.script("GET", "/exec/E/json", sends(answer(200, RUNS)), sends(ended(1)))
        run = ExecRun(host, ["head"], stdin=bytes(8 << 20))
        with anyio.move_on_after(10) as scope:
            assert await collect(run) == (Exit(1, notes=(UNSURE,)), b"", b"disk full\n")
        assert not scope.cancelled_caught
        for connection in list(fake.open):
            connection.closed_by_client.set()


async def test_an_ambiguous_failure_is_never_repeated(tmp_path: Path) -> None:
    """Case 46: the connection broke after the start was sent; the command may have run."""

    async def breaks(connection: Connection, request: Request) -> None:
        connection.end_sending()

    async with world(tmp_path) as (fake, host):
        fake.script("POST", "/exec/E/start", breaks)
        with pytest.raises(ConnectError):
            await collect(ExecRun(host, ["echo"]))
        assert len(created(fake)) == 1


async def test_a_missing_working_folder_is_made_again(tmp_path: Path) -> None:
    words = (
        'OCI runtime exec failed: chdir to cwd ("/work") set in config.json failed: no such file or directory'
    )
    async with world(tmp_path) as (fake, host):
        fake.script(
            "POST",
            "/exec/E/start",
            sends(UPGRADED + frame(1, words.encode())),
            sends(UPGRADED),
            sends(UPGRADED + frame(1, b"/work\n")),
        )
        fake.script("GET", "/exec/E/json", sends(ended(126, pid=0)), sends(ended(0)))
        assert await collect(ExecRun(host, ["pwd"])) == (Exit(0), b"/work\n", b"")
        first, second, third = created(fake)
        assert "mkdir" in str(second["Cmd"])
        assert second["WorkingDir"] == "/"
        assert first["Cmd"] == third["Cmd"] == ["pwd"]


async def test_too_long_a_command_line_names_the_limit(tmp_path: Path) -> None:
    """Case 66."""
    async with world(tmp_path) as (fake, host):
        words = b"exec /usr/bin/echo: argument list too long\n"
        fake.script("POST", "/exec/E/start", sends(UPGRADED + frame(2, words)))
        fake.script("GET", "/exec/E/json", sends(ended(1)))
        with pytest.raises(ConfigurationError, match="2 MiB"):
            await collect(ExecRun(host, ["echo", *["x" * 100_000] * 21]))
        with pytest.raises(ConfigurationError, match="2 MiB"):
            await collect(ExecRun(host, ["echo"], env={f"N{n}": "x" * 100_000 for n in range(21)}))


async def test_a_command_may_print_the_words_of_a_runtime(tmp_path: Path) -> None:
    async with world(tmp_path) as (fake, host):
        words = b"exec /usr/bin/echo: argument list too long\n"
        fake.script("POST", "/exec/E/start", sends(UPGRADED + frame(1, words)))
        fake.script("GET", "/exec/E/json", sends(ended(1)))
        assert await collect(ExecRun(host, ["tail", "-n1", "build.log"])) == (Exit(1), words, b"")


async def test_a_container_that_ends_under_a_run(tmp_path: Path) -> None:
    """Case 17: nobody waits for the command's own timeout, and no exit code is invented."""
    async with world(tmp_path) as (fake, host):
        fake.script("POST", "/exec/E/start", sends(UPGRADED, end=False))
        fake.script("GET", "/exec/E/json", sends(answer(404, {"message": "No such exec instance: E"})))
        event = {
            "Action": "die",
            "Actor": {"ID": "C", "Attributes": {"exitCode": "9"}},
        }
        fake.script("GET", "/events", sends(answer(200, json.dumps(event).encode() + b"\n")))
        with anyio.fail_after(5), pytest.raises(SandboxGone, match="exit code 9"):
            await collect(ExecRun(host, ["sleep", "30"]))


async def test_a_run_that_dies_with_its_container_is_no_result(tmp_path: Path) -> None:
    """The exec's 137 may be told before the container's end."""
    async with world(tmp_path) as (fake, host):
        fake.script("GET", "/exec/E/json", sends(ended(137)))
        running = answer(200, {"State": {"Running": True}})
        gone = answer(404, {"message": "No such container: C"})
        die = json.dumps({"Action": "die", "Actor": {"Attributes": {"exitCode": "137"}}}).encode()
        kill = json.dumps({"Action": "kill", "Actor": {"Attributes": {"signal": "9"}}}).encode()
        fake.script("GET", "/containers/C/json", sends(running), sends(gone))
        fake.script("GET", "/events", sends(answer(200, kill)), sends(answer(200, kill + b"\n" + die)))
        with pytest.raises(SandboxGone, match="somebody else"):
            await collect(ExecRun(host, ["sleep", "30"]))


async def test_a_kill_by_the_kernel_names_the_cap(tmp_path: Path) -> None:
    """Case 15."""
    oom = json.dumps({"Action": "oom", "Actor": {"Attributes": {}}}).encode() + b"\n"
    async with world(tmp_path) as (fake, host):
        fake.script("GET", "/events", sends(answer(200, oom)))
        fake.script("GET", "/exec/E/json", sends(ended(137)))
        first, _, _ = await collect(ExecRun(host, ["python3"]))
        assert first.limit is not None
        assert "128 MiB" in first.limit
        again, _, _ = await collect(ExecRun(host, ["sh"]))
        assert again == Exit(137), "the same event is told once"
        fake.script("GET", "/events", sends(answer(200, oom * 2)))
        fake.script("GET", "/exec/E/json", sends(ended(0)))
        other, _, _ = await collect(ExecRun(host, ["sh"]))
        assert (other.exit_code, other.limit) == (0, None)
        assert "128 MiB" in other.notes[0]


async def test_paused_is_said_at_once(tmp_path: Path) -> None:
    """Case 28."""
    async with world(tmp_path) as (fake, host):
        words = "Container C is paused, unpause the container before exec"
        fake.script("POST", "/containers/C/exec", sends(answer(409, {"message": words})))
        with pytest.raises(ConnectError, match="paused") as caught:
            await collect(ExecRun(host, ["true"]))
        assert "unpause" in caught.value.hint


async def test_an_engine_that_says_nothing_is_bounded_by_the_caller(tmp_path: Path) -> None:
    async with world(tmp_path) as (fake, host):
        fake.script("POST", "/exec/E/start", hangs())
        run = ExecRun(host, ["true"])
        with anyio.move_on_after(0.2) as scope:
            await run.start()
        assert scope.cancelled_caught
        run.close()


NOT_YET = {"Running": False, "ExitCode": None, "Pid": 0}


async def test_dead_is_what_the_engine_says(tmp_path: Path) -> None:
    """The helper that kills is a shell of the image; code inside may have replaced it."""
    async with world(tmp_path) as (fake, host):
        fake.script("POST", "/exec/E/start", sends(UPGRADED, end=False), sends(UPGRADED + frame(1, DEAD)))
        fake.script("GET", "/exec/E/json", sends(answer(200, RUNS)))
        run = ExecRun(host, ["sleep", "60"])
        await run.start()
        with anyio.move_on_after(1) as bound:
            await run.kill()
        assert bound.cancelled_caught
        assert run.exit is None
        fake.script("GET", "/exec/E/json", *[sends(answer(200, RUNS))] * 3, sends(ended(137)))
        await run.kill()
        assert run.exit == Exit(137)


async def test_a_container_that_ends_under_a_kill(tmp_path: Path) -> None:
    async with world(tmp_path) as (fake, host):
        fake.script("POST", "/exec/E/start", sends(UPGRADED, end=False), sends(UPGRADED + frame(1, DEAD)))
        gone = answer(404, {"message": "No such exec instance: E"})
        fake.script("GET", "/exec/E/json", sends(answer(200, RUNS)), sends(gone))
        die = {"Action": "die", "Actor": {"ID": "C", "Attributes": {"exitCode": "9"}}}
        fake.script("GET", "/events", sends(answer(200, json.dumps(die).encode() + b"\n")))
        run = ExecRun(host, ["sleep", "60"])
        await run.start()
        with pytest.raises(SandboxGone, match="exit code 9"):
            await run.kill()


async def test_a_start_that_arrives_late_is_killed(tmp_path: Path) -> None:
    """Once a byte of it has left, the engine may start the command whenever the rest arrives."""
    async with world(tmp_path) as (fake, host):
        fake.script("POST", "/exec/E/start", hangs(), sends(UPGRADED + frame(1, DEAD)))
        late = [sends(answer(200, NOT_YET))] * 60
        fake.script("GET", "/exec/E/json", *late, sends(answer(200, RUNS)), sends(ended(137)))
        run = ExecRun(host, ["sleep", "60"])
        with anyio.move_on_after(0.2):
            await run.start()
        await run.kill()
        assert "sandboxio-kill" in created(fake)[-1]["Cmd"]
        fake.script("POST", "/exec/E/start", hangs())
        fake.script("GET", "/exec/E/json", sends(answer(200, NOT_YET)))
        never = ExecRun(host, ["sleep", "60"])
        with anyio.move_on_after(0.2):
            await never.start()
        with anyio.move_on_after(1) as bound:
            await never.kill()
        assert bound.cancelled_caught, "nobody knows whether it will start"


async def test_a_start_that_was_not_sent_or_was_refused_needs_no_kill(tmp_path: Path) -> None:
    async with world(tmp_path) as (fake, host):
        fake.script("GET", "/exec/E/json", sends(answer(200, NOT_YET)))

        async def last_answer(connection: Connection, request: Request) -> None:
            fake.path.rename(fake.path.with_name("away"))
            await connection.send(answer(201, {"Id": "E"}))

        fake.script("POST", "/containers/C/exec", last_answer)
        run = ExecRun(host, ["sleep", "60"])
        with pytest.raises(EngineUnavailable):
            await run.start()
        fake.path.with_name("away").rename(fake.path)
        with anyio.fail_after(1):
            await run.kill()
        fake.script("POST", "/containers/C/exec", sends(answer(201, {"Id": "E"})))
        fake.script("POST", "/exec/E/start", sends(answer(409, {"message": "Container C is paused"})))
        run = ExecRun(host, ["sleep", "60"])
        with pytest.raises(ConnectError):
            await run.start()
        with anyio.fail_after(2):
            await run.kill()


# What is sent


def created(fake: ScriptedEngine) -> list[dict[str, Any]]:
    return [request.json for request in fake.requests if request.path.endswith("/containers/C/exec")]


def channel_on(host: ExecHost, **options: Any) -> ExecChannel:
    def owner() -> BaseSandbox:
        raise AssertionError("nothing is to be put down")

    return ExecChannel(host, owner, interpreter=options.get("interpreter"))


async def test_bytes_that_are_not_utf8_come_through(tmp_path: Path) -> None:
    """JSON cannot carry them: a shell turns them back."""
    async with world(tmp_path) as (fake, host):
        await collect(channel_on(host).command(("printf", "a\udcff"), env={}, seconds=1))
        (body,) = created(fake)
        assert body["Cmd"][:2] == ["/bin/sh", "-c"]
        assert body["Cmd"][-2:] == ["printf", r"a\0377"]
        with pytest.raises(ConfigurationError, match="UTF-8"):
            channel_on(host).command(("x",), env={"A": "\udcff"}, seconds=1)


async def test_code_goes_through_stdin(tmp_path: Path) -> None:
    """Case 66: its size has no limit, and it is on no command line (case 79)."""
    got: list[bytes] = []

    async def reads(connection: Connection, request: Request) -> None:
        await connection.send(UPGRADED)
        got.append(await connection.until_closed())

    async with world(tmp_path) as (fake, host):
        fake.script("POST", "/exec/E/start", reads)
        code = "print('é')\n" * 100_000
        await collect(channel_on(host).code(code, seconds=1))
        assert got == [code.encode()]
        (body,) = created(fake)
        assert body["AttachStdin"] is True
        assert "print" not in str(body)
        await collect(channel_on(host, interpreter="pypy3").code("1", seconds=1))
        assert created(fake)[-1]["Cmd"] == ["pypy3", "-X", "utf8", "-"]


@pytest.mark.parametrize(
    "path",
    [
        "/work/'; touch /tmp/pwn; '",
        "/work/$(touch /tmp/pwn)",
        "/work/`touch /tmp/pwn`",
        "/work/a\ntouch /tmp/pwn",
        "-rf",
        "--help",
        "/work/%s{0}",
        "/work/\\x27",
        "/work/\udcff",
    ],
)
async def test_a_path_is_never_shell_text(path: str, tmp_path: Path) -> None:
    """Case 67: it is one argument, in a notation without a byte that means something to a shell."""
    async with world(tmp_path) as (fake, host):
        await ExecFiles(host, Nobody).make_folder(path, parents=True)
        (body,) = created(fake)
        script, argument = body["Cmd"][2], body["Cmd"][4]
        assert "pwn" not in script
        assert set(argument) <= set("/._-\\") | set(map(chr, range(128))) - set("'\"`$; \n%{}()")
        assert argument == escaped(path if path.startswith("/") else f"/work/{path}")


class Nobody:
    """An owner whose runs all end by themselves."""

    async def put_down(self, execution: object) -> None:
        await execution.kill()  # type: ignore[attr-defined]

    def describe_timeout(self, seconds: float) -> str:
        return ""

    def mark_gone(self, why: str) -> None:
        raise AssertionError(why)


def helper_prints(
    fake: ScriptedEngine, *pieces: str, code: int = 0, stall: float = 0.0, end: bool = True
) -> None:
    """The next helper prints these pieces, with its mark where they say MARK, and ends with ``code``."""
    marks: list[bytes] = []

    async def create(connection: Connection, request: Request) -> None:
        marks.append(request.json["Cmd"][-1].encode())
        await connection.send(answer(201, {"Id": "E"}))

    async def start(connection: Connection, request: Request) -> None:
        await connection.send(UPGRADED)
        for piece in pieces:
            await connection.send(frame(1, piece.encode("latin-1").replace(b"MARK", marks[-1])))
            await anyio.sleep(stall)
        if not end:
            await connection.until_closed()

    fake.script("POST", "/containers/C/exec", create)
    fake.script("POST", "/exec/E/start", start)
    fake.script("GET", "/exec/E/json", sends(ended(code)))


async def read(host: ExecHost) -> bytes:
    got = bytearray()
    await ExecFiles(host, Nobody).read_file("f", got.extend)
    return bytes(got)


async def test_a_file_is_read_to_its_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever stalls: all of it or an error, also where the connection stays open at the end."""
    async with world(tmp_path) as (fake, host):
        helper_prints(fake, "content", "MARK", stall=0.3, end=False)
        assert await read(host) == b"content"
        helper_prints(fake, "content, MARK and MARK", "MARK")
        assert len(await read(host)) == len("content, 0123456789abcdef and 0123456789abcdef")
        helper_prints(fake, "MARK")
        assert await read(host) == b""
        for pieces in (("content",), ("MARK", "content"), ()):
            helper_prints(fake, *pieces)
            with pytest.raises(ConnectError, match="did not arrive"):
                await read(host)
        monkeypatch.setattr(exec_run, "MARK_SILENCE", 0.2)
        helper_prints(fake, "content", end=False)
        with pytest.raises(ConnectError, match="did not arrive"):
            await read(host)
        helper_prints(fake, "something", code=64)
        with pytest.raises(PathNotFound):
            await read(host)


LISTING = "41ed 4096 ./folder/\n81a4 3 ./a\nb/\na1ff 6 ./link/\n81a4 0 ./\xff/\n//\n./link/\n"


async def test_a_listing(tmp_path: Path) -> None:
    async with world(tmp_path) as (fake, host):
        helper_prints(fake, LISTING, "MARK")
        found = await ExecFiles(host, Nobody).list_folder("x")
        assert [(entry.path, entry.size, entry.is_dir) for entry in found] == [
            ("x/folder", 0, True),
            ("x/a\nb", 3, False),
            ("x/link", 6, True),
            ("x/\udcff", 0, False),
        ]


@pytest.mark.parametrize(
    "printed",
    [
        "",
        "a" * 1_000_000,
        "81a4 " + "7" * 5000 + " ./x/\n//\n",
        "7" * 5000 + " 1 ./x/\n//\n",
        "81a4 1 ./" + "x" * 5000 + "/\n//\n",
        "nonsense\n" + LISTING,
        LISTING.replace("//\n", "more//\n"),
    ],
    ids=["nothing", "much", "size", "mode", "name", "before", "after"],
)
async def test_a_shell_that_was_replaced_lists_nothing(printed: str, tmp_path: Path) -> None:
    """What code inside prints instead of a listing takes no time of the host, and its error is typed."""
    async with world(tmp_path) as (fake, host):
        helper_prints(fake, printed, "MARK")
        with anyio.fail_after(3), pytest.raises(FileSystemError, match="gave no listing"):
            await ExecFiles(host, Nobody).list_folder("/x")


async def test_a_listing_without_end_is_not_kept(tmp_path: Path) -> None:
    async def endless(connection: Connection, request: Request) -> None:
        await connection.send(UPGRADED)
        while True:
            await connection.send(frame(1, bytes(1 << 20)), in_one_read=False)

    async with world(tmp_path) as (fake, host):
        fake.script("POST", "/exec/E/start", endless)
        with anyio.fail_after(5), pytest.raises(FileSystemError, match="larger than 8 MiB"):
            await ExecFiles(host, Nobody).list_folder("/x")


@pytest.mark.parametrize(
    ("code", "sent"),
    [
        ("print(1)", b"print(1)"),
        ("\ufeffprint('é')", "print('é')".encode()),
        ("# -*- coding: latin-1 -*-\nx", b"# -*- codxng: latin-1 -*-\nx"),
        ("#!/bin/x\n# vim: set fileencoding=latin-1 :", b"#!/bin/x\n# vim: set fileencodxng=latin-1 :"),
        ("x = '''\n# coding: latin-1'''", b"x = '''\n# coding: latin-1'''"),
        ("\n\n# coding: latin-1", b"\n\n# coding: latin-1"),
        ("a\r\nb", b"a\r\nb"),
    ],
)  # fmt: skip
def test_code_is_always_utf8(code: str, sent: bytes) -> None:
    """Case 70: a cookie in the code would make the interpreter decode it as something else."""
    assert source_bytes(code) == sent

"""Where Podman's Docker-compatible service answers otherwise than Docker, as seen on Podman 4.3.1."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from sandboxio.adapter import Exit
from sandboxio.errors import ConnectError, CreationError, SandboxGone
from sandboxio.models import Resources
from sandboxio_docker import DockerBackend, ending as ending_module
from sandboxio_docker.ending import Ending
from sandboxio_docker.engine import Engine
from sandboxio_docker.exec_run import ExecHost, ExecRun
from sandboxio_docker.lifecycle import listed, remove
from tests.fakes.scripted import ScriptedEngine, sends
from tests.fakes.server import Connection, Request, answer

PING = answer(200, b"OK", {"Api-Version": "1.41", "Server": "Libpod/4.3.1 (linux)"})
OPEN = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
ENDS_MEANWHILE = (
    "cannot remove container C as it could not be stopped: sending SIGKILL to container C: "
    "container state improper: stopped"
)


def chunk(action: str, **attributes: str) -> bytes:
    event: dict[str, Any] = {"Action": action, "Actor": {"ID": "C", "Attributes": attributes}}
    line = json.dumps(event).encode() + b"\n"
    return f"{len(line):x}\r\n".encode() + line + b"\r\n"


def tells(*events: bytes) -> Any:
    """What is asked of the past is answered with nothing, and of the future by an answer that stays open."""

    async def script(connection: Connection, request: Request) -> None:
        until = request.query["until"]
        await connection.send(OPEN)
        if float(until) <= time.time():
            await connection.send(b"0\r\n\r\n")
            return
        for event in events:
            await connection.send(event)
        await connection.until_closed()

    return script


async def test_a_death_is_explained_from_the_events(tmp_path: Path) -> None:
    """Also where the answer stays open; the first silence ends it."""
    async with ScriptedEngine.on(tmp_path) as fake:
        fake.script("GET", "/_ping", sends(PING))
        fake.script("GET", "/events", tells(chunk("start"), chunk("die", exitCode="7"), chunk("remove")))
        ending = Ending(Engine(fake.url, environ={}), "C", 300.0, 128)
        assert "exit code 7" in (await ending.explained()).message
        assert await ending.ended()
        await fake.all_closed()


async def test_an_engine_with_nothing_to_tell_is_asked_for_a_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending_module, "LOOK", 0.2)
    async with ScriptedEngine.on(tmp_path) as fake:
        fake.script("GET", "/_ping", sends(PING))
        fake.script("GET", "/events", tells())
        with anyio.fail_after(5):
            assert await Ending(Engine(fake.url, environ={}), "C", 300.0, 128).past_events() == []
        await fake.all_closed()


async def test_a_container_that_ends_while_it_is_removed(tmp_path: Path) -> None:
    """The refusal passes by itself, so it is asked again until the container is gone."""
    async with ScriptedEngine.on(tmp_path) as fake:
        improper = sends(answer(500, {"cause": "container state improper", "message": ENDS_MEANWHILE}))
        gone = sends(answer(404, {"message": "no container with name or ID C found: no such container"}))
        fake.script("DELETE", "/containers/C", improper, improper, gone)
        assert await remove(Engine(fake.url, environ={}), "C")


async def test_a_removal_that_fails_for_good_is_told(tmp_path: Path) -> None:
    async with ScriptedEngine.on(tmp_path) as fake:
        fake.script("DELETE", "/containers/C", sends(answer(500, {"message": "unmounting: device busy"})))
        with pytest.raises(ConnectError, match="device busy"):
            await remove(Engine(fake.url, environ={}), "C")


async def test_a_list_while_a_container_ends(tmp_path: Path) -> None:
    """The whole list is refused for it; another refusal is told at once."""
    ends = sends(answer(500, {"message": "read /proc/29294/cgroup: no such process"}))
    broken = sends(answer(500, {"message": "database is locked"}))
    async with ScriptedEngine.on(tmp_path) as fake:
        fake.script("GET", "/_ping", sends(PING))
        fake.script("GET", "/containers/json", ends, ends, sends(answer(200, [])), broken)
        engine = Engine(fake.url, environ={})
        assert await listed(engine, {"label": ["x"]}) == []
        with pytest.raises(ConnectError, match="database is locked"):
            await listed(engine, {})
        fake.script("GET", "/containers/json", ends)
        with pytest.raises(ConnectError, match="no such process"):
            await listed(engine, {})


# Its execs


UPGRADED = b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"
NOT_YET = {"Running": False, "ExitCode": 0, "Pid": 0, "CanRemove": False}
RUNS = {"Running": True, "ExitCode": 0, "Pid": 7, "CanRemove": False}


def over(code: int) -> dict[str, Any]:
    return {"Running": False, "ExitCode": code, "Pid": 0, "CanRemove": True}


def printed(stream: int, data: bytes) -> Any:
    """An exec that prints this and ends."""
    return sends(UPGRADED + bytes([stream, 0, 0, 0]) + len(data).to_bytes(4, "big") + data)


@asynccontextmanager
async def world(folder: Path, *states: dict[str, Any]) -> AsyncGenerator[tuple[ScriptedEngine, ExecHost]]:
    """A running container C; each exec is E, and the engine says ``states`` of it, one after another."""
    async with ScriptedEngine.on(folder) as fake:
        fake.script("GET", "/_ping", sends(PING))
        fake.script("POST", "/containers/C/exec", sends(answer(201, {"Id": "E"})))
        fake.script("GET", "/exec/E/json", *(sends(answer(200, state)) for state in states))
        fake.script("GET", "/events", tells(chunk("start")))
        fake.script("GET", "/containers/C/json", sends(answer(200, {"State": {"Running": True}})))
        engine = Engine(fake.url, environ={})
        host = ExecHost(engine, "C", Ending(engine, "C", 300.0, 128))
        yield fake, host
        host.close()
        await fake.all_closed()


async def test_a_command_that_runs_has_not_ended(tmp_path: Path) -> None:
    """Its exit code is 0 from the beginning; a kill that believed this would kill nothing."""
    async with world(tmp_path, NOT_YET, RUNS, over(0)) as (fake, host):
        fake.script("POST", "/exec/E/start", sends(UPGRADED, end=False), printed(1, b"dead\n"))
        run = ExecRun(host, ["sleep", "60"])
        await run.start()
        with anyio.fail_after(5):
            await run.kill()
        assert host.doomed == []
        assert sum(request.path.endswith("/start") for request in fake.requests) == 2


async def test_the_end_of_a_command(tmp_path: Path) -> None:
    async with world(tmp_path, NOT_YET, RUNS, over(3)) as (fake, host):
        fake.script("POST", "/exec/E/start", printed(1, b"failed to find it\n"))
        code, output = await ExecRun(host, ["false"], plain=True).whole()
        assert (code, output) == (3, b"failed to find it\n")


async def test_a_program_that_the_image_lacks(tmp_path: Path) -> None:
    words = b'Error: runc: exec failed: exec: "nope": executable file not found in $PATH\n'
    async with world(tmp_path, over(127)) as (fake, host):
        fake.script("POST", "/exec/E/start", printed(2, words))
        code, output = await ExecRun(host, ["nope"]).whole()
        assert (code, output) == (127, words)


@pytest.mark.parametrize("code", [126, 127])
@pytest.mark.parametrize(
    "words",
    [
        b"Error: runc: interrupted system call\n",
        b"Error: runc: chdir to cwd: no such file or directory\n",
        b"Error: OCI runtime: it is not running\n",
        b"Error: crun: resource temporarily unavailable\n",
        b"Error: runc: unable to find user x\n",
    ],
)
async def test_a_command_that_prints_what_podman_would_say(code: int, words: bytes, tmp_path: Path) -> None:
    """It is not run twice, and is neither an error nor the sandbox's end."""
    async with world(tmp_path, over(code)) as (fake, host):
        fake.script("POST", "/exec/E/start", printed(1, words))
        run = ExecRun(host, ["bash"])
        await run.start()
        chunk = await run.receive()
        assert chunk is not None
        assert (chunk.stream, chunk.data) == ("stderr", words)
        assert await run.receive() is None
        assert run.exit == Exit(code)
        assert sum(request.path.endswith("/start") for request in fake.requests) == 1


async def test_a_start_that_meets_the_end_of_its_container(tmp_path: Path) -> None:
    async with world(tmp_path, over(126)) as (fake, host):
        fake.script("POST", "/exec/E/start", printed(2, b"Error: runc: container not running\n"))
        fake.script("GET", "/events", tells(chunk("die", exitCode="7")))
        with pytest.raises(SandboxGone, match="exit code 7"):
            await ExecRun(host, ["true"]).whole()


@pytest.mark.parametrize("count", [b"7" * 5000, b"-1\n", b"1 2\n", "\N{ARABIC-INDIC DIGIT TWO}".encode()])
async def test_a_count_of_memory_kills_is_not_believed_blindly(count: bytes, tmp_path: Path) -> None:
    async with world(tmp_path, over(137)) as (fake, host):
        fake.script("POST", "/exec/E/start", printed(1, b""), printed(1, count))
        run = ExecRun(host, ["python3"])
        await run.whole()
        assert run.exit == Exit(137)


async def test_a_memory_kill_is_counted_inside(tmp_path: Path) -> None:
    """There is no event of it; what cannot be counted leaves the exit code as it is."""
    async with world(tmp_path, over(137)) as (fake, host):
        fake.script("POST", "/exec/E/start", printed(1, b""), printed(1, b"2\n"))
        run = ExecRun(host, ["python3"])
        await run.whole()
        assert run.exit is not None
        assert run.exit.limit == "The command was killed at the memory cap of 128 MiB."
        fake.script("POST", "/exec/E/start", printed(1, b""), sends(answer(500, {"message": "no more"})))
        again = ExecRun(host, ["python3"])
        await again.whole()
        assert again.exit == Exit(137)


# What it takes and Docker refuses


async def test_more_cpus_than_the_machine_has(tmp_path: Path) -> None:
    async with ScriptedEngine.on(tmp_path) as fake:
        fake.script("GET", "/_ping", sends(PING))
        fake.script("GET", "/info", sends(answer(200, {"NCPU": 2})))
        backend = DockerBackend(host=fake.url)
        with pytest.raises(CreationError, match=r"cpu=2\.5\) is more .* only 2 CPUs available"):
            await backend.create(resources=Resources(cpu=2.5))
        assert {request.path.rpartition("/")[2] for request in fake.requests} == {"_ping", "info"}
        await fake.all_closed()

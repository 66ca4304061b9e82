"""Where Podman's Docker-compatible service answers otherwise than Docker, as seen on Podman 4.3.1."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from sandboxio.errors import ConnectError
from sandboxio_docker import ending as ending_module
from sandboxio_docker.ending import Ending
from sandboxio_docker.engine import Engine
from sandboxio_docker.lifecycle import remove
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

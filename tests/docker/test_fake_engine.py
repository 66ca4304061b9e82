"""The fake engine behaves like the real one where tests rely on it, and its gates hold."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import anyio
import pytest

from sandboxio_docker.archive import TarReader, TarWriter
from sandboxio_docker.engine import Engine, EngineError, Fault
from sandboxio_docker.frames import Demultiplexer
from tests.fakes.engine import IO, FakeEngine

BODY = {
    "Image": "python:3.12-slim",
    "OpenStdin": True,
    "StdinOnce": True,
    "Labels": {"a": "b"},
    "HostConfig": {"AutoRemove": True},
}
ALL = {"stream": True, "stdin": True, "stdout": True, "stderr": True}


@pytest.fixture
async def fake(tmp_path: Path) -> AsyncGenerator[FakeEngine, None]:
    async with FakeEngine.on(tmp_path) as fake:
        yield fake


@pytest.fixture
def engine(fake: FakeEngine) -> Engine:
    return Engine(fake.url, environ={})


async def test_the_lifeline(fake: FakeEngine, engine: Engine) -> None:
    async def shouts(io: IO) -> int:
        while data := await io.read():
            await io.write(data.upper())
        await io.write(b"bye", stream=2)
        return 3

    fake.main = shouts
    cid = (await engine.post_json("/containers/create", BODY, params={"name": "n"}))["Id"]
    attach = await engine.upgrade("POST", f"/containers/{cid}/attach", params=ALL)
    await engine.request("POST", f"/containers/{cid}/start")
    await attach.send(b"hello")
    demux = Demultiplexer()
    demux.feed(await attach.receive())
    assert demux.next_chunk().data == b"HELLO"  # type: ignore[union-attr]
    await attach.half_close()
    while data := await attach.receive():
        demux.feed(data)
    assert demux.next_chunk().data == b"bye"  # type: ignore[union-attr]
    attach.close()
    assert not fake.containers
    assert [event["Action"] for event in fake.events] == ["create", "start", "die", "destroy"]
    with pytest.raises(EngineError) as caught:
        await engine.get_json(f"/containers/{cid}/json")
    assert caught.value.fault is Fault.NO_SUCH_CONTAINER
    await fake.all_closed()


async def test_closing_the_attach_connection_ends_the_container(fake: FakeEngine, engine: Engine) -> None:
    cid = (await engine.post_json("/containers/create", BODY))["Id"]
    attach = await engine.upgrade("POST", f"/containers/{cid}/attach", params=ALL)
    await engine.request("POST", f"/containers/{cid}/start")
    process = fake.containers[cid]
    attach.close()
    with anyio.fail_after(5):
        await process.ended.wait()
    assert not fake.containers


async def test_an_exec(fake: FakeEngine, engine: Engine) -> None:
    cid = (await engine.post_json("/containers/create", BODY))["Id"]
    with pytest.raises(EngineError) as caught:
        await engine.post_json(f"/containers/{cid}/exec", {"Cmd": ["true"]})
    assert caught.value.fault is Fault.NOT_RUNNING
    await engine.request("POST", f"/containers/{cid}/start")
    eid = (await engine.post_json(f"/containers/{cid}/exec", {"Cmd": ["echo", "hi"]}))["Id"]
    raw = await engine.upgrade("POST", f"/exec/{eid}/start", json={"Detach": False, "Tty": False})
    got = b""
    while data := await raw.receive():
        got += data
    raw.close()
    assert got == b"\x01\0\0\0\0\0\0\x03hi\n"
    shown = await engine.get_json(f"/exec/{eid}/json")
    assert (shown["Running"], shown["ExitCode"]) == (False, 0)
    await engine.request("DELETE", f"/containers/{cid}", params={"force": True})
    assert not fake.containers
    with pytest.raises(EngineError, match="No such container"):
        await engine.request("DELETE", f"/containers/{cid}", params={"force": True})


async def test_a_cancelled_create_still_creates(fake: FakeEngine, engine: Engine) -> None:
    with (
        fake.gate("create", "before") as gate,
        engine.resumable("POST", "/containers/create", json=BODY) as pending,
    ):
        async with anyio.create_task_group() as group:
            group.start_soon(pending.finish)
            await gate.reached.wait()
            group.cancel_scope.cancel()
        assert not fake.containers
        gate.release()
        cid = (await pending.finish()).json()["Id"]
    assert list(fake.containers) == [cid]


async def test_names_labels_and_failures(fake: FakeEngine, engine: Engine) -> None:
    await engine.post_json("/containers/create", BODY, params={"name": "n"})
    with pytest.raises(EngineError) as caught:
        await engine.post_json("/containers/create", BODY, params={"name": "n"})
    assert caught.value.fault is Fault.NAME_IN_USE
    for label, count in (("a", 1), ("a=b", 1), ("a=c", 0), ("b", 0)):
        filters = {"all": True, "filters": {"label": [label]}}
        assert len(await engine.get_json("/containers/json", params=filters)) == count
    fake.fail("list", 500, "no space left on device")
    with pytest.raises(EngineError) as caught:
        await engine.get_json("/containers/json")
    assert caught.value.fault is Fault.NO_SPACE
    assert await engine.get_json("/containers/json") == []
    assert len(fake.asked("list")) == 6


async def test_files(fake: FakeEngine, engine: Engine) -> None:
    cid = (await engine.post_json("/containers/create", BODY))["Id"]
    name = b"\xff" * 120
    writer = TarWriter(name, 3, mode=0o600, uid=1, gid=1, mtime=1)
    content = [writer.head(), writer.data(b"abc"), writer.end()]
    await engine.request("PUT", f"/containers/{cid}/archive", params={"path": "/work"}, content=iter(content))
    path = (b"/work/" + name).decode(errors="surrogateescape")
    reader, got = TarReader(name=name), b""
    async with engine.stream("GET", f"/containers/{cid}/archive", params={"path": path}) as answer:
        async for piece in answer:
            reader.feed(piece)
            while data := reader.next_piece():
                got += data
    assert got == b"abc"
    assert reader.done
    with pytest.raises(EngineError) as caught:
        await engine.request("GET", f"/containers/{cid}/archive", params={"path": "/nope"})
    assert caught.value.fault is Fault.NO_SUCH_PATH

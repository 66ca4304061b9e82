"""The transport: whole answers however they are cut, early answers, bodies, silence, and resets."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

import anyio
import anyio.lowlevel
import httpx
import pytest

from sandboxio.testing.suite.comparing import difference
from sandboxio_docker.endpoint import Endpoint
from sandboxio_docker.engine import Engine, EngineError, EngineUnavailable
from sandboxio_docker.frames import Demultiplexer
from sandboxio_docker.transport import EngineTransport
from tests.fakes.scripted import ScriptedEngine, hangs, sends
from tests.fakes.server import Connection, Request, answer


@pytest.fixture
async def fake(tmp_path: Path) -> AsyncGenerator[ScriptedEngine, None]:
    async with ScriptedEngine.on(tmp_path) as fake:
        yield fake


@pytest.fixture
def engine(fake: ScriptedEngine) -> Engine:
    return Engine(fake.url, environ={})


def frame(stream: int, data: bytes) -> bytes:
    return bytes([stream, 0, 0, 0]) + len(data).to_bytes(4, "big") + data


UPGRADED = (
    b"HTTP/1.1 101 UPGRADED\r\nContent-Type: application/vnd.docker.multiplexed-stream\r\n"
    b"Connection: Upgrade\r\nUpgrade: tcp\r\nApi-Version: 1.45\r\nServer: Docker/26.1.5 (linux)\r\n\r\n"
)
NOT_UPGRADED = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.docker.raw-stream\r\n"
    b"Api-Version: 1.45\r\nDocker-Experimental: false\r\nServer: Docker/26.1.5 (linux)\r\n\r\n"
)


@pytest.mark.parametrize("head", [UPGRADED, NOT_UPGRADED], ids=["101", "200"])
async def test_case_1_first_frames_glued_to_the_head(
    fake: ScriptedEngine, engine: Engine, head: bytes
) -> None:
    whole = head + frame(1, b"ready\n") + frame(2, "é".encode())
    for offset in range(len(whole) + 1):
        fake.script("POST", "/exec/E/start", sends(whole[:offset], whole[offset:]))
        connection = await engine.upgrade("POST", "/exec/E/start", json={"Detach": False, "Tty": False})
        demux, got = Demultiplexer(), {"stdout": b"", "stderr": b""}
        try:
            while data := await connection.receive():
                demux.feed(data)
                while chunk := demux.next_chunk():
                    got[chunk.stream] += chunk.data
            demux.feed(b"")
            assert demux.next_chunk() is None
        finally:
            connection.close()
        assert got == {"stdout": b"ready\n", "stderr": "é".encode()}, f"cut at {offset}"
    await fake.all_closed()


CHUNKED = (
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\nX: y\r\n\r\n"
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b'7\r\n{"a": [\r\n3;ext=1\r\n1]}\r\n0\r\nTrailer: t\r\n\r\n'
)


@pytest.mark.parametrize(
    "whole",
    [
        answer(200, {"a": [1]}),
        CHUNKED,
        b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{"a": [1]}',
        b'HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n{"a": [1]}',
    ],
    ids=["length", "chunked", "until-close", "http-1.0"],
)
async def test_every_split_of_an_answer_gives_the_same(
    fake: ScriptedEngine, engine: Engine, whole: bytes
) -> None:
    for offset in range(len(whole) + 1):
        fake.script("GET", "/x", sends(whole[:offset], whole[offset:]))
        assert await engine.get_json("/x") == {"a": [1]}, f"cut at {offset}"
    await fake.all_closed()


async def test_an_answer_byte_by_byte(fake: ScriptedEngine, engine: Engine) -> None:
    fake.script("GET", "/x", sends(*(bytes([byte]) for byte in CHUNKED)))
    assert await engine.get_json("/x") == {"a": [1]}


@pytest.mark.parametrize("whole", [answer(200, {"a": [1]}), CHUNKED], ids=["length", "chunked"])
async def test_every_cut_off_answer_is_an_error(fake: ScriptedEngine, engine: Engine, whole: bytes) -> None:
    for offset in range(len(whole)):
        fake.script("GET", "/x", sends(whole[:offset]))
        with pytest.raises(EngineUnavailable) as caught:
            await engine.get_json("/x")
        assert caught.value.sent
        assert isinstance(caught.value.__cause__, httpx.RemoteProtocolError), f"cut at {offset}"


async def test_the_end_of_an_answer_needs_no_close_by_the_engine(
    fake: ScriptedEngine, engine: Engine
) -> None:
    fake.script("GET", "/x", sends(answer(200, []), end=False))
    assert await engine.get_json("/x") == []
    await fake.all_closed()


@pytest.mark.parametrize("status", [204, 304])
async def test_answers_without_a_body(fake: ScriptedEngine, engine: Engine, status: int) -> None:
    fake.script("POST", "/containers/c/start", sends(answer(status), end=False))
    response = await engine.request("POST", "/containers/c/start")
    assert (response.status_code, response.content) == (status, b"")


async def test_head_has_headers_only(fake: ScriptedEngine, engine: Engine) -> None:
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\nX-Docker-Container-Path-Stat: e30=\r\n\r\n"
    fake.script("HEAD", "/containers/c/archive", sends(raw, end=False))
    response = await engine.request(
        "HEAD", "/containers/c/archive", params={"path": b"/\xff".decode(errors="surrogateescape")}
    )
    assert response.headers["X-Docker-Container-Path-Stat"] == "e30="
    assert fake.requests[-1].raw_query == {"path": b"/\xff"}


# Request bodies


async def pieces(count: int, size: int = 1 << 16) -> AsyncIterator[bytes]:
    for number in range(count):
        yield bytes([number % 251]) * size
        yield b""  # must not end a chunked body


async def test_a_body_in_pieces_is_chunked(fake: ScriptedEngine, engine: Engine) -> None:
    fake.script("PUT", "/x", sends(answer(200)))
    await engine.request("PUT", "/x", content=pieces(40))
    sent = fake.requests[-1]
    assert sent.headers["transfer-encoding"] == "chunked"
    assert not difference(sent.body, b"".join(bytes([n]) * (1 << 16) for n in range(40)))


async def test_a_body_of_known_length_from_a_plain_iterator(fake: ScriptedEngine, engine: Engine) -> None:
    fake.script("PUT", "/x", sends(answer(200)))
    await engine.request("PUT", "/x", content=iter([b"ab", b"", b"c"]), headers={"Content-Length": "3"})
    assert (fake.requests[-1].body, fake.requests[-1].headers["content-length"]) == (b"abc", "3")


@pytest.mark.parametrize("body", [[b"a"], [b"abc", b"d"]], ids=["short", "long"])
async def test_a_body_that_is_not_as_long_as_announced(
    fake: ScriptedEngine, engine: Engine, body: list[bytes]
) -> None:
    fake.script("PUT", "/x", sends(answer(200)))
    with pytest.raises(EngineUnavailable, match="PUT /x"):
        await engine.request("PUT", "/x", content=iter(body), headers={"Content-Length": "3"})
    await fake.all_closed()


async def test_an_error_of_the_body_comes_out_as_it_is(fake: ScriptedEngine, engine: Engine) -> None:
    async def breaking() -> AsyncIterator[bytes]:
        yield b"x" * 100
        raise LookupError("mine")

    fake.script("PUT", "/x", sends(answer(200)))
    with pytest.raises(LookupError, match="mine"):
        await engine.request("PUT", "/x", content=breaking())
    await fake.all_closed()


@pytest.mark.parametrize("afterwards", ["closes", "stays"])
async def test_an_early_answer_ends_the_upload(
    fake: ScriptedEngine, engine: Engine, afterwards: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine refuses after the head; it reads nothing of 64 MB and may even keep the connection."""
    monkeypatch.setattr("sandboxio_docker.engine.WRITE_TIMEOUT", 0.2)
    closed, done = False, anyio.Event()

    async def source() -> AsyncIterator[bytes]:
        nonlocal closed
        try:
            for _ in range(1024):
                yield b"x" * (1 << 16)
        finally:
            closed = True

    async def refuse(connection: Connection, request: Request) -> None:
        await connection.send(answer(404, {"message": "No such container: c"}), in_one_read=False)
        if afterwards == "stays":
            await done.wait()
        connection.sock.close()

    fake.script("PUT", "/containers/c/archive", refuse, read_body=False)
    with pytest.raises(EngineError, match="No such container") as caught:
        await engine.request("PUT", "/containers/c/archive", params={"path": "/"}, content=source())
    done.set()
    assert caught.value.status == 404
    assert closed


async def test_an_engine_that_stops_reading(
    fake: ScriptedEngine, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandboxio_docker.engine.WRITE_TIMEOUT", 0.2)

    done = anyio.Event()

    async def stuck(connection: Connection, request: Request) -> None:
        await done.wait()

    fake.script("PUT", "/x", stuck, read_body=False)
    with pytest.raises(EngineUnavailable, match=r"nothing was accepted for 0\.2 s") as caught:
        await engine.request("PUT", "/x", content=b"x" * (64 << 20))
    done.set()
    assert caught.value.sent
    assert isinstance(caught.value.__cause__, httpx.WriteTimeout)


async def test_a_slow_reader_gets_it_all(fake: ScriptedEngine, engine: Engine) -> None:
    got = 0

    async def slow(connection: Connection, request: Request) -> None:
        nonlocal got
        size = int(request.headers["content-length"])
        while got < size:
            got += len(await connection.receive())
            await anyio.lowlevel.checkpoint()
        await connection.send(answer(200))

    fake.script("PUT", "/x", slow, read_body=False)
    await engine.request("PUT", "/x", content=b"x" * (5 << 20))
    assert got == 5 << 20


# Silence, and connections that break


async def test_a_plain_request_does_not_wait_for_ever(fake: ScriptedEngine, engine: Engine) -> None:
    fake.script("GET", "/x", hangs())
    with pytest.raises(EngineUnavailable, match=r"no byte came for 0\.1 s"):
        await engine.request("GET", "/x", read_timeout=0.1)
    await fake.all_closed()


@pytest.mark.virtual_time
async def test_case_18_only_the_caller_ends_a_silent_stream(fake: ScriptedEngine, engine: Engine) -> None:
    async def a_day_later(connection: Connection, request: Request) -> None:
        await connection.send(b"HTTP/1.1 200 OK\r\n\r\n")
        await anyio.sleep(86_400)
        await connection.send(b"ok")

    fake.script("GET", "/events", a_day_later)
    async with engine.stream("GET", "/events") as answered:
        assert await answered.receive() == b"ok"
        assert await answered.receive() == b""
    fake.script("GET", "/events", sends(b"HTTP/1.1 200 OK\r\n\r\n", end=False))
    with anyio.move_on_after(3600) as scope:
        async with engine.stream("GET", "/events") as answered:
            await answered.receive()
    assert scope.cancelled_caught
    await fake.all_closed()


@pytest.mark.parametrize("cut", [b"", b"HTTP/1.1 200", b"HTTP/1.1 200 OK\r\n\r\n"])
async def test_a_reset_connection(cut: bytes) -> None:
    from tests.fakes.server import Server, listen_tcp, running

    async def reset(connection: Connection, request: Request) -> None:
        if "_ping" in request.path:
            await connection.send(answer(200, b"OK", {"Api-Version": "1.45"}))
            return
        await connection.send(cut)
        connection.reset()

    async with running(Server(reset, listen_tcp())) as server:
        engine = Engine(f"tcp://127.0.0.1:{server.address[1]}", environ={})
        with pytest.raises(EngineUnavailable) as caught:
            await engine.request("GET", "/x")
        assert isinstance(caught.value.__cause__, httpx.TransportError)
        with pytest.raises(EngineUnavailable):
            await engine.upgrade("POST", "/x") if not cut.endswith(b"\n") else await _upgraded(engine)


async def _upgraded(engine: Engine) -> None:
    connection = await engine.upgrade("POST", "/x")
    try:
        await connection.receive()
    finally:
        connection.close()


async def test_an_endless_answer_is_refused(
    fake: ScriptedEngine, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandboxio_docker.engine.MAX_ANSWER", 1 << 20)

    async def endless(connection: Connection, request: Request) -> None:
        await connection.send(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            await connection.send(b"x" * (1 << 18))

    fake.script("GET", "/x", endless)
    with pytest.raises(EngineUnavailable, match="larger than 1 MiB"):
        await engine.request("GET", "/x")
    await fake.all_closed()


async def test_an_endless_head_is_refused(fake: ScriptedEngine, engine: Engine) -> None:
    async def endless(connection: Connection, request: Request) -> None:
        await connection.send(b"HTTP/1.1 200 OK\r\n")
        while True:
            await connection.send(b"X: " + b"y" * 1000 + b"\r\n")

    fake.script("GET", "/x", endless)
    with pytest.raises(EngineUnavailable):
        await engine.request("GET", "/x")
    await fake.all_closed()


# As an httpx transport


async def test_it_serves_an_httpx_client(fake: ScriptedEngine) -> None:
    fake.script("POST", "/x", sends(CHUNKED))
    transport = EngineTransport(Endpoint("a test", path=str(fake.path)))
    async with httpx.AsyncClient(transport=transport, base_url="http://docker") as client:
        response = await client.post("/x", content=b"hello")
        assert response.json() == {"a": [1]}
        async with client.stream("POST", "/x") as stream:
            assert stream.status_code == 200
        fake.script("POST", "/x", hangs())
        with pytest.raises(httpx.ReadTimeout):
            await client.post("/x", timeout=0.1)
    assert fake.requests[0].body == b"hello"
    await fake.all_closed()

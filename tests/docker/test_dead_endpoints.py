"""Case 43: whatever answers or does not answer at the address, one typed error, soon, with the next step."""

from __future__ import annotations

import os
import re
import socket
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
import pytest

from sandboxio.errors import ConnectError, SandboxError
from sandboxio_docker.engine import Engine, EngineUnavailable
from tests.fakes.scripted import ScriptedEngine, hangs, sends
from tests.fakes.server import Connection, Request, Server, answer, listen_tcp, running


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="sbx-dead-") as name:
        yield Path(name)


async def fails(engine: Engine, within: float = 5.0) -> EngineUnavailable:
    """The one error that every kind of use gives; none of them takes longer than it may."""
    found: EngineUnavailable | None = None
    uses: list[Callable[[], Awaitable[object]]] = [
        engine.negotiate,
        lambda: engine.get_json("/containers/json"),
        lambda: engine.upgrade("POST", "/x"),
        engine.resumable("POST", "/x").finish,
    ]
    for use in uses:
        begun = anyio.current_time()
        with pytest.raises(SandboxError) as caught:
            await use()
        assert anyio.current_time() - begun < within
        assert isinstance(caught.value, EngineUnavailable)
        assert not isinstance(caught.value, (TimeoutError, OSError))
        assert str(engine.endpoint) in caught.value.message
        assert caught.value.hint
        found = caught.value
    with pytest.raises(EngineUnavailable):
        async with engine.stream("GET", "/x"):
            pass
    assert found is not None
    return found


@asynccontextmanager
async def answering(
    handler: Callable[[Connection, Request], Awaitable[None]],
) -> AsyncGenerator[Engine, None]:
    async with ScriptedEngine.on(Path()) as fake:
        fake.script("GET", "/_ping", handler)
        yield Engine(fake.url, environ={})
        await fake.all_closed()


async def test_no_such_socket(folder: Path) -> None:
    error = await fails(Engine(f"unix://{folder}/nope.sock", environ={}))
    assert "there is no such socket" in error.message
    assert not error.sent
    assert "Start Docker" in error.hint


async def test_a_file_that_is_no_socket(folder: Path) -> None:
    (folder / "file").touch()
    error = await fails(Engine(f"unix://{folder}/file", environ={}))
    assert "it is not a socket" in error.message


async def test_nobody_listens(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{folder}/old.sock")
    error = await fails(Engine(f"unix://{folder}/old.sock", environ={}))
    assert "connection refused" in error.message


async def test_permission(folder: Path) -> None:
    folder.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{folder}/closed.sock")
        listener.listen()
        (folder / "closed.sock").chmod(0)
        with as_nobody():
            error = await fails(Engine(f"unix://{folder}/closed.sock", environ={}))
    assert "permission denied" in error.message
    assert "group `docker`" in error.hint


@contextmanager
def as_nobody() -> Generator[None, None, None]:
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


async def test_a_path_too_long(folder: Path) -> None:
    error = await fails(Engine(f"unix:///{'x' * 200}", environ={}))
    assert "too long" in error.message


async def test_a_closed_port() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    error = await fails(Engine(f"tcp://127.0.0.1:{port}", environ={}))
    assert "connection refused" in error.message


async def test_a_host_name_that_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    async def unknown(*args: object, **more: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr("anyio.getaddrinfo", unknown)  # the machine's resolver may ask the network
    error = await fails(Engine("tcp://no-such-host.invalid:2375", environ={}))
    assert "host name is not known" in error.message


@pytest.mark.virtual_time
@pytest.mark.parametrize("mute", ["from the start", "after the head", "one byte a second"])
async def test_it_accepts_and_says_nothing(mute: str) -> None:
    async def trickle(connection: Connection, request: Request) -> None:
        while not connection.closed_by_client.is_set():
            await connection.send(b"H")
            with anyio.move_on_after(1):
                await connection.until_closed()

    handler = {
        "from the start": hangs(),
        "after the head": sends(
            b"HTTP/1.1 200 OK\r\nApi-Version: 1.45\r\nContent-Length: 2\r\n\r\n", end=False
        ),
        "one byte a second": trickle,
    }[mute]
    async with answering(handler) as engine:
        error = await fails(engine)
        assert "within 4 s" in error.message or "status line" in error.message
        assert error.sent


async def test_a_mute_listener_in_real_time(folder: Path) -> None:
    """It never even accepts; the kernel does. Once with the real clock, so that 5 s are 5 s."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{folder}/mute.sock")
        listener.listen()
        begun = time.monotonic()
        with pytest.raises(EngineUnavailable, match=r"no complete answer within 4 s"):
            await Engine(f"unix://{folder}/mute.sock", environ={}).negotiate()
        assert time.monotonic() - begun < 5


ANSWERS = {
    "closes at once": (b"", "closed without an answer"),
    "speaks SSH": (b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n", "does not speak HTTP"),
    "speaks SMTP": (b"220 mail.example.test ESMTP\r\n", "does not speak HTTP"),
    "speaks TLS": (bytes.fromhex("15030100020228"), "closed without an answer|does not speak HTTP"),
    "wants TLS": (
        b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n",
        "HTTPS server",
    ),
    "is a web server": (answer(200, b"<html><title>Welcome to nginx!</title></html>"), "Welcome to nginx!"),
    "has no such page": (answer(404, b"<html><h1>404</h1><p>nginx</p></html>"), "HTTP 404.*404 nginx"),
    "redirects": (answer(302, b"", {"Location": "https://x/"}), "HTTP 302"),
    "is a proxy without an engine": (answer(502, b"<html>Bad Gateway</html>"), "HTTP 502.*Bad Gateway"),
    "is an engine that cannot": (
        answer(500, {"message": "daemon is starting"}),
        "HTTP 500.*daemon is starting",
    ),
    "cuts its answer": (answer(200, b"OK")[:-1], "in the middle of the answer"),
    "speaks nonsense": (bytes(range(128, 256)) * 8 + b"\r\n\r\n", "engine at"),
}


@pytest.mark.parametrize("what", ANSWERS)
async def test_it_is_no_engine(what: str) -> None:
    raw, words = ANSWERS[what]
    async with answering(sends(raw)) as engine:
        error = await fails(engine)
    assert re.search(words, error.message), error.message
    if what == "wants TLS":
        assert "DOCKER_TLS_VERIFY" in error.hint


async def test_an_answer_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandboxio_docker.engine.MAX_ANSWER", 1 << 20)

    async def endless(connection: Connection, request: Request) -> None:
        await connection.send(b"HTTP/1.1 200 OK\r\n\r\n")
        while not connection.closed_by_client.is_set():
            await connection.send(b"x" * (1 << 18), in_one_read=False)

    async with answering(endless) as engine:
        error = await fails(engine)
    assert "larger than 1 MiB" in error.message


async def test_tcp_that_closes() -> None:
    async def closes(connection: Connection, request: Request) -> None:
        connection.reset()

    async with running(Server(closes, listen_tcp())) as server:
        error = await fails(Engine(f"tcp://127.0.0.1:{server.address[1]}", environ={}))
    assert "DOCKER_TLS_VERIFY" in error.hint
    assert isinstance(error, ConnectError)


async def test_proxy_variables_never_apply(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with ScriptedEngine.on(Path()) as fake:
        assert (await Engine(fake.url).negotiate()).used == "1.45"

    async def ping(connection: Connection, request: Request) -> None:
        await connection.send(answer(200, b"OK", {"Api-Version": "1.44"}))

    async with running(Server(ping, listen_tcp())) as server:
        assert (await Engine(f"tcp://127.0.0.1:{server.address[1]}").negotiate()).used == "1.44"
        assert server.requests[0].target == "/_ping"

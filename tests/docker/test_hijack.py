"""Raw connections: first bytes, the rest of a cancelled sender, half-close, close; and all of it over TLS."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from sandboxio.errors import CapabilityNotSupported
from sandboxio_docker.engine import Engine, EngineUnavailable, Hijacked
from tests.fakes.scripted import ScriptedEngine
from tests.fakes.server import Connection, Request
from tests.fakes.sweep import cancelled_at

UPGRADED = b"HTTP/1.1 101 UPGRADED\r\nUpgrade: tcp\r\nConnection: Upgrade\r\n\r\n"
TLS = Path(__file__).parent / "tls"


@pytest.fixture
async def fake(tmp_path: Path) -> AsyncGenerator[ScriptedEngine, None]:
    async with ScriptedEngine.on(tmp_path) as fake:
        yield fake


async def echo(connection: Connection, request: Request) -> None:
    await connection.send(UPGRADED)
    while data := await connection.receive():
        await connection.send(data, in_one_read=False)


async def attached(fake: ScriptedEngine) -> Hijacked:
    return await Engine(fake.url, environ={}).upgrade("POST", "/raw")


async def test_the_upgrade_asks_for_it(fake: ScriptedEngine) -> None:
    fake.script("POST", "/raw", echo)
    (await attached(fake)).close()
    headers = fake.requests[-1].headers
    assert (headers["upgrade"], headers["connection"]) == ("tcp", "Upgrade")


async def test_there_and_back(fake: ScriptedEngine) -> None:
    fake.script("POST", "/raw", echo)
    raw = await attached(fake)
    for message in (b"a", bytearray(b"bc"), memoryview(b"def"), b""):
        await raw.send(message)
    got = b""
    while len(got) < 6:
        got += await raw.receive()
    assert got == b"abcdef"
    raw.close()
    await fake.all_closed()


async def test_half_close_then_the_rest_still_comes(fake: ScriptedEngine) -> None:
    async def after_the_end(connection: Connection, request: Request) -> None:
        await connection.send(UPGRADED)
        await connection.send((await connection.until_closed())[::-1])

    fake.script("POST", "/raw", after_the_end)
    raw = await attached(fake)
    await raw.send(b"abc")
    await raw.half_close()
    assert await raw.receive() == b"cba"
    assert await raw.receive() == b""
    assert not raw.closed
    with pytest.raises(EngineUnavailable, match="broke") as caught:
        await raw.send(b"more")
    assert isinstance(caught.value.__cause__, OSError)
    raw.close()


async def test_half_close_sends_the_rest_first(fake: ScriptedEngine) -> None:
    got = b""
    go = anyio.Event()

    async def late(connection: Connection, request: Request) -> None:
        nonlocal got
        await connection.send(UPGRADED)
        await go.wait()
        got = await connection.until_closed()

    fake.script("POST", "/raw", late)
    raw = await attached(fake)
    with anyio.move_on_after(0.02) as scope:
        await raw.send(b"x" * (3 << 20))
    assert scope.cancelled_caught
    assert 0 < raw.unsent < 3 << 20
    go.set()
    await raw.half_close()
    assert await raw.receive() == b""
    raw.close()
    await fake.all_closed()
    assert len(got) == 3 << 20


async def test_close_wakes_whoever_waits(fake: ScriptedEngine) -> None:
    done = anyio.Event()

    async def silent(connection: Connection, request: Request) -> None:
        await connection.send(UPGRADED)
        await done.wait()

    fake.script("POST", "/raw", silent)
    raw = await attached(fake)
    woken: list[str] = []

    async def reader() -> None:
        with pytest.raises(EngineUnavailable, match="closed on this side"):
            await raw.receive()
        woken.append("reader")

    async def writer() -> None:
        with pytest.raises(EngineUnavailable, match="closed on this side"):
            await raw.send(b"x" * (64 << 20))
        woken.append("writer")

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(reader)
            group.start_soon(writer)
            await anyio.wait_all_tasks_blocked()
            raw.close()
    assert sorted(woken) == ["reader", "writer"]
    assert raw.closed
    raw.close()
    for use in (raw.receive(), raw.send(b"x"), raw.half_close()):
        with pytest.raises(EngineUnavailable, match="closed on this side"):
            await use
    done.set()


def test_close_after_the_loop_has_ended(anyio_backend_name: str) -> None:
    """A connection may outlive its event loop, in a synchronous program's last lines; it still closes."""
    kept: list[Hijacked] = []

    async def main() -> None:
        async with ScriptedEngine.on(Path()) as fake:
            fake.script("POST", "/raw", echo)
            kept.append(await attached(fake))

    anyio.run(main, backend=anyio_backend_name)
    kept[0].close()
    assert kept[0].closed


async def test_receive_now(fake: ScriptedEngine) -> None:
    async def early(connection: Connection, request: Request) -> None:
        await connection.send(UPGRADED + b"glued")
        await connection.send(await connection.receive())

    fake.script("POST", "/raw", early)
    raw = await attached(fake)
    assert raw.receive_now() == b"glued"
    assert raw.receive_now() is None
    await raw.send(b"next")
    assert await raw.receive() == b"next"
    raw.close()


async def test_the_engine_vanishes(fake: ScriptedEngine) -> None:
    async def vanishes(connection: Connection, request: Request) -> None:
        await connection.send(UPGRADED + b"x")
        connection.sock.close()

    fake.script("POST", "/raw", vanishes)
    raw = await attached(fake)
    assert await raw.receive() == b"x"
    assert await raw.receive() == b""
    with pytest.raises(EngineUnavailable, match=r"POST /raw broke: .*Broken pipe") as caught:
        await raw.send(b"x")
    assert caught.value.sent
    raw.close()


async def test_every_read_lets_others_run_first(fake: ScriptedEngine) -> None:
    """Also when the bytes are there already: a fast sender must not hold up the event loop."""

    async def sends_all(connection: Connection, request: Request) -> None:
        await connection.send(UPGRADED + b"early")
        await connection.send(b"x" * 100_000, in_one_read=False)
        sent.set()

    sent = anyio.Event()
    fake.script("POST", "/raw", sends_all)
    raw = await attached(fake)
    await sent.wait()
    for expected in (b"early", b"x" * 100_000, b""):
        outcome = await cancelled_at(1000, raw.receive)
        assert outcome.value == expected
        assert outcome.suspensions >= 1
    raw.close()


# Over TLS


def server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "server.pem", TLS / "server-key.pem")
    context.load_verify_locations(TLS / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    return context


@asynccontextmanager
async def tls_engine() -> AsyncGenerator[str, None]:
    """An engine on TCP with TLS and client certificates; its raw connections send everything back."""
    from anyio.streams.tls import TLSListener

    async def serve(stream: anyio.abc.ByteStream) -> None:
        async with stream:
            head = b""
            while b"\r\n\r\n" not in head:
                head += await stream.receive()
            if b"/_ping" in head:
                await stream.send(b"HTTP/1.1 200 OK\r\nApi-Version: 1.44\r\nContent-Length: 2\r\n\r\nOK")
                return
            await stream.send(UPGRADED + b"early")
            try:
                async for data in stream:
                    await stream.send(data)
            except (anyio.BrokenResourceError, anyio.EndOfStream):
                pass

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    secure = TLSListener(listener, server_context(), standard_compatible=False)
    async with anyio.create_task_group() as group:
        group.start_soon(secure.serve, serve)
        yield f"tcp://localhost:{port}"
        group.cancel_scope.cancel()
    await listener.aclose()


TRUSTED = {"DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": str(TLS)}


async def test_over_tls() -> None:
    async with tls_engine() as url:
        raw = await Engine(url, environ=TRUSTED).upgrade("POST", "/raw")
        try:
            message = bytes(range(256)) * 8192
            got = await raw.receive()
            assert got == b"early"
            got = b""

            async def send() -> None:
                await raw.send(message)
                await raw.send(b"end")

            async with anyio.create_task_group() as group:
                group.start_soon(send)
                while len(got) < len(message) + 3:
                    got += await raw.receive()
            assert got == message + b"end"
            with pytest.raises(CapabilityNotSupported, match="one direction"):
                await raw.half_close()
        finally:
            raw.close()


async def test_over_tls_a_cancelled_sender_leaves_its_rest() -> None:
    async with tls_engine() as url:
        raw = await Engine(url, environ=TRUSTED).upgrade("POST", "/raw")
        try:
            assert await raw.receive() == b"early"
            with anyio.move_on_after(0.2) as scope:
                await raw.send(b"a" * (16 << 20))  # nobody reads what comes back, so it must get stuck
            assert scope.cancelled_caught
            assert raw.unsent
            got = 0

            async def send() -> None:
                await raw.send(b"end")

            async with anyio.create_task_group() as group:
                group.start_soon(send)
                tail = b""
                while got < (16 << 20) + 3:
                    with anyio.move_on_after(0.0005):
                        data = await raw.receive()
                        got += len(data)
                        tail = (tail + data)[-4:]
            assert tail == b"aend"
        finally:
            raw.close()


async def test_tls_without_verification() -> None:
    async with tls_engine() as url:
        engine = Engine(url.replace("localhost", "127.0.0.1"), environ={"DOCKER_CERT_PATH": str(TLS)})
        assert (await engine.negotiate()).used == "1.44"


@pytest.mark.parametrize("side", ["plain client", "no client certificate", "unknown ca"])
async def test_tls_that_does_not_fit(side: str, tmp_path: Path) -> None:
    environ = {
        "plain client": {},
        "no client certificate": {"DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": str(tmp_path)},
        "unknown ca": {"DOCKER_TLS_VERIFY": "1", "DOCKER_CONFIG": str(tmp_path)},
    }[side]
    if side == "no client certificate":
        (tmp_path / "ca.pem").write_bytes((TLS / "ca.pem").read_bytes())
    async with tls_engine() as url:
        with anyio.fail_after(5):
            with pytest.raises(EngineUnavailable) as caught:
                await Engine(url, environ=environ).negotiate()
    if side == "unknown ca":
        assert "CERTIFICATE_VERIFY_FAILED" in caught.value.message
        assert "DOCKER_CERT_PATH" in caught.value.hint

"""Connections of our own: whole answers however they are cut, reuse, silence, TLS, and cancellation."""

from __future__ import annotations

import gzip
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.abc
import anyio.lowlevel
import httpx
import pytest

from sandboxio_e2b import connection, transport
from sandboxio_e2b.connection import Broken, Silent, Wire
from sandboxio_e2b.envd import ProcessStream
from sandboxio_e2b.failures import message_of
from sandboxio_e2b.interpreter import CellStream
from sandboxio_e2b.transport import Client, Exchange
from sandboxio_e2b.wire import frame
from tests.fakes.server import Connection, Request, Server, answer, listen_tcp, running
from tests.fakes.sweep import Outcome, cancelled_at, sweep

TLS = Path(__file__).parent / "tls"
CHUNKED = (
    b"HTTP/1.1 103 Early Hints\r\n\r\n"
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: text/plain\r\n\r\n"
    b"3;x=1\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
)


class Scripted(Server):
    """Answers each request with the next script; the last one serves all that follow."""

    def __init__(self, *scripts: Callable[[Connection, Request], Awaitable[None]]) -> None:
        super().__init__(self._play, listen_tcp())
        self._scripts = list(scripts)

    async def _play(self, connection: Connection, request: Request) -> None:
        await (self._scripts.pop(0) if len(self._scripts) > 1 else self._scripts[0])(connection, request)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.address[1]}"

    async def all_closed(self) -> None:
        with anyio.fail_after(10):
            while self.open:
                await anyio.lowlevel.checkpoint()


def sends(*pieces: bytes, end: bool = True) -> Callable[[Connection, Request], Awaitable[None]]:
    async def script(connection: Connection, request: Request) -> None:
        for piece in pieces:
            await connection.send(piece)
        if not end:
            await connection.until_closed()

    return script


def trickles(*pieces: bytes) -> Callable[[Connection, Request], Awaitable[None]]:
    """As ``sends``, for clients that may go away: a reset connection never says that it was read."""

    async def script(connection: Connection, request: Request) -> None:
        for piece in pieces:
            await connection.send(piece, in_one_read=False)
            await anyio.sleep(0.002)

    return script


async def resets(connection: Connection, request: Request) -> None:
    connection.reset()


@asynccontextmanager
async def served(
    *scripts: Callable[[Connection, Request], Awaitable[None]], reuse: bool = False
) -> AsyncGenerator[tuple[Scripted, Client]]:
    server = Scripted(*scripts)
    async with running(server):
        client = Client(server.url + "/base/", {"X-Key": "k"}, reuse=reuse)
        try:
            yield server, client
        finally:
            client.close()
        await server.all_closed()


@pytest.mark.parametrize("whole", [CHUNKED, answer(200, b"abcde"), b"HTTP/1.1 200 OK\r\n\r\nabcde"])
async def test_an_answer_is_whole_however_it_is_cut(whole: bytes) -> None:
    cuts = range(1, len(whole))
    scripts = [sends(whole[:cut], whole[cut:]) for cut in cuts]
    async with served(*scripts) as (_, client):
        for cut in cuts:
            response = await client.request("GET", "/x")
            assert (response.status_code, response.content) == (200, b"abcde"), f"cut at {cut}"


async def test_what_is_sent() -> None:
    async with served(sends(answer(200))) as (server, client):
        await client.request(
            "POST", "/a/b", params={"path": "é \udcff&=/"}, json={"a": 1}, headers={"X": "y"}
        )
    (request,) = server.requests
    assert str(request) == "POST /base/a/b"
    assert request.raw_query == {"path": "é ".encode() + b"\xff&=/"}
    assert request.json == {"a": 1}
    assert (request.headers["x-key"], request.headers["x"]) == ("k", "y")
    assert request.headers["accept-encoding"] == "identity"


async def test_an_answer_before_the_body_is_taken() -> None:
    """A refusal of a long upload: the rest cannot be sent, and the answer says why."""

    async def content() -> AsyncIterator[bytes]:
        for _ in range(200):
            yield b"x" * 65536

    async def refuses(connection: Connection, request: Request) -> None:
        await connection.send(answer(507, {"message": "no space"}), in_one_read=False)
        connection.end_sending()
        await connection.until_closed()

    server = Scripted(refuses)
    server.heads_only = lambda request: True  # type: ignore[method-assign]
    async with running(server):
        client = Client(server.url, {}, reuse=False)
        with client.exchange("POST", "/files", content=content()) as exchange:
            response = await exchange.response()
        assert response.status_code == 507


@pytest.mark.parametrize(
    "script",
    [
        sends(),
        sends(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab"),
        sends(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab"),
        sends(b"SSH-2.0-OpenSSH\r\n"),
        sends(b"\0" * 100),
        resets,
    ],
    ids=["nothing", "short", "cut", "another protocol", "zeros", "reset"],
)
async def test_an_answer_that_breaks_off_is_typed(
    script: Callable[[Connection, Request], Awaitable[None]],
) -> None:
    async with served(script) as (_, client):
        with pytest.raises(Broken):
            await client.request("GET", "/x")


async def test_an_answer_that_never_ends_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MAX_ANSWER", 1000)
    async with served(sends(answer(200, b"x" * 2000))) as (_, client):
        with pytest.raises(Broken, match="longer than"):
            await client.request("GET", "/x")


@pytest.mark.parametrize("body", [gzip.compress(bytes(64 << 20)), b"{}"])
async def test_a_packed_answer_is_not_unpacked(body: bytes) -> None:
    """Nobody asked for one: 64 KB of it may stand for 64 MiB, and a file would be saved as it came."""
    packed = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    async with served(trickles(packed)) as (_, client):
        with pytest.raises(Broken, match="which was not asked for"):
            await client.request("GET", "/")


@pytest.mark.parametrize("charset", ["hex", "utf-16", "undefined", "none"])
async def test_an_answer_is_utf_8_whatever_it_says(charset: str) -> None:
    kind = f"HTTP/1.1 500 No\r\nContent-Type: text/plain; charset={charset}\r\nContent-Length: 3\r\n\r\n"
    async with served(sends(kind.encode() + "no\xff".encode("latin-1"))) as (_, client):
        assert message_of(await client.request("GET", "/")) == "no\ufffd"


@pytest.mark.parametrize(
    ("stream", "kind", "piece", "last"),
    [
        (CellStream, "", b'{"type":"keepalive"}\n', b'{"type":"end_of_execution"}\n'),
        (CellStream, "", b'{"type":"result","text":""}\n', b'{"type":"end_of_execution"}\n'),
        (ProcessStream, "application/connect+json", frame({"event": {"keepalive": {}}}), b"\2\0\0\0\2{}"),
    ],
)
async def test_a_flood_that_holds_no_output_lets_others_run(
    monkeypatch: pytest.MonkeyPatch,
    stream: Callable[[Exchange], CellStream | ProcessStream],
    kind: str,
    piece: bytes,
    last: bytes,
) -> None:
    """Else no deadline passes, and no other task runs, for as long as it comes faster than it is read."""
    monkeypatch.setattr(connection, "READ_SIZE", 64)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n\r\n".encode()
    async with served(sends(head, piece * 1000 + last)) as (_, client), anyio.create_task_group() as group:
        with client.exchange("POST", "/") as exchange:
            await exchange.head()
            await anyio.sleep(0.05)  # all of it is there now
            group.start_soon(others)
            await anyio.lowlevel.checkpoint()
            before = turns
            assert await stream(exchange).receive() is None
        assert turns - before > 100
        group.cancel_scope.cancel()


async def test_silence_is_typed() -> None:
    async with served(sends(b"HTTP/1.1 200 OK\r\n", end=False)) as (_, client):
        with pytest.raises(Silent, match=r"0\.05 s"):
            await client.request("GET", "/x", read_timeout=0.05)


async def test_what_is_no_host_name_is_typed() -> None:
    for host in ("a..example", "x" * 64 + ".example"):
        with pytest.raises(Broken, match=host):
            await Client(f"http://{host}", {}, reuse=False).request("GET", "/")


async def test_a_closed_port_is_typed() -> None:
    listener = listen_tcp()
    port = listener.getsockname()[1]
    listener.close()
    with pytest.raises(Broken, match=f"127.0.0.1:{port}"):
        await Client(f"http://127.0.0.1:{port}", {}, reuse=False).request("GET", "/x")


async def test_a_host_that_does_not_answer_is_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "CONNECT_TIMEOUT", 0.1)
    full = listen_tcp()
    full.listen(0)
    url = httpx.URL("http://{}:{}".format(*full.getsockname()))
    wires: list[Wire] = []
    try:
        with pytest.raises(Silent, match="no connection to"):
            await _fill(url, wires)
    finally:
        for wire in wires:
            wire.close()
        full.close()


async def _fill(url: httpx.URL, wires: list[Wire]) -> None:
    """Connect until the queue of pending connections is full."""
    for _ in range(10):
        wires.append(await connection.connect(url))  # noqa: PERF401 - what was made counts when one fails


# Reuse


@asynccontextmanager
async def keeping_alive(
    serve: Callable[[anyio.abc.SocketStream, int], Awaitable[None]],
) -> AsyncGenerator[tuple[Client, list[int]]]:
    """A server that serves any number of requests a connection; the list has its connections' numbers."""
    accepted: list[int] = []

    async def handle(stream: anyio.abc.SocketStream) -> None:
        number = len(accepted)
        accepted.append(number)
        async with stream:
            try:
                await serve(stream, number)
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                return

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        async with anyio.create_task_group() as group:
            group.start_soon(listener.serve, handle)
            client = Client(f"http://127.0.0.1:{port}", {}, reuse=True)
            try:
                yield client, accepted
            finally:
                client.close()
                group.cancel_scope.cancel()


async def answers_all(stream: anyio.abc.SocketStream, number: int) -> None:
    while await stream.receive():
        await stream.send(answer(200, b"%d" % number))


async def test_a_connection_serves_again() -> None:
    async with keeping_alive(answers_all) as (client, accepted):
        for _ in range(5):
            assert (await client.request("GET", "/x")).content == b"0"
        assert accepted == [0]


async def test_a_connection_that_ended_while_idle_is_not_used() -> None:
    async def once(stream: anyio.abc.SocketStream, number: int) -> None:
        await stream.receive()
        await stream.send(answer(200, b"%d" % number))

    async with keeping_alive(once) as (client, accepted):
        for number in range(3):
            assert (await client.request("GET", "/x")).content == b"%d" % number
            with anyio.fail_after(10):
                while client._idle and client._idle[-1].reusable:
                    await anyio.lowlevel.checkpoint()
        assert accepted == [0, 1, 2]


async def test_a_connection_that_was_idle_for_long_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with keeping_alive(answers_all) as (client, accepted):
        await client.request("GET", "/x")
        monkeypatch.setattr(connection, "IDLE_SECONDS", 0.0)
        await client.request("GET", "/x")
        assert accepted == [0, 1]


async def test_a_connection_with_unasked_bytes_is_not_used() -> None:
    async def chatty(stream: anyio.abc.SocketStream, number: int) -> None:
        await stream.receive()
        await stream.send(answer(200, b"%d" % number) + b"HTTP/1.1 200 OK\r\n\r\nsmuggled")
        await anyio.sleep_forever()

    async with keeping_alive(chatty) as (client, accepted):
        for number in range(2):
            assert (await client.request("GET", "/x")).content == b"%d" % number
        assert accepted == [0, 1]


async def test_a_closed_client_keeps_no_connection() -> None:
    async with keeping_alive(answers_all) as (client, _):
        exchange = client.exchange("GET", "/x")
        await exchange.head()
        client.close()
        await exchange.response()
        assert client._idle == []


async def test_closing_wakes_whoever_waits() -> None:
    outcome: list[Exception] = []

    async def wait(exchange: transport.Exchange) -> None:
        try:
            await exchange.response()
        except Broken as error:
            outcome.append(error)

    async with served(sends(end=False)) as (server, client):
        exchange = client.exchange("GET", "/x")
        async with anyio.create_task_group() as group:
            group.start_soon(wait, exchange)
            with anyio.fail_after(10):
                while not server.requests:
                    await anyio.lowlevel.checkpoint()
            exchange.close()
    assert len(outcome) == 1


# TLS


@asynccontextmanager
async def encrypted(monkeypatch: pytest.MonkeyPatch, *, trusted: bool = True) -> AsyncGenerator[Client]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "server.pem", TLS / "server-key.pem")
    ours = ssl.create_default_context(cafile=str(TLS / "ca.pem") if trusted else None)
    monkeypatch.setattr(connection, "tls_context", lambda: ours)

    async def handle(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            try:
                secure = await anyio.streams.tls.TLSStream.wrap(
                    stream, server_side=True, ssl_context=context, standard_compatible=False
                )
                while await secure.receive():
                    await secure.send(answer(200, b"x" * 200_000))
            except (anyio.EndOfStream, anyio.BrokenResourceError, ssl.SSLError):
                return

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        async with anyio.create_task_group() as group:
            group.start_soon(listener.serve, handle)
            client = Client(f"https://127.0.0.1:{port}", {}, reuse=True)
            try:
                yield client
            finally:
                client.close()
                group.cancel_scope.cancel()


async def test_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    async with encrypted(monkeypatch) as client:
        for _ in range(3):
            assert len((await client.request("GET", "/x")).content) == 200_000
        assert len(client._idle) == 1, "an encrypted connection serves again"


async def test_a_certificate_of_nobody_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with encrypted(monkeypatch, trusted=False) as client:
        with pytest.raises(Broken, match="certificate is not accepted"):
            await client.request("GET", "/x")


# Cancellation


@pytest.mark.parametrize("how", ["scope", "task"])
async def test_nothing_is_left_wherever_a_request_is_cancelled(how: str) -> None:
    pieces = [answer(200, b"y" * 10)[at : at + 20] for at in range(0, 100, 20)]
    async with served(trickles(*pieces)) as (server, client):

        async def check(outcome: Outcome[httpx.Response]) -> None:
            await server.all_closed()

        hit = await sweep(lambda: client.request("POST", "/x", json={"a": 1}), check, how)  # type: ignore[arg-type]
        assert hit >= 4


@pytest.mark.parametrize("how", ["scope", "task"])
async def test_nothing_is_left_wherever_an_encrypted_request_is_cancelled(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with encrypted(monkeypatch) as client:

        async def check(outcome: Outcome[httpx.Response]) -> None:
            assert outcome.cancelled or outcome.value is not None
            assert len(client._idle) <= 1
            client.close()
            client._closed = False

        hit = await sweep(lambda: client.request("GET", "/x"), check, how)  # type: ignore[arg-type]
        assert hit >= 4


async def test_a_cancelled_exchange_goes_on_where_it_was() -> None:
    """The request is sent once, and no byte of the answer is lost, wherever it is cancelled."""
    pieces = [answer(201, {"sandboxID": "i1"})[at : at + 30] for at in range(0, 150, 30)]
    point = 0
    while True:
        async with served(trickles(*pieces)) as (server, client):
            with client.exchange("POST", "/x", json={"a": 1}) as exchange:
                outcome = await cancelled_at(point, exchange.response)
                response = await exchange.response()
            assert response.json() == {"sandboxID": "i1"}
            assert len(server.requests) == 1
        if not outcome.cancelled:
            break
        point += 1
    assert point >= 4

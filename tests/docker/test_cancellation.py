"""Cancelling the engine client at every await: no connection stays open, no byte goes wrong, it comes out.

Each operation is cancelled at its 0th, 1st, 2nd, ... suspension until it ends by itself, with a cancel scope
and, on asyncio, with ``Task.cancel``. The last tests break the client on purpose and show that this sees it.
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import anyio
import anyio.lowlevel
import pytest

from sandboxio.testing.suite.comparing import difference
from sandboxio_docker.engine import Engine, EngineError
from sandboxio_docker.pull import pull
from sandboxio_docker.reference import parse_reference
from sandboxio_docker.wire import Wire
from tests.fakes.engine import FakeEngine
from tests.fakes.scripted import sends
from tests.fakes.server import Connection, Request, answer, listen_unix
from tests.fakes.sweep import Outcome, cancelled_at, sweep

How = Literal["scope", "task"]

BODY = {"Image": "python:3.12-slim", "OpenStdin": True, "StdinOnce": True, "HostConfig": {"AutoRemove": True}}


@pytest.fixture
async def fake(tmp_path: Path) -> AsyncGenerator[FakeEngine, None]:
    async with FakeEngine.on(tmp_path) as fake:
        yield fake


@pytest.fixture(params=["scope", "task"])
def how(request: pytest.FixtureRequest) -> How:
    return request.param  # type: ignore[no-any-return]


async def negotiate(engine: Engine) -> Any:
    return (await engine.negotiate()).used


async def get_json(engine: Engine) -> Any:
    return await engine.get_json("/containers/json")


async def refused(engine: Engine) -> Any:
    try:
        await engine.get_json("/containers/nope/json")
    except EngineError as error:
        return str(error)[:40]


async def upload(engine: Engine) -> Any:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(3):
            await anyio.lowlevel.checkpoint()
            yield b"x" * 300_000

    response = await engine.request("PUT", "/upload", content=pieces())
    return response.content


async def stream(engine: Engine) -> Any:
    got = b""
    async with engine.stream("GET", "/pieces") as answered:
        async for piece in answered:
            got += piece
    return got


async def upgrade(engine: Engine) -> Any:
    raw = await engine.upgrade("POST", "/raw")
    try:
        got = b""
        await raw.send(b"y" * 500_000)
        await raw.half_close()
        while data := await raw.receive():
            got += data
        return got
    finally:
        raw.close()


async def pulled(engine: Engine) -> Any:
    await pull(engine, parse_reference("python:3.12-slim"))
    return "there"


async def two_versions(engine: Engine) -> Any:
    """The negotiation with an engine that says nothing in /_ping: one request more."""
    return await get_json(engine)


OPERATIONS: dict[str, tuple[Callable[[Engine], Awaitable[Any]], Any]] = {
    "negotiate": (negotiate, "1.45"),
    "get_json": (get_json, []),
    "refused": (refused, "[SBX_E1202] The engine refused GET /cont"),
    "upload": (upload, b"900000"),
    "stream": (stream, b"abc"),
    "upgrade": (upgrade, b"500000"),
    "pull": (pulled, "there"),
    "two_versions": (two_versions, []),
}


def prepare(fake: FakeEngine, name: str) -> None:
    async def raw(connection: Connection, request: Request) -> None:
        await connection.send(b"HTTP/1.1 101 UPGRADED\r\nUpgrade: tcp\r\nConnection: Upgrade\r\n\r\n")
        got = await connection.until_closed()
        await connection.send(str(len(got)).encode())

    async def count(connection: Connection, request: Request) -> None:
        await connection.send(answer(200, str(len(request.body)).encode()))

    fake.script("POST", "/raw", raw)
    fake.script("PUT", "/upload", count)
    fake.script("GET", "/pieces", sends(b"HTTP/1.1 200 OK\r\n", b"\r\na", b"b", b"c"))
    fake.script("POST", "/images/create", sends(b"HTTP/1.1 200 OK\r\n\r\n", b'{"status"', b':"done"}'))
    if name == "two_versions":
        fake.script("GET", "/_ping", sends(answer(200, b"OK")))


@pytest.mark.parametrize("name", OPERATIONS)
async def test_the_sweep(fake: FakeEngine, name: str, how: How) -> None:
    operation, right = OPERATIONS[name]
    fake.pieces = 3
    prepare(fake, name)

    async def check(outcome: Outcome[Any]) -> None:
        await fake.all_closed()
        assert outcome.cancelled or outcome.value == right, outcome

    points = await sweep(lambda: operation(Engine(fake.url, environ={})), check, how)
    assert points >= 2, "a sweep that cancels nothing proves nothing"


async def test_a_cancelled_create_is_finished_and_leaves_nothing(fake: FakeEngine, how: How) -> None:
    """Design section 3, rule 3: the same answer is read under a shield, the container removed by id."""
    witness = Engine(fake.url, environ={})
    fake.pieces = 4

    async def create() -> str:
        engine = Engine(fake.url, environ={})  # negotiates each time: more points
        with engine.resumable("POST", "/containers/create", json=BODY) as pending:
            try:
                return str((await pending.finish()).json()["Id"])
            except anyio.get_cancelled_exc_class():
                with anyio.CancelScope(shield=True):
                    if pending.sent:
                        cid = (await pending.finish()).json()["Id"]
                        await engine.request("DELETE", f"/containers/{cid}", params={"force": True})
                raise

    async def check(outcome: Outcome[str]) -> None:
        await fake.all_closed()
        if outcome.cancelled:
            assert not fake.containers, outcome
        else:
            assert list(fake.containers) == [outcome.value]
            await witness.request("DELETE", f"/containers/{outcome.value}")

    assert await sweep(create, check, how) >= 8
    assert len(fake.asked("create")) >= 4


async def test_each_byte_is_sent_once_whoever_is_cancelled(fake: FakeEngine, how: How) -> None:
    """A cancelled sender leaves its rest; the next one finishes it first, so the framing stays whole."""
    got = b""

    async def slowly(connection: Connection, request: Request) -> None:
        nonlocal got
        await connection.send(b"HTTP/1.1 101 UPGRADED\r\nUpgrade: tcp\r\nConnection: Upgrade\r\n\r\n")
        while data := await connection.receive():
            got += data
            await anyio.sleep(0.0005)

    fake.script("POST", "/raw", slowly)
    raw = await Engine(fake.url, environ={}).upgrade("POST", "/raw")
    cut = 0
    with closing(raw):
        for number in range(60):
            message = bytes([number]) * (100_000 + number)
            await cancelled_at(random.randrange(4), lambda m=message: raw.send(m), how)  # type: ignore[misc]
            cut += raw.unsent > 0
        await raw.send(b"end")
    await fake.all_closed()
    assert cut, "no sender was cancelled in the middle"
    assert got.endswith(b"end")
    rest = got[:-3]
    while rest:
        length = 100_000 + rest[0]
        assert rest[:length] == bytes([rest[0]]) * length, "a message is damaged"
        rest = rest[length:]


async def test_no_received_byte_is_lost(fake: FakeEngine, how: How) -> None:
    stream = b"".join(number.to_bytes(4, "big") for number in range(50_000))

    async def sender(connection: Connection, request: Request) -> None:
        await connection.send(
            b"HTTP/1.1 101 UPGRADED\r\nUpgrade: tcp\r\nConnection: Upgrade\r\n\r\n" + stream[:777]
        )
        for start in range(777, len(stream), 999):
            await connection.send(stream[start : start + 999], in_one_read=False)

    fake.script("POST", "/raw", sender)
    raw = await Engine(fake.url, environ={}).upgrade("POST", "/raw")
    got, cancelled = b"", 0
    with closing(raw):
        while True:
            outcome = await cancelled_at(random.randrange(4), raw.receive, how)
            cancelled += outcome.cancelled
            if not outcome.cancelled:
                got += outcome.value or b""
                if not outcome.value:
                    break
    assert not difference(got, stream)
    assert cancelled > 3


async def test_case_31_a_storm_of_cancels(fake: FakeEngine) -> None:
    engine = Engine(fake.url, environ={})
    fake.script("GET", "/slow", sends(b"HTTP/1.1 200 OK\r\n", b"Content-Length: 2\r\n\r\n", b"o", b"k"))

    async def loop() -> None:
        for _ in range(40):
            with anyio.move_on_after(random.uniform(0, 0.02)):
                assert (await engine.request("GET", "/slow")).content == b"ok"

    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(loop)
    await fake.all_closed()
    with anyio.fail_after(2):
        assert (await engine.request("GET", "/slow")).content == b"ok"


async def test_case_33_streams_do_not_hold_up_other_calls(fake: FakeEngine) -> None:
    engine = Engine(fake.url, environ={})
    fake.script("GET", "/silent", sends(b"HTTP/1.1 200 OK\r\n\r\n", end=False))
    running = 0
    all_run = anyio.Event()

    async def listen() -> None:
        nonlocal running
        async with engine.stream("GET", "/silent") as answered:
            running += 1
            if running == 300:
                all_run.set()
            await answered.receive()

    async with anyio.create_task_group() as group:
        for _ in range(300):
            group.start_soon(listen)
        with anyio.fail_after(10):
            await all_run.wait()
        with anyio.fail_after(3):
            cid = (await engine.post_json("/containers/create", BODY))["Id"]
            await engine.get_json(f"/containers/{cid}/json")
            await engine.request("DELETE", f"/containers/{cid}")
        assert len(fake.open) >= 300
        group.cancel_scope.cancel()
    await fake.all_closed()


async def test_a_full_queue_of_connections(tmp_path: Path) -> None:
    """The engine does not accept for a while; Linux says EAGAIN, and nothing but time helps."""
    path = Path("/tmp") / f"sbx-full-{tmp_path.name}-{random.randrange(10**9)}.sock"
    listener = listen_unix(path)
    listener.listen(0)
    engine = Engine(f"unix://{path}", environ={})
    done: list[str] = []

    async def ask() -> None:
        done.append((await engine.negotiate()).used)

    try:
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(ask)
            await anyio.sleep(0.05)  # time passes: no event tells that a connect is refused
            for _ in range(5):
                await anyio.wait_readable(listener)
                sock, _ = listener.accept()
                with sock:
                    sock.setblocking(False)
                    await anyio.wait_readable(sock)
                    sock.recv(1000)
                    sock.send(answer(200, b"OK", {"Api-Version": "1.44"}))
    finally:
        listener.close()
        path.unlink()
    assert done == ["1.44"] * 5


# Would the tests above see it?


async def test_without_the_synchronous_close_the_sweep_fails(
    fake: FakeEngine, how: How, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[Wire] = []
    really_close = Wire.close

    def forgets(self: Wire) -> None:
        kept.append(self)

    monkeypatch.setattr(Wire, "close", forgets)
    fake.patience = 0.2

    async def check(outcome: Outcome[Any]) -> None:
        await fake.all_closed()

    try:
        with pytest.raises(AssertionError, match="still open"):
            await sweep(lambda: get_json(Engine(fake.url, environ={})), check, how)
    finally:
        for wire in kept:
            really_close(wire)


async def test_a_client_that_forgets_its_rest_is_seen(
    fake: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sandboxio_docker.hijack import Hijacked

    async def forgetful(self: Hijacked, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[await self._wire.send_some(view) :]

    monkeypatch.setattr(Hijacked, "send", forgetful)
    with pytest.raises(AssertionError, match=r"damaged|end"):
        await test_each_byte_is_sent_once_whoever_is_cancelled(fake, "scope")


async def test_a_client_that_awaits_between_read_and_return_is_seen(
    fake: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = Wire.receive_some

    async def sloppy(self: Wire) -> bytes:
        data = await really(self)
        await anyio.lowlevel.checkpoint()
        return data

    monkeypatch.setattr(Wire, "receive_some", sloppy)
    with pytest.raises(AssertionError):
        await test_no_received_byte_is_lost(fake, "scope")


async def test_a_delete_by_name_would_leave_the_container(fake: FakeEngine) -> None:
    """Why the answer is read on: the engine creates after the cancellation, when a DELETE finds nothing."""
    engine = Engine(fake.url, environ={})
    with fake.gate("create", "before") as gate:
        async with anyio.create_task_group() as group:
            group.start_soon(engine.post_json, "/containers/create", BODY)
            await gate.reached.wait()
            group.cancel_scope.cancel()
        fake.fail("delete", 404, "No such container: n")
        with pytest.raises(Exception, match="No such container"):
            await engine.request("DELETE", "/containers/n")
    await fake.all_closed()
    assert len(fake.containers) == 1

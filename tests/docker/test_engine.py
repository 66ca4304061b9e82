"""The engine client: what it sends, which version it speaks, and how a cancelled request is finished."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from sandboxio.errors import ConfigurationError
from sandboxio_docker.engine import LEAST_API, NEWEST_API, Engine, EngineError, EngineUnavailable, Fault
from tests.fakes.scripted import ScriptedEngine, hangs, sends
from tests.fakes.server import Connection, Request, answer


@pytest.fixture
async def fake(tmp_path: Path) -> AsyncGenerator[ScriptedEngine, None]:
    async with ScriptedEngine.on(tmp_path) as fake:
        yield fake


@pytest.fixture
def engine(fake: ScriptedEngine) -> Engine:
    return Engine(fake.url, environ={})


# Requests


async def test_what_a_request_looks_like(fake: ScriptedEngine, engine: Engine) -> None:
    fake.script("POST", "/containers/create", sends(answer(201, {"Id": "c1", "Warnings": []})))
    body = {"Image": "é:1", "Env": ["A=\udcff"]}
    created = await engine.post_json("/containers/create", body, params={"name": "n", "platform": None})
    assert created["Id"] == "c1"
    request = fake.requests[-1]
    assert request.target == "/v1.45/containers/create?name=n"
    assert request.json == body
    assert request.headers["host"] == "docker"
    assert request.headers["connection"] == "close"
    assert request.headers["content-type"] == "application/json"


async def test_parameters(fake: ScriptedEngine, engine: Engine) -> None:
    fake.script("GET", "/containers/json", sends(answer(200, [])))
    params = {
        "all": True,
        "size": False,
        "limit": 3,
        "filters": {"label": ["a=b&c", "é"]},
        "path": "/a b/\udcff?#%",
        "none": None,
    }
    assert await engine.get_json("/containers/json", params=params) == []
    sent = fake.requests[-1].raw_query
    assert sent["all"] == b"1"
    assert sent["size"] == b"0"
    assert sent["limit"] == b"3"
    assert sent["path"] == b"/a b/\xff?#%"
    assert '"label": ["a=b&c", "\\u00e9"]' in sent["filters"].decode()
    assert "none" not in sent


@pytest.mark.parametrize(
    "path",
    [
        "/containers//json",
        "/containers/../images/json",
        "/a/./b",
        "/a/..",
        "x",
        "/a b",
        "/a\n",
        "/a/",
        "/\0",
        pytest.param("/containers/" + 70_000 * "f", id="long"),
    ],
)
async def test_an_id_cannot_change_the_path(fake: ScriptedEngine, engine: Engine, path: str) -> None:
    await engine.negotiate()
    with pytest.raises(ConfigurationError, match="not a path"):
        await engine.get_json(path)
    assert [str(request) for request in fake.requests] == ["GET /_ping"]


async def test_what_cannot_be_sent(fake: ScriptedEngine, engine: Engine) -> None:
    await engine.negotiate()
    with pytest.raises(ConfigurationError, match="not text"):
        await engine.get_json("/containers/\ud800/json")
    with pytest.raises(ConfigurationError, match="not text"):
        await engine.get_json("/x", params={"path": "\ud800"})
    with pytest.raises(EngineUnavailable) as caught:
        await engine.request("GET", "/x", headers={"X": "a\r\nInjected: 1"})
    assert not caught.value.sent
    await fake.all_closed()
    assert [str(request) for request in fake.requests] == ["GET /_ping"]


async def test_question_marks_in_an_id_stay_in_the_path(fake: ScriptedEngine, engine: Engine) -> None:
    fake.script(
        "GET", "/containers/a%3Fb%23c%25/json", sends(answer(404, {"message": "No such container: x"}))
    )
    with pytest.raises(EngineError):
        await engine.get_json("/containers/a?b#c%/json")


async def test_a_refusal(fake: ScriptedEngine, engine: Engine) -> None:
    fake.script("GET", "/images/x/json", sends(answer(404, {"message": "No such image: x:latest"})))
    with pytest.raises(EngineError) as caught:
        await engine.get_json("/images/x/json")
    error = caught.value
    assert (error.status, error.fault, error.reason) == (404, Fault.NO_SUCH_IMAGE, "No such image: x:latest")
    assert "GET /images/x/json (HTTP 404): No such image: x:latest" in error.message
    assert error.code == "SBX_E1202"


async def test_a_refusal_is_the_same_for_every_verb(fake: ScriptedEngine, engine: Engine) -> None:
    fake.script("POST", "/x", sends(answer(500, {"message": "boom"}, {"Retry-After": "7"})))
    for call in (engine.request("POST", "/x"), engine.post_json("/x"), engine.upgrade("POST", "/x")):
        with pytest.raises(EngineError, match="boom") as caught:
            await call
        assert caught.value.retry_after == 7.0
    with pytest.raises(EngineError, match="boom"):
        async with engine.stream("POST", "/x"):
            pass
    with engine.resumable("POST", "/x") as pending, pytest.raises(EngineError, match="boom"):
        await pending.finish()
    await fake.all_closed()


async def test_a_redirect_is_a_refusal(fake: ScriptedEngine, engine: Engine) -> None:
    fake.script("GET", "/x", sends(answer(301, b"", {"Location": "/y"})))
    with pytest.raises(EngineError) as caught:
        await engine.get_json("/x")
    assert caught.value.status == 301


async def test_an_answer_that_is_not_json(fake: ScriptedEngine, engine: Engine) -> None:
    fake.script("GET", "/x", sends(answer(200, b"<html>")))
    with pytest.raises(EngineUnavailable, match="not JSON") as caught:
        await engine.get_json("/x")
    assert isinstance(caught.value.__cause__, ValueError)


async def test_an_answer_nested_without_end(fake: ScriptedEngine, engine: Engine) -> None:
    fake.script("GET", "/x", sends(answer(200, b"[" * 100_000)))
    with pytest.raises(EngineUnavailable, match="not JSON"):
        await engine.get_json("/x")


@pytest.mark.parametrize("status", [200, 500])
async def test_an_answer_that_is_compressed(fake: ScriptedEngine, engine: Engine, status: int) -> None:
    """Nobody asked for it, and nothing says how large it is when it is unpacked."""
    fake.script("GET", "/x", sends(answer(status, b"no gzip", {"Content-Encoding": "gzip"})))
    with pytest.raises(EngineUnavailable, match="compressed"):
        await engine.get_json("/x")


@pytest.mark.parametrize("body", [None, [], 5, "x", {}, {"Id": None}, {"Id": 5}, {"Id": ""}])
async def test_an_object_of_another_shape(fake: ScriptedEngine, engine: Engine, body: object) -> None:
    fake.script("GET", "/x", sends(answer(200, body)))
    with pytest.raises(EngineUnavailable, match="shape") as caught:
        await engine.get_object("/x", need="Id")
    assert "DOCKER_HOST" in (caught.value.hint or "")
    assert caught.value.sent


@pytest.mark.parametrize("body", [None, {}, 5, "x", [5], [{}], [{"Id": "a"}, None]])
async def test_a_list_of_another_shape(fake: ScriptedEngine, engine: Engine, body: object) -> None:
    fake.script("GET", "/x", sends(answer(200, body)))
    with pytest.raises(EngineUnavailable, match="shape"):
        await engine.get_list("/x", need="Id")


async def test_an_upgrade_answered_with_a_body(fake: ScriptedEngine, engine: Engine) -> None:
    fake.script("POST", "/x", sends(answer(200, {"not": "raw"})))
    with pytest.raises(EngineUnavailable, match="ordinary body"):
        await engine.upgrade("POST", "/x")
    await fake.all_closed()


# Versions (case 40)


def versioned(newest: str | None, least: str | None) -> tuple[bytes, bytes]:
    """The answers of an engine's /_ping and /version; None leaves the field out."""
    headers = {"Api-Version": newest} if newest is not None else {}
    fields = (
        {"Version": "1"}
        | ({"ApiVersion": newest} if newest else {})
        | ({"MinAPIVersion": least} if least else {})
    )
    return answer(200, b"OK", headers), answer(200, fields)


def serves(fake: ScriptedEngine, newest: str | None, least: str | None) -> None:
    ping, version = versioned(newest, least)
    fake.script("GET", "/_ping", sends(ping))
    fake.script("GET", "/version", sends(version))

    async def only_in_range(connection: Connection, request: Request) -> None:
        asked = tuple(map(int, request.path.split("/")[1][1:].split(".")))
        for limit, wrong, word in ((newest, asked.__gt__, "new"), (least, asked.__lt__, "old")):
            if limit and wrong(tuple(map(int, limit.split(".")))):
                text = f"client version 1 is too {word}. Supported API version is {limit}"
                await connection.send(answer(400, {"message": text}))
                return
        await connection.send(answer(200, {"prefix": request.path.split("/")[1]}))

    fake.script("GET", "/info", only_in_range)


@pytest.mark.parametrize(
    ("newest", "least", "used"),
    [
        ("1.52", "1.44", "1.52"),
        ("1.41", "1.12", "1.41"),
        ("1.43", None, "1.43"),
        ("1.53", "1.44", NEWEST_API),
        ("1.53", None, NEWEST_API),
        ("2.0", "1.44", NEWEST_API),
        ("1.100", "1.44", NEWEST_API),
        (None, None, LEAST_API),
        ("nonsense", None, LEAST_API),
        ("1.9999999", None, LEAST_API),
    ],
)
async def test_case_40_a_version_that_both_speak(
    fake: ScriptedEngine, engine: Engine, newest: str | None, least: str | None, used: str
) -> None:
    serves(fake, newest if newest is None or (newest[0].isdigit() and len(newest) < 6) else None, least)
    fake.script("GET", "/_ping", sends(versioned(newest, least)[0]))
    assert await engine.get_json("/info") == {"prefix": f"v{used}"}
    assert await engine.get_json("/info") == {"prefix": f"v{used}"}
    paths = [request.path for request in fake.requests]
    assert paths.count("/_ping") == 1
    assert all(path.startswith(f"/v{used}/") for path in paths if path not in ("/_ping", "/version"))


async def test_case_40_without_headers_version_says_it(fake: ScriptedEngine, engine: Engine) -> None:
    serves(fake, "1.43", "1.24")
    fake.script("GET", "/_ping", sends(answer(200, b"OK")))
    assert await engine.get_json("/info") == {"prefix": "v1.43"}


@pytest.mark.parametrize(
    ("newest", "least", "words"),
    [
        (
            "1.24",
            "1.12",
            r"too old: it speaks API 1\.24; the least version needed is 1\.41 \(Docker 20\.10\)",
        ),
        ("1.40", None, "too old"),
        ("1.80", "1.60", r"too new: it speaks API 1\.60 and newer"),
        ("2.1", "2.0", "too new"),
    ],
)
async def test_case_40_no_common_version(
    fake: ScriptedEngine, engine: Engine, newest: str, least: str | None, words: str
) -> None:
    serves(fake, newest, least)
    for _ in range(2):
        with pytest.raises(EngineUnavailable, match=words) as caught:
            await engine.get_json("/info")
        assert fake.url in caught.value.message
        assert "pgrade" in caught.value.hint
    assert "/info" not in " ".join(map(str, fake.requests))


@pytest.mark.parametrize("wanted", ["1.44", "v1.44"])
async def test_case_40_the_user_chooses(fake: ScriptedEngine, wanted: str) -> None:
    serves(fake, "1.45", "1.24")
    engine = Engine(fake.url, environ={"DOCKER_API_VERSION": wanted})
    assert await engine.get_json("/info") == {"prefix": "v1.44"}


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ("1.46", r"share 1\.41 to 1\.45"),
        ("1.40", r"share 1\.41 to 1\.45"),
        ("new", "not a version"),
        ("1", "not a version"),
    ],
)
async def test_case_40_the_user_chooses_wrongly(fake: ScriptedEngine, wanted: str, words: str) -> None:
    serves(fake, "1.45", "1.24")
    engine = Engine(fake.url, environ={"DOCKER_API_VERSION": wanted})
    with pytest.raises(ConfigurationError, match=f"DOCKER_API_VERSION.*{words}"):
        await engine.get_json("/info")


async def test_an_engine_replaced_by_another_version(fake: ScriptedEngine, engine: Engine) -> None:
    serves(fake, "1.43", "1.24")
    assert await engine.get_json("/info") == {"prefix": "v1.43"}
    serves(fake, "1.51", "1.44")
    with pytest.raises(EngineError) as caught:
        await engine.get_json("/info")
    assert caught.value.fault is Fault.API_VERSION
    assert await engine.get_json("/info") == {"prefix": "v1.51"}


async def test_what_the_engine_says_of_itself(engine: Engine) -> None:
    versions = await engine.negotiate()
    assert (versions.used, versions.engine, versions.os_type, versions.server) == (
        "1.45",
        "1.45",
        "linux",
        "Fake/1.0",
    )


async def test_many_tasks_negotiate_at_once(fake: ScriptedEngine, engine: Engine) -> None:
    fake.script("GET", "/x", sends(answer(200, 1)))
    results: list[int] = []

    async def ask() -> None:
        results.append(await engine.get_json("/x"))

    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(ask)
    assert results == [1] * 20
    before = len(fake.requests)
    await engine.get_json("/x")
    assert len(fake.requests) == before + 1, "negotiated again"


async def test_a_failed_negotiation_is_not_remembered(fake: ScriptedEngine, engine: Engine) -> None:
    fake.script(
        "GET",
        "/_ping",
        sends(answer(500, {"message": "starting"})),
        sends(answer(200, b"OK", {"Api-Version": "1.45"})),
    )
    fake.script("GET", "/x", sends(answer(200, 1)))
    with pytest.raises(EngineUnavailable, match="starting"):
        await engine.get_json("/x")
    assert await engine.get_json("/x") == 1


# One engine object, several loops and threads


async def test_one_engine_from_two_threads_with_loops_of_their_own(
    fake: ScriptedEngine, engine: Engine, anyio_backend_name: str
) -> None:
    """Both loops of the threads and the one of this test use the same object at the same time."""
    fake.script("GET", "/x", sends(answer(200, 1)))
    results: list[Any] = []

    async def many() -> None:
        results.extend([await engine.get_json("/x") for _ in range(50)])

    threads = [
        threading.Thread(target=anyio.run, args=(many,), kwargs={"backend": backend})
        for backend in ("asyncio", "trio")
    ]
    for thread in threads:
        thread.start()
    await many()
    for thread in threads:
        await anyio.to_thread.run_sync(thread.join, 20)
    assert results == [1] * 150


# Answers that survive a cancellation


async def test_an_answer_is_read_after_the_cancellation(fake: ScriptedEngine, engine: Engine) -> None:
    arrived, go = anyio.Event(), anyio.Event()

    async def slow(connection: Connection, request: Request) -> None:
        arrived.set()
        await go.wait()
        await connection.send(answer(201, {"Id": "c1"})[:30])
        await connection.send(answer(201, {"Id": "c1"})[30:])

    fake.script("POST", "/containers/create", slow)
    with engine.resumable("POST", "/containers/create", json={"Image": "x"}) as pending:
        assert not pending.sent
        async with anyio.create_task_group() as group:
            group.start_soon(pending.finish)
            await arrived.wait()
            group.cancel_scope.cancel()
        assert pending.sent
        go.set()
        response = await pending.finish()
        assert response.json() == {"Id": "c1"}
        assert await pending.finish() is response
    assert len([r for r in fake.requests if r.method == "POST"]) == 1
    await fake.all_closed()


async def test_a_large_body_is_sent_on_after_a_cancellation(fake: ScriptedEngine, engine: Engine) -> None:
    go = anyio.Event()
    got = b""

    async def slow(connection: Connection, request: Request) -> None:
        nonlocal got
        await go.wait()
        while len(got) < int(request.headers["content-length"]):
            got += await connection.receive()
        await connection.send(answer(201, {"Id": "c1"}))

    fake.script("POST", "/x", slow, read_body=False)
    text = "".join(chr(65 + i % 26) for i in range(3 << 20))
    with engine.resumable("POST", "/x", json=text) as pending:
        with anyio.move_on_after(0.05) as scope:
            await pending.finish()
        assert scope.cancelled_caught
        go.set()
        assert (await pending.finish()).json() == {"Id": "c1"}
    assert got == f'"{text}"'.encode()


async def test_nothing_is_due_before_a_byte_was_sent(tmp_path: Path) -> None:
    engine = Engine(f"unix://{tmp_path}/nobody.sock", environ={})
    with engine.resumable("POST", "/containers/create", json={}) as pending:
        with pytest.raises(EngineUnavailable) as caught:
            await pending.finish()
        assert not pending.sent
        assert not caught.value.sent


async def test_a_closed_request_is_not_sent_again(fake: ScriptedEngine, engine: Engine) -> None:
    fake.script("POST", "/x", hangs())
    await engine.negotiate()
    with engine.resumable("POST", "/x") as begun, anyio.move_on_after(0.05):
        await begun.finish()
    with engine.resumable("POST", "/x") as never_begun:
        pass
    await fake.all_closed()
    before = len(fake.requests)
    for pending in (begun, never_begun):
        with pytest.raises(EngineUnavailable, match="POST /x was given up"):
            await pending.finish()
    assert len(fake.requests) == before

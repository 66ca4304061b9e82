"""Pulling an image (case 47): errors inside a successful answer, split messages, interruptions, progress."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, strategies as st

from sandboxio.errors import AuthError, ConfigurationError, CreationError, RateLimitError, SandboxError
from sandboxio_docker.engine import Engine
from sandboxio_docker.pull import JSONObjects, PullProgress, pull
from sandboxio_docker.reference import parse_reference
from tests.fakes.scripted import ScriptedEngine, sends
from tests.fakes.server import Connection, Request, answer

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)


END = b"0\r\n\r\n"
LINES = [
    {"status": "Pulling from library/python", "id": "3.12"},
    {
        "status": "Downloading",
        "progressDetail": {"current": 5, "total": 10},
        "progress": "[=>  ]",
        "id": "a1",
    },
    {"status": 'Odd {"}\\" text é', "progressDetail": {}, "id": "a1"},
    {"status": "Status: Downloaded newer image for python:3.12"},
]


@pytest.fixture
async def fake(tmp_path: Path) -> AsyncGenerator[ScriptedEngine, None]:
    async with ScriptedEngine.on(tmp_path) as fake:
        fake.script("GET", "/images/python:3.12/json", sends(answer(200, {"Id": "sha256:1"})))
        yield fake


async def pulled(fake: ScriptedEngine, text: str = "python:3.12", **options: Any) -> None:
    await pull(Engine(fake.url, environ={}), parse_reference(text), **options)


# The whole pull


async def test_progress(fake: ScriptedEngine) -> None:
    body = b"\r\n".join(json.dumps(line, ensure_ascii=False).encode() for line in LINES)
    fake.script("POST", "/images/create", sends(OK + chunk(body) + END))
    seen: list[PullProgress] = []
    await pulled(fake, platform="linux/amd64", auth="c2VjcmV0", progress=seen.append)
    assert seen == [
        PullProgress("Pulling from library/python", "3.12"),
        PullProgress("Downloading", "a1", 5, 10),
        PullProgress('Odd {"}\\" text é', "a1"),
        PullProgress("Status: Downloaded newer image for python:3.12"),
    ]
    request = fake.requests[1]
    assert request.query == {"fromImage": "python", "tag": "3.12", "platform": "linux/amd64"}
    assert request.headers["x-registry-auth"] == "c2VjcmV0"
    assert str(fake.requests[2]) == "GET /v1.45/images/python:3.12/json"
    await fake.all_closed()


async def test_exactly_one_tag_is_asked_for(fake: ScriptedEngine) -> None:
    fake.script("POST", "/images/create", sends(OK + END))
    fake.script("GET", "/images/localhost:5000/a/b:latest/json", sends(answer(200, {})))
    await pulled(fake, "localhost:5000/a/b")
    assert fake.requests[1].query == {"fromImage": "localhost:5000/a/b", "tag": "latest"}
    assert "x-registry-auth" not in fake.requests[1].headers


async def test_an_id_cannot_be_pulled(fake: ScriptedEngine) -> None:
    with pytest.raises(ConfigurationError, match="is an id"):
        await pulled(fake, "sha256:" + "0" * 64)
    assert not fake.requests


@pytest.mark.parametrize("separator", [b"", b"\n", b"\r\n", b" "])
async def test_case_47_messages_cut_anywhere(fake: ScriptedEngine, separator: bytes) -> None:
    body = separator.join(json.dumps(line, ensure_ascii=False).encode() for line in LINES)
    for cut in range(0, len(body), 3):
        fake.script(
            "POST", "/images/create", sends(OK + chunk(body[:cut]) * bool(cut) + chunk(body[cut:]) + END)
        )
        seen: list[PullProgress] = []
        await pulled(fake, progress=seen.append)
        assert len(seen) == 4, cut


def failing(text: str, **detail: Any) -> bytes:
    last = {"errorDetail": {"message": text, **detail}, "error": text}
    return OK + chunk(json.dumps(LINES[0]).encode(), json.dumps(last).encode()) + END


HUB = "pull access denied for python, repository does not exist or may require 'docker login': denied"


@pytest.mark.parametrize(
    ("raw", "kind", "words", "hint"),
    [
        (failing("manifest unknown"), CreationError, "manifest unknown", "name and tag"),
        (
            failing("manifest for python:3.12 not found: manifest unknown"),
            CreationError,
            "not found",
            "name and tag",
        ),
        (failing(HUB), CreationError, "pull access denied", "docker login"),
        (failing("unauthorized: authentication required"), AuthError, "unauthorized", "docker login"),
        (failing("denied: requested access to the resource is denied"), AuthError, "denied", "docker login"),
        (
            failing("no matching manifest for linux/amd64 in the manifest list entries"),
            CreationError,
            "linux/amd64",
            "architecture",
        ),
        (
            failing("write /var/lib/docker/tmp/x: no space left on device"),
            CreationError,
            "no space",
            "disk space",
        ),
        (
            failing("toomanyrequests: You have reached your pull rate limit."),
            RateLimitError,
            "rate limit",
            "Wait",
        ),
        (failing("x", code=429), RateLimitError, "x", "Wait"),
        (failing("Get https://x/v2/: net/http: request canceled"), CreationError, "request canceled", "log"),
        (OK + chunk(b'{"error": "plain"}') + END, CreationError, "plain", ""),
        (OK + chunk(b'{"errorDetail": {"code": 1}}') + END, CreationError, "no reason", ""),
        (answer(404, {"message": "manifest unknown"}), CreationError, "manifest unknown", "name and tag"),
        (answer(404, {"message": HUB}), CreationError, "pull access denied", "docker login"),
        (answer(401, {"message": "unauthorized"}), AuthError, "unauthorized", "docker login"),
        (
            answer(429, {"message": "toomanyrequests"}, {"Retry-After": "7"}),
            RateLimitError,
            "toomany",
            "Wait",
        ),
        (answer(500, {"message": "no space left on device"}), CreationError, "no space", "disk space"),
        (
            answer(500, {"message": 'Get "https://r.test/v2/": dial tcp: lookup r.test: no such host'}),
            CreationError,
            "no such host",
            "did not reach the registry, or lost it",
        ),
        (
            answer(500, {"message": "Head ...: http: server gave HTTP response to HTTPS client"}),
            CreationError,
            "HTTPS client",
            "insecure-registries",
        ),
        (failing("x509: certificate signed by unknown authority"), CreationError, "x509", "certs.d"),
        (failing("net/http: TLS handshake timeout"), CreationError, "TLS handshake", "certificate"),
        (failing("unexpected EOF"), CreationError, "unexpected EOF", "layers that are complete are kept"),
        (
            failing("received unexpected HTTP status: 503 Service Unavailable"),
            CreationError,
            "503",
            "try again",
        ),
        (
            answer(404, {"message": 'failed to resolve reference "r.test/x:1": r.test/x:1: not found'}),
            CreationError,
            "failed to resolve",
            "name and tag",
        ),
        (
            answer(404, {"message": "no match for platform in manifest: not found"}),
            CreationError,
            "no match for platform",
            "architecture",
        ),
        (
            failing('no image found in image index for architecture amd64, variant "", OS linux'),
            CreationError,
            "no image found",
            "architecture",
        ),
        (answer(500, {"message": "something new"}), CreationError, "something new", "doctor"),
        (answer(400, {"message": "invalid platform"}), CreationError, "invalid platform", ""),
    ],
)
async def test_case_47_refusals(
    fake: ScriptedEngine, raw: bytes, kind: type[SandboxError], words: str, hint: str
) -> None:
    fake.script("POST", "/images/create", sends(raw))
    with pytest.raises(kind, match=words) as caught:
        await pulled(fake)
    assert type(caught.value) is kind
    assert "python:3.12" in caught.value.message
    assert hint in caught.value.hint
    assert caught.value.__cause__ is not None
    assert [request.method for request in fake.requests] == ["GET", "POST"], (
        "nothing is asked after a failure"
    )
    await fake.all_closed()


@pytest.mark.parametrize(
    ("raw", "seconds"),
    [
        (answer(429, b"slow", {"Retry-After": "7"}), 7.0),
        (failing("toomanyrequests: retry-after: 877.3ms, allowed: 44000/minute"), 0.8773),
        (failing("toomanyrequests: retry-after: 2s"), 2.0),
        (failing("toomanyrequests"), None),
    ],
)
async def test_when_to_try_again(fake: ScriptedEngine, raw: bytes, seconds: float | None) -> None:
    fake.script("POST", "/images/create", sends(raw))
    with pytest.raises(RateLimitError) as caught:
        await pulled(fake)
    assert caught.value.retry_after == seconds


@pytest.mark.parametrize(
    "raw",
    [
        OK,
        OK + chunk(json.dumps(LINES[0]).encode()),
        OK + chunk(json.dumps(LINES[0]).encode())[:-4],
        OK + chunk(json.dumps(LINES[0]).encode()[:-4]) + END,
        OK + chunk(b"<html>proxy</html>") + END,
        OK + chunk(b"[1, 2]") + END,
        OK + chunk(b'{"a": nonsense}') + END,
        OK + chunk(b'{"a":' * 100) + END,
        OK + chunk(b"\xff\xfe") + END,
        b"",
    ],
)
async def test_case_47_interruptions(fake: ScriptedEngine, raw: bytes) -> None:
    fake.script("POST", "/images/create", sends(raw))
    with pytest.raises(CreationError, match=r"The pull of python:3\.12 was interrupted") as caught:
        await pulled(fake)
    assert "Try again" in caught.value.hint
    await fake.all_closed()


async def test_an_image_that_is_not_there_after_all(fake: ScriptedEngine) -> None:
    fake.script("POST", "/images/create", sends(OK + END))
    fake.script(
        "GET", "/images/python:3.12/json", sends(answer(404, {"message": "No such image: python:3.12"}))
    )
    with pytest.raises(CreationError, match=r"python:3\.12 cannot be pulled: No such image"):
        await pulled(fake)


async def test_case_47_a_broken_progress_bar(fake: ScriptedEngine, caplog: pytest.LogCaptureFixture) -> None:
    body = b"".join(json.dumps(line).encode() for line in LINES)
    fake.script("POST", "/images/create", sends(OK + chunk(body) + END))
    calls = 0

    def broken(_: PullProgress) -> None:
        nonlocal calls
        calls += 1
        raise ZeroDivisionError("mine")

    with caplog.at_level(logging.WARNING, "sandboxio_docker.pull"):
        await pulled(fake, progress=broken)
    assert calls == 1
    assert "ZeroDivisionError: mine" in caplog.text


@pytest.mark.virtual_time
async def test_case_18_a_slow_pull_is_not_cut(fake: ScriptedEngine) -> None:
    async def slow(connection: Connection, request: Request) -> None:
        await anyio.sleep(3600)
        await connection.send(OK)
        await anyio.sleep(3600)
        await connection.send(chunk(json.dumps(LINES[0]).encode()) + END)

    fake.script("POST", "/images/create", slow)
    await pulled(fake)


# Messages


@given(
    st.lists(
        st.dictionaries(st.text(max_size=5), st.text(max_size=20) | st.dictionaries(st.text(), st.integers()))
    ),
    st.lists(st.integers(1, 9), min_size=1),
    st.sampled_from(["", "\n", " \r\n\t"]),
    st.booleans(),
)
def test_any_split_gives_the_same_messages(
    messages: list[dict[str, Any]], sizes: list[int], separator: str, ascii_only: bool
) -> None:
    text = separator.join(json.dumps(message, ensure_ascii=ascii_only) for message in messages)
    raw = text.encode("utf-8", "surrogatepass")
    objects, got, at, turn = JSONObjects(), [], 0, 0
    while at < len(raw):
        size = sizes[turn % len(sizes)]
        got += list(objects.feed(raw[at : at + size]))
        at, turn = at + size, turn + 1
    objects.end()
    assert got == messages


def test_an_endless_message_is_refused() -> None:
    objects = JSONObjects()
    with pytest.raises(ValueError, match="endless"):
        sum(len(list(objects.feed(b'{"a": "' + b"x" * 65_536))) for _ in range(20))

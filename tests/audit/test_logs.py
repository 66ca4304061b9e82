"""What other libraries log while an operation runs, with every logger at DEBUG."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

import anyio
import anyio.abc
import httpx
import pytest

from sandboxio import FileInfo, ManagedSandbox
from sandboxio._logs import redact_logs_of
from sandboxio.adapter import SandboxRequest

from .encoded import found_in
from .operations import OPERATIONS
from .parrot import ENDINGS, PROVIDER_KEY, Far, ParrotBackend
from .test_exceptions import everything_shown

SECRET = "s3cr3t/a0d1 f6f8"
CLIENT = ("httpx", "httpcore.connection", "httpcore.http11")


@dataclass
class Server:
    """Answers every request with 200 and keeps what it was sent."""

    port: int = 0
    seen: list[bytes] = field(default_factory=list)

    async def answer(self, stream: anyio.abc.SocketStream) -> None:
        async with stream:
            data = b""
            while b"\r\n\r\n" not in data or len(data.partition(b"\r\n\r\n")[2]) < length_of(data):
                data += await stream.receive()
            self.seen.append(data)
            await stream.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")


def length_of(data: bytes) -> int:
    lines = data.lower().split(b"\r\n")
    return next((int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length")), 0)


@asynccontextmanager
async def serving() -> AsyncGenerator[Server]:
    server = Server()
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        server.port = listener.extra(anyio.abc.SocketAttribute.local_port)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, server.answer)
            yield server
            tasks.cancel_scope.cancel()


@dataclass
class HttpFar(Far):
    """A far side behind HTTP: the path in the URL, the environment in the body, a key in a header."""

    port: int = 0

    async def asked(self, what: str) -> None:
        async with httpx.AsyncClient() as client:
            await client.post(
                f"http://127.0.0.1:{self.port}/files?path={quote(what[:80])}",
                content=json.dumps({"env": what}),
                headers={"X-API-Key": SECRET},
            )


class HttpBackend(ParrotBackend):
    loggers: ClassVar[tuple[str, ...]] = ()


class CarefulBackend(ParrotBackend):
    loggers: ClassVar[tuple[str, ...]] = CLIENT


@pytest.fixture
def unfiltered() -> None:
    for name in CLIENT:
        logger = logging.getLogger(name)
        for each in list(logger.filters):
            logger.removeFilter(each)


async def use(backend: ParrotBackend, folder: Path) -> None:
    sandbox = await backend.create(secrets={"CANARY": SECRET}, env={"TOKEN": SECRET})
    for _, operation in OPERATIONS.values():
        await operation(sandbox, SECRET, folder)
    await sandbox.kill()


async def test_nothing_that_a_http_client_logs_shows_a_secret(
    unfiltered: None, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.DEBUG)
    async with serving() as server:
        await use(CarefulBackend(HttpFar(port=server.port)), tmp_path)
    assert len(server.seen) == len(OPERATIONS) + 2
    assert all(b"GET" not in request and found_in(request.decode(), SECRET) for request in server.seen)
    text = caplog.text + "".join(repr(vars(record)) for record in caplog.records)
    assert "HTTP Request: POST http://127.0.0.1" in text
    assert "httpcore" in text
    assert not found_in(text, SECRET)


async def test_without_the_filter_the_url_is_what_shows_it_and_never_body_or_header(
    unfiltered: None, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.DEBUG)
    async with serving() as server:
        await use(HttpBackend(HttpFar(port=server.port)), tmp_path)
    telling = [record for record in caplog.records if found_in(record.getMessage(), SECRET)]
    assert telling
    assert {record.name for record in telling} == {"httpx"}
    assert all("/files?path=" in record.getMessage() for record in telling)
    assert not any("X-API-Key" in record.getMessage() for record in caplog.records)


# The filter


async def test_records_outside_of_an_operation_are_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    logger = logging.getLogger("some_client")
    redact_logs_of(["some_client"])
    redact_logs_of(["some_client"])
    assert len(logger.filters) == 1

    class Logging(Far):
        async def asked(self, what: str) -> None:
            logger.info("inside: %s %d", SECRET, 7)
            logging.getLogger("some_client.child").info("a child: %s", SECRET)

    class Backend(ParrotBackend):
        loggers: ClassVar[tuple[str, ...]] = ("some_client",)

    sandbox = await Backend(Logging()).create(secrets={"T": SECRET})
    logger.info("outside: %s", SECRET)
    messages = [record.getMessage() for record in caplog.records]
    assert messages == ["inside: *** 7", f"a child: {SECRET}", f"outside: {SECRET}"]
    await sandbox.kill()


async def test_a_log_call_whose_arguments_do_not_fit_fails_no_operation(
    caplog: pytest.LogCaptureFixture,
) -> None:
    redact_logs_of(["careless_client"])

    class Logging(Far):
        async def asked(self, what: str) -> None:
            logging.getLogger("careless_client").warning("%d bytes of %s", SECRET)  # noqa: PLE1206 - it is the point

    sandbox = await ParrotBackend(Logging()).create(secrets={"T": SECRET})
    await sandbox.kill()
    messages = {record.getMessage() for record in caplog.records if record.name == "careless_client"}
    assert messages == {"'%d bytes of %s' ('***',)"}


class Listing(ParrotBackend):
    """One that repeats its key when it lists and kills, which no record goes around."""

    async def list_managed(self, *, labels: Mapping[str, str] | None = None) -> list[ManagedSandbox]:
        await self.far.asked(f"{labels} {PROVIDER_KEY}")
        return []

    async def kill_managed(self, sandbox_id: str) -> bool:
        await self.far.asked(f"{sandbox_id} {PROVIDER_KEY}")
        return True


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("operation", ["list", "kill"])
async def test_what_is_listed_and_killed_by_id_tells_no_key(
    ending: str, operation: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    backend = Listing(Far(ending))
    with pytest.raises(Exception, match=r"\*\*\*") as caught:
        await (backend.list_managed() if operation == "list" else backend.kill_managed("x"))
    assert not found_in(everything_shown(caught.value) + caplog.text, PROVIDER_KEY)
    assert "***" in caplog.text
    backend.far.says = "yes"
    assert await (backend.list_managed() if operation == "list" else backend.kill_managed("x")) in ([], True)


async def test_an_operation_of_one_sandbox_does_not_redact_the_logs_of_another(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "parrot_http")
    first = await ParrotBackend().create(secrets={"T": "first-secret"})
    second = await ParrotBackend().create(secrets={"T": "second-secret"})
    caplog.clear()
    async with anyio.create_task_group() as tasks:
        for sandbox in (first, second):
            tasks.start_soon(sandbox.run, ["first-secret", "second-secret"])
    shown = [record.getMessage().partition("{")[0] for record in caplog.records]
    assert sorted(shown) == sorted(
        [
            "request: POST http://far/('***', 'second-secret') ",
            "request: POST http://far/('first-secret', '***') ",
        ]
    )
    await first.kill()
    await second.kill()


def test_a_request_shows_no_values() -> None:
    request = SandboxRequest(timeout=1, env={"A": SECRET}, secrets={"B": SECRET})
    assert not found_in(repr(request), SECRET)
    assert FileInfo("x", 1, is_dir=False)

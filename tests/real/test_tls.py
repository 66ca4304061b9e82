"""Sandboxes on an engine that is reached over TLS, where no connection can be closed in one direction."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.abc
import pytest
from anyio.streams.tls import TLSListener

from sandboxio_docker import DockerBackend
from scripts import engine_api

pytestmark = pytest.mark.engine

TLS = Path(__file__).parent.parent / "docker" / "tls"


async def pump(source: anyio.abc.ByteStream, target: anyio.abc.ByteStream) -> None:
    try:
        async for data in source:
            await target.send(data)
    except (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream):
        pass  # one side went away, which is the other's end, too


async def relay(client: anyio.abc.ByteStream) -> None:
    """From a client to the engine, until either side ends."""
    path = engine_api.current_host().removeprefix("unix://")
    async with client, await anyio.connect_unix(path) as engine, anyio.create_task_group() as both:

        async def until_end(source: anyio.abc.ByteStream, target: anyio.abc.ByteStream) -> None:
            await pump(source, target)
            both.cancel_scope.cancel()

        both.start_soon(until_end, client, engine)
        both.start_soon(until_end, engine, client)


@asynccontextmanager
async def tls_host() -> AsyncGenerator[str]:
    """The address of a relay to the tests' engine that speaks TLS and asks for a certificate."""
    if not engine_api.current_host().startswith("unix://"):
        pytest.skip("the tests' engine is not on a Unix socket, which this relays to")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "server.pem", TLS / "server-key.pem")
    context.load_verify_locations(TLS / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    secure = TLSListener(listener, context, standard_compatible=False)
    async with anyio.create_task_group() as group:
        group.start_soon(secure.serve, relay)
        yield f"tcp://localhost:{port}"
        group.cancel_scope.cancel()
    await listener.aclose()


async def test_commands_code_and_files(
    channel: str, docker_image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    monkeypatch.setenv("DOCKER_CERT_PATH", str(TLS))
    async with tls_host() as host:
        backend = DockerBackend(image=docker_image, channel=channel, host=host)  # type: ignore[arg-type]
        async with await backend.create(timeout=120) as sandbox:
            assert (await sandbox.run(["echo", "hi"])).stdout == "hi\n"
            await sandbox.files.write("x", b"abc" * 100_000)
            assert await sandbox.files.read("x") == b"abc" * 100_000
            code = "import sys\nprint(len(sys.stdin.read()), '\N{SNOWMAN}')\n" + "#" * 300_000
            result = await sandbox.run_code(code)
            assert (result.exit_code, result.stdout, result.stderr) == (0, "0 \N{SNOWMAN}\n", "")
            assert (await sandbox.run_code("import sys; sys.exit(7)")).exit_code == 7

"""The engine client against a real engine: what the fakes promise is what the engine does."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from sandboxio.errors import FileSystemError
from sandboxio_docker.archive import TarReader, TarWriter
from sandboxio_docker.endpoint import find_endpoint
from sandboxio_docker.engine import LEAST_API, NEWEST_API, Engine, EngineError, Fault, Hijacked, Versions
from sandboxio_docker.frames import Demultiplexer
from sandboxio_docker.versions import numbers
from tests.fakes.sweep import Outcome, sweep
from tests.harness.engines import SESSION_LABEL
from tests.harness.leaks import SESSION_VARIABLE, descriptors

pytestmark = pytest.mark.engine


@pytest.fixture
def engine() -> Engine:
    return Engine()


def body(image: str, *command: str, **more: Any) -> dict[str, Any]:
    labels = {"io.sandboxio.managed": "true", SESSION_LABEL: os.environ[SESSION_VARIABLE]}
    host = {"AutoRemove": True, "NetworkMode": "none", "LogConfig": {"Type": "none"}}
    return {
        "Image": image,
        "Entrypoint": list(command),
        "Labels": labels,
        "NetworkDisabled": True,
        "HostConfig": host,
        **more,
    }


STDIN = {
    "OpenStdin": True,
    "StdinOnce": True,
    "AttachStdin": True,
    "AttachStdout": True,
    "AttachStderr": True,
}
ALL = {"stream": True, "stdin": True, "stdout": True, "stderr": True}


@asynccontextmanager
async def container(engine: Engine, config: dict[str, Any]) -> AsyncGenerator[str, None]:
    """A created container; it is gone afterwards."""
    cid = (await engine.post_json("/containers/create", config))["Id"]
    try:
        yield cid
    finally:
        with anyio.CancelScope(shield=True):
            await gone(engine, cid)


async def gone(engine: Engine, cid: str) -> None:
    """Delete and wait: 409 means that a removal is under way."""
    with anyio.fail_after(20):
        while True:
            try:
                await engine.request("DELETE", f"/containers/{cid}", params={"force": True, "v": True})
            except EngineError as error:
                if error.fault is Fault.NO_SUCH_CONTAINER:
                    return
                if error.fault is not Fault.REMOVING:
                    raise
            await anyio.sleep(0.02)


async def output_of(raw: Hijacked) -> dict[str, bytes]:
    demux, got = Demultiplexer(), {"stdout": b"", "stderr": b""}
    while True:
        data = await raw.receive()
        demux.feed(data)
        while chunk := demux.next_chunk():
            got[chunk.stream] += chunk.data
        if not data:
            return got


async def is_podman(engine: Engine) -> bool:
    """Podman speaks the same API; where it knows better, the tests say so."""
    return (await engine.negotiate()).server.startswith("Libpod")


async def test_versions(engine: Engine) -> None:
    versions = await engine.negotiate()
    assert numbers(LEAST_API) <= numbers(versions.used) <= numbers(NEWEST_API)
    assert versions.os_type in ("linux", "")  # Podman 4 does not say
    said = await engine.get_json("/version")
    assert said["ApiVersion"] == versions.engine


async def test_attach_before_start_loses_nothing(engine: Engine, docker_image: str) -> None:
    command = ("sh", "-c", "cat; echo err >&2; exit 7")
    async with container(engine, body(docker_image, *command, **STDIN)) as cid:
        raw = await engine.upgrade("POST", f"/containers/{cid}/attach", params=ALL)
        try:
            await engine.request("POST", f"/containers/{cid}/start")
            await raw.send("é\n".encode() * 1000)
            await raw.half_close()
            assert await output_of(raw) == {"stdout": "é\n".encode() * 1000, "stderr": b"err\n"}
        finally:
            raw.close()


async def test_the_lifeline(engine: Engine, docker_image: str) -> None:
    """The connection ends, so the container ends and is removed."""
    async with container(engine, body(docker_image, "cat", **STDIN)) as cid:
        raw = await engine.upgrade("POST", f"/containers/{cid}/attach", params=ALL)
        await engine.request("POST", f"/containers/{cid}/start")
        raw.close()
        with anyio.fail_after(10):
            while True:
                try:
                    await engine.get_json(f"/containers/{cid}/json")
                except EngineError as error:
                    assert error.fault is Fault.NO_SUCH_CONTAINER  # noqa: PT017
                    break
                await anyio.sleep(0.02)


async def run(engine: Engine, cid: str, *command: str, **more: Any) -> tuple[dict[str, bytes], int]:
    config = {"Cmd": list(command), "AttachStdout": True, "AttachStderr": True, **more}
    eid = (await engine.post_json(f"/containers/{cid}/exec", config))["Id"]
    raw = await engine.upgrade("POST", f"/exec/{eid}/start", json={"Detach": False, "Tty": False})
    try:
        got = await output_of(raw)
    finally:
        raw.close()
    with anyio.fail_after(5):
        while (shown := await engine.get_json(f"/exec/{eid}/json"))["Running"]:
            await anyio.sleep(0.005)
    return got, shown["ExitCode"]


@asynccontextmanager
async def started(engine: Engine, image: str, **more: Any) -> AsyncGenerator[str, None]:
    async with container(engine, body(image, "sleep", "600", **more)) as cid:
        await engine.request("POST", f"/containers/{cid}/start")
        yield cid


async def test_case_1_fast_execs_are_never_empty(engine: Engine, docker_image: str) -> None:
    results: list[Any] = []

    async def once() -> None:
        results.append(await run(engine, cid, "echo", "ready"))

    async with started(engine, docker_image) as cid:
        for _ in range(15):
            await once()
        async with anyio.create_task_group() as group:
            for _ in range(15):
                group.start_soon(once)
    assert results == [({"stdout": b"ready\n", "stderr": b""}, 0)] * 30


async def test_faults_of_a_real_engine(engine: Engine, docker_image: str) -> None:
    async def fault(method: str, path: str, **more: Any) -> Fault:
        with pytest.raises(EngineError) as caught:
            await engine.request(method, path, **more)
        return caught.value.fault

    name = f"sandboxio-test-{uuid.uuid4().hex}"
    assert await fault("GET", "/images/sandboxio-no-such-image:x/json") is Fault.NO_SUCH_IMAGE
    missing = body("sandboxio-no-such-image:x", "true")
    assert await fault("POST", "/containers/create", json=missing) is Fault.NO_SUCH_IMAGE
    assert await fault("GET", f"/containers/{name}/json") is Fault.NO_SUCH_CONTAINER
    assert await fault("GET", "/exec/0123/json") is Fault.NO_SUCH_EXEC
    if not await is_podman(engine):  # which looks at neither before the start
        runtime = body(docker_image, "true", HostConfig={"Runtime": "no-such-runtime"})
        assert await fault("POST", "/containers/create", json=runtime) is Fault.NO_SUCH_RUNTIME
        cpus = body(docker_image, "true", HostConfig={"NanoCpus": 4096 * 10**9})
        assert await fault("POST", "/containers/create", json=cpus) is Fault.TOO_MANY_CPUS
    async with started(engine, docker_image) as cid:
        here = f"/containers/{cid}"
        config = body(docker_image, "true")
        await engine.request("POST", f"{here}/rename", params={"name": name})
        assert (
            await fault("POST", "/containers/create", json=config, params={"name": name}) is Fault.NAME_IN_USE
        )
        assert await fault("GET", f"{here}/archive", params={"path": "/nope"}) is Fault.NO_SUCH_PATH
        assert (await engine.request("POST", f"{here}/start")).status_code == 304
        await engine.request("POST", f"{here}/pause")
        assert await fault("POST", f"{here}/exec", json={"Cmd": ["true"]}) is Fault.PAUSED
        await engine.request("POST", f"{here}/unpause")
    async with container(engine, body(docker_image, "/no-such-program")) as cid:
        assert await fault("POST", f"/containers/{cid}/start") is Fault.NO_SUCH_PROGRAM
    async with container(engine, body(docker_image, "/etc/passwd")) as cid:
        assert await fault("POST", f"/containers/{cid}/start") is Fault.NOT_EXECUTABLE
    async with container(engine, body(docker_image, "true", User="no-such-user")) as cid:
        assert await fault("POST", f"/containers/{cid}/start") is Fault.NO_SUCH_USER
    async with container(engine, body(docker_image, "sleep", "9")) as cid:
        assert await fault("POST", f"/containers/{cid}/exec", json={"Cmd": ["true"]}) is Fault.NOT_RUNNING
        assert await fault("POST", f"/containers/{cid}/kill") is Fault.NOT_RUNNING


async def test_a_version_outside_the_range_is_refused(engine: Engine) -> None:
    podman = await is_podman(engine)
    engine._versions = Versions("9.99", "9.99")
    if not podman:  # which takes every version
        with pytest.raises(EngineError) as caught:
            await engine.get_json("/info")
        assert caught.value.fault is Fault.API_VERSION
    assert await engine.get_json("/info")


@pytest.mark.parametrize("name", [b"plain.txt", b"n" * 255, "漢".encode() * 85, b"a\n'\" $(x)", b"-rf"])
async def test_files_go_in_and_out_byte_for_byte(engine: Engine, docker_image: str, name: bytes) -> None:
    data = bytes(range(256)) * 1000
    async with started(engine, docker_image) as cid:
        writer = TarWriter(name, len(data), mode=0o750, uid=1234, gid=4321, mtime=1_600_000_000)
        parts = [writer.head(), writer.data(data), writer.end()]
        await engine.request(
            "PUT", f"/containers/{cid}/archive", params={"path": "/tmp"}, content=iter(parts)
        )
        look = "import os; s = os.stat(b'/tmp/' + bytes.fromhex('%s')); print(*s[4:6], oct(s[0]), s[8])"
        shown, code = await run(engine, cid, "python3", "-c", look % name.hex())
        assert (shown["stdout"], code) == (b"1234 4321 0o100750 1600000000\n", 0), shown
        path = (b"/tmp/" + name).decode(errors="surrogateescape")
        reader, got = TarReader(name=name), b""
        async with engine.stream("GET", f"/containers/{cid}/archive", params={"path": path}) as answer:
            async for piece in answer:
                reader.feed(piece)
                while content := reader.next_piece():
                    got += content
            reader.feed(b"")
            assert reader.next_piece() is None
        assert (got, reader.done) == (data, True)


async def test_a_name_that_is_no_text_goes_in_only(engine: Engine, docker_image: str) -> None:
    """Docker takes such a file and sends an empty archive for it; that must not look like an empty file."""
    name = b"a\xff"
    async with started(engine, docker_image) as cid:
        writer = TarWriter(name, 1, mode=0o600, uid=0, gid=0, mtime=0)
        parts = [writer.head(), writer.data(b"x"), writer.end()]
        url = f"/containers/{cid}/archive"
        await engine.request("PUT", url, params={"path": "/tmp"}, content=iter(parts))
        look = "import os; print(os.path.getsize(b'/tmp/a\\xff'))"
        assert (await run(engine, cid, "python3", "-c", look))[0]["stdout"] == b"1\n"
        answer = await engine.request("GET", url, params={"path": "/tmp/a\udcff"})
        reader = TarReader(name=name)
        reader.feed(answer.content)
        try:
            got = reader.next_piece()
        except FileSystemError as error:
            got = None
            words = error.message
        assert got == b"x" or r"engines cannot send 'a\xff', whose name is not UTF-8" in words


async def test_events_explain_a_death(engine: Engine, docker_image: str) -> None:
    since = time.time() - 1
    async with started(engine, docker_image) as cid:
        await engine.request("POST", f"/containers/{cid}/kill")
        await gone(engine, cid)
        # Podman 4.3 answers nothing if the end is not in the future
        params = {"since": f"{since:.3f}", "until": f"{time.time() + 1:.3f}", "filters": {"container": [cid]}}
        text = b""
        async with engine.stream("GET", "/events", params=params) as answer:
            async for piece in answer:
                text += piece
    assert b'"containerExitCode":"137"' in text or b'"exitCode":"137"' in text


async def test_a_cancelled_create_leaves_nothing(engine: Engine, docker_image: str) -> None:
    """The sweep of tests/docker/test_cancellation.py, with the engine that has its own timing."""
    label = uuid.uuid4().hex
    config = body(docker_image, "true")
    config["Labels"]["io.sandboxio.test"] = label
    filters = {"all": True, "filters": {"label": [f"io.sandboxio.test={label}"]}}

    async def create() -> str:
        with Engine().resumable("POST", "/containers/create", json=config) as pending:
            try:
                return str((await pending.finish()).json()["Id"])
            except anyio.get_cancelled_exc_class():
                with anyio.CancelScope(shield=True):
                    if pending.sent:
                        await gone(engine, (await pending.finish()).json()["Id"])
                raise

    async def check(outcome: Outcome[str]) -> None:
        if outcome.value is not None:
            await gone(engine, outcome.value)
        await anyio.sleep(0.02)  # the engine creates up to 11 ms after a client has gone
        assert await engine.get_json("/containers/json", params=filters) == []

    assert await sweep(create, check) >= 2


async def test_150_streams_do_not_hold_up_other_calls(engine: Engine, docker_image: str) -> None:
    """Case 33, with event streams, which cost the engine little."""
    running = 0
    all_run = anyio.Event()
    before = len(descriptors())

    async def listen() -> None:
        nonlocal running
        async with engine.stream(
            "GET", "/events", params={"filters": {"container": [uuid.uuid4().hex]}}
        ) as answer:
            running += 1
            if running == 150:
                all_run.set()
            await answer.receive()

    async with anyio.create_task_group() as group:
        for _ in range(150):
            group.start_soon(listen)
        with anyio.fail_after(20):
            await all_run.wait()
        with anyio.fail_after(3):
            await engine.get_json("/containers/json")
        group.cancel_scope.cancel()
    assert len(descriptors()) <= before + 1


async def test_the_machine_s_own_engine_is_found(tmp_path: Path) -> None:
    if os.environ.get("DOCKER_HOST"):
        assert find_endpoint().origin == "DOCKER_HOST"
        return
    endpoint = find_endpoint(environ={}, home=tmp_path)
    assert endpoint.origin == "the list of known sockets"
    assert (await Engine(endpoint).negotiate()).used

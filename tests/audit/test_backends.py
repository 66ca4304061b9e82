"""The canary on the backends that ship: the fake, Docker over both channels, E2B on its stand-in."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sandboxio import ExecutionError, NetworkPolicy, SandboxError
from sandboxio.adapter import BaseBackend, BaseSandbox
from sandboxio.audit import AuditConfig
from sandboxio.testing import FakeBackend
from sandboxio_docker import DockerBackend
from sandboxio_e2b import E2BBackend
from tests.e2b_standin.fixtures import standin as standin, standin_process as standin_process
from tests.e2b_standin.running import StandInProcess

from .test_canary import Surfaces, surfaces as surfaces

SECRET = "c'est /un canari?&x=1"
KEY = "e2b_" + "0123456789abcdef" * 2

Call = Callable[[BaseSandbox, Path], Awaitable[object]]


async def _stream(sandbox: BaseSandbox, folder: Path) -> None:
    async with sandbox.stream(["echo", SECRET], env={"SOME_TOKEN": SECRET}) as process:
        await process.wait()


async def _status(sandbox: BaseSandbox, folder: Path) -> None:
    (await sandbox.run(f"echo '{SECRET.replace(chr(39), '')}' \"$CANARY\" >&2; exit 3")).raise_for_status()


async def _cancelled(sandbox: BaseSandbox, folder: Path) -> None:
    with anyio.move_on_after(0.2):
        await sandbox.run(["sh", "-c", "sleep 30", SECRET])


async def _upload(sandbox: BaseSandbox, folder: Path) -> None:
    (folder / "local").write_text(SECRET)
    await sandbox.files.upload(folder / "local", f"/tmp/{SECRET}/x")


CALLS: dict[str, tuple[str, Call]] = {
    "run": ("exec", lambda s, _: s.run(["echo", SECRET], env={"A_TOKEN": SECRET})),
    "a status": ("exec", _status),
    "no such program": ("exec", lambda s, _: s.run([f"no-such-{SECRET}", SECRET])),
    "a timeout": ("exec", lambda s, _: s.run(["sh", "-c", "sleep 30", SECRET], timeout=0.2)),
    "cancelled": ("exec", _cancelled),
    "code": ("run_code", lambda s, _: s.run_code(f"print({SECRET!r})")),
    "code that fails": ("run_code", lambda s, _: s.run_code(f"raise ValueError({SECRET!r})")),
    "a stream": ("stream", _stream),
    "write": ("file_write", lambda s, _: s.files.write(f"/tmp/{SECRET}", SECRET)),
    "read what is not there": ("file_read", lambda s, _: s.files.read(f"/{SECRET}")),
    "list what is not there": ("file_list", lambda s, _: s.files.ls(f"/{SECRET}")),
    "make what cannot be made": ("file_mkdir", lambda s, _: s.files.mkdir(f"/proc/{SECRET}")),
    "remove what is not there": ("file_remove", lambda s, _: s.files.remove(f"/{SECRET}")),
    "upload to nowhere": ("file_upload", _upload),
    "download what is not there": ("file_download", lambda s, f: s.files.download(f"/{SECRET}", f / "got")),
}


@pytest.fixture(
    params=[
        "fake",
        pytest.param("docker-guest", marks=pytest.mark.engine),
        pytest.param("docker-exec", marks=pytest.mark.engine),
        "e2b",
    ]
)
def make(request: pytest.FixtureRequest) -> Iterator[Callable[[AuditConfig], BaseBackend]]:
    kind = str(request.param)
    if kind == "e2b":
        request.getfixturevalue("standin")
        yield lambda audit: E2BBackend(audit=audit)
    elif kind == "fake":
        fakes: list[FakeBackend] = []
        yield lambda audit: fakes.append(FakeBackend(audit=audit)) or fakes[0]  # type: ignore[func-returns-value]
        for fake in fakes:
            fake.close()
    else:
        image = request.getfixturevalue("docker_image")
        channel: Any = kind.removeprefix("docker-")
        yield lambda audit: DockerBackend(image=image, channel=channel, audit=audit)


async def test_nothing_shows_the_canary(
    make: Callable[[AuditConfig], BaseBackend], surfaces: Surfaces, tmp_path: Path
) -> None:
    backend = make(surfaces.config())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        sandbox = await backend.create(
            secrets={"CANARY": SECRET}, env={"API_KEY": SECRET}, metadata={"tenant_id": "acme"}, timeout=60
        )
    surfaces.objects += [backend, sandbox, sandbox.subject()]
    expected = ["create"]
    failed: list[str] = []
    async with sandbox:
        for name, (event, call) in CALLS.items():
            expected.append(event)
            try:
                await call(sandbox, tmp_path)
            except ExecutionError as error:
                error.result = None  # the caller's data
                surfaces.raised.append(error)
            except SandboxError as error:
                if getattr(error, "partial", None) is not None:
                    error.partial = None  # type: ignore[attr-defined]
                failed.append(name)
                surfaces.raised.append(error)
    assert [event.event for event in surfaces.recorded.events] == [*expected, "kill"]
    finished: InMemorySpanExporter = surfaces.spans
    mine = [s.name for s in finished.get_finished_spans() if s.name.startswith("execute_tool")]
    assert mine == [f"execute_tool {event}" for event in [*expected, "kill"]]
    assert {"read what is not there", "download what is not there"} <= set(failed)
    assert "a timeout" in failed or isinstance(backend, FakeBackend)  # whose sleep takes no time
    for secret in (SECRET, KEY):
        surfaces.assert_silent([secret])


async def test_e2bs_key_and_tokens_are_secrets(standin: StandInProcess, surfaces: Surfaces) -> None:
    key = standin.environment["E2B_API_KEY"]
    sandbox = await E2BBackend(audit=surfaces.config()).create(metadata={"tenant_id": f"acme {key}"})
    tokens = list(sandbox._credentials())
    assert tokens
    await sandbox.run(["echo", key, *tokens])
    await sandbox.kill()
    with pytest.raises(SandboxError) as caught:
        await E2BBackend(audit=surfaces.config()).connect(f"no-{key}")
    surfaces.raised.append(caught.value)
    assert surfaces.recorded.events[1].argv == ("echo", *("***" for _ in (key, *tokens)))
    surfaces.assert_silent([key, *tokens])


async def test_denials_are_told_where_they_are_counted_and_are_zero_elsewhere(
    make: Callable[[AuditConfig], BaseBackend], surfaces: Surfaces, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    backend = make(surfaces.config())
    async with await backend.create(network=NetworkPolicy()) as sandbox:
        await sandbox.run(["curl", "--max-time", "1", "http://127.0.0.88:9/"])
    denials = surfaces.recorded.events[1].network_denials
    if isinstance(backend, FakeBackend):
        assert denials >= 0
    else:
        assert denials == 0

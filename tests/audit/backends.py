"""The canary on a real backend: calls that succeed, fail, time out and are cancelled."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sandboxio import ExecutionError, SandboxError
from sandboxio.adapter import BaseBackend, BaseSandbox
from sandboxio.testing import FakeBackend

from .test_canary import Surfaces

SECRET = "c'est /un canari?&x=1"

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


async def show_nothing(backend: BaseBackend, surfaces: Surfaces, folder: Path) -> None:
    """Make every call once; each is one record and one span, and nothing shows the secret."""
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
                await call(sandbox, folder)
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
    surfaces.assert_silent([SECRET])

"""The beginning and the end of real containers."""

from __future__ import annotations

import signal
import time
import uuid
from typing import Any

import anyio
import pytest

from sandboxio.errors import ConnectError, ExecutionTimeout, SandboxError, SandboxGone
from sandboxio_docker import DockerBackend
from sandboxio_docker.sandbox import DockerSandbox

from .creators import creator, held
from .images import ask, kill

pytestmark = pytest.mark.engine


async def none_held(label: str, seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while left := held(label):
        assert time.monotonic() < deadline, left
        await anyio.sleep(0.05)


@pytest.fixture
def label() -> str:
    return uuid.uuid4().hex


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_create_cancelled_at_many_delays(backend: DockerBackend, label: str) -> None:
    """Case 21: whenever it is cancelled, no container is left when the call returns."""
    created = 0
    for step in range(40):
        sandbox: DockerSandbox | None = None
        with anyio.move_on_after(step * 0.006):
            sandbox = await backend.create(timeout=60, metadata={"test": label})  # type: ignore[assignment]
        if sandbox is not None:
            created += 1
            await sandbox.kill()
        assert not held(label), f"left after {step * 6} ms"
    assert created < 40


async def test_create_cancelled_many_at_once(backend: DockerBackend, label: str) -> None:
    async def one(delay: float) -> None:
        with anyio.move_on_after(delay):
            async with await backend.create(timeout=60, metadata={"test": label}):
                await anyio.sleep(0.05)

    async with anyio.create_task_group() as tasks:
        for step in range(12):
            tasks.start_soon(one, step * 0.02)
    assert not held(label)


async def test_kill_is_quick(backend: DockerBackend, label: str) -> None:
    """Case 22: also while something runs that ignores SIGTERM, and ten at once."""
    made = [await backend.create(timeout=60, metadata={"test": label}) for _ in range(5)]

    async def deaf(sandbox: Any) -> None:
        with pytest.raises(SandboxGone):
            await sandbox.run("trap '' TERM; sleep 600", timeout=500)

    async with anyio.create_task_group() as tasks:
        for sandbox in made:
            tasks.start_soon(deaf, sandbox)
        await anyio.sleep(0.5)
        began = time.monotonic()
        async with anyio.create_task_group() as killing:
            for sandbox in made:
                killing.start_soon(sandbox.kill)
        assert time.monotonic() - began < 4
        assert not held(label)


@pytest.mark.parametrize("other", ["asyncio", "trio"])
async def test_a_kill_from_another_event_loop_ends_what_runs(
    backend: DockerBackend, label: str, other: str
) -> None:
    sandbox = await backend.create(timeout=60, metadata={"test": label})
    ended: list[str] = []

    async def using(text: str) -> None:
        with pytest.raises(SandboxGone):
            await sandbox.run(text, timeout=50)
        ended.append(text)

    async with anyio.create_task_group() as tasks:
        for text in ("sleep 40", "sleep 41"):  # over the guest one reads for both, the other one waits for it
            tasks.start_soon(using, text)
        async with sandbox.stream("echo up; sleep 42") as process:
            assert (await process.__anext__()).data == b"up\n"
            began = time.monotonic()
            await anyio.to_thread.run_sync(lambda: anyio.run(sandbox.kill, backend=other))
            assert not held(label)
            with pytest.raises(SandboxGone):
                await process.wait()
    assert len(ended) == 2
    assert time.monotonic() - began < 10


async def test_kill_races_another_remover(backend: DockerBackend, label: str) -> None:
    """Case 23: quiet, and the container is gone when kill() returns."""
    for _ in range(5):
        sandbox = await backend.create(timeout=60, metadata={"test": label})
        other = DockerBackend()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(other.kill_managed, sandbox.id)
            tasks.start_soon(sandbox.kill)
            tasks.start_soon(sandbox.kill)
        assert not held(label)
        await sandbox.kill()
        assert await other.kill_managed(sandbox.id) is False


async def test_removed_from_outside(backend: DockerBackend, label: str) -> None:
    """Case 17: everything that runs ends with a typed error soon, nothing with an exit code."""
    sandbox = await backend.create(timeout=120, metadata={"test": label})
    outcomes: list[object] = []

    async def hang() -> None:
        try:
            outcomes.append(await sandbox.run(["sleep", "60"], timeout=100))
        except SandboxError as error:
            outcomes.append(type(error))

    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(hang)
        await anyio.sleep(0.7)
        began = time.monotonic()
        kill(sandbox.id)
    assert time.monotonic() - began < 8
    assert outcomes == [SandboxGone] * 8
    with pytest.raises(SandboxGone, match="somebody else"):
        await sandbox.run(["true"])
    await sandbox.kill()
    await none_held(label)


async def test_paused_before(backend: DockerBackend, label: str) -> None:
    """Case 28: said soon, not joined, and killed all the same."""
    async with await backend.create(timeout=120, metadata={"test": label}) as sandbox:
        ask("POST", f"/containers/{sandbox.id}/pause")
        began = time.monotonic()
        with pytest.raises(ConnectError, match="paused"):
            await sandbox.run(["true"], timeout=20)
        with pytest.raises(ConnectError, match="paused"):
            await backend.connect(sandbox.id)
        assert [each.state for each in await backend.list_managed(labels={"test": label})] == ["paused"]
        assert time.monotonic() - began < 5
        ask("POST", f"/containers/{sandbox.id}/unpause")
        assert (await sandbox.run(["echo", "x"])).stdout == "x\n"
        ask("POST", f"/containers/{sandbox.id}/pause")
    assert not held(label)


async def test_paused_under_a_run(backend: DockerBackend, label: str) -> None:
    """Case 28: ends as a timeout; what cannot be killed takes the sandbox with it."""
    async with await backend.create(timeout=120, metadata={"test": label}) as sandbox:

        async def pause() -> None:
            await anyio.sleep(1.3)
            ask("POST", f"/containers/{sandbox.id}/pause")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pause)
            began = time.monotonic()
            with pytest.raises(ExecutionTimeout):
                await sandbox.run(["sleep", "60"], timeout=2)
            assert time.monotonic() - began < 9
    assert not held(label)


async def test_the_lifetime_ends_a_sandbox(backend: DockerBackend, label: str) -> None:
    """Nobody has to be there for it; the error names it."""
    sandbox = await backend.create(timeout=3, metadata={"test": label})
    with pytest.raises(SandboxGone, match="lifetime of 3 s"):
        await sandbox.run(["sleep", "60"], timeout=50)
    await none_held(label)
    await sandbox.kill()


async def test_connect(backend: DockerBackend, docker_image: str, label: str) -> None:
    """A second handle works beside the first, over either channel, and ends what the first made."""
    async with await backend.create(timeout=120, metadata={"test": label, "k=v é": "x\ny"}) as sandbox:
        await sandbox.files.write("made-by", "one")
        for channel in ("guest", "exec"):
            again = await DockerBackend(channel=channel).connect(sandbox.id)  # type: ignore[arg-type]
            assert channel in repr(again)
            assert (await again.run(["cat", "made-by"])).stdout == "one"
            assert await again.files.read("made-by") == b"one"
            with pytest.raises(ExecutionTimeout):
                await again.run(["sleep", "77"], timeout=0.5)
            left = await sandbox.run("grep -al -e '[s]leep.77' /proc/[0-9]*/cmdline 2>/dev/null; true")
            assert left.stdout == ""
            if channel == "guest":
                again._close()
        (listed,) = await backend.list_managed(labels={"test": label})
        assert listed.labels == {"test": label, "k=v é": "x\ny"}
        await again.kill()
        with pytest.raises(SandboxGone):
            await sandbox.run(["true"])
    assert not held(label)


# The creator's end


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_an_interrupted_program_takes_its_sandbox_along(
    loop: str, docker_image: str, channel: str, label: str
) -> None:
    """Case 25: Ctrl-C in the middle of a run."""
    with creator(docker_image, channel, label, loop) as process:
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
        assert process.returncode in (1, 130, -signal.SIGINT)
        assert "KeyboardInterrupt" in errors
        for noise in ("Event loop is closed", "never awaited", "ResourceWarning", "InvalidStateError"):
            assert noise not in errors
        assert not held(label)


@pytest.mark.parametrize("seconds", [1e10, 1e17, 1e300])
async def test_times_that_no_clock_measures(backend: DockerBackend, seconds: float) -> None:
    """As good as for ever, and each part of the way has another largest number."""
    async with await backend.create(timeout=seconds) as sandbox:
        result = await sandbox.run(["echo", "x"], timeout=seconds)
        assert result.stdout == "x\n"


@pytest.mark.parametrize("seconds", [1e10, 1e300])
async def test_a_lifetime_that_no_shell_measures(
    busybox_image: str, without_python: str, seconds: float
) -> None:
    for image in (busybox_image, without_python):
        async with await DockerBackend(image=image).create(timeout=seconds) as sandbox:
            assert (await sandbox.run(["echo", "x"])).stdout == "x\n"

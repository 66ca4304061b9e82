"""An engine that is stopped, or dies, and comes back while sandboxes are in use on it."""

from __future__ import annotations

import signal
import time
import uuid
import warnings
from typing import Any

import anyio
import pytest

from sandboxio.errors import ConnectError, CreationError, OrphanedSandboxWarning, SandboxError
from sandboxio_docker import DockerBackend

from .own_engine import OwnEngine

pytestmark = [pytest.mark.engine, pytest.mark.timeout(120)]

SOON = 8.0
"""Seconds in which a call must have ended once the engine is gone; a busy machine has some to spare."""


@pytest.fixture
def engine(engine_of_tests: OwnEngine) -> OwnEngine:
    """An engine that may be ended; it runs."""
    if not engine_of_tests.running:  # a test before this one failed in between
        engine_of_tests.start()
    return engine_of_tests


async def none_held(engine: OwnEngine, seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while left := engine.held():
        assert time.monotonic() < deadline, left
        await anyio.sleep(0.05)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
async def test_an_engine_that_goes_and_comes_back(
    engine: OwnEngine, docker_image: str, how: signal.Signals
) -> None:
    """Whatever runs ends soon with a typed error; the same backend then works on; nothing is left."""
    mark = uuid.uuid4().hex
    backends = [
        DockerBackend(image=docker_image, channel=channel, host=engine.host) for channel in ("guest", "exec")
    ]
    made: list[Any] = [await each.create(timeout=300, metadata={"test": mark}) for each in backends]
    ends: list[tuple[str, float]] = []
    gone = time.monotonic()

    async def hang(sandbox: Any) -> None:
        try:
            result = await sandbox.run(["sleep", "250"], timeout=200)
        except SandboxError as error:
            ends.append((type(error).__name__, time.monotonic()))
        else:
            ends.append((repr(result), time.monotonic()))

    with warnings.catch_warnings():
        # A run that cannot be killed takes its sandbox along; that this was not possible either is told.
        warnings.simplefilter("ignore", OrphanedSandboxWarning)
        async with anyio.create_task_group() as tasks:
            for sandbox in made:
                tasks.start_soon(hang, sandbox)
                while not (await sandbox.run("grep -al [s]leep /proc/[0-9]*/cmdline; true")).stdout:
                    await anyio.sleep(0.05)
            await anyio.to_thread.run_sync(engine.end, how)
            gone = time.monotonic()
    assert {name for name, _ in ends} <= {"SandboxGone", "ConnectError", "EngineUnavailable"}, ends
    assert max(at for _, at in ends) < gone + SOON

    began = time.monotonic()
    for backend in backends:
        with pytest.raises(CreationError, match="engine"):
            await backend.create(timeout=60)
        with pytest.raises(ConnectError):
            await backend.list_managed()
    for sandbox in made:
        with pytest.raises(SandboxError):
            await sandbox.run(["true"], timeout=5)
    assert time.monotonic() - began < SOON, "no call waits for an engine that is not there"

    await anyio.to_thread.run_sync(engine.start)
    for backend in backends:
        async with await backend.create(timeout=60, metadata={"test": mark}) as sandbox:
            assert (await sandbox.run(["echo", "again"])).stdout == "again\n"
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # an orphan would be told
        for sandbox in made:
            await sandbox.kill()
    await none_held(engine)


async def test_a_restart_between_two_calls(engine: OwnEngine, docker_image: str) -> None:
    """Nobody was looking: the handle says that its sandbox is gone, and kill() is content."""
    backend = DockerBackend(image=docker_image, host=engine.host)
    sandbox: Any = await backend.create(timeout=300)
    await anyio.to_thread.run_sync(engine.end)
    await anyio.to_thread.run_sync(engine.start)
    with pytest.raises(SandboxError) as caught:
        await sandbox.run(["true"], timeout=20)
    assert caught.value.hint
    with pytest.raises(ConnectError):
        await backend.connect(sandbox.id)
    await sandbox.kill()
    assert await backend.kill_managed(sandbox.id) is False
    await none_held(engine)


async def test_a_kill_while_the_engine_is_away(engine: OwnEngine, docker_image: str) -> None:
    """Fails at once instead of waiting for it; an engine that comes back has nothing left of the sandbox."""
    sandbox: Any = await DockerBackend(image=docker_image, host=engine.host).create(timeout=300)
    await anyio.to_thread.run_sync(engine.end)
    began = time.monotonic()
    with pytest.raises(ConnectError):
        await sandbox.kill()
    assert time.monotonic() - began < SOON
    await anyio.to_thread.run_sync(engine.start)
    await none_held(engine)

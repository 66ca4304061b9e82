"""create() is cancelled at every await and at every gate of the engine; nothing is ever left.

Cases 21 and 34: cancelled half-way, no container, no helper, no connection is left when the call returns,
and the cancellation comes out as what it is.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal, get_args

import anyio
import anyio.lowlevel
import pytest

from sandboxio.errors import CreateTimeout, CreationError, OrphanedSandboxWarning
from sandboxio_docker import DockerBackend, lifecycle
from sandboxio_docker.sandbox import DockerSandbox
from tests.fakes.engine import FakeEngine
from tests.fakes.inside import Inside
from tests.fakes.server import Request, answer
from tests.fakes.sweep import How, Outcome, sweep

Way = Literal["guest", "exec"]
WAYS: tuple[Way, ...] = ("guest", "exec")
OPERATIONS = ("ping", "image", "create", "attach", "start")


@asynccontextmanager
async def engine_with(way: Way, folder: Path) -> AsyncGenerator[FakeEngine]:
    async with FakeEngine.on(folder) as fake:
        inside = Inside(fake)
        if way == "exec":
            inside.without_python()
        yield fake


def creation(fake: FakeEngine) -> Callable[[], Awaitable[DockerSandbox]]:
    """One creation on a backend of its own, so that the version is negotiated each time."""
    return lambda: DockerBackend(host=fake.url).create(timeout=60)


async def nothing_left(fake: FakeEngine, outcome: Outcome[DockerSandbox]) -> None:
    if outcome.value is not None:
        await outcome.value.kill()
    assert outcome.cancelled or outcome.value is not None
    assert not fake.containers, f"left after a cancellation at await {outcome.point}"
    await fake.all_closed()


@pytest.mark.parametrize("how", get_args(How))
@pytest.mark.parametrize("way", WAYS)
async def test_cancelled_at_every_await(way: Way, how: How, tmp_path: Path) -> None:
    async with engine_with(way, tmp_path) as fake:
        began = time.monotonic()
        hit = await sweep(creation(fake), lambda outcome: nothing_left(fake, outcome), how)
        assert hit >= 6
        assert time.monotonic() - began < hit * 1.0, "a cancelled creation is undone at once"


@pytest.mark.parametrize("way", WAYS)
async def test_the_sweep_finds_the_leaks_of_an_unshielded_cleanup(
    way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proof that the sweep above can fail."""

    async def unshielded(work: Callable[[], Awaitable[None]], **_: object) -> bool:
        await work()
        return True

    monkeypatch.setattr(lifecycle, "bounded", unshielded)
    leaks = 0

    async def count(outcome: Outcome[DockerSandbox]) -> None:
        nonlocal leaks
        if outcome.value is not None:
            await outcome.value.kill()
        with anyio.move_on_after(0.05):  # the engine acts on what it was asked a moment later
            while not fake.containers:
                await anyio.sleep(0.005)
        leaks += len(fake.containers)
        for container in list(fake.containers):
            await lifecycle.remove(DockerBackend(host=fake.url)._engine, container)

    async with engine_with(way, tmp_path) as fake:
        await sweep(creation(fake), count)
        assert leaks > 0


@pytest.mark.parametrize("phase", ["before", "after", "half"])
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("way", WAYS)
async def test_cancelled_while_the_engine_is_slow(
    way: Way, operation: str, phase: str, tmp_path: Path
) -> None:
    """The engine acts 50 ms after the caller has gone; what it makes then is removed all the same."""
    async with engine_with(way, tmp_path) as fake:
        with fake.gate(operation, phase) as gate:
            caught = False
            async with anyio.create_task_group() as tasks:

                async def create() -> None:
                    nonlocal caught
                    try:
                        await creation(fake)()
                    except anyio.get_cancelled_exc_class():
                        caught = True
                        assert not fake.containers
                        raise

                async def release() -> None:
                    with anyio.CancelScope(shield=True):
                        await anyio.sleep(0.05)
                        gate.release()

                tasks.start_soon(create)
                with anyio.fail_after(10):
                    await gate.reached.wait()
                tasks.start_soon(release)
                await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
            assert caught
        with anyio.fail_after(5):
            while fake.containers:
                await anyio.sleep(0.01)
        await fake.all_closed()


@pytest.mark.parametrize("operation", ["create", "attach", "start"])
async def test_out_of_time_at_each_step(operation: str, tmp_path: Path) -> None:
    async with engine_with("guest", tmp_path) as fake:
        with fake.gate(operation, "before") as gate, anyio.CancelScope():
            async with anyio.create_task_group() as tasks:

                async def release() -> None:
                    await gate.reached.wait()
                    await anyio.sleep(0.4)
                    gate.release()

                tasks.start_soon(release)
                with pytest.raises(CreateTimeout, match=r"0\.2 s"):
                    await DockerBackend(host=fake.url).create(timeout=0.2)
                tasks.cancel_scope.cancel()
        with anyio.fail_after(5):
            while fake.containers:
                await anyio.sleep(0.01)
        await fake.all_closed()


async def test_an_answer_that_never_comes_is_warned_about_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 21: the library chose the name, so it can say what to look for."""
    monkeypatch.setenv("SBX_TEARDOWN_GRACE", "0.6")
    async with engine_with("guest", tmp_path) as fake:
        with fake.gate("create", "before"), warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            began = time.monotonic()
            with pytest.raises(CreateTimeout):
                await DockerBackend(host=fake.url).create(timeout=0.2, metadata={"tenant_id": "acme"})
            assert time.monotonic() - began < 3
        (warning,) = [each for each in told if each.category is OrphanedSandboxWarning]
        name = fake.asked("create")[0].query["name"]
        assert name.startswith("sandboxio-")
        assert name in str(warning.message)
        assert "tenant_id=acme" in str(warning.message)
        assert {request.path.rpartition("/")[2] for request in fake.asked("delete")} == {name}


async def test_a_container_that_appears_late_is_found_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection breaks before the answer; a DELETE that answers 404 proves nothing yet."""
    monkeypatch.setenv("SBX_TEARDOWN_GRACE", "3")
    async with engine_with("guest", tmp_path) as fake:

        async def create() -> None:
            with pytest.raises(CreationError, match="did not serve"):
                await DockerBackend(host=fake.url).create(timeout=60)

        with fake.gate("create", "before") as gate:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(create)
                await gate.reached.wait()
                for connection in list(fake.open):
                    connection.end_sending()
                await anyio.sleep(0.1)
                gate.release()
        assert not fake.containers
        assert len(fake.asked("delete")) > 1
        await fake.all_closed()


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (answer(504, b"<html>Gateway Time-out</html>"), "504"),
        (answer(502, b"<html>Bad Gateway</html>"), "502"),
        (answer(201, b"<html>"), "not JSON"),
        (answer(201, {}), "shape"),
        (answer(201, []), "shape"),
    ],
    ids=["504", "502", "no JSON", "no id", "a list"],
)
async def test_a_container_whose_creation_was_answered_wrongly_is_found_by_its_name(
    raw: bytes, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a proxy before the engine, which made the container all the same, perhaps later."""
    async with engine_with("guest", tmp_path) as fake:
        real = fake._create

        async def create(request: Request) -> bytes:
            async def later() -> None:
                await anyio.sleep(0.05)
                await real(request)

            fake._group.start_soon(later)
            return raw

        monkeypatch.setattr(fake, "_create", create)
        with pytest.raises(CreationError, match=says):
            await creation(fake)()
        assert len(fake.asked("delete")) > 1
        assert not fake.containers
        await fake.all_closed()

"""Every cancellation of every operation leaves the shared connection whole."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import anyio
import pytest

from sandboxio_docker import mux as real
from sandboxio_docker.guest_protocol import ConnectionLost, GuestProtocolError
from tests.guest.rounds import Decoder, run_rounds
from tests.guest.scenarios import SCENARIOS, Memory, answer

ROUNDS = int(os.environ.get("SBX_TEST_ROUNDS", "40"))
SEED = int(os.environ.get("SBX_TEST_SEED", "0")) or int.from_bytes(os.urandom(4), "big")


@pytest.mark.timeout(60 + ROUNDS)
async def test_many_operations_with_cancellations_everywhere() -> None:
    print("seed", SEED)
    driver = await run_rounds(real, SEED, ROUNDS)
    assert driver.done + driver.cancelled == ROUNDS * 64
    assert driver.done > ROUNDS * 15
    assert driver.cancelled > ROUNDS * 5


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    text = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
    text += f" -subj /CN=localhost -addext subjectAltName=DNS:localhost -keyout {key} -out {cert}"
    subprocess.run(text.split(), check=True, capture_output=True)
    return cert, key


async def test_the_same_over_tls(certificate: tuple[Path, Path]) -> None:
    print("seed", SEED)
    driver = await run_rounds(real, SEED, max(10, ROUNDS // 4), tls=certificate)
    assert driver.done


def joined() -> tuple[Memory, real.Mux]:
    port = Memory()
    return port, real.Mux(port, Decoder())


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.__name__)
async def test_someone_always_reads_and_nothing_is_cut(scenario: Any) -> None:
    await scenario(real)


async def test_the_end_of_the_connection_reaches_everybody() -> None:
    port, mux = joined()
    failures: list[str] = []

    async def wait(number: int) -> None:
        with pytest.raises(ConnectionLost) as caught:
            await mux.open(number).receive()
        failures.append(str(caught.value))

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            for number in range(1, 9):
                group.start_soon(wait, number)
            await anyio.wait_all_tasks_blocked()
            port.put(b"")
    assert failures == ["the other side has closed it"] * 8


async def test_events_that_have_come_survive_the_end() -> None:
    port, mux = joined()
    channel = mux.open(1)
    mux.feed(answer(1))
    mux.feed(b"")
    assert (await channel.receive()).op == 1
    with pytest.raises(ConnectionLost):
        await channel.receive()
    assert mux.failure is not None
    mux.close()
    assert port.closed


async def test_what_the_other_side_said_before_it_went_is_read_though_nothing_can_be_sent() -> None:
    port, mux = joined()
    channel = mux.open(1)

    async def refuse(_data: memoryview) -> int:
        raise BrokenPipeError("gone")

    port.send_some = refuse  # type: ignore[method-assign]
    channel.post(b"credit")
    port.put(answer(1))
    port.put(b"")
    assert (await channel.receive()).op == 1
    with pytest.raises(ConnectionLost, match="gone"):
        await channel.send(b"more")
    with pytest.raises(ConnectionLost, match="closed"):
        await channel.receive()


async def test_close_wakes_readers_and_writers() -> None:
    port, mux = joined()
    port.room = 3
    ended: list[int] = []

    async def write() -> None:
        with pytest.raises(ConnectionLost):
            await mux.open(1).send(b"123456")
        ended.append(1)

    async def read() -> None:
        with pytest.raises(ConnectionLost):
            await mux.open(2).receive()
        ended.append(2)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(write)
            await anyio.wait_all_tasks_blocked()
            group.start_soon(read)
            await anyio.wait_all_tasks_blocked()
            mux.close()
            port.room = 1 << 30
            port.news.set()
    assert sorted(ended) == [1, 2]


async def test_posted_frames_leave_with_the_next_receive() -> None:
    port, mux = joined()
    channel = mux.open(1)
    channel.post(b"credit")
    assert not port.sent
    port.put(answer(1))
    await channel.receive()
    assert port.sent == b"credit"


async def test_bytes_that_nobody_can_have_sent_end_it_for_all() -> None:
    def decode(_data: bytes) -> list[object]:
        raise GuestProtocolError("forged")

    port = Memory()
    mux: real.Mux = real.Mux(port, decode)  # type: ignore[arg-type]
    port.put(b"x")
    with pytest.raises(ConnectionLost, match="forged"):
        await mux.open(1).receive()
    with pytest.raises(ConnectionLost, match="forged"):
        await mux.open(2).send(b"y")


async def test_two_tasks_cannot_receive_for_one_operation() -> None:
    _, mux = joined()
    first, second = mux.open(1), mux.open(2)
    async with anyio.create_task_group() as group:
        group.start_soon(first.receive)
        await anyio.wait_all_tasks_blocked()
        group.start_soon(second.receive)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(anyio.BusyResourceError):
            await second.receive()
        group.cancel_scope.cancel()


def test_a_number_has_one_channel() -> None:
    _, mux = joined()
    mux.open(1)
    with pytest.raises(ValueError, match="channel"):
        mux.open(1)

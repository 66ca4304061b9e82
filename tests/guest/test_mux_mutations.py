"""Each invariant of the mux, dropped, makes the rounds of test_mux.py fail."""

# ruff: noqa: ISC004  # changes are pairs of lines

from __future__ import annotations

from typing import Any

import pytest

from sandboxio_docker import mux as real
from tests.guest import rounds, scenarios
from tests.guest.mutants import mutant
from tests.guest.scenarios import SCENARIOS

MUTATIONS: dict[str, list[tuple[str, str]]] = {
    "the lead is passed on only after success": [
        ("            return event\n        finally:\n            self._pass_on()\n",
         "            self._pass_on()\n            return event\n        finally:\n            pass\n"),
    ],
    "only who has led passes on": [
        ("            while (event := channel.receive_now()) is None:\n",
         "            led = False\n            while (event := channel.receive_now()) is None:\n"
         "                led = not self._leading\n"),
        ("        finally:\n            self._pass_on()\n",
         "        finally:\n            if led:\n                self._pass_on()\n"),
        ("        try:\n            if self._head or self._outbox:\n",
         "        led = True\n        try:\n            if self._head or self._outbox:\n"),
    ],
    "who has an event when it wakes does not look for a successor": [
        ("        finally:\n            self._pass_on()\n",
         "        except BaseException:\n            self._pass_on()\n            raise\n"),
    ],
    "an await stands between reading and decoding": [
        ("                self.feed(await self._port.receive_some())\n",
         "                data = await self._port.receive_some()\n"
         "                await anyio.lowlevel.checkpoint()\n"
         "                self.feed(data)\n"),
        ("import anyio\n", "import anyio\nimport anyio.lowlevel\n"),
    ],
    "the rest of a cancelled sender is forgotten": [
        ("                except (OSError, anyio.ClosedResourceError) as error:\n"
         "                    # What",
         "                except anyio.get_cancelled_exc_class():\n"
         "                    self._head = memoryview(b'')\n"
         "                    raise\n"
         "                except (OSError, anyio.ClosedResourceError) as error:\n"
         "                    # What"),
    ],
    "writers do not wait for each other": [
        ("        async with self._writing:\n", "        if True:\n"),
    ],
    "a frame is taken for sent when its first bytes are": [
        ("self._head = self._head[sent:]", "self._head = memoryview(b'')"),
    ],
    "a sleeper is not told that its event has come": [
        ("                        self._asleep[channel].set()\n", "                        pass\n"),
    ],
    "a leader goes on reading though its own event has come": [
        ("while not channel.events and self._failure is None:", "while self._failure is None:"),
    ],
}  # fmt: skip


async def challenge(module: Any) -> None:
    """Everything that a mux has to stand; the short ways to a failure first."""
    for scenario in SCENARIOS:
        await scenario(module)
    for seed in range(1, 5):
        await rounds.run_rounds(module, seed, 5)


@pytest.mark.parametrize("name", MUTATIONS)
async def test_a_broken_mux_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "PATIENCE", 1.0)
    monkeypatch.setattr(scenarios, "SOON", 0.2)
    failures: list[BaseException] = []
    with mutant(real, *MUTATIONS[name]) as module:
        try:
            await challenge(module)
        except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001  # any failure will do
            failures.append(error)
    assert failures, "a mux that is broken like this passes every test"


async def test_the_whole_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "PATIENCE", 5.0)
    with mutant(real) as module:
        await challenge(module)

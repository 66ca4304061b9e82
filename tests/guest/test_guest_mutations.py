"""Each promise of the guest, broken in its source, makes a test fail."""

# ruff: noqa: ISC004, E501  # changes are pairs of lines, as they stand

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sandboxio_docker import guest as real, launcher
from sandboxio_docker.guest_protocol import Fate
from tests.guest import test_guest_runs
from tests.guest.mutants import broken, mutant
from tests.guest.rawclient import Closed, Local
from tests.guest.test_guest_kills import attack, living
from tests.guest.test_paired import play

Guests = Callable[..., Local]
Changes = list[tuple[str, str]]

PAIRED: dict[str, Changes] = {
    "output is sent without credit": [
        ("        size = min(MAX_PAYLOAD, stream.credit)\n        if stream.tail is not None:\n"
         "            size = min(size, stream.tail)\n        if size > 0:",
         "        size = MAX_PAYLOAD\n        if stream.tail is not None:\n"
         "            size = min(size, stream.tail)\n        if size > 0:"),
    ],
    "a file is sent without credit": [("            while job.credit <= 0:\n", "            while False:\n"),
        ("min(MAX_PAYLOAD, job.credit)", "MAX_PAYLOAD")],
    "the rest in the pipe is lost at the end": [
        ("stream.tail = waiting_bytes(stream.fd)", "stream.tail = 0"),
    ],
    "a background child holds the end": [
        ("                elif stream.tail == 0:\n                    self.leave(stream)\n", ""),
    ],
    "the end does not wait for credit": [
        ("run.kill is None and all(s.fd < 0 for s in run.streams)", "run.kill is None"),
    ],
    "credit does not wake an ended run": [
        ("                    candidate.credit += size\n                    self.watch.add(candidate)\n",
         "                    candidate.credit += size\n"),
    ],
    "a kill of the unknown is not answered": [
        ("        else:\n            self.link.send(KILLED, op, bytes([UNKNOWN]))\n", ""),
    ],
    "a kill of an ended run is not answered": [
        ("            kill.answers += 1\n            if not under_way:", "            if not under_way:"),
    ],
    "a kill is answered twice": [
        ("        for _ in range(job.answers):\n", "        for _ in range(2 * job.answers):\n"),
    ],
    "a kill waits for credit": [
        ("                self.cut_off(run)\n            self.try_end", "                pass\n            self.try_end"),
    ],
    "a cancelled file operation has no end of its own": [
        ("            self.link.fail(op, CANCELLED)\n            self.link.send(KILLED", "            self.link.send(KILLED"),
    ],
    "room for input is not given back": [
        ("            self.link.send(GRANT, feed.run.op, U32.pack(feed.owed))\n", ""),
    ],
    "more room for input is given than was": [
        ("            feed.owed = 0\n", "            feed.owed = 1\n"),
    ],
    "uploads are not given room": [
        ("            job.link.send(GRANT, job.op, U32.pack(len(chunk)))\n", ""),
    ],
    "the end of input is not passed on": [
        ("            elif feed.closing:\n                self.close_feed(feed)\n", ""),
    ],
    "a piece of input is written twice": [
        ("            feed.chunks[0] = feed.chunks[0][size:]\n",
         "            feed.chunks[0] = feed.chunks[0][size - (size > 1) :]\n"),
    ],
    "file operations that wait for credit are not resumed": [
        ("            self.jobs[op].credit += size\n            self.wake(self.jobs[op])\n", "            self.jobs[op].credit += size\n"),
    ],
    "file operations that wait for input are not resumed": [
        ("        if job:\n            self.wake(job)\n        elif run", "        if job:\n            pass\n        elif run"),
    ],
    "a cancelled upload leaves its temporary file": [
        ("                os.unlink(temporary)\n            except OSError:\n                pass\n    job.done",
         "                pass\n            except OSError:\n                pass\n    job.done"),
    ],
    "frames that are cut are thrown away": [("        self.rest = data[at:]\n        return found", "        return found")],
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRED)
def test_both_ends_paired_catch(name: str, tmp_path: Path) -> None:
    (tmp_path / "content").write_bytes(os.urandom(700_000))
    with mutant(real, *PAIRED[name]) as module:
        for seed in range(80):
            try:
                play(module, tmp_path, seed, 250)
            except Exception:  # noqa: BLE001  # any failure will do
                return
            if [entry for entry in os.listdir(tmp_path) if entry.startswith(".sandboxio")]:
                return
    pytest.fail("a guest that is broken like this passes")


def test_the_whole_one_passes(tmp_path: Path) -> None:
    (tmp_path / "content").write_bytes(os.urandom(700_000))
    with mutant(real) as module:
        for seed in range(80):
            play(module, tmp_path, seed, 250)


# In processes


def program(*changes: tuple[str, str]) -> bytes:
    text = Path(real.__file__).read_text()
    return launcher.message(broken(text, list(changes)).encode())


def with_changes(guest: Guests, *changes: tuple[str, str]) -> Guests:
    def start(*args: str, **options: object) -> Local:
        return guest(*args, program=program(*changes), limit=3, **options)

    return start


def test_a_guest_that_stops_reading_while_it_cannot_write(guest: Guests) -> None:
    change = ("        try:\n            data = os.read(0, 256 * 1024)\n",
              "        if self.guest.link.full:\n            time.sleep(0.01)\n            return\n"
              "        try:\n            data = os.read(0, 256 * 1024)\n")  # fmt: skip
    made: list[Local] = []

    def start() -> Local:
        made.append(with_changes(guest, change)())
        return made[0]

    with pytest.raises(TimeoutError):
        test_guest_runs.test_the_guest_reads_on_while_nobody_reads_from_it(start)
    made[0].process.kill()  # it is deaf to the end of its connection, too


KILLS: dict[str, tuple[str, Changes]] = {
    "the second mark is not set": (
        "bystander",
        [("                resource.prlimit(pid, LOCKS, (number, number))\n", "                pass\n")],
    ),
    "parents and sessions are believed": (
        "cleared",
        [("        if not self.marks.working:\n            return self.find_by_family(jobs)\n        looked",
          "        if True:\n            return self.find_by_family(jobs)\n        looked"),
         ("        if not self.marks.working:\n            yield from", "        if True:\n            yield from")],
    ),
    "one scan is enough": (
        "comets",
        [("            if not job.live:\n                self.reap()", "            if job.rounds > 1:\n                self.reap()")],
    ),
    "nothing tells the guest's processes from the run's": (
        "bystander",
        [("        return span is not None and span[0] <= self.mark <= span[1]", "        return span is not None")],
    ),
}  # fmt: skip
PATIENCE = 60.0  # seconds: most escape in two, but it takes luck, and on a busy machine more of it


@pytest.mark.timeout(PATIENCE + 30)
@pytest.mark.parametrize("name", KILLS)
def test_an_adversary_escapes_from(guest: Guests, adversary: str, name: str) -> None:
    mode, changes = KILLS[name]
    client = with_changes(guest, *changes)()
    if mode == "bystander":  # what an innocent run left dies with an older run
        older = client.start("sleep", "300")
        client.sh("setsid sleep 300 > /dev/null 2>&1 & sleep 0.1")
        client.kill(older)
        assert not living(client), "it was spared"
        return
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        op = attack(client, adversary, mode, 3)
        try:
            fate = client.kill(op).fate
        except (AssertionError, Closed):
            return
        if fate != Fate.DEAD or "adversary" in living(client):
            return
    pytest.fail(f"{PATIENCE:g} s of kills by a guest that is broken like this left nobody")

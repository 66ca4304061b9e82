"""One run dies with everything it started, however that hides, and nobody else is touched."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sandboxio_docker import guest_protocol as w, launcher
from sandboxio_docker.guest_protocol import Ending, Fate
from tests.guest.conftest import ANY
from tests.guest.rawclient import Local

Guests = Callable[..., Local]
BYSTANDERS = 14

ADVERSARIES = {
    "daemons": 50,
    "cleared": 50,
    "undumpable": 50,
    "lowered": 50,
    "posing": 50,
    "early": 50,
    "deaf": 20,
    "stopped": 20,
    "zombies": 50,
    "vforks": 10,
    "traced": 10,
    "threads": 1,
    "threaded-forks": 1,
    "spammers": 3,
    "forking-spammers": 3,
    "comets": 1,
    "suicidal-comets": 1,
}
CROWD_OF_COMETS = 10


def processes(client: Local) -> list[tuple[str, str]]:
    """State and name of every process but the guest and the one that looks."""
    end, out, _ = client.run("ps", "-A", "-o", "stat=,comm=")
    assert end.exit_code == 0
    lines = [tuple(line.split(None, 1)) for line in out.decode().splitlines()]
    return [(state, name) for state, name in lines[1:] if name != "ps"]


def living(client: Local) -> list[str]:
    """Names of those that are more than an entry for their parent to collect."""
    return [name for state, name in processes(client) if state[0] != "Z"]


def start_bystanders(client: Local) -> list[int]:
    """Ordinary runs of three kinds: one process, a shell with a child, one with a daemon."""
    texts = ("exec sleep 300", "sleep 300; true", "(setsid sleep 300 &) ; exec sleep 300")
    ops = [client.start("sh", "-c", texts[n % 3]) for n in range(BYSTANDERS)]
    deadline = time.monotonic() + 10
    while sorted(name for _, name in processes(client)) != ALL_THERE:
        assert time.monotonic() < deadline, processes(client)
    return ops


ALL_THERE = ["sh"] * 5 + ["sleep"] * 18


def assert_only_bystanders(client: Local, ops: list[int]) -> None:
    for op in ops:
        assert not any(isinstance(event, w.End) for event in client.events[op]), "a bystander died"
    assert sorted(living(client)) == ALL_THERE
    deadline = time.monotonic() + 5
    while odd := [entry for entry in processes(client) if entry[0][0] in "TZ"]:
        assert time.monotonic() < deadline, f"stopped, or not collected: {odd}"


def test_children_of_the_first_instant_are_marked_too(guest: Guests, adversary: str) -> None:
    """Without their second mark they would die with an older run, and run at the guest's own priority."""
    client = guest()
    older = client.start("sleep", "300")
    ops = [client.start(adversary, "swift", "3") for _ in range(60)]
    for op in ops:
        assert client.last(op).exit_code == 0
    _, out, _ = client.run("ps", "-A", "-o", "comm=,nice=")
    swift = [line.split()[1] for line in out.decode().splitlines() if line.startswith("adversary")]
    assert swift == ["10"] * 180
    assert client.kill(older).fate == Fate.DEAD
    assert len(living(client)) == 180
    for number, op in enumerate(ops, 1):
        assert client.kill(op).fate == Fate.DEAD
        assert len(living(client)) == 180 - 3 * number


def attack(client: Local, adversary: str, mode: str, number: int) -> int:
    op = client.start(adversary, mode, str(number))
    client.until(op, w.Output)
    if mode == "early":
        client.last(op)
    return op


@pytest.mark.parametrize("mode", ADVERSARIES)
def test_no_adversary_outlives_its_run(guest: Guests, adversary: str, mode: str) -> None:
    client = guest()
    ops = start_bystanders(client)
    for _ in range(2):
        op = attack(client, adversary, mode, ADVERSARIES[mode])
        began = time.monotonic()
        assert client.kill(op).fate == Fate.DEAD
        took = time.monotonic() - began
        assert took < 2, f"the kill took {took:.3f} s"
        assert_only_bystanders(client, ops)


def test_a_crowd_of_comets(guest: Guests, adversary: str) -> None:
    client = guest()
    ops = start_bystanders(client)
    op = attack(client, adversary, "comets", CROWD_OF_COMETS)
    assert client.kill(op).fate == Fate.DEAD
    assert_only_bystanders(client, ops)


def test_several_runs_die_at_once(guest: Guests, adversary: str) -> None:
    client = guest()
    ops = start_bystanders(client)
    doomed = [
        attack(client, adversary, mode, 5) for mode in ("cleared", "posing", "stopped", "daemons", "deaf")
    ]
    doomed += [client.start("sleep", "300") for _ in range(20)]
    client.send(b"".join(client.wire.kill(op) for op in doomed))
    for op in doomed:
        assert client.until(op, w.Killed).fate == Fate.DEAD
        assert client.last(op).how == Ending.KILLED
    assert_only_bystanders(client, ops)


def test_a_timeout_kills_the_same_and_keeps_the_output(guest: Guests, adversary: str) -> None:
    client = guest()
    ops = start_bystanders(client)
    began = time.monotonic()
    end, out, _ = client.run(adversary, "cleared", "20", timeout=0.3)
    assert 0.25 < time.monotonic() - began < 2
    assert (end.how, end.exit_code, out) == (Ending.TIMED_OUT, 137, b"ready\n")
    assert_only_bystanders(client, ops)


def test_the_clock_of_a_run_does_not_stop_for_its_output(guest: Guests) -> None:
    client = guest()
    client.credit = False
    op = client.start("sh", "-c", "yes", timeout=0.3)
    deadline = time.monotonic() + 1
    while time.monotonic() < deadline:
        client.pump(0.1)
    _, out, _ = client.run("ps", "-A", "-o", "comm=")
    assert b"yes" not in out
    client.credit = True
    client.give_back(op, 1, w.FIRST_WINDOW)
    assert client.last(op).how == Ending.TIMED_OUT


def test_a_run_whose_main_process_is_traced_by_another_run_ends_all_the_same(
    guest: Guests, adversary: str
) -> None:
    client = guest()
    victims = [client.start("sleep", "300", tell=True, timeout=t) for t in (None, 0.5)]
    pids = [client.until(op, w.Started).pid for op in victims]
    for pid in pids:
        attack(client, adversary, "tracer", pid)
    assert client.kill(victims[0]).fate == Fate.DEAD
    assert client.last(victims[0]).exit_code == 137
    assert client.last(victims[1]).how == Ending.TIMED_OUT


def test_a_main_process_that_stops_for_its_parent_has_not_ended(guest: Guests, adversary: str) -> None:
    """PTRACE_TRACEME makes process 1 the tracer, and its wait tells of stops, too."""
    client = guest()
    op = attack(client, adversary, "stopped-for-its-parent", 1)
    assert client.run("true")[0].exit_code == 0
    time.sleep(0.2)
    client.pump(0.1)
    assert not any(isinstance(event, w.End) for event in client.events[op])
    assert client.kill(op).fate == Fate.DEAD
    end = client.last(op)
    assert (end.exit_code, end.how) == (137, Ending.KILLED)
    end, _, _ = client.run(adversary, "stopped-for-its-parent", timeout=0.3)
    assert end.how == Ending.TIMED_OUT
    assert living(client) == []


def test_kill_after_the_end_kills_what_was_left_behind(guest: Guests, adversary: str) -> None:
    client = guest()
    end, _, _ = client.sh(f"{adversary} cleared 5 & sleep 0.2")
    assert end.exit_code == 0
    assert len(living(client)) == 6
    assert client.kill(end.op).fate == Fate.DEAD
    assert living(client) == []


def test_kill_of_what_was_never_started(guest: Guests, python: str) -> None:
    client = guest(python)
    op = client.wire.new_operation()
    client.wire.start(op, [b"never", b"sent"])
    assert client.kill(op).fate == Fate.UNKNOWN
    op = client.wire.new_operation()
    parts = client.wire.start(op, [b"true", bytes(100_000)])
    client.send(parts[: w.HEAD.size + w.MAX_PAYLOAD])
    assert client.kill(op).fate == Fate.UNKNOWN
    assert client.run("true")[0].exit_code == 0


def test_a_killed_run_has_its_end_before_the_answer(guest: Guests, python: str) -> None:
    client = guest(python)
    op = client.start("sh", "-c", "printf out; sleep 300")
    client.until(op, w.Output)
    client.kill(op)
    assert [type(event) for event in client.events[op]] == [w.Output, w.End, w.Killed]
    end = client.last(op)
    assert (end.exit_code, end.signal, end.how) == (137, 9, Ending.KILLED)


def test_kill_does_not_wait_for_credit(guest: Guests) -> None:
    client = guest()
    client.credit = False
    op = client.start("yes")
    while len(client.output[op, 1]) < w.FIRST_WINDOW:
        client.pump(5)
    assert client.kill(op, seconds=2).fate == Fate.DEAD


def test_kill_and_natural_end_cross(guest: Guests) -> None:
    client = guest()
    for number in range(200):
        op = client.start("sleep", f"0.00{number % 4}")
        assert client.kill(op).fate in (Fate.DEAD, Fate.UNKNOWN)
        assert sum(isinstance(event, w.End) for event in client.events[op]) == 1
    assert living(client) == []


def test_a_second_guest_kills_only_its_own(guest: Guests, adversary: str, work: Path) -> None:
    """What connect() uses: not process 1, beside the first guest, in the same PID namespace."""
    if os.geteuid() != 0:
        pytest.skip("entering the namespace takes root")
    first = guest()
    ops = start_bystanders(first)
    found = subprocess.run(
        ["pgrep", "-P", str(first.process.pid)], capture_output=True, text=True, check=True
    )
    told = launcher.arguments(0, lifeline=True, work=os.fspath(work), localhost=False)
    command = ["nsenter", "-t", found.stdout.strip(), "-p", "-m", *launcher.with_python(told, ANY)]
    with Local("", os.fspath(work), namespace=False, command=command) as second:
        hello = second.hello()
        assert hello.pid != 1
        assert w.Trait.MARKS in hello.traits
        assert w.Trait.ADOPTS in hello.traits
        for mode in ("cleared", "posing", "early", "daemons", "stopped", "comets"):
            op = attack(second, adversary, mode, 3)
            assert second.kill(op).fate == Fate.DEAD, mode
        keeps = second.start("sleep", "300", tell=True)
        second.until(keeps, w.Started)
        victim = attack(first, adversary, "lowered", 10)
        assert first.kill(victim).fate == Fate.DEAD
        assert second.run("true")[0].exit_code == 0
        assert not any(isinstance(event, w.End) for event in second.events[keeps])
        # nsenter stops with its child when everything is frozen for an instant, and does not go on with it.
        second.process.send_signal(signal.SIGCONT)
    assert_only_bystanders(first, ops)

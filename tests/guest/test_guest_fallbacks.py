"""Where the system lacks something, the guest does with less, and says so."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sandboxio_docker import guest as real, guest_protocol as w, launcher
from sandboxio_docker.guest_protocol import Ending, Fate, Trait
from tests.guest.mutants import broken
from tests.guest.rawclient import Closed, Local
from tests.guest.test_guest_kills import attack, living

Guests = Callable[..., Local]


def without(*changes: tuple[str, str]) -> bytes:
    return launcher.message(broken(Path(real.__file__).read_text(), list(changes)).encode())


# As under gVisor, where setrlimit fails.
NO_MARKS = without(("self.working = kept and before == {NO_LIMIT}", "self.working = False"))
# As with a C library without POSIX_SPAWN_SETSID.
NO_SETSID = without(
    (
        "        actions = [(os.POSIX_SPAWN_DUP2",
        "        raise NotImplementedError\n        actions = [(os.POSIX_SPAWN_DUP2",
    )
)
# As if a process were killed before it got to its own session.
NO_SESSION = without(
    (
        "        actions = [(os.POSIX_SPAWN_DUP2",
        "        raise NotImplementedError\n        actions = [(os.POSIX_SPAWN_DUP2",
    ),
    ("                    os.setsid()\n", ""),
)
# As if the process ran for long before the guest gets to it.
NEVER_SETTLED = without(("        self.spawner.settle(run.pid)\n", ""))
# As if the guest lost the CPU between its two looks at an ended child.
LATE = without(
    (
        "            pid, status, usage = os.wait4(",
        "            time.sleep(0.2)\n            pid, status, usage = os.wait4(",
    )
)
# As after ten seconds.
IMPATIENT = without(("START_BOUND = 10.0 ", "START_BOUND = 0.5 "))
# As where an emulator of the processor keeps the last two signals for itself.
KEPT = without(
    ("signal.signal(number, signal.SIG_IGN)\n", "number < 63 or os.open(b'/kept', os.O_RDONLY)\n"),
)
# As where the kernel makes it wait.
HELD = without(
    ("        os.unlink(path)\n", "        time.sleep(300)\n"), ("OVERDUE = 1.0 ", "OVERDUE = 0.2 ")
)
NO_C = without(('__import__("_ctypes")', '__import__("no_such_module")'))
# As with a Python that names these things otherwise.
OTHER_C = without(("c.call_function(function", "c.no_such_function(function"))


@pytest.mark.parametrize("mode", ["daemons", "deaf", "stopped", "zombies", "vforks", "threads"])
def test_without_marks_ordinary_runs_die_all_the_same(guest: Guests, adversary: str, mode: str) -> None:
    client = guest(program=NO_MARKS)
    assert Trait.MARKS not in client.hello().traits
    bystanders = [client.start("sleep", "300") for _ in range(3)]
    op = attack(client, adversary, mode, 10)
    assert client.kill(op).fate == Fate.DEAD
    assert living(client) == ["sleep"] * 3
    assert not any(isinstance(event, w.End) for op in bystanders for event in client.events[op])
    end, _, _ = client.sh(f"{adversary} daemons 5; true", timeout=0.5)
    assert end.how == Ending.TIMED_OUT
    assert living(client) == ["sleep"] * 3


def test_by_fork_and_exec_everything_is_the_same(guest: Guests, python: str) -> None:
    client = guest(python, program=NO_SETSID)
    end, out, err = client.sh("printf out; printf err >&2; readlink /proc/self/fd/0; ls /proc/$$/fd; exit 3")
    assert (end.exit_code, err) == (3, b"err")
    assert out.split() == [b"out/dev/null", b"0", b"1", b"2"]
    _, out, _ = client.run("grep", "-E", "Sig(Blk|Ign)", "/proc/self/status")
    # The C library's own posix_spawn leaves its two internal signals, 32 and 33, ignored; `make` uses it.
    assert [int(line.split()[1], 16) & ~(3 << 31) for line in out.splitlines()] == [0, 0]
    assert client.run("no-such-program")[0].exit_code == 127
    assert client.run("/etc/passwd")[0].exit_code == 126
    last = client.last(client.start("true", b"a" * 200_000))
    assert last == w.Failed(last.op, w.Reason.SYSTEM, "E2BIG")
    op = client.start("sh", "-c", "echo $$; ps -o sid= $$; sleep 300 & sleep 300")
    while client.output[op, 1].count(b"\n") < 2:
        client.pump(5)
    assert client.kill(op).fate == Fate.DEAD
    pid, sid = client.output[op, 1].split()
    assert pid == sid
    assert living(client) == []


def test_the_oom_killer_prefers_a_new_process_from_its_first_instruction(guest: Guests, python: str) -> None:
    """What it forks before the guest raises its score would otherwise be spared, and it die first."""
    client = guest(python, program=NEVER_SETTLED)
    assert client.run("cat", "/proc/self/oom_score_adj")[1] == b"500\n"
    wait = "until [ $(cat /proc/1/oom_score_adj) = 0 ]; do :; done; echo back to 0"
    assert client.sh(wait, timeout=20)[1] == b"back to 0\n"
    assert client.run("no-such-program")[0].exit_code == 127
    assert client.sh(wait, timeout=20)[1] == b"back to 0\n"


def test_a_python_without_a_way_to_c_says_that_it_is_not_hidden(guest: Guests) -> None:
    client = guest(program=NO_C)
    assert Trait.HIDDEN not in client.hello().traits
    assert client.run("echo", "works")[1] == b"works\n"


def test_the_way_to_c_that_is_promised_will_do(guest: Guests, python: str) -> None:
    assert Trait.HIDDEN in guest(python, program=OTHER_C).hello().traits


def test_a_kill_spares_the_group_of_the_guest_itself(guest: Guests, work: Path, python: str) -> None:
    """Under another first process (`docker run --init`) the guest leads a group like any other."""
    told = launcher.arguments(120, lifeline=True, work=os.fspath(work), localhost=False)
    first = ["sh", "-c", 'setsid "$0" "$@"; exit 0', *launcher.with_python(told, python)]
    client = guest(program=NO_SESSION, command=first)
    spared, op = client.start("sleep", "300"), client.start("sleep", "300")
    assert client.kill(op).fate == Fate.DEAD
    assert client.run("echo", "works")[1] == b"works\n"
    assert not any(isinstance(event, w.End) for event in client.events[spared])
    assert client.kill(spared).fate == Fate.DEAD


@pytest.mark.parametrize(
    "place", ['"/sys/fs/cgroup/memory.events"', '"/sys/fs/cgroup%s/memory.events" % own'], ids=["root", "own"]
)
def test_a_kill_for_memory_is_counted_under_cgroup_v2(guest: Guests, place: str, tmp_path: Path) -> None:
    """The file as Linux documents it (Documentation/admin-guide/cgroup-v2.rst, memory.events), made here."""
    counter = tmp_path / "memory.events"
    text = "low 0\nhigh 0\nmax 27\noom 3\noom_kill {}\noom_group_kill 0\n"
    counter.write_text(text.format(2))
    here = (('(1, "/sys/fs/cgroup/memory/memory.oom_control"),', ""), (place, f'"{counter}"'))
    client = guest(program=without(*here))
    assert client.hello().cgroup == 2
    overlapping = client.start("sh", "-c", "echo here; read line; kill -9 $$", has_input=True)
    client.until(overlapping, w.Output)
    dies = f"printf '{text.format('%d')}' $1 >{counter}; kill -9 $$"
    end, _, _ = client.run("sh", "-c", dies, "sh", "3")
    assert (end.exit_code, end.how, end.oom_kills) == (137, Ending.OUT_OF_MEMORY, 1)
    client.feed(overlapping, b"\n")
    end = client.last(overlapping)
    assert (end.exit_code, end.how) == (137, Ending.MEMORY_HINT), "one kill is the end of one run"
    end, _, _ = client.run("sh", "-c", dies, "sh", "3")
    assert (end.exit_code, end.how, end.oom_kills) == (137, Ending(0), 0)
    end, _, _ = client.sh(dies.replace("kill -9 $$", "true").replace("$1", "5"))
    assert (end.exit_code, end.how, end.oom_kills) == (0, Ending.MEMORY_HINT, 2)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may try every user")
def test_a_guest_beside_others_ends_only_its_own_runs(work: Path, python: str) -> None:
    """Not process 1 and not alone: what it did not start, it does not touch."""
    with Local(python, os.fspath(work), namespace=False) as client:
        hello = client.hello()
        assert Trait.INIT not in hello.traits
        op = client.start("sh", "-c", "(setsid sleep 300 &) ; echo $$; sleep 300")
        client.until(op, w.Output)
        assert client.kill(op).fate == Fate.DEAD
        op = client.start("sh", "-c", "echo $$; exec sleep 300")
        client.until(op, w.Output)
        left = int(client.output[op, 1])
        assert client.run("echo", "works")[1] == b"works\n"
        client.ours.close()
        client.wait()
    deadline = time.monotonic() + 5
    while Path(f"/proc/{left}").exists():
        assert time.monotonic() < deadline, "its run outlived it"


def test_a_stop_that_is_taken_back_does_not_hold_the_guest(guest: Guests, adversary: str) -> None:
    """It would wait for the end of a process that has none, deaf to its host and its lifetime."""
    client = guest(program=LATE)
    op = attack(client, adversary, "vanishing-stop", 1)
    assert client.run("echo", "works")[1] == b"works\n"
    assert client.kill(op, seconds=5).fate == Fate.DEAD
    assert living(client) == []


def test_who_stops_new_processes_ends_the_sandbox(guest: Guests, adversary: str, python: str) -> None:
    """Process 1 waits in the kernel until a new process is its program; nothing else would end that wait."""
    client = guest(python, program=IMPATIENT)
    attack(client, adversary, "stopper", 1)

    def start_many() -> None:
        for _ in range(200):
            client.until(client.start("true", tell=True), w.Started)

    began = time.monotonic()
    with pytest.raises((Closed, BrokenPipeError)):
        start_many()
    assert client.wait() == 1
    assert time.monotonic() - began < 5
    assert "Timeout" in client.errors()


def test_the_thread_that_watches_starts_is_not_taken_for_a_child(guest: Guests, python: str) -> None:
    client = guest(python)
    for program in ("true", "/etc/passwd", "no-such-program") * 5:
        client.run(program)
    assert client.run("ps", "-o", "nice=", "-p", "1")[1].split() == [b"0"]
    wait = "until [ $(cat /proc/1/oom_score_adj) = 0 ]; do :; done; echo back to 0"
    assert client.sh(wait, timeout=20)[1] == b"back to 0\n"


def test_the_thread_that_watches_starts_goes_when_there_are_none(guest: Guests) -> None:
    """It would end a container that was paused for longer."""
    client = guest()
    threads = "ls /proc/1/task | wc -l"
    assert client.sh(threads)[1] == b"3\n"
    assert client.sh(f"until [ $({threads}) = 2 ]; do :; done; echo gone", timeout=20)[1] == b"gone\n"


def test_signals_that_cannot_be_ignored_cost_nothing_else(guest: Guests, python: str) -> None:
    client = guest(python, program=KEPT)
    assert client.run("echo", "works")[1] == b"works\n"


def test_starts_by_fork_warn_of_no_thread(guest: Guests, python: str) -> None:
    """As Python 3.12 would, into what is shown as process 1's last words."""
    client = guest(python, program=NO_SETSID)
    for _ in range(3):
        assert client.run("echo", "works")[1] == b"works\n"
    client.ours.close()
    client.wait()
    assert client.errors() == ""


@pytest.mark.parametrize("end", ["host", "lifetime"])
def test_an_end_comes_while_the_kernel_holds_process_1(
    guest: Guests, end: str, python: str, work: Path
) -> None:
    """Code inside that writes to a file from many processes makes its removal wait for them."""
    client = guest(python, program=HELD, lifetime=120 if end == "host" else 1)
    (work / "file").touch()
    client.send(client.wire.remove(client.wire.new_operation(), b"file"))
    client.start("sleep", "300")
    if end == "host":
        client.ours.close()
    began = time.monotonic()
    assert client.wait(8) == 0
    assert time.monotonic() - began < 5


def test_more_runs_than_the_limit_of_descriptors_of_what_they_start(
    guest: Guests, python: str, work: Path
) -> None:
    """Process 1 raises its own limit for their pipes, and starts each program with the container's."""
    told = launcher.arguments(120, lifeline=True, work=os.fspath(work), localhost=False)
    limited = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "prlimit", "--nofile=40:400"]
    client = guest(command=[*limited, *launcher.with_python(told, python)], namespace=False)
    for _ in range(30):
        op = client.start("sleep", "300", tell=True)
        assert isinstance(client.until(op, w.Started, w.Failed), w.Started)
    client.pump(0.3)  # the watchdog of starts rests
    assert client.sh("echo works; ulimit -n")[1] == b"works\n40\n"

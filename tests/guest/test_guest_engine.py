"""The guest in real containers, with code inside that wants it dead, deceived or deaf."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from sandboxio.models import Resources
from sandboxio_docker import guest_protocol as w, launcher
from sandboxio_docker.guest_protocol import Ending, Fate, Trait
from tests.guest.containers import Container, call, request_for
from tests.guest.rawclient import Closed
from tests.guest.test_guest_kills import (
    ADVERSARIES,
    assert_only_bystanders,
    attack,
    living,
    start_bystanders,
)

pytestmark = [pytest.mark.engine, pytest.mark.timeout(120)]
Containers = Callable[..., Container]


@pytest.fixture
def container(docker_image: str) -> Iterator[Containers]:
    with ExitStack() as stack:

        def start(**options: Any) -> Container:
            made = stack.enter_context(Container(docker_image, **options))
            made.hello()
            return made

        yield start


USERS = pytest.mark.parametrize("user", ["0:0", "1000:1000"], ids=["root", "uid1000"])


def as_user(user: str) -> dict[str, Any]:
    # /tmp, because the engine makes /work for root.
    return {"change": {"User": user}}


# Trust


@USERS
def test_process_1_is_closed_to_the_code_beside_it(container: Containers, user: str) -> None:
    client = container(**as_user(user), setup={b"SECRET": b"s3cr3t"})
    assert Trait.HIDDEN in client.hello().traits
    text = """
import os
def attempt(what, act):
    try: act()
    except OSError as error: print(what, type(error).__name__)
    else: print(what, "WORKED")
attempt("fd", lambda: os.open("/proc/1/fd/1", os.O_WRONLY))
attempt("link", lambda: os.readlink("/proc/1/fd/0"))
attempt("environ", lambda: open("/proc/1/environ").read(1))
attempt("mem", lambda: open("/proc/1/mem", "rb"))
attempt("maps", lambda: open("/proc/1/maps").read(1))
attempt("kill", lambda: os.kill(1, 9))
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for name, request in (("attach", 16), ("seize", 0x4206)):
    print(name, "refused" if libc.ptrace(request, 1, 0, 0) == -1 else "WORKED")
"""
    op = client.start("python3", "-", programs=[b"python3"], has_input=True)
    client.feed(op, text.encode())
    assert client.last(op).exit_code == 0, client.output[op, 2]
    lines = client.output[op, 1].decode().splitlines()
    # A signal to process 1 is accepted and without effect.
    assert [line for line in lines if "WORKED" in line] == ["kill WORKED"], lines
    assert len(lines) == 8
    assert client.run("true")[0].exit_code == 0


@USERS
def test_new_files_belong_to_who_runs_commands(container: Containers, user: str) -> None:
    client = container(**as_user(user))
    assert isinstance(client.write("/tmp/a", b"1"), w.Done)
    end, out, err = client.sh("echo 2 >> /tmp/a && stat -c %u:%g /tmp/a && id -u && rm /tmp/a")
    assert (end.exit_code, err) == (0, b"")
    assert out.decode().split() == [user, user.split(":", maxsplit=1)[0]]


def test_nothing_of_program_and_secrets_is_in_inspect(container: Containers) -> None:
    client = container(setup={b"SECRET": b"s3cr3t-value"})
    assert client.sh("echo $SECRET")[1] == b"s3cr3t-value\n"
    client.sh("true", env={b"OTHER": b"0ther-value"})
    text = str(client.inspect())
    assert "s3cr3t-value" not in text
    assert "0ther-value" not in text
    assert "remove_tree" not in text


# Hostile code


def test_killing_everything_spares_the_guest(container: Containers) -> None:
    client = container()
    other = client.start("sleep", "300")
    end, _, _ = client.sh("kill -9 -1; kill -9 1; sleep 1")
    assert client.last(other).exit_code == 137
    assert not client.last(other).how
    assert end.exit_code in (0, 137)
    assert client.run("echo", "alive")[1] == b"alive\n"


def test_stopping_everything_does_not_stop_the_guest(container: Containers) -> None:
    client = container()
    op = client.start("sh", "-c", "kill -STOP -1; kill -STOP 1; kill -STOP $$", timeout=1)
    assert client.last(op).how == Ending.TIMED_OUT
    assert client.run("echo", "alive")[1] == b"alive\n"


def test_a_fork_bomb_leaves_the_guest_answering(container: Containers, adversary: str) -> None:
    client = container()
    client.write("/adversary", Path(adversary).read_bytes(), mode=0o755)
    op = client.start("/adversary", "bomb", timeout=2)
    assert client.read("/etc/passwd")  # within 20 s, as everything here: the bomb has all of the CPU
    last = client.last(client.start("true"))
    assert isinstance(last, w.End) or last.errno_name == "EAGAIN", last
    end = client.last(op)
    assert end.how & Ending.TIMED_OUT
    assert not end.how & Ending.SURVIVORS
    assert client.run("echo", "alive")[1] == b"alive\n"
    assert living(client) == []


def test_a_process_too_many_is_told_as_such(container: Containers) -> None:
    client = container(host={"PidsLimit": 8})
    ops = [client.start("sleep", "300", tell=True) for _ in range(12)]
    last = client.last(ops[-1])
    assert (last.reason, last.errno_name) == (w.Reason.SYSTEM, "EAGAIN")
    assert client.kill(ops[0]).fate == Fate.DEAD
    assert client.run("true")[0].exit_code == 0


def test_out_of_memory_is_told(container: Containers) -> None:
    client = container(request=request_for(timeout=120, resources=Resources(memory_mb=96)))
    assert Trait.OOM_COUNTER in client.hello().traits
    bomb = "x = bytearray(10**9)"
    end, _, _ = client.run("python3", "-c", bomb)
    assert (end.exit_code, end.how) == (137, Ending.OUT_OF_MEMORY)
    assert end.oom_kills == 1
    end, _, _ = client.sh(f"python3 -c '{bomb}'; exit $?")
    assert (end.exit_code, end.how) == (137, Ending.OUT_OF_MEMORY)
    end, out, _ = client.sh(f"python3 -c '{bomb}' 2>/dev/null; echo after")
    assert (end.exit_code, end.how, out) == (0, Ending.MEMORY_HINT, b"after\n")
    end, _, _ = client.sh("kill -9 $$")
    assert (end.exit_code, end.how) == (137, Ending(0))
    assert client.run("true")[0].exit_code == 0


def test_many_small_eaters_do_not_take_the_guest(container: Containers) -> None:
    client = container(request=request_for(timeout=120, resources=Resources(memory_mb=64)))
    eater = "python3 -c 'import time; x = bytearray(5_000_000); time.sleep(20)'"
    op = client.start("sh", "-c", f"for i in $(seq 20); do {eater} & done; wait", timeout=6)
    client.last(op)
    assert client.run("echo", "alive")[1] == b"alive\n"


def test_tools_replaced_after_the_start(container: Containers) -> None:
    client = container()
    client.sh("cd /bin; for t in sh bash python3 sleep cat ls; do rm -f $t; printf x > $t; done; rm -rf /lib")
    assert client.write("/work/a", b"still") == w.Done(client.wire._last, 5)
    assert client.read("/work/a") == b"still"
    assert len(client.ls("/bin")) > 10
    last = client.last(client.start("/bin/true"))
    assert last.exit_code == 127
    client.line.close()
    assert client.wait_gone(5) < 2


def test_endless_output_and_closed_descriptors(container: Containers) -> None:
    client = container()
    client.credit = False
    noisy = client.start("sh", "-c", "yes & yes >&2 & wait", timeout=30)
    _, out, _ = client.sh('for fd in 0 1 2 3 4 5 6 7 8 9; do eval "exec $fd>&-"; done; sleep 0.1')
    assert out == b""
    assert client.run("echo", "quick")[1] == b"quick\n"
    assert client.kill(noisy, seconds=5).fate == Fate.DEAD
    assert living(client) == []


SATURATING = {"forking-spammers", "spammers", "comets", "suicidal-comets"}


@pytest.mark.parametrize("mode", ADVERSARIES)
def test_no_adversary_outlives_its_run_on_one_cpu(container: Containers, adversary: str, mode: str) -> None:
    client = container()
    client.write("/adversary", Path(adversary).read_bytes(), mode=0o755)
    ops = start_bystanders(client)
    op = attack(client, "/adversary", mode, ADVERSARIES[mode])
    fate = client.kill(op, seconds=30).fate
    if fate == Fate.SURVIVORS and mode in SATURATING:
        # Hundreds of processes that want the one CPU, on a machine that is busy otherwise: the guest says
        # that it was too slow, and the sandbox has to go. That always works.
        client.line.close()
        client.wait_gone(20)
        return
    assert fate == Fate.DEAD
    assert_only_bystanders(client, ops)


@pytest.mark.parametrize("mode", ["cleared", "undumpable", "lowered", "posing", "early"])
def test_the_same_without_root(container: Containers, adversary: str, mode: str) -> None:
    client = container(**as_user("1000:1000"))
    client.write("/tmp/adversary", Path(adversary).read_bytes(), mode=0o755)
    ops = start_bystanders(client)
    op = attack(client, "/tmp/adversary", mode, 30)
    assert client.kill(op, seconds=5).fate == Fate.DEAD
    assert_only_bystanders(client, ops)


# Lifeline and lifetime


def test_a_closed_connection_removes_the_container(container: Containers) -> None:
    client = container()
    client.start("sh", "-c", "trap '' HUP TERM; (setsid yes > /dev/null &); yes")
    client.run("true")
    client.line.close()
    assert client.wait_gone(5) < 2


@USERS
def test_without_lifeline_it_stays_until_its_lifetime_ends(container: Containers, user: str) -> None:
    client = container(lifeline=False, lifetime=2.5, **as_user(user))
    client.start("sh", "-c", "while :; do echo tick; sleep 0.05; done")
    client.run("true")
    client.line.close()
    time.sleep(0.5)
    assert client.running()
    deadline = time.monotonic() + 10
    while client.running():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert client.inspect()["State"]["ExitCode"] == 0


def test_the_lifetime_is_kept_whatever_the_code_does(container: Containers) -> None:
    client = container(lifetime=2)
    client.sh("(setsid sh -c 'while :; do kill -STOP 1; kill -CONT 1; done' &); date -s @0 || true")
    with pytest.raises(Closed):
        client.until(99, w.End, seconds=10)
    assert time.monotonic() - client.began < 6
    client.line.close()
    client.wait_gone(5)


# A second client


def test_a_second_guest_beside_the_first(container: Containers, adversary: str) -> None:
    first = container()
    first.write("/adversary", Path(adversary).read_bytes(), mode=0o755)
    ops = start_bystanders(first)
    with first.second() as second:
        hello = second.hello()
        assert hello.pid != 1
        expected = Trait.MARKS | Trait.HIDDEN | Trait.ADOPTS
        assert hello.traits & (expected | Trait.INIT) == expected
        second.write("/work/shared", b"from the second")
        assert first.read("/work/shared") == b"from the second"
        for mode in ("cleared", "posing", "comets"):
            op = attack(second, "/adversary", mode, 5)
            assert second.kill(op).fate == Fate.DEAD
        running = attack(second, "/adversary", "cleared", 5)
        first.sh("sh -c 'exit 0'")
        assert_only_bystanders_and(first, ops, 6)
        assert running
    deadline = time.monotonic() + 5
    while len(living(first)) > 23:
        assert time.monotonic() < deadline, "the second client's run outlived its connection"
    assert_only_bystanders(first, ops)


def assert_only_bystanders_and(client: Container, ops: list[int], more: int) -> None:
    assert not any(isinstance(event, w.End) for op in ops for event in client.events[op])
    others = [name for name in living(client) if not name.startswith("python")]
    assert len(others) == 23 + more


# Images without Python, and without a shell

HIDE_PYTHON = {"Binds": ["/dev/null:/usr/bin/python3:ro"]}
HIDE_BASH = {"Binds": ["/dev/null:/usr/bin/python3:ro", "/dev/null:/bin/bash:ro"]}


@pytest.fixture
def bare(docker_image: str) -> Iterator[Containers]:
    with ExitStack() as stack:

        def start(**options: Any) -> Container:
            made = stack.enter_context(Container(docker_image, **options))
            assert made.hello() == w.Notice(0, "no python3 of version 3.8 or newer")
            return made

        yield start


def listed(client: Container, column: str) -> list[list[str]]:
    return call("GET", f"/containers/{client.id}/top?ps_args=-o%20pid,{column}")["Processes"]


def command_of_process_1(client: Container) -> list[str]:
    return listed(client, "args")[0][1].split()


def inside(client: Container, text: str) -> None:
    made = call("POST", f"/containers/{client.id}/exec", {"Cmd": ["sh", "-c", text]})
    call("POST", f"/exec/{made['Id']}/start", {"Detach": True})


HOSTILE = "trap '' TERM HUP INT; for s in 1 2 3 9 10 12 14 15 17 18 19 20 24; do kill -$s 1; done; "


@pytest.mark.parametrize("hide", [HIDE_PYTHON, HIDE_BASH], ids=["bash", "dash"])
def test_without_python_the_launcher_keeps_the_lifeline(bare: Containers, hide: dict[str, Any]) -> None:
    client = bare(host=hide)
    assert client.running()
    client.line.close()
    assert client.wait_gone(5) < 2


@pytest.mark.parametrize("lifeline", [True, False], ids=["lifeline", "no-lifeline"])
@pytest.mark.parametrize("hide", [HIDE_PYTHON, HIDE_BASH], ids=["bash", "dash"])
def test_without_python_the_launcher_keeps_the_lifetime(
    bare: Containers, hide: dict[str, Any], lifeline: bool
) -> None:
    client = bare(host=hide, lifeline=lifeline, lifetime=3)
    inside(client, HOSTILE + "sleep 100")
    if not lifeline:
        client.line.close()
        time.sleep(1)
        assert client.running(), "it ended with its connection"
    deadline = time.monotonic() + 8
    while client.running():
        assert time.monotonic() < deadline, "it lives beyond its lifetime"
        time.sleep(0.05)
    assert time.monotonic() - client.began > 2.5


def test_bash_as_process_1_cannot_be_kept_from_its_end(bare: Containers) -> None:
    client = bare(host=HIDE_PYTHON, lifetime=60)
    deadline = time.monotonic() + 5
    while "bash" not in command_of_process_1(client)[0]:
        assert time.monotonic() < deadline, command_of_process_1(client)
    inside(client, HOSTILE + "kill -STOP -1; kill -9 -1")
    deadline = time.monotonic() + 5
    started = 0
    while started < 10:
        try:
            inside(client, "(sleep 0.01 &) ; exit 0")
            started += 1
        except AssertionError:  # the hostile one is still at it, and killed the engine's own helper
            assert time.monotonic() < deadline
    deadline = time.monotonic() + 5
    while any(state.startswith("Z") for _, state in listed(client, "stat")):
        assert time.monotonic() < deadline, "ended orphans stay"
    client.line.close()
    assert client.wait_gone(5) < 2


def test_python_as_the_entrypoint(container: Containers) -> None:
    told = launcher.arguments(60, lifeline=True, work="/work", localhost=True)
    client = container(entrypoint=launcher.with_python(told))
    assert client.hello().pid == 1
    assert client.run("echo", "direct")[1] == b"direct\n"


def test_what_comes_instead_of_the_program_ends_it(
    docker_image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text in (b"GET / HTTP/1.1\r\n\r\n" * 9, launcher.program()[:-1] + b"#"):
        monkeypatch.setattr(launcher, "program", lambda text=text: text)
        with Container(docker_image) as client, pytest.raises(Closed, match="not the guest's program"):
            client.hello()


def test_the_environment_is_the_images(container: Containers) -> None:
    client = container(change={"Env": ["A= spaced ", "B=l1\nl2", "C="]})
    names = dict(item.split(b"=", 1) for item in client.run("env", "-0")[1].split(b"\0") if item)
    assert (names[b"A"], names[b"B"], names[b"C"]) == (b" spaced ", b"l1\nl2", b"")
    assert set(names) >= {b"PATH", b"HOME", b"HOSTNAME"}
    assert not set(names) & {b"PWD", b"OLDPWD", b"SHLVL", b"_", b"LC_CTYPE"}


def test_localhost_is_known_without_a_network(container: Containers) -> None:
    client = container()
    assert Trait.LOCALHOST in client.hello().traits
    text = "import socket; print(socket.gethostbyname('localhost'))"
    assert client.run("python3", "-c", text)[1] == b"127.0.0.1\n"

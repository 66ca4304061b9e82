"""Starting, feeding and ending programs: the guest as a process, on every interpreter of the machine."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sandboxio.testing.suite.comparing import difference
from sandboxio_docker import guest_protocol as w
from sandboxio_docker.guest_protocol import Ending, Trait
from tests.guest.conftest import PYTHONS
from tests.guest.rawclient import Closed, Local

Guests = Callable[..., Local]


def test_the_machine_has_interpreters_to_test_with() -> None:
    assert PYTHONS
    if len(PYTHONS) == 1:
        pytest.skip(
            f"the guest is tested on Python {next(iter(PYTHONS))} only: there is no other (PATH, ~/.pyenv)"
        )


# On every interpreter: whatever differs between versions of the standard library


def test_hello_tells_what_the_guest_found(guest: Guests, python: str) -> None:
    hello = guest(python).hello()
    assert hello.pid == 1
    assert hello.python >= (3, 8, 0)
    assert (hello.uid, hello.gid) == (os.getuid(), os.getgid())
    expected = Trait.INIT | Trait.MARKS | Trait.HIDDEN | Trait.ADOPTS | Trait.LIFELINE
    expected |= Trait.WORK_FOLDER | Trait.WORK_WRITABLE
    assert hello.traits & expected == expected


def test_output_and_exit_code(guest: Guests, python: str) -> None:
    end, out, err = guest(python).sh("printf 'a\\n'; printf 'b\\0' >&2; exit 3")
    assert (end.exit_code, end.signal, out, err) == (3, 0, b"a\n", b"b\0")
    assert not end.how


def test_a_signal_is_reported_like_a_shell_does(guest: Guests, python: str) -> None:
    end, _, _ = guest(python).sh("kill -TERM $$")
    assert (end.exit_code, end.signal) == (128 + 15, 15)


def test_a_kill_of_its_own_is_no_memory_kill(guest: Guests, python: str) -> None:
    end, _, _ = guest(python).sh("kill -KILL $$")
    assert (end.exit_code, end.how) == (137, Ending(0))


@pytest.mark.parametrize(
    ("program", "code", "text"),
    [
        ("no-such-program", 127, b"not found"),
        ("./no-such-file", 127, b"not found"),
        ("", 127, b"not found"),
        ("/etc/passwd", 126, b"permission denied"),
        ("/usr/bin", 126, b"folder"),
    ],
)
def test_what_cannot_start_says_why_on_stderr(guest: Guests, program: str, code: int, text: bytes) -> None:
    end, out, err = guest().run(program)
    assert (end.exit_code, out) == (code, b"")
    assert end.how == Ending.NOT_STARTED
    assert text in err
    assert err.startswith(b"sandboxio: ")


def test_files_that_are_no_programs(guest: Guests, work: Path, python: str) -> None:
    for name, text in (("garbage", "no program"), ("lost", "#!/no/such/interpreter\n")):
        (work / name).write_text(text)
        (work / name).chmod(0o755)
    client = guest(python)
    assert client.run("./garbage")[0].exit_code == 126
    end, _, err = client.run("./lost")
    assert end.exit_code == 127
    assert b"interpreter" in err
    assert client.run("true")[0].exit_code == 0


def test_arguments_that_are_too_long_are_an_error_of_the_call(guest: Guests, python: str) -> None:
    client = guest(python)
    for options in ({"env": {b"X": b"a" * 200_000}}, {}):
        argument = b"" if options else b"a" * 200_000
        last = client.last(client.start("true", argument, **options))
        assert last == w.Failed(last.op, w.Reason.SYSTEM, "E2BIG")
    assert client.run("true")[0].exit_code == 0


def test_the_first_interpreter_that_is_there_is_used(guest: Guests, python: str) -> None:
    client = guest(python, env={"PATH": f"{Path(python).parent}:/usr/bin:/bin"})
    op = client.start("x", "-X", "utf8", "-", programs=[b"no-python", b"python3"], has_input=True)
    client.feed(op, "print('é漢🙂')".encode())
    assert client.last(op).exit_code == 0
    assert client.output[op, 1] == "é漢🙂\n".encode()
    end, _, err = client.run("x", programs=[b"no-python", b"no-python3"])
    assert end.exit_code == 127
    assert b"no-python, no-python3" in err


def test_input_of_several_megabytes(guest: Guests, python: str) -> None:
    data = os.urandom(5_000_000)
    client = guest(python)
    op = client.start("cat", has_input=True)
    client.feed(op, data)
    assert client.last(op).exit_code == 0
    assert not difference(bytes(client.output[op, 1]), data)


def test_input_that_nobody_reads_is_thrown_away(guest: Guests, python: str) -> None:
    client = guest(python)
    op = client.start("sh", "-c", "exec <&-; sleep 0.2; echo done", has_input=True)
    client.feed(op, bytes(3_000_000))
    assert client.last(op).exit_code == 0
    assert client.output[op, 1] == b"done\n"
    op = client.start("true", has_input=True)
    client.feed(op, bytes(3_000_000))
    assert client.last(op).exit_code == 0


def test_without_input_stdin_is_at_its_end(guest: Guests, python: str) -> None:
    end, out, _ = guest(python).sh("cat; readlink /proc/self/fd/0")
    assert (end.exit_code, out) == (0, b"/dev/null\n")


# What a program has and has not


def test_a_program_has_nothing_of_the_guests(guest: Guests, python: str) -> None:
    text = """
import os, resource, signal, sys
for fd in range(3, 200):
    try: os.fstat(fd)
    except OSError: continue
    print("inherited", fd)
print(os.getpid() == os.getsid(0), os.getpriority(os.PRIO_PROCESS, 0), os.umask(0))
print(open("/proc/self/oom_score_adj").read().strip())
print(*[l.split()[1] for l in open("/proc/self/status") if l[:6] in ("SigBlk", "SigIgn")])
print(resource.getrlimit(resource.RLIMIT_NOFILE) == (int(sys.argv[1]), int(sys.argv[2])))
"""
    import resource

    limits = [str(number) for number in resource.getrlimit(resource.RLIMIT_NOFILE)]
    # A shell between, because Python ignores some signals by itself.
    end, out, err = guest(python).run(
        "sh", "-c", 'grep -E "Sig(Blk|Ign)" /proc/self/status; exec "$@"', "sh",
        PYTHONS[max(PYTHONS)], "-c", text, *limits,
    )  # fmt: skip
    assert end.exit_code == 0, err
    lines = out.decode().splitlines()
    blocked, ignored = (int(line.split()[1], 16) for line in lines[:2])
    # The C library's own posix_spawn leaves its two internal signals, 32 and 33, ignored.
    assert (blocked, ignored & ~(3 << 31)) == (0, 0)
    assert lines[2:4] == ["True 10 18", "1000"]
    assert lines[5] == "True"


def test_environment_is_the_images_then_the_sandboxes_then_the_runs(guest: Guests, python: str) -> None:
    base = {"PATH": "/usr/bin:/bin", "HOME": "/root", "odd.name-x": "1", "A": "image"}
    setup = {b"A": b"sandbox", b"B": b"  sp  ", b"C": b"$HOME ${PATH}\n", b"D": b"sandbox"}
    client = guest(python, env=base, setup=setup)
    own = {b"D": b"run\xff", b"E": b"", b"F": b"a=b=="}
    _, out, _ = client.run("env", "-0", env=own)
    seen = dict(item.split(b"=", 1) for item in out.split(b"\0") if item)
    expected = {os.fsencode(k): os.fsencode(v) for k, v in base.items()} | setup | own
    assert seen == expected
    _, out, _ = client.run("env", "-0")
    assert b"run\xff" not in out, "a later run sees the environment of an earlier one"


def test_a_request_longer_than_a_frame(guest: Guests) -> None:
    env = {b"V%d" % number: bytes([65 + number % 26]) * 10_000 for number in range(60)}
    _, out, _ = guest().run("env", "-0", env=env)
    assert dict(i.split(b"=", 1) for i in out.split(b"\0") if i).items() >= env.items()


def test_the_path_of_the_run_is_searched(guest: Guests, work: Path) -> None:
    (work / "tool").write_text("#!/bin/sh\necho found\n")
    (work / "tool").chmod(0o755)
    client = guest()
    assert client.run("tool", env={b"PATH": b"/usr/bin:/bin"})[0].exit_code == 127
    assert client.run("tool", env={b"PATH": os.fsencode(work)})[1] == b"found\n"
    assert client.run("./tool")[1] == b"found\n"


def test_a_removed_work_folder_is_there_again_for_the_next_run(guest: Guests, work: Path) -> None:
    client = guest()
    client.sh("rm -rf ../work; mkdir ../other")
    end, out, _ = client.sh("pwd; ls -A | wc -l")
    assert (end.exit_code, out) == (0, b"%s\n0\n" % os.fsencode(work))
    client.sh(f"cd /; rm -rf {work}; touch {work}")
    last = client.last(client.start("true"))
    assert last == w.Failed(last.op, w.Reason.NO_WORK_FOLDER, "EEXIST")


# Output and the end of a run


def test_a_background_child_does_not_hold_the_end(guest: Guests, python: str) -> None:
    client = guest(python)
    for _ in range(2):
        began = time.monotonic()
        end, out, _ = client.sh("sleep 300 & echo started")
        assert (end.exit_code, out) == (0, b"started\n")
        assert time.monotonic() - began < 2
    deadline = time.monotonic() + 5  # until both have become what they are
    while client.sh("ps -A -o comm= | grep -c sleep")[1] != b"2\n":
        assert time.monotonic() < deadline, "what was started in the background is gone"


def test_a_background_child_may_go_on_printing(guest: Guests) -> None:
    client = guest()
    client.sh("(while :; do head -c 9000 /dev/zero || exit; touch alive; done) & echo started")
    client.sh("rm -f alive; while [ ! -e alive ]; do sleep 0.01; done", timeout=5)
    _, out, _ = client.sh("ps -A -o comm= | grep -c sh$")
    assert int(out) >= 2, "it was ended by its output"


def test_all_output_before_the_end_is_delivered(guest: Guests, python: str) -> None:
    client = guest(python)
    for size in (1, 65536, 65537, 1_000_000):
        end, out, err = client.sh(f"head -c {size} /dev/zero; head -c {size} /dev/zero >&2 & wait; exit 5")
        assert (end.exit_code, len(out), len(err)) == (5, size, size)


def test_output_waits_in_the_pipe_for_credit(guest: Guests) -> None:
    client = guest()
    client.credit = False
    op = client.start("sh", "-c", "head -c 3000000 /dev/zero; echo end >&2")
    while len(client.output[op, 1]) < w.FIRST_WINDOW:
        client.pump(5)
    client.pump(0.2)
    assert len(client.output[op, 1]) == w.FIRST_WINDOW, "more than was granted"
    assert client.run("echo", "other")[1] == b"other\n", "a slow reader holds up another run"
    client.credit = True
    client.give_back(op, 1, w.FIRST_WINDOW)
    assert client.last(op).exit_code == 0
    assert len(client.output[op, 1]) == 3_000_000
    assert client.output[op, 2] == b"end\n"


def test_the_tail_of_an_ended_run_waits_for_credit(guest: Guests) -> None:
    client = guest()
    client.credit = False
    op = client.start("head", "-c", str(w.FIRST_WINDOW + 30_000), "/dev/zero")
    while len(client.output[op, 1]) < w.FIRST_WINDOW:
        client.pump(5)
    client.pump(0.3)
    assert not any(isinstance(event, w.End) for event in client.events[op])
    client.credit = True
    client.give_back(op, 1, w.FIRST_WINDOW)
    assert client.last(op).exit_code == 0
    assert len(client.output[op, 1]) == w.FIRST_WINDOW + 30_000


def test_started_comes_when_it_is_wanted(guest: Guests) -> None:
    client = guest()
    op = client.start("sh", "-c", "echo $$", tell=True)
    assert client.last(op).exit_code == 0
    assert int(client.output[op, 1]) == client.events[op][0].pid


def test_sixty_four_runs_at_once(guest: Guests, python: str) -> None:
    client = guest(python)
    ops = {client.start("sh", "-c", f"echo {n}; exit {n}"): n for n in range(64)}
    for op, number in ops.items():
        assert client.last(op).exit_code == number
        assert client.output[op, 1] == b"%d\n" % number


def test_ended_orphans_do_not_stay(guest: Guests, python: str) -> None:
    client = guest(python)
    for _ in range(50):
        client.sh("(sleep 0.02 &) ; true")
    client.sh("sleep 0.2")
    _, out, _ = client.sh("grep -l '^State:.Z' /proc/[0-9]*/status | wc -l")
    assert out == b"0\n"


def test_the_guest_reads_on_while_nobody_reads_from_it(guest: Guests) -> None:
    client = guest()
    client.wire.new_operation()
    flood = w.frame(w.Kind.KILL, 1) * 200_000
    client.ours.settimeout(10)
    client.ours.sendall(flood)
    answers = 0
    while answers < 200_000 * 10:
        answers += len(client._read(10))
    assert answers == 200_000 * 10


# The end of the guest


def test_eof_is_the_end_of_everything(guest: Guests, python: str) -> None:
    client = guest(python)
    client.start("sleep", "300")
    client.run("true")
    began = time.monotonic()
    client.ours.close()
    assert client.wait() == 0
    assert time.monotonic() - began < 2


def test_the_lifetime_ends_though_the_host_stays(guest: Guests, python: str) -> None:
    began = time.monotonic()
    client = guest(python, lifetime=0.7)
    op = client.start("sh", "-c", "trap '' TERM INT HUP; while :; do kill -STOP 1; sleep 0.1; done")
    with pytest.raises(Closed):
        client.last(op)
    assert client.wait() == 0
    assert 0.6 < time.monotonic() - began < 3


def test_without_the_lifeline_it_goes_on_until_the_lifetime_ends(
    guest: Guests, python: str, work: Path
) -> None:
    client = guest(python, lifetime=2, lifeline=False)
    began = time.monotonic()
    assert not client.hello().traits & Trait.LIFELINE
    client.start("sh", "-c", "while :; do echo x; echo >> ticks; sleep 0.02; done")
    client.run("true")
    client.ours.close()
    time.sleep(0.2)  # it has noticed by now; if not, the test is only weaker
    before = (work / "ticks").stat().st_size
    while (work / "ticks").stat().st_size == before:
        assert client.process.poll() is None, "its runs have not gone on"
        time.sleep(0.01)
    assert client.wait() == 0
    assert time.monotonic() - began > 1


def test_stop_ends_it(guest: Guests) -> None:
    client = guest(lifeline=False)
    client.start("sleep", "300")
    client.send(w.stop())
    assert client.wait() == 0


def test_what_no_host_sends_ends_it(guest: Guests) -> None:
    for junk in (b"\xff" * 20, w.HEAD.pack(0, 99, 1), w.HEAD.pack(2, 3, 1) + b"xx"):
        client = guest()
        client.send(junk)
        assert client.wait() == 0
        assert "sandboxio guest:" in client.errors()


def test_process_1_is_deaf(guest: Guests) -> None:
    client = guest()
    numbers = " ".join(str(int(n)) for n in signal.valid_signals())
    client.sh(f"for n in {numbers}; do kill -$n 1; done", timeout=10)
    assert client.run("echo", "here")[1] == b"here\n"


def test_process_1_ignores_signals_also_while_a_thread_of_it_begins(guest: Guests, python: str) -> None:
    """Left to the kernel, one of them in that moment was fatal, in one start of twenty."""
    client = guest(python)
    status = client.run("cat", "/proc/1/status")[1].decode()
    ignored = int(status.partition("SigIgn:")[2].split()[0], 16)
    handled = int(status.partition("SigCgt:")[2].split()[0], 16)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        assert (ignored | handled) >> (number - 1) & 1, number
    assert handled >> (signal.SIGCHLD - 1) & 1

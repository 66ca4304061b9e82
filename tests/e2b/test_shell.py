"""The scripts of a run: how its end is told, how its words are quoted, and what a kill finds."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from sandboxio_e2b import shell
from sandboxio_e2b.shell import EndingFilter, Mark, kill_command, program, quote, run_command, split_env

MARK = Mark(1 << 40, "t" * 32)
ENDING = MARK.ending + b"7\x1e"


@given(st.binary(), st.binary(), st.data())
def test_the_ending_is_taken_out_however_it_is_cut(before: bytes, after: bytes, data: st.DataObject) -> None:
    stream, each, got = before + ENDING + after, EndingFilter(MARK), b""
    while stream:
        cut = data.draw(st.integers(1, len(stream)))
        got += each.feed(stream[:cut])
        stream = stream[cut:]
    assert got == before
    assert each.exit_code == 7
    assert each.rest() == b""


@given(st.lists(st.sampled_from([b"x", b"\x1e", b"\x1et", ENDING[:-1], ENDING[:20], MARK.ending, b"7"])))
def test_what_only_looks_like_the_ending_is_kept(pieces: list[bytes]) -> None:
    stream = b"".join(pieces)
    each = EndingFilter(MARK)
    got = b"".join(each.feed(piece) for piece in pieces)
    assert got + each.rest() == stream or each.exit_code is not None
    assert (each.exit_code is None) is (re.search(MARK.ending + rb"\d{1,3}\x1e", stream) is None)


def test_nothing_is_held_back_that_cannot_be_the_ending() -> None:
    each = EndingFilter(MARK)
    assert each.feed(b"progress 10 %") == b"progress 10 %"
    assert each.feed(b"\x1etttt") == b""
    assert each.feed(b"x") == b"\x1ettttx"


@given(st.binary().filter(lambda octets: b"\0" not in octets))
def test_quoting_keeps_every_byte(octets: bytes) -> None:
    text = octets.decode("utf-8", "surrogateescape")
    script = f"printf %s {quote(text)}"
    # A script file, because this is about the shell's reading and not about arguments.
    said = subprocess.run(
        ["bash"], check=True, input=script.encode("utf-8", "surrogateescape"), stdout=subprocess.PIPE
    )
    assert said.stdout == octets


def test_variables_that_json_cannot_carry_are_told_apart() -> None:
    plain, other = split_env({"A": "é", "B": "\udcff"})
    assert (plain, other) == ({"A": "é"}, {"B": "\udcff"})


def run(command: str | list[str], mark: Mark = MARK, **env: str) -> tuple[bytes, bytes, int | None]:
    """What the script prints for a command, without the endings."""
    argv = [os.fsencode(word) for word in run_command(command, mark, env)]
    done = subprocess.run(
        argv,
        env={"PATH": os.environ["PATH"], "HOME": "/", **env},
        capture_output=True,
        check=True,
        start_new_session=True,  # a command may kill its group, which must not be ours
    )
    out, err = EndingFilter(mark), EndingFilter(mark)
    printed = out.feed(done.stdout), err.feed(done.stderr)
    assert out.exit_code == err.exit_code
    return (*printed, out.exit_code)


def test_a_list_runs_as_it_is() -> None:
    assert run(["echo", "-n", "$HOME `id`", "*"]) == (b"$HOME `id` *", b"", 0)
    assert run(["printf", "%s", "\udcff"]) == (b"\xff", b"", 0)
    assert run(["exit", "3"])[2] == 127, "no builtin of the shell is a program"
    assert run(["--version"])[2] == 127


def test_a_string_goes_through_a_login_shell() -> None:
    assert run("A=1; echo $A; exit 4") == (b"1\n", b"", 4)
    assert run("echo $PATH", PATH="/nowhere:/bin")[0] == b"/nowhere:/bin\n", "a login shell sets PATH anew"


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["sh", "-c", "exit 255"], 255),
        (["no-such-program"], 127),
        (["/"], 126),
        (["sh", "-c", "kill -9 $$"], 137),
        (["sh", "-c", "kill -15 $$"], 143),
    ],
)
def test_exit_codes(command: list[str], code: int) -> None:
    out, err, told = run(command)
    assert (out, told) == (b"", code)
    assert (err == b"") is (code not in (126, 127)), "a shell's remarks on signals stay out"


def test_the_environment_is_the_callers() -> None:
    out, _, _ = run(["env"], token="1", code="2", BASH_ENV="/dev/stdin")
    assert {b"token=1", b"code=2", b"BASH_ENV=/dev/stdin"} <= set(out.splitlines())


# What a kill finds. These processes run on this machine, each behind a mark of its own.

DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open(sys.argv[1], "w").write(str(os.getpid()))
        os.execve("/bin/sleep", ["sleep", "300"], {})
    os._exit(0)
time.sleep(300)
"""
FORKS = """
import os, sys, time
open(sys.argv[1], "w").write(str(os.getpid()))
end = time.monotonic() + 60
while time.monotonic() < end:
    if os.fork():
        os._exit(0)
    os.setsid()
"""
DEAF = "trap '' TERM INT HUP QUIT; echo $$ >\"$0\"; while :; do sleep 300; done"
LOWERS = """
(ulimit -x 5; ulimit -R 5; setsid sh -c 'echo $$ >"$0"; exec sleep 300' "$0" &)
sleep 300; :
"""
HEADLESS = """
import ctypes, os, sys, threading, time
threading.Thread(target=time.sleep, args=(300,)).start()
open(sys.argv[1], "w").write(str(os.getpid()))
ctypes.CDLL(None).pthread_exit(None)
"""
STOPPED = 'echo $$ >"$0"; kill -STOP $$; sleep 300'


def kill(mark: Mark, word: str = "") -> int:
    return subprocess.run(
        kill_command(mark, word), check=False, stdout=subprocess.DEVNULL, timeout=30
    ).returncode


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX" or threads_of(pid) > 1


def threads_of(pid: int) -> int:
    try:
        return len(list(Path(f"/proc/{pid}/task").iterdir()))
    except FileNotFoundError:
        return 0


def written(path: Path) -> int:
    deadline = time.monotonic() + 10
    while not (path.exists() and path.read_text().strip()):
        assert time.monotonic() < deadline, f"nothing was written to {path}"
        time.sleep(0.005)
    return int(path.read_text())


@pytest.fixture
def started(tmp_path: Path) -> Iterator[tuple[Mark, Path]]:
    mark = Mark.new()
    yield mark, tmp_path / "pid"
    kill(mark)


def begin(mark: Mark, command: list[str], stdout: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    return subprocess.Popen(run_command(command, mark, {}), stdout=stdout, stderr=subprocess.DEVNULL)


@pytest.mark.parametrize(
    "command",
    [
        ["python3", "-c", DAEMON],
        ["python3", "-c", FORKS],
        ["bash", "-c", DEAF],
        ["bash", "-c", LOWERS],
        ["bash", "-c", STOPPED],
        ["python3", "-c", HEADLESS],
    ],
    ids=[
        "a daemon without environment",
        "forks on and on",
        "deaf",
        "a daemon with lower limits",
        "stopped",
        "its first thread gone",
    ],
)
def test_a_kill_finds_whatever_a_run_became(command: list[str], started: tuple[Mark, Path]) -> None:
    mark, path = started
    other = Mark.new()
    bystander_path = path.with_name("bystander")
    bystander = begin(other, ["bash", "-c", 'echo $$ >"$0"; sleep 300; :', str(bystander_path)])
    runner = begin(mark, [*command, str(path)])
    try:
        pid, spared = written(path), written(bystander_path)
        assert kill(mark) == 0
        assert not alive(pid)
        assert kill(mark) == 0, "a second kill finds nothing"
        assert alive(spared), "another run was killed"
    finally:
        kill(other)
        kill(mark)
        runner.wait(10)
        bystander.wait(10)


def test_a_kill_by_word_takes_the_descendants_along(started: tuple[Mark, Path]) -> None:
    mark, path = started
    word = mark.token
    script = '(echo $BASHPID >"$1"; exec sleep 300) & wait'
    process = subprocess.Popen(["bash", "-c", script, f"kernel-{word}.json", str(path)])
    try:
        child = written(path)
        assert kill(mark, word) == 0
        assert not alive(child)
    finally:
        process.kill()
        process.wait(10)


def test_a_kill_by_word_spares_a_run_that_only_has_it_among_its_words(started: tuple[Mark, Path]) -> None:
    """A program can read the secret of another run from its command line, and pass it on."""
    mark, path = started
    other = Mark.new()
    process = begin(other, ["bash", "-c", 'echo $$ >"$0"; sleep 300; :', str(path), f"it was {mark.token}"])
    try:
        pid = written(path)
        assert kill(mark, mark.token) == 0
        assert alive(pid)
    finally:
        kill(other)
        process.wait(10)


def test_a_stopped_command_has_not_ended(started: tuple[Mark, Path]) -> None:
    mark, path = started
    process = begin(mark, ["bash", "-c", STOPPED, str(path)])
    pid = written(path)
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < deadline, "it did not stop"
        time.sleep(0.005)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.3)
    assert kill(mark) == 0
    process.wait(10)


def test_a_command_that_stops_itself_at_once_has_not_ended(
    started: tuple[Mark, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script sees the stop while its job control is still on, as it can on a busy machine."""
    seen = 'until [[ $(jobs -s) ]]; do :; done; echo $$ >"$0.seen"\nset +m'
    mark, path = started
    monkeypatch.setattr(shell, "_RUN", shell._RUN.replace("set +m", seen.replace("$0", str(path))))
    process = begin(mark, ["bash", "-c", 'echo $$ >"$0"; kill -STOP $$; exit 5', str(path)], subprocess.PIPE)
    try:
        pid = written(path)
        written(path.with_name("pid.seen"))
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        os.kill(pid, signal.SIGCONT)
        told, _ = process.communicate(timeout=10)
        assert told == mark.ending + b"5\x1e"
    finally:
        kill(mark)
        process.communicate(timeout=10)


def test_a_command_that_kills_its_group_does_not_kill_what_tells_its_end() -> None:
    assert run(["bash", "-c", "echo out; kill 0; sleep 300"]) == (b"out\n", b"", 143)


def test_a_program_is_untouched_by_the_environment(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    trap.write_text("echo sourced\n")
    env = {"PATH": os.environ["PATH"], "BASH_ENV": str(trap), "BASH_FUNC_printf%%": "() { echo function; }"}
    done = subprocess.run(program('printf "%s" "$1"', "x"), check=True, env=env, stdout=subprocess.PIPE)
    assert done.stdout == b"x"

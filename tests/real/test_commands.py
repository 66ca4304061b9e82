"""Commands in real containers, over both channels."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import anyio
import pytest

from sandboxio import Resources
from sandboxio.errors import (
    ConfigurationError,
    ExecutionTimeout,
    ResourceLimitExceeded,
    SandboxGone,
)
from sandboxio_docker import DockerBackend
from sandboxio_docker.sandbox import DockerSandbox

pytestmark = pytest.mark.engine


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_never_empty_and_never_an_invented_code(sandbox: DockerSandbox, channel: str) -> None:
    """Case 1: 500 in a row (fewer over exec, which takes 50 ms each), and 50 at once."""
    for _ in range(500 if channel == "guest" else 100):
        result = await sandbox.run(["echo", "ready"])
        assert (result.stdout, result.exit_code) == ("ready\n", 0)

    async def one() -> None:
        result = await sandbox.run(["echo", "ready"])
        assert (result.stdout, result.exit_code) == ("ready\n", 0)

    async with anyio.create_task_group() as tasks:
        for _ in range(50):
            tasks.start_soon(one)


async def test_exit_codes(sandbox: DockerSandbox) -> None:
    """Case 14: 127 and 126 in every form, the reason in stderr; 128+n for a signal."""
    for command, code in (
        (["true"], 0),
        (["sh", "-c", "exit 255"], 255),
        (["no-such-program"], 127),
        ("no-such-program", 127),
        (["/etc/passwd"], 126),
        (["/usr/bin"], 126),
        (["is not running"], 127),
        (["unauthorized"], 127),
        (['pid limit "'], 127),
        (["container is paused"], 127),
        (["sh", "-c", "kill -9 $$"], 137),
        (["sh", "-c", "kill -15 $$"], 143),
        (["sh", "-c", "kill -11 $$"], 139),
    ):
        result = await sandbox.run(command)
        assert result.exit_code == code, (command, result)
        assert result.stdout == ""
        if code in (126, 127):
            assert result.stderr.strip()


async def test_a_list_meets_no_shell(sandbox: DockerSandbox) -> None:
    odd = ["$HOME", "`id`", "a b", "", "*", "é漢🙂", "-n", "\n", "'\""]
    result = await sandbox.run(["python3", "-c", "import sys; print(ascii(sys.argv[1:]))", *odd])
    assert result.stdout == ascii(odd) + "\n"


async def test_stdin_is_at_its_end(sandbox: DockerSandbox) -> None:
    """Case 19."""
    for command in (["cat"], ["python3"], ["sh", "-c", "read x; echo got=$x"]):
        began = time.monotonic()
        assert (await sandbox.run(command, timeout=20)).stdout in ("", "got=\n")
        assert time.monotonic() - began < 5


async def test_no_terminal(sandbox: DockerSandbox) -> None:
    """Case 7."""
    result = await sandbox.run(["sh", "-c", "printf 'a\\nb\\n'; echo e >&2; test -t 1 && echo TTY"])
    assert (result.stdout, result.stderr) == ("a\nb\n", "e\n")


ENV = {
    "A": "l1\nl2\n",
    "B": "  sp  ",
    "C": "$HOME ${PATH} $(id)",
    "D": "'\"\\",
    "E": "",
    "F": "a=b==",
    "G": "é漢🙂",
    "lower.dot-x": "1",
}


async def test_environment_arrives_byte_for_byte(docker_image: str, channel: str) -> None:
    """Case 68."""
    show = ["python3", "-c", "import os, json; print(json.dumps(dict(os.environ)))"]
    backend = DockerBackend(image=docker_image, channel=channel)  # type: ignore[arg-type]
    env = {"A": "of the sandbox", "Z": "of the sandbox"}
    async with await backend.create(env=env, secrets={"S": "secret"}, timeout=120) as sandbox:
        inside = json.loads((await sandbox.run(show, env=ENV)).stdout)
        assert inside.items() >= {**ENV, "Z": "of the sandbox", "S": "secret"}.items()
        assert inside["HOME"] == "/root"
        assert "/usr/bin" in inside["PATH"]
        host = {name for name in os.environ if name.startswith(("SBX_", "PYTEST", "LC_"))}
        assert not host & inside.keys()
        again = json.loads((await sandbox.run(show)).stdout)
        assert again["A"] == "of the sandbox"
        assert not {"B", "C", "lower.dot-x"} & again.keys()


@pytest.mark.parametrize("size", [131_000, 131_072, 5_000_000])
async def test_code_of_any_size(size: int, sandbox: DockerSandbox) -> None:
    """Case 66."""
    result = await sandbox.run_code("x = '''" + "a" * size + "'''\nprint(len(x))")
    assert result.stdout == f"{size}\n"


async def test_arguments_over_the_limit_are_told(sandbox: DockerSandbox) -> None:
    """Case 66: the sandbox goes on."""
    with pytest.raises(ConfigurationError, match="131071"):
        await sandbox.run("echo " + "a" * 200_000)
    with pytest.raises(ConfigurationError, match="131071"):
        await sandbox.run(["true"], env={"X": "a" * 200_000})
    with pytest.raises(ConfigurationError, match="together"):
        await sandbox.run(["echo", *["x" * 100_000] * 40])
    assert (await sandbox.run(["echo", "ok"])).stdout == "ok\n"


async def test_two_pieces_of_code_at_once_share_nothing(sandbox: DockerSandbox) -> None:
    got: list[str] = []

    async def one(number: int) -> None:
        code = f"import time; time.sleep(0.2); print({number})"
        got.append((await sandbox.run_code(code)).stdout)

    async with anyio.create_task_group() as tasks:
        for number in range(4):
            tasks.start_soon(one, number)
    assert sorted(got) == ["0\n", "1\n", "2\n", "3\n"]
    left = await sandbox.run("ls -A /work /tmp")
    assert "sandboxio" not in left.stdout


async def test_text_beyond_ascii(sandbox: DockerSandbox) -> None:
    """Cases 3 and 70."""
    text = "a" + "é漢🙂" * 50_000
    await sandbox.files.write("/tmp/t", text)
    assert (await sandbox.run(["cat", "/tmp/t"])).stdout == text
    result = await sandbox.run_code("print('é漢🙂'); open('/tmp/é', 'w').write('é')")
    assert result.stdout == "é漢🙂\n", result
    assert await sandbox.files.read("/tmp/é") == "é".encode()


async def test_a_child_in_the_background(sandbox: DockerSandbox, channel: str) -> None:
    """Case 9. Docker 20.10 tells of an exec's end up to four seconds late while a child of the one before
    holds its output; the guest waits for nobody."""
    for _ in range(2):
        began = time.monotonic()
        result = await sandbox.run(["sh", "-c", "sleep 300 & echo started"], timeout=60)
        assert (result.stdout, result.exit_code) == ("started\n", 0)
        assert time.monotonic() - began < (2 if channel == "guest" else 10)


async def test_orphans_are_reaped(sandbox: DockerSandbox) -> None:
    """Case 12."""
    for _ in range(10):
        await sandbox.run(["sh", "-c", "for i in 1 2 3 4 5; do (sleep 0.05 &); done"])
    count = "grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l"
    with anyio.fail_after(10):
        while int((await sandbox.run(count)).stdout) > 2:
            await anyio.sleep(0.1)


async def test_what_was_printed_before_a_timeout(sandbox: DockerSandbox) -> None:
    """Case 6."""
    with pytest.raises(ExecutionTimeout) as caught:
        await sandbox.run(["sh", "-c", "echo one; echo two >&2; sleep 60"], timeout=1.5)
    assert caught.value.partial is not None
    assert (caught.value.partial.stdout, caught.value.partial.stderr) == ("one\n", "two\n")


# A process whose first thread has ended looks like a zombie without words.
HEADLESS = """exec python3 -c '
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
ctypes.CDLL(None).pthread_exit(None)  # and sleep 600
'"""


@pytest.mark.parametrize(
    "command",
    [
        "sleep 600",
        "trap '' TERM INT HUP; sleep 600; sleep 600",
        "(sleep 600 &) ; sleep 600",
        "setsid sleep 600 & sleep 600",
        "sh -c 'kill -STOP $$; sleep 600'",
        HEADLESS,
    ],
)
async def test_after_a_timeout_nothing_of_the_run_lives(command: str, sandbox: DockerSandbox) -> None:
    """Case 10; a bystander lives on (design D5)."""
    async with sandbox.stream("while :; do sleep 0.1; done") as bystander:
        with pytest.raises(ExecutionTimeout):
            await sandbox.run(["sh", "-c", command], timeout=1)
        left = await sandbox.run("grep -al -e '[s]leep.600' /proc/[0-9]*/task/*/cmdline 2>/dev/null; true")
        assert left.stdout == ""
        assert bystander.returncode is None


async def test_a_stream_that_is_left_is_dead(sandbox: DockerSandbox) -> None:
    async with sandbox.stream(["sh", "-c", "while :; do echo y; done"]) as process:
        async for _ in process:
            break
    left = await sandbox.run("grep -al -e '[e]cho y' /proc/[0-9]*/cmdline 2>/dev/null; true")
    assert left.stdout == ""


LIAR = """#!/bin/bash
case "$*" in *sandboxio-kill*) echo dead; exit 0 ;; esac
exec bash "$@"
"""


@pytest.mark.parametrize("channel", ["exec"])
async def test_a_replaced_shell_saves_no_run(sandbox: DockerSandbox) -> None:
    """Root inside may replace the shell that kills; what it says of the command is looked up outside."""
    replace = 'printf %s "$1" >/bin/sh.new && chmod 755 /bin/sh.new && mv -f /bin/sh.new /bin/sh'
    assert (await sandbox.run(["bash", "-c", replace, "x", LIAR])).exit_code == 0
    with pytest.raises(ExecutionTimeout):
        await sandbox.run(["sleep", "600"], timeout=1)
    with pytest.raises(SandboxGone, match="the whole sandbox was ended"):
        await sandbox.run(["true"])


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
async def test_the_host_does_not_keep_what_is_printed(sandbox: DockerSandbox) -> None:
    """Case 4: the cap works while reading."""
    before = resident()
    result = await sandbox.run("head -c 200000000 /dev/zero | tr '\\0' x", timeout=100)
    assert result.truncated
    assert len(result.stdout) == 8 << 20
    assert "200000000" in result.notes[0]
    assert resident() - before < 50 << 20
    async with sandbox.stream(["yes"]) as process:
        for _ in range(20):
            await anyio.sleep(0.02)
            await anext(aiter(process))
    assert resident() - before < 60 << 20


async def test_out_of_memory_is_named(backend: DockerBackend) -> None:
    """Case 15: the run that was killed says so; one whose child was killed has a note."""
    async with await backend.create(resources=Resources(memory_mb=128), timeout=120) as sandbox:
        hungry = "x = [bytearray(1 << 20) for _ in range(500)]"
        with pytest.raises(ResourceLimitExceeded, match="128 MiB"):
            await sandbox.run(["python3", "-c", hungry])
        assert (await sandbox.run(["echo", "ok"])).stdout == "ok\n"
        assert (await sandbox.run("kill -9 $$")).exit_code == 137


BOMB = """
import os, time
while True:
    try:
        os.fork()
    except OSError:
        time.sleep(60)
"""


async def test_a_fork_bomb_ends(backend: DockerBackend, channel: str) -> None:
    """Case 74: the ceiling holds, the timeout ends it, other runs and kill() go on.

    Over exec the helper that kills needs a process itself; without one the sandbox is ended, and says so.
    """
    async with await backend.create(timeout=120) as sandbox:
        with pytest.raises(ExecutionTimeout):
            await sandbox.run(["python3", "-c", BOMB], timeout=2)
        if "ended" in repr(sandbox):
            assert channel == "exec"
            with pytest.raises(SandboxGone, match="the whole sandbox was ended"):
                await sandbox.run(["true"])
            return
        assert (await sandbox.run(["echo", "ok"], timeout=30)).stdout == "ok\n"
        began = time.monotonic()
        await sandbox.kill()
        assert time.monotonic() - began < 6

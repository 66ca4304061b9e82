"""A sandbox at E2B: what its contract does not say, and what a network does to it."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, get_args

import anyio
import pytest

from sandboxio.errors import (
    AuthError,
    CapabilityNotSupported,
    ConfigurationError,
    ConnectError,
    ExecutionTimeout,
    FileSystemError,
    PathNotFound,
    RateLimitError,
    ResourceLimitExceeded,
    SandboxError,
    SandboxGone,
)
from sandboxio.testing.suite.comparing import difference
from sandboxio_e2b import E2BBackend, cells, commands, envd as envd_module, shell
from sandboxio_e2b.envd import Command
from sandboxio_e2b.sandbox import E2BSandbox
from tests.e2b_standin.running import StandInProcess
from tests.fakes.sweep import How, Outcome, sweep

START = "POST /process.Process/Start"


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a busy machine: else a kill that takes too long ends the whole sandbox."""
    monkeypatch.setattr("sandboxio._sandbox.KILL_BOUND", 20.0)
    monkeypatch.setenv("SBX_TEARDOWN_GRACE", "20")


@asynccontextmanager
async def a_sandbox(template: str = "base", **options: Any) -> AsyncGenerator[E2BSandbox]:
    sandbox = await E2BBackend().create(template=template, timeout=120, **options)
    assert isinstance(sandbox, E2BSandbox)
    try:
        yield sandbox
    finally:
        await sandbox.kill()


code_sandbox = partial(a_sandbox, "code-interpreter-v1")


async def processes(sandbox: E2BSandbox, word: str) -> list[str]:
    """Command lines with ``word`` in them, of anybody."""
    look = 'for p in /proc/[0-9]*; do tr "\\0" " " <$p/cmdline; echo; done 2>/dev/null'
    _, lines, _ = await sandbox._place.envd.run(Command(["sh", "-c", look], user="root"))
    return [line for line in lines.decode().splitlines() if word in line]


async def until(look: Callable[[], Any], what: str) -> None:
    with anyio.move_on_after(20):
        while not await look():
            await anyio.sleep(0.01)
        return
    raise AssertionError(f"after 20 s still not so: {what}")


# Commands


async def test_arguments_and_variables_keep_bytes_that_json_cannot_carry(standin: StandInProcess) -> None:
    async with a_sandbox(env={"SET": "\udcff\udcfe'"}) as sandbox:
        result = await sandbox.run(
            ["sh", "-c", 'printf "%s|%s|%s" "$1" "$SET" "$CALL" | od -An -tx1', "x", "\udc80é"],
            env={"CALL": "a\udcc3"},
        )
        assert bytes.fromhex(result.stdout) == b"\x80\xc3\xa9|\xff\xfe'|a\xc3"


async def test_a_command_that_is_too_long_is_no_fault_of_the_network(standin: StandInProcess) -> None:
    long = 'printf "%s " "${#1}" "${#2}"'
    async with a_sandbox() as sandbox:
        for command, env in (
            (["true", *["y" * 100_000] * 25], {}),
            (["true", "\udcff" * 40_000], {}),
            (["true"], {"A": "\udcff" * 40_000}),
        ):
            with pytest.raises(ConfigurationError, match="longer than Linux passes"):
                await sandbox.run(command, env=env)
        result = await sandbox.run(["bash", "-c", long, "bash", "y" * 70_000, "z" * 70_000, "\udcff"])
        assert result.stdout == "70000 70000 ", "only what is not UTF-8 becomes a part of the script"


ODD_NAMES = {"my.var": "1", "a-b": "two words", "1X": "'", "é": "\udcff", "\udcfe": "4", "-u": "=", "OK": "5"}


async def test_variables_whose_names_no_shell_could_set_arrive(standin: StandInProcess) -> None:
    async with a_sandbox(env=ODD_NAMES, secrets={"sec.ret": "in no command line"}) as sandbox:
        expected = {f"{name}={value}" for name, value in {**ODD_NAMES, "a-b": "3"}.items()}
        for command in ("env -0", ["env", "-0"]):
            async with sandbox.stream(command, env={"a-b": "3"}) as process:
                raw = b"".join([chunk.data async for chunk in process])
            found = {octets.decode("utf-8", "surrogateescape") for octets in raw.split(b"\0")}
            assert expected | {"sec.ret=in no command line"} <= found
            assert not [pair for pair in found if pair.startswith("SANDBOXIO")]
        async with sandbox.stream("echo ready; sleep 876") as process:
            await anext(process)
            assert await processes(sandbox, "sleep 876") != []
            assert await processes(sandbox, "in no command line") == []


async def test_a_string_gets_the_path_that_the_caller_gave(standin: StandInProcess) -> None:
    async with a_sandbox(env={"PATH": "/opt/x:/usr/bin:/bin"}) as sandbox:
        assert (await sandbox.run("echo $PATH")).stdout == "/opt/x:/usr/bin:/bin\n"
        assert (await sandbox.run("echo $PATH", env={"PATH": "/y:/bin"})).stdout == "/y:/bin\n"


async def test_background_children_live_on_and_keep_their_output(standin: StandInProcess) -> None:
    """Their pipes stay open, so a server that logs is not killed by its own log."""
    script = "(sleep 0.3; while :; do echo tick; date +%s%N >alive; sleep 0.05; done) & echo started"
    async with a_sandbox() as sandbox:
        assert (await sandbox.run(script, timeout=5)).stdout == "started\n"
        await until(lambda: exists(sandbox, "alive"), "the child writes")
        first = await sandbox.files.read("alive")
        await until(lambda: differs(sandbox, "alive", first), "the child goes on writing")


async def exists(sandbox: E2BSandbox, path: str) -> bool:
    try:
        return bool(await sandbox.files.read(path))
    except PathNotFound:
        return False


async def differs(sandbox: E2BSandbox, path: str, before: bytes) -> bool:
    return await sandbox.files.read(path) not in (before, b"")


async def test_many_runs_at_once_need_one_thread(standin: StandInProcess) -> None:
    async with a_sandbox() as sandbox:
        await sandbox.run(["true"])
        before = threading.active_count()
        done: list[int] = []

        async def sleep() -> None:
            done.append((await sandbox.run(["sleep", "1"])).exit_code)
            assert threading.active_count() <= before  # one of an earlier test's may end meanwhile

        async with anyio.create_task_group() as group:
            for _ in range(50):
                group.start_soon(sleep)
    assert done == [0] * 50


async def test_a_slow_reader_slows_the_command_down_and_nothing_else(standin: StandInProcess) -> None:
    command = "head -c 30000000 /dev/zero; echo end >&2; date >done"
    async with a_sandbox() as sandbox, sandbox.stream(command) as process:
        assert len((await process.__anext__()).data) > 0
        assert (await sandbox.run(["echo", "beside"])).stdout == "beside\n"
        assert not await exists(sandbox, "done"), "30 MB are read without a reader"
        size = 1
        async for chunk in process:
            size += len(chunk.data)
        assert size > 29_000_000
        assert (await process.wait()).exit_code == 0


@pytest.mark.parametrize("how", get_args(How))
async def test_a_run_cancelled_at_any_await_leaves_no_process(standin: StandInProcess, how: How) -> None:
    async with a_sandbox() as sandbox:

        async def check(outcome: Outcome[Any]) -> None:
            assert outcome.cancelled or outcome.value is not None
            if outcome.cancelled:  # else what it left in the background may live
                assert await processes(sandbox, "sleep 0.2") == [], f"left at await {outcome.point}"

        command = "(setsid sleep 0.2 &); echo a; sleep 0.2; echo b"
        hit = await sweep(lambda: sandbox.run(command), check, how)
        assert hit >= 3
        assert (await sandbox.run(["echo", "still here"])).ok


async def test_a_run_killed_before_its_script_marks_it_is_killed(
    standin: StandInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a busy machine, where the kill may look before the script's first line was executed."""
    monkeypatch.setattr(shell, "_RUN", "sleep 876\n" + shell._RUN)
    async with a_sandbox() as sandbox:
        async with sandbox.stream("echo never") as process:
            await until(lambda: processes(sandbox, "sleep 876"), "the script runs")
            await process.kill()
        assert await processes(sandbox, "876") == []


async def test_a_run_cancelled_after_its_command_ended_leaves_no_background(
    standin: StandInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    lingers, linger = anyio.Event(), commands.CommandRun._linger

    async def told(self: commands.CommandRun) -> None:
        lingers.set()
        await linger(self)

    monkeypatch.setattr(commands.CommandRun, "_linger", told)
    monkeypatch.setattr(commands, "LINGER", 60)
    async with a_sandbox() as sandbox:
        async with anyio.create_task_group() as group:
            group.start_soon(sandbox.run, "setsid sleep 876 &")
            with anyio.fail_after(30):
                await lingers.wait()
            assert await processes(sandbox, "sleep 876") != []
            group.cancel_scope.cancel()
        assert await processes(sandbox, "sleep 876") == []


async def test_a_command_that_ended_in_time_is_not_timed_out_by_its_background(
    standin: StandInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait for the stream's own end, which the child holds, ends before the deadline."""
    monkeypatch.setattr(commands, "LINGER", 60)
    async with a_sandbox() as sandbox:
        assert (await sandbox.run("sleep 876 & echo in time", timeout=3)).stdout == "in time\n"
        async with sandbox.stream("sleep 876 & echo in time", timeout=3) as process:
            assert (await anext(process)).data == b"in time\n"
            assert (await process.wait()).exit_code == 0
        assert len(await processes(sandbox, "sleep 876")) == 2, "what they left in the background lives"


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (502, "{}"),
        (504, "{}"),
        (408, "stream timeout"),
        (500, "upstream connect error"),
        (500, '{"code": "unknown", "message": "context canceled"}'),
        (500, '{"code": "internal", "message": "oops"}'),
        (524, "error code: 524"),
        (200, "<html>"),
    ],
)
async def test_a_start_on_which_a_gateway_gives_up_leaves_no_process(
    standin: StandInProcess, status: int, body: str
) -> None:
    async with a_sandbox() as sandbox:
        standin.fault(START, "gateway", status=status, body=body, content_type="text/plain")
        with pytest.raises(SandboxError):
            await sandbox.run("sleep 876")
        assert await processes(sandbox, "sleep 876") == []


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, '{"code": "invalid_argument", "message": "error starting process: permission denied"}'),
        (401, '{"code": 401, "message": "unauthorized access"}'),
        (429, "slow down"),
    ],
)
async def test_a_start_that_is_refused_costs_no_kill(standin: StandInProcess, status: int, body: str) -> None:
    async with a_sandbox() as sandbox:
        standin.fault(START, "status", status=status, body=body)
        before = len(standin.requests)
        with pytest.raises(SandboxError):
            await sandbox.run(["true"])
        assert len(standin.requests) == before + 1


async def test_a_stream_read_in_short_turns_ends_like_any_other(standin: StandInProcess) -> None:
    """Each turn is cancelled, also those between the command's end and its stream's."""
    async with a_sandbox() as sandbox, sandbox.stream("sleep 876 & echo out; exit 3", timeout=30) as process:
        output, ended = b"", False
        while not ended:
            with anyio.move_on_after(0.005):
                chunk = await anext(process, None)
                ended = chunk is None
                output += chunk.data if chunk else b""
        assert (output, process.returncode) == (b"out\n", 3)
        assert (await process.wait()).exit_code == 3
        assert await processes(sandbox, "sleep 876") != [], "what it left in the background lives"


async def test_a_wait_that_was_cancelled_while_the_stream_ended_can_be_repeated(
    standin: StandInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    drain = envd_module.ProcessStream.drain

    async def cancelled(self: envd_module.ProcessStream) -> None:
        scope.cancel()
        await drain(self)

    monkeypatch.setattr(envd_module.ProcessStream, "drain", cancelled)
    async with a_sandbox() as sandbox, sandbox.stream("exit 3", timeout=30) as process:
        with anyio.CancelScope() as scope:
            await process.wait()
        assert (await process.wait()).exit_code == 3


async def test_limits_that_cannot_be_set_are_no_part_of_the_output(
    standin: StandInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where those of the template are lower."""
    monkeypatch.setattr(shell, "_RUN", "ulimit -x 5; ulimit -R 5000000\n" + shell._RUN)
    async with a_sandbox() as sandbox:
        result = await sandbox.run("echo out; echo err >&2; exit 3")
        assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 3)


async def test_a_command_that_kills_its_group_spares_other_runs(standin: StandInProcess) -> None:
    async with a_sandbox() as sandbox, sandbox.stream("echo ready; sleep 1; exit 4") as other:
        assert (await anext(other)).data == b"ready\n"
        await sandbox.run("trap 'kill 0' EXIT; sleep 0.1 & echo x")
        assert (await other.wait()).exit_code == 4


async def test_a_cancelled_run_is_over_soon(standin: StandInProcess) -> None:
    async with a_sandbox() as sandbox:
        for _ in range(3):
            began = anyio.current_time()
            with anyio.move_on_after(0.5) as scope:
                await sandbox.run("sleep 987 & sleep 987")
            took = anyio.current_time() - began
            assert scope.cancelled_caught
            assert await processes(sandbox, "sleep 987") == []
            if took < 1.5:  # machines are busy; the page of measurements has the real figure
                break
        else:
            raise AssertionError(f"a cancel at 0.5 s took {took:g} s")


async def test_a_stream_under_which_the_sandbox_goes_says_so(standin: StandInProcess) -> None:
    async with a_sandbox() as sandbox, sandbox.stream("echo so far; sleep 987") as process:
        assert (await process.__anext__()).data == b"so far\n"
        await sandbox._place.control.kill(sandbox.id)
        with pytest.raises(SandboxGone, match="has ended"):
            await process.wait()


@pytest.mark.parametrize("other", ["asyncio", "trio"])
async def test_a_kill_from_another_event_loop_ends_what_runs(standin: StandInProcess, other: str) -> None:
    ended: list[str] = []
    async with a_sandbox("code-interpreter-v1") as sandbox:

        async def using(work: Callable[..., Awaitable[object]], text: str) -> None:
            with pytest.raises(SandboxGone):
                await work(text, timeout=60)
            ended.append(text)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(using, sandbox.run, "sleep 40")
            tasks.start_soon(using, sandbox.run_code, "import time; time.sleep(41)")
            async with sandbox.stream("echo up; sleep 42") as process:
                assert (await process.__anext__()).data == b"up\n"
                await anyio.to_thread.run_sync(lambda: anyio.run(sandbox.kill, backend=other))
                with pytest.raises(SandboxGone):
                    await process.wait()
    assert len(ended) == 2


async def test_a_run_that_cannot_be_killed_ends_the_sandbox(
    standin: StandInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script that kills is refused, so the sandbox goes, and says why."""
    async with a_sandbox() as sandbox:
        async with sandbox.stream("echo ready; sleep 987") as process:
            await process.__anext__()
            standin.fault(START, "status", times=0, status=503, body="{}")
            await process.kill()
        assert standin.sandboxes == []
        with pytest.raises(SandboxGone, match="could not be killed"):
            await sandbox.run(["true"])


async def test_a_template_without_bash_is_named(standin: StandInProcess) -> None:
    async with a_sandbox() as sandbox:
        await sandbox._place.envd.run(Command(["mv", "/bin/bash", "/bin/hidden"], user="root"))
        with pytest.raises(CapabilityNotSupported, match="/bin/bash"):
            await sandbox.run(["true"])


async def test_a_command_for_which_there_is_no_process_is_not_its_own_exit_code(
    standin: StandInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """254 is how bash ends that could not fork, after it has tried for fifteen seconds."""
    async with a_sandbox() as sandbox:
        with monkeypatch.context() as patch:
            patch.setattr(shell, "_RUN", "exit 254")
            for operation in (partial(sandbox.run, ["echo", "1"]), partial(sandbox.files.read, "f")):
                with pytest.raises(ResourceLimitExceeded, match="could make no process"):
                    await operation()
        killed = await sandbox.run("kill -9 $PPID; sleep 0.1")
        assert killed.exit_code == 137, "what a command does to the script around it is its own affair"


async def test_a_flood_of_output_lets_others_run(standin: StandInProcess) -> None:
    """A cancelled reader of a flood stops, and loses nothing that it was not given."""
    async with a_sandbox() as sandbox, sandbox.stream("seq 200000") as process:
        text = b""
        for _ in range(10):
            with anyio.CancelScope() as scope:
                scope.cancel()
                text += (await process.__anext__()).data
            text += (await process.__anext__()).data
        text += b"".join([chunk.data async for chunk in process])
        assert text == b"".join(b"%d\n" % number for number in range(1, 200_001))


# Code


ODD = {"QUOTE": 'it\'s "x"', "LINES": "a\nb\\n", "UNICODE": "é🙂", "EMPTY": ""}


async def test_code_sees_variables_of_any_content(standin: StandInProcess) -> None:
    """The server's own quoting breaks on quotes, so variables go another way."""
    async with code_sandbox(env=ODD, secrets={"S": "'''\"quoted"}) as sandbox:
        code = "import json, os; print(json.dumps({k: os.environ.get(k) for k in %r}))" % [*ODD, "S"]
        for context in (None, "one"):
            result = await sandbox.run_code(code, context_id=context)
            assert json.loads(result.stdout) == {**ODD, "S": "'''\"quoted"}
        assert (
            await sandbox.run_code("print([n for n in dir() if n in ('json', 'os', 'resource')])")
        ).stdout == "[]\n"


HISTORY = """
import linecache, sqlite3
print(In, _ih, _i, _ii, _iii, _i1, linecache.cache)
shell = get_ipython()
print(shell.history_manager.input_hist_raw, list(shell.history_manager.get_range(raw=True)))
shell.history_manager.writeout_cache()
kept = sqlite3.connect(shell.history_manager.hist_file)
print(kept.execute("SELECT source, source_raw FROM history").fetchall())
"""


async def test_the_history_of_an_interpreter_holds_no_secret(standin: StandInProcess) -> None:
    """IPython keeps the source of every cell, for magics and on disk."""
    async with code_sandbox(secrets={"S": "s3cret-s3cret"}, env={"PLAIN": "ordinary"}) as sandbox:
        for code in (
            "%history",
            "%save -f /tmp/session.py 1-9\nprint(open('/tmp/session.py').read())",
            "%recall 1\nprint(get_ipython().payload_manager.read_payload())",
            HISTORY,
        ):
            result = await sandbox.run_code(code, context_id="c")
            assert (result.exit_code, result.stderr) == (0, "")
            assert "import json, os, resource" in result.stdout, "the cell that brings them is looked at"
            assert not [word for word in ("s3cret", "ordinary") if word in result.stdout], code
        result = await sandbox.run_code("import os; print(os.environ['S'])", context_id="c")
        assert result.stdout == "s3cret-s3cret\n"
        assert await letters(sandbox) == []


async def letters(sandbox: E2BSandbox) -> list[str]:
    """Files that bring variables to an interpreter and were not removed."""
    return [item.path for item in await sandbox.files.ls("/tmp") if "sandboxio" in item.path]


async def test_variables_on_their_way_to_an_interpreter_are_removed_with_it(standin: StandInProcess) -> None:
    async with code_sandbox(secrets={"S": "s3cret"}) as sandbox:
        await sandbox._place.working_folder()
        standin.fault("POST /execute", "status", status=500, body="{}")
        with pytest.raises(SandboxError):
            await sandbox.run_code("1")
        assert await letters(sandbox) == []
        assert standin.sandboxes != []


async def test_what_other_languages_cannot_get_is_refused(standin: StandInProcess) -> None:
    async with code_sandbox(env={"A": "\udcff"}, secrets={"K": "topsecret"}) as sandbox:
        printed = await sandbox.run_code("import os; print(ascii(os.environ['A']))")
        assert printed.stdout == "'\\udcff'\n"
        before = len(standin.requests)
        with pytest.raises(ConfigurationError, match="'A' holds bytes"):
            await sandbox.run_code("1", language="r")
        assert len(standin.requests) == before
        sandbox._place.folder = "/home/\udcff"
        with pytest.raises(ConnectError, match="not UTF-8"):
            await sandbox.run_code("1")


async def test_code_and_commands_start_in_the_same_folder(standin: StandInProcess) -> None:
    async with code_sandbox() as sandbox:
        folder = (await sandbox.run(["pwd"])).stdout
        assert (await sandbox.run_code("import os; print(os.getcwd())")).stdout == folder


async def test_rich_outputs_come_in_their_order(standin: StandInProcess) -> None:
    async with code_sandbox() as sandbox:
        result = await sandbox.run_code(
            "from IPython.display import HTML, JSON, display\n"
            "display(HTML('<b>1</b>'), JSON({'a': [1]}))\n"
            "display({'x/y': 'mine'}, raw=True)\n'last'"
        )
        found = [(item.mime_type, item.data) for item in result.results or ()]
        assert [pair for pair in found if pair[0] != "text/plain"] == [
            ("text/html", "<b>1</b>"),
            ("application/json", '{"a": [1]}'),
            ("x/y", "mine"),
        ]
        assert found[-1] == ("text/plain", "last")


async def test_cells_of_one_context_wait_for_each_other(standin: StandInProcess) -> None:
    async with code_sandbox() as sandbox:
        printed: list[str] = []

        async def add(number: int) -> None:
            code = f"x = globals().get('x', 0) + {number}\nimport time; time.sleep(0.05)\nprint(x)"
            printed.append((await sandbox.run_code(code, context_id="sum")).stdout)

        async with anyio.create_task_group() as group:
            for number in (1, 2, 3):
                group.start_soon(add, number)
        assert max(printed) == "6\n", "one interpreter, made once"


async def test_an_interpreter_that_ends_is_told_and_replaced(standin: StandInProcess) -> None:
    dies = "print('so far', flush=True); import os, time; time.sleep(0.3); os._exit(3)"
    async with code_sandbox() as sandbox:
        for context in (None, "one"):
            result = await sandbox.run_code(dies, context_id=context)
            assert (result.exit_code, result.stdout) == (137, "so far\n")
            assert "variables are gone" in result.notes[0]
        assert (await sandbox.run_code("print('again')", context_id="one")).stdout == "again\n"


@pytest.mark.parametrize("name", ["WebSocketError", "ContextRestarting", "UnexpectedEndOfExecution"])
async def test_an_exception_with_a_name_of_the_servers_keeps_the_variables(
    standin: StandInProcess, name: str
) -> None:
    async with code_sandbox() as sandbox:
        await sandbox.run_code("x = 41", context_id="c")
        code = f"class {name}(Exception): pass\nraise {name}('handshake failed')"
        result = await sandbox.run_code(code, context_id="c")
        assert (result.exit_code, result.notes) == (1, ())
        assert "handshake failed" in result.stderr
        assert (await sandbox.run_code("print(x)", context_id="c")).stdout == "41\n"


async def test_exit_codes_of_code(standin: StandInProcess) -> None:
    async with code_sandbox() as sandbox:
        for code, expected in (("raise SystemExit(7)", 7), ("exit()", 0), ("raise SystemExit('why')", 1)):
            assert (await sandbox.run_code(code)).exit_code == expected, code


async def test_interpreters_that_nobody_needs_are_ended(standin: StandInProcess) -> None:
    async with code_sandbox() as sandbox:
        await sandbox.run_code("x = 1")
        assert await processes(sandbox, "ipykernel_launcher") == []
        await sandbox.run_code("x = 1", context_id="kept")
        assert len(await processes(sandbox, "ipykernel_launcher")) == 1


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "status", "status": 500, "body": "Failed to remove context"},
        {"kind": "delay", "seconds": 60},
        {"kind": "reset"},
    ],
)
async def test_an_interpreter_that_cannot_be_ended_costs_no_result(
    standin: StandInProcess, monkeypatch: pytest.MonkeyPatch, fault: dict[str, Any]
) -> None:
    monkeypatch.setattr(cells, "REMOVAL", 1.0)
    async with code_sandbox() as sandbox:
        standin.fault("DELETE /contexts", times=0, **fault)
        child = "import subprocess; subprocess.Popen(['sleep', '876']); print('precious'); 42"
        result = await sandbox.run_code(child)
        assert (result.exit_code, result.stdout) == (0, "precious\n")
        assert [output.data for output in result.results or ()] == ["42"]
        assert "the interpreter was killed" in result.notes[0]
        assert await processes(sandbox, "sleep 876") == []
        standin.clear_faults()
        assert (await sandbox.run_code("print(1)")).notes == ()


async def test_a_cell_that_has_ended_keeps_its_result_when_it_is_cancelled_then(
    standin: StandInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or when its time is over then: the interpreter is ended first."""
    remove = cells.CodeRun._remove

    async def cancelled(self: cells.CodeRun, context: str) -> None:
        scope.cancel()
        await remove(self, context)

    monkeypatch.setattr(cells.CodeRun, "_remove", cancelled)
    async with code_sandbox() as sandbox:
        run = sandbox._code("41 + 1", language="python", context_id=None, seconds=60)
        await run.start()
        with anyio.CancelScope() as scope:
            while await run.receive() is not None:
                pass
        run.close()
        assert run.exit is not None
        assert [output.data for output in run.exit.results or ()] == ["42"]
        assert await processes(sandbox, "ipykernel_launcher") == []


async def test_an_interpreter_that_cannot_be_killed_either_ends_the_sandbox(standin: StandInProcess) -> None:
    async with code_sandbox() as sandbox:
        await sandbox._place.working_folder()
        standin.fault("DELETE /contexts", "status", times=0, status=500)
        standin.fault(START, "status", times=0, status=500)
        with pytest.raises(SandboxError):
            await sandbox.run_code("1")
        assert standin.sandboxes == []


@pytest.mark.slow
async def test_code_cancelled_at_any_await_leaves_no_interpreter(standin: StandInProcess) -> None:
    async with code_sandbox(secrets={"S": "s3cret"}) as sandbox:

        async def check(outcome: Outcome[Any]) -> None:
            assert outcome.cancelled or outcome.value is not None
            left = await processes(sandbox, "ipykernel_launcher")
            assert left == await letters(sandbox) == [], f"left at await {outcome.point}"

        assert await sweep(lambda: sandbox.run_code("print(1)"), check) >= 7


async def test_an_interpreter_whose_answer_is_late_is_ended(standin: StandInProcess) -> None:
    """It runs already, and the cancelled call does not know its name yet."""
    async with code_sandbox() as sandbox:
        await sandbox._place.working_folder()
        standin.fault("POST /contexts", "delay", seconds=1.5, late=True)

        async def begun() -> bool:
            return bool(await processes(sandbox, "ipykernel_launcher"))

        async with anyio.create_task_group() as group:
            group.start_soon(sandbox.run_code, "print(1)")
            await until(begun, "an interpreter starts")
            group.cancel_scope.cancel()
        assert await processes(sandbox, "ipykernel_launcher") == []


async def test_a_template_without_an_interpreter_says_so(standin: StandInProcess) -> None:
    async with a_sandbox() as sandbox:
        await sandbox.run(["true"])
        body = '{"message": "The sandbox is running but port is not open", "port": 49999, "code": 502}'
        standin.fault("POST /contexts", "status", status=502, body=body)
        with pytest.raises(CapabilityNotSupported, match="no code interpreter") as caught:
            await sandbox.run_code("1")
        assert "code-interpreter-v1" in caught.value.hint
        with pytest.raises(CapabilityNotSupported, match="'r'"):
            await sandbox.run_code("1", language="R")
        assert (await sandbox.run(["echo", "1"])).ok


# Files


async def test_large_files_travel_both_ways_in_pieces(standin: StandInProcess, tmp_path: Path) -> None:
    data = os.urandom(1 << 20) * 32
    (tmp_path / "up").write_bytes(data)
    async with a_sandbox() as sandbox:
        await sandbox.files.upload(tmp_path / "up", "big")
        said = (await sandbox.run(["sha256sum", "big"])).stdout
        assert said.startswith(hashlib.sha256(data).hexdigest())
        await sandbox.files.download("big", tmp_path / "down")
        assert not difference((tmp_path / "down").read_bytes(), data)


@pytest.mark.parametrize("version", ["0.6.13", "0.5.0"])
async def test_a_local_file_that_becomes_shorter_is_told_at_once(
    standin: StandInProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str
) -> None:
    local = tmp_path / "local"
    local.write_bytes(b"x" * 400_000)
    standin.use_envd(version)
    async with a_sandbox() as sandbox:
        await sandbox.files.write("remote", b"old")
        real = envd_module.Envd.process

        def shortened(*given: Any) -> Any:
            os.truncate(local, 300_000)
            return real(*given)

        monkeypatch.setattr(envd_module.Envd, "process", shortened)
        with anyio.fail_after(20), pytest.raises(FileSystemError, match="shorter than announced"):
            await sandbox.files.upload(local, "remote")
        assert [entry.path for entry in await sandbox.files.ls(".") if "sandboxio" in entry.path] == []
        assert await sandbox.files.read("remote") == b"old"


async def test_a_file_that_never_ends_is_no_more_than_read_holds(standin: StandInProcess) -> None:
    """It says that it is empty, and holds eight bytes for each page of an address space."""
    async with a_sandbox() as sandbox:
        with anyio.fail_after(30), pytest.raises(FileSystemError, match="larger than 64 MiB"):
            await sandbox.files.read("/proc/self/pagemap")
        assert await processes(sandbox, "pagemap") == []
        assert (await sandbox.files.read("/proc/self/comm")) == b"cat\n"


async def test_what_bash_says_about_a_locale_is_no_part_of_a_path(standin: StandInProcess) -> None:
    async with a_sandbox(env={"LC_ALL": "xx_XX"}) as sandbox:
        assert "LC_ALL" in (await sandbox.run(["true"])).stderr
        await sandbox.files.write("f", b"x" * 100_000)
        assert await sandbox.files.read("f") == b"x" * 100_000


@pytest.mark.parametrize("path", ["/opt/app/bin", ""])
async def test_files_need_no_tool_of_the_callers_path(standin: StandInProcess, path: str) -> None:
    async with a_sandbox(env={"PATH": path}) as sandbox:
        await sandbox.files.mkdir("d")
        for size in (10, 100_000):
            await sandbox.files.write("d/f", b"x" * size)
            assert await sandbox.files.read("d/f") == b"x" * size
        assert [item.path for item in await sandbox.files.ls("d")] == ["d/f"]
        await sandbox.files.remove("d")
        with pytest.raises(PathNotFound):
            await sandbox.files.ls("d")


async def test_files_belong_to_the_user_and_keep_their_mode(standin: StandInProcess) -> None:
    async with a_sandbox() as sandbox:
        for name, size in (("small", 10), ("large", 100_000)):
            await sandbox.files.write(name, b"1" * size)
            assert (await sandbox.run(["stat", "-c", "%U %a", name])).stdout == "user 644\n"
            await sandbox.run(["chmod", "600", name])
            await sandbox.files.write(name, b"2" * size)
            assert (await sandbox.run(["stat", "-c", "%U %a", name])).stdout == "user 600\n"


async def test_links_are_followed_when_written(standin: StandInProcess) -> None:
    async with a_sandbox() as sandbox:
        await sandbox.run("mkdir real; ln -s real/file link; ln -s real folder; ln -s loop loop; mkfifo pipe")
        for data in (b"1", b"2" * 100_000):
            await sandbox.files.write("link", data)
            assert not difference(await sandbox.files.read("real/file"), data)
        assert [(item.path, item.is_dir) for item in await sandbox.files.ls("folder")] == [
            ("folder/file", False)
        ]
        kinds = {item.path: item.is_dir for item in await sandbox.files.ls(".")}
        assert (kinds["./folder"], kinds["./link"]) == (True, False)
        for operation in (
            partial(sandbox.files.write, "pipe", b"x"),
            partial(sandbox.files.read, "pipe"),
            partial(sandbox.files.write, "loop", b"x"),
            partial(sandbox.files.remove, "/"),
            partial(sandbox.files.write, "/proc/x", b"x"),
            partial(sandbox.files.mkdir, "/root/x"),
        ):
            with pytest.raises(FileSystemError), anyio.fail_after(20):
                await operation()
        await sandbox.files.remove("link")
        assert await sandbox.files.read("real/file"), "a link is removed, not followed"


async def test_a_link_with_a_slash_behind_it_is_removed_and_not_emptied(standin: StandInProcess) -> None:
    async with a_sandbox() as sandbox:
        await sandbox.run("mkdir -p real/sub; echo kept >real/sub/file; ln -s real link; ln -s nowhere lost")
        for path in ("lost/", "real/sub/file/"):
            with pytest.raises(PathNotFound):
                await sandbox.files.remove(path)
        await sandbox.files.remove("link//")
        assert await sandbox.files.read("real/sub/file") == b"kept\n"
        await sandbox.files.remove("real//")
        assert [item.path for item in await sandbox.files.ls(".")] == ["./lost"]
        with pytest.raises(FileSystemError):
            await sandbox.files.remove("//")


async def test_a_folder_is_listed_while_files_in_it_come_and_go(standin: StandInProcess) -> None:
    churn = "mkdir d; cd d; : >kept; echo ready; while :; do touch {1..500}; rm -f {1..500}; done"
    async with a_sandbox() as sandbox, sandbox.stream(churn, timeout=60) as process:
        await anext(process)
        for _ in range(15):
            assert "d/kept" in [item.path for item in await sandbox.files.ls("d")]


CLOSED = "mkdir -p /opt/closed/folder; echo 1 >/opt/closed/file; chmod 700 /opt/closed"


async def test_what_cannot_be_looked_at_is_not_said_to_be_missing(standin: StandInProcess) -> None:
    async with a_sandbox() as sandbox:
        await sandbox._place.envd.run(Command(["sh", "-c", CLOSED], user="root"))
        await sandbox.run("ln -s loop loop; echo >file; mkdir 'No such file or directory'; chmod 0 No*")
        for path, says in (
            ("/opt/closed/file", "No permission"),
            ("/opt/closed/folder/below", "No permission"),
            ("No such file or directory/below", "No permission"),
            ("n" * 256, "too long"),
            ("loop/below", "too many symbolic links"),
        ):
            for operation in (
                sandbox.files.read,
                sandbox.files.ls,
                sandbox.files.remove,
                sandbox.files.mkdir,
                partial(sandbox.files.write, data=b"x"),
            ):
                with pytest.raises(FileSystemError, match=says) as caught:
                    await operation(path)
                assert type(caught.value) is FileSystemError
        for path in ("missing/below", "Permission denied/below"):
            with pytest.raises(PathNotFound):
                await sandbox.files.write(path, b"x")
        with pytest.raises(FileSystemError, match="leads through a file"):
            await sandbox.files.write("file/below", b"x")


async def test_a_full_disk_is_named(standin: StandInProcess) -> None:
    async with a_sandbox() as sandbox:
        code, _, _ = await sandbox._place.envd.run(
            Command(["sh", "-c", "ulimit -f 100; dd if=/dev/zero of=/tmp/x bs=1M count=1"], user="root")
        )
        assert code != 0  # what a limit does to envd's own scripts
        standin.fault(
            "POST /files", "status", status=507, body='{"code": 507, "message": "not enough disk space"}'
        )
        with pytest.raises(FileSystemError, match="not enough disk space"):
            await sandbox.files.write("big", b"x" * 100_000)
        names = [item.path for item in await sandbox.files.ls()]
        assert not [name for name in names if "sandboxio" in name], "nothing half-written stays"


@pytest.mark.parametrize("size", [10, 200_000])
async def test_a_write_cancelled_at_any_await_leaves_the_old_file_or_the_new(
    standin: StandInProcess, size: int
) -> None:
    old, new = b"old", b"n" * size
    async with a_sandbox() as sandbox:
        await sandbox.files.write("folder-file", old)

        async def check(outcome: Outcome[Any]) -> None:
            assert await sandbox.files.read("folder-file") in (old, new)
            names = [item.path.rpartition("/")[2] for item in await sandbox.files.ls(".")]
            assert not [name for name in names if name.startswith(".sandboxio")], outcome.point
            await sandbox.files.write("folder-file", old)

        assert await sweep(lambda: sandbox.files.write("folder-file", new), check) >= 2


# What a network, a gateway or an old template does


@pytest.mark.parametrize("version", ["0.3.0", "0.5.0", "0.6.13", "9.0.0-rc1", ""])
async def test_other_versions_of_envd(standin: StandInProcess, version: str) -> None:
    standin.use_envd(version or "0.6.13")
    async with code_sandbox() as sandbox:
        if not version:
            sandbox._place.envd._version = envd_module._version(version)
        assert (await sandbox.run("whoami; pwd")).stdout == "user\n/home/user\n"
        for size in (10, 100_000):
            await sandbox.files.write("f", b"x" * size)
            assert len(await sandbox.files.read("f")) == size
        with anyio.move_on_after(0.3):
            await sandbox.run("sleep 987")
        assert await processes(sandbox, "sleep 987") == []
        assert (await sandbox.run_code("print(1)")).stdout == "1\n"


LONG = "for i in $(seq 50); do echo $i; sleep 0.05; done"


@pytest.mark.parametrize("kind", ["reset", "truncate"])
@pytest.mark.parametrize("after", [0, 3, 40, 200])
async def test_a_stream_that_breaks_is_a_connect_error(
    standin: StandInProcess, kind: str, after: int
) -> None:
    """The sandbox lives, so it is not gone; the command is not left running."""
    async with a_sandbox() as sandbox:
        await sandbox.run(["true"])
        standin.fault(START, kind, after=after)
        with pytest.raises(ConnectError, match=sandbox.id):
            await sandbox.run(LONG)
        assert await processes(sandbox, "seq 50") == []
        assert (await sandbox.run(["echo", "1"])).stdout == "1\n"


async def test_a_stream_without_a_sign_of_life_is_given_up(
    standin: StandInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """envd says every 50 seconds that a silent command is still there."""
    monkeypatch.setattr(envd_module, "SILENCE", 0.3)
    async with a_sandbox() as sandbox:
        standin.fault(START, "stall", after=40)
        with pytest.raises(ConnectError, match="nothing moved"):
            await sandbox.run("echo 1; sleep 987")
        assert await processes(sandbox, "sleep 987") == []


async def test_a_silent_command_is_kept_by_signs_of_life(
    standin: StandInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(envd_module, "PING_SECONDS", 1)
    monkeypatch.setattr(envd_module, "SILENCE", 2.0)
    async with a_sandbox() as sandbox:
        assert (await sandbox.run("sleep 3; echo 1")).stdout == "1\n"


@pytest.mark.parametrize(
    ("status", "body", "kind", "says"),
    [
        (502, '{"message": "The sandbox was not found", "code": 502}', SandboxGone, "has ended"),
        (502, "<html>Bad Gateway</html>", ConnectError, "web page"),
        (429, '{"code": 429, "message": "slow down"}', RateLimitError, "slow down"),
        (401, '{"code": 401, "message": "unauthorized access"}', AuthError, "access token"),
        (500, '{"code": "internal", "message": "oops"}', ConnectError, "oops"),
        (200, "<html>Log in</html>", ConnectError, "web page"),
        (200, "", ConnectError, "answered 200 and nothing else"),
    ],
)
async def test_answers_that_are_not_envds(
    standin: StandInProcess, status: int, body: str, kind: type[SandboxError], says: str
) -> None:
    content_type = "text/html" if "<html>" in body else "application/json"
    async with a_sandbox() as sandbox:
        standin.fault(START, "status", status=status, body=body, content_type=content_type)
        with pytest.raises(kind, match=says) as caught:
            await sandbox.run(["true"])
        assert type(caught.value) is kind
        assert caught.value.__cause__ is not None
        if kind is SandboxGone:
            sandbox._gone = None  # it was a lie, and the sandbox must end


async def test_a_sandbox_whose_health_page_is_missing_is_not_gone(standin: StandInProcess) -> None:
    """Only the edge's own words say so; one that counted as gone would never be killed."""
    async with a_sandbox() as sandbox:
        standin.fault(START, "reset")
        standin.fault("GET /health", "status", status=404, body='{"message": "404 page not found"}')
        with pytest.raises(ConnectError):
            await sandbox.run(["true"])
    assert standin.sandboxes == []


@pytest.mark.parametrize(
    ("path", "status"), [("contexts", 429), ("execute", 429), ("execute", 502), ("execute", 500)]
)
async def test_a_refused_interpreter_is_typed(standin: StandInProcess, path: str, status: int) -> None:
    async with code_sandbox() as sandbox:
        standin.fault(
            f"POST /{path}",
            "status",
            times=0,
            status=status,
            body="<html>no</html>",
            content_type="text/html",
        )
        with pytest.raises(SandboxError):
            await sandbox.run_code("1")
        standin.clear_faults()
        assert (await sandbox.run_code("print(1)")).stdout == "1\n"


@pytest.mark.parametrize(
    ("status", "content_type", "body"),
    [
        (504, "application/json", '{"message": "upstream request timeout"}'),
        (502, "text/html", "<html>Bad Gateway</html>"),
        (500, "text/plain", "Failed to set working directory"),
        (408, "text/plain", "stream timeout"),
    ],
)
async def test_an_interpreter_on_which_a_gateway_gives_up_is_not_left_running(
    standin: StandInProcess, status: int, content_type: str, body: str
) -> None:
    async with code_sandbox() as sandbox:
        standin.fault("POST /contexts", "gateway", status=status, content_type=content_type, body=body)
        with pytest.raises(SandboxError):
            await sandbox.run_code("1")
        # It runs, and which of all interpreters it is nobody can tell, so the sandbox goes with it.
        assert standin.sandboxes == []


@pytest.mark.parametrize("name", ["a\r\nX: y", "a b", "\ud800", "../files?path=x", "", 5])
async def test_an_interpreter_with_a_name_that_is_none_is_typed(
    standin: StandInProcess, name: object
) -> None:
    async with code_sandbox() as sandbox:
        standin.fault("POST /contexts", "status", status=200, body=json.dumps({"id": name}))
        with pytest.raises(ConnectError, match="an id that can be used"):
            await sandbox.run_code("1")
        # Which interpreter to end nobody can tell now, so the sandbox goes with it.
        assert standin.sandboxes == []


@pytest.mark.parametrize(("name", "trace"), [("WebSocketError", ""), ("OSError", "trace")])
async def test_an_interpreter_that_could_not_be_prepared_runs_nothing(
    standin: StandInProcess, name: str, trace: str
) -> None:
    """It has no secrets, and no mark by which it could be killed."""
    error = json.dumps({"type": "error", "name": name, "value": "x", "traceback": trace})
    async with code_sandbox(secrets={"S": "s3cret"}) as sandbox:
        standin.fault("POST /execute", "status", status=200, body=error + '\n{"type":"end_of_execution"}\n')
        with pytest.raises(ConnectError, match="could not be prepared"):
            await sandbox.run_code("1", context_id="c")
        assert await processes(sandbox, "ipykernel_launcher") == []
        printed = await sandbox.run_code("import os; print(os.environ['S'])", context_id="c")
        assert printed.stdout == "s3cret\n"


async def test_a_timeout_counts_the_start_too(standin: StandInProcess) -> None:
    async with a_sandbox() as sandbox:
        standin.fault(START, "delay", seconds=1.0)
        with pytest.raises(ExecutionTimeout):
            await sandbox.run("sleep 987", timeout=0.2)
        assert await processes(sandbox, "sleep 987") == [], "it started after the deadline, and was killed"


# The provider's own client


@pytest.mark.leaves("E2B's own client keeps its connections as long as the process lives")
async def test_native_is_built_without_io_under_both_loops(standin: StandInProcess) -> None:
    import e2b

    async with a_sandbox() as sandbox:
        before = len(standin.requests)
        native = sandbox.native
        assert native is sandbox.native
        assert isinstance(native, e2b.AsyncSandbox)
        assert native.sandbox_id == sandbox.id
        assert len(standin.requests) == before


@pytest.mark.leaves("E2B's own client keeps its connections as long as the process lives")
@pytest.mark.one_loop("E2B's clients need asyncio")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_native_works_on_the_same_sandbox(standin: StandInProcess) -> None:
    async with a_sandbox() as sandbox:
        await sandbox.files.write("f", b"from here")
        assert await sandbox.native.files.read("f") == "from here"
        assert (await sandbox.native.commands.run("echo there")).stdout == "there\n"
        assert await sandbox.native.is_running()

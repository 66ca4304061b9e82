"""The fake as its users see it: scripts, calls, simulations, virtual time."""

from __future__ import annotations

import math
import re
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass
from typing import Any

import anyio
import pytest

import sandboxio
from sandboxio import (
    AuthError,
    Capability,
    CapabilityNotSupported,
    ConfigurationError,
    ConnectError,
    CreateTimeout,
    CreationError,
    ExecResult,
    ExecutionTimeout,
    FileSystemError,
    IsolationTier,
    NetworkPolicy,
    NetworkPolicyViolation,
    OrphanedSandboxWarning,
    PathNotFound,
    RateLimitError,
    Resources,
    SandboxGone,
    registry,
)
from sandboxio.audit import AuditConfig
from sandboxio.models import BackendConfig, Meter, RichOutput
from sandboxio.testing import FakeBackend, RecordingSink

# Scripts


async def test_a_script_answers_what_contains_its_text() -> None:
    fake = FakeBackend()
    fake.on_run("pytest -q", ExecResult(1, "1 failed\n", "E\n", notes=("slow",)))
    fake.on_run_code("import pandas", ExecResult(0, "2.2.1\n", "", results=(RichOutput("text/plain", "x"),)))
    for command in (["python", "-m", "pytest", "-q"], "cd x && pytest -q"):
        result = await fake.sandbox.run(command)
        assert (result.exit_code, result.stdout, result.stderr) == (1, "1 failed\n", "E\n")
    result = await fake.sandbox.run_code("import pandas as pd")
    assert (result.stdout, result.results) == ("2.2.1\n", (RichOutput("text/plain", "x"),))
    assert (await fake.sandbox.run(["pytest", "-x"])).exit_code == 127
    assert (await fake.sandbox.run_code("print('pytest -q')")).stdout == "pytest -q\n"


async def test_a_script_answers_streams_too() -> None:
    fake = FakeBackend()
    fake.on_run("build", ExecResult(2, "out\n", "err\n"))
    async with fake.sandbox.stream(["build"]) as process:
        chunks = [(chunk.stream, chunk.data) async for chunk in process]
        assert chunks == [("stdout", b"out\n"), ("stderr", b"err\n")]
        assert (await process.wait()).exit_code == 2


async def test_the_newest_script_wins_and_may_be_limited() -> None:
    fake = FakeBackend()
    fake.on_run("x", ExecResult(0, "old\n", ""))
    fake.on_run("x", ExecResult(0, "new\n", ""), times=2)
    assert [(await fake.sandbox.run(["x"])).stdout for _ in range(3)] == ["new\n", "new\n", "old\n"]


async def test_a_flaky_command_fails_and_then_works() -> None:
    fake = FakeBackend()
    fake.on_run("fetch", ExecResult(0, "done\n", ""))
    fake.on_run("fetch", raises=NetworkPolicyViolation("no way out"), times=2)
    for _ in range(2):
        with pytest.raises(NetworkPolicyViolation, match="no way out"):
            await fake.sandbox.run(["fetch"])
    assert (await fake.sandbox.run(["fetch"])).stdout == "done\n"


async def test_a_scripted_error_is_a_fresh_one_each_time() -> None:
    fake = FakeBackend()
    given = NetworkPolicyViolation("no way out")
    given.__cause__ = OSError("network is unreachable")
    fake.on_run("fetch", raises=given)
    caught: list[NetworkPolicyViolation] = []
    for _ in range(2):
        with pytest.raises(NetworkPolicyViolation) as info:
            await fake.sandbox.run(["fetch"])
        caught.append(info.value)
    assert caught[0] is not caught[1]
    assert given.__traceback__ is None
    assert all(error.__cause__ is given.__cause__ for error in caught)


@pytest.mark.parametrize(
    "rule",
    [
        {"match": 3},
        {"returns": "text"},
        {"returns": ExecResult(0, "\ud800", "")},
        {"raises": RuntimeError()},
        {"raises": NetworkPolicyViolation},
        {"raises": NetworkPolicyViolation("x"), "hangs": True},
        {"takes": -1.0},
        {"takes": float("inf")},
        {"times": 0},
    ],
    ids=str,
)
def test_a_script_that_no_backend_could_follow_is_refused(rule: dict[str, Any]) -> None:
    fake = FakeBackend()
    for method in (fake.on_run, fake.on_run_code):
        with pytest.raises(ConfigurationError):
            method(**rule)


async def test_the_notes_of_a_script_arrive_on_every_way() -> None:
    fake = FakeBackend()
    for on in (fake.on_run, fake.on_run_code):
        on("zz", ExecResult(0, "x", "", notes=("slow",)))
    assert (await fake.sandbox.run("zz")).notes == ("slow",)
    assert (await fake.sandbox.run_code("zz")).notes == ("slow",)
    async with fake.sandbox.stream("zz") as process:
        assert (await process.wait()).notes == ("slow",)


@pytest.mark.parametrize(
    ("field", "hint"),
    [
        ({"truncated": True}, r"FakeBackend\(output_limit=...\)"),
        ({"streamed": True}, r"Process.wait\(\)"),
        ({"meter": Meter(1, "docker")}, "Leave it out"),
    ],
)
def test_what_a_script_cannot_bring_about_is_refused(field: dict[str, Any], hint: str) -> None:
    fake = FakeBackend()
    for on in (fake.on_run, fake.on_run_code):
        with pytest.raises(ConfigurationError, match=f"cannot set {next(iter(field))}") as refused:
            on("zz", ExecResult(0, "x", "", **field))
        assert re.search(hint, refused.value.hint)


async def test_a_scripted_output_is_truncated_by_the_limit() -> None:
    fake = FakeBackend(output_limit=10)
    fake.on_run("zz", ExecResult(0, "x" * 20, "", notes=("slow",)))
    result = await fake.sandbox.run("zz")
    assert (result.stdout, result.truncated, result.notes[0]) == ("x" * 10, True, "slow")


# Files


@pytest.mark.parametrize("path", [".", "./", "..", "x/..", "x/.", "/", "//"])
async def test_a_folder_is_not_written_made_or_removed_by_a_path_without_a_name(path: str) -> None:
    """As Linux answers: EISDIR, EEXIST and EINVAL."""
    files = FakeBackend().sandbox.files
    await files.mkdir("x")
    await files.write("x/f", "1")
    before = [await files.ls(folder) for folder in ("/", ".", "x")]
    with pytest.raises(FileSystemError, match="is a folder"):
        await files.write(path, "1")
    with pytest.raises(FileSystemError, match="File exists"):
        await files.mkdir(path)
    with pytest.raises(FileSystemError, match=r"cannot be removed|busy"):
        await files.remove(path)
    await files.mkdir(path, parents=True)
    assert [await files.ls(folder) for folder in ("/", ".", "x")] == before


@pytest.mark.parametrize("path", ["nope/.", "nope/..", "f/.", "f/.."])
async def test_what_is_missing_before_the_dots_is_told_first(path: str) -> None:
    files = FakeBackend().sandbox.files
    await files.write("f", "1")
    with pytest.raises(PathNotFound):
        await files.read(path)
    with pytest.raises(PathNotFound):
        await files.write(path, "1")
    with pytest.raises(PathNotFound):
        await files.mkdir(path)
    with pytest.raises(PathNotFound):
        await files.remove(path)
    assert len(await files.ls()) == 1


# Time


async def test_a_hang_of_five_minutes_takes_three_seconds_at_most() -> None:
    fake = FakeBackend()
    fake.on_run_code("train", ExecResult(0, "epoch 1\n", ""), hangs=True)
    began = time.monotonic()
    with pytest.raises(ExecutionTimeout) as caught:
        await fake.sandbox.run_code("train()")
    assert 2.5 < time.monotonic() - began < 10
    assert caught.value.partial is not None
    assert caught.value.partial.stdout == "epoch 1\n"


@pytest.mark.virtual_time
async def test_the_clock_of_the_fake_works_on_a_jumping_loop() -> None:
    fake = FakeBackend(time_scale=1)
    async with await fake.create(timeout=10_000) as sandbox:
        began = anyio.current_time()
        assert (await sandbox.run("sleep 3600; echo done", timeout=9000)).stdout == "done\n"
        assert anyio.current_time() - began == pytest.approx(3600)
        with pytest.raises(ExecutionTimeout):
            await sandbox.run("sleep 3600", timeout=60)
        assert anyio.current_time() - began == pytest.approx(3660)


@pytest.mark.virtual_time
async def test_runs_at_the_same_time_share_the_clock() -> None:
    fake = FakeBackend(time_scale=1)
    ended: list[tuple[str, float]] = []

    async def nap(seconds: int) -> None:
        await fake.sandbox.run(["sleep", str(seconds)])
        ended.append((str(seconds), round(anyio.current_time() - began)))

    began = anyio.current_time()
    async with anyio.create_task_group() as tasks:
        for seconds in (30, 10, 20):
            tasks.start_soon(nap, seconds)
    assert ended == [("10", 10), ("20", 20), ("30", 30)]


@pytest.mark.virtual_time
async def test_a_wait_that_is_given_up_has_taken_its_time() -> None:
    fake = FakeBackend(time_scale=0.1)
    began = anyio.current_time()
    async with fake.sandbox.stream(["sleep", "30"], timeout=8) as process:
        for _ in range(2):
            with anyio.move_on_after(0.3):
                await anext(process)
        with pytest.raises(ExecutionTimeout):
            await anext(process)
    assert anyio.current_time() - began == pytest.approx(0.8)


@pytest.mark.virtual_time
async def test_a_lifetime_begins_in_the_middle_of_what_others_wait_for() -> None:
    fake = FakeBackend(time_scale=0.01)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: fake.sandbox.run(["sleep", "100"], timeout=200))
        await anyio.sleep(0.9)
        sandbox = await fake.create(timeout=60)
        await anyio.sleep(0.2)
        assert (await sandbox.run(["sleep", "45"])).ok
        with pytest.raises(SandboxGone, match="lifetime of 60 s"):
            await sandbox.run(["sleep", "10"], timeout=20)


@pytest.mark.virtual_time
async def test_a_command_does_nothing_after_its_timeout() -> None:
    """Also where the sandbox is looked at before the caller of the command hears of it."""
    fake = FakeBackend(time_scale=0.01)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: fake.sandbox.run(["sleep", "100"]))
        async with fake.sandbox.stream("sleep 8; echo late > late", timeout=5) as process:
            await anyio.sleep(0.2)
            assert await fake.sandbox.files.ls() == []
            with pytest.raises(ExecutionTimeout):
                await process.wait()
        tasks.cancel_scope.cancel()


async def test_a_second_handle_does_not_know_the_values_of_the_creator() -> None:
    fake = FakeBackend()
    made = await fake.create(env={"A": "mine"}, secrets={"B": "hunter22"})
    other = await fake.connect(made.id)
    assert (await made.run("echo a-$A b-$B")).stdout == "a-mine b-hunter22\n"
    assert (await other.run("echo a-$A b-$B")).stdout == "a- b-\n"
    assert (await other.run("echo a-$A", env={"A": "its own"})).stdout == "a-its own\n"
    await other.run("echo hunter22")
    assert fake.events[-1].argv == ("echo hunter22",)


async def test_the_lifetime_ends_in_virtual_time_only() -> None:
    fake = FakeBackend()
    sandbox = await fake.create(timeout=10)
    assert (await sandbox.run("sleep 9")).ok
    with pytest.raises(SandboxGone, match="lifetime of 10 s"):
        await sandbox.run("sleep 9", timeout=500)
    with pytest.raises(SandboxGone):
        await sandbox.files.ls()
    assert await fake.list_managed() == []


async def test_a_background_job_goes_on_and_dies_with_the_sandbox() -> None:
    fake = FakeBackend()
    machine = fake.sandbox.native
    await fake.sandbox.run("sleep 5 && echo late > note & echo started")
    assert len(machine.processes()) == 1
    assert not [each for each in await fake.sandbox.files.ls() if each.path.endswith("note")]
    await fake.sandbox.run("sleep 6")
    assert await fake.sandbox.files.read("note") == b"late\n"
    await fake.sandbox.run("sleep 60 &")
    await fake.sandbox.kill()
    assert machine.processes() == []


async def test_a_stream_stops_when_its_pipe_is_full() -> None:
    fake = FakeBackend()
    async with fake.sandbox.stream("cat /dev/zero") as process:
        async for chunk in process:
            assert chunk.data == bytes(len(chunk.data))
            break
    assert fake.sandbox.native.processes() == []


# Calls and events


async def test_calls_are_kept_as_they_were_made() -> None:
    fake = FakeBackend()
    options: dict[str, Any] = {
        "template": "python:3.12",
        "resources": Resources(memory_mb=256),
        "network": NetworkPolicy(allow=("example.org",)),
        "env": {"A": "1"},
        "secrets": {"TOKEN": "s3cr3t-value"},
        "timeout": 60,
        "metadata": {"tenant_id": "acme"},
    }
    async with await fake.create(**options) as sandbox:
        await sandbox.run(["echo", "x"], timeout=5, env={"B": "2"})
        await sandbox.run_code("print(1)", context_id="one")
        await sandbox.files.write("f", b"x")
        with pytest.raises(ConfigurationError):
            await sandbox.run([])
    create, run, code, write, refused, kill = fake.calls
    assert {name: getattr(create, name) for name in options} == options
    assert (create.op, create.sandbox_id) == ("create", sandbox.id)
    assert (run.op, run.command, run.timeout, run.env) == ("run", ("echo", "x"), 5, {"B": "2"})
    assert (code.op, code.code, code.language, code.context_id) == ("run_code", "print(1)", "python", "one")
    assert (write.op, write.path) == ("file_write", "f")
    assert (refused.op, refused.command) == ("run", ())
    assert kill.op == "kill"
    assert {call.network for call in fake.calls} == {options["network"]}
    assert "s3cr3t-value" not in repr(fake.calls)


async def test_what_a_failing_test_prints_of_the_calls_holds_no_secret() -> None:
    fake = FakeBackend()
    env = {"API_KEY": "env-s3cr3t"}
    async with await fake.create(secrets={"TOKEN": "s3cr3t-value"}, env=env) as sandbox:
        await sandbox.run(["echo", "s3cr3t-value", "env-s3cr3t"])
        await sandbox.run("echo of-the-call", env={"PASSWORD": "of-the-call"})
        await sandbox.run_code("print('s3cr3t-value')")
        await sandbox.files.write("s3cr3t-value", "1")
        with pytest.raises(ConfigurationError):
            await sandbox.run(["echo", "s3cr3t-value"], env={"A": 1})  # type: ignore[dict-item]
    assert fake.calls[1].command == ("echo", "s3cr3t-value", "env-s3cr3t")
    shown = [repr(call) for call in fake.calls]
    for secret in ("s3cr3t-value", "env-s3cr3t", "of-the-call"):
        assert secret not in " ".join(shown)
    assert "command=('echo', '***', '***')" in shown[1]
    assert "command='echo ***'" in shown[2]
    assert "code=\"print('***')\"" in shown[3]
    assert "path='***'" in shown[4]
    assert shown[-1].startswith("Call(op='kill', sandbox_id='fake-0001', command=None, ")


async def test_events_are_kept_with_and_without_sinks() -> None:
    sink = RecordingSink()
    fake = FakeBackend(audit=AuditConfig(sinks=(sink,), capture_code=True))
    await fake.sandbox.run_code("print(1)")
    assert [event.event for event in fake.events] == ["run_code"]
    assert sink.events == fake.events
    assert fake.events[0].code == "print(1)"
    sink.clear()
    assert sink.events == []
    assert len(fake.events) == 1


async def test_denied_attempts_are_counted_and_allowed_ones_named() -> None:
    fake = FakeBackend()
    await fake.sandbox.run("curl -s http://a.example/ || curl -s http://b.example/")
    assert fake.events[-1].network_denials == 2
    assert fake.reached == []
    async with await fake.create(
        network=NetworkPolicy(allow=("a.example", "10.0.0.0/8", "*.c.example"))
    ) as open_one:
        result = await open_one.run("curl -sS http://a.example:8080/x")
        assert result.stdout == "fake answer of a.example\n"
        assert (await open_one.run("curl -sS -o got http://x.c.example/ && cat got")).ok
        assert (await open_one.run("curl -sS http://10.1.2.3/")).ok
        for host, code in (("b.example", 6), ("192.0.2.1", 7), ("c.example", 6)):
            assert (await open_one.run(["curl", "-sSm", "5", f"http://{host}/"])).exit_code == code
        assert (await open_one.run(["curl", "http://localhost/"])).exit_code == 7
    assert fake.reached == ["a.example", "x.c.example", "10.1.2.3"]
    assert [event.network_denials for event in fake.events if event.event == "exec"][-4:] == [1, 1, 1, 0]


# A provider that misbehaves


async def test_a_slow_creation_meets_its_timeout() -> None:
    fake = FakeBackend()
    fake.simulate(create_takes=3600)
    began = time.monotonic()
    with pytest.raises(CreateTimeout):
        await fake.create()
    assert time.monotonic() - began < 10
    fake.simulate(create_takes=10)
    await (await fake.create()).kill()


async def test_failures_of_the_provider() -> None:
    fake = FakeBackend()
    cause = RuntimeError("boom")
    fake.simulate(create_fails=cause)
    with pytest.raises(CreationError) as failed:
        await fake.create()
    assert failed.value.__cause__ is cause
    fake.simulate(auth_missing=True)
    with pytest.raises(AuthError, match="SBX_FAKE_TOKEN"):
        await fake.create()
    fake.simulate(rate_limited=2.5)
    with pytest.raises(RateLimitError) as throttled:
        await fake.create()
    assert throttled.value.retry_after == 2.5
    fake.simulate()
    await (await fake.create()).kill()
    assert [call.sandbox_id for call in fake.calls if call.op == "create"] == ["", "", "", "fake-0001"]


async def test_a_failure_may_hold_for_some_creations_only() -> None:
    fake = FakeBackend()
    fake.simulate(create_fails=RuntimeError(), times=2)
    for _ in range(2):
        with pytest.raises(CreationError):
            await fake.create()
    await (await fake.create()).kill()


async def test_a_kill_that_hangs_is_given_up_soon() -> None:
    fake = FakeBackend()
    sandbox = await fake.create(metadata={"tenant_id": "acme"})
    fake.simulate(kill_hangs=True)
    began = time.monotonic()
    with pytest.warns(OrphanedSandboxWarning, match="tenant_id=acme"):
        await sandbox.kill()
    assert time.monotonic() - began < 4, "the grace of five seconds is virtual too"
    fake.simulate(kill_fails=RuntimeError("not now"))
    with pytest.raises(ConnectError) as refused:
        await sandbox.kill()
    assert isinstance(refused.value.__cause__, RuntimeError)
    with pytest.raises(ConnectError):
        await fake.kill_managed(sandbox.id)
    fake.simulate()
    assert await fake.kill_managed(sandbox.id)
    assert not await fake.kill_managed(sandbox.id)


@pytest.mark.parametrize("host", ["https://x.org/", "bad host!"])
async def test_what_is_no_host_is_refused_as_by_a_real_backend(host: str) -> None:
    with pytest.raises(ConfigurationError, match="allow takes host names"):
        await FakeBackend().create(network=NetworkPolicy(allow=(host,)))


@pytest.mark.parametrize("name", ["env", "secrets", "metadata"])
async def test_what_is_no_mapping_is_refused_as_by_a_real_backend(name: str) -> None:
    fake = FakeBackend()
    for wrong in ("A=1", 5, [("A", "1")]):
        with pytest.raises(ConfigurationError, match=f"{name} must be a mapping"):
            await fake.create(**{name: wrong})  # type: ignore[arg-type]
    assert len(fake.calls) == 3


async def test_a_call_keeps_the_environment_as_it_was() -> None:
    fake = FakeBackend()
    env = {"A": "1"}
    await fake.sandbox.run(["true"], env=env)
    async with fake.sandbox.stream(["true"], env=env):
        env["A"] = "2"
    assert [dict(call.env) for call in fake.calls[1:]] == [{"A": "1"}, {"A": "1"}]


async def test_the_provider_may_reclaim_a_sandbox() -> None:
    fake = FakeBackend()
    sandbox = fake.sandbox
    fake.expire("fake-0001")
    with pytest.raises(SandboxGone, match="reclaimed"):
        await sandbox.run("echo x")
    await sandbox.kill()
    with pytest.raises(ConnectError):
        await fake.connect("fake-0001")
    with pytest.raises(ConnectError):
        fake.expire("fake-9999")


# What it is


async def test_it_declares_what_it_was_told_and_no_more() -> None:
    minimal = FakeBackend(capabilities=Capability.RUN_COMMAND | Capability.NETWORK_POLICY)
    async with await minimal.create() as sandbox:
        assert sandbox.capabilities == Capability.RUN_COMMAND | Capability.NETWORK_POLICY
        with pytest.raises(CapabilityNotSupported, match="RUN_CODE"):
            await sandbox.run_code("print(1)")
    with pytest.raises(ConfigurationError, match="PTY"):
        FakeBackend(capabilities=Capability.PTY)
    for scale in (0, -1, 1.5, math.inf, math.nan):
        with pytest.raises(ConfigurationError, match="time_scale"):
            FakeBackend(time_scale=scale)


async def test_isolation_is_only_reported() -> None:
    fake = FakeBackend(isolation=IsolationTier.MICROVM)
    registry.register("moon", lambda: fake)
    try:
        async with await sandboxio.create("moon://", require_isolation=IsolationTier.MICROVM) as sandbox:
            assert sandbox.isolation is IsolationTier.MICROVM
    finally:
        registry.unregister("moon")


@dataclass(frozen=True, kw_only=True)
class MoonConfig(BackendConfig):
    backend: str = "moon"
    crater: str = "tycho"


async def test_a_typed_config_of_the_real_backend_is_taken_and_noted() -> None:
    fake = FakeBackend()
    registry.register("moon", lambda: fake)
    try:
        config = MoonConfig(template="dust", timeout=20)
        async with await sandboxio.create(config) as sandbox:
            assert (await sandbox.run("echo hello")).stdout == "hello\n"
    finally:
        registry.unregister("moon")
    assert (fake.calls[0].config, fake.calls[0].template, fake.calls[0].timeout) == (config, "dust", 20)


async def test_a_simulation_holds_for_sandboxes_of_a_typed_config_too() -> None:
    fake = FakeBackend()
    registry.register("moon", lambda: fake)
    try:
        sandbox = await sandboxio.create(MoonConfig())
        fake.simulate(kill_fails=RuntimeError("not now"))
        with pytest.raises(ConnectError):
            await sandbox.kill()
        fake.simulate()
        await sandbox.kill()
    finally:
        registry.unregister("moon")


async def test_fakes_share_nothing() -> None:
    one, two = FakeBackend(), FakeBackend()
    one.on_run("x", ExecResult(0, "one\n", ""))
    await one.sandbox.files.write("f", "1")
    assert (await two.sandbox.run(["x"])).exit_code == 127
    assert two.sandbox.id == one.sandbox.id == "fake-0001"
    assert "f" not in [each.path for each in await two.sandbox.files.ls()]
    one.close()
    with pytest.raises(SandboxGone):
        one.machine("fake-0001").check()
    assert (await two.sandbox.run("true")).ok


def test_closing_twice_is_fine() -> None:
    fake = FakeBackend()
    assert fake.sync_sandbox.run("echo x").stdout == "x\n"
    fake.close()
    fake.close()


async def test_it_touches_neither_network_nor_processes_nor_standard_input(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise AssertionError("the fake executes nothing")

    fake = FakeBackend()
    for target in (
        "socket.socket.connect",
        "socket.getaddrinfo",
        "subprocess.Popen.__init__",
        "os.posix_spawn",
        "os.fork",
        "builtins.input",
        "builtins.exec",
        "builtins.eval",
    ):
        monkeypatch.setattr(target, refused)
    async with await fake.create(network=NetworkPolicy(egress="allow")) as sandbox:
        await sandbox.run("curl -s http://example.org/; cat; sleep 1; nope; sh -c 'echo x'")
        await sandbox.run_code("import urllib.request\nurllib.request.urlopen('http://example.org/')")
        await sandbox.run_code("__import__('os').system('true')")


def test_standard_input_of_the_host_stays_unread() -> None:
    code = (
        "import anyio, sys; from sandboxio.testing import FakeBackend; "
        "run = FakeBackend().sandbox.run; "
        "assert anyio.run(run, 'cat; cat -; sh').stdout == ''; print(sys.stdin.read(), end='')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input="secret line\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "secret line\n"


async def test_warnings_are_those_of_any_backend() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        async with await FakeBackend().create() as sandbox:
            await sandbox.run("true")


@pytest.mark.parametrize("other", ["asyncio", "trio"])
async def test_a_kill_from_another_event_loop_ends_what_hangs(other: str) -> None:
    fake = FakeBackend()
    fake.on_run(match="slow", hangs=True)
    sandbox = await fake.create()
    ended: list[str] = []

    async def using() -> None:
        with pytest.raises(SandboxGone, match="it was killed"):
            await sandbox.run("slow")
        ended.append("run")

    async with anyio.create_task_group() as tasks, sandbox.stream("slow") as process:
        tasks.start_soon(using)
        await anyio.wait_all_tasks_blocked()
        await anyio.to_thread.run_sync(lambda: anyio.run(sandbox.kill, backend=other))
        with pytest.raises(SandboxGone, match="it was killed"):
            await process.wait()
    assert ended == ["run"]

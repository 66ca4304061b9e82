"""One record per operation, however it ends: counted, complete, and under both failure policies."""

from __future__ import annotations

import hashlib
import traceback
import warnings
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from sandboxio import (
    AuditSinkError,
    AuditSinkWarning,
    CapabilityNotSupported,
    ConfigurationError,
    ConnectError,
    ExecutionTimeout,
    NetworkPolicy,
    OrphanedSandboxWarning,
    OutputChunk,
    Resources,
    SandboxError,
    SandboxGone,
    SandboxWarning,
)
from sandboxio.adapter import BaseSandbox, Exit
from sandboxio.audit import AuditConfig, AuditEvent, AuditPolicy, NoopSink, redactor_of
from sandboxio.sync import SyncSandbox
from sandboxio.testing import RecordingSink
from tests.core.scripted import ScriptedBackend, World
from tests.harness.clocks import backend_for

from .operations import OPERATIONS, Operation
from .parrot import Far, ParrotBackend

pytestmark = pytest.mark.virtual_time


@pytest.fixture
def sink() -> RecordingSink:
    return RecordingSink()


def backend(sink: Any, far: Far | None = None, **config: Any) -> ParrotBackend:
    return ParrotBackend(far, audit=AuditConfig(sinks=(sink,), **config))


def names(sink: RecordingSink) -> list[str]:
    return [event.event for event in sink.events]


# What is in a record


async def test_a_run(sink: RecordingSink) -> None:
    far = Far(
        output=[OutputChunk("stdout", b"12345"), OutputChunk("stderr", b"678")],
        exit=Exit(3, network_denials=2),
    )
    before = datetime.now(UTC)
    async with await backend(sink, far).create(
        metadata={"tenant_id": "acme", "session_id": "s-1"}
    ) as sandbox:
        await sandbox.run(["prog", "arg"])
    event = sink.events[1]
    assert before <= event.ts <= datetime.now(UTC)
    assert (event.event, event.argv, event.code) == ("exec", ("prog", "arg"), None)
    assert event.code_sha256 == hashlib.sha256(b"prog\0arg").hexdigest()
    assert (event.exit_code, event.bytes_in, event.bytes_out, event.network_denials) == (3, 0, 8, 2)
    assert (event.sandbox_id, event.backend, event.isolation.value) == (sandbox.id, "parrot", "container")
    assert (event.tenant_id, event.session_id, event.error, event.policy) == ("acme", "s-1", None, None)


@pytest.mark.parametrize("capture", [False, True])
async def test_code_is_hashed_and_captured_only_on_request(sink: RecordingSink, capture: bool) -> None:
    code = "token = 'hunter22'\nprint('é')"
    made = backend(sink, capture_code=capture)
    async with await made.create(secrets={"T": "hunter22"}) as sandbox:
        await sandbox.run_code(code)
    redacted = code.replace("hunter22", "***")
    assert sink.events[1].code == (redacted if capture else None)
    assert sink.events[1].code_sha256 == hashlib.sha256(redacted.encode()).hexdigest()
    assert sink.events[1].bytes_in == len(code.encode())


async def test_the_hash_is_no_oracle_for_a_secret(sink: RecordingSink) -> None:
    for secret in ("hunter22", "hunter23"):
        async with await backend(sink).create(secrets={"PIN": secret}) as sandbox:
            await sandbox.run(["login", secret])
    assert len({event.code_sha256 for event in sink.events if event.event == "exec"}) == 1


async def test_create_tells_the_policy_and_kill_whom(sink: RecordingSink) -> None:
    network, resources = NetworkPolicy(allow=("pypi.org",)), Resources(memory_mb=64)
    made = await backend(sink).create(
        template="image:1", network=network, resources=resources, timeout=60, metadata={"tenant_id": "acme"}
    )
    await made.kill()
    await made.kill()
    created, killed = sink.events
    assert created.policy == AuditPolicy("image:1", network, resources, 60)
    assert created.as_dict()["policy"] == {
        "template": "image:1",
        "network": {"egress": "deny", "allow": ("pypi.org",), "ingress_ports": ()},
        "resources": {"cpu": None, "memory_mb": 64, "disk_mb": None, "gpu": None},
        "timeout": 60,
    }
    assert (created.sandbox_id, killed.sandbox_id) == (made.id, made.id)
    assert killed.tenant_id == "acme"


async def test_connect_tells_whose_sandbox_it_is(sink: RecordingSink) -> None:
    await backend(sink).connect("p-9")
    (event,) = sink.events
    assert (event.event, event.sandbox_id, event.tenant_id) == ("connect", "p-9", "acme")


async def test_file_operations_tell_path_and_bytes(sink: RecordingSink, tmp_path: Path) -> None:
    (tmp_path / "local").write_bytes(b"1234567")
    async with await backend(sink).create() as sandbox:
        await sandbox.files.write("/a", "é")
        await sandbox.files.read("/b")
        await sandbox.files.upload(tmp_path / "local", "/c")
        await sandbox.files.download("/d", tmp_path / "target")
    assert [(e.event, e.argv, e.bytes_in, e.bytes_out) for e in sink.events[1:-1]] == [
        ("file_write", ("/a",), 2, 0),
        ("file_read", ("/b",), 0, 7),
        ("file_upload", ("/c",), 7, 0),
        ("file_download", ("/d",), 0, 7),
    ]


async def test_a_timeout_counts_what_was_printed(sink: RecordingSink) -> None:
    world = World(output=[OutputChunk("stdout", b"x" * 100)], hangs=True)
    made = await ScriptedBackend(world, audit=AuditConfig(sinks=(sink,))).create()
    with pytest.raises(ExecutionTimeout):
        await made.run(["x"], timeout=2)
    with pytest.raises(ExecutionTimeout):
        async with made.stream(["x"], timeout=2) as process:
            await process.wait()
    await made.kill()
    for event in sink.events[1:3]:
        assert (event.error, event.bytes_out, event.duration_ms < 2000) == ("ExecutionTimeout", 100, True)
        assert event.exit_code in (137, None)


async def test_a_stream_that_its_caller_leaves_is_no_failure(sink: RecordingSink) -> None:
    world = World(output=[OutputChunk("stdout", b"x")], hangs=True)
    made = await ScriptedBackend(world, audit=AuditConfig(sinks=(sink,))).create()
    with pytest.raises(ValueError, match="the caller's own") as caught:
        async with made.stream(["x"]):
            raise ValueError("the caller's own")
    assert not hasattr(caught.value, "__notes__")
    async with made.stream(["x"]) as process:
        async for _ in process:
            break
    with pytest.raises(SandboxGone):  # noqa: PT012 - the error comes from within
        async with made.stream(["x"]):
            made.mark_gone("it broke")
            await made.run(["y"])
    assert [event.error for event in sink.events[1:]] == ["cancelled", None, "cancelled"]


# How many


async def test_concurrent_operations_are_recorded_one_by_one(sink: RecordingSink, tmp_path: Path) -> None:
    made = await backend(sink).create()
    calls = [operation for _, operation in OPERATIONS.values()]
    failed = 0

    async def call(number: int, operation: Operation) -> None:
        nonlocal failed
        folder = tmp_path / str(number)
        folder.mkdir()
        with anyio.CancelScope() as scope:
            if number % 5 == 0:
                scope.cancel()
            try:
                await operation(made, f"value-{number}", folder)
            except SandboxError:
                failed += 1

    async with anyio.create_task_group() as tasks:
        for number in range(20 * len(calls)):
            tasks.start_soon(call, number, calls[number % len(calls)])
    expected = Counter({"create": 1})
    for event, _ in OPERATIONS.values():
        expected[event] += 20
    assert Counter(names(sink)) == expected
    assert sum(event.error == "cancelled" for event in sink.events) == 4 * len(calls)
    assert not failed


async def whole_life(made: BaseSandbox) -> None:
    async with made:
        await made.run(["x"])
        async with made.stream(["x"]) as process:
            await process.wait()
        await made.files.write("/f", b"data")
        await made.files.read("/f")


async def test_cancelled_at_any_point_every_operation_that_began_is_recorded(sink: RecordingSink) -> None:
    world = World(output=[OutputChunk("stdout", b"x")])
    await whole_life(await ScriptedBackend(world, audit=AuditConfig(sinks=(sink,))).create())
    whole = names(sink)
    assert whole == ["create", "exec", "stream", "file_write", "file_read", "kill"]
    for gate in range(1, world.gates + 1):
        sink.clear()
        world = World(output=[OutputChunk("stdout", b"x")], cancel_at=gate)
        with anyio.CancelScope() as world.scope:
            await whole_life(await ScriptedBackend(world, audit=AuditConfig(sinks=(sink,))).create())
        done = names(sink)
        began = [event for event in done if event != "kill"]
        assert began == whole[: len(began)]
        assert done.count("kill") == (1 if len(done) > 1 or sink.events[0].error is None else 0)
        assert [event.error for event in sink.events].count("cancelled") <= 1
        assert not world.sandboxes


async def test_what_is_refused_before_it_begins_is_no_operation(sink: RecordingSink, tmp_path: Path) -> None:
    made = backend(sink)
    with pytest.raises(CapabilityNotSupported):
        await made.create(network=NetworkPolicy(egress="learn"))
    with pytest.raises(ConnectError):
        await made.connect(" ")
    sandbox = await made.create()
    for call in (
        lambda: sandbox.run([]),
        lambda: sandbox.run(["x"], timeout=-1),
        lambda: sandbox.run_code("\ud800"),
        lambda: sandbox.files.read(""),
        lambda: sandbox.files.upload(tmp_path / "none", "/x"),
    ):
        with pytest.raises(SandboxError):
            await call()
    await sandbox.kill()
    with pytest.raises(SandboxGone):
        await sandbox.run(["x"])
    assert names(sink) == ["create", "kill"]


# Sinks that fail


class Hanging:
    async def emit(self, event: AuditEvent) -> None:
        await anyio.sleep_forever()


class Raising:
    async def emit(self, event: AuditEvent) -> None:
        raise OSError("no space")


class Picky(RecordingSink):
    """Refuses one kind of event."""

    def __init__(self, refused: str) -> None:
        super().__init__()
        self.refused = refused

    async def emit(self, event: AuditEvent) -> None:
        if event.event == self.refused:
            raise OSError("no space")
        await super().emit(event)


FAILING = {"hangs": (Hanging(), "did not answer within 5 s"), "raises": (Raising(), "raised OSError")}


@pytest.mark.parametrize(("failing", "why"), FAILING.values(), ids=FAILING)
async def test_warn_goes_on_and_the_other_sinks_get_the_event(
    sink: RecordingSink, failing: Any, why: str
) -> None:
    config = AuditConfig(sinks=(failing, sink, failing))
    made = await ScriptedBackend(audit=AuditConfig(sinks=(sink,))).create()
    made._recorder = ScriptedBackend(audit=config)._recorder
    with pytest.warns(AuditSinkWarning, match=f"{why}, .*{why}; exec may not be recorded"):
        assert (await made.run(["x"])).ok
    assert names(sink) == ["create", "exec"]


@pytest.mark.parametrize(("failing", "why"), FAILING.values(), ids=FAILING)
async def test_fail_makes_the_operation_fail(sink: RecordingSink, failing: Any, why: str) -> None:
    made = await ScriptedBackend(audit=AuditConfig(sinks=(sink,))).create()
    made._recorder = ScriptedBackend(
        audit=AuditConfig(sinks=(failing, sink), on_sink_failure="fail")
    )._recorder
    started = anyio.current_time()
    with pytest.raises(AuditSinkError, match=why) as caught:
        await made.run(["x"])
    assert anyio.current_time() - started <= 5.1
    assert caught.value.code == "SBX_E1601"
    assert isinstance(caught.value.__cause__, OSError) == isinstance(failing, Raising)
    with pytest.raises(AuditSinkError, match="stream may not"):
        async with made.stream(["x"]) as process:
            await process.wait()
    assert names(sink) == ["create", "exec", "stream"]


async def test_the_cause_of_a_failing_sink_shows_no_secret() -> None:
    """It may quote what it was to write, or run in a task of the caller's that knows more."""
    secret = "hunter" + "22"

    class Telling:
        async def emit(self, event: AuditEvent) -> None:
            raise OSError(f"cannot write {event.event}: {secret}")

    made = ScriptedBackend(audit=AuditConfig(sinks=(Telling(),), on_sink_failure="fail"))
    with pytest.raises(AuditSinkError) as caught:
        await made.create(secrets={"T": secret})
    assert isinstance(caught.value.__cause__, OSError)
    assert secret not in "".join(traceback.format_exception(caught.value))


async def test_fail_does_not_replace_what_the_operation_raised() -> None:
    far = Far()
    made = await ParrotBackend(far).create()
    made._recorder = ParrotBackend(
        far, audit=AuditConfig(sinks=(Raising(),), on_sink_failure="fail")
    )._recorder
    far.says = "throttled"
    with pytest.raises(SandboxError) as caught, pytest.warns(AuditSinkWarning):
        await made.run(["x"])
    assert caught.value.code == "SBX_E1502"
    assert caught.value.__notes__ == ["Besides: Raising raised OSError; exec may not be recorded."]
    with anyio.CancelScope() as scope:
        scope.cancel()
        with pytest.warns(AuditSinkWarning):
            await made.run(["x"])
    assert scope.cancelled_caught


async def test_fail_leaves_no_unrecorded_sandbox_behind() -> None:
    world, picky = World(), Picky("create")
    made = ScriptedBackend(world, audit=AuditConfig(sinks=(picky,), on_sink_failure="fail"))
    with pytest.raises(AuditSinkError, match="create may not be recorded"):
        await made.create()
    assert not world.sandboxes
    assert names(picky) == ["kill"]
    with pytest.raises(AuditSinkError, match="create may not be recorded") as caught:
        await ScriptedBackend(world, audit=AuditConfig(sinks=(Raising(),), on_sink_failure="fail")).create()
    assert caught.value.__notes__ == ["Besides: Raising raised OSError; kill may not be recorded."]
    assert not world.sandboxes


async def test_fail_at_the_end_of_a_sandbox_still_ends_it() -> None:
    world = World()
    made = ScriptedBackend(world, audit=AuditConfig(sinks=(Picky("kill"),), on_sink_failure="fail"))
    with pytest.raises(AuditSinkError, match="kill may not"):
        async with await made.create():
            pass
    assert not world.sandboxes
    with warnings.catch_warnings():
        warnings.simplefilter("error", OrphanedSandboxWarning)  # it is no orphan
        with pytest.raises(ValueError, match="mine") as caught:
            async with await made.create():
                raise ValueError("mine")
    assert not world.sandboxes
    assert caught.value.__notes__ == ["Besides: Picky raised OSError; kill may not be recorded."]


async def test_a_slow_sink_delays_and_does_not_lose(sink: RecordingSink) -> None:
    class Slow:
        async def emit(self, event: AuditEvent) -> None:
            await anyio.sleep(4)
            await sink.emit(event)

    made = await backend(Slow()).create()
    started = anyio.current_time()
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:

            async def cancel_during_emit() -> None:
                await anyio.sleep(1)
                scope.cancel()

            tasks.start_soon(cancel_during_emit)
            await made.run(["x"])
            await anyio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    assert anyio.current_time() - started == pytest.approx(4)
    assert names(sink) == ["create", "exec"]


@pytest.mark.parametrize("value", ["none", "0", "-1", "inf"])
async def test_a_wrong_timeout_is_an_error_before_anything_is_created(
    sink: RecordingSink, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SBX_AUDIT_TIMEOUT", value)
    world = World()
    with pytest.raises(ConfigurationError, match="SBX_AUDIT_TIMEOUT") as caught:
        await ScriptedBackend(world, audit=AuditConfig(sinks=(sink,))).create()
    assert caught.value.hint == "export SBX_AUDIT_TIMEOUT=5"
    assert world.gates == 0
    await (await ScriptedBackend(world).create()).kill()  # without sinks it plays no part


async def test_a_timeout_that_becomes_wrong_keeps_nothing_from_ending(
    sink: RecordingSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    made = await ScriptedBackend(world, audit=AuditConfig(sinks=(sink,))).create()
    monkeypatch.setenv("SBX_AUDIT_TIMEOUT", "soon")
    with pytest.warns(AuditSinkWarning, match="SBX_AUDIT_TIMEOUT must be"):
        await made.kill()
    assert not world.sandboxes


async def test_the_timeout_is_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SBX_AUDIT_TIMEOUT", "0.25")
    made = await ScriptedBackend().create()
    made._recorder = ScriptedBackend(audit=AuditConfig(sinks=(Hanging(),)))._recorder
    started = anyio.current_time()
    with pytest.warns(AuditSinkWarning, match=r"within 0\.25 s"):
        await made.run(["x"])
    assert anyio.current_time() - started == pytest.approx(0.25)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.one_loop(reason="trio has no cancellation from outside of its scopes")
async def test_a_sink_that_lets_out_a_cancellation_of_its_own(sink: RecordingSink) -> None:
    import asyncio

    class Cancelled:
        async def emit(self, event: AuditEvent) -> None:
            helper = asyncio.ensure_future(asyncio.sleep(10))
            asyncio.get_running_loop().call_soon(helper.cancel)
            await helper

    made = await ScriptedBackend().create()
    made._recorder = ScriptedBackend(audit=AuditConfig(sinks=(Cancelled(), sink)))._recorder
    with pytest.warns(AuditSinkWarning, match="Cancelled was cancelled; exec may not be recorded"):
        assert (await made.run(["x"])).ok
    assert names(sink) == ["exec"]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.one_loop(reason="trio has no cancellation from outside of its scopes")
@pytest.mark.parametrize("policy", ["warn", "fail"])
@pytest.mark.parametrize("end", ["yes", "throttled"])
async def test_task_cancel_during_emit_comes_out(sink: RecordingSink, policy: Any, end: str) -> None:
    import asyncio

    far = Far()
    asked = asyncio.Event()

    class Waiting:
        async def emit(self, event: AuditEvent) -> None:
            asked.set()
            await asyncio.sleep(1)

    made = await ParrotBackend(far).create()
    made._recorder = ParrotBackend(
        far, audit=AuditConfig(sinks=(Waiting(), sink), on_sink_failure=policy)
    )._recorder
    far.says = end
    with pytest.warns(AuditSinkWarning, match="Waiting was cancelled"):  # noqa: PT031 - one scene
        task = asyncio.ensure_future(made.run(["x"]))
        await asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert names(sink) == ["exec"], "the other sinks get the event"


@pytest.mark.parametrize("anyio_backend", [backend_for("asyncio", jumping=True)], ids=["asyncio"])
@pytest.mark.one_loop(reason="trio has no cancellation from outside of its scopes")
@pytest.mark.parametrize("operation", ["exec", "stream"])
async def test_task_cancel_during_the_kill_of_a_run_costs_no_record(
    sink: RecordingSink, operation: str
) -> None:
    import asyncio

    world = World(hangs=True, kill_takes=1)
    made = await ScriptedBackend(world, audit=AuditConfig(sinks=(sink,))).create()

    async def use() -> None:
        if operation == "exec":
            await made.run(["x"])
        async with made.stream(["x"]) as process:
            await process.wait()

    task = asyncio.ensure_future(use())
    for _ in range(2):
        await asyncio.sleep(0.5)
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [(event.event, event.error) for event in sink.events[1:]] == [(operation, "cancelled")]


async def test_a_stream_that_is_left_twice_has_one_record(sink: RecordingSink) -> None:
    sandbox = await ScriptedBackend(World(), audit=AuditConfig(sinks=(sink,))).create()
    async with sandbox.stream(["x"]) as process:
        await process.__aexit__(None, None, None)
    assert names(sink) == ["create", "stream"]


async def test_a_warning_that_is_an_error_costs_no_record(sink: RecordingSink) -> None:
    world = World(hangs=True, kill_error=ConnectError("no"), destroy_error=ConnectError("no"))
    made = await ScriptedBackend(world, audit=AuditConfig(sinks=(sink,))).create()
    with warnings.catch_warnings():
        warnings.simplefilter("error", OrphanedSandboxWarning)
        with pytest.raises(OrphanedSandboxWarning):
            async with made.stream(["x"]):
                pass
    assert [(event.event, event.error) for event in sink.events[1:]] == [("stream", "OrphanedSandboxWarning")]


# Cheap where nobody listens


async def test_without_a_sink_nothing_is_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandboxio._record.AuditEvent", lambda **_: pytest.fail("rendered"))
    for config in (None, AuditConfig(), AuditConfig(sinks=(NoopSink(),))):
        await whole_life(await ScriptedBackend(audit=config).create())


# Secrets that are too short


async def test_a_secret_that_is_too_short_is_named_when_it_is_registered() -> None:
    with pytest.warns(SandboxWarning, match="the value of PIN, SALT has fewer than 4 characters"):
        await (
            await ScriptedBackend().create(secrets={"PIN": "123", "SALT": "", "KEY": "long enough"})
        ).kill()


async def test_output_can_be_redacted_before_it_is_shown_to_somebody_else() -> None:
    sandbox = await ParrotBackend().create(secrets={"TOKEN": "hunter22"})
    assert redactor_of(sandbox).text("it is hunter22") == "it is ***"
    stream = redactor_of(sandbox).stream()
    assert stream.feed("it is hunt") + stream.feed("er22") + stream.finish() == "it is ***"
    assert redactor_of(SyncSandbox(sandbox, portal=None)).text("it is hunter22") == "it is ***"  # type: ignore[arg-type]
    assert redactor_of(object()).text("it is hunter22") == "it is hunter22"
    await sandbox.kill()


async def test_the_reason_why_a_sandbox_is_gone_shows_no_secret_of_the_call_that_noticed() -> None:
    far = Far()
    sandbox = await ParrotBackend(far).create()
    far.says = "gone"
    with pytest.raises(SandboxGone):
        await sandbox.run(["x"], env={"A_TOKEN": "hunter22"})
    with pytest.raises(SandboxGone) as caught:
        await sandbox.run(["y"])
    assert "hunter22" not in str(caught.value)
    assert "***" in str(caught.value)

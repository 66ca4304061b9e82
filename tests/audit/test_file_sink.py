"""FileSink: whole lines, whoever else writes, whatever becomes of the disk and of the writer."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from sandboxio import AuditSinkWarning
from sandboxio._append import append_line
from sandboxio.audit import AuditConfig, FileSink

from .events import event
from .parrot import ParrotBackend

ROOT = Path(__file__).parents[2]


def lines(path: Path) -> list[dict[str, object]]:
    text = path.read_text()
    assert not text or text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def script(source: str, *arguments: str, prefix: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*prefix, sys.executable, "-c", textwrap.dedent(source), *arguments],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", "PYTHONWARNINGS": "always"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


async def test_one_line_of_json_per_event(tmp_path: Path) -> None:
    sink = FileSink(tmp_path / "audit.jsonl")
    await sink.emit(event(1))
    await sink.emit(event(2, argv=("é\udcff\n", "x")))
    first, second = lines(tmp_path / "audit.jsonl")
    assert first == {
        "ts": "2026-09-19T10:00:00.000001+00:00",
        "event": "run_code",
        "sandbox_id": "8c2af94cd1bc",
        "backend": "docker",
        "isolation": "container",
        "tenant_id": "acme",
        "session_id": "s-1",
        "code_sha256": "0" * 64,
        "argv": None,
        "exit_code": 0,
        "duration_ms": 115,
        "bytes_in": 42,
        "bytes_out": 6,
        "network_denials": 0,
    }
    assert second["argv"] == ["é\udcff\n", "x"]
    assert (tmp_path / "audit.jsonl").read_bytes().isascii()


async def test_a_new_file_is_the_owners_and_an_old_one_keeps_its_mode(tmp_path: Path) -> None:
    await FileSink(tmp_path / "new").emit(event())
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o600
    (tmp_path / "old").touch(mode=0o640)
    (tmp_path / "old").chmod(0o640)
    await FileSink(tmp_path / "old").emit(event())
    assert stat.S_IMODE((tmp_path / "old").stat().st_mode) == 0o640


async def test_a_relative_path_is_resolved_when_the_sink_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sink = FileSink("audit.jsonl")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    await sink.emit(event())
    assert len(lines(tmp_path / "audit.jsonl")) == 1


async def test_a_renamed_file_is_left_alone(tmp_path: Path) -> None:
    sink = FileSink(tmp_path / "audit.jsonl")
    await sink.emit(event(1))
    (tmp_path / "audit.jsonl").rename(tmp_path / "audit.1")
    await sink.emit(event(2))
    assert [len(lines(tmp_path / name)) for name in ("audit.1", "audit.jsonl")] == [1, 1]


async def test_a_line_that_a_dead_writer_left_unfinished_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_text('{"whole": 1}\n{"torn": ')
    await FileSink(path).emit(event())
    first, torn, last = path.read_text().splitlines()
    assert (first, torn) == ('{"whole": 1}', '{"torn": ')
    assert json.loads(last)["event"] == "run_code"


async def test_something_that_is_no_regular_file() -> None:
    await FileSink("/dev/null").emit(event())
    with pytest.raises(IsADirectoryError):
        await FileSink("/").emit(event())


# Other processes

WRITER = """
    import sys, anyio
    from sandboxio.audit import FileSink
    from tests.audit.events import event

    async def main():
        sink = FileSink(sys.argv[1])
        async with anyio.create_task_group() as tasks:
            for number in range(60):
                long = "x" * (number * 997 % 50_000)
                tasks.start_soon(sink.emit, event(number, tenant_id=sys.argv[2], code=long))

    anyio.run(main, backend=sys.argv[3])
"""


def test_lines_of_many_processes_stay_whole(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    writers = [script(WRITER, str(path), f"w{n}", ("asyncio", "trio")[n % 2]) for n in range(4)]
    for writer in writers:
        _, errors = writer.communicate(timeout=50)
        assert writer.returncode == 0, errors
    found = sorted((str(line["tenant_id"]), str(line["session_id"])) for line in lines(path))
    assert found == sorted((f"w{n}", f"s-{number}") for n in range(4) for number in range(60))


KILLED = """
    import sys
    from sandboxio._append import append_line
    print("ready", flush=True)
    while True:
        append_line(sys.argv[1], b'"' + b"x" * 200_000 + b'"\\n')
"""


def test_a_writer_killed_inside_a_line_leaves_the_other_lines_whole(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    for _ in range(5):
        writer = script(KILLED, str(path))
        assert writer.stdout is not None
        writer.stdout.readline()
        deadline = time.monotonic() + 20
        before = path.stat().st_size if path.exists() else 0
        while not path.exists() or path.stat().st_size == before:
            assert time.monotonic() < deadline
        writer.kill()
        writer.communicate()
        append_line(str(path), b'"after"\n')
    whole = [line for line in path.read_text().splitlines() if line in ('"after"', '"' + "x" * 200_000 + '"')]
    assert whole.count('"after"') == 5
    assert len(path.read_text().splitlines()) - len(whole) <= 5, "at most the line in which it died"


# A disk that is full

FULL = """
    import json, sys, warnings
    import anyio
    from sandboxio import AuditSinkError
    from sandboxio.audit import AuditConfig, FileSink
    from tests.audit.parrot import Far, ParrotBackend

    path, policy, backend_name = sys.argv[1:4]

    async def main():
        audit = AuditConfig(sinks=(FileSink(path),), on_sink_failure=policy, capture_code=True)
        sandbox = await ParrotBackend(audit=audit).create()
        done = failed = 0
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            for number in range(40):
                try:
                    await sandbox.run_code(f"# {'x' * 3000}")
                    done += 1
                except AuditSinkError as error:
                    failed += 1
                    assert isinstance(error.__cause__, OSError), error.__cause__
        print(json.dumps({"done": done, "failed": failed, "warned": len(warned)}))
        warnings.simplefilter("ignore")
        sandbox._recorder._sinks = ()
        await sandbox.kill()

    anyio.run(main, backend=backend_name)
"""

LIMITED = f"""
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (65_536, 65_536))
{FULL}
"""


def outcome_of(process: subprocess.Popen[str]) -> dict[str, int]:
    out, errors = process.communicate(timeout=50)
    assert process.returncode == 0, errors
    return dict(json.loads(out.splitlines()[-1]))


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@pytest.mark.parametrize("policy", ["warn", "fail"])
def test_a_file_that_may_not_grow(tmp_path: Path, policy: str, loop: str) -> None:
    path = tmp_path / "audit.jsonl"
    outcome = outcome_of(script(LIMITED, str(path), policy, loop))
    written = lines(path)
    unrecorded = outcome["warned"] + outcome["failed"]
    assert unrecorded > 10
    assert len(written) + unrecorded == 41, "each operation is recorded or reported"
    assert (
        outcome
        == {
            "warn": {"done": 40, "failed": 0, "warned": unrecorded},
            "fail": {"done": 40 - unrecorded, "failed": unrecorded, "warned": 0},
        }[policy]
    )


def own_mounts() -> tuple[str, ...]:
    """How to run something with mounts of its own, or a reason to skip."""
    prefix = ("unshare", "--map-root-user", "--mount")
    try:
        subprocess.run([*prefix, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no mount namespace here: {error}")
    return prefix


@pytest.mark.parametrize("policy", ["warn", "fail"])
def test_a_full_disk(tmp_path: Path, policy: str) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    copy = tmp_path / "copy"
    command = f'mount -t tmpfs -o size=64k tmpfs {disk} && "$@" && cp {disk}/audit.jsonl {copy}'
    outcome = outcome_of(
        script(
            FULL,
            f"{disk}/audit.jsonl",
            policy,
            "asyncio",
            prefix=(*own_mounts(), "sh", "-c", command, "sh"),
        )
    )
    unrecorded = outcome["warned"] + outcome["failed"]
    assert unrecorded > 10
    assert len(lines(copy)) + unrecorded == 41, "no torn line, and none unaccounted for"


# Threads and cancellation


async def test_a_hanging_disk_ends_at_the_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SBX_AUDIT_TIMEOUT", "0.1")
    path = tmp_path / "audit.jsonl"
    sandbox = await ParrotBackend(audit=AuditConfig(sinks=(FileSink(path),))).create()
    with path.open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.warns(AuditSinkWarning, match=r"FileSink did not answer within 0\.1 s; exec may not"):
            await sandbox.run(["x"])
    monkeypatch.setenv("SBX_AUDIT_TIMEOUT", "20")
    await sandbox.run(["y"])  # the lock is free again, and with it the thread that waited
    await sandbox.kill()
    events = [(line["event"], line["argv"]) for line in lines(path)]
    assert [each for each in events if each != ("exec", ["x"])] == [
        ("create", None),
        ("exec", ["y"]),
        ("kill", None),
    ]


async def test_what_waits_for_a_thread_until_its_timeout_is_not_written_later(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with path.open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with anyio.move_on_after(0.5) as scope:  # one for all: else the last get a thread of the first
            async with anyio.create_task_group() as tasks:
                for number in range(10):
                    tasks.start_soon(FileSink(path).emit, event(number))
    assert scope.cancelled_caught
    await FileSink(path).emit(event(99))  # after those that had a thread, which waited for the lock
    with anyio.fail_after(10):
        while len(lines(path)) < 5:
            await anyio.sleep(0.005)
    assert len(lines(path)) == 5, "four threads, and the last one"


async def test_an_application_that_has_used_up_its_threads_still_gets_its_records(tmp_path: Path) -> None:
    limiter = anyio.to_thread.current_default_thread_limiter()
    limiter.total_tokens = 1
    async with limiter:
        with anyio.fail_after(10):
            await FileSink(tmp_path / "audit.jsonl").emit(event())
    assert len(lines(tmp_path / "audit.jsonl")) == 1


async def test_a_cancelled_operation_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    sandbox = await ParrotBackend(audit=AuditConfig(sinks=(FileSink(path),))).create()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await sandbox.run(["x"])
    assert scope.cancelled_caught
    await sandbox.kill()
    assert [(line["event"], line.get("error")) for line in lines(path)] == [
        ("create", None),
        ("exec", "cancelled"),
        ("kill", None),
    ]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.one_loop(reason="trio has no cancellation from outside of its scopes")
@pytest.mark.parametrize("steps", range(25))
async def test_task_cancel_at_any_step_costs_no_record(tmp_path: Path, steps: int) -> None:
    import asyncio
    import warnings

    path = tmp_path / "audit.jsonl"
    sandbox = await ParrotBackend(audit=AuditConfig(sinks=(FileSink(path),))).create()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        task = asyncio.ensure_future(sandbox.run(["x"]))
        for _ in range(steps):
            await asyncio.sleep(0)
        stopped = task.cancel()
        ended = (await asyncio.gather(task, return_exceptions=True))[0]
    assert stopped == isinstance(ended, asyncio.CancelledError)
    assert all(each.category is AuditSinkWarning for each in warned)
    await sandbox.kill()
    with anyio.fail_after(10):
        while not path.exists() or len(lines(path)) < (2 if steps == 0 else 3):
            await anyio.sleep(0.005)
    events = sorted(line["event"] for line in lines(path))  # a thread that was left may be the last to write
    assert events == (["create", "kill"] if steps == 0 else ["create", "exec", "kill"])

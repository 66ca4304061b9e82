"""The blocking facade on a real engine: what a script, a notebook and Ctrl-C meet."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import anyio
import anyio.lowlevel
import pytest

import sandboxio
from scripts import engine_api

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]


@pytest.fixture
def dsn(docker_image: str) -> str:
    return f"docker://{docker_image}"


def containers(label: str) -> list[str]:
    """Ids of the containers whose metadata has this; asked without the code under test."""
    status, body = engine_api.request("GET", f"/containers/json?all=1&filters={quote('{}')}")
    assert status == 200
    return [each["Id"] for each in json.loads(body) if label in json.dumps(each["Labels"])]


def test_everything_at_once(dsn: str, tmp_path: Path) -> None:
    with sandboxio.create_sync(dsn) as sandbox:
        assert sandbox.run(["echo", "x"]).stdout == "x\n"
        assert sandbox.run_code("print(6 * 7)").stdout == "42\n"
        with sandbox.stream(["seq", "3"]) as process:
            assert b"".join(chunk.data for chunk in process) == b"1\n2\n3\n"
            assert process.wait().exit_code == 0
        (tmp_path / "up").write_bytes(bytes(range(256)) * 1000)
        sandbox.files.upload(tmp_path / "up", "b")
        sandbox.files.download("b", tmp_path / "down")
        assert (tmp_path / "down").read_bytes() == (tmp_path / "up").read_bytes()
        with pytest.raises(sandboxio.ExecutionTimeout):
            sandbox.run(["sleep", "60"], timeout=0.5)
        with sandboxio.connect_sync("docker://", sandbox.id) as same:
            assert same.files.ls()[0].path.endswith("b")
        with pytest.raises(sandboxio.SandboxGone):
            sandbox.run(["true"])
    assert "sandboxio-sync" not in [thread.name for thread in threading.enumerate()]


async def test_in_a_running_loop(dsn: str) -> None:
    await anyio.lowlevel.checkpoint()
    with sandboxio.create_sync(dsn) as sandbox, sandbox.stream(["seq", "3"]) as process:
        assert b"".join(chunk.data for chunk in process) == b"1\n2\n3\n"


def test_ten_threads_share_one(dsn: str) -> None:
    with sandboxio.create_sync(dsn) as sandbox, ThreadPoolExecutor(10) as pool:
        results = pool.map(lambda n: sandbox.run(["echo", str(n)]).stdout, range(50))
        assert list(results) == [f"{n}\n" for n in range(50)]


@pytest.fixture
def start(dsn: str) -> Iterator[Callable[[str], tuple[subprocess.Popen[str], str]]]:
    """Starts a program; gives it and the label of its sandboxes."""
    programs: list[subprocess.Popen[str]] = []

    def start(source: str) -> tuple[subprocess.Popen[str], str]:
        label = f"run-{uuid.uuid4().hex}"
        code = f"import sandboxio\nDSN, LABEL = {dsn!r}, {{'run': {label!r}}}\n{textwrap.dedent(source)}"
        program = subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        programs.append(program)
        return program, label

    yield start
    for program in programs:
        program.kill()
        program.communicate()


def gone(label: str, seconds: float = 15.0) -> bool:
    deadline = time.monotonic() + seconds
    while containers(label):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


Start = Callable[[str], tuple[subprocess.Popen[str], str]]


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, (130, -signal.SIGINT)),
        (signal.SIGTERM, (-signal.SIGTERM,)),
        (signal.SIGKILL, (-signal.SIGKILL,)),
    ],
)
def test_case_25_however_the_program_ends_the_container_goes(
    start: Start, number: signal.Signals, code: tuple[int, ...]
) -> None:
    program, label = start(
        """
        with sandboxio.create_sync(DSN, metadata=LABEL) as sandbox:
            print(sandbox.id, flush=True)
            sandbox.run(["sleep", "600"], timeout=900)
        """
    )
    assert program.stdout is not None
    assert program.stdout.readline().strip() in containers(label)
    sent = time.monotonic()
    program.send_signal(number)
    _, err = program.communicate(timeout=20)
    assert program.returncode in code
    assert time.monotonic() - sent < 10
    assert gone(label)
    if number is signal.SIGINT:
        assert err.rstrip().endswith("KeyboardInterrupt")
        assert err.count("Traceback") == 1
    else:
        assert err == ""


def test_case_38_ctrl_c_kills_the_remote_process_and_the_sandbox_lives_on(start: Start) -> None:
    program, label = start(
        """
        with sandboxio.create_sync(DSN, metadata=LABEL) as sandbox:
            try:
                print("running", flush=True)
                sandbox.run("sleep 601 & sleep 601", timeout=900)
            except KeyboardInterrupt:
                pass
            print(sandbox.run("ps -eo args | grep -c '[s]leep 601'").stdout, end="", flush=True)
        """
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "running\n"
    (container,) = containers(label)
    deadline = time.monotonic() + 15
    while b"sleep 601" not in engine_api.request("GET", f"/containers/{container}/top")[1]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    program.send_signal(signal.SIGINT)
    out, err = program.communicate(timeout=20)
    assert (program.returncode, out, err) == (0, "0\n", "")
    assert gone(label)


def test_ctrl_c_while_creating_leaves_no_container(start: Start) -> None:
    for delay in (0.0, 0.05, 0.1, 0.2, 0.4):
        program, label = start(
            """
            import sandboxio_docker
            print("go", flush=True)
            with sandboxio.create_sync(DSN, metadata=LABEL) as sandbox:
                sandbox.run(["sleep", "600"])
            """
        )
        assert program.stdout is not None
        assert program.stdout.readline() == "go\n"
        time.sleep(delay)  # not a wait: the moment is the point
        program.send_signal(signal.SIGINT)
        _, err = program.communicate(timeout=20)
        assert program.returncode in (130, -signal.SIGINT), err
        assert gone(label)

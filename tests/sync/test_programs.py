"""Whole programs with the blocking facade: Ctrl-C, signals, exit, fork, crash. Seen from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from .hostprocess import PRELUDE

ROOT = Path(__file__).parents[2]
NOISE = ("Event loop is closed", "never awaited", "Exception ignored", "Task was destroyed")

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a program; its sandboxes live in ``tmp_path/"host"``."""
    (tmp_path / "host").mkdir()
    programs: list[subprocess.Popen[str]] = []

    def start(source: str, *, prelude: str = PRELUDE) -> subprocess.Popen[str]:
        program = subprocess.Popen(
            [sys.executable, "-W", "error::ResourceWarning", "-c", prelude + textwrap.dedent(source)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "SBX_TEST_HOST": str(tmp_path / "host"), "PYTHONPATH": str(ROOT)},
        )
        programs.append(program)
        return program

    yield start
    for program in programs:
        program.kill()
        program.communicate()


def until(condition: Callable[[], object], what: str, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.01)


def finish(program: subprocess.Popen[str], seconds: float = 20.0) -> tuple[int, str, str]:
    out, err = program.communicate(timeout=seconds)
    assert not [noise for noise in NOISE if noise in err], err
    return program.returncode, out, err


def sleepers(marker: str) -> list[psutil.Process]:
    """Processes, whoever their parent is now, that were started as ``sleep <marker>``."""
    return [
        process
        for process in psutil.process_iter(["cmdline", "status"])
        if process.info["cmdline"] == ["sleep", marker] and process.info["status"] != psutil.STATUS_ZOMBIE
    ]


@pytest.fixture
def marker() -> Iterator[str]:
    """A duration that no other ``sleep`` on this machine has."""
    marker = f"600.{os.getpid()}{time.monotonic_ns() % 10**9}"
    yield marker
    for process in sleepers(marker):
        process.kill()


def test_ctrl_c_interrupts_at_once_and_kills_the_process(start: Start, tmp_path: Path, marker: str) -> None:
    program = start(
        f"""
        with sandboxio.create_sync("host://") as sandbox:
            sandbox.run(["sleep", "{marker}"], timeout=900)
        """
    )
    until(lambda: sleepers(marker), "the command runs")
    sent = time.monotonic()
    program.send_signal(signal.SIGINT)
    code, _, err = finish(program)
    assert time.monotonic() - sent < 5
    assert code in (130, -signal.SIGINT)
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert err.count("Traceback") == 1
    assert not sleepers(marker)
    assert not list((tmp_path / "host").iterdir())


def test_a_program_that_catches_ctrl_c_goes_on_with_its_sandbox(start: Start, marker: str) -> None:
    program = start(
        f"""
        import threading, time
        with sandboxio.create_sync("host://") as sandbox:
            try:
                sandbox.run("sleep {marker} & sleep {marker}", timeout=900)
            except KeyboardInterrupt:
                print("caught", flush=True)
            print(sandbox.run(["echo", "alive"]).stdout, end="", flush=True)
            with sandbox.stream(["sleep", "{marker}"]) as process:
                try:
                    print("streaming", flush=True)
                    process.wait()
                except KeyboardInterrupt:
                    print("again", flush=True)
            print(process.returncode, flush=True)
        print([thread.name for thread in threading.enumerate() if thread.name == "sandboxio-sync"])
        """
    )
    until(lambda: len(sleepers(marker)) == 2, "the commands run")
    program.send_signal(signal.SIGINT)
    assert program.stdout is not None
    assert program.stdout.readline() == "caught\n"
    assert program.stdout.readline() == "alive\n"
    assert program.stdout.readline() == "streaming\n"
    until(lambda: len(sleepers(marker)) == 1, "the first two are dead and the stream runs")
    time.sleep(0.05)  # to be inside wait(); before it, Ctrl-C is caught just the same
    program.send_signal(signal.SIGINT)
    code, out, err = finish(program)
    assert (code, out, err) == (0, "again\n137\n[]\n", "")


def test_ctrl_c_while_creating_leaves_nothing(start: Start, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    program = start(f"sandboxio.create_sync('host://', env={{'SLOW_CREATE': {str(gate)!r}}})")
    until(gate.exists, "create() has begun")
    assert list((tmp_path / "host").iterdir())
    program.send_signal(signal.SIGINT)
    code, _, err = finish(program)
    assert code in (130, -signal.SIGINT)
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert not list((tmp_path / "host").iterdir())


def test_ctrl_c_at_any_moment_of_many_short_calls(start: Start, tmp_path: Path) -> None:
    """The signal falls between two calls, into one, into entering or leaving: all the same."""
    for number in range(8):
        program = start(
            """
            # The first one imports what it needs, and Python loses a Ctrl-C in the middle of an import.
            sandboxio.create_sync("host://").close()
            print("go", flush=True)
            while True:
                with sandboxio.create_sync("host://") as sandbox:
                    for _ in range(3):
                        sandbox.files.ls()
            """
        )
        assert program.stdout is not None
        assert program.stdout.readline() == "go\n"
        time.sleep(0.01 + number * 0.013)  # not a wait: the moment is the point
        program.send_signal(signal.SIGINT)
        out, err = program.communicate(timeout=20)
        assert program.returncode in (130, -signal.SIGINT), (out, err)
        assert "Event loop is closed" not in err
        assert "never awaited" not in err
        assert not list((tmp_path / "host").iterdir()), err


def test_a_second_ctrl_c_does_not_wait_for_a_stuck_cleanup(start: Start) -> None:
    program = start(
        """
        from tests.core.scripted import ScriptedBackend, World
        world = World(hangs=True, kill_hangs=True, destroy_hangs=True)
        world.on_gate = lambda number: print(number, flush=True)
        sandboxio.register("scripted", lambda: ScriptedBackend(world))
        import os, warnings
        warnings.simplefilter("ignore")
        sandbox = sandboxio.create_sync("scripted://")
        try:
            sandbox.run(["x"])
        except KeyboardInterrupt:
            print("out", flush=True)
            os._exit(7)
        """
    )
    assert program.stdout is not None
    gates = [program.stdout.readline() for _ in range(4)]  # create 1, start 2 and 3, receive 4
    assert gates == ["1\n", "2\n", "3\n", "4\n"]
    sent = time.monotonic()
    program.send_signal(signal.SIGINT)
    time.sleep(0.3)  # for the first one to arrive: two that are pending are one
    program.send_signal(signal.SIGINT)
    assert program.wait(10) == 7
    assert time.monotonic() - sent < 2.5  # the stuck kill alone would take three seconds


def test_sigterm_ends_the_program_as_usual(start: Start, marker: str) -> None:
    """The library installs no handler; what is left is the backend's lifeline and lifetime to end."""
    program = start(
        f"""
        with sandboxio.create_sync("host://") as sandbox:
            sandbox.run(["sleep", "{marker}"], timeout=900)
        """
    )
    until(lambda: sleepers(marker), "the command runs")
    program.terminate()
    code, _, err = finish(program)
    assert (code, err) == (-signal.SIGTERM, "")


@pytest.mark.parametrize("ending", ["", "raise SystemExit(3)", "import sys; sys.exit(3)"])
def test_a_sandbox_that_nobody_closed_ends_with_the_program(
    start: Start, tmp_path: Path, ending: str
) -> None:
    program = start(f"sandbox = sandboxio.create_sync('host://')\nprint(sandbox.id)\n{ending}")
    code, out, err = finish(program)
    assert (code, err) == (3 if ending else 0, "")
    assert not Path(out.strip()).exists()
    assert not list((tmp_path / "host").iterdir())


def test_threads_that_outlive_the_main_thread_keep_their_sandbox(start: Start, tmp_path: Path) -> None:
    program = start(
        """
        import threading
        sandbox = sandboxio.create_sync("host://")
        def work():
            threading.main_thread().join()
            for _ in range(3):
                print(sandbox.run("sleep 0.1; echo works").stdout, end="")
        threading.Thread(target=work).start()
        """
    )
    assert finish(program) == (0, "works\n" * 3, "")
    assert not list((tmp_path / "host").iterdir())


def test_shutdown_ends_sandboxes_while_executors_still_work(start: Start) -> None:
    """A backend that resolves host names, also the last time, needs asyncio's executor.

    A thread for it is there from the first time: Python 3.12 starts none during shutdown.
    """
    program = start(
        """
        import anyio
        from tests.sync.hostprocess import HostSandbox
        async def _destroy(self):
            print(await anyio.getaddrinfo("localhost", 80) != [])
            Path(self.id).rmdir()
        from pathlib import Path
        HostSandbox._destroy = _destroy
        sandbox = sandboxio.create_sync("host://")
        sandbox._portal.call(lambda: anyio.getaddrinfo("localhost", 80))
        sandbox.run(["true"])  # meanwhile the thread says that it is free
        """
    )
    assert finish(program) == (0, "True\n", "")


def test_a_fork_neither_hangs_nor_removes_the_parents_sandbox(start: Start) -> None:
    program = start(
        """
        import os, sys, warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12: forking with threads
        with sandboxio.create_sync("host://") as sandbox:
            process = sandbox.stream(["true"])
            child = os.fork()
            if child == 0:
                for operation in (lambda: sandbox.run(["true"]), process.__enter__, sandbox.files.ls):
                    try:
                        operation()
                    except sandboxio.ConfigurationError as error:
                        assert "is a fork" in error.message, error
                sandbox.kill()
                process.__exit__(None, None, None)
                sandbox.close()
                sys.exit(5)  # leaves the with block, runs exit handlers
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
            print(sandbox.run(["echo", "still here"]).stdout, end="")
        """
    )
    assert finish(program) == (0, "still here\n", "")


def test_a_fork_that_just_drops_it(start: Start) -> None:
    program = start(
        """
        import gc, os, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        sandbox = sandboxio.create_sync("host://")
        child = os.fork()
        if child == 0:
            del sandbox
            gc.collect()
            with sandboxio.create_sync("host://") as own:
                print(own.run(["echo", "own"]).stdout, end="", flush=True)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        print(sandbox.run(["echo", "parent"]).stdout, end="")
        sandbox.close()
        """
    )
    assert finish(program) == (0, "own\nparent\n", "")


def test_importing_replaces_no_signal_handler_and_starts_no_thread(start: Start) -> None:
    program = start(
        """
        import signal, sys, threading
        before = {number: signal.getsignal(number) for number in signal.valid_signals()}
        import sandboxio
        from sandboxio import create_sync, doctor
        assert {number: signal.getsignal(number) for number in signal.valid_signals()} == before
        print(threading.active_count())
        """,
        prelude="",
    )
    assert finish(program) == (0, "1\n", "")


def test_in_a_notebook_with_nest_asyncio(start: Start) -> None:
    """What a cell does: a sync call inside a running loop, here with the patch many notebooks apply."""
    pytest.importorskip("nest_asyncio2")
    program = start(
        """
        import asyncio, nest_asyncio2
        nest_asyncio2.apply()
        async def cell():
            with sandboxio.create_sync("host://") as sandbox:
                with sandbox.stream(["seq", "3"]) as process:
                    return b"".join(chunk.data for chunk in process)
        print(asyncio.run(cell()))
        """
    )
    assert finish(program) == (0, "b'1\\n2\\n3\\n'\n", "")

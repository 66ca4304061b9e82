"""The root conftest makes promises to every other test. Here each of them is broken on purpose.

Each case is a small pytest run of its own, in a process of its own, under a copy of the real conftest
and the real settings.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts.engine_api import request as engine_request

ROOT = Path(__file__).parents[2]
HOST = os.environ.get("DOCKER_HOST")

Run = Callable[..., pytest.RunResult]


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a test module under the rules of this repository."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    lines = ["[pytest]", f"pythonpath = {ROOT}", "anyio_mode = auto", "xfail_strict = true"]
    lines += ["filterwarnings ="] + [f"    {line}" for line in settings["filterwarnings"]]
    lines += ["markers ="] + [f"    {line}" for line in settings["markers"]]
    pytester.makeini("\n".join(lines))
    pytester.makeconftest((ROOT / "conftest.py").read_text())
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def run(source: str, *arguments: str) -> pytest.RunResult:
        pytester.makepyfile(source)
        # Only the plugins that the rules are about: loading all takes longer than the run itself.
        plugins = ["-p", "anyio", "-p", "pytest_timeout", "-p", "no:cacheprovider"]
        return pytester.runpytest_subprocess("-ra", *plugins, *arguments, timeout=60)

    return run


# Both loops


def test_an_async_test_without_its_twin_stops_the_run(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_own_fixture="""
            import pytest
            @pytest.fixture
            def anyio_backend(): return "trio"
            async def test_overridden(): pass
            """
    )
    source = """
        import pytest
        from hypothesis import given, strategies as st
        @pytest.mark.parametrize("anyio_backend", ["asyncio"])
        async def test_only_asyncio(): pass
        class TestGroup:
            @pytest.mark.parametrize("n", [1, 2])
            @pytest.mark.parametrize("anyio_backend", [("trio", {})])
            async def test_in_class(self, n): pass
        @pytest.mark.parametrize("anyio_backend", ["asyncio"])
        @given(n=st.integers())
        async def test_drawn(n): pass
        def test_plain(): pass
        async def test_twins(): pass
        """
    result = run(source, "-k", "plain")  # what a filter takes away is looked at, too
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    for line in (
        "test_only_asyncio*: does not run on trio",
        "TestGroup::test_in_class*1]: does not run on asyncio",
        "TestGroup::test_in_class*2]: does not run on asyncio",
        "test_drawn*: does not run on trio",
        "test_own_fixture.py::test_overridden: does not run on asyncio and trio",
    ):
        result.stderr.fnmatch_lines([f"*{line}"])
    result.stderr.no_fnmatch_line("*test_twins*")


def test_twins_and_declared_exceptions_pass(run: Run) -> None:
    result = run(
        """
        import pytest
        from hypothesis import given, settings, strategies as st
        async def test_plain(): pass
        @pytest.mark.parametrize("n", [1, 2])
        async def test_parameters(n): pass
        @settings(max_examples=3, database=None)
        @given(n=st.integers())
        async def test_drawn(n): pass
        @pytest.mark.one_loop(reason="the witness knows asyncio only")
        @pytest.mark.parametrize("anyio_backend", ["asyncio"])
        async def test_witness(): pass
        def test_sync(): pass
        """
    )
    result.assert_outcomes(passed=2 + 4 + 2 + 1 + 1)


def test_an_exception_needs_a_reason(run: Run) -> None:
    result = run(
        """
        import pytest
        @pytest.mark.one_loop
        @pytest.mark.parametrize("anyio_backend", ["asyncio"])
        async def test_witness(): pass
        """
    )
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*test_witness*needs a reason*"])


def test_one_variant_may_be_asked_for_by_name(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_named="async def test_it(): pass")
    result = run("", "test_named.py::test_it[trio]")
    result.assert_outcomes(passed=1)


def test_skipping_on_one_loop_only_fails_the_run(run: Run) -> None:
    result = run(
        """
        import pytest
        async def test_half(anyio_backend_name):
            if anyio_backend_name == "trio":
                pytest.skip("too hard")
        async def test_whole():
            pytest.skip("on both")
        """
    )
    result.assert_outcomes(passed=1, skipped=3)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["skipped on one loop and run on the other: *test_half?trio?"])
    result.stdout.no_fnmatch_line("*run on the other*test_whole*")


# Nothing left


def test_what_a_test_leaves_behind_fails_it(run: Run) -> None:
    result = run(
        """
        import os, signal, subprocess, sys, threading
        import pytest
        import sandboxio
        import tests.harness.leaks
        tests.harness.leaks.SETTLE_SECONDS = 0.2
        kept, stop = [], threading.Event()

        @pytest.fixture(scope="module", autouse=True)
        def tidy():
            yield
            stop.set()
            for thing in kept:
                thing.join() if isinstance(thing, threading.Thread) else thing.kill() or thing.wait()

        def test_descriptor():
            os.open("/dev/null", os.O_RDONLY)
        def test_replaced_descriptor(request):
            number = os.open("/dev/null", os.O_RDONLY)
            os.close(number)
        def test_thread():
            kept.append(threading.Thread(target=stop.wait, name="forgotten"))
            kept[-1].start()
        def test_child():
            kept.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]))
        def test_zombie():
            kept.append(subprocess.Popen([sys.executable, "-c", ""]))
        @pytest.mark.parametrize("n", [1, 2])
        def test_settings(n, tmp_path):  # the second one finds them as the first did
            assert sandboxio.registry.names() == ["docker", "e2b", "fake"]
            assert "FORGOTTEN" not in os.environ
            sandboxio.register("forgotten", sandboxio.testing.FakeBackend)
            os.environ["FORGOTTEN"] = "hunter22"
            del os.environ["HOME"]
            os.chdir(tmp_path)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        def test_folder(tmp_path):
            (tmp_path / "gone").mkdir()
            os.chdir(tmp_path / "gone")
            os.rmdir(tmp_path / "gone")
        def test_tidy(monkeypatch, tmp_path):
            monkeypatch.setenv("FORGOTTEN", "no")
            monkeypatch.delenv("HOME")
            monkeypatch.chdir(tmp_path)
            sandboxio.register("forgotten", sandboxio.testing.FakeBackend)
            sandboxio.registry.unregister("forgotten")
            with open("/dev/null"):
                thread = threading.Thread(target=int)
                thread.start()
                thread.join()
                subprocess.run([sys.executable, "-c", ""], check=True)
        def test_slow_to_end():
            threading.Timer(0.05, int).start()
        @pytest.mark.leaves("an outside library keeps it")
        def test_excused():
            os.open("/dev/null", os.O_RDONLY)
        """
    )
    result.assert_outcomes(passed=11, errors=7)
    assert "hunter22" not in result.stdout.str()
    result.stdout.fnmatch_lines_random(
        [
            "*backend 'forgotten', registered",
            "*environment variable FORGOTTEN, changed",
            "*environment variable HOME, changed",
            "*working directory */test_settings*",
            "*working directory that is no more",
            "*handler of signal 15: *SIG_IGN*",
            "*handler of signal 17: *SIG_IGN*",
            "ERROR *::test_settings?1?*",
            "ERROR *::test_settings?2?*",
            "*descriptor * -> /dev/null",
            "*thread 'forgotten' at *threading.py:*",
            "*child process *: *time.sleep(60)",
            "*child process *: (state *)",
            "ERROR *::test_descriptor*",
            "ERROR *::test_thread*",
            "ERROR *::test_child*",
            "ERROR *::test_zombie*",
        ]
    )


def test_an_interrupted_run_still_reports(run: Run) -> None:
    result = run(
        """
        import os
        def test_fails(): assert False, "seen"
        def test_interrupted():
            os.open("/dev/null", os.O_RDONLY)
            raise KeyboardInterrupt
        """
    )
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.assert_outcomes(failed=1)


def test_the_check_cannot_be_overridden_in_passing(run: Run) -> None:
    result = run(
        """
        import pytest
        @pytest.fixture
        def nothing_left(): pass
        def test_it(): pass
        """
    )
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*overrides nothing_left*"])


def test_a_task_that_outlives_its_test_fails_it(run: Run) -> None:
    result = run(
        """
        import asyncio
        import anyio
        import pytest
        import trio
        from hypothesis import given, settings, strategies as st
        import tests.harness.leaks
        tests.harness.leaks.SETTLE_SECONDS = 0.2
        kept = []

        def leave(loop):
            if loop == "asyncio":
                kept.append(asyncio.ensure_future(anyio.sleep_forever()))
            else:
                trio.lowlevel.spawn_system_task(trio.sleep_forever)

        async def test_leaves(anyio_backend_name):
            leave(anyio_backend_name)
        @settings(max_examples=1, database=None)
        @given(n=st.just(1))
        async def test_drawn_leaves(anyio_backend_name, n):
            leave(anyio_backend_name)
        @pytest.mark.virtual_time
        async def test_virtual_leaves(anyio_backend_name):
            leave(anyio_backend_name)
        async def test_waits_for_its_tasks():
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(anyio.sleep, 0.01)
        """
    )
    result.assert_outcomes(passed=2, failed=6)
    result.stdout.fnmatch_lines(["*the test left tasks running: *sleep_forever*"])


def test_threads_that_the_loops_keep_or_end_are_no_leak(run: Run) -> None:
    result = run(
        """
        import anyio.to_thread
        async def test_uses_a_thread():
            await anyio.to_thread.run_sync(int)
        async def test_uses_another():
            await anyio.to_thread.run_sync(int)
        """
    )
    result.assert_outcomes(passed=4)


def _alive(pid: int) -> bool:
    try:
        return ") Z " not in Path("/proc", str(pid), "stat").read_text()
    except OSError:
        return False


def test_a_daemon_that_slipped_away_fails_the_run_and_is_ended(run: Run, pytester: pytest.Pytester) -> None:
    result = run(
        """
        import subprocess, sys, time
        CODE = '''
        import os, pathlib, time
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                pathlib.Path("pid.new").write_text(str(os.getpid()))
                os.rename("pid.new", "pid")
                time.sleep(60)
        '''
        def test_daemon():
            from textwrap import dedent
            from pathlib import Path
            silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            subprocess.run([sys.executable, "-c", dedent(CODE)], check=True, **silent)
            for _ in range(500):
                if Path("pid").exists():
                    return
                time.sleep(0.01)
            raise AssertionError("no daemon within 5 s")
        """
    )
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    pid = int((pytester.path / "pid").read_text())
    result.stdout.fnmatch_lines([f"process {pid} is still there, now killed: *"])
    assert not _alive(pid)


@pytest.mark.engine
def test_a_container_that_outlives_the_run_fails_it(
    run: Run, docker_image: str, monkeypatch: pytest.MonkeyPatch, pytester: pytest.Pytester
) -> None:
    monkeypatch.delenv("DOCKER_HOST")  # the fixture hides the engine from every other case
    if host := HOST:
        monkeypatch.setenv("DOCKER_HOST", host)
    source = f"""
        import json, os, pathlib
        import pytest
        from tests.harness import engines
        engines.SETTLE_SECONDS = 0.2

        @pytest.mark.engine
        @pytest.mark.parametrize("session", [os.getpid(), 1, 4194305], ids=["own", "alien", "dead"])
        def test_leaves(session, request):
            labels = {{"io.sandboxio.managed": "true", "io.sandboxio.session": str(session)}}
            body = {{"Image": {docker_image!r}, "Cmd": ["true"], "Labels": labels}}
            status, answer = engines.engine_api.request("POST", "/containers/create", body=body)
            assert status == 201, answer
            path = pathlib.Path(request.node.callspec.id)
            path.write_text(json.loads(answer)["Id"])
        """
    try:
        result = run(source)
        ids = {name: (pytester.path / name).read_text() for name in ("own", "alien", "dead")}
    finally:
        for path in pytester.path.iterdir():
            if path.name in {"own", "alien", "dead"}:
                engine_request("DELETE", f"/containers/{path.read_text()}?force=1")
    result.assert_outcomes(passed=3)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    for name in ("own", "dead"):
        result.stdout.fnmatch_lines([f"container *({ids[name][:12]}, created) is still there"])
    result.stdout.no_fnmatch_line(f"*{ids['alien'][:12]}*")


# What a test needs


NEEDY = """
    import pytest
    @pytest.mark.engine
    async def test_container(): raise AssertionError("must not run")
    @pytest.mark.e2b
    def test_cloud(): raise AssertionError("must not run")
    def test_image(docker_image): raise AssertionError("must not run")
    def test_plain(): pass
    """


def test_without_an_engine_its_tests_are_skipped_and_say_why(run: Run) -> None:
    result = run(NEEDY)
    result.assert_outcomes(passed=1, skipped=4)
    result.stdout.fnmatch_lines(["SKIPPED*no Docker engine answers at unix:///nowhere/docker.sock*"])


def test_what_is_required_and_missing_fails(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("E2B_API_KEY", raising=False)
    result = run(NEEDY, "--require", "docker")
    result.assert_outcomes(passed=1, errors=3, skipped=1)
    result.stdout.fnmatch_lines(["*--require docker: no Docker engine answers at *"])
    result = run(NEEDY, "--require", "docker", "--require", "e2b")
    result.assert_outcomes(passed=1, errors=4)


# What is written down


def test_how_each_test_ended_is_written_down(run: Run, tmp_path: Path) -> None:
    source = """
        import pytest
        def test_good(): pass
        def test_bad(): assert False
        @pytest.mark.skip(reason="no")
        def test_skipped(): pass
        @pytest.fixture
        def breaks():
            yield
            assert False
        def test_good_with_a_bad_end(breaks): pass
    """
    file = tmp_path / "outcomes"
    run(source, "--outcomes", str(file)).assert_outcomes(passed=2, failed=1, skipped=1, errors=1)
    entries = [json.loads(line) for line in file.read_text().splitlines()]
    ended = [(entry["places"][0].rpartition("::")[2], entry["outcome"]) for entry in entries]
    assert sorted(ended) == [
        ("test_bad", "failed"),
        ("test_good", "passed"),
        ("test_good_with_a_bad_end", "failed"),
        ("test_good_with_a_bad_end", "passed"),
        ("test_skipped", "skipped"),
    ]

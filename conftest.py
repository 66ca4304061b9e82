"""The rules that every test here lives under.

How they work is in tests/harness/; what they mean for whoever writes a test is in CONTRIBUTING.md.
"""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections import defaultdict
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness import engines, leaks, outcomes, twins
from tests.harness.clocks import LOOPS, backend_for

pytest_plugins = ["pytester"]

_started = time.time()
_session_id = uuid.uuid4().hex
_complaints: list[str] = []
_skipped: dict[tuple[object, ...], dict[str, bool]] = defaultdict(dict)
_used: set[str] = set()
_interrupted: list[BaseException] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require",
        action="append",
        default=[],
        choices=sorted(engines.NEEDS),
        help="fail, instead of skipping tests, when this is missing; may be given more than once",
    )
    parser.addoption(
        "--outcomes",
        type=Path,
        metavar="FILE",
        help="append how each test ended; see tests/harness/outcomes.py",
    )


def pytest_configure() -> None:
    os.environ[leaks.SESSION_VARIABLE] = _session_id
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # Started in the background of a script; the programs that tests interrupt would inherit this.
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header() -> str:
    states = (f"{name}: {need.problem() or 'yes'}" for name, need in engines.NEEDS.items())
    return "outside world: " + "; ".join(states)


def _unavailable(config: pytest.Config, name: str, problem: str) -> None:
    if name in config.getoption("--require"):
        pytest.fail(f"--require {name}: {problem}", pytrace=False)
    pytest.skip(problem)


# Both loops


@pytest.fixture(params=LOOPS)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    return backend_for(request.param, jumping=request.node.get_closest_marker("virtual_time") is not None)


@pytest.hookimpl(tryfirst=True)  # before -k, -m and --lf take items away
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if any(len(item._fixtureinfo.name2fixturedefs["nothing_left"]) > 1 for item in items):
        raise pytest.UsageError("a test module overrides nothing_left: use @pytest.mark.leaves(reason)")
    if any("[" in argument for argument in config.args):
        return  # somebody asked for one variant of one test
    if config.getoption("lf", False):
        return  # or for those that have failed: pytest has not even collected the others
    if lone := twins.without_twin(items):
        raise pytest.UsageError(
            "every async test runs on asyncio and on trio, or is marked one_loop(reason):\n  "
            + "\n  ".join(lone)
        )


# What a test needs


def pytest_runtest_setup(item: pytest.Item) -> None:
    for name, need in engines.NEEDS.items():
        if item.get_closest_marker(need.marker) is None:
            continue
        if problem := need.problem():
            _unavailable(item.config, name, problem)
        _used.add(name)


@pytest.fixture(scope="session")
def docker_image(request: pytest.FixtureRequest) -> str:
    """An image with Python that the engine has; nothing is pulled."""
    image = os.environ.get("SBX_TEST_IMAGE") or "python:3.12-slim"
    if problem := engines.engine_problem() or engines.image_problem(image):
        _unavailable(request.config, "docker", problem)
    return image


# What a test may not leave


def pytest_keyboard_interrupt(excinfo: pytest.ExceptionInfo[BaseException]) -> None:
    _interrupted.append(excinfo.value)


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    watch = leaks.Watch()
    yield
    if _interrupted or twins.reason_of(request.node, "leaves") is not None:
        return  # a test that was broken off leaves what it had, and its report must not be lost
    if left := watch.left():
        pytest.fail("the test left behind:\n  " + "\n  ".join(left), pytrace=False)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    if twins.is_async(pyfuncitem):
        leaks.watch_tasks_of(pyfuncitem)
    return (yield)


# What a whole run may not do


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if twins.is_async(item) and twins.reason_of(item, "one_loop") is None:
        skipped = _skipped[twins.group_of(item)]
        skipped[item.nodeid] = skipped.get(item.nodeid, False) or report.skipped
    if (file := item.config.getoption("--outcomes")) is not None:
        outcomes.append(file, item, report)
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    for loops in _skipped.values():
        if len(set(loops.values())) == 2:
            lone = ", ".join(nodeid for nodeid, skipped in loops.items() if skipped)
            _complaints.append(f"skipped on one loop and run on the other: {lone}")
    if processes := leaks.processes_of_session(_session_id):
        _complaints.extend(f"process {pid} is still there, now killed: {c}" for pid, c in processes.items())
        leaks.end_processes(processes)
    if "docker" in _used:
        try:
            _complaints.extend(f"{c} is still there" for c in engines.containers_left(_started, _session_id))
        except OSError as error:
            _complaints.append(f"cannot tell whether containers are left: {error}")
    if _complaints and session.exitstatus in (
        pytest.ExitCode.OK,
        pytest.ExitCode.NO_TESTS_COLLECTED,
    ):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if _complaints:
        terminalreporter.section("the run as a whole failed", red=True, bold=True)
        for complaint in _complaints:
            terminalreporter.line(complaint)

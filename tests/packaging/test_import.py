"""What `import sandboxio` costs and does not do: no adapter, no SDK, no socket, no thread.

The bound of the design is 50 ms over an empty Python; benchmarks/ measures it. Here is the hard limit.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

HARD_LIMIT_MS = 150.0
RUNS = 7

FOREIGN = {
    "sandboxio_docker", "sandboxio_e2b", "httpx", "httpcore", "h11", "e2b", "docker", "aiodocker", "requests",
    "pytest", "_pytest", "trio", "opentelemetry", "mcp", "langchain_core", "agents", "pydantic", "rich",
}  # fmt: skip
"""Adapters, SDKs, and what only tests or extras need."""

LATE = {
    "argparse",
    "asyncio",
    "multiprocessing",
    "concurrent.futures.thread",
    "sandboxio.sync",
    "sandboxio.cli",
}
"""Of the standard library and of sandboxio itself, but wanted by few programs."""

WATCHED = """
import _thread, json, sys, threading
EVENTS = ("socket.", "subprocess.", "os.system", "os.exec", "os.fork", "os.posix_spawn", "urllib.")
seen = []
sys.addaudithook(lambda event, arguments: seen.append(event) if event.startswith(EVENTS) else None)
start = _thread.start_new_thread
def started(*arguments, **options):
    seen.append("thread")
    return start(*arguments, **options)
_thread.start_new_thread = threading._start_new_thread = started
threading._start_joinable_thread = started  # 3.13
before = set(sys.modules)
import sandboxio
print(json.dumps({"seen": seen, "loaded": sorted(set(sys.modules) - before)}))
"""


def python(code: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *options, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )


@pytest.fixture(scope="module")
def imported() -> dict[str, list[str]]:
    found: dict[str, list[str]] = json.loads(python(WATCHED).stdout)
    return found


def test_no_adapter_no_sdk_and_no_test_tool_is_loaded(imported: dict[str, list[str]]) -> None:
    assert "sandboxio.api" in imported["loaded"]
    assert not {name.split(".")[0] for name in imported["loaded"]} & FOREIGN


def test_what_few_programs_need_is_loaded_late(imported: dict[str, list[str]]) -> None:
    assert not set(imported["loaded"]) & LATE


def test_no_socket_no_process_no_thread(imported: dict[str, list[str]]) -> None:
    assert imported["seen"] == []


@pytest.mark.parametrize(
    ("action", "event"),
    [
        ("import socket; socket.socket().close()", "socket.__new__"),
        ("_thread.start_new_thread(int, ())", "thread"),
        ("import subprocess, sys; subprocess.run([sys.executable, '-c', ''])", "subprocess.Popen"),
    ],
)
def test_the_watch_would_notice(action: str, event: str) -> None:
    """Each thing above, done on purpose."""
    assert event in json.loads(python(WATCHED.replace("import sandboxio", action)).stdout)["seen"]


def milliseconds(code: str) -> float:
    """The fastest of several runs: what others do on this machine only ever adds."""
    return min(_cumulative(python(code, "-X", "importtime").stderr) for _ in range(RUNS))


def _cumulative(report: str) -> float:
    """The cumulative time of sandboxio's line in a report of -X importtime, in milliseconds."""
    (found,) = re.findall(r"^import time:\s*\d+ \|\s*(\d+) \| sandboxio$", report, re.MULTILINE)
    return int(found) / 1000


@pytest.mark.slow
def test_it_stays_below_the_hard_limit() -> None:
    assert milliseconds("import sandboxio") < HARD_LIMIT_MS


def test_a_lazy_name_loads_only_its_own_part() -> None:
    code = "import sandboxio, sys; sandboxio.create_sync; print('sandboxio._doctor' in sys.modules)"
    assert python(code).stdout == "False\n"
    code = "import sandboxio.testing, sys; sandboxio.testing.FakeBackend; print('pytest' in sys.modules)"
    assert python(code).stdout == "False\n"

"""What a test may need and a machine may lack, seen with nothing but the standard library.

The code under test has an engine client of its own. This one is apart from it on purpose: it tells
whether there is an engine, and what is left on it after a run.
"""

from __future__ import annotations

import functools
import http.client
import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from .leaks import SESSION_VARIABLE

DEFAULT_HOST = "unix:///var/run/docker.sock"
MANAGED_LABEL = "io.sandboxio.managed=true"
SESSION_LABEL = "io.sandboxio.session"

SETTLE_SECONDS = 10.0
"""How long the engine may take to remove what it was told to, after the last test."""


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("engine", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _connection(timeout: float) -> http.client.HTTPConnection:
    host = urlsplit(os.environ.get("DOCKER_HOST") or DEFAULT_HOST)
    if host.scheme == "unix":
        return _UnixConnection(host.path, timeout)
    if host.scheme == "tcp" and host.hostname and not os.environ.get("DOCKER_TLS_VERIFY"):
        return http.client.HTTPConnection(host.hostname, host.port or 2375, timeout=timeout)
    raise OSError(f"tests reach engines at unix:// and plain tcp:// only, not {host.geturl()}")


def engine_request(
    method: str, path: str, *, body: object = None, timeout: float = 30.0
) -> tuple[int, bytes]:
    """Status and body of one request, with a JSON body or none, to the engine of DOCKER_HOST.

    Raises:
        OSError: nothing answers there within `timeout` seconds.
    """
    connection = _connection(timeout)
    try:
        sent = None if body is None else json.dumps(body)
        connection.request(method, path, sent, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read()
    except http.client.HTTPException as error:
        raise OSError(f"not an HTTP answer: {error!r}") from error
    finally:
        connection.close()


# What is there?


@functools.cache
def engine_problem() -> str | None:
    """Why no test can use an engine, or None if one answers."""
    try:
        status, body = engine_request("GET", "/_ping", timeout=5.0)
    except OSError as error:
        return f"no Docker engine answers at {os.environ.get('DOCKER_HOST') or DEFAULT_HOST}: {error}"
    return None if status == 200 else f"the engine answers {status} to /_ping: {body[:200]!r}"


def e2b_problem() -> str | None:
    return None if os.environ.get("E2B_API_KEY") else "E2B_API_KEY is not set"


@functools.cache
def image_problem(image: str) -> str | None:
    """Why tests cannot use this image; they never pull one."""
    status, _ = engine_request("GET", f"/images/{quote(image)}/json")
    if status == 200:
        return None
    return f"the engine has no image {image}: run 'make engine', or set SBX_TEST_IMAGE to one it has"


@dataclass(frozen=True)
class Need:
    """Something outside that tests with `marker` cannot do without."""

    marker: str
    problem: Callable[[], str | None]


NEEDS = {
    "docker": Need("engine", engine_problem),
    "e2b": Need("e2b", e2b_problem),
}


# What is left?


def _process_is_ours_or_gone(pid: str, session: str) -> bool:
    if pid == str(os.getpid()):
        return True
    try:
        environment = Path("/proc", pid, "environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return True  # a creator that died: its sandbox had to go with it
    except OSError:
        return False  # somebody else's process
    return f"{SESSION_VARIABLE}={session}".encode() in environment


def managed_containers(since: float, session: str) -> list[str]:
    """Sandboxes that this run made and that still exist, running or not.

    `since` is the Unix time at which the run began. Others may use the engine at the same time: a
    sandbox whose creator lives and is no process of this run is theirs.
    """
    filters = quote(json.dumps({"label": [MANAGED_LABEL]}))
    status, body = engine_request("GET", f"/containers/json?all=1&filters={filters}")
    if status != 200:
        raise OSError(f"the engine answers {status} to a list of containers: {body[:200]!r}")
    containers: list[dict[str, Any]] = json.loads(body)
    return [
        f"container {found['Names'][0].lstrip('/')} ({found['Id'][:12]}, {found['State']})"
        for found in containers
        if found["Created"] >= int(since)
        and _process_is_ours_or_gone(found["Labels"].get(SESSION_LABEL, ""), session)
    ]


def containers_left(since: float, session: str) -> list[str]:
    """As `managed_containers`, once those that the engine is just removing have gone."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while (left := managed_containers(since, session)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left

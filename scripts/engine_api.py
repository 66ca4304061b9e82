"""A few requests to a Docker engine with nothing but the standard library.

Scripts and tests use it to see whether there is an engine and what is on it. It is apart from the
library's own engine client on purpose: it runs before anything is installed, and it looks at the
library's work from outside.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

DEFAULT_HOST = "unix:///var/run/docker.sock"


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("engine", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def current_host() -> str:
    return os.environ.get("DOCKER_HOST") or DEFAULT_HOST


def usual_hosts() -> list[str]:
    """Where an engine may listen when DOCKER_HOST does not say."""
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}")
    home = Path.home()
    sockets = [
        runtime / "docker.sock",
        home / ".docker/run/docker.sock",
        home / ".docker/desktop/docker.sock",
        home / ".colima/default/docker.sock",
        runtime / "podman/podman.sock",
        Path("/run/podman/podman.sock"),
    ]
    return [DEFAULT_HOST, *(f"unix://{path}" for path in sockets if path.exists())]


def _connect(host: str, timeout: float) -> http.client.HTTPConnection:
    url = urlsplit(host)
    if url.scheme == "unix":
        return _UnixConnection(url.path, timeout)
    if url.scheme == "tcp" and url.hostname and not os.environ.get("DOCKER_TLS_VERIFY"):
        return http.client.HTTPConnection(url.hostname, url.port or 2375, timeout=timeout)
    raise OSError(f"scripts and tests reach engines at unix:// and plain tcp:// only, not {host}")


def request(
    method: str,
    path: str,
    *,
    host: str | None = None,
    body: object = None,
    stream: Iterable[bytes] | None = None,
    timeout: float = 30.0,
) -> tuple[int, bytes]:
    """Status and body of one request, with a JSON `body`, a byte `stream` or nothing to send.

    Raises:
        OSError: nothing answers at `host` (default: the one of DOCKER_HOST) within `timeout` seconds.
    """
    connection = _connect(host or current_host(), timeout)
    sent = stream if body is None else json.dumps(body)
    kind = "application/x-tar" if body is None else "application/json"
    try:
        chunked = stream is not None
        headers = {"Content-Type": kind} | ({"Transfer-Encoding": "chunked"} if chunked else {})
        connection.request(method, path, sent, headers, encode_chunked=chunked)
        response = connection.getresponse()
        return response.status, response.read()
    except http.client.HTTPException as error:
        raise OSError(f"not an HTTP answer: {error!r}") from error
    finally:
        connection.close()


def engine_problem(host: str | None = None) -> str | None:
    """Why no engine can be used at `host`, or None if one answers there."""
    host = host or current_host()
    try:
        status, body = request("GET", "/_ping", host=host, timeout=5.0)
    except OSError as error:
        return f"no Docker engine answers at {host}: {error}"
    return None if status == 200 else f"the engine at {host} answers {status}: {body[:200]!r}"


def has_image(image: str, host: str | None = None) -> bool:
    status, _ = request("GET", f"/images/{quote(image)}/json", host=host)
    return status == 200


def containers(filters: dict[str, list[str]], host: str | None = None) -> list[dict[str, Any]]:
    """Entries of the list of containers in any state.

    Podman refuses the list when one of it ends meanwhile; then it is asked again.

    Raises:
        OSError: nothing answers, or the engine refuses.
    """
    path = f"/containers/json?all=1&filters={quote(json.dumps(filters))}"
    status, body = request("GET", path, host=host)
    tries = 20
    while status == 500 and (tries := tries - 1):
        time.sleep(0.02)
        status, body = request("GET", path, host=host)
    if status == 200:
        found: list[dict[str, Any]] = json.loads(body)
        return found
    raise OSError(f"the engine at {host or current_host()} lists no containers: {status} {body[:200]!r}")

"""Images of kinds that users have, derived from the test image without a registry.

Each is made once a run, through the engine's HTTP API alone, and removed at its end.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import uuid
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode

from scripts import engine_api
from scripts.engine import Problem

from .registry import Files, tarball, unpacked

RUN = uuid.uuid4().hex[:8]


def ask(method: str, path: str, body: object = None, /, **query: str | Iterable[str]) -> bytes:
    """One request that has to succeed."""
    pairs = [(name, value) for name, values in query.items() for value in _several(values)]
    target = f"{path}?{urlencode(pairs)}"
    if isinstance(body, bytes):
        status, answer = engine_api.request(method, target, stream=[body], timeout=120.0)
    else:
        status, answer = engine_api.request(method, target, body=body, timeout=120.0)
    assert status < 400, f"{method} {path}: {status} {answer[:300]!r}"
    return answer


def _several(values: str | Iterable[str]) -> Iterable[str]:
    return [values] if isinstance(values, str) else values


def kill(container: str) -> None:
    """Kill a container from outside."""
    status, answer = engine_api.request("POST", f"/containers/{container}/kill")
    # Podman answers when the container has ended, and sometimes finds that it was removed by then
    assert status < 300 or b"no such container" in answer, answer


def is_podman() -> bool:
    """True for Podman's Docker-compatible service."""
    components = json.loads(ask("GET", "/version")).get("Components") or ()
    return any("Podman" in each["Name"] for each in components)


@contextmanager
def derived(
    base: str, kind: str, *changes: str, script: str = "true", add: bytes | None = None, signal: str = ""
) -> Generator[str]:
    """``base`` with the tar ``add`` unpacked, after a shell script, with ``changes`` as in a Dockerfile."""
    name = f"sandboxio-test:{kind}-{RUN}"
    command = {"Image": base, "Entrypoint": ["/bin/sh", "-c", script], "Cmd": []}
    container = json.loads(ask("POST", "/containers/create", {**command, "NetworkDisabled": True}))["Id"]
    try:
        if add is not None:
            ask("PUT", f"/containers/{container}/archive", add, path="/")
        ask("POST", f"/containers/{container}/start")
        ended = json.loads(ask("POST", f"/containers/{container}/wait"))
        assert ended["StatusCode"] == 0, ended
        repo, _, tag = name.partition(":")
        clean = ("ENTRYPOINT []", "CMD []", "ENV LC_ALL=C")
        settings = {"StopSignal": signal} if signal else {}  # no instruction that commit takes
        ask("POST", "/commit", settings, container=container, repo=repo, tag=tag, changes=(*clean, *changes))
    finally:
        ask("DELETE", f"/containers/{container}", force="1", v="1")
    with removed(name):
        yield name


@contextmanager
def imported(kind: str, files: Files, *changes: str) -> Generator[str]:
    """An image of nothing but these files: bytes are programs, text is where a link leads."""
    name = f"sandboxio-test:{kind}-{RUN}"  # Podman looks at no tag= here
    answer = ask("POST", "/images/create", tarball(files), fromSrc="-", repo=name, changes=changes)
    assert b"error" not in answer, answer
    with removed(name):
        yield name


@contextmanager
def removed(name: str) -> Generator[None]:
    try:
        yield
    finally:
        ask("DELETE", f"/images/{name}", force="1")


def python_of_pyenv(version: str) -> tuple[bytes, str] | None:
    """A Python that pyenv built on this machine, without what no program needs; None if it has none.

    A tar for an image whose C library is as new, and the program's path: the one that it was built for.
    """
    for home in sorted(Path("~/.pyenv/versions").expanduser().glob(f"{version}.*")):
        unwanted = [
            "test",
            "tests",
            "idlelib",
            "ensurepip",
            "__pycache__",
            "site-packages/*",
            "config-*",
            "*.a",
        ]
        parts = [home / "bin" / f"python{version}", *home.glob(f"lib/*python{version}*")]
        command = ["tar", "-C", "/", *(f"--exclude={each}" for each in unwanted), "-c"]
        names = [str(part.relative_to("/")) for part in parts]
        done = subprocess.run([*command, *names], capture_output=True, check=True)
        return done.stdout, str(parts[0])
    return None


def busybox() -> str | None:
    """A static busybox: this machine's, or that of Debian's package; None if neither can be had."""
    if program := os.environ.get("SBX_TEST_BUSYBOX") or shutil.which("busybox"):
        return program
    try:
        return str(unpacked("busybox-static", "bin/busybox"))
    except Problem:
        return None


def busybox_files(program: str) -> dict[str, bytes | str]:
    """A root file system like Alpine's: no Python, no GNU tool, only what busybox has."""
    applets = subprocess.run([program, "--list"], check=True, capture_output=True, text=True).stdout.split()
    passwd = b"root:x:0:0::/root:/bin/sh\napp:x:1000:1000::/home/app:/bin/sh\n"
    files: dict[str, bytes | str] = {"bin/busybox": Path(program).read_bytes(), "etc/passwd": passwd}
    return files | {f"bin/{applet}": "busybox" for applet in applets if applet != "busybox"}


@contextmanager
def of_busybox(program: str) -> Generator[str]:
    """See ``busybox_files``."""
    with imported("busybox", busybox_files(program), "ENV PATH=/bin") as name:
        yield name

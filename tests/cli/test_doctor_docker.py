"""``sandboxio doctor`` on machines without Docker, with it stopped, forbidden, mute, and with other engines.

Each machine is a home folder, an environment and perhaps a socket that answers as that engine does.
"""

from __future__ import annotations

import copy
import http.server
import json
import os
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest

from sandboxio_docker import DockerBackend, endpoint

from .conftest import Command, Ran

Only = Callable[..., None]
Engine = Callable[..., Path]

# What engines say of themselves; shortened to what is looked at.

DOCKER = {
    "ping": {"Api-Version": "1.41", "Ostype": "linux", "Server": "Docker/20.10.24 (linux)"},
    "version": {
        "Version": "20.10.24",
        "ApiVersion": "1.41",
        "MinAPIVersion": "1.12",
        "Platform": {"Name": "Docker Engine - Community"},
        "Components": [{"Name": "Engine", "Version": "20.10.24"}, {"Name": "containerd"}],
    },
    "info": {
        "Name": "build-7",
        "OperatingSystem": "Debian GNU/Linux 12 (bookworm)",
        "OSType": "linux",
        "Architecture": "x86_64",
        "CgroupVersion": "2",
        "CgroupDriver": "systemd",
        "MemoryLimit": True,
        "SwapLimit": True,
        "CpuCfsQuota": True,
        "PidsLimit": True,
        "DefaultRuntime": "runc",
        "Runtimes": {"runc": {}, "io.containerd.runc.v2": {}},
        "SecurityOptions": ["name=apparmor", "name=seccomp,profile=default", "name=cgroupns"],
    },
    "image": {"Architecture": "amd64"},
}


def engine_like(**changes: Any) -> dict[str, Any]:
    """Docker's answers, with fields of ``info`` and ``version`` changed; ``info=None`` takes one away."""
    answers = copy.deepcopy(DOCKER)
    for part, fields in changes.items():
        if isinstance(fields, dict) and isinstance(answers.get(part), dict):
            answers[part].update(fields)  # type: ignore[attr-defined]
        else:
            answers[part] = fields
    return answers


class _Handler(http.server.BaseHTTPRequestHandler):
    answers: dict[str, Any]
    asked: list[str]
    refusals: ClassVar = {"image": "No such image: python:3.12-slim", "info": "denied by the proxy's policy"}

    def do_GET(self) -> None:
        self.asked.append(self.path)
        parts = self.path.split("?")[0].split("/")
        kind = "image" if "images" in parts else parts[-1].lstrip("_")
        answer = self.answers.get(kind)
        body = (
            b"OK"
            if kind == "ping"
            else json.dumps(answer or {"message": self.refusals.get(kind, "no")}).encode()
        )
        self.send_response(200 if answer is not None else self.answers.get("refusal", 404))
        for name, value in answer.items() if kind == "ping" else ():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        return "unix"

    def log_message(self, *_: Any) -> None:
        pass


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = False


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    """Starts an engine that answers like this; returns its socket."""
    servers: list[_Server] = []

    def engine(answers: dict[str, Any], path: Path | None = None) -> Path:
        path = path or tmp_path / "engine.sock"
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = type("Handler", (_Handler,), {"answers": answers, "asked": []})
        server = _Server(str(path), handler)
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        servers.append(server)
        return path

    yield engine
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def doctor(
    command: Command, only: Only, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., Ran]:
    """The command on a machine that has only this ``DOCKER_HOST``, or none at all."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in (
        "DOCKER_CONTEXT",
        "DOCKER_CONFIG",
        "DOCKER_API_VERSION",
        "DOCKER_TLS_VERIFY",
        "DOCKER_CERT_PATH",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))

    def run(host: str | Path | None, *options: str) -> Ran:
        if host is None:
            monkeypatch.delenv("DOCKER_HOST", raising=False)
        else:
            monkeypatch.setenv("DOCKER_HOST", f"unix://{host}" if isinstance(host, Path) else host)
        only(docker=DockerBackend)
        return command("doctor", *options)

    return run


def line(ran: Ran, name: str) -> str:
    """The line of one check and its fix, if any."""
    lines = ran.out.splitlines()
    for number, text in enumerate(lines):
        if text.split()[1:2] == [name]:
            following = lines[number + 1 : number + 2]
            fix = following[0] if following and following[0].strip().startswith("fix:") else ""
            return f"{text}\n{fix}"
    raise AssertionError(f"no check {name!r} in:\n{ran.out}")


# Which engine


@pytest.mark.parametrize(
    ("answers", "product"),
    [
        (DOCKER, "Docker 20.10.24"),
        (
            engine_like(
                version={"Platform": {"Name": "Docker Desktop 4.34.0 (165256)"}},
                info={"OperatingSystem": "Docker Desktop", "Name": "docker-desktop"},
            ),
            "Docker Desktop 20.10.24",
        ),
        (
            engine_like(info={"Name": "colima", "OperatingSystem": "Ubuntu 24.04 LTS"}),
            "Docker in Colima 20.10.24",
        ),
        (engine_like(info={"Name": "colima-arm"}), "Docker in Colima 20.10.24"),
        (engine_like(info={"Name": "orbstack", "OperatingSystem": "OrbStack"}), "OrbStack 20.10.24"),
        (engine_like(info={"Name": "lima-rancher-desktop"}), "Docker in Rancher Desktop 20.10.24"),
        (
            engine_like(info={"SecurityOptions": ["name=seccomp,profile=builtin", "name=rootless"]}),
            "Docker (rootless) 20.10.24",
        ),
        (
            engine_like(
                version={"Version": "4.3.1", "Components": [{"Name": "Podman Engine", "Version": "4.3.1"}]}
            ),
            "Podman 4.3.1",
        ),
        (
            engine_like(
                version={"Version": "5.2.0", "Components": [{"Name": "Podman Engine"}]},
                info={"SecurityOptions": ["name=seccomp"], "Rootless": True},
            ),
            "Podman (rootless) 5.2.0",
        ),
    ],
)
def test_the_engine_is_recognised_by_what_it_says(
    doctor: Callable[..., Ran], engine: Engine, answers: dict[str, Any], product: str
) -> None:
    path = engine(answers)
    ran = doctor(path)
    assert ran.code == 0
    assert f"  {product} at unix://{path} (from DOCKER_HOST)\n" in ran.out
    assert "docker: healthy, isolation tier container\n" in ran.out


def test_both_version_ranges_are_shown(doctor: Callable[..., Ran], engine: Engine) -> None:
    ran = doctor(engine(DOCKER))
    assert "1.41 in use; engine 1.12 to 1.41, sandboxio 1.41 to 1." in line(ran, "api")


@pytest.mark.parametrize("channel", ["auto", "guest", "exec"])
def test_the_channel_is_shown(
    command: Command, only: Only, engine: Engine, channel: Literal["auto", "guest", "exec"]
) -> None:
    path = engine(DOCKER)
    only(docker=lambda: DockerBackend(host=f"unix://{path}", channel=channel))
    text = line(command("doctor"), "channel")
    assert ("guest" in text, "docker exec" in text) == (channel != "exec", channel != "guest")


def test_nothing_is_created(doctor: Callable[..., Ran], engine: Engine) -> None:
    """The answering engine serves GET only: anything else would be an error here."""
    ran = doctor(engine(DOCKER))
    assert (ran.code, "FAIL" in ran.out) == (0, False)


# What it lacks


@pytest.mark.parametrize(
    ("answers", "name", "words", "fix", "code"),
    [
        (
            engine_like(image=None),
            "image",
            "python:3.12-slim is not there",
            "docker pull python:3.12-slim",
            0,
        ),
        (engine_like(info={"MemoryLimit": False}), "caps", "does not enforce the memory cap", "cgroup v2", 1),
        (
            engine_like(info={"CgroupDriver": "none", "CgroupVersion": "2"}),
            "caps",
            "does not enforce the memory, CPU, process cap",
            "Delegate=",
            1,
        ),
        (engine_like(info={"SwapLimit": False}), "caps", "swap is not counted", "", 0),
        (engine_like(info={"OSType": "windows"}), "containers", "windows containers", "Linux containers", 1),
        (
            engine_like(info={"Runtimes": {"runc": {}, "runsc": {}}}),
            "runtime",
            'gVisor is DockerConfig(runtime="runsc")',
            "",
            0,
        ),
        (engine_like(info=None, refusal=403), "info", "refused GET /info (HTTP 403)", "administrator", 1),
        (engine_like(ping={"Api-Version": "1.24"}), "engine", "too old", "20.10 or newer", 1),
        (
            engine_like(ping={"Api-Version": "3.1"}, version={"ApiVersion": "3.1", "MinAPIVersion": "3.0"}),
            "engine",
            "too new",
            "Upgrade sandboxio",
            1,
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_fix(
    doctor: Callable[..., Ran],
    engine: Engine,
    answers: dict[str, Any],
    name: str,
    words: str,
    fix: str,
    code: int,
) -> None:
    ran = doctor(engine(answers))
    found = line(ran, name)
    assert words in found
    assert fix in found
    assert ran.code == code
    assert ("FAIL" in found) == (code == 1)


def test_podman_names_runtimes_that_are_not_there(doctor: Callable[..., Ran], engine: Engine) -> None:
    """As Podman 4.3.1 on Debian 12 answers: five runtimes of which one is installed."""
    runtimes = {name: {"path": f"/usr/bin/{name}"} for name in ("crun", "kata", "krun", "runc", "runsc")}
    answers = engine_like(
        ping={"Api-Version": "1.41", "Server": "Libpod/4.3.1 (linux)"},
        version={"Version": "4.3.1", "Platform": {"Name": "linux/amd64/debian-12"}, "Components": PODMAN},
        info={"Runtimes": runtimes, "Rootless": False, "OperatingSystem": "debian", "CgroupVersion": "1"},
        image=None,
    )
    ran = doctor(engine(answers))
    assert "  Podman 4.3.1 at unix://" in ran.out
    assert "runc by default\n" in line(ran, "runtime")
    assert "gVisor" not in ran.out
    assert "fix: podman pull python:3.12-slim" in line(ran, "image")


PODMAN = [
    {"Name": "Podman Engine", "Version": "4.3.1", "Details": {"APIVersion": "4.3.1", "Os": "linux"}},
    {"Name": "Conmon", "Version": "conmon version 2.1.6, commit: unknown"},
    {"Name": "OCI Runtime (runc)", "Version": "runc version 1.1.5+ds1"},
]


# Where it is


def test_without_docker_every_place_is_named(
    doctor: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    places = [str(tmp_path / "nothing.sock"), str(tmp_path / "run/docker.sock")]
    monkeypatch.setattr(endpoint, "known_sockets", lambda environ, home: places)
    ran = doctor(None)
    assert ran.code == 1
    assert "No Docker engine found" in ran.out
    for place in places:
        assert f"{place}: there is no such socket" in ran.out
    assert "fix: Start the engine (`sudo systemctl start docker`" in ran.out
    assert "Traceback" not in ran.out + ran.err


def test_podman_only(
    doctor: Callable[..., Ran], engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nothing is set; the user's Podman socket is found where Podman puts it."""
    path = tmp_path / "run/podman/podman.sock"
    known = endpoint.known_sockets
    monkeypatch.setattr(
        endpoint,
        "known_sockets",
        lambda environ, home: [each for each in known(environ, home) if each.startswith(str(tmp_path))],
    )
    engine(engine_like(version={"Version": "4.3.1", "Components": [{"Name": "Podman Engine"}]}), path)
    ran = doctor(None)
    assert ran.code == 0
    assert f"Podman 4.3.1 at unix://{path} (from the list of known sockets)" in ran.out


def stopped(folder: Path) -> Path:
    """A socket that nobody listens at, as a daemon that ended leaves it."""
    path = folder / "stopped.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    return path


def a_file(folder: Path) -> Path:
    path = folder / "file.sock"
    path.touch()
    return path


@pytest.mark.parametrize(
    ("host", "words"),
    [
        (lambda folder: folder / "missing.sock", "there is no such socket"),
        (stopped, "connection refused"),
        (a_file, "it is not a socket"),
        (lambda folder: "tcp://127.0.0.1:1", "connection refused"),
        (lambda folder: "ssh://u@h", "ssh:// is not supported"),
        (lambda folder: "npipe:////./pipe/x", "npipe:// is not supported"),
        (lambda folder: "unix://relative", "the socket's path is relative"),
        (lambda folder: "/plain/path", "it has no scheme"),
    ],
)
def test_an_address_that_does_not_answer(
    doctor: Callable[..., Ran], tmp_path: Path, host: Callable[[Path], Path | str], words: str
) -> None:
    ran = doctor(host(tmp_path))
    found = line(ran, "engine")
    assert ran.code == 1
    assert words in found
    assert "fix: " in found
    assert "sandboxio doctor" not in found  # no fix is to run what just ran
    assert "Traceback" not in ran.out + ran.err


def test_a_mute_endpoint_is_given_up_in_seconds(doctor: Callable[..., Ran], tmp_path: Path) -> None:
    path = tmp_path / "mute.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        began = time.monotonic()
        ran = doctor(path)
        assert time.monotonic() - began < 8
    assert ran.code == 1
    assert "no complete answer within 4 s" in ran.out


FORBIDDEN = """
import contextlib, io, os, sys
from sandboxio.cli import main
os.environ["DOCKER_HOST"] = "unix:///nowhere.sock"
with contextlib.redirect_stdout(io.StringIO()):
    main(["doctor"])  # loads what that other user cannot read
os.environ["DOCKER_HOST"] = "unix://" + sys.argv[1]
import sandboxio
from sandboxio_docker import DockerBackend
sandboxio.register("docker", DockerBackend)
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
sys.exit(main(["doctor"]))
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_a_forbidden_socket(engine: Engine, tmp_path: Path) -> None:
    path = engine(DOCKER)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == 0 and str(folder).startswith("/tmp/"):
            folder.chmod(0o755)
    path.chmod(0o660)
    ran = subprocess.run(
        [sys.executable, "-c", FORBIDDEN, str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 1
    found = line(Ran(1, ran.stdout, ran.stderr), "engine")
    assert "permission denied" in found
    assert "fix: Add your user to the group `docker` (`sudo usermod -aG docker $USER`" in found
    assert "Traceback" not in ran.stdout + ran.stderr


@pytest.mark.engine
def test_the_real_engine(command: Command, only: Only) -> None:
    only(docker=DockerBackend)
    payload = command("doctor", "--json").payload
    (docker,) = payload["backends"]
    checks = {check["name"]: check for check in docker["checks"]}
    assert checks["engine"]["ok"] is True
    assert checks["api"]["ok"] is True
    assert docker["versions"]["httpx"]

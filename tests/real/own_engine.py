"""A Docker engine of the tests' own that may be stopped, killed and started again, with runtimes that lie.

It runs in a network of its own, so it takes nobody's bridge away; its containers have no network but
loopback. Its Unix socket is an ordinary file, so the tests reach it all the same.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from scripts import engine_api
from scripts.engine import Problem

START_SECONDS = 60.0
STOP_SECONDS = 30.0
POSING = "runsc"
"""A runtime of this engine that bears gVisor's name and is the engine's usual one."""


class OwnEngine:
    """One engine in the folder ``root``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.host = f"unix://{root}/engine.sock"
        self._pid = 0
        posing = {POSING: {"path": shutil.which("runc") or "/usr/sbin/runc"}}
        (root / "daemon.json").write_text(json.dumps({"runtimes": posing}))

    def start(self) -> None:
        """Start it and return when it answers."""
        dockerd = [
            "dockerd",
            f"--config-file={self.root}/daemon.json",
            f"--host={self.host}",
            f"--data-root={self.root}/data",
            f"--exec-root={self.root}/exec",
            f"--pidfile={self.root}/pid",
            "--bridge=none",
            "--iptables=false",
            "--shutdown-timeout=1",
        ]
        # A test may start it again: as a child of a shell that has ended, it is no child of that test.
        script = 'log=$1; shift; "$@" </dev/null >>"$log" 2>&1 & echo $!'
        words = ["sh", "-c", script, "sh", f"{self.root}/log", "setsid", "unshare", "--net", "--", *dockerd]
        told = subprocess.run(words, capture_output=True, check=True)
        self._pid = int(told.stdout)
        deadline = time.monotonic() + START_SECONDS
        while (problem := engine_api.engine_problem(self.host)) is not None:
            if not self.running or time.monotonic() > deadline:
                said = (self.root / "log").read_text(errors="replace")[-600:]
                raise Problem(f"the engine of the tests did not start: {problem}: {said}")
            time.sleep(0.05)

    @property
    def running(self) -> bool:
        """True until its process has ended."""
        return _lives(self._pid)

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Send it a signal and return when it has gone, and its containerd with it."""
        if not self.running:
            return
        os.kill(self._pid, how)
        deadline = time.monotonic() + STOP_SECONDS
        while self.running:
            if time.monotonic() > deadline:
                os.kill(self._pid, signal.SIGKILL)
            time.sleep(0.02)
        file = self.root / "exec/containerd/containerd.pid"
        containerd = int(file.read_text()) if file.exists() else 0
        while _lives(containerd):  # it follows an engine that was killed, but not at once
            os.kill(containerd, signal.SIGKILL)
            time.sleep(0.02)
        for name in ("engine.sock", "pid", "exec/containerd/containerd.pid"):
            (self.root / name).unlink(missing_ok=True)

    def ask(self, method: str, path: str, body: object = None, timeout: float = 60.0) -> bytes:
        """One request that has to succeed."""
        status, answer = engine_api.request(method, path, host=self.host, body=body, timeout=timeout)
        assert status < 400, f"{method} {path}: {status} {answer[:300]!r}"
        return answer

    def held(self) -> list[str]:
        """Names and states of all containers that it has, running or not.

        Each is asked for by its id: Docker 20.10, killed and started again, was seen to list one unnamed.
        """
        listed = json.loads(self.ask("GET", "/containers/json?all=1"))
        return [
            f"{each['Names']} {each['Id'][:12]} {each['State']}: {each['Status']}"
            for each in listed
            if engine_api.request("GET", f"/containers/{each['Id']}/json", host=self.host)[0] != 404
        ]

    def copy_image(self, name: str) -> None:
        """Take an image over from the engine of DOCKER_HOST, by way of a file."""
        saved = self.root / "image.tar"
        status, content = engine_api.request("GET", f"/images/{quote(name)}/get", timeout=120.0)
        assert status == 200, content[:300]
        saved.write_bytes(content)
        with saved.open("rb") as file:
            pieces = iter(lambda: file.read(1 << 20), b"")
            status, answer = engine_api.request(
                "POST", "/images/load?quiet=1", host=self.host, stream=pieces, timeout=120.0
            )
        assert status == 200, answer[:300]
        saved.unlink()


def _lives(pid: int) -> bool:
    """True for a process that is there and no zombie."""
    try:
        state = Path("/proc", str(pid), "stat").read_bytes().rpartition(b")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != b"Z"


@contextmanager
def own_engine(image: str) -> Generator[OwnEngine]:
    """Raises ``Problem`` where such an engine cannot run."""
    if os.geteuid() != 0 or not shutil.which("dockerd") or not shutil.which("unshare"):
        raise Problem("an engine of the tests' own needs root, dockerd and unshare on this machine.")
    # short: the path of a Unix socket has at most 107 bytes
    root = Path(tempfile.mkdtemp(prefix="sbx-own-", dir="/tmp"))
    engine = OwnEngine(root)
    try:
        engine.start()
        engine.copy_image(image)
        yield engine
    finally:
        engine.end()
        _unmount_below(root)
        shutil.rmtree(root)


def _unmount_below(root: Path) -> None:
    """What an engine that was killed has left mounted."""
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for mount in sorted((each for each in mounts if each.startswith(f"{root}/")), reverse=True):
        subprocess.run(["umount", "--lazy", mount], check=True)

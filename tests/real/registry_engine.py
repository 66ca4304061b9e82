"""A Docker engine with a small disk, in a network of its own, for pulls that have to fail.

It has to be apart: a full disk would stop everybody, and an engine of the usual kind tries a broken pull
again for a minute. Its loopback is not this machine's; a socket that listens there is handed out, and the
test decides what answers. It runs no container.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from scripts.engine import Problem
from scripts.engine_api import engine_problem

DISK_MB = 48
START_SECONDS = 60.0
STOP_SECONDS = 30.0

# Runs in the new network: brings its loopback up, hands a listening socket out, becomes the engine, and
# ends with whoever started it (prctl 1, PR_SET_PDEATHSIG; SIOCSIFFLAGS of netdevice(7)).
_INSIDE = """
import ctypes, fcntl, os, signal, socket, struct, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
with socket.socket() as any_socket:
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sH14x", b"lo", 1))
entrance = socket.create_server(("127.0.0.1", 0))
outside = socket.socket(fileno=int(sys.argv[1]))
socket.send_fds(outside, [b"!"], [entrance.fileno()])
outside.close()
os.execvp(sys.argv[2], sys.argv[2:])
"""


@dataclass(frozen=True)
class SmallEngine:
    """``host`` is where it answers; ``entrance`` listens on its loopback, dup() it for each use."""

    host: str
    entrance: socket.socket
    process: subprocess.Popen[bytes]


@contextmanager
def small_engine() -> Generator[SmallEngine]:
    """Raises ``Problem`` where such an engine cannot run."""
    if os.geteuid() != 0 or not shutil.which("dockerd") or not shutil.which("unshare"):
        raise Problem("an engine with a small disk needs root, dockerd and unshare on this machine.")
    # short: the path of a Unix socket has at most 107 bytes
    root = Path(tempfile.mkdtemp(prefix="sbx-small-", dir="/tmp"))
    disk = root / "data"
    disk.mkdir()
    try:
        size = f"size={DISK_MB}m"
        mount = ["mount", "-t", "tmpfs", "-o", size, "sandboxio-test", str(disk)]
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Problem(f"no small disk can be mounted: {done.stderr.strip()}")
        try:
            with _running(root) as engine:
                yield engine
        finally:
            subprocess.run(["umount", "--lazy", disk], check=True)
    finally:
        shutil.rmtree(root)


@contextmanager
def _running(root: Path) -> Generator[SmallEngine]:
    host = f"unix://{root}/engine.sock"
    command = [
        "dockerd",
        f"--host={host}",
        f"--data-root={root}/data",
        f"--exec-root={root}/exec",
        f"--pidfile={root}/pid",
        "--bridge=none",  # in its own network it takes nobody's bridge away
        "--iptables=false",
        "--max-download-attempts=1",
        "--containerd-namespace=sandboxio-small",
        "--containerd-plugins-namespace=sandboxio-small-plugins",
    ]
    ours, theirs = socket.socketpair()
    with ours, (root / "log").open("wb") as log:
        with theirs:
            process = subprocess.Popen(
                ["unshare", "--net", sys.executable, "-c", _INSIDE, str(theirs.fileno()), *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
            )
        try:
            _, (number, *_), _, _ = socket.recv_fds(ours, 1, 1)
            with socket.socket(fileno=number) as entrance:
                _wait_for(host, process, root / "log")
                yield SmallEngine(host, entrance, process)
        finally:
            _end(process)


def _wait_for(host: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while (problem := engine_problem(host)) is not None:
        if process.poll() is not None or time.monotonic() > deadline:
            raise Problem(f"the small engine did not start: {problem}: {log.read_text()[-500:]}")
        time.sleep(0.05)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

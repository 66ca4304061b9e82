"""Bring up what the tests need: a Docker engine and an image with Python.

    python3 -m scripts.engine up      # prints the variables that tests and `sandboxio` then need
    python3 -m scripts.engine down    # stops the engine, if `up` started it
    python3 -m scripts.engine status

An engine that answers is used as it is. Otherwise, on Debian and its like and as root, the engine is
installed from Debian's packages and started by hand; elsewhere one sentence says what to do. The image
is put together from Debian's packages too: no image registry is asked for anything.

A second `up` finds everything in place. Two at once wait for each other.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from scripts.engine_api import engine_problem, has_image, request, usual_hosts

BUILT_IMAGE = "sandboxio-test:bookworm"
"""Debian 12 with the Python, the process tools and the curl that tests use inside a sandbox."""

PULLED_IMAGE = "python:3.12-slim"
"""The library's default image, used when the engine has it already."""

IMAGE_PACKAGES = "python3,procps,curl,ca-certificates"
START_SECONDS = 60.0
STOP_SECONDS = 30.0


class Problem(Exception):
    """One sentence for whoever ran the script."""


@dataclass(frozen=True)
class Place:
    """Where an engine of ours lives on the disk, and the socket it listens on."""

    root: Path
    socket: Path
    words: tuple[str, ...] = ()
    """More of `dockerd`'s options. Never --bridge=none: it removes docker0, which is another engine's."""

    @property
    def host(self) -> str:
        return f"unix://{self.socket}"

    @property
    def pidfile(self) -> Path:
        return self.root / "dockerd.pid"

    @property
    def log(self) -> Path:
        return self.root / "dockerd.log"

    def command(self) -> list[str]:
        return [
            "dockerd",
            f"--host={self.host}",
            f"--data-root={self.root / 'data'}",
            f"--exec-root={self.root / 'exec'}",
            f"--pidfile={self.pidfile}",
            *self.words,
        ]

    def pid(self) -> int | None:
        """The process that `up` started here, if it still runs."""
        return running(self.pidfile, f"--pidfile={self.pidfile}")


def usual_place() -> Place:
    home = "/var/lib/sandboxio-engine" if os.geteuid() == 0 else str(Path.home() / ".cache/sandboxio")
    return Place(Path(home), Path("/var/run/docker.sock"))


def running(pidfile: Path, word: str) -> int | None:
    """The process that `pidfile` names, if `word` is on its command line: numbers are given out again."""
    try:
        pid = int(pidfile.read_text())
        words = Path("/proc", str(pid), "cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return None
    return pid if word.encode() in words else None


def say(text: str) -> None:
    """Progress goes to stderr: stdout is for the shell."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def alone(root: Path) -> Iterator[None]:
    """Hold the lock of the folder `root`, so that two runs do not install or build the same thing at once."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        lock = (root / "lock").open("w")
    except OSError as error:
        raise Problem(f"cannot write to {root}: {error.strerror}") from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


# Packages


def is_debian() -> bool:
    try:
        release = Path("/etc/os-release").read_text()
    except OSError:
        return False
    fields = dict(line.split("=", 1) for line in release.splitlines() if "=" in line)
    kinds = f"{fields.get('ID', '')} {fields.get('ID_LIKE', '')}".replace('"', "").split()
    return bool({"debian", "ubuntu"} & set(kinds))


def require(program: str, package: str) -> bool:
    """Install `package` unless `program` is there; True if it was installed now."""
    if shutil.which(program):
        return False
    say(f"Installing {package} ...")
    apt_get("update")
    apt_get("install", "-y", "-q", package)
    if not shutil.which(program):
        raise Problem(f"the package {package} was installed but brought no {program}.")
    return True


def apt_get(*words: str, cwd: Path | None = None) -> None:
    """Run it alone: two that refresh the lists at once do not wait for each other, whatever the timeout."""
    quiet = dict(os.environ, DEBIAN_FRONTEND="noninteractive", NEEDRESTART_SUSPEND="1")
    with alone(Path.home() / ".cache/sandboxio/apt"):
        run_quietly(["apt-get", "-o", "DPkg::Lock::Timeout=300", *words], env=quiet, cwd=cwd)


def run_quietly(command: list[str], env: dict[str, str] | None = None, cwd: Path | None = None) -> str:
    """Run quietly; if the command fails, show what it said."""
    done = subprocess.run(
        command,
        env=env,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        say(done.stdout)
        raise Problem(f"`{shlex.join(command)}` failed with exit code {done.returncode}.")
    return done.stdout


# The engine


def find_engine() -> tuple[str | None, list[str]]:
    """The host of an engine that answers, or None and why each candidate does not."""
    named = os.environ.get("DOCKER_HOST")
    problems: list[str] = []
    for host in [named] if named else usual_hosts():
        problem = engine_problem(host)
        if problem is None:
            return host, []
        problems.append(problem)
    return None, problems


def start_engine(place: Place) -> None:
    if os.geteuid() != 0 or not is_debian():
        raise Problem(
            "No Docker engine answers. Start Docker (or Docker Desktop, colima, Podman), or set DOCKER_HOST."
            " On Debian or Ubuntu, run this as root and it installs an engine by itself."
        )
    installed = require("dockerd", "docker.io")
    if installed and _dockerd_runs():  # where services are managed, the package starts it
        problem = wait_for(place.host, START_SECONDS)
        if problem is not None:
            raise Problem(f"the engine of the package docker.io does not work: {problem}.")
        return
    launch(place)


def launch(place: Place) -> None:
    """Start `dockerd` at `place` and return when it answers."""
    mount = shutil.which("cgroupfs-mount")
    if mount and not os.path.ismount("/sys/fs/cgroup"):
        run_quietly([mount])
    say(f"Starting a Docker engine in {place.root} ...")
    place.socket.parent.mkdir(parents=True, exist_ok=True)
    with place.log.open("wb") as log:
        engine = subprocess.Popen(
            place.command(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # it stays when the terminal or the make run goes
        )
    problem = wait_for(place.host, START_SECONDS, engine)
    if problem is not None:
        say("\n".join(place.log.read_text(errors="replace").splitlines()[-20:]))
        raise Problem(f"the engine did not start ({problem}); its log is {place.log}.")


def _dockerd_runs() -> bool:
    for comm in Path("/proc").glob("[0-9]*/comm"):
        try:
            if comm.read_text().strip() == "dockerd":
                return True
        except OSError:
            continue  # it ended meanwhile
    return False


def wait_for(host: str, seconds: float, engine: subprocess.Popen[bytes] | None = None) -> str | None:
    """None as soon as an engine answers at `host`, otherwise the last problem."""
    deadline = time.monotonic() + seconds
    while (problem := engine_problem(host)) is not None:
        if time.monotonic() >= deadline or (engine is not None and engine.poll() is not None):
            return problem
        time.sleep(0.1)
    return None


def stop_engine(place: Place) -> None:
    pid = place.pid()
    if pid is None:
        say(f"No engine that this script started runs in {place.root}.")
        return
    say(f"Stopping the engine in {place.root} (process {pid}) ...")
    end(pid, place.pid)


def end(pid: int, still: Callable[[], int | None]) -> None:
    """Ask process `pid` to end, and return when `still` names it no more."""
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_SECONDS
    while still() == pid and time.monotonic() < deadline:
        time.sleep(0.1)
    if still() == pid:
        raise Problem(f"process {pid} did not end within {STOP_SECONDS:.0f} s.")


# The image


def find_image(host: str) -> str | None:
    named = os.environ.get("SBX_TEST_IMAGE")
    if named and not has_image(named, host):
        raise Problem(f"SBX_TEST_IMAGE names {named}, which the engine at {host} does not have.")
    candidates = [named] if named else [BUILT_IMAGE, PULLED_IMAGE]
    return next((image for image in candidates if has_image(image, host)), None)


def build_image(host: str) -> str:
    if os.geteuid() != 0 or not is_debian():
        raise Problem(
            f"The engine at {host} has no image for the tests: run `docker pull {PULLED_IMAGE}`,"
            " or set SBX_TEST_IMAGE to an image with python3 that it has."
        )
    debootstrap(BUILT_IMAGE, "bookworm", IMAGE_PACKAGES, host)
    return BUILT_IMAGE


def debootstrap(image: str, suite: str, packages: str, host: str) -> None:
    """Make `image` of a Debian release and some of its packages, divided by commas."""
    require("debootstrap", "debootstrap")
    say(f"Building the image {image} from Debian's packages (a minute or two) ...")
    with tempfile.TemporaryDirectory(prefix="sandboxio-image-") as folder:
        tree = Path(folder) / "tree"
        options = ["--variant=minbase", f"--include={packages}"]
        run_quietly(["debootstrap", *options, suite, str(tree), *_debian_mirror()])
        for waste in ("var/cache/apt/archives", "var/lib/apt/lists"):
            shutil.rmtree(tree / waste, ignore_errors=True)
        import_tree(tree, image, host)


def _debian_mirror() -> list[str]:
    """The mirror that this machine takes its own Debian packages from, if it does."""
    form = "$(ORIGIN) $(REPO_URI)"
    lines = run_quietly(["apt-get", "indextargets", "--format", form, "Created-By: Packages"])
    sites = [line.split()[1] for line in lines.splitlines() if line.startswith("Debian ")]
    return [site for site in sites if "security" not in site][:1]


def import_tree(tree: Path, image: str, host: str) -> None:
    """Make `image` of a folder that is a whole root file system."""
    name, _, tag = image.partition(":")
    path = f"/images/create?fromSrc=-&repo={name}&tag={tag}"
    command = ["tar", "--numeric-owner", "-C", str(tree), "-c", "."]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as tar:
        assert tar.stdout is not None
        blocks = iter(lambda: tar.stdout.read(1 << 20), b"")  # type: ignore[union-attr]
        status, answer = request("POST", path, host=host, stream=blocks, timeout=300.0)
    events = [json.loads(line) for line in answer.splitlines() if line.strip()]
    errors = [event["error"] for event in events if "error" in event]  # inside a 200, too
    if status != 200 or errors or tar.returncode:
        raise Problem(f"importing {image} failed: {errors or answer[:500]!r}")


# Verbs


def ready(place: Place) -> tuple[str, str]:
    """The host of an engine that answers and an image that it has, both brought about if need be."""
    with alone(place.root):
        host, problems = find_engine()
        if host is None:
            if os.environ.get("DOCKER_HOST"):
                raise Problem(f"DOCKER_HOST is set, but {problems[0]}.")
            start_engine(place)
            host = place.host
        return host, find_image(host) or build_image(host)


def up(place: Place) -> None:
    print(exports(*ready(place)))


def exports(host: str, image: str) -> str:
    """A line for the shell."""
    return f"export DOCKER_HOST={shlex.quote(host)} SBX_TEST_IMAGE={shlex.quote(image)}"


def status(place: Place) -> None:
    host, problems = find_engine()
    print("\n".join(problems) if host is None else f"an engine answers at {host}")
    if host is not None:
        print(f"image for the tests: {find_image(host) or 'none'}")
    print(f"started by this script: {'process ' + str(place.pid()) if place.pid() else 'no'}")


def main() -> int:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="scripts.engine", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("verb", choices=["up", "down", "status"])
    usual = usual_place()
    parser.add_argument("--root", type=Path, default=usual.root, help="folder for an engine of ours")
    parser.add_argument("--socket", type=Path, default=usual.socket)
    options = parser.parse_args()
    place = Place(options.root.absolute(), options.socket)
    try:
        {"up": up, "down": stop_engine, "status": status}[options.verb](place)
    except Problem as problem:
        say(str(problem))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

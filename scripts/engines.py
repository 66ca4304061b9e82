"""Bring up further engines beside the first one, so that tests can run on each.

    python3 -m scripts.engines up docker26      # prints the variables that tests then need
    python3 -m scripts.engines down             # takes them all down; with a name, one of them
    python3 -m scripts.engines status

    docker20         Docker 20.10, or whatever engine `scripts.engine up` finds or starts: the first one
    docker26         Docker 26.1 from Debian 13, in a container of the first engine
    podman           Debian's Podman and its Docker-compatible service
    docker20-runsc   a second engine of the first one's kind, with gVisor as the runtime `runsc`

Each has its own socket in /run/sandboxio-engines, its own folder in /var/lib/sandboxio-engines and its
own bridge, and gets the test image from the first engine. No registry is asked for anything. `down` ends
processes, containers, mounts and bridges; the folder stays, so that the next `up` takes seconds. The first
engine is `scripts.engine`'s: `down` leaves it alone, except that of docker20 by name.
"""

from __future__ import annotations

import argparse
import ipaddress
import json
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

from scripts import engine, engine_api
from scripts.engine import Place, Problem, say

DATA = Path("/var/lib/sandboxio-engines")
SOCKETS = Path("/run/sandboxio-engines")
FIRST = "docker20"


class Further(ABC):
    """An engine beside the first one."""

    name: ClassVar[str]
    about: ClassVar[str]
    subnet: ClassVar[str]
    """What its bridge has. Only this machine and the engine's containers ever see it."""

    @property
    def root(self) -> Path:
        return DATA / self.name

    @property
    def socket(self) -> Path:
        return SOCKETS / f"{self.name}.sock"

    @property
    def host(self) -> str:
        return f"unix://{self.socket}"

    @property
    def bridge(self) -> str:
        return f"sbx-{self.name}"[:15]  # as long as a Linux interface's name may be

    @property
    def gateway(self) -> str:
        return str(ipaddress.ip_network(self.subnet)[1])

    @abstractmethod
    def start(self, first: str) -> None:
        """Start it and return when it answers. ``first`` is the host of the first engine."""

    @abstractmethod
    def stop(self) -> None:
        """End it with all that it has, also what an interrupted `up` or `down` left."""

    @abstractmethod
    def state(self) -> str:
        """How it runs, or "not running"."""

    def add_bridge(self) -> None:
        """A bridge of its own: engines would fight for docker0, its firewall rules, and its existence."""
        engine.require("ip", "iproute2")
        if not Path("/sys/class/net", self.bridge).exists():
            engine.run_quietly(["ip", "link", "add", self.bridge, "type", "bridge"])
        prefix = ipaddress.ip_network(self.subnet).prefixlen
        engine.run_quietly(["ip", "address", "replace", f"{self.gateway}/{prefix}", "dev", self.bridge])
        engine.run_quietly(["ip", "link", "set", self.bridge, "up"])

    def remove_bridge(self) -> None:
        if Path("/sys/class/net", self.bridge).exists():
            engine.run_quietly(["ip", "link", "delete", self.bridge])


class SecondDocker(Further):
    """`dockerd` of this machine once more, with gVisor.

    gVisor needs neither KVM nor a control group so; its containers have no network.
    """

    name = "docker20-runsc"
    about = "Docker of this machine with gVisor"
    subnet = "10.217.27.0/24"
    program: ClassVar = "/usr/bin/runsc"
    options: ClassVar = ["--platform=ptrace", "--network=none", "--ignore-cgroups"]

    @cached_property
    def place(self) -> Place:
        words = (
            f"--config-file={self.root / 'daemon.json'}",
            f"--bridge={self.bridge}",
            "--iptables=false",
            "--ip6tables=false",
            "--containerd-namespace=sandboxio-runsc",  # where both use the containerd of the machine
            "--containerd-plugins-namespace=sandboxio-runsc-plugins",
        )
        return Place(self.root, self.socket, words)

    def settings(self) -> str:
        """daemon.json."""
        return json.dumps({"runtimes": {"runsc": {"path": self.program, "runtimeArgs": self.options}}})

    def start(self, first: str) -> None:
        engine.require("dockerd", "docker.io")
        engine.require(self.program, "runsc")
        self.add_bridge()
        (self.root / "daemon.json").write_text(self.settings())
        engine.launch(self.place)

    def stop(self) -> None:
        remove_containers(self.host)
        if (pid := self.place.pid()) is not None:
            engine.end(pid, self.place.pid)
        self.remove_bridge()

    def state(self) -> str:
        pid = self.place.pid()
        return "not running" if pid is None else f"process {pid}"


class DockerInDocker(Further):
    """A newer Docker than this machine's, in a container of the first engine.

    The container has the machine's network, so that tests reach the inner bridge, and everything else of
    its own: whatever runs in the inner engine ends with it. In a plain chroot, inner containers saw the
    machine's /proc. CAP_SYS_RESOURCE is left out since some virtual machines have none to give.
    """

    name = "docker26"
    about = "Docker 26.1 of Debian 13"
    subnet = "10.217.26.0/24"
    image: ClassVar = "sandboxio-engine:docker26"
    container: ClassVar = "sandboxio-engine-docker26"
    log: ClassVar = "/var/lib/docker/dockerd.log"
    # A shell in front collects the zombies that fall to process 1, and passes the signal to end on.
    entry: ClassVar = 'log=$1; shift; "$@" >"$log" 2>&1 & trap "kill -TERM $!" TERM; wait; wait'

    def command(self) -> list[str]:
        daemon = [
            "dockerd",
            f"--host={self.host}",
            "--data-root=/var/lib/docker",
            f"--bridge={self.bridge}",
            "--iptables=false",
            "--ip6tables=false",
            "--ip-forward=false",
        ]
        return ["/bin/bash", "-c", self.entry, "engine", self.log, *daemon]

    def body(self) -> dict[str, object]:
        """Of ``POST /containers/create``."""
        binds = ["/sys/fs/cgroup:/sys/fs/cgroup", f"{self.root / 'data'}:/var/lib/docker"]
        return {
            "Image": self.image,
            "Cmd": self.command(),
            "HostConfig": {
                "NetworkMode": "host",
                "CapAdd": ["ALL"],
                "CapDrop": ["SYS_RESOURCE"],
                "SecurityOpt": ["seccomp=unconfined", "apparmor=unconfined"],
                "MaskedPaths": [],  # the inner engine sets the switches of its containers' networks
                "ReadonlyPaths": [],
                "Binds": [*binds, f"{SOCKETS}:{SOCKETS}"],
            },
        }

    def start(self, first: str) -> None:
        if not engine_api.has_image(self.image, first):
            engine.debootstrap(self.image, "trixie", "docker.io,iptables,ca-certificates", first)
        self.add_bridge()
        (self.root / "data").mkdir(exist_ok=True)
        self.socket.unlink(missing_ok=True)
        say(f"Starting {self.about} in a container of the engine at {first} ...")
        ask(first, "DELETE", f"/containers/{self.container}?force=1&v=1", fine=(404,))
        ask(first, "POST", f"/containers/create?name={self.container}", self.body())
        ask(first, "POST", f"/containers/{self.container}/start")
        problem = engine.wait_for(self.host, engine.START_SECONDS)
        if problem is not None:
            log = self.root / "data" / Path(self.log).name
            said = log.read_text(errors="replace") if log.exists() else ""
            say("\n".join(said.splitlines()[-20:]))
            raise Problem(f"{self.about} did not start ({problem}); its log is {log}.")

    def stop(self) -> None:
        remove_containers(self.host)
        first = find_first()
        if first is not None:
            ask(first, "POST", f"/containers/{self.container}/stop?t=20", fine=(304, 404))
            ask(first, "DELETE", f"/containers/{self.container}?force=1&v=1", fine=(404,))
        self.socket.unlink(missing_ok=True)
        self.remove_bridge()

    def state(self) -> str:
        return "not running" if engine_api.engine_problem(self.host) else f"container {self.container}"


class Podman(Further):
    """The Docker-compatible service of Podman, with its own storage, network and settings."""

    name = "podman"
    about = "Podman"
    subnet = "10.217.43.0/24"

    @property
    def pidfile(self) -> Path:
        return self.root / "podman.pid"

    def command(self) -> list[str]:
        folders = {"root": "storage", "runroot": "run", "tmpdir": "tmp", "network-config-dir": "networks"}
        options = [f"--{option}={self.root / folder}" for option, folder in folders.items()]
        return ["podman", *options, "system", "service", "--time=0", self.host]

    def settings(self) -> str:
        """containers.conf. crun refuses mixed control groups; runc, limits above those of this process."""
        kinds = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}
        most = {kind: resource.getrlimit(number)[1] for kind, number in kinds.items()}
        limits = {kind: min(hard, 32768) if hard > 0 else 32768 for kind, hard in most.items()}
        words = ", ".join(f'"{kind}={limit}:{limit}"' for kind, limit in limits.items())
        return (
            "[containers]\n"
            f"default_ulimits = [{words}]\n"
            "[engine]\n"
            'cgroup_manager = "cgroupfs"\n'
            'events_logger = "file"\n'
            'runtime = "runc"\n'
            'lock_type = "file"\n'
            "[network]\n"
            'network_backend = "cni"\n'
        )

    def network(self) -> str:
        """The default network: a bridge and addresses, and no firewall rules that somebody has to remove."""
        addresses = {
            "type": "host-local",
            "routes": [{"dst": "0.0.0.0/0"}],
            "ranges": [[{"subnet": self.subnet, "gateway": self.gateway}]],
            "dataDir": str(self.root / "tmp" / "addresses"),
        }
        plugin = {"type": "bridge", "bridge": self.bridge, "isGateway": True, "ipam": addresses}
        return json.dumps({"cniVersion": "0.4.0", "name": "podman", "plugins": [plugin]})

    def pid(self) -> int | None:
        return engine.running(self.pidfile, f"--root={self.root / 'storage'}")

    def start(self, first: str) -> None:
        engine.require("runc", "runc")
        engine.require("podman", "podman")
        engine.require("/usr/lib/cni/bridge", "containernetworking-plugins")
        self.add_bridge()
        (self.root / "networks").mkdir(exist_ok=True)
        (self.root / "networks" / "87-podman-bridge.conflist").write_text(self.network())
        (self.root / "containers.conf").write_text(self.settings())
        self.socket.unlink(missing_ok=True)
        say(f"Starting {self.about} in {self.root} ...")
        with (self.root / "podman.log").open("wb") as log:
            service = subprocess.Popen(
                self.command(),
                cwd=self.root,  # conmon leaves a file "oom" in its folder when something ran out of memory
                env=os.environ | {"CONTAINERS_CONF": str(self.root / "containers.conf")},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.pidfile.write_text(str(service.pid))
        problem = engine.wait_for(self.host, engine.START_SECONDS, service)
        if problem is not None:
            say("\n".join((self.root / "podman.log").read_text(errors="replace").splitlines()[-20:]))
            raise Problem(f"{self.about} did not start ({problem}); its log is {self.root / 'podman.log'}.")

    def stop(self) -> None:
        remove_containers(self.host)
        for watcher in processes("conmon", f"{self.root}/"):  # each exec has one for five minutes more
            with suppress(ProcessLookupError):
                os.kill(watcher, signal.SIGKILL)
        if (pid := self.pid()) is not None:
            engine.end(pid, self.pid)
        self.socket.unlink(missing_ok=True)
        for folder in mounts_below(self.root):
            engine.run_quietly(["umount", "--lazy", folder])
        shutil.rmtree(self.root / "tmp", ignore_errors=True)
        self.remove_bridge()

    def state(self) -> str:
        pid = self.pid()
        return "not running" if pid is None else f"process {pid}"


FURTHER: dict[str, Further] = {each.name: each for each in (DockerInDocker(), Podman(), SecondDocker())}
NAMES = (FIRST, *FURTHER)


# What they share


def ask(
    host: str, method: str, path: str, body: object = None, *, fine: tuple[int, ...] = (), seconds: float = 60
) -> bytes:
    """One request that has to succeed, or to be refused with one of the codes in `fine`."""
    try:
        status, answer = engine_api.request(method, path, host=host, body=body, timeout=seconds)
    except OSError as error:
        raise Problem(f"the engine at {host} does not answer {method} {path}: {error}") from error
    if status >= 300 and status not in fine:
        raise Problem(f"the engine at {host} refuses {method} {path}: {status} {answer[:300]!r}")
    return answer


def remove_containers(host: str) -> None:
    """All of an engine of ours. What cannot be asked any more is taken down from outside."""
    if engine_api.engine_problem(host) is not None:
        return
    for found in engine_api.containers({}, host):
        ask(host, "DELETE", f"/containers/{found['Id']}?force=1&v=1", fine=(404, 409))


def processes(program: str, text: str) -> list[int]:
    """Processes of a program that have `text` somewhere on their command line."""
    found: list[int] = []
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = line.read_bytes()
        except OSError:
            continue  # it ended meanwhile
        if text.encode() in words and Path(words.split(b"\0")[0].decode()).name == program:
            found.append(int(line.parent.name))
    return found


def mounts_below(folder: Path) -> list[str]:
    """Mount points in `folder`, innermost first."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    inside = [point for point in points if Path(point).is_relative_to(folder)]
    return sorted(inside, key=len, reverse=True)


def copy_image(image: str, source: str, target: str) -> None:
    """Make an image of the engine `source` known on `target` under the same name."""
    if engine_api.has_image(image, target):
        return
    say(f"Copying the image {image} ...")
    archive = ask(source, "GET", f"/images/{quote(image)}/get", seconds=300)
    status, answer = engine_api.request("POST", "/images/load", host=target, stream=[archive], timeout=300.0)
    if status != 200 or not engine_api.has_image(image, target):
        raise Problem(f"the engine at {target} did not take the image {image}: {status} {answer[-300:]!r}")


def is_first(host: str | None) -> bool:
    """False for the engines of this script: what a shell has after `up` is not the first engine."""
    return host is not None and not host.startswith(f"unix://{SOCKETS}/")


def forget_own() -> None:
    """From here on the variables that may be left from an `up` do not hide the first engine."""
    if not is_first(os.environ.get("DOCKER_HOST")):
        os.environ.pop("DOCKER_HOST", None)


def is_up(name: str) -> bool:
    return engine_api.engine_problem(FURTHER[name].host) is None


def find_first() -> str | None:
    return engine.find_engine()[0]


# Verbs


def problem() -> str | None:
    """Why none but the first engine can be brought up here, or None."""
    if os.geteuid() == 0 and engine.is_debian():
        return None
    return "Further engines need root, and Debian or Ubuntu, whose packages they are made of."


def up(name: str) -> tuple[str, str]:
    """The host and the test image of an engine that now runs."""
    if name != FIRST and (why := problem()):
        raise Problem(f"{name} cannot be brought up. {why}")
    forget_own()
    first, image = engine.ready(engine.usual_place())
    if name == FIRST:
        return first, image
    further = FURTHER[name]
    with engine.alone(further.root):
        SOCKETS.mkdir(parents=True, exist_ok=True)
        if not is_up(name):
            further.stop()  # what was broken off
            further.start(first)
        copy_image(image, first, further.host)
    return further.host, image


def down(names: list[str]) -> None:
    forget_own()
    for name in names or list(FURTHER):
        if name == FIRST:
            engine.stop_engine(engine.usual_place())
            continue
        further = FURTHER[name]
        if not further.root.exists():
            continue
        with engine.alone(further.root):
            say(f"Taking {name} down ({further.state()}) ...")
            further.stop()


def status() -> None:
    forget_own()
    print(f"{FIRST:<16} {find_first() or 'not running'}")
    for name, further in FURTHER.items():
        print(f"{name:<16} {f'{further.host} ({further.state()})' if is_up(name) else further.state()}")


def main() -> int:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="scripts.engines", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("up").add_argument("name", choices=NAMES)
    verbs.add_parser("down").add_argument("names", nargs="*", metavar="name", help=", ".join(NAMES))
    verbs.add_parser("status")
    options = parser.parse_args()
    if unknown := set(getattr(options, "names", ())) - set(NAMES):
        parser.error(f"no such engine: {shlex.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    try:
        if options.verb == "up":
            print(engine.exports(*up(options.name)))
        elif options.verb == "down":
            down(options.names)
        else:
            status()
    except Problem as problem:
        say(str(problem))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

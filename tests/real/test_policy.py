"""The walls of a sandbox, seen from inside and from outside."""

from __future__ import annotations

import base64
import errno
import itertools
import json
import socket
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import pytest

from sandboxio import NetworkPolicy, Resources
from sandboxio.errors import CapabilityNotSupported, ConfigurationError, SandboxError
from sandboxio_docker import DockerBackend
from sandboxio_docker.sandbox import DockerSandbox

from .images import ask
from .test_lifecycle import held

pytestmark = pytest.mark.engine


async def test_privileges_seen_from_inside(sandbox: DockerSandbox) -> None:
    """No capability, nothing to be gained by setuid, a system call filter."""
    status = (await sandbox.run(["cat", "/proc/self/status"])).stdout
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(fields[name], 16) == 0, name
    assert fields["NoNewPrivs"] == "1"
    assert fields["Seccomp"] == "2"


async def test_walls_seen_from_outside(sandbox: DockerSandbox) -> None:
    found = await sandbox.native.inspect()
    host: dict[str, Any] = found["HostConfig"]
    assert host["NetworkMode"] == "none"
    # Podman writes out the capabilities that it would have given; what is left inside is the test above
    podman = {"CHOWN", "DAC_OVERRIDE", "KILL", "NET_RAW", "SETGID", "SETUID", "SYS_CHROOT"}
    assert host["CapDrop"] == ["ALL"] or podman <= set(host["CapDrop"])
    assert not host["CapAdd"]
    assert host["PidsLimit"] == 512
    assert (host["Memory"], host["MemorySwap"]) == (512 << 20, 512 << 20)
    assert host["NanoCpus"] == 10**9
    assert not host["Privileged"]
    assert not host["Binds"]
    assert host["LogConfig"]["Type"] == "none"
    assert found["Config"]["Tty"] is False
    assert host["SecurityOpt"] == ["no-new-privileges"]
    for opened in ("CapAdd", "Devices", "Mounts", "VolumesFrom", "PortBindings", "Links", "ExtraHosts"):
        assert not host.get(opened), opened
    assert not found["Mounts"]
    for shared in ("PidMode", "UTSMode", "UsernsMode"):
        assert host[shared] != "host", shared
    assert host["IpcMode"] == "private"


LEAVE = """
import socket, time
began = time.monotonic()
def tried(what):
    try:
        what()
    except OSError:
        return
    print('OPEN')
def connect(family, address):
    s = socket.socket(family, socket.SOCK_STREAM)
    s.settimeout(2)
    s.connect(address)
def datagram(address):
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', address)
tried(lambda: connect(socket.AF_INET, (HOST, PORT)))
tried(lambda: datagram((HOST, PORT)))
tried(lambda: connect(socket.AF_INET6, ('::ffff:' + HOST, PORT)))
tried(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP))
tried(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
tried(lambda: socket.gethostbyname('exfiltration.invalid'))
print(socket.gethostbyname('localhost'), round(time.monotonic() - began) < 5)
"""


async def test_nothing_leaves(sandbox: DockerSandbox) -> None:
    """Case 72: TCP, UDP, IPv6, raw sockets and names, towards this machine's side of the bridge."""
    config = json.loads(ask("GET", "/networks/bridge"))["IPAM"]["Config"][0]
    address = config.get("Gateway") or config["Subnet"].replace(".0.0/16", ".0.1")
    code = LEAVE.replace("HOST", repr(address)).replace("PORT", "9")
    result = await sandbox.run_code(code)
    assert (result.stdout, result.stderr) == ("127.0.0.1 True\n", "")
    devices = (await sandbox.run(["cat", "/proc/net/dev"])).stdout
    assert [line.split(":")[0].strip() for line in devices.splitlines()[2:]] == ["lo"]


KNOCK = """
import socket
def knock(kind, family, host):
    s = socket.socket(family, kind)
    s.settimeout(3)
    try:
        if kind == socket.SOCK_STREAM:
            s.connect((host, PORT))
        else:
            s.sendto(b"x", (host, PORT))
        return "open"
    except OSError:
        return "shut"
for host in HOSTS:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    print(host, knock(socket.SOCK_STREAM, family, host), knock(socket.SOCK_DGRAM, family, host))
"""


def own_addresses() -> list[str]:
    """Every address of this machine but loopback, from the kernel's table of local addresses."""
    lines = Path("/proc/net/fib_trie").read_text().splitlines()
    found = {
        before.split()[-1]
        for before, line in itertools.pairwise(lines)
        if "host LOCAL" in line and not before.split()[-1].startswith("127.")
    }
    for line in Path("/proc/net/if_inet6").read_text().splitlines():
        number, _, _, scope, *_ = line.split()
        if scope == "00":  # global; link-local addresses need an interface beside them
            found.add(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(number)))
    return sorted(found)


def bridge_address() -> str:
    config = json.loads(ask("GET", "/networks/bridge"))["IPAM"]["Config"][0]
    return str(config.get("Gateway") or config["Subnet"].replace(".0.0/16", ".0.1"))


async def test_deny_at_a_canary(backend: DockerBackend) -> None:
    """Case 72: a canary on every address of this machine hears an open sandbox, never a closed one."""
    bridge = bridge_address()
    with (
        socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as canary,
        socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as datagrams,
    ):
        port = canary.getsockname()[1]
        datagrams.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        datagrams.bind(("::", port))
        for heard in (canary, datagrams):
            heard.setblocking(False)
        code = KNOCK.replace("PORT", str(port))

        hosts = [*own_addresses(), bridge, f"::ffff:{bridge}", "::1"]
        async with await backend.create(timeout=60) as closed:
            told = (await closed.run_code(code.replace("HOSTS", repr(hosts)), timeout=55)).stdout
        # Of its own loopback it hears that nobody listens; a datagram there goes nowhere.
        lines = [line for line in told.splitlines() if not line.startswith("::1 ")]
        assert {line.split(" ", 1)[1] for line in lines} == {"shut shut"}, told
        assert len(lines) == len(hosts) - 1
        with pytest.raises(BlockingIOError):
            canary.accept()
        with pytest.raises(BlockingIOError):
            datagrams.recv(1)

        async with await backend.create(network=NetworkPolicy(egress="allow"), timeout=60) as opened:
            told = (await opened.run_code(code.replace("HOSTS", repr([bridge])))).stdout
            assert told == f"{bridge} open open\n"
        canary.accept()[0].close()
        assert datagrams.recv(9) == b"x"


async def test_a_ceiling_of_processes(backend: DockerBackend) -> None:
    """Counted from inside: what is started ends at the ceiling, and the sandbox still serves."""
    count = (
        "import os, signal\n"
        "made = []\n"
        "try:\n"
        "    while len(made) < 2000:\n"
        "        pid = os.fork()\n"
        "        if not pid:\n"
        "            signal.pause()\n"
        "        made.append(pid)\n"
        "except OSError as error:\n"
        "    print(error.errno)\n"
        "print(len(made))\n"
        "for pid in made:\n"
        "    os.kill(pid, 9)\n"
        "    os.waitpid(pid, 0)\n"
    )
    async with await backend.create(timeout=120) as sandbox:
        error, made = (await sandbox.run_code(count, timeout=60)).stdout.split()
        assert int(error) == errno.EAGAIN
        assert 480 < int(made) < 512
        assert (await sandbox.run(["echo", "x"])).stdout == "x\n"


REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"network": NetworkPolicy(allow=("example.org",))}, "no egress filter per host"),
    ({"network": NetworkPolicy(egress="learn")}, "learn"),
    ({"network": NetworkPolicy(ingress_ports=(8080,))}, "(?i)ingress"),
    ({"resources": Resources(disk_mb=100)}, "disk_mb=100"),
    ({"resources": Resources(gpu="any")}, "(?i)gpu"),
    ({"resources": Resources(cpu=0.001)}, "0.01"),
    ({"resources": Resources(memory_mb=8)}, "memory_mb=8"),
]


@pytest.mark.parametrize(("asked", "words"), REFUSALS, ids=[words for _, words in REFUSALS])
async def test_each_refusal_has_its_own_words(docker_image: str, asked: dict[str, Any], words: str) -> None:
    """Nothing that cannot be enforced is approximated, and nothing is made."""
    with pytest.raises((CapabilityNotSupported, ConfigurationError), match=words) as caught:
        await DockerBackend(image=docker_image).create(**asked, timeout=60, metadata={"test": "refused"})
    assert caught.value.hint
    assert not held("refused")


async def test_loopback_works_inside(sandbox: DockerSandbox) -> None:
    code = (
        "import socket\n"
        "s = socket.create_server(('127.0.0.1', 0))\n"
        "c = socket.create_connection(('localhost', s.getsockname()[1]))\n"
        "print('connected')\n"
    )
    assert (await sandbox.run_code(code)).stdout == "connected\n"


async def test_egress_is_given_where_it_is_asked_for(backend: DockerBackend) -> None:
    network = NetworkPolicy(egress="allow")
    async with await backend.create(network=network, timeout=60) as sandbox:
        devices = (await sandbox.run(["cat", "/proc/net/dev"])).stdout
        assert "eth0" in devices


async def test_more_than_the_engine_has(docker_image: str) -> None:
    """Case 76."""
    cpus = json.loads(ask("GET", "/info"))["NCPU"]
    with pytest.raises(SandboxError, match=f"only {cpus} CPUs"):
        await DockerBackend(image=docker_image).create(
            resources=Resources(cpu=cpus + 4), metadata={"test": "cpus"}
        )
    assert not held("cpus")


async def test_cpu_cap_is_in_force(backend: DockerBackend) -> None:
    async with await backend.create(resources=Resources(cpu=0.5), timeout=60) as sandbox:
        spin = (
            "import time\nend = time.time() + 1.5\nwhile time.time() < end: pass\nprint(time.process_time())"
        )
        used = float((await sandbox.run_code(spin)).stdout)
        assert used < 1.2


def forms(secret: str) -> list[bytes]:
    """How a secret might be written."""
    raw = secret.encode()
    return [raw, base64.b64encode(raw).rstrip(b"="), quote(secret).encode(), raw.hex().encode()]


async def test_a_secret_is_nowhere_to_be_seen(docker_image: str, channel: Any) -> None:
    """Cases 77 and 79: no command line of this machine, no label, no inspect, no event, no repr."""
    secret = "s3cr3t-0123456789abcdef"
    backend = DockerBackend(image=docker_image, channel=channel)
    async with await backend.create(secrets={"TOKEN": secret}, timeout=60) as sandbox:
        async with anyio.create_task_group() as tasks:

            async def use() -> None:
                result = await sandbox.run("echo $TOKEN; sleep 1", env={"API_KEY": secret})
                assert result.stdout == f"{secret}\n"

            tasks.start_soon(use)
            await anyio.sleep(0.6)
            lines = b""
            for process in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    lines += process.read_bytes()
                except OSError:
                    continue
            ids = json.loads(ask("GET", f"/containers/{sandbox.id}/json"))
            seen = json.dumps(ids).encode()
            for exec_id in ids["ExecIDs"] or ():
                seen += ask("GET", f"/exec/{exec_id}/json")
            seen += ask("GET", "/events", since="1", until=f"{time.time():.0f}")
        for form in forms(secret):
            assert form not in lines
            assert form not in seen
            assert form not in repr((sandbox, backend)).encode()
        inside = await sandbox.run("cat /proc/1/environ 2>/dev/null; ls -la /work /tmp; true")
        assert secret not in inside.stdout

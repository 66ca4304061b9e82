"""The egress probe in networks that this test makes: closed, open and silent, filtered, and answering.

Each is a network namespace of its own that nothing leads out of. What is sent to the made-up gateway is
dropped, as on the way to an address that answers nobody. In one of them 192.0.2.1 is a server of the test.
"""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from sandboxio import ExecResult
from sandboxio.cli import egress

LINK = """
ip link add eth0 type veth peer name far
ip addr add 198.51.100.2/24 dev eth0
"""
OPEN = f"""
{LINK}
ip link set far up
ip link set eth0 up
ip neigh add 198.51.100.1 lladdr 02:00:00:00:00:01 dev eth0
ip route add default via 198.51.100.1
"""
SERVER = """
ip addr add 192.0.2.1/32 dev lo
cd "$(mktemp -d)"
"$PYTHON" -m http.server 80 --bind 192.0.2.1 >/dev/null 2>&1 &
server=$!
trap 'kill $server; wait $server 2>/dev/null || true; rmdir "$PWD"' EXIT
until "$PYTHON" -c 'import socket; socket.create_connection(("192.0.2.1", 80), 1)' 2>/dev/null; do
    sleep 0.05
done
"""

NETWORKS = {
    "nothing but loopback": ("", "denied", "no interface but loopback"),
    "an interface that is down": (
        LINK,
        "denied",
        "no interface but loopback",
    ),
    "open and silent": (OPEN, "unproven", "timed out"),
    "open, and unreachable further on": (
        f"{OPEN}\nip route add unreachable 192.0.2.0/24",
        "unproven",
        "No route to host",
    ),
    "a policy that prohibits": (
        f"{OPEN}\nip route add prohibit 192.0.2.0/24",
        "denied",
        "filter behind eth0",
    ),
    "something answers": (SERVER, "reached", "something answered"),
}


def namespaces() -> str | None:
    """Why no network can be made here, or None."""
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return "no unshare(1) or ip(8) on this machine"
    tried = subprocess.run(["unshare", "-rn", "true"], capture_output=True, check=False)
    return None if tried.returncode == 0 else f"no network namespace: {tried.stderr.decode()}"


@pytest.mark.parametrize("name", NETWORKS)
def test_the_verdict_on_a_real_network(name: str) -> None:
    if problem := namespaces():
        pytest.skip(problem)
    setup, verdict, words = NETWORKS[name]
    script = f"""
        set -e
        ip link set lo up
        {setup}
        for code in "$ATTEMPT" "$INTERFACES"; do
            set +e; "$PYTHON" -c "$code" 2>&1; echo "exit $?"; set -e
        done
        """
    ran = subprocess.run(
        ["unshare", "-rn", "bash", "-c", script],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={
            "PATH": "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin",
            "PYTHON": sys.executable,
            "ATTEMPT": egress.ATTEMPT,
            "INTERFACES": egress.INTERFACES,
        },
    )
    assert ran.returncode == 0, ran.stderr
    attempt, interfaces = _results(ran.stdout)
    found = egress.judge(attempt, interfaces)
    assert (found.verdict, words in found.detail) == (verdict, True), found


def _results(text: str) -> tuple[ExecResult, ExecResult]:
    """The output of both runs, which the script separates by their exit codes."""
    first, second = text.split("exit ")[:2]
    code, _, rest = second.partition("\n")
    last = text.rstrip().rpartition("exit ")[2]
    return ExecResult(int(code), first, first), ExecResult(int(last), rest, "")

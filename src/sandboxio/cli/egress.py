"""The demo's egress probe: a real attempt from inside to get out, and what its failure proves.

The target is 192.0.2.1, an address of TEST-NET-1, which is reserved for documentation and never belongs
to a host (RFC 5737). So no answer from it is expected on an open network either, and a failed attempt
alone proves nothing. The verdict therefore looks at both:

    something answered                              reached     the policy does not hold
    no interface but loopback is up, or no route    denied      there is no way out at all
    interface, and the attempt was turned away      denied      by a filter; said so
    interface, and silence or an ICMP answer        unproven    as on an open network

Only ``denied`` passes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from sandboxio.models import ExecResult

TARGET = "192.0.2.1"
ATTEMPT = f"""\
import urllib.request
print(urllib.request.urlopen("http://{TARGET}/", timeout=3).status)
"""
INTERFACES = r"""
import fcntl, json, socket, struct
probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
up = []
for _, name in socket.if_nameindex():
    request = struct.pack("16sh14x", name.encode(), 0)
    if struct.unpack("16sh14x", fcntl.ioctl(probe, 0x8913, request))[1] & 1:  # SIOCGIFFLAGS, IFF_UP
        up.append(name)
routes = []
for path, column, header in (("/proc/net/route", 0, 1), ("/proc/net/ipv6_route", -1, 0)):
    try:
        lines = open(path).read().splitlines()[header:]
    except OSError:
        continue
    routes += [line.split()[column] for line in lines if line.split()]
print(json.dumps({"up": up, "routes": routes}))
"""

Failure = Literal["unreachable", "refused", "silence", "unclear"]

# Numbers of Linux (asm-generic/errno.h), whatever the host is: the text comes from inside.
_ERRNO: dict[int, Failure] = {
    1: "refused",  # EPERM: a local filter
    13: "refused",  # EACCES
    99: "unreachable",  # EADDRNOTAVAIL: no address of its own
    100: "unreachable",  # ENETDOWN
    101: "unreachable",  # ENETUNREACH
    104: "refused",  # ECONNRESET
    110: "silence",  # ETIMEDOUT
    111: "refused",  # ECONNREFUSED
    113: "unreachable",  # EHOSTUNREACH
}


@dataclass(frozen=True)
class Verdict:
    """What the probe found; ``detail`` is one sentence for people."""

    verdict: Literal["denied", "reached", "unproven"]
    detail: str


def judge(attempt: ExecResult, interfaces: ExecResult | None) -> Verdict:
    """The verdict on an :data:`ATTEMPT`, with the output of :data:`INTERFACES` where that could run."""
    last = attempt.stderr.strip().rpartition("\n")[2]
    if attempt.ok or "HTTPError" in last or "BadStatusLine" in last:
        return Verdict("reached", f"something answered the attempt to reach {TARGET}")
    failure = _failure(last)
    ways_out = None if interfaces is None else _ways_out(interfaces)
    shown = last[:160] or f"exit code {attempt.exit_code}"
    if ways_out == []:
        return Verdict("denied", f"no interface but loopback, no route out; the attempt ended with: {shown}")
    if failure == "unclear":
        return Verdict("unproven", f"the attempt itself failed: {shown}")
    if ways_out is None:
        if failure in ("unreachable", "refused"):
            return Verdict("denied", f"{shown} (the sandbox cannot list its interfaces)")
        return Verdict("unproven", f"{shown}, and the sandbox cannot list its interfaces")
    if failure == "refused":
        return Verdict("denied", f"turned away by a filter behind {', '.join(ways_out)}: {shown}")
    way = ", ".join(ways_out)
    return Verdict(
        "unproven", f"{shown}; but there is a way out ({way}), and on an open network it looks the same"
    )


def _failure(last_line: str) -> Failure:
    if (match := re.search(r"\[Errno (\d+)\]", last_line)) is not None:
        return _ERRNO.get(int(match[1]), "unclear")
    if "timed out" in last_line or "TimeoutError" in last_line:
        return "silence"
    if "RemoteDisconnected" in last_line:  # taken and closed: how a transparent proxy says no
        return "refused"
    return "unclear"


def _ways_out(interfaces: ExecResult) -> list[str] | None:
    """Interfaces that are up and have a route, loopback aside; None if the sandbox could not tell."""
    if not interfaces.ok:
        return None
    try:
        found: Any = json.loads(interfaces.stdout)
        fields = cast("Mapping[str, list[str]]", found)
        return sorted({name for name in fields["up"] if name != "lo" and name in fields["routes"]})
    except (ValueError, TypeError, KeyError):
        return None

"""Who may be reached from a virtual sandbox. Nothing is ever sent."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from sandboxio.models import NetworkPolicy


@dataclass
class Network:
    """The network of one sandbox: its policy, and whom it reached (host names, in order)."""

    policy: NetworkPolicy
    reached: list[str] = field(default_factory=list[str])

    def permits(self, host: str) -> bool:
        """True if the policy lets ``host``, a name or an address, be reached."""
        if self.policy.egress == "allow":
            return True
        return any(_covers(entry, host) for entry in self.policy.allow)

    def reach(self, host: str) -> bool:
        """Try to reach ``host``; True, and noted, if that is permitted."""
        if not self.permits(host):
            return False
        self.reached.append(host)
        return True


def host_of(url: str) -> str:
    """The host in a URL, or in ``host[:port]`` without a scheme; "" if there is none."""
    try:
        return urlsplit(url if "://" in url else f"//{url}").hostname or ""
    except ValueError:
        return ""


def is_loopback(host: str) -> bool:
    """True for the sandbox itself, which no policy concerns."""
    return host == "localhost" or host.startswith("127.") or host == "::1"


def is_address(host: str) -> bool:
    """True for an IP address, which needs no resolver."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _covers(entry: str, host: str) -> bool:
    if entry.lower() == host.lower():
        return True
    if entry.startswith("*."):
        return host.lower().endswith(entry[1:].lower())
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return False

"""The sandboxes that the stand-in holds: started, listed, paused, ended when their time is over."""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
import socket
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from .zygote import Zygote

ENVD_VERSION = "0.6.13"
TEMPLATES = {
    "base": "base",
    "code-interpreter-v1": "nlhz8vlwyupq845jsdg9",
    "code-interpreter": "nlhz8vlwyupq845jsdg9",
}
EVERYTHING = "0.0.0.0/0"
CLIENT_ID = "standin0"


def now() -> datetime:
    return datetime.now(UTC)


@dataclass(eq=False)
class Sandbox:
    """One sandbox as the control plane knows it."""

    id: str
    template: str
    alias: str
    pid: int
    address: str
    envd_version: str
    token: str
    traffic_token: str | None
    metadata: dict[str, str]
    network: dict[str, Any]
    internet: bool
    auto_pause: bool
    started: datetime
    order: int
    ends: datetime = field(default_factory=now)
    state: str = "running"
    connections: set[asyncio.Transport] = field(default_factory=set["asyncio.Transport"])
    timer: asyncio.TimerHandle | None = None

    def drop_connections(self) -> None:
        """Cut every client off, so that nothing of the end is seen but the cut."""
        for transport in tuple(self.connections):
            transport.abort()
        self.connections.clear()


class Fleet:
    """All sandboxes of one stand-in."""

    def __init__(self, zygote: Zygote) -> None:
        self._zygote = zygote
        self._folder = tempfile.TemporaryDirectory(prefix="e2b-standin-")
        self._numbers = itertools.count()
        self.live: dict[str, Sandbox] = {}
        self.keys: dict[str, str] = {}
        self.envd_version = ENVD_VERSION
        self.knows_network = True
        """False: like a control plane that is older than ``network`` in the create request."""

    def create(self, order: Mapping[str, Any], *, lifetime: float) -> Sandbox:
        """Start a sandbox; ``order`` is the body of the create request."""
        number = next(self._numbers)
        network = dict(order.get("network") or {}) if self.knows_network else {}
        internet = order.get("allow_internet_access") is not False
        # As in infra's buildNetworkConfig: denied after the rest is copied, so what is allowed stays allowed.
        rules = network if internet else {**network, "denyOut": [EVERYTHING]}
        closed = EVERYTHING in (rules.get("denyOut") or ()) and not rules.get("allowOut")
        name = "i" + secrets.token_hex(10)[:19]
        token = "ea_" + secrets.token_hex(16)
        address = os.path.join(self._folder.name, f"{number}.sock")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(address)
        listener.listen(128)
        config = {
            "token": token,
            "envd_version": self.envd_version,
            "variables": dict(order.get("envVars") or {}),
            "egress": None if closed else rules,
        }
        with listener:
            pid = self._zygote.start(listener, config)
        alias = order["templateID"]
        sandbox = Sandbox(
            id=name,
            template=TEMPLATES[alias],
            alias=alias,
            pid=pid,
            address=address,
            envd_version=self.envd_version,
            token=token,
            traffic_token="tt_" + secrets.token_hex(16)
            if network.get("allowPublicTraffic") is False
            else None,
            metadata=dict(order.get("metadata") or {}),
            network=network,
            internet=internet,
            auto_pause=bool(order.get("autoPause")),
            started=now(),
            order=number,
        )
        self.live[name] = sandbox
        self.set_lifetime(sandbox, lifetime)
        return sandbox

    def set_lifetime(self, sandbox: Sandbox, seconds: float) -> None:
        """Let the sandbox end ``seconds`` from now."""
        if sandbox.timer is not None:
            sandbox.timer.cancel()
        sandbox.ends = now() + timedelta(seconds=seconds)
        sandbox.timer = asyncio.get_running_loop().call_later(seconds, self._expire, sandbox)

    def _expire(self, sandbox: Sandbox) -> None:
        if sandbox.auto_pause:
            self.pause(sandbox)
        else:
            self.kill(sandbox)

    def pause(self, sandbox: Sandbox) -> None:
        """Cut the sandbox off; its processes run on here, which a real pause would not let them."""
        sandbox.state = "paused"
        if sandbox.timer is not None:
            sandbox.timer.cancel()
        sandbox.drop_connections()

    def resume(self, sandbox: Sandbox, seconds: float) -> None:
        sandbox.state = "running"
        self.set_lifetime(sandbox, seconds)

    def kill(self, sandbox: Sandbox) -> None:
        """End the sandbox; on return no process of it is left."""
        if self.live.pop(sandbox.id, None) is None:
            return
        if sandbox.timer is not None:
            sandbox.timer.cancel()
        sandbox.drop_connections()
        self._zygote.kill(sandbox.pid)
        os.unlink(sandbox.address)

    def close(self) -> None:
        for sandbox in tuple(self.live.values()):
            self.kill(sandbox)
        self._folder.cleanup()

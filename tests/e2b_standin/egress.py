"""What leaves a sandbox: every TCP connection goes through a forwarder that knows the rules.

A sandbox with internet access has a network namespace of its own too. Its packets are redirected to the
forwarder inside; what the rules allow, the connector outside opens on this machine, and hands the
connected socket in. Without internet access there is neither. The sandbox's own loopback is 127.0.0.1;
other addresses of 127.0.0.0/8 are those of this machine, so that a test can serve there.

Names in a rule are validated and echoed; here only addresses open anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import socket
import struct
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from .processes import readable

SO_ORIGINAL_DST = 80
CONNECT_SECONDS = 5.0
PIECE = 1 << 16
PORT = 64999
"""Of the forwarder, in the network namespace of its sandbox."""


def connect_for(control: socket.socket) -> None:
    """The connector: opens connections for one sandbox until its end of ``control`` closes."""
    while request := control.recv(4096):
        host, port = json.loads(request)
        try:
            made = socket.create_connection((host, port), timeout=CONNECT_SECONDS)
        except OSError as error:
            control.send(str(error).encode())
            continue
        with made:
            socket.send_fds(control, [b"\0"], [made.fileno()])


def redirect() -> None:
    """Send every connection that leaves this network namespace to the forwarder's port."""
    commands = (
        "ip route add local default dev lo",
        f"iptables -t nat -A OUTPUT -p tcp ! -d 127.0.0.1 -j REDIRECT --to-ports {PORT}",
    )
    for command in commands:
        subprocess.run(command.split(), check=True, capture_output=True)


class Forwarder:
    """The forwarder of one sandbox."""

    def __init__(self, connector: socket.socket, rules: Mapping[str, Sequence[str]]) -> None:
        self._connector = connector
        self._allow = _networks(rules.get("allowOut") or ())
        self._deny = _networks(rules.get("denyOut") or ())
        self._lock = asyncio.Lock()
        self._listener = socket.create_server(("0.0.0.0", PORT))  # inside the namespace

    async def start(self) -> None:
        await asyncio.start_server(self._forward, sock=self._listener)

    def allows(self, host: str) -> bool:
        """Allow beats deny."""
        address = ipaddress.ip_address(host)
        if any(address in network for network in self._allow):
            return True
        return not any(address in network for network in self._deny)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raw = writer.get_extra_info("socket")
        _, port, packed = struct.unpack("!HH4s", raw.getsockopt(socket.SOL_IP, SO_ORIGINAL_DST, 16)[:8])
        host = socket.inet_ntoa(packed)
        try:
            outside = await self._connect(host, port) if self.allows(host) else None
            if outside is not None:
                far_reader, far_writer = await asyncio.open_connection(sock=outside)
                await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))
        finally:
            writer.close()

    async def _connect(self, host: str, port: int) -> socket.socket | None:
        async with self._lock:
            self._connector.send(json.dumps([host, port]).encode())
            await readable(self._connector.fileno())
            _, fds, _, _ = socket.recv_fds(self._connector, 4096, 1)
        if not fds:
            return None
        made = socket.socket(fileno=fds[0])
        made.setblocking(False)
        return made


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(PIECE):
            writer.write(data)
            await writer.drain()
    writer.close()


def _networks(items: Sequence[str]) -> list[Any]:
    found: list[Any] = []
    for item in items:
        with contextlib.suppress(ValueError):  # a name
            found.append(ipaddress.ip_network(item, strict=False))
    return found

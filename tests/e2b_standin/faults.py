"""Faults on demand: what a provider, a gateway or a network does to an unlucky client.

A rule names requests by a regular expression over ``METHOD /path`` and says what befalls the next
``times`` of them (0: all). Kinds:

``status``    answer ``status`` with ``headers``, ``body`` and ``content_type`` instead
``delay``     wait ``seconds`` first; with ``late`` the request is served and only the answer waits
``reset``     reset the connection after ``after`` bytes of the body (0: before the answer)
``truncate``  end the connection after ``after`` bytes of the body, in order but too early
``stall``     send nothing more after ``after`` bytes of the body
``gateway``   serve the request, and answer as ``status`` does
``unknown``   add fields to JSON and events to streams that no client knows yet
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import struct
from dataclasses import dataclass, field
from typing import Any

EXTRA_FIELD = {"addedLater": {"a": [1, None]}}


@dataclass
class Rule:
    """One fault; see the module."""

    match: str
    kind: str
    times: int = 1
    status: int = 503
    headers: dict[str, str] = field(default_factory=dict[str, str])
    body: str = ""
    content_type: str = "application/json"
    seconds: float = 0.0
    late: bool = False
    after: int = 0
    used: int = 0

    def applies(self, line: str) -> bool:
        if self.times and self.used >= self.times:
            return False
        return re.search(self.match, line) is not None


class Dropped(Exception):
    """The connection is gone; nothing more can be sent."""


class Faults:
    """ASGI middleware that applies the rules in order."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self.rules: list[Rule] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        line = f"{scope['method']} {scope['path']}"
        late = 0.0
        for rule in self.rules:
            if not rule.applies(line):
                continue
            rule.used += 1
            if rule.kind == "delay":
                if rule.late:
                    late += rule.seconds
                else:
                    await asyncio.sleep(rule.seconds)
            elif rule.kind == "status":
                await _answer(rule, send)
                return
            elif rule.kind == "gateway":
                send = GivesUp(send, rule)
            elif rule.kind == "unknown":
                send = Unknown(send)
            else:
                send = Cut(send, rule, scope["standin.transport"])
                if rule.kind == "reset" and rule.after == 0:
                    await send.cut()
        if late:
            send = Late(send, late)
        with contextlib.suppress(Dropped):
            await self._app(scope, receive, send)


async def _answer(rule: Rule, send: Any) -> None:
    headers = [(b"content-type", rule.content_type.encode())]
    headers += [(name.lower().encode(), value.encode()) for name, value in rule.headers.items()]
    body = rule.body.encode()
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": rule.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Late:
    """Holds an answer back for some seconds."""

    def __init__(self, send: Any, seconds: float) -> None:
        self._send, self._seconds = send, seconds

    async def __call__(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            await asyncio.sleep(self._seconds)
        await self._send(message)


class Cut:
    """Ends, resets or stalls an answer after some bytes."""

    def __init__(self, send: Any, rule: Rule, transport: asyncio.Transport) -> None:
        self._send, self._rule, self._transport = send, rule, transport
        self._left = rule.after

    async def __call__(self, message: Any) -> None:
        if message["type"] != "http.response.body":
            await self._send(message)
            return
        body = message.get("body", b"")
        if len(body) < self._left:
            self._left -= len(body)
            await self._send(message)
            return
        await self._send({"type": "http.response.body", "body": body[: self._left], "more_body": True})
        await self.cut()

    async def cut(self) -> None:
        if self._rule.kind == "stall":
            await asyncio.Event().wait()
        if self._rule.kind == "reset":
            raw = self._transport.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()
        else:
            self._transport.close()
        raise Dropped


class Unknown:
    """Adds what a newer server might add."""

    def __init__(self, send: Any) -> None:
        self._send = send
        self._kind = ""
        self._start: Any = None
        self._whole = b""
        self._added = False

    async def __call__(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            headers = dict(message["headers"])
            self._kind = headers.get(b"content-type", b"").decode()
            if not self._streamed:
                self._start = message
                return
            await self._send(message)
        elif self._streamed:
            await self._send(message)
            if not self._added and message.get("more_body"):
                self._added = True
                await self._send({"type": "http.response.body", "body": self._event(), "more_body": True})
        else:
            await self._finish(message)

    @property
    def _streamed(self) -> bool:
        return not self._kind.startswith("application/json")

    def _event(self) -> bytes:
        if "connect+json" in self._kind:
            body = json.dumps({"event": {"telemetry": {"n": 1}}, **EXTRA_FIELD}).encode()
            return struct.pack(">BI", 0, len(body)) + body
        return b'{"type": "telemetry", "n": 1}\n' if not self._kind else b""

    async def _finish(self, message: Any) -> None:
        self._whole += message.get("body", b"")
        if message.get("more_body"):
            return
        parsed = json.loads(self._whole)
        for item in parsed if isinstance(parsed, list) else [parsed]:
            if isinstance(item, dict):
                item.update(EXTRA_FIELD)
        body = json.dumps(parsed).encode()
        kept = [(name, value) for name, value in self._start["headers"] if name != b"content-length"]
        kept.append((b"content-length", str(len(body)).encode()))
        await self._send({**self._start, "headers": kept})
        await self._send({"type": "http.response.body", "body": body})


class GivesUp:
    """The request is served, and its client gets a gateway's answer instead of the server's."""

    def __init__(self, send: Any, rule: Rule) -> None:
        self._send, self._rule = send, rule
        self._answered = False

    async def __call__(self, message: Any) -> None:
        if not self._answered:
            self._answered = True
            # The server serves on, so this connection is good for nothing else.
            self._rule.headers.setdefault("connection", "close")
            await _answer(self._rule, self._send)

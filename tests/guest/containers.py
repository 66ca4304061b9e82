"""A guest in a real container, over one attach connection, with nothing of the library's engine client."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any, Self
from urllib.parse import urlsplit

from sandboxio.adapter import SandboxRequest
from sandboxio_docker import guest_protocol as w, launcher
from sandboxio_docker.hostconfig import container_config
from scripts import engine_api
from tests.guest.rawclient import Client, Closed


def call(method: str, path: str, body: Any = None) -> Any:
    status, answer = engine_api.request(method, path, body=body, timeout=30)
    if status >= 300:
        raise AssertionError(f"{method} {path}: {status} {answer[:300]!r}")
    return json.loads(answer) if answer.strip() else None


def request_for(**fields: Any) -> SandboxRequest:
    return SandboxRequest(**fields)


class Attached:
    """The engine's framing of stdout and stderr on a connection that was upgraded."""

    def __init__(self, path: str, body: bytes = b"") -> None:
        url = urlsplit(engine_api.current_host())
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(url.path)
        head = f"POST {path} HTTP/1.1\r\nHost: engine\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self.sock.sendall(head.encode() + body)
        self.buffer = b""
        while b"\r\n\r\n" not in self.buffer:
            more = self.sock.recv(4096)
            assert more, self.buffer
            self.buffer += more
        status, self.buffer = self.buffer.split(b"\r\n\r\n", 1)
        assert b" 101 " in status, status
        self.errors = b""

    def send(self, data: bytes) -> None:
        self.sock.settimeout(20)
        self.sock.sendall(data)

    def receive(self, seconds: float) -> bytes:
        out = self._cut()
        if not out:
            self.sock.settimeout(max(0.001, seconds))
            try:
                data = self.sock.recv(1 << 18)
            except TimeoutError:
                return b""
            if not data:
                raise Closed(self.errors.decode(errors="replace"))
            self.buffer += data
            out = self._cut()
        return out

    def _cut(self) -> bytes:
        out = b""
        while len(self.buffer) >= 8:
            size = int.from_bytes(self.buffer[4:8], "big")
            if len(self.buffer) < 8 + size:
                break
            if self.buffer[0] == 1:
                out += self.buffer[8 : 8 + size]
            else:
                self.errors += self.buffer[8 : 8 + size]
            self.buffer = self.buffer[8 + size :]
        return out

    def close(self) -> None:
        self.sock.close()


class Container(Client):
    def __init__(
        self,
        image: str,
        *,
        lifetime: float = 120,
        lifeline: bool = True,
        setup: Mapping[bytes, bytes] | None = None,
        entrypoint: Sequence[str] | None = None,
        request: SandboxRequest | None = None,
        change: Mapping[str, Any] | None = None,
        host: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        told = launcher.arguments(lifetime, lifeline=lifeline, work="/work", localhost=True)
        config = container_config(
            request or request_for(timeout=lifetime),
            image=image,
            entrypoint=list(entrypoint or launcher.with_shell(told)),
            lifeline=lifeline,
        )
        config.update(change or {})
        config["HostConfig"].update(host or {})
        self.id: str = call("POST", "/containers/create", config)["Id"]
        try:
            self.began = time.monotonic()
            self.line = Attached(f"/containers/{self.id}/attach?stream=1&stdin=1&stdout=1&stderr=1")
            super().__init__(self.line.send, self.line.receive, **options)
            self.send(launcher.program() + (w.setup(setup) if setup else b""))
            call("POST", f"/containers/{self.id}/start")
        except BaseException:
            self.close()
            raise

    def inspect(self) -> Any:
        return call("GET", f"/containers/{self.id}/json")

    def running(self) -> bool:
        """False also when it is removed."""
        status, answer = engine_api.request("GET", f"/containers/{self.id}/json")
        return status == 200 and json.loads(answer)["State"]["Running"]

    def second(self, lifetime: float = 0) -> Second:
        return Second(self.id, lifetime)

    def gone(self) -> bool:
        return engine_api.request("GET", f"/containers/{self.id}/json")[0] == 404

    def wait_gone(self, seconds: float) -> float:
        began = time.monotonic()
        while not self.gone():
            assert time.monotonic() - began < seconds, "the container is still there"
            time.sleep(0.01)
        return time.monotonic() - began

    def close(self) -> None:
        if hasattr(self, "line"):
            self.line.close()
        deadline = time.monotonic() + 20
        while True:
            status, answer = engine_api.request("DELETE", f"/containers/{self.id}?force=1&v=1")
            if status == 404:
                return
            assert time.monotonic() < deadline, (status, answer)
            time.sleep(0.02)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Second(Client):
    """A guest beside the first, as connect() makes one."""

    def __init__(self, container: str, lifetime: float) -> None:
        told = launcher.arguments(lifetime, lifeline=True, work="/work", localhost=False)
        body = {
            "AttachStdin": True, "AttachStdout": True, "AttachStderr": True,
            "Cmd": launcher.with_python(told),
        }  # fmt: skip
        self.exec_id = call("POST", f"/containers/{container}/exec", body)["Id"]
        start = json.dumps({"Detach": False, "Tty": False}).encode()
        self.line = Attached(f"/exec/{self.exec_id}/start", start)
        super().__init__(self.line.send, self.line.receive)
        self.send(launcher.program())

    def close(self) -> None:
        self.line.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def usable_image() -> str:
    return os.environ.get("SBX_TEST_IMAGE") or "python:3.12-slim"

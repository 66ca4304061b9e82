"""Starts the stand-in as a process of its own and talks to its admin routes."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

API_KEY = "e2b_" + "0" * 40

ROOT = Path(__file__).parents[2]
MODULES = ("e2b", "uvicorn", "starlette", "jupyter_client", "ipykernel")


@dataclass(frozen=True)
class StandInProcess:
    """A stand-in that runs at ``url``."""

    url: str
    pid: int

    @property
    def environment(self) -> dict[str, str]:
        """What points a client of E2B at it."""
        return {"E2B_API_KEY": API_KEY, "E2B_API_URL": self.url, "E2B_SANDBOX_URL": self.url}

    def fault(self, match: str, kind: str, **settings: Any) -> None:
        """Let something befall the next request whose ``METHOD /path`` matches; see faults.py."""
        self._call("POST", "faults", [{"match": match, "kind": kind, **settings}])

    def clear_faults(self) -> None:
        self._call("DELETE", "faults")

    @contextmanager
    def faulty(self, match: str, kind: str, **settings: Any) -> Iterator[None]:
        """Inside, every matching request is befallen."""
        self.fault(match, kind, times=0, **settings)
        try:
            yield
        finally:
            self.clear_faults()

    def use_envd(self, version: str) -> None:
        """Let sandboxes created from now on have that envd."""
        self._call("POST", "settings", {"envd_version": version})

    def forget_network(self) -> None:
        """Let the control plane ignore ``network`` in create requests from now on."""
        self._call("POST", "settings", {"knows_network": False})

    def reset(self) -> None:
        self._call("POST", "reset", {})

    @property
    def sandboxes(self) -> list[dict[str, Any]]:
        return self._state()["sandboxes"]

    @property
    def connections(self) -> int:
        """Open connections of clients."""
        return self._state()["connections"]

    @property
    def requests(self) -> list[dict[str, Any]]:
        return self._state()["requests"]

    def _state(self) -> dict[str, Any]:
        return self._call("GET", "state")

    def _call(self, method: str, what: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/__standin__/{what}", data, method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=30) as answer:
            text = answer.read()
        return json.loads(text) if text else None


def problem() -> str | None:
    """Why the stand-in cannot run here, or None."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "the E2B stand-in needs root on Linux: every sandbox gets namespaces of its own"
    tools = [name for name in ("ip", "iptables", "bash") if shutil.which(name) is None]
    modules = [name for name in MODULES if importlib.util.find_spec(name) is None]
    if tools or modules:
        return f"the E2B stand-in lacks {', '.join(tools + modules)}"
    return None


@contextmanager
def stand_in() -> Iterator[StandInProcess]:
    """A stand-in for the body; it ends, with every sandbox, when the body or this process ends."""
    command = [sys.executable, "-m", "tests.e2b_standin", "--port", "0"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            url = process.stdout.readline().strip()
            if not url:
                raise RuntimeError(f"the stand-in ended with {process.wait(10)}")
            yield StandInProcess(url, process.pid)
        finally:
            process.stdin.close()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                raise

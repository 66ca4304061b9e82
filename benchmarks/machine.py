"""What the figures were taken on. No names of hosts or people."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import anyio
import psutil

from sandboxio_docker.engine import Engine

from . import settings

PACKAGES = ("sandboxio", "anyio", "trio", "httpx", "h11", "docker", "aiodocker", "llm-sandbox")


def facts() -> dict[str, Any]:
    """Processor, memory, kernel, engine and versions."""
    return {
        "cpu": _model(),
        "cpus": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "kernel": platform.release().split("-")[0],
        "python": platform.python_version(),
        "engine": anyio.run(_engine),
        "image": settings.IMAGE,
        "packages": {name: _version(name) for name in PACKAGES},
    }


def _model() -> str:
    with open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


async def _engine() -> str:
    found = await Engine(f"unix://{settings.SOCKET}").get_json("/version")
    return f"{found['Version']} (API {found['ApiVersion']})"


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None

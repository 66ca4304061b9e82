"""What every subject is given: the same image, the same caps, the same network (none)."""

from __future__ import annotations

import os

IMAGE = os.environ.get("SBX_TEST_IMAGE", "python:3.12-slim")
SOCKET = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://")
CPU = 1.0
MEMORY_MB = 512
PIDS = 512
MIB = 1 << 20
SMALL = b"x" * 1024
"""What is written and read where a small file is measured."""

HOST_CONFIG = {
    "NetworkMode": "none",
    "CapDrop": ["ALL"],
    "SecurityOpt": ["no-new-privileges"],
    "PidsLimit": PIDS,
    "Memory": MEMORY_MB * MIB,
    "MemorySwap": MEMORY_MB * MIB,
    "NanoCpus": int(CPU * 1e9),
    "LogConfig": {"Type": "none", "Config": {}},
}
"""As sandboxio's own, for the raw engine and aiodocker."""

DOCKER_PY = {
    "network_mode": "none",
    "cap_drop": ["ALL"],
    "security_opt": ["no-new-privileges"],
    "pids_limit": PIDS,
    "mem_limit": MEMORY_MB * MIB,
    "memswap_limit": MEMORY_MB * MIB,
    "nano_cpus": int(CPU * 1e9),
}
"""The same in docker-py's words."""

STREAM_COMMAND = ["sh", "-c", "head -c {size} /dev/zero"]
"""Prints ``size`` bytes; the program is in every image, and quick enough not to be what is measured."""


def printing(size: int) -> list[str]:
    """A command that prints ``size`` bytes."""
    return [part.format(size=size) for part in STREAM_COMMAND]

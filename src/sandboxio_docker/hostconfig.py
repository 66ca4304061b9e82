"""From a request to the body of ``POST /containers/create``: the sandbox's walls, each with its reason.

What Docker cannot enforce is refused here, before any I/O; nothing is approximated. Field names are
those of the Docker Engine API v1.41, ContainerCreate.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, Final

from sandboxio.adapter import SandboxRequest
from sandboxio.errors import CapabilityNotSupported, ConfigurationError, CreationError, SandboxWarning
from sandboxio.models import NetworkPolicy, Resources

from .answers import json_object
from .labels import labels_for

WORK: Final = "/work"
"""The working folder of every run; relative paths start here."""

DEFAULT_CPU: Final = 1.0
DEFAULT_MEMORY_MB: Final = 512
LEAST_CPU: Final = 0.01
"""Docker's own least: "Range of CPUs is from 0.01 to ..." (moby, daemon/daemon_unix.go)."""
LEAST_MEMORY_MB: Final = 32
"""Docker takes 6 MB, but Python alone needs about 12 before it does anything."""
MAX_PIDS: Final = 512
"""Processes and threads. 256 commands at once need about 260."""

_DISCARDED: Final = re.compile(r"\bdiscarded\b|limits are not supported", re.IGNORECASE)
_SWAP: Final = re.compile(r"limited without swap|not support swap limit", re.IGNORECASE)
_MIB: Final = 1 << 20
_SHM_MB: Final = 64
"""Docker's default for /dev/shm."""
_RESERVED_MB: Final = 128
"""Memory that no tmpfs of ours may fill: 64 MiB for /dev, whose size Docker fixes, and 64 MiB to run."""


def refuse_what_docker_cannot(request: SandboxRequest) -> None:
    """Raise for every part of ``request`` that Docker would not enforce; each has its own fix."""
    network, resources = request.network, request.resources
    if network.allow:
        raise CapabilityNotSupported(
            "Docker has no egress filter per host, so NetworkPolicy(allow=...) cannot be enforced.",
            hint='Bake what is needed into the image, upload it, or use "e2b://", which has allowlists.',
        )
    if resources.disk_mb is not None:
        raise CapabilityNotSupported(
            f"Docker cannot enforce Resources(disk_mb={resources.disk_mb}) on its usual storage drivers.",
            hint="Drop disk_mb=, and watch the engine's disk.",
        )
    if resources.cpu is not None and resources.cpu < LEAST_CPU:
        raise ConfigurationError(
            f"Docker's least share is {LEAST_CPU} CPUs, got Resources(cpu={resources.cpu:g}).",
            hint=f"Use Resources(cpu={LEAST_CPU}) or more.",
        )
    if resources.memory_mb is not None and resources.memory_mb < LEAST_MEMORY_MB:
        raise ConfigurationError(
            f"A sandbox needs {LEAST_MEMORY_MB} MiB, got Resources(memory_mb={resources.memory_mb}).",
            hint=f"Use Resources(memory_mb={LEAST_MEMORY_MB}) or more.",
        )


def refuse_what_was_discarded(said: Iterable[str]) -> None:
    """Raise if the engine has made a container without one of its caps, which it only warns of.

    Its words for a memory or process cap end in "discarded" (moby, daemon/daemon_unix.go), or, where Podman
    runs without root on cgroup v1, say that the limits are ignored. For swap see :func:`warn_of_swap`.
    """
    for words in said:
        if _DISCARDED.search(words):
            raise CreationError(
                f"The engine does not enforce a cap that every sandbox has: {words}",
                hint="Boot the engine's machine with cgroup v2 and delegate its controllers to the engine; "
                "`sandboxio doctor` says which are missing.",
            )


def warn_of_swap(said: Iterable[str]) -> None:
    """Warn if the engine has made a container whose swap its kernel does not count.

    Many machines with cgroup v1 boot so, mostly without any swap, where the cap is the cap all the same;
    to refuse them all would be too much. Whether there is swap, the engine does not say.
    """
    if any(_SWAP.search(words) for words in said):
        warnings.warn(
            "The engine's kernel does not count swap: the memory cap of this sandbox holds, but if the "
            "engine's machine has swap, that is used beyond the cap. Boot it with the kernel parameter "
            "swapaccount=1, or turn its swap off.",
            SandboxWarning,
            stacklevel=2,
        )


def memory_mb(resources: Resources) -> int:
    """The memory cap in MiB that applies."""
    return resources.memory_mb or DEFAULT_MEMORY_MB


def memory_cap(found: Mapping[str, Any]) -> int | None:
    """The memory cap in MiB of an inspected container, None if it has none."""
    memory = json_object(found.get("HostConfig")).get("Memory")
    return memory // _MIB if isinstance(memory, int) and memory > 0 else None


def container_config(
    request: SandboxRequest,
    *,
    image: str,
    entrypoint: list[str],
    runtime: str | None = None,
    lifeline: bool = True,
) -> dict[str, Any]:
    """The body of ContainerCreate.

    ``entrypoint`` is the whole command line of PID 1. With ``lifeline`` the engine removes the container
    as soon as it ends; without, it stays, stopped, for ``sandboxio reap``.
    """
    denied = _denies(request.network)
    return {
        "Image": image,
        # The image's own ENTRYPOINT and CMD would run instead of ours, or get ours as arguments.
        "Entrypoint": entrypoint,
        "Cmd": [],
        "WorkingDir": WORK,
        # Nothing of the caller's environment: it would be readable in `docker inspect`.
        "Env": [],
        "Labels": labels_for(request.metadata, request.timeout),
        # PID 1 is spoken to through one attach connection; when that ends, so does PID 1's stdin.
        "OpenStdin": True,
        "StdinOnce": True,
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "Tty": False,
        # Nothing inside has anything to save: an engine that shuts down need not wait ten seconds for it.
        "StopSignal": "SIGKILL",
        # With this the engine builds no network sandbox at all: stronger than "none" alone, and faster.
        "NetworkDisabled": denied,
        # A health check of the image would run its commands beside the sandbox's.
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": _host_config(request.resources, denied, runtime, lifeline),
    }


def _host_config(resources: Resources, denied: bool, runtime: str | None, lifeline: bool) -> dict[str, Any]:
    memory = memory_mb(resources) * _MIB
    shm = max(1, min(_SHM_MB, memory_mb(resources) - _RESERVED_MB)) * _MIB
    fields: dict[str, Any] = {
        "NetworkMode": "none" if denied else "bridge",
        "AutoRemove": lifeline,
        # No command of an agent needs a capability of the host's root; setuid programs gain nothing.
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges"],
        # A fork bomb ends at this ceiling instead of at the host's.
        "PidsLimit": MAX_PIDS,
        # MemorySwap counts memory and swap together: equal means no swap, so the cap is the cap.
        "Memory": memory,
        "MemorySwap": memory,
        "NanoCpus": round((resources.cpu or DEFAULT_CPU) * 1e9),
        # /dev/shm is memory too, and what lies in it survives the process that the OOM killer takes.
        "ShmSize": shm,
        # Output goes to the caller; a log file on the engine would hold a copy that nobody redacts.
        "LogConfig": {"Type": "none", "Config": {}},
        # PID 1 reaps orphans itself; a second init in front of it would take its place as PID 1.
        "Init": False,
    }
    if runtime is not None:
        fields["Runtime"] = runtime
    return fields


def _denies(network: NetworkPolicy) -> bool:
    return network.egress != "allow"

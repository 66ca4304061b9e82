"""What ``sandboxio doctor`` says about the engine: which one answers, and what it cannot do.

Everything comes from ``GET /version``, ``/info`` and ``/images/{name}/json``; nothing is created. How
engines name themselves was seen on Docker 20.10 and 26.1 and Podman 4.3; Docker Desktop, Colima, OrbStack
and Rancher Desktop as their own documentation shows the output of ``docker info``.
"""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Mapping
from typing import Any, Final

from sandboxio.errors import SandboxError
from sandboxio.models import Diagnosis, DoctorCheck, IsolationTier

from .answers import json_list, json_object
from .config import DEFAULT_IMAGE, ChannelChoice
from .engine import Engine, EngineError, EngineUnavailable
from .faults import Fault
from .isolation import promised
from .versions import LEAST_API, NEWEST_API, Versions

_CAPS: Final = {
    "MemoryLimit": "memory",
    "CpuCfsQuota": "CPU",
    "PidsLimit": "process",
}
"""Fields of ``/info`` that say whether a cap of every sandbox is enforced, and the cap's name."""

_CHANNELS: Final[dict[ChannelChoice, str]] = {
    "auto": "guest where the image has Python 3.8 or newer, else docker exec; a sandbox's repr says which",
    "guest": "guest, by choice: images without Python 3.8 or newer are refused",
    "exec": "docker exec, by choice",
}


async def diagnose(
    engine: Engine,
    *,
    image: str = DEFAULT_IMAGE,
    channel: ChannelChoice = "auto",
    runtime: str | None = None,
) -> Diagnosis:
    """Ask one engine about itself.

    ``image`` is what a sandbox gets when the caller names none; ``channel`` how it would be reached;
    ``runtime`` what would run it. What is behind the runtime's name shows only when a sandbox is created.
    """
    packages = {name: version for name in ("httpx", "h11") if (version := _installed(name))}
    try:
        versions = await engine.negotiate()
        said = json_object(await engine.get_json("/version"))
    except SandboxError as error:
        return Diagnosis((_unreachable(error),), versions=packages)
    checks = [_api(versions, said)]
    try:
        info = json_object(await engine.get_json("/info"))
    except SandboxError as error:  # a proxy in front of the socket may forbid it
        info = {}
        checks.append(_failed("info", error))
    podman = product(said, info).startswith("Podman")
    checks.insert(0, _engine(engine, said, info))
    if info:
        checks += [_os(info), _caps(info), _runtimes(info, runtime, podman=podman)]
    checks.append(await _image(engine, image, pull="podman pull" if podman else "docker pull"))
    checks.append(DoctorCheck("channel", True, _CHANNELS[channel]))
    checks += _settings(engine)
    return Diagnosis(tuple(checks), versions=packages)


def product(said: Mapping[str, Any], info: Mapping[str, Any]) -> str:
    """Which product this is, by what it says of itself in ``/version`` and ``/info``.

    >>> product({"Components": [{"Name": "Podman Engine"}]}, {})
    'Podman'
    >>> product({}, {"Name": "colima", "SecurityOptions": ["name=seccomp"]})
    'Docker in Colima'
    """
    names = [str(json_object(part).get("Name", "")) for part in json_list(said.get("Components"))]
    name, system = str(info.get("Name", "")), str(info.get("OperatingSystem", ""))
    platform = str(json_object(said.get("Platform")).get("Name", ""))
    options = json_list(info.get("SecurityOptions"))
    rootless = info.get("Rootless") is True or any("name=rootless" in str(each) for each in options)
    if any("podman" in part.lower() for part in names):
        found = "Podman"
    elif system == "Docker Desktop" or platform.startswith("Docker Desktop"):
        found = "Docker Desktop"
    elif name == "colima" or name.startswith("colima-"):
        found = "Docker in Colima"
    elif "orbstack" in (name.lower(), system.lower()):
        found = "OrbStack"
    elif "rancher-desktop" in name or system.startswith("Rancher Desktop"):
        found = "Docker in Rancher Desktop"
    else:
        found = "Docker"
    return f"{found} (rootless)" if rootless else found


def _engine(engine: Engine, said: Mapping[str, Any], info: Mapping[str, Any]) -> DoctorCheck:
    endpoint = engine.endpoint
    version = str(said.get("Version", "of unknown version"))
    return DoctorCheck(
        "engine", True, f"{product(said, info)} {version} at {endpoint} (from {endpoint.origin})"
    )


def _api(versions: Versions, said: Mapping[str, Any]) -> DoctorCheck:
    least = str(said.get("MinAPIVersion", "")) or "?"
    newest = versions.engine or str(said.get("ApiVersion", "?"))
    text = f"{versions.used} in use; engine {least} to {newest}, sandboxio {LEAST_API} to {NEWEST_API}"
    return DoctorCheck("api", True, text)


def _os(info: Mapping[str, Any]) -> DoctorCheck:
    kind = str(info.get("OSType", "linux"))
    if kind != "linux":
        return DoctorCheck(
            "containers",
            False,
            f"the engine runs {kind} containers",
            "Switch the engine to Linux containers.",
        )
    return DoctorCheck("containers", True, f"Linux, {info.get('Architecture', 'unknown architecture')}")


def _caps(info: Mapping[str, Any]) -> DoctorCheck:
    """A cap that the kernel does not enforce is not an approximation, it is no cap."""
    version, driver = str(info.get("CgroupVersion", "1")), str(info.get("CgroupDriver", "?"))
    missing = [cap for field, cap in _CAPS.items() if info.get(field) is False]
    where = f"cgroup v{version}, driver {driver}"
    if driver == "none":
        missing = list(_CAPS.values())
    if missing:
        return DoctorCheck(
            "caps",
            False,
            f"the engine does not enforce the {', '.join(missing)} cap ({where})",
            "Boot the engine's machine with cgroup v2 and delegate its controllers to the engine "
            "(rootless: systemd with Delegate=cpu cpuset memory pids).",
        )
    swap = "; swap is not counted" if info.get("SwapLimit") is False else ""
    return DoctorCheck("caps", True, f"memory, CPU and processes are enforced ({where}{swap})")


def _runtimes(info: Mapping[str, Any], chosen: str | None, *, podman: bool) -> DoctorCheck:
    """Docker lists what is registered; Podman what it has a path for, there or not (seen on 4.3)."""
    default = str(info.get("DefaultRuntime", "")) or "runc"
    known = [name for name in json_object(info.get("Runtimes")) if not name.startswith("io.containerd.")]
    if podman:
        return DoctorCheck("runtime", True, f"{chosen} by choice" if chosen else f"{default} by default")
    text = f"{default} by default; known: {', '.join(sorted(known)) or default}"
    if chosen is not None:
        # Newer engines also take the names of containerd's shims, which they do not list.
        there = chosen in known or chosen.startswith("io.containerd.")
        fix = None if there else f"Register {chosen} in the engine's daemon.json, or drop runtime=."
        return DoctorCheck("runtime", there, f"{chosen} by choice; {text}", fix)
    gvisor = [name for name in known if promised(name) is IsolationTier.GVISOR]
    if gvisor:
        return DoctorCheck("runtime", True, f'{text}; gVisor is DockerConfig(runtime="{gvisor[0]}")')
    return DoctorCheck("runtime", True, f"{text}; no gVisor")


async def _image(engine: Engine, image: str, *, pull: str) -> DoctorCheck:
    try:
        found = json_object(await engine.get_json(f"/images/{image}/json"))
    except EngineError as error:
        if error.fault not in (Fault.NO_SUCH_IMAGE, Fault.NOT_FOUND):
            return _failed("image", error)
        return DoctorCheck(
            "image", None, f"{image} is not there; the first sandbox pulls it", f"{pull} {image}"
        )
    except SandboxError as error:
        return _failed("image", error)
    return DoctorCheck("image", True, f"{image} is there ({found.get('Architecture', '?')})")


def _settings(engine: Engine) -> list[DoctorCheck]:
    """Choices of the user that change what is safe; remarks, not failures."""
    checks: list[DoctorCheck] = []
    endpoint = engine.endpoint
    if endpoint.host and endpoint.tls is None and endpoint.host not in ("localhost", "127.0.0.1", "::1"):
        checks.append(
            DoctorCheck(
                "connection",
                None,
                f"{endpoint} is neither encrypted nor authenticated",
                "Use TLS (DOCKER_TLS_VERIFY=1, DOCKER_CERT_PATH), or a socket forwarded over ssh.",
            )
        )
    if os.environ.get("SBX_DOCKER_REAPER") == "0":
        checks.append(
            DoctorCheck(
                "lifeline",
                None,
                "off by SBX_DOCKER_REAPER=0: a sandbox outlives a program that crashed",
                "Unset SBX_DOCKER_REAPER, or run `sandboxio reap` now and then.",
            )
        )
    return checks


def _unreachable(error: SandboxError) -> DoctorCheck:
    fix = error.hint
    if fix == EngineUnavailable.default_hint:  # which sends people to the doctor
        fix = (
            "Start the engine (`sudo systemctl start docker`, `systemctl --user start podman.socket`, or the "
            "Docker Desktop application), or set DOCKER_HOST to its address."
        )
    return DoctorCheck("engine", False, error.message, fix)


def _failed(name: str, error: SandboxError) -> DoctorCheck:
    return DoctorCheck(name, False, error.message, error.hint)


def _installed(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""

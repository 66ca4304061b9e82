"""What this machine has: the report behind ``sandboxio doctor``.

The core asks every registered backend the same question (:class:`DiagnosableBackend`) and knows nothing
about any of them. A backend that is broken, slow or not installed is a line of the report, never an
exception.
"""

from __future__ import annotations

import importlib.metadata
import platform
import re
from dataclasses import dataclass, field
from typing import Any

import anyio

from . import registry
from ._portal import Portal
from ._teardown import seconds_from_environment
from .errors import BackendNotInstalled, SandboxError
from .models import Diagnosis, DoctorCheck, IsolationTier
from .protocols import Backend, DiagnosableBackend

PATIENCE = 15.0
"""Seconds that one backend may take: a silent engine is given up after about four."""
_SECONDS = ("SBX_TEARDOWN_GRACE", "SBX_AUDIT_TIMEOUT")
_DISTRIBUTION = "sandboxio"


@dataclass(frozen=True)
class BackendReport:
    """One backend on this machine.

    ``installed`` is False when its extra is missing; that is no failure, and ``install`` is the command.
    """

    name: str
    installed: bool
    install: str | None = None
    isolation: IsolationTier | None = None
    versions: dict[str, str] = field(default_factory=dict[str, str])
    credentials: dict[str, bool] = field(default_factory=dict[str, bool])
    checks: tuple[DoctorCheck, ...] = ()

    @property
    def healthy(self) -> bool:
        """True unless a check failed; a backend that is not installed has none."""
        return all(check.ok is not False for check in self.checks)


@dataclass(frozen=True)
class DoctorReport:
    """What ``sandboxio.doctor()`` found; free of secrets, fit for a bug report.

    >>> {backend.name: backend.installed for backend in doctor().backends}["fake"]
    True
    """

    sandboxio: str
    python: str
    platform: str
    checks: tuple[DoctorCheck, ...]
    backends: tuple[BackendReport, ...]

    @property
    def healthy(self) -> bool:
        """True if no check failed: of the library itself, and of every installed backend."""
        own = all(check.ok is not False for check in self.checks)
        return own and all(backend.healthy for backend in self.backends)

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON-ready values; what ``sandboxio doctor --json`` prints."""
        return {
            "healthy": self.healthy,
            "sandboxio": self.sandboxio,
            "python": self.python,
            "platform": self.platform,
            "checks": [_check(check) for check in self.checks],
            "backends": [_backend(backend) for backend in self.backends],
        }


def doctor() -> DoctorReport:
    """Look at this machine: what is installed, what answers, what is missing, and the fix for each.

    Blocks for a few seconds at most per backend; works inside a running event loop too. Makes no call
    to a provider, creates nothing, and reports credentials by name only. Raises nothing for what it
    finds.

    >>> report = doctor()
    >>> sorted(report.as_dict())
    ['backends', 'checks', 'healthy', 'platform', 'python', 'sandboxio']
    """
    portal = Portal()
    try:
        backends = portal.call(_examine_all)
    finally:
        portal.close()
    return DoctorReport(
        sandboxio=_version(_DISTRIBUTION),
        python=f"{platform.python_version()} ({platform.python_implementation()})",
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        checks=tuple(_own_checks()),
        backends=backends,
    )


def not_installed(name: str) -> BackendNotInstalled | None:
    """The error for a built-in backend whose extra is incomplete; None if all of it is there.

    The adapter may well be importable: extras share packages. Without its extra it is not supported.
    """
    if registry.is_registered(name):
        return None
    missing = [wanted for wanted in _requirements(name) if _version(wanted) == ""]
    if not missing:
        return None
    return BackendNotInstalled(
        f"The {name!r} backend is not installed ({', '.join(missing)} missing).",
        hint=f'pip install "{_DISTRIBUTION}[{name}]"',
    )


async def _examine_all() -> tuple[BackendReport, ...]:
    return tuple([await _examine(name) for name in registry.names()])


async def _examine(name: str) -> BackendReport:
    if (missing := not_installed(name)) is not None:
        return BackendReport(name, installed=False, install=missing.hint)
    try:
        backend = registry.resolve(name)
    except BackendNotInstalled as error:
        return BackendReport(name, installed=False, install=error.hint)
    except Exception as error:  # noqa: BLE001 - a broken adapter must not hide the others
        return BackendReport(name, installed=True, checks=(_failure("import", error),))
    found = await _diagnose(backend)
    return BackendReport(
        name,
        installed=True,
        isolation=backend.isolation if found.isolation is None else found.isolation,
        versions=dict(found.versions),
        credentials=dict(found.credentials),
        checks=found.checks,
    )


async def _diagnose(backend: Backend) -> Diagnosis:
    if not isinstance(backend, DiagnosableBackend):
        return Diagnosis()
    try:
        with anyio.move_on_after(PATIENCE):
            return await backend.diagnose()
    except Exception as error:  # noqa: BLE001 - a broken adapter must not hide the others
        return Diagnosis(checks=(_failure("diagnosis", error),))
    slow = DoctorCheck(
        "diagnosis",
        False,
        f"no answer within {PATIENCE:g} s",
        "Check that what the backend talks to is running, then try again.",
    )
    return Diagnosis(checks=(slow,))


def _failure(name: str, error: Exception) -> DoctorCheck:
    if isinstance(error, SandboxError):
        return DoctorCheck(name, False, error.message, error.hint)
    return DoctorCheck(
        name,
        False,
        f"the adapter failed with {type(error).__name__}",
        "Upgrade or reinstall the adapter; SBX_DEBUG=1 with `sandboxio demo` shows the traceback.",
    )


def _own_checks() -> list[DoctorCheck]:
    checks = [DoctorCheck("anyio", True, _version("anyio"))]
    for variable in _SECONDS:
        try:
            seconds_from_environment(variable, 1.0)
        except SandboxError as error:
            checks.append(_failure(variable, error))
    return checks


def _requirements(extra: str) -> list[str]:
    """Names of the distributions that an extra of ours brings."""
    pattern = re.compile(rf"([A-Za-z0-9][\w.-]*)[^;]*;.*\bextra\s*==\s*['\"]{re.escape(extra)}['\"]")
    try:
        lines = importlib.metadata.requires(_DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return [match[1] for line in lines if (match := pattern.match(line))]


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _check(check: DoctorCheck) -> dict[str, Any]:
    return {"name": check.name, "ok": check.ok, "detail": check.detail, "fix": check.fix}


def _backend(report: BackendReport) -> dict[str, Any]:
    return {
        "name": report.name,
        "installed": report.installed,
        "install": report.install,
        "healthy": report.healthy,
        "isolation": None if report.isolation is None else report.isolation.value,
        "versions": report.versions,
        "credentials": report.credentials,
        "checks": [_check(check) for check in report.checks],
    }

"""What ``sandboxio doctor`` says about E2B: only what can be seen without asking the service.

Every request to E2B counts against an account, so whether it answers is not looked at.
"""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from sandboxio.errors import SandboxError
from sandboxio.models import Diagnosis, DoctorCheck

from .endpoints import KEY_VARIABLE, read_settings

_OTHERS: Final = ("E2B_DOMAIN", "E2B_API_URL", "E2B_SANDBOX_URL", "E2B_DEBUG")


def diagnose(environ: Mapping[str, str] = os.environ) -> Diagnosis:
    """The settings, and which variables are set; no request is made.

    >>> [check.ok for check in diagnose({}).checks]
    [False]
    >>> diagnose({"E2B_API_KEY": "e2b_0"}).credentials
    {'E2B_API_KEY': True}
    """
    checks: list[DoctorCheck] = []
    try:
        settings = read_settings(environ)
    except SandboxError as error:
        checks.append(DoctorCheck("settings", False, error.message, error.hint))
    else:
        checks.append(DoctorCheck("settings", True, f"{KEY_VARIABLE} is set"))
        where = _host(settings.api_url)
        checks.append(DoctorCheck("service", None, f"{where}; not asked, a request would count"))
    if changed := [name for name in _OTHERS if environ.get(name)]:
        checks.append(DoctorCheck("environment", None, f"{', '.join(changed)} set: not E2B's own cloud"))
    return Diagnosis(
        tuple(checks),
        versions={name: version for name in ("httpx", "e2b") if (version := _installed(name))},
        credentials={KEY_VARIABLE: bool(environ.get(KEY_VARIABLE, "").strip())},
    )


def _host(url: str) -> str:
    """Host and port only: a URL may hold a password."""
    return urlsplit(url).netloc.rpartition("@")[2]


def _installed(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""

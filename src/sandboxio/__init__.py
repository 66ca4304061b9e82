"""One secure Python API for running AI-agent code in any sandbox.

This file only names what is public: nothing is defined here, and no adapter is imported.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from . import errors as errors, protocols as protocols
from .api import connect as connect, create as create
from .errors import (
    AuditSinkError as AuditSinkError,
    AuditSinkWarning as AuditSinkWarning,
    AuthError as AuthError,
    BackendNotFound as BackendNotFound,
    BackendNotInstalled as BackendNotInstalled,
    CapabilityNotSupported as CapabilityNotSupported,
    ConfigurationError as ConfigurationError,
    ConnectError as ConnectError,
    CreateTimeout as CreateTimeout,
    CreationError as CreationError,
    ExecutionError as ExecutionError,
    ExecutionTimeout as ExecutionTimeout,
    ExperimentalWarning as ExperimentalWarning,
    FileSystemError as FileSystemError,
    NetworkPolicyViolation as NetworkPolicyViolation,
    OrphanedSandboxWarning as OrphanedSandboxWarning,
    PathNotFound as PathNotFound,
    RateLimitError as RateLimitError,
    ResourceLimitExceeded as ResourceLimitExceeded,
    SandboxError as SandboxError,
    SandboxGone as SandboxGone,
    SandboxTimeout as SandboxTimeout,
    SandboxWarning as SandboxWarning,
    UnverifiedIsolationWarning as UnverifiedIsolationWarning,
)
from .models import (
    BackendConfig as BackendConfig,
    Capability as Capability,
    Diagnosis as Diagnosis,
    DoctorCheck as DoctorCheck,
    ExecResult as ExecResult,
    FileInfo as FileInfo,
    IsolationTier as IsolationTier,
    ManagedSandbox as ManagedSandbox,
    Meter as Meter,
    NetworkPolicy as NetworkPolicy,
    OutputChunk as OutputChunk,
    Progress as Progress,
    Resources as Resources,
    RichOutput as RichOutput,
)
from .registry import register as register

if TYPE_CHECKING:
    from . import audit as audit, sync as sync, testing as testing
    from ._doctor import DoctorReport as DoctorReport, doctor as doctor
    from .sync import connect_sync as connect_sync, create_sync as create_sync

_LAZY = {
    "connect_sync": "sync",
    "create_sync": "sync",
    "doctor": "_doctor",
    "DoctorReport": "_doctor",
    "audit": "",
    "sync": "",
    "testing": "",
}
"""Name -> module that defines it ("" for a module itself): what few programs need costs no import time."""


def __getattr__(name: str) -> object:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if not module:
        return importlib.import_module(f"{__name__}.{name}")
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})

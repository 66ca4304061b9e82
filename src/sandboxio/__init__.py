"""One secure Python API for running AI-agent code in any sandbox.

This file only names what is public: nothing is defined here, and no adapter is imported.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from . import errors as errors
from . import protocols as protocols
from .api import connect as connect
from .api import create as create
from .errors import (
    AuditSinkError as AuditSinkError,
)
from .errors import (
    AuditSinkWarning as AuditSinkWarning,
)
from .errors import (
    AuthError as AuthError,
)
from .errors import (
    BackendNotFound as BackendNotFound,
)
from .errors import (
    BackendNotInstalled as BackendNotInstalled,
)
from .errors import (
    CapabilityNotSupported as CapabilityNotSupported,
)
from .errors import (
    ConfigurationError as ConfigurationError,
)
from .errors import (
    ConnectError as ConnectError,
)
from .errors import (
    CreateTimeout as CreateTimeout,
)
from .errors import (
    CreationError as CreationError,
)
from .errors import (
    ExecutionError as ExecutionError,
)
from .errors import (
    ExecutionTimeout as ExecutionTimeout,
)
from .errors import (
    ExperimentalWarning as ExperimentalWarning,
)
from .errors import (
    FileSystemError as FileSystemError,
)
from .errors import (
    NetworkPolicyViolation as NetworkPolicyViolation,
)
from .errors import (
    OrphanedSandboxWarning as OrphanedSandboxWarning,
)
from .errors import (
    PathNotFound as PathNotFound,
)
from .errors import (
    RateLimitError as RateLimitError,
)
from .errors import (
    ResourceLimitExceeded as ResourceLimitExceeded,
)
from .errors import (
    SandboxError as SandboxError,
)
from .errors import (
    SandboxGone as SandboxGone,
)
from .errors import (
    SandboxTimeout as SandboxTimeout,
)
from .errors import (
    SandboxWarning as SandboxWarning,
)
from .errors import (
    UnverifiedIsolationWarning as UnverifiedIsolationWarning,
)
from .models import (
    BackendConfig as BackendConfig,
)
from .models import (
    Capability as Capability,
)
from .models import (
    Diagnosis as Diagnosis,
)
from .models import (
    DoctorCheck as DoctorCheck,
)
from .models import (
    ExecResult as ExecResult,
)
from .models import (
    FileInfo as FileInfo,
)
from .models import (
    IsolationTier as IsolationTier,
)
from .models import (
    ManagedSandbox as ManagedSandbox,
)
from .models import (
    Meter as Meter,
)
from .models import (
    NetworkPolicy as NetworkPolicy,
)
from .models import (
    OutputChunk as OutputChunk,
)
from .models import (
    Progress as Progress,
)
from .models import (
    Resources as Resources,
)
from .models import (
    RichOutput as RichOutput,
)
from .registry import register as register

if TYPE_CHECKING:
    from . import audit as audit
    from . import sync as sync
    from . import testing as testing
    from ._doctor import DoctorReport as DoctorReport
    from ._doctor import doctor as doctor
    from .sync import connect_sync as connect_sync
    from .sync import create_sync as create_sync

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

"""The error tree: stable codes, a fix in every instance, nothing builtin, picklable."""

from __future__ import annotations

import builtins
import copy
import pickle
import warnings

import pytest

import sandboxio
from sandboxio import errors
from sandboxio.models import ExecResult

CODES = {
    "ConfigurationError": "SBX_E1000",
    "BackendNotFound": "SBX_E1001",
    "BackendNotInstalled": "SBX_E1002",
    "CapabilityNotSupported": "SBX_E1101",
    "CreationError": "SBX_E1201",
    "ConnectError": "SBX_E1202",
    "CreateTimeout": "SBX_E1203",
    "SandboxGone": "SBX_E1204",
    "ExecutionError": "SBX_E1301",
    "ExecutionTimeout": "SBX_E1302",
    "NetworkPolicyViolation": "SBX_E1401",
    "ResourceLimitExceeded": "SBX_E1402",
    "AuthError": "SBX_E1501",
    "RateLimitError": "SBX_E1502",
    "AuditSinkError": "SBX_E1601",
    "FileSystemError": "SBX_E1700",
    "PathNotFound": "SBX_E1701",
}
EVERY = [pytest.param(error, id=error.__name__) for error in errors.catalogue()]


def test_the_catalogue_is_the_published_table() -> None:
    assert {error.__name__: error.code for error in errors.catalogue()} == CODES


@pytest.mark.parametrize("error", EVERY)
def test_every_instance_carries_code_fix_and_page(error: type[errors.SandboxError]) -> None:
    text = str(error("Something happened."))
    assert text.startswith(f"[{error.code}] Something happened.\n  Fix:  ")
    assert f"https://docs.sandboxio.dev/errors/{error.code}/" in text
    assert error("x").hint.strip()
    assert error("x", hint="do this").hint == "do this"


@pytest.mark.parametrize("error", EVERY)
def test_no_error_inherits_a_builtin_or_shadows_one(error: type[errors.SandboxError]) -> None:
    foreign = {base for base in error.__mro__ if base.__module__ == "builtins"}
    assert foreign == {Exception, BaseException, object}
    assert not hasattr(builtins, error.__name__)


@pytest.mark.parametrize("error", EVERY)
def test_an_error_survives_pickle_and_copy_with_all_it_knows(error: type[errors.SandboxError]) -> None:
    before = error("Something happened.", hint="Do this.")
    before.partial = ExecResult(1, "out", "err")  # type: ignore[attr-defined]
    for after in (pickle.loads(pickle.dumps(before)), copy.copy(before)):
        assert (type(after), str(after), after.hint) == (error, str(before), "Do this.")
        assert after.partial == before.partial  # type: ignore[attr-defined]


@pytest.mark.parametrize("base", [errors.SandboxError, errors.SandboxTimeout])
def test_a_base_without_a_code_cannot_be_raised(base: type[errors.SandboxError]) -> None:
    with pytest.raises(TypeError, match="base class"):
        base("x")


def test_timeouts_are_caught_by_their_base_and_sandbox_gone_is_none() -> None:
    assert issubclass(errors.CreateTimeout, errors.SandboxTimeout)
    assert issubclass(errors.CreateTimeout, errors.CreationError)
    assert issubclass(errors.ExecutionTimeout, errors.SandboxTimeout)
    assert not issubclass(errors.SandboxGone, errors.SandboxTimeout)
    assert issubclass(errors.PathNotFound, errors.FileSystemError)
    assert issubclass(errors.BackendNotInstalled, errors.ConfigurationError)


def test_every_error_and_warning_is_a_name_of_the_package() -> None:
    for name in (*CODES, "SandboxError", "SandboxTimeout", "OrphanedSandboxWarning", "AuditSinkWarning"):
        assert getattr(sandboxio, name) is getattr(errors, name)


def test_warnings_can_be_silenced_together() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", errors.SandboxWarning)
        warnings.warn("x", errors.OrphanedSandboxWarning, stacklevel=1)

"""``sandboxio doctor`` and ``sandboxio.doctor()``: what they find, and what they never print."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

import sandboxio
from sandboxio import Capability, Diagnosis, DoctorCheck, IsolationTier, _doctor, registry
from sandboxio.errors import AuthError, BackendNotInstalled, ConfigurationError
from sandboxio.testing import FakeBackend

from .conftest import Command

Only = Callable[..., None]


class Examined(FakeBackend):
    """A third party's backend that takes part."""

    found = Diagnosis(
        (
            DoctorCheck("service", True, "it answers"),
            DoctorCheck("quota", None, "7 of 10 used"),
        ),
        isolation=IsolationTier.MICROVM,
        versions={"acme-sdk": "1.2"},
        credentials={"ACME_TOKEN": True, "ACME_REGION": False},
    )

    async def diagnose(self) -> Diagnosis:
        await anyio.lowlevel.checkpoint()
        return self.found


def broken() -> FakeBackend:
    raise AuthError("ACME_TOKEN is not set.", hint="export ACME_TOKEN=...")


def test_a_third_party_takes_part(command: Command, only: Only) -> None:
    only(acme=Examined)
    ran = command("doctor")
    assert ran.code == 0
    assert ran.out.split("\n\n")[1] == (
        "acme: healthy, isolation tier microvm\n"
        "  ok    service      it answers\n"
        "  -     quota        7 of 10 used\n"
        "  -     ACME_TOKEN   set\n"
        "  -     ACME_REGION  not set\n"
        "  -     versions     acme-sdk 1.2\n"
    )


def test_json_has_the_same_payload(command: Command, only: Only) -> None:
    only(acme=Examined, other=FakeBackend)
    payload = command("doctor", "--json").payload
    assert payload == json.loads(json.dumps(sandboxio.doctor().as_dict()))
    assert payload["healthy"] is True
    acme, other = payload["backends"]
    assert acme == {
        "name": "acme",
        "installed": True,
        "install": None,
        "healthy": True,
        "isolation": "microvm",
        "versions": {"acme-sdk": "1.2"},
        "credentials": {"ACME_TOKEN": True, "ACME_REGION": False},
        "checks": [
            {"name": "service", "ok": True, "detail": "it answers", "fix": None},
            {"name": "quota", "ok": None, "detail": "7 of 10 used", "fix": None},
        ],
    }
    assert other["isolation"] == "container"


def failing() -> Examined:
    backend = Examined()
    backend.found = Diagnosis((DoctorCheck("service", False, "it is down", "start it"),))
    return backend


class Raising(Examined):
    async def diagnose(self) -> Diagnosis:
        raise AuthError("ACME_TOKEN was refused.", hint="Renew it.")


class Crashing(Examined):
    async def diagnose(self) -> Diagnosis:
        raise LookupError("token sk-12345678")


class Stuck(Examined):
    async def diagnose(self) -> Diagnosis:
        await anyio.sleep_forever()
        return self.found


def unimportable() -> FakeBackend:
    raise SyntaxError("sk-12345678")


@pytest.mark.parametrize(
    ("factory", "name", "detail", "fix"),
    [
        (failing, "service", "it is down", "start it"),
        (Raising, "diagnosis", "ACME_TOKEN was refused.", "Renew it."),
        (Crashing, "diagnosis", "the adapter failed with LookupError", "Upgrade"),
        (broken, "import", "ACME_TOKEN is not set.", "export ACME_TOKEN=..."),
        (unimportable, "import", "the adapter failed with SyntaxError", "Upgrade"),
        (Stuck, "diagnosis", "no answer within 0.05 s", "Check that"),
    ],
)
def test_a_failure_is_a_line_with_its_fix_and_hides_nobody_else(
    command: Command,
    only: Only,
    monkeypatch: pytest.MonkeyPatch,
    factory: Callable[[], FakeBackend],
    name: str,
    detail: str,
    fix: str,
) -> None:
    monkeypatch.setattr(_doctor, "PATIENCE", 0.05)
    only(acme=factory, other=FakeBackend)
    ran = command("doctor")
    assert ran.code == 1
    assert re.search(rf"  FAIL  {name} +{re.escape(detail)}", ran.out)
    assert f"        fix: {fix}" in ran.out
    assert "acme: not working" in ran.out
    assert "other: healthy" in ran.out
    assert "sk-12345678" not in ran.out + ran.err
    assert command("doctor", "--json").payload["healthy"] is False


def test_a_failed_check_without_a_fix_cannot_be_made() -> None:
    with pytest.raises(ConfigurationError, match="names no fix"):
        DoctorCheck("x", False, "broken")


def test_what_is_not_installed_is_no_failure(command: Command, only: Only) -> None:
    def missing() -> FakeBackend:
        raise BackendNotInstalled("No.", hint='pip install "sandboxio[acme]"')

    only(acme=missing)
    ran = command("doctor")
    assert ran.code == 0
    assert 'acme: not installed\n        install: pip install "sandboxio[acme]"\n' in ran.out


@pytest.mark.parametrize(
    ("installed", "missing"),
    [
        ({"anyio", "typing_extensions"}, ["docker", "e2b"]),
        ({"anyio", "typing_extensions", "httpx", "h11"}, ["e2b"]),
        ({"anyio", "typing_extensions", "httpx", "h11", "e2b"}, []),
    ],
)
def test_an_extra_counts_only_when_all_of_it_is_there(
    monkeypatch: pytest.MonkeyPatch, installed: set[str], missing: list[str]
) -> None:
    monkeypatch.setattr(_doctor, "_version", lambda name: "1" if name in installed else "")
    assert [name for name in ("docker", "e2b", "fake") if _doctor.not_installed(name)] == missing


def test_a_registered_backend_needs_no_extra(monkeypatch: pytest.MonkeyPatch, only: Only) -> None:
    monkeypatch.setattr(_doctor, "_version", lambda name: "")
    only(docker=FakeBackend)
    assert _doctor.not_installed("docker") is None


@pytest.mark.parametrize("variable", ["SBX_TEARDOWN_GRACE", "SBX_AUDIT_TIMEOUT"])
def test_a_variable_that_would_break_every_kill(
    command: Command, only: Only, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    only()
    monkeypatch.setenv(variable, "soon")
    ran = command("doctor")
    assert ran.code == 1
    assert f"FAIL  {variable}" in ran.out
    assert f"fix: export {variable}=" in ran.out


def test_no_credential_is_printed_whatever_is_set(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Over all real backends of this machine, with every variable holding a value of its own."""
    monkeypatch.setenv("HOME", str(tmp_path))
    values = {
        "E2B_API_KEY": "e2b_0123456789abcdef",
        "E2B_ACCESS_TOKEN": "sk_e2b_0123456789",
        "E2B_API_URL": "https://somebody:hunter2hunter2@e2b.internal/x",
        "DOCKER_HOST": "tcp://somebody:hunter2hunter2@127.0.0.1:1",
        "DOCKER_AUTH_CONFIG": '{"auths":{"r":{"auth":"c29tZWJvZHk6"}}}',
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    for options in ([], ["--json"]):
        ran = command("doctor", *options)
        for secret in ("e2b_0123456789abcdef", "sk_e2b", "hunter2", "c29tZWJvZHk6"):
            assert secret not in ran.out + ran.err


async def test_inside_a_running_loop(only: Only) -> None:
    await anyio.lowlevel.checkpoint()
    only(acme=Examined)
    assert sandboxio.doctor().healthy


def test_the_report_is_frozen_and_says_where_it_ran(only: Only) -> None:
    only(acme=Examined)
    report = sandboxio.doctor()
    assert isinstance(report, sandboxio.DoctorReport)
    with pytest.raises(AttributeError):
        report.python = "2.7"  # type: ignore[misc]
    assert report.python.startswith("3.")
    assert report.platform.split()[0] == os.uname().sysname


def test_the_capabilities_of_a_backend_do_not_matter(command: Command, only: Only) -> None:
    only(tiny=lambda: FakeBackend(capabilities=Capability(0)))
    assert command("doctor").code == 0
    assert registry.names() == ["tiny"]

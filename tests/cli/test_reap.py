"""``sandboxio reap``: a dry run unless told otherwise; what fails fails loudly."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

import anyio
import anyio.lowlevel
import pytest

import sandboxio
from sandboxio import AuthError, BackendNotInstalled, ConnectError, ManagedSandbox
from sandboxio.testing import FakeBackend

from .conftest import Command

Only = Callable[..., None]


class Store(FakeBackend):
    """A provider that still holds three sandboxes."""

    def __init__(self) -> None:
        super().__init__()
        now = datetime.now(UTC)
        self.held = [
            ManagedSandbox("a" * 64, "store", "running", now - timedelta(minutes=5), {"tenant_id": "acme"}),
            ManagedSandbox(
                "b2", "store", "stopped", now - timedelta(days=3), {"tenant_id": "other", "run": "7"}
            ),
            ManagedSandbox("c3", "store", "paused"),
        ]
        self.killed: list[str] = []
        self.refuses: set[str] = set()
        self.breaks: set[str] = set()
        self.gone: set[str] = set()

    async def list_managed(self, *, labels: Mapping[str, str] | None = None) -> list[ManagedSandbox]:
        await anyio.lowlevel.checkpoint()
        wanted = (labels or {}).items()
        return [each for each in self.held if wanted <= each.labels.items()]

    async def kill_managed(self, sandbox_id: str) -> bool:
        await anyio.lowlevel.checkpoint()
        if sandbox_id in self.refuses:
            raise ConnectError("The provider refuses.", hint="Ask it.")
        if sandbox_id in self.breaks:
            raise KeyError("sandbox")
        self.killed.append(sandbox_id)
        return sandbox_id not in self.gone


@pytest.fixture
def store(only: Only) -> Store:
    store = Store()
    only(store=lambda: store)
    return store


def test_it_lists_and_removes_nothing(command: Command, store: Store) -> None:
    ran = command("reap")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == (
        "store: 3 sandboxes\n"
        f"  {'a' * 24}  running  5 min old  tenant_id=acme\n"
        "  b2  stopped  3 d old  run=7  tenant_id=other\n"
        "  c3  paused\n"
        "Nothing was removed. Remove them with --kill.\n"
    )
    assert store.killed == []


def test_with_kill_it_removes_what_it_listed(command: Command, store: Store) -> None:
    store.gone = {"b2"}
    ran = command("reap", "--kill")
    assert ran.code == 0
    assert store.killed == ["a" * 64, "b2", "c3"]
    assert [line.split()[-1] for line in ran.out.splitlines()[1:]] == ["removed", "gone", "removed"]


def test_labels_narrow_together(command: Command, store: Store) -> None:
    command("reap", "--kill", "--label", "tenant_id=other", "--label", "run=7")
    assert store.killed == ["b2"]
    store.killed.clear()
    command("reap", "--kill", "--label", "tenant_id=other", "--label", "run=8")
    assert store.killed == []


def test_a_label_value_may_hold_an_equals_sign(command: Command, store: Store) -> None:
    assert command("reap", "--json", "--label", "a=b=c").payload["labels"] == {"a": "b=c"}


def test_one_refusal_does_not_stop_the_others_and_is_1(command: Command, store: Store) -> None:
    store.refuses = {"a" * 64}
    ran = command("reap", "--kill")
    assert ran.code == 1
    assert store.killed == ["b2", "c3"]
    assert "failed\n      The provider refuses.\n      fix: Ask it.\n" in ran.out


def test_an_adapter_that_breaks_at_one_removal_does_not_stop_the_others_and_is_1(
    command: Command, store: Store
) -> None:
    store.breaks = {"a" * 64}
    ran = command("reap", "--kill")
    assert (ran.code, ran.err) == (1, "")
    assert store.killed == ["b2", "c3"]
    assert "failed\n      The adapter of 'store' failed: KeyError: 'sandbox'\n" in ran.out
    first, *_ = command("reap", "--kill", "--json").payload["backends"][0]["sandboxes"]
    assert (first["outcome"], first["error"]["code"]) == ("failed", ConnectError.code)


def test_a_time_without_a_zone_is_utc(command: Command, store: Store) -> None:
    made = datetime.now(UTC).replace(tzinfo=None) - timedelta(hours=2)
    store.held = [ManagedSandbox("a1", "store", "running", made)]
    ran = command("reap", "--kill")
    assert (ran.code, ran.out) == (0, "store: 1 sandbox\n  a1  running  2 h old  removed\n")


def test_json_has_the_same_facts(command: Command, store: Store) -> None:
    store.refuses = {"c3"}
    payload = command("reap", "--kill", "--json").payload
    assert payload["kill"] is True
    (backend,) = payload["backends"]
    assert (backend["name"], backend["status"], backend["error"]) == ("store", "listed", None)
    first, second, third = backend["sandboxes"]
    assert first["sandbox_id"] == "a" * 64
    assert datetime.fromisoformat(first["created_at"]).tzinfo is not None
    assert (first["outcome"], second["outcome"], third["outcome"]) == ("removed", "removed", "failed")
    assert third["error"]["code"] == "SBX_E1202"
    assert third["created_at"] is None


def missing() -> FakeBackend:
    raise BackendNotInstalled("No.", hint='pip install "sandboxio[acme]"')


class Unlisted(FakeBackend):
    async def list_managed(self, *, labels: object = None) -> list[ManagedSandbox]:
        raise AuthError("ACME_TOKEN is not set.", hint="export ACME_TOKEN=...")


class Crashing(FakeBackend):
    async def list_managed(self, *, labels: object = None) -> list[ManagedSandbox]:
        raise LookupError("odd")


class Plain:
    """A third party's backend that cannot list."""

    name = "plain"
    capabilities = sandboxio.Capability(0)
    isolation = sandboxio.IsolationTier.UNKNOWN

    async def create(self) -> None: ...
    async def connect(self, sandbox_id: str) -> None: ...


@pytest.mark.parametrize(
    ("factory", "code", "status", "line"),
    [
        (missing, 0, "not installed", '  fix: pip install "sandboxio[acme]"\n'),
        (Unlisted, 1, "failed", "  ACME_TOKEN is not set.\n  fix: export ACME_TOKEN=...\n"),
        (Crashing, 1, "failed", "  The adapter of 'other' failed: LookupError: odd\n"),
        (Plain, 0, "cannot list", "  Backend 'other' cannot list its sandboxes.\n"),
    ],
)
def test_a_backend_that_cannot_be_listed(
    command: Command,
    only: Only,
    factory: Callable[[], FakeBackend],
    code: int,
    status: str,
    line: str,
) -> None:
    store = Store()
    only(other=factory, store=lambda: store)
    ran = command("reap", "--kill")
    assert ran.code == code
    assert f"other: {status}\n" in ran.out
    assert line in ran.out
    assert len(store.killed) == 3


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_where_it_failed_is_shown_on_request(
    command: Command, only: Only, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    store = Store()
    store.breaks, store.refuses = {"a" * 64}, {"b2"}
    only(crashing=Crashing, store=lambda: store, unlisted=Unlisted)
    assert command("reap", "--kill", *options).err == ""
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    monkeypatch.setenv("SBX_DEBUG", "1")
    ran = command("reap", "--kill", *options)
    assert ran.code == 1
    for line in (
        'LookupError("odd")',
        'AuthError("ACME',
        'KeyError("sandbox")',
        'ConnectError("The provider',
    ):
        assert f"raise {line}" in ran.err


@pytest.mark.parametrize(("factory", "code"), [(missing, 1), (Plain, 1)])
def test_asked_for_by_name(
    command: Command, only: Only, factory: Callable[[], FakeBackend], code: int
) -> None:
    store = Store()
    only(other=factory, store=lambda: store)
    ran = command("reap", "--backend", "other")
    assert ran.code == code
    assert "store" not in ran.out


def test_a_name_that_nobody_has_is_1(command: Command, store: Store) -> None:
    ran = command("reap", "--backend", "nonsense")
    assert ran.code == 1
    assert "There is no backend 'nonsense'" in ran.out


def test_a_dsn_names_its_backend_and_twice_is_once(command: Command, store: Store) -> None:
    ran = command("reap", "--backend", "store://", "--backend", "store")
    assert ran.code == 0
    assert ran.out.count("store: 3 sandboxes") == 1


def test_by_default_every_backend_but_the_fake(command: Command) -> None:
    """Those of this machine: what cannot be reached is reported, and only that matters here."""
    payload = command("reap", "--json").payload
    names = [backend["name"] for backend in payload["backends"]]
    assert {"docker", "e2b"} <= set(names)
    assert "fake" not in names


def test_what_it_lists_is_what_create_made(command: Command, fake: FakeBackend) -> None:
    with sandboxio.create_sync("docker://", metadata={"tenant_id": "acme"}) as sandbox:
        ran = command("reap", "--backend", "docker", "--label", "tenant_id=acme")
        assert sandbox.id in ran.out
        assert command("reap", "--backend", "docker", "--kill").code == 0
        with pytest.raises(sandboxio.SandboxGone):
            sandbox.run(["true"])
    assert command("reap", "--backend", "docker").out == "docker: no sandboxes\n"


ABANDONED = """
import os, signal, sys
import sandboxio
sandbox = sandboxio.create_sync(sys.argv[1], metadata={"run": sys.argv[2]})
print(sandbox.id, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.engine
def test_on_docker_what_a_crashed_program_left(command: Command, docker_image: str) -> None:
    """With the lifeline switched off a container outlives its creator: this is how it is found."""
    label = uuid.uuid4().hex
    crashed = subprocess.run(
        [sys.executable, "-c", ABANDONED, f"docker://{docker_image}", label],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "SBX_DOCKER_REAPER": "0"},
    )
    assert crashed.returncode == -signal.SIGKILL
    sandbox_id = crashed.stdout.strip()
    narrowed = ("reap", "--backend", "docker", "--label", f"run={label}")
    (backend,) = command(*narrowed, "--json").payload["backends"]
    assert [(one["sandbox_id"], one["outcome"]) for one in backend["sandboxes"]] == [(sandbox_id, "kept")]
    (backend,) = command(*narrowed, "--kill", "--json").payload["backends"]
    assert [(one["sandbox_id"], one["outcome"]) for one in backend["sandboxes"]] == [(sandbox_id, "removed")]
    assert command(*narrowed).out == "docker: no sandboxes\n"

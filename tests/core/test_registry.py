"""Names to backends: lazy, cached, and an error that says what to install."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

import sandboxio
from sandboxio import (
    BackendNotFound,
    BackendNotInstalled,
    Capability,
    CapabilityNotSupported,
    ConfigurationError,
    IsolationTier,
    registry,
)

from .scripted import ScriptedBackend


@pytest.fixture(autouse=True)
def clean_registry() -> Iterator[None]:
    """What other tests have resolved stays in the registry as well."""
    for name in ("mine", "docker", "e2b"):
        registry.unregister(name)
    yield
    for name in ("mine", "docker", "e2b"):
        registry.unregister(name)


def test_a_registration_beats_the_entry_point_and_is_made_once() -> None:
    made: list[ScriptedBackend] = []

    def factory() -> ScriptedBackend:
        made.append(ScriptedBackend())
        return made[-1]

    sandboxio.register("docker", factory)
    assert made == []
    assert registry.resolve("docker") is registry.resolve("docker") is made[0]
    sandboxio.register("docker", factory)
    assert registry.resolve("docker") is made[1]


def test_a_registration_may_be_text() -> None:
    sandboxio.register("mine", f"{ScriptedBackend.__module__}:ScriptedBackend")
    assert isinstance(registry.resolve("mine"), ScriptedBackend)
    assert "mine" in registry.names()


def test_registration_needs_no_import_before_it_is_used() -> None:
    sandboxio.register("mine", "no_such_module:Backend")
    with pytest.raises(BackendNotFound, match="no_such_module:Backend") as caught:
        registry.resolve("mine")
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)
    sandboxio.register("mine", "os:NoSuchName")
    with pytest.raises(BackendNotFound, match="os:NoSuchName"):
        registry.resolve("mine")


@pytest.mark.parametrize("name", ["", "a b", "a-b", "http://x", None])
def test_a_name_is_an_identifier(name: str) -> None:
    with pytest.raises(ConfigurationError, match="identifier"):
        sandboxio.register(name, ScriptedBackend)


@pytest.mark.parametrize("factory", ["no-colon", "a:b:c", 3, None])
def test_a_factory_is_a_callable_or_a_path(factory: object) -> None:
    with pytest.raises(ConfigurationError, match="callable or the text"):
        sandboxio.register("mine", factory)  # type: ignore[arg-type]


def test_what_is_no_backend_is_refused_by_name() -> None:
    sandboxio.register("mine", dict)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="dict lacks name, capabilities"):
        registry.resolve("mine")


def test_an_unknown_name_lists_what_there_is() -> None:
    with pytest.raises(BackendNotFound, match=r"no backend 'nope'; known: docker, e2b, fake") as caught:
        registry.resolve("nope")
    assert "sandboxio doctor" in caught.value.hint


@pytest.mark.parametrize("name", ["dokcer", "Docker", "dockr"])
def test_a_misspelt_name_is_told_what_was_meant(name: str) -> None:
    with pytest.raises(BackendNotFound) as caught:
        registry.resolve(name)
    assert caught.value.hint == 'Did you mean "docker://"?'


class Silent:
    """A third party's backend that declares no tier."""

    name = "silent"
    capabilities = Capability(0)

    async def create(self) -> None: ...
    async def connect(self, sandbox_id: str) -> None: ...


async def test_a_backend_without_a_tier_is_unknown_and_satisfies_nothing() -> None:
    sandboxio.register("mine", Silent)  # type: ignore[arg-type]
    assert registry.resolve("mine").isolation is IsolationTier.UNKNOWN
    with pytest.raises(ConfigurationError, match="tier 'unknown' and 'container' is required"):
        await sandboxio.create("mine://", require_isolation=IsolationTier.CONTAINER)


def test_a_known_backend_without_its_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BackendNotInstalled) as caught:
        registry.resolve("modal")
    assert caught.value.hint == 'pip install "sandboxio[modal]"'

    class Point:
        name = "e2b"

        def load(self) -> object:
            raise ModuleNotFoundError("No module named 'httpx'", name="httpx")

    monkeypatch.setattr(registry, "_entry_points", lambda: [Point()])
    registry.unregister("e2b")
    with pytest.raises(BackendNotInstalled, match="httpx is missing") as caught:
        registry.resolve("e2b")
    assert caught.value.hint == 'pip install "sandboxio[e2b]"'
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_a_missing_module_of_our_own_is_a_bug_and_not_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    class Point:
        name = "e2b"

        def load(self) -> object:
            raise ModuleNotFoundError("No module named 'sandboxio_e2b.gone'", name="sandboxio_e2b.gone")

    monkeypatch.setattr(registry, "_entry_points", lambda: [Point()])
    with pytest.raises(ModuleNotFoundError):
        registry.resolve("e2b")


def test_who_can_do_it_is_asked_of_the_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    sandboxio.register("mine", ScriptedBackend)
    monkeypatch.setattr(registry, "names", lambda: ["mine", "modal"])
    assert registry.supporting(Capability.RUN_CODE) == ["mine"]
    assert registry.supporting(Capability.GPU) == []


async def test_a_broken_adapter_does_not_hide_the_refusal_of_another_one() -> None:
    """Each installed one is asked who can do it."""
    sandboxio.register("mine", lambda: 1 // 0)  # type: ignore[arg-type, return-value]
    backend = ScriptedBackend()
    backend.capabilities = Capability.RUN_COMMAND | Capability.NETWORK_POLICY
    async with await backend.create() as sandbox:
        with pytest.raises(CapabilityNotSupported, match="does not declare FILESYSTEM"):
            await sandbox.files.read("x")


def test_importing_the_package_loads_no_adapter_and_no_sdk() -> None:
    check = (
        "import sys, sandboxio; "
        "bad = [m for m in sys.modules if m.split('.')[0] in "
        "{'sandboxio_docker', 'sandboxio_e2b', 'httpx', 'h11', 'e2b', 'trio', 'pytest', 'opentelemetry'}]; "
        "print(*bad)"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "\n", "")

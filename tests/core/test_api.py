"""create() and connect(): resolution, merging, isolation before provisioning."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import sandboxio
from sandboxio import (
    BackendConfig,
    ConfigurationError,
    ConnectError,
    IsolationTier,
    NetworkPolicy,
    Resources,
    api,
    registry,
)
from sandboxio.audit import AuditConfig
from sandboxio.protocols import Backend
from sandboxio.testing import FakeBackend

from .scripted import ScriptedBackend, ScriptedSandbox, World


@dataclass(frozen=True, kw_only=True)
class SpecialConfig(BackendConfig):
    backend: str = "mine"
    tier: IsolationTier = IsolationTier.GVISOR


class ConfigurableScripted(ScriptedBackend):
    def configured(self, config: BackendConfig) -> Backend:
        assert isinstance(config, SpecialConfig)
        other = ConfigurableScripted(self.world)
        other.isolation = config.tier
        return other


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    sandboxio.register("mine", lambda: ConfigurableScripted(world))
    yield world
    registry.unregister("mine")
    registry.unregister("docker")
    api._warned.discard("scripted")


async def test_a_dsn_makes_a_sandbox_and_the_context_ends_it(world: World) -> None:
    async with await sandboxio.create("mine://t?timeout=7") as sandbox:
        assert sandbox.id in world.sandboxes
        assert sandbox.isolation is IsolationTier.CONTAINER
    assert world.sandboxes == set()


async def test_no_target_is_docker(world: World) -> None:
    sandboxio.register("docker", lambda: ScriptedBackend(world))
    async with await sandboxio.create():
        assert world.sandboxes


@pytest.mark.parametrize(
    ("argument", "target"),
    [
        ({"timeout": 5}, "mine://?timeout=6"),
        ({"timeout": float("300")}, "mine://?timeout=600"),
        ({"timeout": 600}, "mine://?timeout=300"),
        ({"timeout": 600}, BackendConfig(backend="mine", timeout=300)),
        ({"template": "a"}, "mine://b"),
        (
            {"network": NetworkPolicy(egress="allow")},
            BackendConfig(backend="mine", network=NetworkPolicy(allow=("a",))),
        ),
        (
            {"network": NetworkPolicy(egress="deny")},
            BackendConfig(backend="mine", network=NetworkPolicy(egress="allow")),
        ),
        (
            {"network": NetworkPolicy(egress="allow")},
            BackendConfig(backend="mine", network=NetworkPolicy(egress="deny")),
        ),
        ({"resources": Resources(cpu=1)}, BackendConfig(backend="mine", resources=Resources(cpu=2))),
        ({"metadata": {"a": "1"}}, BackendConfig(backend="mine", metadata={"a": "2"})),
    ],
)
async def test_two_different_values_for_one_thing_are_refused(
    argument: dict, target: object, world: World
) -> None:
    with pytest.raises(ConfigurationError, match=f"given {next(iter(argument))} twice"):
        await sandboxio.create(target, **argument)  # type: ignore[arg-type]
    assert world.gates == 0


@pytest.mark.parametrize("name", ["env", "secrets", "metadata"])
async def test_a_value_given_twice_is_not_shown(name: str, world: World) -> None:
    config = BackendConfig(backend="mine", **{name: {"A": "first-value"}})  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError) as caught:
        await sandboxio.create(config, **{name: {"A": "other-value"}})  # type: ignore[arg-type]
    assert "value" not in str(caught.value)


@pytest.mark.parametrize("name", ["env", "secrets", "metadata"])
async def test_what_is_no_mapping_in_a_config_is_named(name: str, world: World) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} must be a mapping"):
        await sandboxio.create(BackendConfig(backend="mine", **{name: ["A=value"]}))  # type: ignore[arg-type]


async def test_the_same_value_twice_is_fine(world: World) -> None:
    async with await sandboxio.create("mine://b?timeout=6", timeout=6, template="b"):
        pass


@pytest.mark.parametrize("facade", ["async", "sync"])
async def test_a_policy_that_was_given_once_holds(facade: str, world: World) -> None:
    fake = FakeBackend()
    sandboxio.register("mine", lambda: fake)
    deny, everything = NetworkPolicy(), NetworkPolicy(egress="allow")
    cases: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
        ({}, {}),
        ({"network": deny}, {}),
        ({}, {"network": deny}),
        ({"network": deny}, {"network": deny}),
        ({"network": everything}, {}),
        ({}, {"network": everything}),
    )
    for arguments, config in cases:
        target = BackendConfig(backend="mine", **config)
        if facade == "async":
            await (await sandboxio.create(target, **arguments)).kill()
        else:
            sandboxio.create_sync(target, **arguments).close()
    created = [call.network for call in fake.calls if call.op == "create"]
    assert created == [deny] * 4 + [everything] * 2


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda config: pickle.loads(pickle.dumps(config))]
)
async def test_a_copy_of_a_config_gives_what_the_config_gives_and_no_more(
    copied: Callable[[BackendConfig], BackendConfig], world: World
) -> None:
    silent = copied(BackendConfig(backend="mine"))
    async with await sandboxio.create(silent, network=NetworkPolicy(egress="allow")):
        pass
    deny = copied(BackendConfig(backend="mine", network=NetworkPolicy()))
    with pytest.raises(ConfigurationError, match="network twice"):
        await sandboxio.create(deny, network=NetworkPolicy(egress="allow"))
    async with await sandboxio.create(silent, timeout=60):
        pass
    with pytest.raises(ConfigurationError, match="timeout twice"):
        await sandboxio.create(copied(BackendConfig(backend="mine", timeout=300)), timeout=60)
    hosts = NetworkPolicy(allow=("a",), ingress_ports=(80,))
    assert copied(BackendConfig(backend="mine", network=hosts)).network == hosts


async def test_isolation_is_judged_before_anything_is_provisioned(world: World) -> None:
    with pytest.raises(ConfigurationError, match="tier 'container' and 'microvm' is required"):
        await sandboxio.create("mine://", require_isolation=IsolationTier.MICROVM)
    assert world.gates == 0
    async with await sandboxio.create("mine://", require_isolation=IsolationTier.CONTAINER):
        pass


async def test_isolation_is_that_of_the_configured_instance(world: World) -> None:
    async with await sandboxio.create(SpecialConfig(), require_isolation=IsolationTier.GVISOR) as sandbox:
        assert sandbox.isolation is IsolationTier.GVISOR
    with pytest.raises(ConfigurationError, match="'gvisor' is required"):
        await sandboxio.create("mine://", require_isolation=IsolationTier.GVISOR)


@pytest.mark.parametrize("required", [IsolationTier.UNKNOWN, "microvm", 3])
async def test_only_a_known_tier_can_be_required(required: object, world: World) -> None:
    with pytest.raises(ConfigurationError, match="must be a known tier"):
        await sandboxio.create("mine://", require_isolation=required)  # type: ignore[arg-type]


async def test_an_unverified_backend_warns_once_and_satisfies_nothing(world: World) -> None:
    config = SpecialConfig(tier=IsolationTier.UNKNOWN)
    with pytest.warns(sandboxio.UnverifiedIsolationWarning, match="Nobody verified"):
        sandbox = await sandboxio.create(config)
    await sandbox.kill()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sandbox = await sandboxio.create(config)
    await sandbox.kill()
    with pytest.raises(ConfigurationError, match="tier 'unknown'"):
        await sandboxio.create(config, require_isolation=IsolationTier.CONTAINER)


async def test_a_config_whose_fields_a_backend_ignores_is_refused(world: World) -> None:
    sandboxio.register("docker", lambda: ScriptedBackend(world))
    with pytest.raises(ConfigurationError, match="SpecialConfig has fields that backend 'scripted'"):
        await sandboxio.create(SpecialConfig(backend="docker"))


@pytest.mark.parametrize("target", [3, object(), ["docker://"], b"docker://"])
async def test_a_target_is_a_dsn_or_a_config(target: object) -> None:
    with pytest.raises(ConfigurationError, match="takes a DSN, a config object or None"):
        await sandboxio.create(target)  # type: ignore[arg-type]


async def test_connect_finds_what_runs_and_makes_nothing(world: World) -> None:
    first = await sandboxio.create("mine://")
    second = await sandboxio.connect("mine://", first.id)
    assert second.id == first.id
    await first.kill()
    with pytest.raises(ConnectError, match="no sandbox"):
        await sandboxio.connect("mine://", first.id)
    assert world.sandboxes == set()


async def test_a_connection_whose_record_fails_is_closed_and_the_sandbox_lives_on(world: World) -> None:
    class Refusing:
        async def emit(self, event: object) -> None:
            raise OSError("no room")

    closed: list[str] = []
    first = await sandboxio.create("mine://")
    backend = ScriptedBackend(world, audit=AuditConfig(sinks=(Refusing(),), on_sink_failure="fail"))
    attach = backend._attach

    async def attached(sandbox_id: str) -> ScriptedSandbox:
        sandbox = await attach(sandbox_id)
        sandbox._close = lambda: closed.append(sandbox_id)  # type: ignore[method-assign]
        return sandbox

    backend._attach = attached  # type: ignore[method-assign]
    with pytest.raises(sandboxio.AuditSinkError):
        await backend.connect(first.id)
    assert closed == [first.id]
    assert first.id in world.sandboxes
    await first.kill()


@pytest.mark.parametrize("sandbox_id", ["", " ", "a\0b", None, 3])
async def test_what_is_no_id_connects_to_nothing(sandbox_id: str, world: World) -> None:
    with pytest.raises(ConnectError, match="not a sandbox id"):
        await sandboxio.connect("mine://", sandbox_id)
    assert world.gates == 0

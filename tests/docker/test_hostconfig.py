"""The walls of a container, field by field, and what is refused because Docker could not enforce it."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, strategies as st

from sandboxio import NetworkPolicy, Resources
from sandboxio.adapter import SandboxRequest
from sandboxio.errors import CapabilityNotSupported, ConfigurationError, SandboxError
from sandboxio_docker import DockerBackend, DockerConfig, labels
from sandboxio_docker.hostconfig import container_config, memory_cap, refuse_what_docker_cannot

MIB = 1 << 20


def body(*, runtime: str | None = None, lifeline: bool = True, **options: Any) -> dict[str, Any]:
    request = SandboxRequest(**{"timeout": 60.0, **options})
    return container_config(request, image="x:1", entrypoint=["/bin/sh"], runtime=runtime, lifeline=lifeline)


def host(**options: Any) -> dict[str, Any]:
    found: dict[str, Any] = body(**options)["HostConfig"]
    return found


def test_nothing_leaves_by_default() -> None:
    """Case 72: no network sandbox is built at all, so there is no route and no resolver."""
    config = body()
    assert config["HostConfig"]["NetworkMode"] == "none"
    assert config["NetworkDisabled"] is True


def test_egress_allowed_is_the_bridge() -> None:
    config = body(network=NetworkPolicy(egress="allow"))
    assert config["HostConfig"]["NetworkMode"] == "bridge"
    assert config["NetworkDisabled"] is False


def test_privileges_are_given_up() -> None:
    assert host()["CapDrop"] == ["ALL"]
    assert host()["SecurityOpt"] == ["no-new-privileges"]
    for absent in ("Privileged", "CapAdd", "Binds", "Mounts", "Devices", "PidMode", "UsernsMode"):
        assert absent not in host()


def test_processes_have_a_ceiling() -> None:
    """Case 74."""
    assert host()["PidsLimit"] == 512


def test_an_engine_that_shuts_down_need_not_wait() -> None:
    """Process 1 would let SIGTERM pass; the engine would give it ten seconds."""
    assert body()["StopSignal"] == "SIGKILL"


def test_memory_counts_swap_too() -> None:
    """A cap on memory alone would let a process swap beyond it."""
    assert (host()["Memory"], host()["MemorySwap"]) == (512 * MIB, 512 * MIB)
    given = host(resources=Resources(memory_mb=200))
    assert (given["Memory"], given["MemorySwap"]) == (200 * MIB, 200 * MIB)
    assert memory_cap({"HostConfig": given}) == 200
    assert memory_cap({}) is None


def test_cpus() -> None:
    assert host()["NanoCpus"] == 10**9
    assert host(resources=Resources(cpu=0.25))["NanoCpus"] == 250_000_000


@pytest.mark.parametrize(("memory", "shm"), [(512, 64), (192, 64), (160, 32), (129, 1), (64, 1)])
def test_shared_memory_leaves_room_under_the_cap(memory: int, shm: int) -> None:
    """What lies in a tmpfs survives its process; too much of it makes the OOM killer take process 1."""
    assert host(resources=Resources(memory_mb=memory))["ShmSize"] == shm * MIB


def test_output_is_not_logged_by_the_engine() -> None:
    assert host()["LogConfig"] == {"Type": "none", "Config": {}}


def test_the_lifeline_removes_and_its_absence_keeps() -> None:
    assert host()["AutoRemove"] is True
    assert host(lifeline=False)["AutoRemove"] is False


def test_process_one_is_ours() -> None:
    """Case 51: ENTRYPOINT, CMD and HEALTHCHECK of the image do not run."""
    config = body()
    assert config["Entrypoint"] == ["/bin/sh"]
    assert config["Cmd"] == []
    assert config["Healthcheck"] == {"Test": ["NONE"]}
    assert config["WorkingDir"] == "/work"
    assert "User" not in config, "the image's user is respected"


def test_no_terminal_and_one_connection() -> None:
    """Case 7."""
    config = body()
    assert config["Tty"] is False
    assert (config["OpenStdin"], config["StdinOnce"]) == (True, True)


def test_runtime() -> None:
    assert "Runtime" not in host()
    assert host(runtime="runsc")["Runtime"] == "runsc"


def test_no_value_of_the_caller_is_in_the_configuration() -> None:
    """Case 79: env and secrets travel with each run, so `docker inspect` shows none."""
    config = body(env={"PLAIN": "env-value"}, secrets={"KEY": "secret-value"})
    assert config["Env"] == []
    assert "env-value" not in str(config)
    assert "secret-value" not in str(config)


@pytest.mark.parametrize(
    ("options", "kind", "says"),
    [
        ({"network": NetworkPolicy(allow=("example.org",))}, CapabilityNotSupported, "per host"),
        ({"resources": Resources(disk_mb=100)}, CapabilityNotSupported, "disk_mb=100"),
        ({"resources": Resources(cpu=0.001)}, ConfigurationError, "0.01"),
        ({"resources": Resources(memory_mb=8)}, ConfigurationError, "memory_mb=8"),
    ],
)
def test_what_docker_cannot_enforce_is_refused(
    options: dict[str, Any], kind: type[SandboxError], says: str
) -> None:
    with pytest.raises(kind, match=says) as caught:
        refuse_what_docker_cannot(SandboxRequest(timeout=60.0, **options))
    assert caught.value.hint
    assert caught.value.hint != kind.default_hint


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"network": NetworkPolicy(egress="learn")}, "learn"),
        ({"network": NetworkPolicy(ingress_ports=(80,))}, "TUNNELS"),
        ({"resources": Resources(gpu="T4")}, "GPU"),
        ({"network": NetworkPolicy(allow=("example.org",))}, "per host"),
        ({"resources": Resources(disk_mb=1)}, "disk_mb"),
    ],
)
async def test_refusals_come_before_any_request(options: dict[str, Any], says: str) -> None:
    """The address of the engine leads nowhere, and nobody notices."""
    backend = DockerBackend(host="unix:///nowhere/docker.sock")
    with pytest.raises(CapabilityNotSupported, match=says):
        await backend.create(**options)


def test_config_names_a_runtime() -> None:
    assert DockerConfig().backend == "docker"
    assert DockerConfig(template="x", runtime="runsc").runtime == "runsc"
    for wrong in ("", " ", "a\0b", 3):
        with pytest.raises(ConfigurationError, match="runtime"):
            DockerConfig(runtime=wrong)  # type: ignore[arg-type]


def test_arguments_of_the_backend_are_checked() -> None:
    for wrong in (
        {"channel": "ssh"},
        {"output_limit": -1},
        {"output_limit": True},
        {"image": "UPPER"},
        {"image": ""},
    ):
        with pytest.raises(ConfigurationError):
            DockerBackend(**wrong)  # type: ignore[arg-type]


# Labels


def test_labels_of_a_sandbox() -> None:
    found = body(metadata={"tenant_id": "acme"})["Labels"]
    assert found == {
        "io.sandboxio.managed": "true",
        "io.sandboxio.session": str(os.getpid()),
        "io.sandboxio.timeout": "60",
        "io.sandboxio.meta.tenant_id": "acme",
    }


@given(st.dictionaries(st.text(min_size=1), st.text()), st.floats(1e-3, 1e7))
def test_metadata_comes_back_and_overwrites_nothing(metadata: dict[str, str], timeout: float) -> None:
    """Case 30: free text goes in and comes out unchanged; our own keys cannot be spoofed."""
    made = labels.labels_for({**metadata, "io.sandboxio.managed": "spoof"}, timeout)
    assert labels.metadata_in(made) == {**metadata, "io.sandboxio.managed": "spoof"}
    assert labels.is_managed(made)
    assert labels.timeout_in(made) == pytest.approx(timeout, rel=1e-5)


@pytest.mark.parametrize("wrong", ["", "x", "nan", "inf", "-3", "0"])
def test_a_label_that_somebody_changed_is_no_lifetime(wrong: str) -> None:
    assert labels.timeout_in({"io.sandboxio.timeout": wrong}) == 300


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ("running", "running"),
        ("paused", "paused"),
        ("exited", "stopped"),
        ("created", "stopped"),
        ("dead", "stopped"),
        ("removing", "stopped"),
        (None, "stopped"),
    ],
)
def test_what_the_list_tells(state: str | None, told: str) -> None:
    """Case 27: what never started counts, too."""
    entry = {
        "Id": "abc",
        "State": state,
        "Created": 1_700_000_000,
        "Labels": {"io.sandboxio.managed": "true", "io.sandboxio.meta.a": "b"},
    }
    found = labels.managed_of(entry, "docker")
    assert (found.sandbox_id, found.state, found.labels) == ("abc", told, {"a": "b"})
    assert found.created_at == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert labels.managed_of({"Id": "x", "Labels": None}, "docker").created_at is None

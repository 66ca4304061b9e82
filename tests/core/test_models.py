"""Values: frozen, compared by value, refusing nonsense when they are built."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest

from sandboxio import (
    BackendConfig,
    Capability,
    ConfigurationError,
    ExecResult,
    ExecutionError,
    IsolationTier,
    NetworkPolicy,
    Resources,
)


def test_every_tier_has_a_rank_and_the_order_is_that_of_the_ranks() -> None:
    ranks = [tier.rank for tier in IsolationTier]
    assert ranks == sorted(ranks)
    assert len(set(ranks)) == len(ranks)
    for weak, strong in itertools.combinations(IsolationTier, 2):
        assert weak < strong
        assert weak <= strong
        assert strong > weak
        assert strong.satisfies(weak) or weak is IsolationTier.UNKNOWN
        assert not weak.satisfies(strong)


def test_unknown_satisfies_nothing_not_even_itself() -> None:
    assert not any(IsolationTier.UNKNOWN.satisfies(minimum) for minimum in IsolationTier)


def test_tiers_have_no_arithmetic_and_do_not_compare_with_other_things() -> None:
    with pytest.raises(TypeError):
        IsolationTier.GVISOR < 20  # type: ignore[operator]  # noqa: B015
    assert not hasattr(IsolationTier.GVISOR, "__add__")


def test_policies_compare_by_value() -> None:
    assert NetworkPolicy() == NetworkPolicy(egress="deny")
    assert hash(NetworkPolicy(allow=("a.example",))) == hash(NetworkPolicy(allow=("a.example",)))
    with pytest.raises(dataclasses.FrozenInstanceError):
        NetworkPolicy().egress = "allow"  # type: ignore[misc]


@pytest.mark.parametrize(
    "value", [0, -1, 0.0, math.nan, math.inf, pytest.param(10**400, id="huge"), "2", True]
)
def test_a_cap_is_positive_finite_and_a_number(value: object) -> None:
    """Case 76: a CPU or memory cap that cannot be right is refused before anything is started."""
    with pytest.raises(ConfigurationError, match=r"Resources\.cpu"):
        Resources(cpu=value)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"Resources\.memory_mb"):
        Resources(memory_mb=value)  # type: ignore[arg-type]


def test_memory_and_disk_are_whole_mebibytes() -> None:
    with pytest.raises(ConfigurationError, match=r"Resources\.disk_mb must be a number of MiB"):
        Resources(disk_mb=1.5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"egress": "none"}, "egress must be"),
        ({"allow": "api.example.org"}, "must be a tuple of str"),
        ({"allow": ["api.example.org"]}, "must be a tuple of str"),
        ({"allow": ("",)}, "must be a tuple of str"),
        ({"ingress_ports": ("80",)}, "must be a tuple of int"),
        ({"egress": "allow", "allow": ("a.example",)}, "would have no effect"),
    ],
)
def test_a_policy_that_means_something_else_than_it_says_is_refused(
    arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        NetworkPolicy(**arguments)  # type: ignore[arg-type]


def test_a_failed_result_raises_itself_with_the_last_line_of_stderr() -> None:
    result = ExecResult(3, "out", "first\nlast line\n")
    with pytest.raises(ExecutionError, match="exited with 3: last line") as caught:
        result.raise_for_status()
    assert caught.value.result is result
    ExecResult(0, "", "noise").raise_for_status()


def test_the_repr_of_a_result_leaves_out_the_middle_of_long_output() -> None:
    short = ExecResult(0, "a" * 3000, "e\n", notes=("n",))
    assert repr(short) == (
        f"ExecResult(exit_code=0, stdout='{'a' * 3000}', stderr='e\\n', results=None, meter=None, "
        "streamed=False, truncated=False, notes=('n',))"
    )
    long = repr(ExecResult(0, "begin" + "x" * 8_000_000 + "end", ""))
    assert len(long) < 3000
    assert "stdout='beginxx" in long
    assert "x'<7998008 characters>'x" in long
    assert "xxend'" in long


@pytest.mark.parametrize("hosts", [["pypi.org"], {"pypi.org"}, "pypi.org"])
def test_hosts_in_another_container_are_told_as_a_tuple(hosts: object) -> None:
    with pytest.raises(ConfigurationError) as caught:
        NetworkPolicy(allow=hosts)  # type: ignore[arg-type]
    assert "NetworkPolicy(allow=('pypi.org',))" in caught.value.hint


def test_a_config_shows_neither_env_nor_secrets() -> None:
    config = BackendConfig(backend="docker", env={"A": "visible-value"}, secrets={"B": "hidden-value"})
    assert "visible-value" not in repr(config)
    assert "hidden-value" not in repr(config)


def test_capabilities_are_flags() -> None:
    some = Capability.RUN_CODE | Capability.STREAMING
    assert Capability.RUN_CODE in some
    assert Capability.GPU not in some

"""Argument checks: the same for every backend, before any I/O, and never showing a value of env."""

from __future__ import annotations

import math
from typing import Any

import pytest

from sandboxio import ConfigurationError, NetworkPolicy, Resources
from sandboxio._request import (
    MAX_ARGUMENT,
    SandboxRequest,
    check_code,
    check_command,
    check_env,
    check_path,
    check_request,
    check_timeout,
)


def request(**changes: Any) -> SandboxRequest:
    usual: dict[str, Any] = {
        "template": None,
        "resources": Resources(),
        "network": NetworkPolicy(),
        "env": None,
        "secrets": None,
        "timeout": 300,
        "metadata": None,
    }
    return check_request(**{**usual, **changes})


@pytest.mark.parametrize(
    "value",
    [None, 0, -1, 0.0, math.nan, math.inf, -math.inf, pytest.param(10**400, id="huge"), "5", True, [1]],
)
def test_a_timeout_is_a_positive_finite_number(value: object) -> None:
    with pytest.raises(ConfigurationError, match="timeout"):
        check_timeout(value)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="timeout"):
        request(timeout=value)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ([], "empty"),
        ("", "empty"),
        ("  \n", "empty"),
        ([""], "empty"),
        (["a", 1], "Argument 1 .* must be a string, got int"),
        (["a", b"x"], "Argument 1 .* must be a string, got bytes"),
        (["a\0b"], "NUL"),
        ("a\0b", "NUL"),
        (["\ud800"], "surrogate"),
        (None, "list of strings or a string"),
        (7, "list of strings or a string"),
        ({"a": 1}, "list of strings or a string"),
        (["echo", "x" * (MAX_ARGUMENT + 1)], f"longer than {MAX_ARGUMENT} bytes"),
        ("echo " + "é" * MAX_ARGUMENT, f"longer than {MAX_ARGUMENT} bytes"),
    ],
)
def test_a_command_that_no_kernel_can_start_is_refused(command: Any, message: str) -> None:
    """Case 66 for argv; and the bad input of every run."""
    with pytest.raises(ConfigurationError, match=message):
        check_command(command)


def test_commands_come_back_as_they_are() -> None:
    assert check_command(["a", "", "b c", "\udcff"]) == ("a", "", "b c", "\udcff")
    assert check_command("a | b") == "a | b"
    assert check_command(["a", "x" * MAX_ARGUMENT])[1] == "x" * MAX_ARGUMENT


@pytest.mark.parametrize(
    "env",
    [
        {"": "x"},
        {"A=B": "x"},
        {"A\0": "x"},
        {"A": "x\0y"},
        {"A": 1},
        {"A": None},
        {1: "x"},
        {"A": "\ud800"},
        [("A", "x")],
        {"A": "x" * MAX_ARGUMENT},
    ],
)
def test_an_environment_that_no_process_can_have_is_refused(env: Any) -> None:
    """Case 68: bad names and values are refused before any request."""
    for what in ("env", "secrets"):
        with pytest.raises(ConfigurationError, match=what):
            request(**{what: env})


def test_a_refused_value_is_never_shown() -> None:
    """Case 77: names may appear in a message, values may not."""
    for env in ({"TOKEN": "s3cr3t\0value"}, {"TOKEN": "s3cr3t" * 40_000}):
        with pytest.raises(ConfigurationError) as caught:
            check_env(env)
        assert "TOKEN" in str(caught.value)
        assert "s3cr3t" not in str(caught.value)


def test_odd_but_legal_variables_pass_unchanged() -> None:
    env = {
        "A": "l1\nl2\n",
        "B": "  sp  ",
        "C": "$HOME $(id)",
        "E": "",
        "lower.dot-x": "1",
        "G": "é漢🙂\udcff",
    }
    assert check_env(env) == env


def test_a_name_is_either_plain_or_secret() -> None:
    with pytest.raises(ConfigurationError, match="both env and secrets") as caught:
        request(env={"TOKEN": "plain-value"}, secrets={"TOKEN": "hidden-value"})
    assert "value" not in str(caught.value)


@pytest.mark.parametrize(
    "metadata", [{"": "x"}, {"a": 1}, {1: "a"}, {"a\0": "b"}, {"a": "b\0"}, {"a": "\udc80"}, "x"]
)
def test_metadata_is_text_that_every_provider_can_hold(metadata: Any) -> None:
    """Case 30: wrong types and NUL are refused early, and the message names the key."""
    with pytest.raises(ConfigurationError, match="metadata"):
        request(metadata=metadata)


def test_metadata_may_be_free_text() -> None:
    """Case 30: a task id such as org/repo#12 is a label's value, not a name."""
    odd = {"task": "org/repo#12 é", "k=v": "1", "k\n": "2"}
    assert request(metadata=odd).metadata == odd


@pytest.mark.parametrize("template", ["", "  ", 3])
def test_a_template_is_text(template: Any) -> None:
    with pytest.raises(ConfigurationError, match="template"):
        request(template=template)


def test_resources_and_network_are_their_types() -> None:
    with pytest.raises(ConfigurationError, match="resources must be Resources"):
        request(resources={"cpu": 1})
    with pytest.raises(ConfigurationError, match="network must be NetworkPolicy"):
        request(network="deny")


@pytest.mark.parametrize(
    "host",
    [
        "https://x.org/",
        "bad host!",
        "example.org:443",
        "-",
        "*",
        "*.*.org",
        "é.org",
        "x.org\n",
        "a" * 64,
        "1.2.3.4/33",
    ],
)
def test_what_is_no_host_is_refused(host: str) -> None:
    with pytest.raises(ConfigurationError, match="allow takes host names, addresses and CIDRs"):
        request(network=NetworkPolicy(allow=("example.org", host)))


def test_hosts_are_names_addresses_and_ranges() -> None:
    hosts = (
        "a",
        "example.org",
        "*.example.org",
        "my_host",
        "192.0.2.1",
        "192.0.2.0/24",
        "2001:db8::1",
        "::/0",
    )
    assert request(network=NetworkPolicy(allow=hosts)).network.allow == hosts


def test_a_request_shows_neither_env_nor_secrets() -> None:
    text = repr(request(env={"A": "visible-value"}, secrets={"B": "hidden-value"}))
    assert "visible-value" not in text
    assert "hidden-value" not in text


@pytest.mark.parametrize(
    "arguments", [(b"x", "python", None), ("a\ud800", "python", None), ("x", "", None), ("x", "python", "")]
)
def test_code_is_utf8_text(arguments: Any) -> None:
    """Case 70: a lone surrogate has a clear error."""
    with pytest.raises(ConfigurationError):
        check_code(*arguments)


@pytest.mark.parametrize("path", ["", "a\0b", b"x", None, "\ud800"])
def test_a_path_is_text_without_nul(path: Any) -> None:
    with pytest.raises(ConfigurationError, match="path"):
        check_path(path)

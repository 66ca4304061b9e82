"""The DSN grammar: one parameter, no policy, no credentials, each mistake its own sentence."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from sandboxio import BackendConfig, ConfigurationError, SandboxError
from sandboxio._dsn import parse


@pytest.mark.parametrize(
    ("dsn", "config"),
    [
        ("docker://", BackendConfig(backend="docker")),
        ("docker://python:3.12-slim", BackendConfig(backend="docker", template="python:3.12-slim")),
        ("docker://localhost:5000/a/b:1", BackendConfig(backend="docker", template="localhost:5000/a/b:1")),
        (
            "docker://a/b:1@sha256:" + "0" * 64,
            BackendConfig(backend="docker", template="a/b:1@sha256:" + "0" * 64),
        ),
        ("e2b://base?timeout=600", BackendConfig(backend="e2b", template="base", timeout=600.0)),
        ("fake://?timeout=0.5", BackendConfig(backend="fake", timeout=0.5)),
        ("my_own://x%20y", BackendConfig(backend="my_own", template="x y")),
    ],
)
def test_a_dsn_is_a_typed_config(dsn: str, config: BackendConfig) -> None:
    assert parse(dsn) == config


@pytest.mark.parametrize(
    ("dsn", "message"),
    [
        ("", "is not a DSN"),
        ("docker", "is not a DSN"),
        ("docker:/x", "is not a DSN"),
        ("://x", "is not a DSN"),
        ("docker://x#y", "is not a DSN"),
        ("docker://x?gpu=T4", "unknown parameter 'gpu'"),
        ("docker://x?egress=allow", "unknown parameter 'egress'"),
        ("docker://x?timeout=", "must be a number of seconds"),
        ("docker://x?timeout=soon", "must be a number of seconds"),
        ("docker://x?timeout=0", "positive and finite"),
        ("docker://x?timeout=-1", "positive and finite"),
        ("docker://x?timeout=nan", "positive and finite"),
        ("docker://x?timeout=inf", "positive and finite"),
        ("docker://x?timeout=1&timeout=2", "more than once"),
    ],
)
def test_each_mistake_has_its_own_sentence(dsn: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse(dsn)


@pytest.mark.parametrize(
    "dsn",
    [
        "e2b://base?api_key=s3cr3t-value",
        "e2b://base?E2B_TOKEN=s3cr3t-value",
        "docker://x?password=s3cr3t-value&timeout=3",
        "docker://user:s3cr3t-value@registry.example/x",
        "docker//user:s3cr3t-value@registry.example/x",
        "docker:/user:s3cr3t-value@registry.example/x",
        "docker:/user:s3cr3t-value@registry.example@more/x",
        "e2b://s3cr3t-value@base",
        "docker://s3cr3t-value@registry.example/x",
        "docker://s3cr3t-value%40registry.example/x@sha256:" + "0" * 64,
        "docker://x#token=s3cr3t-value",
    ],
)
def test_a_credential_is_refused_and_not_repeated(dsn: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse(dsn)
    assert "s3cr3t-value" not in str(caught.value)


def test_the_refusal_names_the_provider_s_own_variable() -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse("e2b://base?api_key=x")
    assert "E2B_API_KEY" in caught.value.hint


@given(st.text())
def test_any_text_is_a_config_or_a_typed_error(text: str) -> None:
    try:
        parse(text)
    except SandboxError:
        return

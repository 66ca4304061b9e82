"""The timeout of a DSN and the one beside it."""

from __future__ import annotations

import math

import pytest

from sandboxio import ConfigurationError
from sandboxio.models import DEFAULT_TIMEOUT
from sandboxio.target import with_timeout


@pytest.mark.parametrize(
    ("dsn", "given", "effective"),
    [
        ("docker://", None, 3600),
        ("docker://", 600, 600),
        ("docker://", DEFAULT_TIMEOUT, 300),
        ("docker://?timeout=600", None, 600),
        ("docker://?timeout=600", 600, 600),
        ("docker://?timeout=300", None, 300),  # written out, so it is no default that gives way
        ("docker://?timeout=300", 300, 300),
    ],
)
def test_the_given_timeout_or_that_of_the_dsn_or_the_default(
    dsn: str, given: float | None, effective: float
) -> None:
    assert with_timeout(dsn, given, default=3600).timeout == effective


@pytest.mark.parametrize("dsn", ["docker://?timeout=600", "docker://?timeout=300"])
def test_two_different_ones_are_refused(dsn: str) -> None:
    with pytest.raises(ConfigurationError, match=r"given twice, as 3600 and in the DSN as \d00\."):
        with_timeout(dsn, 3600, default=3600)


@pytest.mark.parametrize("given", [math.nan, math.inf, 0, -1, True])
def test_what_create_would_refuse_is_refused(given: float) -> None:
    with pytest.raises(ConfigurationError, match="timeout must be"):
        with_timeout("docker://", given, default=3600)


def test_the_rest_of_the_dsn_stays() -> None:
    config = with_timeout("docker://python:3.12-slim", 60, default=3600)
    assert (config.backend, config.template) == ("docker", "python:3.12-slim")

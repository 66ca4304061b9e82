"""Text to typed configuration: ``<backend>://[<template>][?timeout=<seconds>]``.

The parser only builds the same :class:`BackendConfig` that typed code builds. ``timeout`` is the only
parameter; policy, caps, environment and secrets have no spelling here, on purpose.
"""

from __future__ import annotations

import re

from ._request import check_timeout
from .errors import ConfigurationError
from .models import DEFAULT_TIMEOUT, BackendConfig

_DSN = re.compile(
    r"(?P<backend>[A-Za-z_][A-Za-z0-9_]*)://(?P<template>[^?#]*)(?:\?(?P<query>[^#]*))?", re.ASCII
)
_CREDENTIAL = re.compile(r"(?i)key|token|secret|passw|pwd|credential|auth")
_VARIABLES = {"e2b": "E2B_API_KEY", "modal": "MODAL_TOKEN_ID and MODAL_TOKEN_SECRET"}


def parse(dsn: str) -> BackendConfig:
    """The configuration that ``dsn`` spells; ``ConfigurationError`` without repeating a credential.

    >>> parse("docker://python:3.12-slim?timeout=60").timeout
    60.0
    """
    from urllib.parse import unquote  # noqa: PLC0415 - import time of the package

    match = _DSN.fullmatch(dsn)
    if match is None:
        raise ConfigurationError(
            f"{_without_values(dsn)!r} is not a DSN.",
            hint="Write <backend>://[<template>][?timeout=<seconds>].",
        )
    backend, template = match["backend"], unquote(match["template"])
    if re.search(r"@(?!sha(256|512):)", template):  # nothing but a digest stands behind one
        raise _credential_in_dsn(backend, "a user part")
    timeout = DEFAULT_TIMEOUT
    for name, value in _parameters(match["query"] or "", backend):
        if name != "timeout":
            raise ConfigurationError(
                f"The DSN has an unknown parameter {name!r}; only timeout is defined.",
                hint="Pass everything else to create(), or use the backend's config class.",
            )
        timeout = _timeout(value)
    return BackendConfig(backend=backend, template=template or None, timeout=timeout)


def _parameters(query: str, backend: str) -> list[tuple[str, str]]:
    from urllib.parse import parse_qsl  # noqa: PLC0415 - import time of the package

    pairs = parse_qsl(query, keep_blank_values=True)
    for name, _ in pairs:
        if _CREDENTIAL.search(name):
            raise _credential_in_dsn(backend, f"the parameter {name!r}")
    given = [name for name, _ in pairs]
    if twice := {name for name in given if given.count(name) > 1}:
        raise ConfigurationError(f"The DSN gives {', '.join(sorted(twice))} more than once.")
    return pairs


def _credential_in_dsn(backend: str, what: str) -> ConfigurationError:
    variable = _VARIABLES.get(backend)
    return ConfigurationError(
        f"The DSN holds {what}, which looks like a credential; DSNs end up in logs.",
        hint=f"Set {variable} in the environment instead."
        if variable
        else "Use the backend's environment variables.",
    )


def _timeout(text: str) -> float:
    try:
        value = float(text)
    except ValueError as error:
        raise ConfigurationError(
            f"The DSN's timeout must be a number of seconds, got {text!r}.",
            hint="Write ?timeout=300.",
        ) from error
    return check_timeout(value, "The DSN's timeout")


def _without_values(dsn: str) -> str:
    """The text up to its parameters or fragment and without a user part, fit for a message."""
    return re.sub(r"/+.*@", "//***@", re.split("[?#]", dsn, maxsplit=1)[0])[:200]

"""Checks of what a caller asked for, the same for every adapter and before any I/O.

A wrong argument raises :class:`ConfigurationError` that names it. Values of ``env`` and ``secrets``
never appear in a message; their names may.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from .errors import ConfigurationError
from .models import NetworkPolicy, Resources

if TYPE_CHECKING:
    from ._redact import Redactor

MAX_ARGUMENT = 131_071
"""Bytes of one argument or ``NAME=value``: Linux MAX_ARG_STRLEN, 32 pages less the final NUL (execve(2))."""

_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST = rf"(?:\*\.)?(?:{_LABEL}\.)*{_LABEL}"


@dataclass(frozen=True)
class SandboxRequest:
    """One checked ``create()`` call, or what is known of the one behind a connected sandbox.

    Mappings are copies; ``env`` and ``secrets`` stay out of the repr.
    """

    timeout: float
    template: str | None = None
    resources: Resources = Resources()
    network: NetworkPolicy = NetworkPolicy()
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    secrets: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def variables(self) -> dict[str, str]:
        """Environment of every run in the sandbox: ``env`` and ``secrets`` together."""
        return {**self.env, **self.secrets}

    @cached_property
    def redactor(self) -> Redactor:
        """Takes the secrets of this sandbox out of any text; made once, for compiling it costs time."""
        from ._redact import Redactor  # noqa: PLC0415 - no request, no import

        return Redactor(self.secrets.values()).including(self.env)


def check_request(
    *,
    template: str | None,
    resources: Resources,
    network: NetworkPolicy,
    env: Mapping[str, str] | None,
    secrets: Mapping[str, str] | None,
    timeout: float,
    metadata: Mapping[str, str] | None,
) -> SandboxRequest:
    """A :class:`SandboxRequest` of these arguments, or :class:`ConfigurationError`."""
    if template is not None and (not _is_text(template) or not template.strip()):
        raise ConfigurationError(f"template must be a non-empty string, got {template!r}.")
    for name, value, kind in (
        ("resources", resources, Resources),
        ("network", network, NetworkPolicy),
    ):
        if not isinstance(value, kind):
            raise ConfigurationError(f"{name} must be {kind.__name__}(...), got {type(value).__name__}.")
    for host in network.allow:
        _check_host(host)
    checked_env, checked_secrets = check_env(env, "env"), check_env(secrets, "secrets")
    if both := sorted(checked_env.keys() & checked_secrets.keys()):
        raise ConfigurationError(
            f"{', '.join(both)} is in both env and secrets.", hint="Keep it in secrets only."
        )
    return SandboxRequest(
        template=template,
        resources=resources,
        network=network,
        timeout=check_timeout(timeout, "create(timeout=...)"),
        env=checked_env,
        secrets=checked_secrets,
        metadata=_check_metadata(metadata),
    )


def check_timeout(value: float, what: str = "timeout") -> float:
    """``value`` as seconds; refuses None, bool, zero, negative, NaN and infinity."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigurationError(
            f"{what} must be a number of seconds, got {value!r}.", hint="Write timeout=300."
        )
    if not 0 < value <= sys.float_info.max:
        raise ConfigurationError(
            f"{what} must be positive and finite, got {value!r}: every sandbox and every call is bounded.",
            hint="Give the longest time that the work may take, in seconds.",
        )
    return float(value)


def check_command(cmd: str | Sequence[str]) -> str | tuple[str, ...]:
    """The command: text for a shell as it is, or the argument list as a tuple."""
    if isinstance(cmd, str):
        if not cmd.strip():
            raise ConfigurationError(
                "The command is empty.", hint='Pass a list, for example ["python3", "-V"].'
            )
        _check_argument(cmd, "The command")
        return cmd
    if not isinstance(cmd, (list, tuple)):
        raise ConfigurationError(f"A command is a list of strings or a string, got {type(cmd).__name__}.")
    if not cmd or not cmd[0]:
        raise ConfigurationError("The command is empty.", hint='Pass a list, for example ["python3", "-V"].')
    for position, argument in enumerate(cmd):
        _check_argument(argument, f"Argument {position} of the command")
    return tuple(cmd)


def check_env(env: Mapping[str, str] | None, what: str = "env") -> dict[str, str]:
    """A copy of ``env`` whose names and values an environment can hold."""
    if env is None:
        return {}
    if not isinstance(env, Mapping):
        raise ConfigurationError(f"{what} must be a mapping of names to strings, got {type(env).__name__}.")
    for name, value in env.items():
        if not _is_text(name) or not name or "=" in name or "\0" in name:
            raise ConfigurationError(f"{what} has a name that no environment can hold: {name!r}.")
        if not _is_text(value) or "\0" in value:
            raise ConfigurationError(f"{what}[{name!r}] must be a string without NUL or lone surrogates.")
        if len(encode(name)) + len(encode(value)) + 1 > MAX_ARGUMENT:
            raise ConfigurationError(
                f"{what}[{name!r}] is longer than {MAX_ARGUMENT} bytes, the most that Linux passes on.",
                hint="Write the value to a file with files.write() and pass the path.",
            )
    return dict(env)


def check_code(code: str, language: str, context_id: str | None) -> None:
    """Refuse code that cannot be sent as UTF-8, and empty language or context names."""
    if not isinstance(code, str):
        raise ConfigurationError(f"code must be a string, got {type(code).__name__}.")
    try:
        code.encode()
    except UnicodeEncodeError as error:
        raise ConfigurationError(
            f"code holds a lone surrogate at character {error.start}, so it is not UTF-8."
        ) from error
    if not isinstance(language, str) or not language:
        raise ConfigurationError(f"language must be a non-empty string, got {language!r}.")
    if context_id is not None and (not isinstance(context_id, str) or not context_id):
        raise ConfigurationError(f"context_id must be a non-empty string or None, got {context_id!r}.")


def check_path(path: str, what: str = "path") -> str:
    """A sandbox path: non-empty text without NUL; lone surrogates stand for bytes that are not UTF-8."""
    if not isinstance(path, str) or not _is_text(path):
        raise ConfigurationError(f"{what} must be a string, got {path!r}.")
    if not path or "\0" in path:
        raise ConfigurationError(f"{what} must not be empty or hold NUL, got {path!r}.")
    return path


def encode(text: str) -> bytes:
    """Text as the sandbox's kernel sees it: UTF-8, lone surrogates back to their bytes."""
    return text.encode("utf-8", "surrogateescape")


def _check_argument(argument: Any, what: str) -> None:
    if not isinstance(argument, str):
        raise ConfigurationError(f"{what} must be a string, got {type(argument).__name__}.")
    if "\0" in argument:
        raise ConfigurationError(f"{what} holds a NUL byte, which no program can receive.")
    if not _is_text(argument):
        raise ConfigurationError(f"{what} holds a lone surrogate that stands for no byte.")
    if len(encode(argument)) > MAX_ARGUMENT:
        raise ConfigurationError(
            f"{what} is longer than {MAX_ARGUMENT} bytes, the most that Linux passes in one argument.",
            hint="Write it to a file with files.write(), or pass code through run_code().",
        )


def _check_host(host: str) -> None:
    """Refuse what is neither a host name, with ``*.`` in front or without, nor an address or a CIDR.

    A filter that never matches protects, but nobody who wrote a URL would see why nothing gets out.
    """
    import ipaddress  # noqa: PLC0415 - few policies list hosts

    try:
        ipaddress.ip_network(host, strict=False)
    except ValueError:
        if re.fullmatch(_HOST, host) is None:
            raise ConfigurationError(
                f"NetworkPolicy.allow takes host names, addresses and CIDRs, got {host!r}.",
                hint='Write the name alone: NetworkPolicy(allow=("api.example.org",)).',
            ) from None


def _check_metadata(metadata: Mapping[str, str] | None) -> dict[str, str]:
    if metadata is None:
        return {}
    if not isinstance(metadata, Mapping):
        raise ConfigurationError(f"metadata must be a mapping of strings, got {type(metadata).__name__}.")
    for key, value in metadata.items():
        for part, text in (("key", key), ("value", value)):
            if (
                not isinstance(text, str)
                or "\0" in text
                or not _is_unicode(text)
                or (part == "key" and not text)
            ):
                raise ConfigurationError(
                    f"metadata {part} for {key!r} must be text without NUL, got {text!r}."
                )
    return dict(metadata)


def _is_text(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        encode(value)
    except UnicodeEncodeError:
        return False
    return True


def _is_unicode(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True

"""The way in: ``create()`` and ``connect()``."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TypeVar

from . import registry
from ._dsn import parse
from .errors import ConfigurationError, UnverifiedIsolationWarning
from .models import DEFAULT_NETWORK, DEFAULT_TIMEOUT, BackendConfig, IsolationTier, NetworkPolicy, Resources
from .protocols import AsyncSandbox, Backend, ConfigurableBackend

T = TypeVar("T")
_warned: set[str] = set()


async def create(
    target: str | BackendConfig | None = None,
    *,
    template: str | None = None,
    resources: Resources = Resources(),
    network: NetworkPolicy = DEFAULT_NETWORK,
    env: dict[str, str] | None = None,
    secrets: dict[str, str] | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    metadata: dict[str, str] | None = None,
    require_isolation: IsolationTier | None = None,
) -> AsyncSandbox:
    r"""Create a sandbox; use it as ``async with await sandboxio.create() as sandbox``.

    Args:
        target: A DSN (``"docker://python:3.12-slim"``), a typed config, or None for local Docker.
        template: Image or template; where ``target`` names one too, they must agree.
        resources: Caps; the backend's modest defaults apply where it is None.
        network: What may leave the sandbox; nothing by default, for the sandbox's whole life.
        env: Environment of every command. Values of credential-looking names are redacted.
        secrets: Like ``env``, and redacted wherever they would appear.
        timeout: Seconds that the sandbox lives, that creating it may take, and that a call inherits.
        metadata: Labels for finding the sandbox at the provider: tenant_id, session_id, ...
        require_isolation: The least acceptable tier, judged before anything is provisioned.

    Raises:
        ConfigurationError: An argument is wrong, two contradict each other, or the tier is too low.
        CapabilityNotSupported: The backend cannot honour a policy or cap that was asked for.
        CreationError, CreateTimeout, AuthError, RateLimitError: Provisioning failed; nothing is left.

    Cancellation leaves no sandbox behind.

    >>> import anyio
    >>> async def main():
    ...     async with await create("fake://") as sandbox:
    ...         return (await sandbox.run(["echo", "hello"])).stdout
    >>> anyio.run(main)
    'hello\n'
    """
    config = _config(target)
    backend = _backend(config)
    _check_isolation(backend, require_isolation)
    return await backend.create(
        template=_merged("template", template, config.template, None),
        resources=_merged("resources", resources, config.resources, Resources()),
        network=_merged_policy("network", network, config.network, DEFAULT_NETWORK),
        env=_merged("env", env, _copy(config.env), None),
        secrets=_merged("secrets", secrets, _copy(config.secrets), None),
        timeout=_merged_policy("timeout", timeout, config.timeout, DEFAULT_TIMEOUT),
        metadata=_merged("metadata", metadata, _copy(config.metadata), None),
    )


async def connect(target: str | BackendConfig, sandbox_id: str) -> AsyncSandbox:
    """A handle on a running sandbox that sandboxio made; creates nothing.

    ``target`` names the backend: ``"docker://"``. Raises ``ConnectError`` for an unknown, ended or
    foreign sandbox. Leaving the handle's ``async with`` ends the sandbox, as for its creator. The
    creator's ``env`` and ``secrets`` are not known to it: pass what a call needs in that call.

    >>> import anyio
    >>> async def main():
    ...     sandbox = await create("fake://")
    ...     async with await connect("fake://", sandbox.id) as same:
    ...         return same.id == sandbox.id
    >>> anyio.run(main)
    True
    """
    return await backend_of(target).connect(sandbox_id)


def backend_of(target: str | BackendConfig | None) -> Backend:
    """The backend that ``create()`` and ``connect()`` use for ``target``."""
    return _backend(_config(target))


def _config(target: str | BackendConfig | None) -> BackendConfig:
    if target is None:
        return BackendConfig(backend="docker")
    if isinstance(target, str):
        return parse(target)
    if isinstance(target, BackendConfig):
        return target
    raise ConfigurationError(
        f"create() takes a DSN, a config object or None, got {type(target).__name__}.",
        hint='Write sandboxio.create("docker://python:3.12-slim").',
    )


def _backend(config: BackendConfig) -> Backend:
    """The backend of ``config``, with the adapter's own fields applied."""
    backend = registry.resolve(config.backend)
    if type(config) is BackendConfig:
        return backend
    if isinstance(backend, ConfigurableBackend):
        return backend.configured(config)
    raise ConfigurationError(
        f"{type(config).__name__} has fields that backend {backend.name!r}, "
        f"registered as {config.backend!r}, ignores.",
        hint="Use a DSN or BackendConfig with this backend.",
    )


def _check_isolation(backend: Backend, required: IsolationTier | None) -> None:
    tier = getattr(backend, "isolation", IsolationTier.UNKNOWN)
    if required is None:
        if tier is IsolationTier.UNKNOWN and backend.name not in _warned:
            _warned.add(backend.name)
            warnings.warn(
                f"Nobody verified how backend {backend.name!r} isolates; "
                "require_isolation= refuses such backends.",
                UnverifiedIsolationWarning,
                stacklevel=3,
            )
        return
    if not isinstance(required, IsolationTier) or required is IsolationTier.UNKNOWN:
        raise ConfigurationError(
            f"require_isolation must be a known tier, got {required!r}.",
            hint="Use IsolationTier.MICROVM, for example.",
        )
    if not tier.satisfies(required):
        raise ConfigurationError(
            f"Backend {backend.name!r} is tier {tier.value!r} and {required.value!r} is required; "
            "nothing was created.",
            hint="Use a backend of a stronger tier, or lower require_isolation.",
        )


def _copy(configured: Mapping[str, str] | None) -> dict[str, str] | None:
    """What the backend may keep; it refuses what is no mapping, and names it."""
    return dict(configured) if isinstance(configured, Mapping) else configured


def _merged(name: str, argument: T, configured: T, default: T) -> T:
    """The one value that was given; two different ones would make the policy ambiguous."""
    if argument == default:
        return configured
    if configured not in (default, argument):
        raise _given_twice(name, argument, configured)
    return argument


def _merged_policy(name: str, argument: T, configured: T, default: T) -> T:
    """The same for what bounds a sandbox, where the default's value counts as given if somebody wrote it.

    Otherwise a deny of the caller would lose to an allow of the target, and the other way round.
    """
    if argument is default:
        return configured
    if configured is not default and configured != argument:
        raise _given_twice(name, argument, configured)
    return argument


def _given_twice(name: str, argument: object, configured: object) -> ConfigurationError:
    shown = "" if name in ("env", "secrets", "metadata") else f": {argument!r} and {configured!r}"
    return ConfigurationError(
        f"create() was given {name} twice, as an argument and in its target{shown}.",
        hint=f"Give {name} once.",
    )

"""Names to backends: ``register()`` first, then the entry points of the group ``sandboxio.backends``.

Looking a name up imports its adapter; nothing is imported before. A backend object is made once per
name and kept.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, cast

from .errors import BackendNotFound, BackendNotInstalled, ConfigurationError, SandboxError
from .models import Capability, IsolationTier
from .protocols import Backend

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "sandboxio.backends"
EXTRAS = {"docker": "docker", "e2b": "e2b", "modal": "modal"}
"""Known backends and the extra that brings what they import."""
_OWN_PACKAGES = ("sandboxio", "sandboxio_docker", "sandboxio_e2b")

_registered: dict[str, str | Callable[[], Backend]] = {}
_resolved: dict[str, Backend] = {}


def register(name: str, factory: str | Callable[[], Backend]) -> None:
    """Make ``name://`` resolve to a backend of yours, before any entry point of that name.

    ``factory`` is a callable without arguments, called once, or the text ``"package.module:Class"``.

    >>> from sandboxio.testing import FakeBackend
    >>> register("docker", FakeBackend)     # docker:// now runs offline
    >>> unregister("docker")
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise ConfigurationError(f"A backend's name is an identifier such as 'docker', got {name!r}.")
    if not callable(factory) and (not isinstance(factory, str) or factory.count(":") != 1):
        raise ConfigurationError(f"Register a callable or the text 'package.module:Class', got {factory!r}.")
    _registered[name] = factory
    _resolved.pop(name, None)


def unregister(name: str) -> None:
    """Forget a registration; the entry point of that name, if any, counts again."""
    _registered.pop(name, None)
    _resolved.pop(name, None)


def is_registered(name: str) -> bool:
    """True if ``register()`` decides what this name means, and not an entry point."""
    return name in _registered


def resolve(name: str) -> Backend:
    """The backend of that name. Raises ``BackendNotFound`` or ``BackendNotInstalled``."""
    if name not in _resolved:
        _resolved[name] = _load(name)
    return _resolved[name]


def names() -> list[str]:
    """Every name that could be resolved, sorted; imports nothing."""
    return sorted({*_registered, *(point.name for point in _entry_points())})


def supporting(capability: Capability) -> list[str]:
    """Names of the backends on this machine that declare ``capability``; imports their adapters."""
    able: list[str] = []
    for name in names():
        try:
            backend = resolve(name)
        except Exception:  # noqa: BLE001, S112 - not installed, or broken: it cannot help, and must not hide a refusal
            continue
        if capability in backend.capabilities:
            able.append(name)
    return able


def _entry_points() -> Iterable[EntryPoint]:
    from importlib.metadata import entry_points  # noqa: PLC0415 - a third of this package's import time

    return entry_points(group=GROUP)


def _load(name: str) -> Backend:
    if name in _registered:
        factory = _registered[name]
        made = _import(factory)() if isinstance(factory, str) else factory()
        return _checked(name, made)
    for point in [point for point in _entry_points() if point.name == name]:
        try:
            made = point.load()()
        except ModuleNotFoundError as error:
            raise _not_installed(name, error) from error
        except (AttributeError, ImportError) as error:
            raise BackendNotFound(
                f"The entry point {point.value!r} of backend {name!r} is broken: {error}.",
                hint="Install a newer version of the package that brings it, or register() another.",
            ) from error
        return _checked(name, made)
    if name in EXTRAS:
        raise _not_installed(name, None)
    raise BackendNotFound(
        f"There is no backend {name!r}; known: {', '.join(names()) or 'none'}.", hint=_likely(name)
    )


def _likely(name: str) -> str:
    from difflib import get_close_matches  # noqa: PLC0415 - import time of the package

    if near := get_close_matches(name.lower(), names(), n=1):
        return f'Did you mean "{near[0]}://"?'
    return f"`sandboxio doctor` shows what is installed; sandboxio.register({name!r}, factory) adds your own."


def _import(path: str) -> Callable[[], Backend]:
    module, _, attribute = path.partition(":")
    try:
        return cast("Callable[[], Backend]", getattr(importlib.import_module(module), attribute))
    except (ImportError, AttributeError) as error:
        raise BackendNotFound(
            f"The registered backend {path!r} cannot be imported: {error}.",
            hint="Correct the path given to register().",
        ) from error


def _checked(name: str, made: object) -> Backend:
    """A backend that declares no tier has the one that satisfies no requirement."""
    if not hasattr(made, "isolation"):
        with suppress(AttributeError, TypeError):  # no object, or one with slots: refused below
            made.isolation = IsolationTier.UNKNOWN  # type: ignore[attr-defined]
    if isinstance(made, Backend):
        return made
    raise ConfigurationError(
        f"What is registered as {name!r} is no backend: {type(made).__name__} lacks name, capabilities, "
        "create() or connect().",
        hint="Implement sandboxio.protocols.Backend, or inherit sandboxio.adapter.BaseBackend.",
    )


def _not_installed(name: str, error: ModuleNotFoundError | None) -> SandboxError:
    """The missing-extra error; but a missing module of our own is a bug and passes through."""
    if error is not None and (error.name or "").partition(".")[0] in _OWN_PACKAGES:
        raise error
    missing = f" ({error.name} is missing)" if error is not None else ""
    return BackendNotInstalled(
        f"The {name!r} backend is not installed{missing}.",
        hint=f'pip install "sandboxio[{EXTRAS.get(name, name)}]"',
    )

"""Compares the blocking facade with the async API, member by member."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

SAME = {"AsyncSandbox": "SyncSandbox", "AsyncFileSystem": "SyncFileSystem", "Process": "SyncProcess"}
"""What an async type is called on the blocking side, inside annotations too."""

SPECIAL = {"__aenter__": "__enter__", "__aexit__": "__exit__", "__aiter__": "__iter__"}


def members(cls: type) -> dict[str, Any]:
    """What a class offers to callers, inherited members included."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__[:-1]):
        if base.__module__ != "typing":
            found.update(vars(base))
    return {name: value for name, value in found.items() if not name.startswith("_") or name in SPECIAL}


def differences(async_cls: type, sync_cls: type) -> list[str]:
    """One line for each public member of ``async_cls`` that ``sync_cls`` does not mirror."""
    lines: list[str] = []
    for name, member in members(async_cls).items():
        twin_name = SPECIAL.get(name, name)
        twin = inspect.getattr_static(sync_cls, twin_name, None)
        if twin is None:
            lines.append(f"{async_cls.__name__}.{name} has no twin in {sync_cls.__name__}")
        elif isinstance(member, property) or isinstance(twin, property):
            if not (isinstance(member, property) and isinstance(twin, property)):
                lines.append(f"{sync_cls.__name__}.{twin_name} is a property on one side only")
            else:
                lines += compare(f"{sync_cls.__name__}.{twin_name}", member.fget, twin.fget)
        else:
            lines += compare(f"{sync_cls.__name__}.{twin_name}", member, twin)
    return lines


def functions(names: Iterable[str], module: Any) -> list[str]:
    """One line for each public coroutine function of a module without its ``_sync`` twin."""
    lines: list[str] = []
    for name in names:
        function = getattr(module, name)
        if not inspect.iscoroutinefunction(function):
            continue
        twin = getattr(module, f"{name}_sync", None)
        if twin is None:
            lines.append(f"{name}() has no twin {name}_sync()")
        else:
            lines += compare(f"{name}_sync", function, twin)
    return lines


def compare(name: str, function: Callable[..., Any] | None, twin: Callable[..., Any] | None) -> list[str]:
    assert function is not None
    assert twin is not None
    if inspect.iscoroutinefunction(twin):
        return [f"{name} is a coroutine function"]
    wanted, found = _shape(function), _shape(twin)
    return [] if wanted == found else [f"{name}{found} does not mirror {wanted}"]


def _shape(function: Callable[..., Any]) -> inspect.Signature:
    """The signature with the async names replaced; annotations are text here."""
    signature = inspect.signature(function)
    parameters = [
        parameter.replace(annotation=_translated(parameter.annotation))
        for parameter in signature.parameters.values()
    ]
    return signature.replace(
        parameters=parameters, return_annotation=_translated(signature.return_annotation)
    )


def _translated(annotation: Any) -> Any:
    if not isinstance(annotation, str):
        return annotation
    text = annotation.replace("AsyncIterator", "Iterator")
    return SAME.get(text, text)

"""Every async test runs on asyncio and on trio, or says why not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from inspect import iscoroutinefunction

import pytest

from .clocks import LOOPS


def is_async(item: pytest.Item) -> bool:
    function = getattr(item, "obj", None)
    hypothesis = getattr(function, "hypothesis", None)
    return iscoroutinefunction(hypothesis.inner_test if hypothesis is not None else function)


def loop_of(item: pytest.Item) -> str | None:
    """The loop that anyio will run this test on, or None if nothing says so at collection."""
    callspec = getattr(item, "callspec", None)
    backend = None if callspec is None else callspec.params.get("anyio_backend")
    return backend[0] if isinstance(backend, tuple) else backend


def group_of(item: pytest.Item) -> tuple[object, ...]:
    """The same for two items that differ in their loop only."""
    callspec = getattr(item, "callspec", None)
    others = {} if callspec is None else dict(callspec.params)
    others.pop("anyio_backend", None)
    parent = item.parent.nodeid if item.parent is not None else ""
    # pytest hands the very same object to each combination that a parameter value is part of
    same = sorted((name, id(value)) for name, value in others.items())
    return (parent, getattr(item, "originalname", item.name), *same)


def reason_of(item: pytest.Item, name: str) -> str | None:
    """Why this test is an exception to a rule; a marker without a reason is a usage error."""
    marker = item.get_closest_marker(name)
    if marker is None:
        return None
    reason = marker.kwargs.get("reason", marker.args[0] if marker.args else "")
    if not isinstance(reason, str) or not reason.strip():
        raise pytest.UsageError(f"{item.nodeid}: @pytest.mark.{name} needs a reason")
    return reason


def without_twin(items: Iterable[pytest.Item]) -> list[str]:
    """One line for each async test that does not run on every loop."""
    loops: dict[tuple[object, ...], set[str | None]] = defaultdict(set)
    first: dict[tuple[object, ...], pytest.Item] = {}
    for item in items:
        if is_async(item) and reason_of(item, "one_loop") is None:
            group = group_of(item)
            loops[group].add(loop_of(item))
            first.setdefault(group, item)
    lines: list[str] = []
    for group, found in loops.items():
        missing = [loop for loop in LOOPS if loop not in found]
        if missing:
            lines.append(f"{first[group].nodeid}: does not run on {' and '.join(missing)}")
    return lines

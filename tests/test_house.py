"""The source tree keeps the house rules, and each rule can be broken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness import house
from tests.harness.house import Tree

SRC = Path(__file__).parents[1] / "src"

Check = Callable[[Tree], list[str]]


@pytest.fixture(scope="module")
def tree() -> Tree:
    tree = house.read_tree(SRC)
    assert "sandboxio/__init__.py" in tree
    return tree


@pytest.mark.parametrize("check", house.CHECKS, ids=lambda check: check.__name__)
def test_the_source_tree_keeps_the_rule(check: Check, tree: Tree) -> None:
    assert not check(tree), "\n" + "\n".join(check(tree))


def test_the_tables_name_files_that_exist(tree: Tree) -> None:
    """A rule about a file that was renamed would hold nothing."""
    named = [entry.rstrip("*") for floor in house.FLOORS for entry in floor]
    named += [*house.OUTSIDE, *house.NO_AWAIT, *house.SHIELDS, *house.LOOPS_AND_THREADS_IN]
    named += [*house.TASKS_IN, *house.OPEN_SIGNATURES_IN, *house.LONG_FILES, house.GUEST]
    missing = [
        name
        for name in named
        if f"{name}.py" not in tree
        and not (name.endswith("/") and any(path.startswith(name) for path in tree))
    ]
    assert not missing


CORE = {"sandboxio/errors.py": "", "sandboxio/models.py": "from .errors import X"}

BREACHES: list[tuple[Check, Tree, str]] = [
    (house.floors, {"sandboxio/nowhere.py": ""}, "sandboxio/nowhere.py: has no floor"),
    (
        house.floors,
        {**CORE, "sandboxio/errors.py": "from .models import Y"},
        "sandboxio/errors.py:1: imports sandboxio/models",
    ),
    (
        house.floors,
        {
            **CORE,
            "sandboxio/errors.py": "from typing import TYPE_CHECKING\n"
            "if TYPE_CHECKING:\n    from . import models",
        },
        "sandboxio/errors.py:3: imports sandboxio/models",
    ),
    (
        house.floors,
        {**CORE, "sandboxio/errors.py": "def late():\n    import sandboxio.models"},
        "sandboxio/errors.py:2: imports sandboxio/models",
    ),
    (
        house.circles,
        {
            "sandboxio/cli/a.py": "from .b import x",
            "sandboxio/cli/b.py": "from sandboxio.cli import c",
            "sandboxio/cli/c.py": "def late():\n    from .a import y",
        },
        "sandboxio/cli/a and sandboxio/cli/b and sandboxio/cli/c import each other",
    ),
    (house.rooms, {"sandboxio/registry.py": "import sandboxio_docker"}, "imports sandboxio_docker"),
    (house.rooms, {"sandboxio_e2b/x.py": "from sandboxio_docker import y"}, "imports sandboxio_docker"),
    (house.rooms, {"sandboxio_docker/x.py": "from sandboxio._record import y"}, "private to the core"),
    (house.rooms, {"sandboxio_docker/x.py": "from sandboxio import _record"}, "private to the core"),
    (house.outside, {"sandboxio/api.py": "import httpx"}, "sandboxio/api.py:1: imports httpx"),
    (house.outside, {"sandboxio/api.py": "import pytest"}, "sandboxio/api.py:1: imports pytest"),
    (house.outside, {"sandboxio_docker/guest_wire.py": "def f():\n    import h11"}, "imports h11"),
    (house.outside, {"sandboxio_docker/backend.py": "from httpx import Client"}, "imports httpx"),
    (house.outside, {"sandboxio/mcp/server.py": "import agents"}, "imports agents"),
    (
        house.public_only,
        {"sandboxio/mcp/server.py": "from .._record import x", "sandboxio/_record.py": ""},
        "only the public API",
    ),
    (house.no_await, {"sandboxio_docker/guest_wire.py": "async def f(): ..."}, "async code"),
    (house.shields, {"sandboxio/api.py": "CancelScope(shield=True)"}, "sandboxio/api.py:1: shields"),
    (house.shields, {"sandboxio/api.py": "move_on_after(1, shield=flag)"}, "shields"),
    (house.shields, {"sandboxio_docker/x.py": "scope.shield = True"}, "shields"),
    (house.loops_and_threads, {"sandboxio/api.py": "import asyncio"}, "imports asyncio"),
    (house.loops_and_threads, {"sandboxio_e2b/x.py": "from trio import sleep"}, "imports trio"),
    (house.loops_and_threads, {"sandboxio/api.py": "import concurrent.futures"}, "imports concurrent"),
    (house.loops_and_threads, {"sandboxio/api.py": "from anyio import to_thread"}, "imports anyio"),
    (house.background_tasks, {"sandboxio/api.py": "anyio.create_task_group()"}, "no background tasks"),
    (house.open_signatures, {"sandboxio/api.py": "def f(**kwargs): ..."}, "f() takes **kwargs"),
    (
        house.open_signatures,
        {"sandboxio/api.py": "class A:\n    async def __init__(self, **options): ..."},
        "__init__() takes **options",
    ),
    (
        house.error_bases,
        {"sandboxio/errors.py": "class Late(SandboxError, TimeoutError): ..."},
        "Late inherits TimeoutError",
    ),
    (house.error_bases, {"sandboxio/errors.py": "class Odd(Exception): ..."}, "Odd inherits Exception"),
    (house.timeouts, {"sandboxio/api.py": "raise TimeoutError"}, "raises TimeoutError"),
    (house.timeouts, {"sandboxio/api.py": "raise TimeoutError(1) from e"}, "raises TimeoutError"),
    (house.timeouts, {"sandboxio/api.py": "with anyio.fail_after(1): ..."}, "fail_after outside"),
    (
        house.timeouts,
        {"sandboxio/api.py": "try: f()\nexcept TimeoutError:\n    anyio.fail_after(1)"},
        "fail_after outside",
    ),
    (
        house.blind_excepts,
        {"sandboxio/api.py": "try: f()\nexcept Exception:\n    pass\n"},
        "sandboxio/api.py:2: catches everything",
    ),
    (house.blind_excepts, {"sandboxio/api.py": "try: f()\nexcept:\n    pass\n"}, "catches everything"),
    (
        house.blind_excepts,
        {"sandboxio/api.py": "try: f()\nexcept (OSError, BaseException):  # noqa: BLE001\n    pass\n"},
        "catches everything",
    ),
    (house.guest, {"sandboxio_docker/guest.py": "import anyio"}, "not in the standard library"),
    (house.guest, {"sandboxio_docker/guest.py": "match x:\n    case 1: pass"}, "not Python 3.8"),
    (house.sizes, {"sandboxio/api.py": "def f():\n" + "    x = 1\n" * 71}, "f() has 71 lines"),
    (house.sizes, {"sandboxio/api.py": "x = 1\n" * 601}, "601 lines"),
    (house.shapes, {"sandboxio/_utils.py": ""}, "a name that says nothing"),
    (house.shapes, {"sandboxio/__init__.py": "def f(): ..."}, "defines f"),
]


@pytest.mark.parametrize(
    ("check", "tree", "line"), BREACHES, ids=[f"{check.__name__}-{line}" for check, _, line in BREACHES]
)
def test_the_rule_can_be_broken(check: Check, tree: Tree, line: str) -> None:
    assert any(line in found for found in check(tree)), check(tree)


def test_every_rule_is_broken_above() -> None:
    assert {check for check, _, _ in BREACHES} == set(house.CHECKS)


ALLOWED: list[tuple[Check, Tree]] = [
    (house.floors, CORE),
    (house.rooms, {"sandboxio_docker/x.py": "from sandboxio.adapter import y\nfrom . import _z"}),
    (house.outside, {"sandboxio_docker/engine.py": "import httpx, json, anyio"}),
    (house.shields, {"sandboxio/_teardown.py": "move_on_after(1, shield=True)"}),
    (house.open_signatures, {"sandboxio/api.py": "def _f(**kwargs): ..."}),
    (house.error_bases, {"sandboxio/errors.py": "class SandboxError(Exception): ..."}),
    (
        house.blind_excepts,
        {"sandboxio/api.py": "try: f()\n# the caller's sink, not ours\nexcept Exception:\n    pass\n"},
    ),
    (
        house.blind_excepts,
        {"sandboxio/api.py": "try: f()\nexcept BaseException:\n    close()\n    raise\n"},
    ),
    (
        house.timeouts,
        {"sandboxio/api.py": "try:\n    with anyio.fail_after(1): ...\nexcept TimeoutError: ..."},
    ),
    (house.guest, {"sandboxio_docker/guest.py": "import os, ctypes\nif (n := 1): pass"}),
    (house.sizes, {"sandboxio/api.py": "def f():\n    '''" + "doc\n" * 90 + "'''\n    return 1\n"}),
]


@pytest.mark.parametrize(("check", "tree"), ALLOWED, ids=[check.__name__ for check, _ in ALLOWED])
def test_what_the_rule_allows(check: Check, tree: Tree) -> None:
    assert not check(tree)

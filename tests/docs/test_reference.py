"""The page of the public API names every public name, argument, field and method."""

from __future__ import annotations

import ast
import dataclasses
import inspect

import sandboxio
from sandboxio import protocols
from sandboxio.sync import SyncFileSystem, SyncProcess, SyncSandbox

from .pages import ROOT

PAGE = (ROOT / "docs/reference/api.md").read_text()


def public_names() -> set[str]:
    """What ``sandboxio/__init__.py`` re-exports as ``X as X``, and what it loads late."""
    tree = ast.parse((ROOT / "src/sandboxio/__init__.py").read_text())
    imported = (each for each in ast.walk(tree) if isinstance(each, ast.ImportFrom))
    return {alias.name for each in imported for alias in each.names if alias.asname == alias.name}


def members(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")}


def absent(names: set[str]) -> set[str]:
    """Names that stand nowhere on the page in code."""
    code = " ".join(PAGE.split("`")[1::2])
    return {name for name in names if name not in code}


def test_every_public_name_is_there() -> None:
    names = public_names()
    assert len(names) > 45
    assert absent(names) == set()


def test_every_argument_of_create_is_there() -> None:
    assert absent(set(inspect.signature(sandboxio.create).parameters)) == set()


def test_every_method_is_there() -> None:
    for kind in (protocols.AsyncSandbox, protocols.AsyncFileSystem, protocols.Process):
        assert absent(members(kind)) == set()
    for kind in (SyncSandbox, SyncFileSystem, SyncProcess):
        assert absent(members(kind)) == set()


def test_every_field_and_member_is_there() -> None:
    kinds = (
        sandboxio.ExecResult,
        sandboxio.OutputChunk,
        sandboxio.FileInfo,
        sandboxio.RichOutput,
        sandboxio.Meter,
        sandboxio.Resources,
        sandboxio.NetworkPolicy,
        sandboxio.ManagedSandbox,
        sandboxio.Progress,
    )
    for kind in kinds:
        assert absent({field.name for field in dataclasses.fields(kind)}) == set()
    assert absent({tier.name for tier in sandboxio.IsolationTier}) == set()
    assert absent({flag.name or "" for flag in sandboxio.Capability}) == set()


def test_a_name_that_is_not_there_is_found() -> None:
    assert absent({"create", "recreate_everything"}) == {"recreate_everything"}

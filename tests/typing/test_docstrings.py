"""Every public name says what it is and shows it; every example in the source is executed."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import sandboxio
import sandboxio_docker
import sandboxio_e2b

PACKAGES = (sandboxio, sandboxio_docker, sandboxio_e2b)
PROGRAMS = {"sandboxio.__main__", "sandboxio_docker.guest"}
"""They run when they are imported, or are sent elsewhere as text."""


def modules() -> Iterator[str]:
    for package in PACKAGES:
        yield package.__name__
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if found.name not in PROGRAMS and not found.name.endswith(".__main__"):
                yield found.name


def with_examples() -> list[str]:
    names: list[str] = []
    for name in modules():
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        if ">>> " in Path(spec.origin).read_text():
            names.append(name)
    return names


@pytest.mark.parametrize("name", with_examples())
def test_the_examples_are_true(name: str, record_property: Callable[[str, object], None]) -> None:
    module = importlib.import_module(name)
    output: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    finder = doctest.DocTestFinder(exclude_empty=True)
    examples = 0
    with warnings.catch_warnings():
        for test in finder.find(module, name):
            runner.run(test, out=output.append)
            examples += len(test.examples)
            if test.examples:
                record_property("executed", "docstrings, on the fake")
    assert examples, f"{name} has >>> that doctest does not see"
    assert runner.failures == 0, "".join(output)


def public(module: types.ModuleType) -> list[str]:
    """Names that a user gets from a package: re-exported classes and functions."""
    names = [name for name in dir(module) if not name.startswith("_")]
    return [name for name in names if inspect.isclass(getattr(module, name)) or _is_function(module, name)]


def _is_function(module: types.ModuleType, name: str) -> bool:
    return inspect.isroutine(getattr(module, name))


@pytest.mark.parametrize(
    ("module", "name"), [(package, name) for package in PACKAGES for name in public(package)]
)
def test_every_public_name_has_an_example(module: types.ModuleType, name: str) -> None:
    """``__module__`` tells whose it is: what only passes through needs none."""
    symbol = getattr(module, name)
    text = inspect.getdoc(symbol) or ""
    assert symbol.__module__.startswith("sandboxio")
    assert text
    assert ">>> " in text


def test_the_public_names_are_seen() -> None:
    assert {"create", "create_sync", "SandboxError", "ExecResult", "doctor"} <= set(public(sandboxio))
    assert "DockerBackend" in public(sandboxio_docker)
    assert "E2BBackend" in public(sandboxio_e2b)

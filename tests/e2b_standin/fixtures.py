"""Fixtures for tests against the stand-in; a module or conftest imports both."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from . import running


@pytest.fixture(scope="session")
def standin_process() -> Iterator[running.StandInProcess]:
    if problem := running.problem():
        pytest.skip(problem)
    with running.stand_in() as process:
        yield process


@pytest.fixture
def standin(
    standin_process: running.StandInProcess, monkeypatch: pytest.MonkeyPatch
) -> Iterator[running.StandInProcess]:
    """The stand-in, empty, with the environment pointing at it."""
    for name, value in standin_process.environment.items():
        monkeypatch.setenv(name, value)
    for name in ("E2B_DOMAIN", "E2B_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    # On this machine E2B has no tier, which is told once in a process, in whatever test comes first.
    monkeypatch.setattr("sandboxio.api._warned", {"e2b"})
    standin_process.reset()
    yield standin_process
    standin_process.reset()

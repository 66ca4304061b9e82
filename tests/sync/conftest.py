from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import sandboxio
from sandboxio import registry

from .hostprocess import HostBackend


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The DSN of the host-process adapter; every sandbox it makes has to be gone after the test."""
    folder = tmp_path / "host"
    folder.mkdir()
    monkeypatch.setenv("SBX_TEST_HOST", str(folder))
    sandboxio.register("host", HostBackend)
    yield "host://"
    registry.unregister("host")
    assert not list(folder.iterdir())

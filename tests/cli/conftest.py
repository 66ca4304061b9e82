from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import sandboxio
from sandboxio import registry
from sandboxio.cli import main
from sandboxio.testing import FakeBackend

ROOT = Path(__file__).parents[2]


@dataclass
class Ran:
    """How one command went."""

    code: int
    out: str
    err: str

    @property
    def payload(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        return found


Command = Callable[..., Ran]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs a command in this process."""
    for name in ("NO_COLOR", "SBX_DEBUG", "SBX_TEARDOWN_GRACE", "SBX_AUDIT_TIMEOUT", "E2B_API_KEY"):
        monkeypatch.delenv(name, raising=False)

    def command(*arguments: str) -> Ran:
        try:
            code = main(arguments)
        except SystemExit as ended:
            code = int(str(ended.code))
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return command


@pytest.fixture
def fake() -> Iterator[FakeBackend]:
    """A fake that ``fake://`` and ``docker://`` resolve to, and the only backend there is."""
    fake = FakeBackend()
    for name in ("docker", "fake"):
        sandboxio.register(name, lambda: fake)
    yield fake
    for name in ("docker", "fake"):
        registry.unregister(name)


@pytest.fixture
def only() -> Iterator[Callable[..., None]]:
    """``only(name=factory, ...)``: nothing but these backends exists."""
    with pytest.MonkeyPatch.context() as patch:

        def only(**factories: Callable[[], Any]) -> None:
            patch.setattr("importlib.metadata.entry_points", lambda **_: ())
            patch.setattr(registry, "_registered", dict(factories))
            patch.setattr(registry, "_resolved", {})  # what earlier tests found

        yield only


def start(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    """Starts the command as a program of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **options.pop("env", {})}
    return subprocess.Popen(
        [sys.executable, "-m", "sandboxio", *arguments], text=True, cwd=ROOT, env=environment, **options
    )

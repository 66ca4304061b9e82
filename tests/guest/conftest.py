from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.guest.rawclient import Local

OLDEST = (3, 8)


def _ask(python: str) -> tuple[tuple[int, int], str]:
    """Its version, and where it really is: what is in PATH may be a script around it."""
    text = "import sys; print(*sys.version_info[:2], sys.executable)"
    done = subprocess.run([python, "-c", text], capture_output=True, text=True, check=False)
    major, minor, path = done.stdout.split() if done.returncode == 0 else ("0", "0", "")
    return (int(major), int(minor)), path


def interpreters() -> dict[str, str]:
    """Every Python that the machine has and the guest supports, one of each minor version."""
    names = [f"python3.{minor}" for minor in range(OLDEST[1], 20)] + ["python3"]
    places = [found for name in names if (found := shutil.which(name))]
    places += map(str, sorted(Path("~/.pyenv/versions").expanduser().glob("3.*/bin/python")))
    found: dict[str, str] = {}
    for place in places:
        version, path = _ask(place)
        if version >= OLDEST:
            found.setdefault(f"{version[0]}.{version[1]}", path)
    return found


PYTHONS = interpreters()
ANY = next(iter(PYTHONS.values()))
HAS_NAMESPACES = (
    subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", "true"], capture_output=True, check=False
    ).returncode
    == 0
    if shutil.which("unshare")
    else False
)


@pytest.fixture(params=PYTHONS, ids=lambda version: f"py{version}")
def python(request: pytest.FixtureRequest) -> str:
    return PYTHONS[request.param]


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture
def guest(work: Path) -> Iterator[Callable[..., Local]]:
    """Starts guests as process 1 of a PID namespace; they are gone after the test."""
    if not HAS_NAMESPACES:
        pytest.skip("no PID namespaces here: this test must not be run beside other processes")
    with ExitStack() as stack:

        def start(python: str = ANY, **options: Any) -> Local:
            client = stack.enter_context(Local(python, os.fspath(work), **options))
            client.hello()
            return client

        yield start


ADVERSARIES = Path(__file__).with_name("adversaries.c")


@pytest.fixture(scope="session")
def adversary(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    target = tmp_path_factory.mktemp("adversary") / "adversary"
    flags = ["-O1", "-static", "-pthread"]  # static: it has to run in every image
    subprocess.run([compiler, *flags, "-o", target, ADVERSARIES], check=True)
    return os.fspath(target)

"""The command line of the bare distribution: its two dependencies and nothing else on the machine."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import sandboxio

RUN = """
import runpy, sys
sys.path[:0] = [sys.argv.pop(1)]
sys.argv[0] = "sandboxio"
runpy.run_module("sandboxio", run_name="__main__")
"""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with sandboxio, its metadata and its dependencies, linked from this environment."""
    folder = tmp_path_factory.mktemp("libraries")
    for path in Path(sandboxio.__path__[0]).parent.glob("sandboxio*"):
        (folder / path.name).symlink_to(path)
    for name in ("anyio", "typing_extensions", "idna", "sniffio"):
        spec = find_spec(name)
        if spec is not None and spec.origin is not None:
            origin = Path(spec.origin)
            source = origin.parent if origin.name == "__init__.py" else origin
            (folder / source.name).symlink_to(source)
    for name in ("sandboxio", "anyio", "typing_extensions"):
        about = importlib.metadata.distribution(name)
        target = folder / f"{name}-{about.version}.dist-info"
        target.mkdir(exist_ok=True)
        for file in ("METADATA", "entry_points.txt"):
            if (text := about.read_text(file)) is not None:
                (target / file).write_text(text)
    return folder


def run(libraries: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-S", "-I", "-c", RUN, str(libraries), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_demo_says_what_to_install(libraries: Path) -> None:
    done = run(libraries, "demo")
    assert (done.returncode, done.stderr) == (1, "")
    assert "  FAIL  create" in done.stdout
    assert '        fix: pip install "sandboxio[docker]"\n' in done.stdout


def test_the_demo_runs_on_the_fake(libraries: Path) -> None:
    done = run(libraries, "demo", "--backend", "fake://", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["ok"] is True


def test_doctor_reports_what_is_not_installed_and_is_content(libraries: Path) -> None:
    done = run(libraries, "doctor")
    assert (done.returncode, done.stderr) == (0, "")
    for name in ("docker", "e2b"):
        assert f'{name}: not installed\n        install: pip install "sandboxio[{name}]"\n' in done.stdout
    assert "fake: healthy" in done.stdout


def test_reap_reports_it_too(libraries: Path) -> None:
    done = run(libraries, "reap", "--kill", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    backends = json.loads(done.stdout)["backends"]
    assert {backend["name"]: backend["status"] for backend in backends} == {
        "docker": "not installed",
        "e2b": "not installed",
    }


def test_debug_works_without_rich(libraries: Path) -> None:
    command = [sys.executable, "-S", "-I", "-c", f"import os; os.environ['SBX_DEBUG'] = '1'\n{RUN}"]
    done = subprocess.run(
        [*command, str(libraries), "demo"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "ModuleNotFoundError" in done.stderr

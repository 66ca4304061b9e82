"""``scripts.run_pass``: which failures are forgiven, and that they are named."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Fails as often as the file beside it says, counting down.
SHAKY = """
import pathlib, pytest
@pytest.mark.parametrize("name", {names!r})
def test_shaky(name):
    left = pathlib.Path({folder!r}) / name.encode().hex()
    count = int(left.read_text())
    left.write_text(str(count - 1))
    assert count <= 0
def test_good(): pass
"""
TEARDOWN = """
import pathlib, pytest
@pytest.fixture
def shaky():
    yield
    first = pathlib.Path({folder!r}) / "first"
    if not first.exists():
        first.touch()
        raise RuntimeError
def test_left(shaky): pass
"""


ASYNC = """
import pathlib
async def test_async(anyio_backend_name):
    first = pathlib.Path({folder!r}) / "first"
    if anyio_backend_name == "trio" and not first.exists():
        first.touch()
        raise RuntimeError
"""


def run(folder: Path, text: str, *arguments: str) -> tuple[int, list[str], str]:
    """Its exit code, the unsteady tests, and what was printed."""
    (folder / "test_it.py").write_text(text)
    if not (folder / "pytest.ini").exists():
        (folder / "pytest.ini").write_text("[pytest]\n")
    unsteady = folder / "unsteady"
    unsteady.touch()
    where = ["--rootdir", str(folder), "-c", str(folder / "pytest.ini"), str(folder / "test_it.py")]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "scripts.run_pass",
            unsteady,
            "-q",
            "--disable-plugin-autoload",
            *where,
            *arguments,
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, unsteady.read_text().splitlines(), done.stdout


def shaky(folder: Path, **failures: int) -> str:
    for name, count in failures.items():
        (folder / name.encode().hex()).write_text(str(count))
    return SHAKY.format(names=list(failures), folder=str(folder))


def test_what_passes_is_run_once(tmp_path: Path) -> None:
    code, unsteady, out = run(tmp_path, shaky(tmp_path, a=0))
    assert (code, unsteady) == (0, [])
    assert "once more" not in out


def test_one_failure_and_three_passes_are_unsteady(tmp_path: Path) -> None:
    code, unsteady, out = run(tmp_path, shaky(tmp_path, **{"a": 1, "b\n::[é": 1, "c": 0}))
    assert code == 0
    assert unsteady == ["test_it.py::test_shaky[a]", r"test_it.py::test_shaky[b\\n::[\\xe9]"]
    assert out.count("once more") == 3
    assert out.count("2 passed, 2 deselected") == 3, "only what failed is run again"


@pytest.mark.parametrize("count", [2, 9])
def test_a_second_failure_is_one(tmp_path: Path, count: int) -> None:
    code, unsteady, out = run(tmp_path, shaky(tmp_path, a=count, b=1))
    assert (code, unsteady) == (1, [])
    assert out.count("once more") == 1


def test_more_than_two_are_no_accident(tmp_path: Path) -> None:
    code, unsteady, out = run(tmp_path, shaky(tmp_path, a=1, b=1, c=1))
    assert (code, unsteady) == (1, [])
    assert "once more" not in out


def test_a_failure_of_the_teardown_is_tried_again_too(tmp_path: Path) -> None:
    code, unsteady, _ = run(tmp_path, TEARDOWN.format(folder=str(tmp_path)))
    assert (code, unsteady) == (0, ["test_it.py::test_left"])


@pytest.mark.parametrize(("text", "code"), [("syntax error", 2), ("", 5)])
def test_what_is_no_failure_of_a_test_is_not_tried_again(tmp_path: Path, text: str, code: int) -> None:
    told, unsteady, out = run(tmp_path, text)
    assert (told, unsteady) == (code, [])
    assert "once more" not in out


def test_a_file_that_cannot_be_collected_has_failed(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text("syntax error")
    arguments = ("--continue-on-collection-errors", str(tmp_path / "test_other.py"))
    code, unsteady, _ = run(tmp_path, shaky(tmp_path, a=1), *arguments)
    assert (code, unsteady) == (1, [])


def test_a_run_that_fails_as_a_whole_has_failed(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("def pytest_sessionfinish(session): session.exitstatus = 1\n")
    code, unsteady, out = run(tmp_path, shaky(tmp_path, a=0))
    assert (code, unsteady) == (1, [])
    assert "Traceback" not in out


def test_one_loop_of_an_async_test_is_tried_again_under_the_rules_of_this_repository(tmp_path: Path) -> None:
    """Its twin has passed, and is not even collected then."""
    shutil.copy(ROOT / "conftest.py", tmp_path)
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    markers = [f"    {line}" for line in settings["markers"]]
    (tmp_path / "pytest.ini").write_text("\n".join(["[pytest]", "anyio_mode = auto", "markers =", *markers]))
    (tmp_path / "test_async.py").write_text(ASYNC.format(folder=str(tmp_path)))
    plugins = ("-p", "anyio", "-p", "pytest_timeout", str(tmp_path))
    code, unsteady, out = run(tmp_path, "def test_good(): pass", *plugins)
    assert (code, unsteady) == (0, ["test_async.py::test_async[trio]"]), out

"""The public API as mypy and pyright see it, both strict, and complete."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent


def checker(name: str) -> str:
    found = shutil.which(name, path=str(BIN))
    if found is None:
        pytest.skip(f"{name} is not in this environment")
    return found


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """In a folder without a configuration of ours, as a user has it; the environment is found by PATH."""
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=280, check=False, env=environment
    )


@pytest.fixture(scope="module")
def mypy(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command; its runs share what they found out about libraries."""
    cache = tmp_path_factory.mktemp("mypy")
    return [checker("mypy"), "--strict", "--cache-dir", str(cache), "--python-executable", sys.executable]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return Path(shutil.copy(HERE / "public_api.py", tmp_path))


def test_mypy_strict(program: Path, mypy: list[str]) -> None:
    done = run([*mypy, program.name], program.parent)
    assert done.returncode == 0, done.stdout


def test_pyright_strict(program: Path) -> None:
    settings = {"typeCheckingMode": "strict", "reportUnnecessaryTypeIgnoreComment": "error"}
    (program.parent / "pyrightconfig.json").write_text(json.dumps(settings))
    done = run([checker("pyright"), "--outputjson", program.name], program.parent)
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == 1
    assert report["generalDiagnostics"] == []


@pytest.mark.parametrize("tool", ["mypy", "pyright"])
def test_a_wrong_expectation_is_seen(program: Path, mypy: list[str], tool: str) -> None:
    """The checks above can fail: here, one expectation is false."""
    program.write_text(program.read_text().replace("(result.exit_code, int)", "(result.exit_code, str)"))
    command = mypy if tool == "mypy" else [checker("pyright")]
    done = run([*command, program.name], program.parent)
    assert done.returncode == 1
    assert "assert_type" in done.stdout or "Expression is of type" in done.stdout


def test_every_public_type_is_known(tmp_path: Path) -> None:
    done = run(
        [checker("pyright"), "--outputjson", "--ignoreexternal", "--verifytypes", "sandboxio"], tmp_path
    )
    found: dict[str, Any] = json.loads(done.stdout)["typeCompleteness"]
    assert found["pyTypedPath"]
    assert found["exportedSymbolCounts"]["withKnownType"] > 500
    unknown = [
        symbol["name"] for symbol in found["symbols"] if symbol["isExported"] and not symbol["isTypeKnown"]
    ]
    assert unknown == []
    assert found["completenessScore"] == 1

"""A new user's first test file, in an empty folder, with `pip install sandboxio pytest` and nothing more.

The environment is a real one of its own. What pip would fetch is taken from the environment of this
run: the wheel, built from the tree, and the distributions that it and pytest require, by their metadata.
"""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]

FIRST_TEST = """
import pytest
import sandboxio
from sandboxio import ExecResult, NetworkPolicy
from sandboxio.testing import FakeBackend


@pytest.mark.anyio
async def test_my_tool(sbx_fake):
    sbx_fake.on_run_code(match="import pandas", returns=ExecResult(0, "2.2.1\\n", ""))
    res = await sbx_fake.sandbox.run_code("import pandas; print(pandas.__version__)")
    assert "2.2.1" in res.stdout
    assert sbx_fake.calls[0].op == "create"
    assert sbx_fake.calls[0].network == NetworkPolicy(egress="deny")


def my_agent_tool(sandbox, query):
    return sandbox.run_code("import pandas  # " + query).stdout


def test_my_agent_tool(sbx_fake):
    sbx_fake.on_run_code(match="import pandas", returns=ExecResult(0, "2.2.1\\n", ""))
    result = my_agent_tool(sandbox=sbx_fake.sync_sandbox, query="check pandas version")
    assert "2.2.1" in result


async def my_tool(query: str) -> str:
    async with await sandboxio.create("docker://python:3.12-slim") as sb:
        return (await sb.run_code(f"print({query!r}.upper())")).stdout


@pytest.mark.anyio
async def test_tool_without_docker() -> None:
    fake = FakeBackend()
    fake.on_run_code(match="upper", returns=ExecResult(0, "HELLO\\n", ""))
    sandboxio.register("docker", lambda: fake)
    assert await my_tool("hello") == "HELLO\\n"
    assert fake.calls[0].timeout == 300


@pytest.mark.anyio
async def test_a_timeout(sbx_fake):
    sbx_fake.on_run(match="slow", hangs=True)
    with pytest.raises(sandboxio.SandboxTimeout):
        await sbx_fake.sandbox.run(["slow"], timeout=60)
"""


def required(*names: str) -> dict[str, Distribution]:
    """These distributions and all that they require here, by name."""
    found: dict[str, Distribution] = {}
    pending = list(names)
    while pending:
        name = pending.pop()
        if name in found:
            continue
        found[name] = distribution(name)
        for line in found[name].requires or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                pending.append(requirement.name)
    return found


def copy(found: Distribution, libraries: Path) -> None:
    """The files of a distribution, but for its scripts."""
    for file in found.files or ():
        if ".." not in file.parts and "__pycache__" not in file.parts:
            target = libraries / file
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(Path(str(found.locate_file(file))).read_bytes())


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with sandboxio, pytest and what they require."""
    folder = tmp_path_factory.mktemp("new-user")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "env", with_pip=False, symlinks=True)
    (libraries,) = (folder / "env").glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(libraries)
        (about,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    needs = Distribution.at(libraries / about.split("/")[0]).requires or ()
    base = [Requirement(line).name for line in needs if "extra ==" not in line]
    for found in required(*base, "pytest").values():
        copy(found, libraries)
    return folder / "env/bin/python"


def test_the_environment_has_nothing_else(python: Path) -> None:
    code = "import importlib.metadata as m; print(*sorted(d.metadata['Name'] for d in m.distributions()))"
    names = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert {"sandboxio", "anyio", "pytest"} <= set(names)
    assert not {"trio", "httpx", "docker", "pytest-asyncio", "hypothesis"} & set(names)


def test_the_first_test_file_passes(python: Path, tmp_path: Path) -> None:
    (tmp_path / "test_my_tool.py").write_text(FIRST_TEST)
    run = subprocess.run(
        [python, "-m", "pytest", "-W", "error", "-q"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "4 passed" in run.stdout


def test_the_contract_runs_there_and_names_the_loop_that_is_missing(python: Path, tmp_path: Path) -> None:
    (tmp_path / "test_contract.py").write_text(
        "from sandboxio.testing import BackendContractSuite, FakeBackend\n"
        "class TestMine(BackendContractSuite):\n    backend = FakeBackend()\n"
    )
    run = subprocess.run(
        [
            python,
            "-m",
            "pytest",
            "-W",
            "error",
            "-q",
            "-rs",
            "--tb=short",
            "-k",
            "test_stream_",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "trio is not installed: pip install sandboxio[trio]" in run.stdout

"""What the wheel holds, and that it needs nothing but its two dependencies."""

from __future__ import annotations

import configparser
import subprocess
import sys
import zipfile
from email.message import Message
from email.parser import Parser
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PACKAGES = ("sandboxio", "sandboxio_docker", "sandboxio_e2b")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def _about(wheel: Path, file: str) -> str:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(f".dist-info/{file}"))
        return archive.read(name).decode()


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    return Parser().parsestr(_about(wheel, "METADATA"))


def test_it_holds_three_typed_packages_and_nothing_else(names: list[str]) -> None:
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == set(PACKAGES)
    for package in PACKAGES:
        assert f"{package}/__init__.py" in names
        assert f"{package}/py.typed" in names
    assert not [name for name in names if name.endswith((".pyc", ".orig", "~"))]
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_its_files_are_those_of_the_source_tree(names: list[str]) -> None:
    src = ROOT / "src"
    sources = {path.relative_to(src).as_posix() for path in src.rglob("*.py")}
    assert sources == {name for name in names if name.endswith(".py")}


def test_the_base_dependencies_are_exactly_two(metadata: Message) -> None:
    required = [str(line) for line in metadata.get_all("Requires-Dist", [])]
    base = sorted(line for line in required if "extra ==" not in line)
    assert [line.split(">=")[0] for line in base] == ["anyio", "typing-extensions"]
    extras = set(metadata.get_all("Provides-Extra", []))
    assert extras == {
        "docker", "e2b", "trio", "otel", "mcp", "langgraph", "openai-agents", "pydantic-ai", "all",
    }  # fmt: skip


def test_its_entry_points(wheel: Path) -> None:
    points = configparser.ConfigParser(delimiters=["="])
    points.read_string(_about(wheel, "entry_points.txt"))
    assert dict(points["console_scripts"]) == {
        "sandboxio": "sandboxio.cli:main",
        "sbx": "sandboxio.cli:main",
    }
    assert set(points["sandboxio.backends"]) == {"docker", "e2b", "fake"}
    assert dict(points["pytest11"]) == {"sandboxio": "sandboxio.testing.plugin"}


PROGRAM = """
import sys
sys.path[:0] = sys.argv[1:]
import anyio, sandboxio

async def main():
    async with await sandboxio.create("fake://") as sandbox:
        return (await sandbox.run(["echo", "hello"])).stdout

assert anyio.run(main) == "hello\\n"
loaded = {name.split(".")[0] for name in sys.modules}
print(sorted(loaded & {"httpx", "h11", "e2b", "trio", "pytest", "opentelemetry"}))
"""


def test_it_works_with_nothing_but_its_dependencies(wheel: Path, tmp_path: Path) -> None:
    """-S hides this environment; what anyio needs is let in by name."""
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(libraries)
    for name in ("anyio", "typing_extensions", "idna", "sniffio"):
        spec = find_spec(name)
        if spec is not None and spec.origin is not None:  # anyio of today has dropped sniffio
            origin = Path(spec.origin)
            source = origin.parent if origin.name == "__init__.py" else origin
            (libraries / source.name).symlink_to(source)
    command = [sys.executable, "-S", "-I", "-c", PROGRAM, str(libraries)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"

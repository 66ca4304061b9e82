"""The tools stay small, and nothing imports a framework before it is asked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import sandboxio.integrations

FOLDER = Path(sandboxio.integrations.__file__).parent
FRAMEWORKS = ("langchain_core", "agents", "pydantic_ai", "mcp", "pydantic")


@pytest.mark.parametrize("name", ["langgraph", "openai_agents", "pydantic_ai"])
def test_the_tools_of_a_framework_are_fewer_than_a_hundred_lines(name: str) -> None:
    assert len((FOLDER / f"{name}.py").read_text().splitlines()) < 100


def test_no_framework_is_imported_before_it_is_asked_for() -> None:
    program = (
        "import sys, sandboxio, sandboxio.integrations, sandboxio.mcp, sandboxio.testing\n"
        f"print([name for name in {FRAMEWORKS!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        ("langgraph", "langchain_core", "langgraph"),
        ("openai_agents", "agents", "openai-agents"),
        ("pydantic_ai", "pydantic_ai", "pydantic-ai"),
    ],
)
def test_without_its_framework_an_integration_names_the_extra(name: str, package: str, extra: str) -> None:
    program = (
        "import sys, sandboxio\n"
        f"sys.modules[{package!r}] = None\n"
        f"try: import sandboxio.integrations.{name}\n"
        "except sandboxio.BackendNotInstalled as error: print(error.hint)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == f'pip install "sandboxio[{extra}]"\n'

"""Every example is a whole program that runs, here on the fake, and lists what it needs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from .pages import ROOT

FOLDER = ROOT / "examples"
PROGRAMS = sorted(FOLDER.glob("[0-9]*.py"))
SHOWN = {
    "01_hello_sandbox.py": ("'hello from the sandbox\\n'", "'5\\n'", "exit code 1", "is gone"),
    "02_swap_backends.py": ("3 words; tier container",),
    "03_stream_and_timeout.py": ("stdout: b'three\\n'", "SBX_E1302", "'started\\n'", "still here"),
    "04_egress_denied.py": ("URLError", "with egress allowed: <", "can enforce it"),
    "05_langgraph_agent.py": ("42", "ANTHROPIC_API_KEY is not set"),
    "06_openai_agents.py": ("by hand: 42", "OPENAI_API_KEY is not set"),
}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.name)
def test_it_runs_on_the_fake(program: Path, tmp_path: Path) -> None:
    keys = {"E2B_API_KEY", "ANTHROPIC_API_KEY", "OPENAI_API_KEY"}
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", str(program), "fake://"],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name not in keys},
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for text in SHOWN[program.name]:
        assert text in done.stdout


def test_the_tests_of_a_tool_pass(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "sandboxio.testing.plugin",
         "-W", "error", "--rootdir", str(tmp_path), "-c", os.devnull, str(FOLDER / "test_my_tool.py")],
        cwd=tmp_path,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.name)
def test_it_lists_what_it_needs(path: Path) -> None:
    """The form of PEP 723, read as its reference implementation reads it."""
    found = re.search(r"(?m)^# /// script$\s(?P<content>(^#(| .*)$\s)+)^# ///$", path.read_text())
    assert found is not None
    lines = found["content"].splitlines(keepends=True)
    header = tomllib.loads("".join(line[2:] if line.startswith("# ") else line[1:] for line in lines))
    assert header["requires-python"] == ">=3.11"
    assert header["dependencies"][0].startswith("sandboxio")


def test_every_example_is_in_the_list() -> None:
    page = (FOLDER / "README.md").read_text()
    assert {path.name for path in PROGRAMS} == SHOWN.keys()
    assert all(f"]({path.name})" in page for path in FOLDER.glob("*.py"))

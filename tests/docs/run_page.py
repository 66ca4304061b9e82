"""Executes the Python blocks of one page, each as it is written, and prints what became of them.

    python run_page.py PAGE.md [IMAGE]

``docker://`` is the fake with what Docker declares, or with IMAGE the real engine, where IMAGE stands in
for every image. ``e2b://`` is the fake as a microVM. A block may say that it runs on the real adapter.
Blocks with tests are handed to pytest. Each block starts in an empty folder of its own. A JSON object
goes to stdout: for the line of each block, why it failed (or an empty text) and where it ran. What the
blocks print goes to stderr.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import traceback
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import pytest

from sandboxio import Capability, IsolationTier, registry
from sandboxio.adapter import SandboxRequest
from sandboxio.testing import FakeBackend
from sandboxio_docker import DockerBackend
from sandboxio_docker.sandbox import DockerSandbox
from tests.docs.pages import Block, blocks

USED: set[str] = set()
"""Where the block at hand has made sandboxes."""


class OneImage(DockerBackend):
    """Docker with one image for all."""

    async def _provision(self, request: SandboxRequest) -> DockerSandbox:
        USED.add("a real engine")
        return await super()._provision(replace(request, template=sys.argv[2]))


def stand_ins() -> None:
    """Fresh backends behind the names of the real ones."""
    able = FakeBackend().capabilities
    if len(sys.argv) > 2:
        registry.register("docker", OneImage)
    else:
        registry.register("docker", lambda: FakeBackend(capabilities=able & ~Capability.STATEFUL_CODE))
    registry.register("e2b", lambda: FakeBackend(isolation=IsolationTier.MICROVM))


def forget() -> None:
    for name in ("docker", "e2b", "fake"):
        registry.unregister(name)


def run_program(block: Block, page: Path) -> None:
    code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
    exec(code, {"__name__": "__main__"})


def run_tests(block: Block) -> None:
    file = Path("test_page.py")
    file.write_text(block.text)
    Path("pytest.ini").write_text("[pytest]\nmarkers =\n    docker: needs an engine\n")
    name = f"test_page_{block.line}"
    file.rename(f"{name}.py")
    code = pytest.main(["-q", "-W", "error::UserWarning", "-p", "no:cacheprovider", f"{name}.py"])
    if code != pytest.ExitCode.OK:
        raise AssertionError(f"pytest ended with {code!r}")


def where(block: Block) -> str:
    """In whose sandboxes a block ran that has just run."""
    if block.way == "real adapter":
        return "the real adapter, which refuses"
    if USED:
        return " and ".join(sorted(USED))
    uses = ("://", "_fake", "Fake")
    return "the fake" if any(text in block.text for text in uses) else "nothing: no sandbox is made"


def outcome(block: Block, page: Path) -> str:
    """An empty text if the block ran, else the traceback."""
    USED.clear()
    home = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            if block.way != "real adapter":
                stand_ins()
            run_tests(block) if block.way == "pytest" else run_program(block, page)
        except BaseException:  # noqa: BLE001 - reported by line
            return traceback.format_exc()
        finally:
            os.chdir(home)
            forget()
    return ""


def main() -> None:
    page = Path(sys.argv[1]).resolve()
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    os.environ["PYTEST_PLUGINS"] = "anyio.pytest_plugin,sandboxio.testing.plugin"
    found: dict[str, tuple[str, str]] = {}
    with contextlib.redirect_stdout(sys.stderr):
        for block in blocks(page.read_text()):
            if block.language == "python" and block.way != "not executed":
                found[str(block.line)] = outcome(block, page), where(block)
    print(json.dumps(found))


if __name__ == "__main__":
    main()

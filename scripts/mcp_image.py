"""Build the image of the MCP server: ``python -m scripts.mcp_image [--base IMAGE] [--tag TAG]``.

The packages are installed for the base's own Python into the build context, so the build needs no network
and no pip in the base.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docker" / "mcp"
EXTRAS = "mcp,e2b"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.mcp_image", description=__doc__)
    parser.add_argument("--base", default="python:3.12-slim", help="image to build on; it needs python3")
    parser.add_argument("--tag", default="sandboxio-mcp", help="name of the image")
    parser.add_argument("--tools", action="store_true", help="write docker/mcp/tools.json and stop")
    given = parser.parse_args(argv)
    if given.tools:
        (FOLDER / "tools.json").write_text(tools())
        return 0
    with tempfile.TemporaryDirectory() as folder:
        context = Path(folder)
        shutil.copy(FOLDER / "Dockerfile", context)
        install(context / "site", python_of(given.base))
        docker("build", "--build-arg", f"BASE={given.base}", "--tag", given.tag, str(context))
    return 0


def tools() -> str:
    """What the server tells of its tools, as catalogues want it."""
    from mcp import Client

    from sandboxio.mcp.server import Settings, build

    async def listed() -> list[dict[str, object]]:
        async with Client(build(Settings("fake://"))) as client:
            return [
                {
                    "name": tool.name,
                    "description": tool.description,
                    "arguments": [
                        {
                            "name": name,
                            "type": schema.get("type", "string"),
                            "desc": schema.get("description", ""),
                        }
                        for name, schema in tool.input_schema.get("properties", {}).items()
                    ],
                }
                for tool in (await client.list_tools()).tools
            ]

    return json.dumps(asyncio.run(listed()), indent=2) + "\n"


def python_of(base: str) -> str:
    """The version of the base's Python, such as ``3.12``."""
    program = "import sys; print('%d.%d' % sys.version_info[:2])"
    run = ("run", "--rm", "--network", "none", "--entrypoint", "python3", base, "-c", program)
    return docker(*run).strip()


def install(target: Path, version: str) -> None:
    """sandboxio and what it needs, for that Python on this machine's processor."""
    wheels = target.parent / "wheel"
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", wheels, ROOT], check=True)
    (wheel,) = wheels.glob("*.whl")
    # setuptools-free pure Python and manylinux wheels only: nothing is compiled for a foreign Python.
    choice = ("--only-binary=:all:", "--python-version", version, "--implementation", "cp")
    subprocess.run([*pip, "install", *choice, "--target", target, f"{wheel}[{EXTRAS}]"], check=True)
    shutil.rmtree(wheels)


def docker(*arguments: str) -> str:
    """Run the docker command; its output."""
    done = subprocess.run(["docker", *arguments], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())

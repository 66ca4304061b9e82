"""The container image of the MCP server, built on the test image: not root, no socket, serves over stdio."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest

from scripts import mcp_image

TAG = "sandboxio-mcp-of-the-tests:latest"


@pytest.fixture(scope="module")
def image(docker_image: str) -> Iterator[str]:
    assert mcp_image.main(["--base", docker_image, "--tag", TAG]) == 0
    yield TAG
    mcp_image.docker("rmi", TAG)


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_it_serves_as_nobody_and_defaults_to_a_cloud_backend(image: str) -> None:
    (config,) = json.loads(mcp_image.docker("image", "inspect", image))
    assert config["Config"]["User"] == "10001:10001"
    assert config["Config"]["Entrypoint"] == ["python3", "-m", "sandboxio.mcp"]
    assert config["Config"]["Cmd"][1].startswith("e2b://")
    assert not config["Config"].get("Volumes")
    hello = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "tests", "version": "0"},
        },
    }
    run = ["docker", "run", "-i", "--rm", "--network", "none", "--read-only", image, "--backend", "fake://"]
    done = subprocess.run(
        run, input=json.dumps(hello) + "\n", capture_output=True, text=True, timeout=60, check=True
    )
    (line,) = done.stdout.splitlines()
    assert json.loads(line)["result"]["serverInfo"]["name"] == "sandboxio"


def test_the_catalogue_says_what_the_server_says() -> None:
    stored = (mcp_image.FOLDER / "tools.json").read_text()
    assert stored == mcp_image.tools(), "run: python -m scripts.mcp_image --tools"

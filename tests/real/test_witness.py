"""aiodocker, which shares no code with ours, looks at a sandbox from outside."""

from __future__ import annotations

import os

import aiodocker
import anyio
import pytest

from sandboxio_docker import DockerBackend

pytestmark = [
    pytest.mark.engine,
    pytest.mark.one_loop(reason="aiodocker runs on asyncio only"),
]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_what_a_witness_sees(backend: DockerBackend) -> None:
    """One container with our labels while the sandbox lives; a command of ours is seen; none after."""
    async with aiodocker.Docker() as witness:
        async with await backend.create(timeout=60, metadata={"tenant_id": "acme"}) as sandbox:
            (found,) = [each for each in await witness.containers.list() if each.id == sandbox.id]
            shown = await found.show()
            labels = shown["Config"]["Labels"]
            assert labels["io.sandboxio.managed"] == "true"
            assert labels["io.sandboxio.session"] == str(os.getpid())
            assert labels["io.sandboxio.meta.tenant_id"] == "acme"
            assert shown["HostConfig"]["NetworkMode"] == "none"
            assert shown["Config"]["Env"] == (await witness.images.inspect(shown["Image"]))["Config"]["Env"]

            async def seen() -> bool:
                answer = await witness._query_json(f"containers/{sandbox.id}/top")
                return any("sleep 321" in " ".join(row) for row in answer["Processes"])

            async with sandbox.stream(["sleep", "321"]):
                with anyio.fail_after(10):
                    while not await seen():
                        await anyio.sleep(0.02)
            assert not await seen(), "leaving the stream ended the command"
        everything = await witness.containers.list(all=True)
        assert not [each for each in everything if each.id == sandbox.id]

"""Programs that make a sandbox and are then ended from outside, and what the engine holds of it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from scripts import engine_api

MOMENTS = ("create", "run", "stream", "upload", "idle")
"""What a creator does when it is killed; see ``CREATOR``."""

# It prints a line as soon as it does what argv[3] says; "create" is printed before, for its end is the use.
CREATOR = """
    import sys, tempfile
    import anyio
    from sandboxio_docker import DockerBackend

    image, channel, moment, label, loop = sys.argv[1:]

    def up():
        print("up", flush=True)

    async def soon(sandbox, command):
        while not (await sandbox.run(command)).stdout:
            await anyio.sleep(0.02)
        up()

    async def upload(sandbox):
        with tempfile.NamedTemporaryFile() as big:
            big.truncate(4 << 30)  # nothing of it is on the disk, here
            await sandbox.files.upload(big.name, "big")

    async def main():
        backend = DockerBackend(image=image, channel=channel)
        if moment == "create":
            up()
        async with await backend.create(timeout=300, metadata={"test": label}) as sandbox:
            async with anyio.create_task_group() as tasks:
                if moment == "run":
                    tasks.start_soon(soon, sandbox, "cat begun 2>/dev/null; true")
                    await sandbox.run("echo yes >begun; sleep 600", timeout=900)
                elif moment == "stream":
                    async with sandbox.stream("while :; do echo x; sleep 0.02; done", timeout=900) as process:
                        async for _ in process:
                            up()
                elif moment == "upload":
                    tasks.start_soon(soon, sandbox, "find /work -type f -size +1000k")
                    await upload(sandbox)
                elif moment == "idle":
                    up()
                await anyio.sleep_forever()

    anyio.run(main, backend=loop)
"""


def held(label: str) -> list[dict[str, Any]]:
    """Containers with this value of our metadata, seen without the code under test."""
    return engine_api.containers({"label": [f"io.sandboxio.meta.test={label}"]})


@contextmanager
def creator(
    image: str, channel: str, label: str, loop: str, *, moment: str = "run", **env: str
) -> Generator[subprocess.Popen[str]]:
    """Another process with a sandbox, which does what ``moment`` says."""
    arguments = [sys.executable, "-c", textwrap.dedent(CREATOR), image, channel, moment, label, loop]
    process = subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **env}
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n", process.communicate()[1]
        yield process
    finally:
        process.kill()
        process.communicate()

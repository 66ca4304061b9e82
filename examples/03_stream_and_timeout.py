# /// script
# requires-python = ">=3.11"
# dependencies = ["sandboxio[docker]"]
# ///
"""Read output while it comes, and cut off what takes too long.

python 03_stream_and_timeout.py [DSN]
"""

from __future__ import annotations

import sys

import anyio

import sandboxio


async def main(dsn: str) -> None:
    async with await sandboxio.create(dsn, timeout=120) as sandbox:
        async with sandbox.stream("echo one; sleep 1; echo two; sleep 1; echo three") as process:
            async for chunk in process:
                print(f"{chunk.stream}: {chunk.data!r}")
            print("ended with", (await process.wait()).exit_code)

        try:
            await sandbox.run("echo started; sleep 300", timeout=3)
        except sandboxio.ExecutionTimeout as error:
            printed = error.partial.stdout if error.partial else ""
            print(f"{error.code}: cut off after 3 s; it had printed {printed!r}")

        # Only that command died. The sandbox and everything else in it live on.
        print((await sandbox.run(["echo", "still here"])).stdout, end="")


anyio.run(main, sys.argv[1] if len(sys.argv) > 1 else "docker://python:3.12-slim")

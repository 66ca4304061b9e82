# /// script
# requires-python = ">=3.11"
# dependencies = ["sandboxio[docker]"]
# ///
"""Create a sandbox, run a command and some code in it, and let it go.

python 01_hello_sandbox.py [DSN]
"""

from __future__ import annotations

import sys

import anyio

import sandboxio


async def main(dsn: str) -> None:
    async with await sandboxio.create(dsn, timeout=120) as sandbox:
        print("created:", sandbox)

        result = await sandbox.run(["echo", "hello from the sandbox"])
        print(f"run: exit code {result.exit_code}, {result.stdout!r}")

        result = await sandbox.run_code("total = 2 + 3\nprint(total)")
        print(f"run_code: {result.stdout!r}")

        await sandbox.files.write("greeting.txt", "hello\n")
        print("file:", await sandbox.files.read("greeting.txt"))

        result = await sandbox.run(["cat", "missing.txt"])
        print(f"a failing command is a result: exit code {result.exit_code}, {result.stderr.strip()!r}")
    print("the sandbox is gone")


anyio.run(main, sys.argv[1] if len(sys.argv) > 1 else "docker://python:3.12-slim")

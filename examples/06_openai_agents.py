# /// script
# requires-python = ">=3.11"
# dependencies = ["sandboxio[docker,openai-agents]"]
# ///
"""The same with the OpenAI Agents SDK, and a sandbox of its own for each call.

    python 06_openai_agents.py [DSN]

Without OPENAI_API_KEY the sandbox is used once by hand, and the program says why it stops there.
"""

from __future__ import annotations

import functools
import os
import sys

import anyio

import sandboxio
from sandboxio.integrations.openai_agents import make_code_tool


async def main(dsn: str) -> None:
    fresh = functools.partial(sandboxio.create, dsn, timeout=120)
    tool = make_code_tool(fresh, timeout=60)
    print("the tool:", tool.name)

    async with await fresh() as sandbox:
        print("by hand:", (await sandbox.run_code("print(6 * 7)")).stdout.strip())

    if not os.environ.get("OPENAI_API_KEY"):
        print("OPENAI_API_KEY is not set, so no model is asked.")
        return

    from agents import Agent, Runner

    agent = Agent(name="analyst", instructions="Compute with the tool, then answer.", tools=[tool])
    answer = await Runner.run(agent, "What is the sum of the first 100 primes?")
    print(answer.final_output)


anyio.run(main, sys.argv[1] if len(sys.argv) > 1 else "docker://python:3.12-slim")

# /// script
# requires-python = ">=3.11"
# dependencies = ["sandboxio[docker,langgraph]", "langchain>=1.5", "langchain-anthropic"]
# ///
"""A LangChain agent whose tool is a sandbox.

    python 05_langgraph_agent.py [DSN]

Without ANTHROPIC_API_KEY the tool is called once by hand, and the program says why it stops there.
"""

from __future__ import annotations

import os
import sys

import anyio

import sandboxio
from sandboxio.integrations.langgraph import make_code_tool


async def main(dsn: str) -> None:
    async with await sandboxio.create(dsn, timeout=600) as sandbox:
        tool = make_code_tool(sandbox, timeout=60)
        print(f"{tool.name}: {await tool.ainvoke({'code': 'print(6 * 7)'})}")

        if not os.environ.get("ANTHROPIC_API_KEY"):
            print("ANTHROPIC_API_KEY is not set, so no model is asked.")
            return

        from langchain.agents import create_agent

        agent = create_agent(os.environ.get("MODEL", "anthropic:claude-sonnet-4-5"), tools=[tool])
        question = "Use the tool to find the sum of the first 100 primes. Answer with the number."
        state = await agent.ainvoke({"messages": [{"role": "user", "content": question}]})
        print(state["messages"][-1].content)


anyio.run(main, sys.argv[1] if len(sys.argv) > 1 else "docker://python:3.12-slim")

# /// script
# requires-python = ">=3.11"
# dependencies = ["sandboxio", "pytest"]
# ///
"""Tests of an agent's tool, without Docker, without a network and without an account.

pytest test_my_tool.py
"""

from __future__ import annotations

import anyio

import sandboxio
from sandboxio import ExecResult, NetworkPolicy, registry
from sandboxio.protocols import AsyncSandbox
from sandboxio.testing import FakeBackend

# The tool. In a real project it lives in a file of its own.


async def plot(sandbox: AsyncSandbox, numbers: list[int]) -> str:
    """Draw numbers in the sandbox; the answer is a sentence for the model."""
    await sandbox.files.write("numbers.txt", "\n".join(map(str, numbers)))
    try:
        result = await sandbox.run(["python3", "plot.py", "numbers.txt"], timeout=60)
    except sandboxio.ExecutionTimeout:
        return "The plot took longer than a minute. Use fewer numbers."
    if not result.ok:
        return f"The plot failed: {result.stderr.strip()}"
    return f"The plot is in {result.stdout.strip()}."


async def plot_in_a_new_sandbox(numbers: list[int]) -> str:
    async with await sandboxio.create("docker://my-plots:1") as sandbox:
        return await plot(sandbox, numbers)


# Its tests.


def test_it_says_where_the_plot_is(sbx_fake: FakeBackend) -> None:
    sbx_fake.on_run(match="plot.py", returns=ExecResult(0, "out.png\n", ""))
    assert anyio.run(plot, sbx_fake.sandbox, [1, 2, 3]) == "The plot is in out.png."
    assert sbx_fake.sync_sandbox.files.read("numbers.txt") == b"1\n2\n3"


def test_it_says_what_went_wrong(sbx_fake: FakeBackend) -> None:
    sbx_fake.on_run(match="plot.py", returns=ExecResult(1, "", "no such font\n"))
    assert anyio.run(plot, sbx_fake.sandbox, [1]) == "The plot failed: no such font"


def test_it_gives_up_after_a_minute(sbx_fake: FakeBackend) -> None:
    sbx_fake.on_run(match="plot.py", hangs=True)
    assert "longer than a minute" in anyio.run(plot, sbx_fake.sandbox, [1])


def test_its_sandbox_has_no_network_and_ends() -> None:
    fake = FakeBackend()
    fake.on_run(match="plot.py", returns=ExecResult(0, "out.png\n", ""))
    sandboxio.register("docker", lambda: fake)
    try:
        anyio.run(plot_in_a_new_sandbox, [1, 2])
    finally:
        registry.unregister("docker")
    assert fake.calls[0].template == "my-plots:1"
    assert fake.calls[0].network == NetworkPolicy(egress="deny")
    assert fake.calls[-1].op == "kill"

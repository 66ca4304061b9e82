"""The real E2B, for people with a key: ``E2B_API_KEY=... pytest tests/live -m e2b``.

It makes about a dozen sandboxes of at most five minutes and ends each. What cannot be seen on the
stand-in is here: TLS and the edge, real egress rules, real isolation, the template's own interpreter.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from sandboxio import NetworkPolicy
from sandboxio.errors import ConnectError, CreationError, ExecutionTimeout, SandboxGone
from sandboxio.protocols import AsyncSandbox
from sandboxio_e2b import E2BBackend

pytestmark = [pytest.mark.e2b, pytest.mark.slow, pytest.mark.timeout(300)]

FETCH = ["curl", "-sS", "-m", "15", "-o", "/dev/null"]


@asynccontextmanager
async def a_sandbox(**options: Any) -> AsyncGenerator[AsyncSandbox]:
    async with await E2BBackend().create(
        timeout=300, metadata={"made_by": "sandboxio-live-test"}, **options
    ) as it:
        yield it


async def test_commands_files_and_code() -> None:
    async with a_sandbox(env={"WHO": 'it\'s "me"'}) as sandbox:
        result = await sandbox.run("echo out; echo err >&2; echo $WHO; exit 3")
        assert (result.exit_code, result.stderr) == (3, "err\n")
        assert result.stdout.splitlines() == ["out", 'it\'s "me"']
        assert (await sandbox.run(["no-such-program"])).exit_code == 127
        data = bytes(range(256)) * 2000
        for name, content in (("small é", b"x"), ("large", data)):
            await sandbox.files.write(name, content)
            assert await sandbox.files.read(name) == content
        assert (await sandbox.run("sleep 300 & echo started")).stdout == "started\n"
        shown = await sandbox.run_code("import os; print(os.environ['WHO']); 6 * 7")
        assert shown.stdout == 'it\'s "me"\n'
        assert [item.data for item in shown.results or ()] == ["42"]
        await sandbox.run_code("x = 1", context_id="one")
        assert (await sandbox.run_code("print(x + 1)", context_id="one")).stdout == "2\n"


async def test_a_timeout_kills_the_tree() -> None:
    async with a_sandbox() as sandbox:
        with pytest.raises(ExecutionTimeout) as caught:
            await sandbox.run("echo so far; (setsid sleep 987 &); sleep 987", timeout=2)
        assert caught.value.partial is not None
        assert caught.value.partial.stdout == "so far\n"
        assert (await sandbox.run("pgrep -c -f 'sleep 987$'")).stdout == "0\n"
        with pytest.raises(ExecutionTimeout):
            await sandbox.run_code("import subprocess; subprocess.run(['sleep', '986'])", timeout=5)
        assert (await sandbox.run("pgrep -c -f 'sleep 986$'")).stdout == "0\n"
        began = anyio.current_time()
        with anyio.move_on_after(1):
            await sandbox.run("sleep 985")
        assert anyio.current_time() - began < 5


async def test_deny_denies_and_an_allowlist_lets_through() -> None:
    """Needs ``SBX_LIVE_SITES``: two host names of yours, for example ``a.example.org,b.example.org``."""
    allowed, _, other = os.environ.get("SBX_LIVE_SITES", "").partition(",")
    if not other:
        pytest.skip("SBX_LIVE_SITES does not name two sites that may be visited")
    async with a_sandbox() as sandbox:
        assert not (await sandbox.run([*FETCH, f"https://{allowed}/"])).ok
    async with a_sandbox(network=NetworkPolicy(allow=(allowed,))) as sandbox:
        assert (await sandbox.run([*FETCH, f"https://{allowed}/"])).ok
        assert not (await sandbox.run([*FETCH, f"https://{other}/"])).ok


async def test_connect_list_and_kill() -> None:
    backend = E2BBackend()
    async with a_sandbox() as sandbox:
        other = await backend.connect(sandbox.id)
        assert (await other.run_code("print(1)")).stdout == "1\n"
        found = await backend.list_managed(labels={"made_by": "sandboxio-live-test"})
        assert sandbox.id in [item.sandbox_id for item in found]
        assert await backend.kill_managed(sandbox.id)
        assert not await backend.kill_managed(sandbox.id)
        with pytest.raises(SandboxGone):
            await sandbox.run(["true"])
        with pytest.raises(ConnectError):
            await backend.connect(sandbox.id)
        await other.kill()


async def test_what_does_not_exist() -> None:
    with pytest.raises(CreationError):
        await E2BBackend().create(template="sandboxio-no-such-template")


async def test_fifty_at_once() -> None:
    async with a_sandbox() as sandbox:
        codes: list[int] = []

        async def sleep() -> None:
            codes.append((await sandbox.run(["sleep", "1"])).exit_code)

        async with anyio.create_task_group() as group:
            for _ in range(50):
                group.start_soon(sleep)
        assert codes == [0] * 50

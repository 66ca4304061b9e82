"""The canary on E2B's stand-in, whose key and tokens are secrets as well."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandboxio import SandboxError
from sandboxio_e2b import E2BBackend
from tests.e2b_standin.fixtures import standin as standin, standin_process as standin_process
from tests.e2b_standin.running import StandInProcess

from .backends import show_nothing
from .test_canary import Surfaces, surfaces as surfaces


async def test_nothing_shows_the_canary(standin: StandInProcess, surfaces: Surfaces, tmp_path: Path) -> None:
    await show_nothing(E2BBackend(audit=surfaces.config()), surfaces, tmp_path)


async def test_e2bs_key_and_tokens_are_secrets(standin: StandInProcess, surfaces: Surfaces) -> None:
    key = standin.environment["E2B_API_KEY"]
    sandbox = await E2BBackend(audit=surfaces.config()).create(metadata={"tenant_id": f"acme {key}"})
    tokens = list(sandbox._credentials())
    assert tokens
    await sandbox.run(["echo", key, *tokens])
    await sandbox.kill()
    with pytest.raises(SandboxError) as caught:
        await E2BBackend(audit=surfaces.config()).connect(f"no-{key}")
    surfaces.raised.append(caught.value)
    assert surfaces.recorded.events[1].argv == ("echo", *("***" for _ in (key, *tokens)))
    surfaces.assert_silent([key, *tokens])

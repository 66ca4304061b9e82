"""Any order of events at both ends, any pieces, kills at any time: all ends come, and no byte is wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from sandboxio_docker import guest
from tests.guest.paired import Pair

EXAMPLES = int(os.environ.get("SBX_TEST_ROUNDS", "40")) * 3


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("paired")
    (folder / "content").write_bytes(os.urandom(700_000))
    return folder


def play(module: object, work: Path, seed: int, length: int) -> None:
    here = os.getcwd()
    pair = Pair(module, work, seed)  # type: ignore[arg-type]
    try:
        for _ in range(length):
            pair.act()
        pair.finish()
        pair.check()
    finally:
        pair.close()
        os.chdir(here)


@pytest.mark.timeout(60 + EXAMPLES)
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32), length=st.integers(10, 400))
def test_both_ends_paired(content: Path, seed: int, length: int) -> None:
    play(guest, content, seed, length)
    assert not [name for name in os.listdir(content) if name.startswith(".sandboxio")]

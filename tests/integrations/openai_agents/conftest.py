from __future__ import annotations

import pytest
from agents import set_tracing_disabled


@pytest.fixture(autouse=True)
def no_traces() -> None:
    """The SDK would send traces of every run to its maker."""
    set_tracing_disabled(True)

"""A DSN for a backend object, for the tests that go through ``sandboxio.create``."""

from __future__ import annotations

import warnings
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from sandboxio import registry
from sandboxio.errors import UnverifiedIsolationWarning

NAME = "contract_suite"


@contextmanager
def named(backend: Any) -> Generator[str]:
    """The DSN that means ``backend`` inside. An unknown tier has its own test; here it is no news."""
    registry.register(NAME, lambda: backend)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnverifiedIsolationWarning)
            yield f"{NAME}://"
    finally:
        registry.unregister(NAME)

"""The pytest plugin: the fixture ``sbx_fake``.

pytest loads this file in every project that has sandboxio installed, so it imports nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .fake import FakeBackend

pytest.register_assert_rewrite("sandboxio.testing.suite")


@pytest.fixture
def sbx_fake() -> Iterator[FakeBackend]:
    """A fresh :class:`sandboxio.testing.FakeBackend`, which ``fake://`` means during the test.

    ``sbx_fake.sandbox`` is a ready sandbox for async code, ``sbx_fake.sync_sandbox`` the same one behind
    the blocking facade. Works with any async plugin, and with none.
    """
    from sandboxio import registry  # noqa: PLC0415 - see above

    from .fake import FakeBackend  # noqa: PLC0415

    fake = FakeBackend()
    registry.register("fake", lambda: fake)
    try:
        yield fake
    finally:
        registry.unregister("fake")
        fake.close()

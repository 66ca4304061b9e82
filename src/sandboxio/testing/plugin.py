"""The pytest plugin: the fixture ``sbx_fake``, and failure reports without the library's values.

pytest loads this file in every project that has sandboxio installed, so it imports nothing of it.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .fake import FakeBackend

pytest.register_assert_rewrite("sandboxio.testing.suite")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """See ``reports.py``."""
    report = yield
    if call.excinfo is not None and "sandboxio.api" in sys.modules:
        from .reports import leave_out_values  # noqa: PLC0415 - see above

        leave_out_values(report.longrepr)
    return report


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

"""The contract of an adapter, as tests.

>>> from sandboxio.testing.suite import BackendContractSuite
>>> from sandboxio.testing import FakeBackend
>>> class TestMyAdapter(BackendContractSuite):
...     backend = FakeBackend()

Run it with pytest. What a backend does not declare is skipped by name; what only its author can bring
about is a probe, and a missing probe is skipped by name too.
"""

from __future__ import annotations

from .cancellation import CancellationTests
from .coding import RunCodeTests
from .faults import ErrorTests, TimeoutTests
from .files import FileTests, TransferTests
from .honesty import CapabilityTests, IsolationTests
from .lifecycle import LifecycleTests
from .observing import RecordTests, SecretTests
from .parity import SyncTests
from .policy import NetworkTests, ResourceTests
from .running import RunTests, RunTimeoutTests
from .streaming import StreamCleanupTests, StreamTests


class BackendContractSuite(
    LifecycleTests,
    CancellationTests,
    RunTests,
    RunTimeoutTests,
    RunCodeTests,
    StreamTests,
    StreamCleanupTests,
    FileTests,
    TransferTests,
    NetworkTests,
    ResourceTests,
    ErrorTests,
    TimeoutTests,
    CapabilityTests,
    IsolationTests,
    RecordTests,
    SecretTests,
    SyncTests,
):
    """Inherit this with a ``backend``; see :class:`sandboxio.testing.suite.base.Contract` for the rest."""

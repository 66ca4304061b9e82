"""For tests: an in-process backend, a sink that remembers, and the suite that defines an adapter.

Nothing here needs pytest until :class:`BackendContractSuite` is asked for.

>>> from sandboxio.testing import FakeBackend
>>> FakeBackend().isolation.value
'container'
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .fake import Call as Call, FakeBackend as FakeBackend
    from .recording import RecordingSink as RecordingSink
    from .suite import BackendContractSuite as BackendContractSuite

_LAZY = {
    "BackendContractSuite": "suite",
    "Call": "fake",
    "FakeBackend": "fake",
    "RecordingSink": "recording",
}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})

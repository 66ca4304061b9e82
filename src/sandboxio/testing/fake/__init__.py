"""The fake backend, in small files; see :class:`FakeBackend`."""

from __future__ import annotations

from .backend import FakeBackend as FakeBackend
from .sandbox import Call as Call, FakeSandbox as FakeSandbox

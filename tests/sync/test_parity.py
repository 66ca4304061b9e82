"""Every async method has its blocking twin with the same signature."""

from __future__ import annotations

from typing import Protocol

import pytest

import sandboxio
from sandboxio import protocols, sync

from . import parity

PAIRS = [
    (protocols.AsyncSandbox, sync.SyncSandbox),
    (protocols.Process, sync.SyncProcess),
    (protocols.AsyncFileSystem, sync.SyncFileSystem),
]


@pytest.mark.parametrize(("async_cls", "sync_cls"), PAIRS)
def test_every_member_has_its_twin(async_cls: type, sync_cls: type) -> None:
    assert not parity.differences(async_cls, sync_cls)


def test_every_public_coroutine_function_has_its_twin() -> None:
    assert not parity.functions(dir(sandboxio), sandboxio)
    assert sync.create_sync is sandboxio.create_sync
    assert sync.connect_sync is sandboxio.connect_sync


def test_the_facade_adds_only_close() -> None:
    extra = {
        f"{sync_cls.__name__}.{name}"
        for async_cls, sync_cls in PAIRS
        for name in parity.members(sync_cls)
        if name not in parity.members(async_cls)
    }
    assert extra == {"SyncSandbox.close"}


class Grown(protocols.AsyncSandbox, Protocol):
    async def pause(self) -> None: ...


class Changed(protocols.AsyncFileSystem, Protocol):
    async def read(self, path: str, *, limit: int = 0) -> bytes: ...


class Defaulted(protocols.AsyncFileSystem, Protocol):
    async def ls(self, path: str = "/") -> list[sandboxio.FileInfo]: ...


class Turned(protocols.Process, Protocol):
    async def returncode(self) -> int | None: ...  # type: ignore[override]


@pytest.mark.parametrize(
    ("async_cls", "sync_cls", "line"),
    [
        (Grown, sync.SyncSandbox, "Grown.pause has no twin in SyncSandbox"),
        (Changed, sync.SyncFileSystem, "SyncFileSystem.read"),
        (Defaulted, sync.SyncFileSystem, "SyncFileSystem.ls"),
        (Turned, sync.SyncProcess, "SyncProcess.returncode is a property on one side only"),
    ],
)
def test_a_member_without_its_twin_is_noticed(async_cls: type, sync_cls: type, line: str) -> None:
    (found,) = parity.differences(async_cls, sync_cls)
    assert line in found


def test_a_function_without_its_twin_is_noticed() -> None:
    class Module:
        @staticmethod
        async def fork() -> None: ...

        @staticmethod
        async def join(name: str) -> None: ...

        @staticmethod
        def join_sync(name: str = "") -> None: ...

    assert [line.split("(")[0] for line in parity.functions(["fork", "join"], Module)] == [
        "fork",
        "join_sync",
    ]

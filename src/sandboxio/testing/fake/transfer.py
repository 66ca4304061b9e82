"""Files of a virtual sandbox, as the core asks every adapter for them."""

from __future__ import annotations

import errno
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import BinaryIO

import anyio.lowlevel

from sandboxio.errors import FileSystemError, PathNotFound, SandboxError
from sandboxio.models import FileInfo

from .machine import Machine
from .tree import File, Folder

PIECE = 1 << 20


class FakeTransfer:
    """Moves bytes in and out of a machine's tree; ``note`` is told of each call."""

    def __init__(self, machine: Machine, note: Callable[[str, str], None]) -> None:
        self._machine = machine
        self._note = note

    async def read_file(self, path: str, sink: Callable[[bytes], None]) -> None:
        await self._reached("file_read", path)
        with _named_failures():
            data = self._machine.tree.read(path)
        for start in range(0, len(data), PIECE):
            sink(data[start : start + PIECE])

    async def write_file(self, path: str, source: BinaryIO, size: int, mode: int | None) -> None:
        await self._reached("file_write", path)
        data = source.read(size)
        if len(data) != size:
            raise FileSystemError(
                f"The source of {path!r} ended after {len(data)} of {size} bytes.",
                hint="Do not change a file while it is uploaded.",
            )
        with _named_failures():
            self._machine.tree.write(path, data, mode=mode)

    async def list_folder(self, path: str) -> list[FileInfo]:
        await self._reached("file_list", path)
        with _named_failures(listing=True):
            return [
                FileInfo(found, len(node.data) if isinstance(node, File) else 0, isinstance(node, Folder))
                for found, node in self._machine.tree.entries(path)
            ]

    async def make_folder(self, path: str, *, parents: bool) -> None:
        await self._reached("file_mkdir", path)
        with _named_failures():
            self._machine.tree.make_folder(path, parents=parents)

    async def remove_path(self, path: str) -> None:
        await self._reached("file_remove", path)
        with _named_failures(removing=True):
            self._machine.tree.remove(path)

    async def _reached(self, operation: str, path: str) -> None:
        self._note(operation, path)
        await anyio.lowlevel.checkpoint()
        self._machine.check()


@contextmanager
def _named_failures(*, listing: bool = False, removing: bool = False) -> Generator[None]:
    """Turn the numbers of Linux into errors of sandboxio; there is nothing below a file but to list it."""
    try:
        yield
    except OSError as error:
        path = error.filename
        if error.errno == errno.ENOENT or (error.errno == errno.ENOTDIR and not listing):
            raise PathNotFound(f"{path!r} does not exist in the sandbox.") from error
        if error.errno == errno.EINVAL and removing:
            raise FileSystemError(
                f"{path!r} cannot be removed: its last part is no name.",
                hint="Name the folder by its own path.",
            ) from error
        raise _failure(error.errno or 0, str(path), error.strerror or "") from error


def _failure(number: int, path: str, words: str) -> SandboxError:
    if number == errno.EISDIR:
        return FileSystemError(f"{path!r} is a folder.", hint="Use files.ls() for folders.")
    if number == errno.EINVAL:
        return FileSystemError(f"{path!r} is not a regular file.", hint="Read regular files only.")
    return FileSystemError(f"{path!r}: {words}.")

"""The ``files`` of every adapter that uses :mod:`sandboxio.adapter`: checks, limits, records, host files.

An adapter moves bytes; what happens on the host's disk happens here. Host files are read and written in
small synchronous steps, since no event loop has asynchronous files without threads.
"""

from __future__ import annotations

import io
import os
import stat
import tempfile
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, Protocol

from ._record import OperationRecord
from ._redact import Redactor
from ._request import check_path
from ._scrub import guarded
from .errors import ConfigurationError, FileSystemError
from .models import Capability, FileInfo

READ_LIMIT = 64 << 20
"""Bytes that ``read`` returns at most: it holds the file in memory, ``download`` does not."""


class FileTransfer(Protocol):
    """What an adapter supplies. Paths are checked; a relative one starts where ``run`` starts.

    Cancelled, a write leaves the old file or none, never a part of the new one.
    """

    async def read_file(self, path: str, sink: Callable[[bytes], None]) -> None:
        """Hand the regular file's bytes to ``sink``, piece by piece; what ``sink`` raises passes through."""
        ...

    async def write_file(self, path: str, source: BinaryIO, size: int, mode: int | None) -> None:
        """Write exactly ``size`` bytes of ``source`` atomically, with permission bits ``mode``.

        None keeps the bits of an existing file and gives a new one 0644.
        """
        ...

    async def list_folder(self, path: str) -> list[FileInfo]: ...
    async def make_folder(self, path: str, *, parents: bool) -> None: ...
    async def remove_path(self, path: str) -> None: ...


class FileOwner(Protocol):
    """What the files need of their sandbox."""

    @property
    def redactor(self) -> Redactor:
        """For errors that are raised before a record is open."""
        ...

    def require(self, capability: Capability, what: str) -> None: ...

    def file_operation(
        self, event: str, path: str, *, bytes_in: int = 0
    ) -> AbstractAsyncContextManager[OperationRecord]:
        """Record around one operation, with the sandbox's timeout as its deadline."""
        ...


class BaseFileSystem:
    """Files of one sandbox; see :class:`sandboxio.protocols.AsyncFileSystem`."""

    def __init__(self, owner: FileOwner, transfer: Callable[[], FileTransfer]) -> None:
        self._owner = owner
        self._make_transfer = transfer

    @cached_property
    def _transfer(self) -> FileTransfer:
        """Made when it is first needed: a sandbox without files has none."""
        return self._make_transfer()

    async def read(self, path: str) -> bytes:
        """The bytes of a regular file, at most 64 MiB; larger ones need ``download``."""
        self._check("read", path)
        data = bytearray()

        def keep(piece: bytes) -> None:
            if len(data) + len(piece) > READ_LIMIT:
                raise FileSystemError(
                    f"{path!r} is larger than {READ_LIMIT >> 20} MiB, the most that read() holds in memory.",
                    hint="Use files.download(remote, local), which streams to a file on the host.",
                )
            data.extend(piece)

        async with self._owner.file_operation("file_read", path) as record:
            await self._transfer.read_file(path, keep)
            record.bytes_out = len(data)
        return bytes(data)

    async def write(self, path: str, data: bytes | str) -> None:
        """Write a file atomically; text is encoded as UTF-8. An existing file keeps its mode."""
        self._check("write", path)
        with guarded(self._owner.redactor):
            content = _content(path, data)
        size = len(content)
        async with self._owner.file_operation("file_write", path, bytes_in=size):
            await self._transfer.write_file(path, io.BytesIO(content), size, None)

    async def upload(self, local: str | Path, remote: str) -> None:
        """Copy a regular file of the host into the sandbox, with its permission bits."""
        self._check("upload", remote, "remote")
        with guarded(self._owner.redactor):
            source = _open_local(local)
        with source:
            status = os.fstat(source.fileno())
            _check_has_size(source, status.st_size, local)
            async with self._owner.file_operation("file_upload", remote, bytes_in=status.st_size):
                await self._transfer.write_file(
                    remote, source, status.st_size, stat.S_IMODE(status.st_mode) & 0o777
                )

    async def download(self, remote: str, local: str | Path) -> None:
        """Copy a regular file of the sandbox to the host, atomically: on failure ``local`` is as before."""
        self._check("download", remote, "remote")
        target = Path(local)
        async with self._owner.file_operation("file_download", remote) as record:
            handle, temporary = _temporary_beside(target)
            try:
                with os.fdopen(handle, "wb", buffering=0) as file:  # closing has nothing left to fail at
                    await self._transfer.read_file(remote, _writer_to(file, target))
                    record.bytes_out = file.tell()
                _replace(temporary, target)
            finally:
                temporary.unlink(missing_ok=True)

    async def ls(self, path: str = ".") -> list[FileInfo]:
        """The entries of a folder, sorted by path; hidden ones included, ``.`` and ``..`` not."""
        self._check("ls", path)
        async with self._owner.file_operation("file_list", path):
            return sorted(await self._transfer.list_folder(path), key=lambda entry: entry.path)

    async def mkdir(self, path: str, *, parents: bool = False) -> None:
        """Make a folder. With ``parents`` it makes missing ones above and accepts an existing folder."""
        self._check("mkdir", path)
        async with self._owner.file_operation("file_mkdir", path):
            await self._transfer.make_folder(path, parents=parents)

    async def remove(self, path: str) -> None:
        """Remove a file, or a folder with all that is in it; links are removed, not followed."""
        self._check("remove", path)
        async with self._owner.file_operation("file_remove", path):
            await self._transfer.remove_path(path)

    def _check(self, method: str, path: str, what: str = "path") -> None:
        copies = method in ("upload", "download")
        with guarded(self._owner.redactor):
            self._owner.require(
                Capability.UPLOAD_DOWNLOAD if copies else Capability.FILESYSTEM, f"files.{method}()"
            )
            check_path(path, what)


def _content(path: str, data: bytes | str) -> bytes | bytearray:
    """What to write; text as UTF-8."""
    if isinstance(data, str):
        try:
            return data.encode()
        except UnicodeEncodeError as error:
            raise ConfigurationError(
                f"The text for {path!r} holds a lone surrogate at character {error.start}.",
                hint="Pass bytes for content that is not UTF-8 text.",
            ) from error
    if isinstance(data, memoryview):
        return data.tobytes()  # its length counts items, not bytes
    if not isinstance(data, (bytes, bytearray)):
        raise ConfigurationError(f"files.write() takes bytes or str, got {type(data).__name__}.")
    return data


def _open_local(local: str | Path) -> BinaryIO:
    """Open a regular host file; never blocks on a FIFO or a device."""
    try:
        descriptor = os.open(local, os.O_RDONLY | os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0))
    except (OSError, ValueError) as error:
        raise FileSystemError(
            f"Cannot read the local file {str(local)!r}: {error}.",
            hint="Check the path on this machine.",
        ) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileSystemError(
            f"{str(local)!r} on this machine is not a regular file.",
            hint="Upload files one by one; pack a folder first.",
        )
    return os.fdopen(descriptor, "rb")


def _check_has_size(source: BinaryIO, size: int, local: str | Path) -> None:
    """Refuse what the kernel makes up while it is read, such as /proc/cpuinfo: its size says nothing."""
    if size == 0 and source.read(1):
        raise FileSystemError(
            f"{str(local)!r} on this machine has a size of 0 and content.",
            hint="Read it and write() what was read.",
        )


def _temporary_beside(target: Path) -> tuple[int, Path]:
    """A new file in ``target``'s folder, so that renaming it onto ``target`` is atomic."""
    try:
        if target.is_dir():
            raise IsADirectoryError(f"{str(target)!r} is a folder")
        if target.exists() and not target.is_file():  # renaming would put a file in place of /dev/null
            raise OSError(f"{str(target)!r} is not a regular file")
        handle, name = tempfile.mkstemp(prefix=f".{target.name[:50]}.", suffix=".part", dir=target.parent)
    except (OSError, ValueError) as error:
        raise FileSystemError(
            f"Cannot write the local file {str(target)!r}: {error}.",
            hint="Check the path on this machine.",
        ) from error
    return handle, Path(name)


def _writer_to(file: io.FileIO, target: Path) -> Callable[[bytes], None]:
    def write(piece: bytes) -> None:
        left = memoryview(piece)
        try:
            while left:
                left = left[file.write(left) :]
        except OSError as error:
            raise FileSystemError(
                f"Cannot write the local file {str(target)!r}: {error}.",
                hint="Free space on this machine.",
            ) from error

    return write


def _replace(temporary: Path, target: Path) -> None:
    """Put the finished file in place, with the permissions that ``open()`` would have given it.

    But never setuid or setgid, which a write takes away, too: the sandbox chose what is in the file.
    """
    try:
        mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else _mode_beside(temporary)
        temporary.chmod(mode & 0o777)
        temporary.replace(target)
    except OSError as error:
        raise FileSystemError(
            f"Cannot write the local file {str(target)!r}: {error}.",
            hint="Check the path on this machine.",
        ) from error


def _mode_beside(temporary: Path) -> int:
    """Permission bits of a new file in this folder.

    The kernel tells them by making one. ``os.umask`` tells its mask only by changing it, for all threads:
    two that ask at once can leave the process with the wrong one for ever.
    """
    probe = temporary.with_suffix(".mode")
    os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    try:
        return stat.S_IMODE(probe.stat().st_mode)
    finally:
        probe.unlink()

"""Files through the guest: exact names, exact types, the right owner, and no tool of the image."""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from typing import BinaryIO, Final

from sandboxio.adapter import Owner, running
from sandboxio.errors import FileSystemError, PathNotFound, ResourceLimitExceeded, SandboxError
from sandboxio.models import FileInfo

from .guest_link import GuestLink, as_bytes
from .guest_protocol import Done, Entries, Entry, EntryKind, Failed, Output, Reason
from .guest_run import GuestJob

MAX_LISTING: Final = 16 << 20
"""Bytes of names and sizes of one folder: half a million entries with names of 20 bytes."""


class GuestFiles:
    """The file primitives; see :class:`sandboxio.adapter.FileTransfer`."""

    def __init__(self, link: GuestLink, owner: Callable[[], Owner]) -> None:
        self._link = link
        self._owner = owner

    async def read_file(self, path: str, sink: Callable[[bytes], None]) -> None:
        """Hand the bytes of a regular file to ``sink``."""
        job = GuestJob(self._link)
        async with running(job, self._owner()):
            op = job.number()
            await job.begin(self._link.protocol.read(op, as_bytes(path)))
            while not isinstance(event := await job.finish(), Done):
                if isinstance(event, Failed):
                    raise _failure(path, event)
                if isinstance(event, Output):
                    sink(event.data)
                    job.post(self._link.protocol.consumed(op, 0, len(event.data)))

    async def write_file(self, path: str, source: BinaryIO, size: int, mode: int | None) -> None:
        """Write through a temporary file beside the target; a symbolic link is followed."""
        protocol, left = self._link.protocol, size
        job = GuestJob(self._link)
        async with running(job, self._owner()):
            op = job.number()
            await job.begin(protocol.write(op, as_bytes(path), mode=mode))
            while left:
                room = protocol.input_room(op)
                if room:
                    piece = _piece(source, min(room, left), path)
                    left -= len(piece)
                    await job.more(protocol.input(op, piece))
                elif isinstance(event := await job.finish(), Failed):
                    raise _failure(path, event)
            await job.more(protocol.input_end(op))
            await _done(job, path)

    async def list_folder(self, path: str) -> list[FileInfo]:
        """The entries of a folder; a link to a folder counts as one."""
        found: list[FileInfo] = []
        size = 0
        job = GuestJob(self._link)
        async with running(job, self._owner()):
            op = job.number()
            await job.begin(self._link.protocol.list_folder(op, as_bytes(path)))
            while not isinstance(event := await job.finish(), Done):
                if isinstance(event, Failed):
                    raise _failure(path, event, listing=True)
                if isinstance(event, Entries):
                    size += event.wire_size
                    if size > MAX_LISTING:
                        raise _too_many(path)
                    found += [_info(path, entry) for entry in event.entries]
                    job.post(self._link.protocol.consumed(op, 0, event.wire_size))
        return found

    async def make_folder(self, path: str, *, parents: bool) -> None:
        """Make a folder."""
        await self._short(
            path, lambda op: self._link.protocol.make_folder(op, as_bytes(path), parents=parents)
        )

    async def remove_path(self, path: str) -> None:
        """Remove a file, or a folder with all that is in it."""
        await self._short(path, lambda op: self._link.protocol.remove(op, as_bytes(path)))

    async def _short(self, path: str, request: Callable[[int], bytes]) -> None:
        job = GuestJob(self._link)
        async with running(job, self._owner()):
            await job.begin(request(job.number()))
            await _done(job, path)


async def _done(job: GuestJob, path: str) -> None:
    while not isinstance(event := await job.finish(), Done):
        if isinstance(event, Failed):
            raise _failure(path, event)


def _piece(source: BinaryIO, size: int, path: str) -> bytes:
    piece = source.read(size)
    if not piece:
        raise FileSystemError(
            f"The content for {path!r} is shorter than announced.",
            hint="It changed while it was read; try again when nobody writes to it.",
        )
    return piece


def _too_many(path: str) -> FileSystemError:
    return FileSystemError(
        f"The folder {path!r} has more entries than the {MAX_LISTING >> 20} MiB that ls() holds in memory.",
        hint='List it inside the sandbox, with run(["find", ...]) and what narrows it.',
    )


def _info(folder: str, entry: Entry) -> FileInfo:
    path = posixpath.join(folder, entry.name.decode("utf-8", "surrogateescape"))
    return FileInfo(path, entry.size, entry.kind is EntryKind.FOLDER or entry.leads_to_folder)


_WORDS: Final = {
    "EISDIR": ("{path!r} is a folder.", "Give the path of a file."),
    "EACCES": ("No permission for {path!r}.", "Check its owner and mode; commands run as the image's user."),
    "EPERM": ("{path!r} may not be changed.", "Check its owner and mode; commands run as the image's user."),
    "EEXIST": ("{path!r} exists already.", "Use another name, or mkdir(..., parents=True)."),
    "ENOTDIR": ("{path!r} is no folder, or leads through a file.", "Check the parts of the path."),
    "ENAMETOOLONG": ("A name in {path!r} is too long.", "Use names of at most 255 bytes."),
    "ENOSPC": ("No space is left for {path!r}.", "Free space in the sandbox, or on the engine's disk."),
    "EDQUOT": ("No space is left for {path!r}.", "Free space in the sandbox, or on the engine's disk."),
    "EROFS": (
        "{path!r} is on a read-only file system.",
        "Write to a path that may be written, such as /tmp.",
    ),
    "ELOOP": ("{path!r} leads through too many symbolic links.", "Check the links with files.ls()."),
    "ENOTEMPTY": ("{path!r} changed while it was removed.", "Try again when nobody writes there."),
    "EINVAL": ("{path!r} is no name that a folder has.", "Name the folder, without . and .. at the end."),
    "EBUSY": ("{path!r} is in use: it is a mount point.", "Choose a path inside it."),
}


def _failure(path: str, event: Failed, *, listing: bool = False) -> SandboxError:
    """The public error for what the guest reports."""
    if event.reason is Reason.NOT_REGULAR:
        return FileSystemError(
            f"{path!r} is no regular file.", hint="Devices, FIFOs and sockets are not transferred."
        )
    if event.reason is Reason.IN_USE:
        return FileSystemError("The root folder cannot be removed.", hint="Remove what is in it.")
    name = event.errno_name
    if name == "ENOENT" or (name == "ENOTDIR" and not listing):
        return PathNotFound(f"{path!r} does not exist in the sandbox.")
    if name in ("ENOMEM", "EMFILE", "ENFILE"):
        return ResourceLimitExceeded(f"The sandbox lacks memory or descriptors for {path!r} ({name}).")
    if name in _WORDS:
        text, hint = _WORDS[name]
        return FileSystemError(text.format(path=path), hint=hint)
    return FileSystemError(f"The operation on {path!r} failed: {name or event.reason.name}.")

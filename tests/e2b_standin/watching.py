"""Folder watches on inotify, reported the way envd reports them."""

# Paths are text here, as in envd: not normalised, and bytes that are not UTF-8 kept.

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
from types import TracebackType
from typing import Self

from e2b.envd.filesystem import filesystem_pb as fs

from .processes import readable

IN_MODIFY, IN_ATTRIB, IN_MOVED_FROM, IN_MOVED_TO = 0x2, 0x4, 0x40, 0x80
IN_CREATE, IN_DELETE, IN_ISDIR = 0x100, 0x200, 0x40000000
MASK = IN_MODIFY | IN_ATTRIB | IN_MOVED_FROM | IN_MOVED_TO | IN_CREATE | IN_DELETE
KINDS = {
    IN_MODIFY: fs.EventType.WRITE,
    IN_ATTRIB: fs.EventType.CHMOD,
    IN_MOVED_FROM: fs.EventType.RENAME,
    IN_MOVED_TO: fs.EventType.CREATE,
    IN_CREATE: fs.EventType.CREATE,
    IN_DELETE: fs.EventType.REMOVE,
}
_libc = ctypes.CDLL(None, use_errno=True)


class Watch:
    """One watched folder; ``recursive`` follows the folders below it."""

    def __init__(self, folder: str, recursive: bool) -> None:
        self._root, self._recursive = folder, recursive
        self._fd: int = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._folders: dict[int, str] = {}
        self._add(folder)

    def _add(self, folder: str) -> None:
        number: int = _libc.inotify_add_watch(self._fd, os.fsencode(folder), MASK)
        if number >= 0:
            self._folders[number] = folder
        if self._recursive:
            for item in os.scandir(folder):
                if item.is_dir(follow_symlinks=False):
                    self._add(item.path)

    def take(self) -> list[fs.FilesystemEvent]:
        """The events since the last time."""
        events: list[fs.FilesystemEvent] = []
        try:
            data = os.read(self._fd, 1 << 16)
        except BlockingIOError:
            return events
        while data:
            number, mask, _, length = struct.unpack_from("iIII", data)
            name = os.fsdecode(data[16 : 16 + length].rstrip(b"\0"))
            data = data[16 + length :]
            path = os.path.join(self._folders.get(number, self._root), name)
            for bit, kind in KINDS.items():
                if mask & bit:
                    events.append(fs.FilesystemEvent(name=os.path.relpath(path, self._root), type=kind))
            if self._recursive and mask & IN_ISDIR and mask & (IN_CREATE | IN_MOVED_TO):
                self._add(path)
        return events

    async def wait(self, seconds: float) -> list[fs.FilesystemEvent]:
        """The next events; an empty list when ``seconds`` pass without one."""
        try:
            await asyncio.wait_for(readable(self._fd), seconds)
        except TimeoutError:
            return []
        return self.take()

    def close(self) -> None:
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

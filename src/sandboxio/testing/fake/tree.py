"""The files of a virtual sandbox.

Failures are ``OSError`` with the number that Linux would give; who calls turns them into an error of
sandboxio or into the words of a program. There are no links: nothing in a virtual sandbox makes one.
"""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

HOME = "/work"
"""Where ``run`` starts and relative paths begin."""
NAME_MAX = 255
FOLDERS = ("/bin", "/dev", "/etc", "/home", "/proc", "/root", "/tmp", "/usr/bin", "/var", HOME)  # noqa: S108


@dataclass
class File:
    """A regular file; ``mode`` is its permission bits."""

    data: bytes
    mode: int = 0o644


@dataclass
class Device:
    """``/dev/null`` reads as nothing, ``/dev/zero`` as zeros without end; both swallow what is written."""

    endless: bool


@dataclass
class Folder:
    """Names to what they stand for."""

    entries: dict[str, Node] = field(default_factory=dict[str, "Node"])


Node: TypeAlias = File | Device | Folder


class Tree:
    """One file system. Paths are absolute, or relative to ``start``."""

    def __init__(self) -> None:
        self._root = Folder()
        for path in FOLDERS:
            self.make_folder(path, parents=True)
        devices = self.folder("/dev")
        devices.entries |= {"null": Device(endless=False), "zero": Device(endless=True)}
        self.write("/etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n", mode=0o644)

    def find(self, path: str, start: str = HOME) -> Node:
        """What is at ``path``."""
        if not path:
            raise failure(errno.ENOENT, path)
        node: Node = self._root
        above: list[Node] = []
        for name in _names(path, start):
            if not isinstance(node, Folder):
                raise failure(errno.ENOTDIR, path)
            if name == "..":
                node = above.pop() if above else self._root
                continue
            above.append(node)
            if name not in node.entries:
                raise failure(errno.ENAMETOOLONG if _too_long(name) else errno.ENOENT, path)
            node = node.entries[name]
        if path.endswith(("/", "/.")) and not isinstance(node, Folder):
            raise failure(errno.ENOTDIR, path)
        return node

    def folder(self, path: str, start: str = HOME) -> Folder:
        """The folder at ``path``."""
        node = self.find(path, start)
        if not isinstance(node, Folder):
            raise failure(errno.ENOTDIR, path)
        return node

    def absolute(self, path: str, start: str = HOME) -> str:
        """``path`` without ``.`` and ``..``; there are no links that could make this wrong."""
        return posixpath.normpath("/" + posixpath.join(start, path)).replace("//", "/")

    def read(self, path: str, start: str = HOME) -> bytes:
        """The bytes of a regular file."""
        node = self.find(path, start)
        if isinstance(node, Folder):
            raise failure(errno.EISDIR, path)
        if isinstance(node, Device):
            raise failure(errno.EINVAL, path)
        return node.data

    def write(
        self, path: str, data: bytes, start: str = HOME, *, mode: int | None = None, append: bool = False
    ) -> None:
        """Fill or make a file; without ``mode`` an existing one keeps its own."""
        if path.endswith("/"):
            raise failure(errno.EISDIR, path)
        folder, name = self._place(path, start, nameless=errno.EISDIR)
        old = folder.entries.get(name)
        if isinstance(old, Folder):
            raise failure(errno.EISDIR, path)
        if isinstance(old, Device):
            return
        file = old if old is not None else File(b"")
        file.data = file.data + data if append else data
        file.mode = file.mode if mode is None else mode
        folder.entries[name] = file

    def make_folder(self, path: str, start: str = HOME, *, parents: bool = False) -> None:
        """Make a folder; with ``parents`` those above it too, and an existing one is fine."""
        if parents:
            absolute = self.absolute(path, start)
            node = self._root
            for name in _names(absolute, "/"):
                if _too_long(name):
                    raise failure(errno.ENAMETOOLONG, path)
                below = node.entries.setdefault(name, Folder())
                if not isinstance(below, Folder):
                    raise failure(errno.EEXIST if absolute.endswith(f"/{name}") else errno.ENOTDIR, path)
                node = below
            return
        folder, name = self._place(path, start, nameless=errno.EEXIST)
        if name in folder.entries:
            raise failure(errno.EEXIST, path)
        folder.entries[name] = Folder()

    def remove(self, path: str, start: str = HOME) -> None:
        """Remove a file, or a folder with all that is in it; ``.`` and ``..`` have no name to remove."""
        if self.absolute(path, start) == "/":
            raise failure(errno.EBUSY, path)
        self.find(path, start)
        folder, name = self._place(path, start, nameless=errno.EINVAL)
        del folder.entries[name]

    def entries(self, path: str, start: str = HOME) -> Iterator[tuple[str, Node]]:
        """Path and node of each entry of a folder; a path starts as the folder was given."""
        for name, node in sorted(self.folder(path, start).entries.items()):
            yield posixpath.join(path, name), node

    def _place(self, path: str, start: str, *, nameless: int) -> tuple[Folder, str]:
        """The folder that ``path`` is in, and its name there.

        ``.``, ``..`` and the root are folders that are there already, with no name for an entry:
        ``nameless`` is the error for them.
        """
        above, _, name = path.rstrip("/").rpartition("/")
        if name in ("", ".", ".."):
            self.folder(path, start)  # what is missing on the way to it comes first
            raise failure(nameless, path)
        if _too_long(name):
            raise failure(errno.ENAMETOOLONG, path)
        try:
            return self.folder(above or ("/" if path.startswith("/") else "."), start), name
        except OSError as error:
            raise failure(error.errno or errno.ENOENT, path) from error


def failure(number: int, path: str) -> OSError:
    """The error that Linux would give for ``path``."""
    return OSError(number, os.strerror(number), path)


def _names(path: str, start: str) -> list[str]:
    return [name for name in posixpath.join(start, path).split("/") if name not in ("", ".")]


def _too_long(name: str) -> bool:
    return len(name.encode("utf-8", "surrogateescape")) > NAME_MAX

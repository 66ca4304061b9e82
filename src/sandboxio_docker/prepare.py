"""What a container needs before it starts if its user is not root: a folder of its own, and localhost.

The engine makes a missing working folder as root's, and without a network it makes no ``/etc/hosts``; the
guest cannot mend either as an ordinary user. Both are put there through the archive endpoint, which works
on a created container and needs nothing of the image.
"""

from __future__ import annotations

import base64
import io
import json
import tarfile
import time
from typing import Any, Final

from sandboxio.errors import CreationError, FileSystemError

from .accounts import CORRECT, find_group, find_user, number_of
from .archive import TarReader
from .engine import Engine, EngineError, Fault
from .hostconfig import WORK

HOSTS: Final = b"127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"
MAX_FILE: Final = 1 << 20
"""Bytes of /etc/passwd or /etc/hosts that are looked at."""
MAX_LINKS: Final = 8
"""Links that are followed to one of them. The engine resolves a chain at once, so one is usual."""

_GO_SYMLINK: Final = 1 << 27
"""The bit of a symbolic link in a mode as Go has it (io/fs, ModeSymlink)."""


async def prepare_for_user(engine: Engine, container: str, user: str, *, localhost: bool) -> None:
    """Give ``user`` (as in the image's ``USER``) its working folder in a created container."""
    uid, gid = await _ids(engine, container, user)
    folder = tarfile.TarInfo(WORK.strip("/"))
    folder.type, folder.mode, folder.uid, folder.gid = tarfile.DIRTYPE, 0o755, uid, gid
    await _put(engine, container, "/", folder)
    if localhost:
        known = await _get(engine, container, "/etc/hosts")
        if b"localhost" not in known:
            hosts = tarfile.TarInfo("hosts")
            hosts.mode, hosts.size = 0o644, len(known + HOSTS)
            try:
                await _put(engine, container, "/etc", hosts, known + HOSTS)
            except EngineError as error:
                if error.status != 404:  # an image without /etc looks no name up
                    raise


async def put_file(engine: Engine, container: str, path: str, content: bytes, *, mode: int) -> None:
    """Write root's file at ``path``, relative to ``/``, in a created container; makes missing folders."""
    entry = tarfile.TarInfo(path)
    entry.mode, entry.size = mode, len(content)
    await _put(engine, container, "/", entry, content)


def is_root(user: str) -> bool:
    """True if an image's ``USER`` is root.

    >>> is_root(""), is_root("0:0"), is_root("app")
    (True, True, False)
    """
    return user.partition(":")[0] in ("", "root", "0")


async def _ids(engine: Engine, container: str, user: str) -> tuple[int, int]:
    """The numbers of a user as the engine finds them: names are looked up in the image's own files.

    Two numbers need no look-up, and an image of one program has no files to look in.
    """
    name, _, group = user.partition(":")
    uid, gid = number_of(name), number_of(group)
    if uid is None or not group:
        uid, first = find_user(name, uid, await _get(engine, container, "/etc/passwd"))
        gid = gid if group else first
    if gid is None:
        gid = find_group(group, await _get(engine, container, "/etc/group"))
    return uid, gid


async def _put(
    engine: Engine, container: str, folder: str, entry: tarfile.TarInfo, content: bytes = b""
) -> None:
    entry.mtime = int(time.time())
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        archive.addfile(entry, io.BytesIO(content))
    await engine.request(
        "PUT",
        f"/containers/{container}/archive",
        params={"path": folder},
        content=buffer.getvalue(),
        headers={"Content-Type": "application/x-tar"},
    )


async def _get(engine: Engine, container: str, path: str) -> bytes:
    """The content of a small regular file, symbolic links followed; empty if there is none."""
    try:
        for _ in range(MAX_LINKS):
            content, target = await _look(engine, container, path)
            if not target:
                return content
            path = target
    except EngineError as error:
        if error.fault in (Fault.NO_SUCH_PATH, Fault.NOT_FOUND):
            return b""
        raise
    except FileSystemError as error:  # a folder, a device, or too large
        raise CreationError(f"The image's {path} cannot be used: {error.message}", hint=CORRECT) from error
    raise CreationError(f"The image's {path} is behind too many symbolic links.", hint=CORRECT)


async def _look(engine: Engine, container: str, path: str) -> tuple[bytes, str]:
    """The content of a file and ``""``, or of a symbolic link nothing and where it leads."""
    reader, found = TarReader(max_size=MAX_FILE), bytearray()
    async with engine.stream("GET", f"/containers/{container}/archive", params={"path": path}) as answer:
        if target := _link_target(answer.headers.get("X-Docker-Container-Path-Stat", "")):
            return b"", target
        async for piece in answer:
            reader.feed(piece)
            while (data := reader.next_piece()) is not None:
                found += data
    return bytes(found), ""


def _link_target(stat: str) -> str:
    """Where a symbolic link leads, as the engine has resolved it inside the container; else ``""``."""
    try:
        fields: Any = json.loads(base64.b64decode(stat))
        target, mode = fields["linkTarget"], fields["mode"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    is_link = isinstance(mode, int) and mode & _GO_SYMLINK
    return target if is_link and isinstance(target, str) else ""

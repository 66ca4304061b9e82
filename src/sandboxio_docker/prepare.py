"""What a container needs before it starts if its user is not root: a folder of its own, and localhost.

The engine makes a missing working folder as root's, and without a network it makes no ``/etc/hosts``; the
guest cannot mend either as an ordinary user. Both are put there through the archive endpoint, which works
on a created container and needs nothing of the image.
"""

from __future__ import annotations

import io
import tarfile
import time
from typing import Final

from sandboxio.errors import CreationError

from .archive import TarReader
from .engine import Engine, EngineError, Fault
from .hostconfig import WORK

HOSTS: Final = b"127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"
MAX_FILE: Final = 1 << 20
"""Bytes of /etc/passwd or /etc/hosts that are looked at."""


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
    """The numbers of a user as the engine finds them: names are looked up in the image's own files."""
    name, _, group = user.partition(":")
    passwd = await _get(engine, container, "/etc/passwd")
    uid, gid = _find_user(name, passwd)
    if group:
        groups = b"" if group.isdecimal() else await _get(engine, container, "/etc/group")
        gid = int(group) if group.isdecimal() else _find_group(group, groups)
    return uid, gid


def _find_user(name: str, passwd: bytes) -> tuple[int, int]:
    for line in passwd.decode("utf-8", "surrogateescape").splitlines():
        fields = line.split(":")
        if len(fields) > 3 and name in (fields[0], fields[2]) and fields[3].isdecimal():
            return int(fields[2]), int(fields[3])
    if not name.isdecimal():
        raise CreationError(
            f"The image's user {name!r} is not in its /etc/passwd.", hint="Correct USER in the image."
        )
    return int(name), 0


def _find_group(name: str, groups: bytes) -> int:
    for line in groups.decode("utf-8", "surrogateescape").splitlines():
        fields = line.split(":")
        if len(fields) > 2 and fields[0] == name and fields[2].isdecimal():
            return int(fields[2])
    raise CreationError(
        f"The image's group {name!r} is not in its /etc/group.", hint="Correct USER in the image."
    )


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
    """The content of a small regular file; empty if there is none."""
    reader, found = TarReader(max_size=MAX_FILE), bytearray()
    try:
        async with engine.stream("GET", f"/containers/{container}/archive", params={"path": path}) as answer:
            async for piece in answer:
                reader.feed(piece)
                while (data := reader.next_piece()) is not None:
                    found += data
    except EngineError as error:
        if error.fault in (Fault.NO_SUCH_PATH, Fault.NOT_FOUND):
            return b""
        raise
    return bytes(found)

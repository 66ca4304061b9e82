"""Files of a sandbox: small ones in one script, large ones through envd's file transfer.

envd writes files as root, makes missing folders, follows no mode and is not atomic; its folder calls
carry no name that is not UTF-8. So everything but the bulk of the bytes is done by scripts, as the user
that commands run as. They need bash, coreutils and findutils, which every Debian has.
"""

from __future__ import annotations

import base64
import posixpath
import secrets
from collections.abc import Callable
from typing import BinaryIO, Final

from sandboxio.adapter import Owner, bounded, running
from sandboxio.errors import FileSystemError, PathNotFound, SandboxError
from sandboxio.models import FileInfo

from .commands import CommandRun
from .connection import Broken
from .envd import Command, Short
from .failures import file_error, traffic_error
from .place import Place
from .shell import program
from .wire import Garbled, RpcError

SMALL: Final = 60_000
"""Bytes that travel inside a script's arguments or output; Linux takes 128 KiB of one argument."""
_MISSING, _LARGE = 66, 64

# PATH may be one that the caller chose for commands, without the tools that are needed here.
_START: Final = r"""
export LC_ALL=C PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin${PATH:+:$PATH}
fail() { printf '%s' "$1" >&2; exit 65; }
# For a path that cannot be looked at: stat says why.
lost() { stat -L -- "$1" >/dev/null; exit 66; }
"""

_READ: Final = r"""
[[ -e $1 ]] || lost "$1"
[[ -d $1 ]] && fail 'Is a directory'
[[ -f $1 ]] || fail 'Not a regular file'
[[ -r $1 ]] || fail 'Permission denied'
size=$(stat -Lc %s -- "$1") || exit 65
((size > $2)) && { printf '\0'; readlink -fz -- "$1"; exit 64; } >&2
exec cat -- "$1"
"""

# Arguments: path, mode, name of the temporary file. Sets target, the file behind all links, and temp, a
# new file beside it with the mode of the old one. The name comes from outside, so that the file can be
# removed whatever happens to this script.
_STAGE: Final = r"""
[[ $1 == */ ]] && fail 'Is a directory'
target=$(readlink -fnv -- "$1" && printf x) || exit 65
target=${target%x} folder=${target%/*}
[[ -e $folder/ ]] || { [[ -e $folder ]] && fail 'Not a directory'; exit 66; }
[[ -d $target ]] && fail 'Is a directory'
[[ -e $target && ! -f $target ]] && fail 'Not a regular file'
temp=$folder/$3 mode=$2
(set -C; : >"$temp") || exit 65
[[ $mode ]] || mode=$(stat -c %a -- "$target" 2>/dev/null) || mode=644
chmod -- "$mode" "$temp" || exit 65
"""

_WRITE_SMALL: Final = r"""
base64 -d <<<"$4" >"$temp" && mv -fT -- "$temp" "$target" || exit 65
"""

_TELL: Final = r"""
printf '%s\0%s\0' "$temp" "$target"
"""

_COMMIT: Final = r"""
mv -fT -- "$1" "$2" || exit 65
"""

_LIST: Final = r"""
[[ -e $1 ]] || lost "$1"
[[ -d $1 ]] || fail 'Not a directory'
case $1 in /*) folder=$1/ ;; *) folder=./$1/ ;; esac
exec find "$folder" -ignore_readdir_race -mindepth 1 -maxdepth 1 -printf '%Y %s %f\0'
"""

_MAKE: Final = r"""
if [[ $2 ]]; then exec mkdir -p -- "$1"; fi
exec mkdir -- "$1"
"""

# With a slash behind it rm would empty the folder that a link leads to, and keep the link.
_REMOVE: Final = r"""
[[ -e $1 || -L $1 ]] || lost "$1"
path=$1
while [[ $path == ?*/ ]]; do path=${path%/}; done
exec rm -rf -- "$path"
"""

_DISCARD: Final = r"""
target=$(readlink -fn -- "$1" && printf x) || exit 0
target=${target%x}
rm -f -- "${target%/*}/$2"
"""


class Files:
    """The file primitives; see :class:`sandboxio.adapter.FileTransfer`."""

    def __init__(self, place: Place, owner: Owner) -> None:
        self._place = place
        self._owner = owner

    async def read_file(self, path: str, sink: Callable[[bytes], None]) -> None:
        """Hand the bytes of a regular file to ``sink``."""
        # Piece by piece: files of /proc say that they are empty, and some of them never end.
        code, said = await self._script(_READ, path, str(SMALL), sink=sink)
        if code == _LARGE:
            # Before it there may be a warning of bash's about the locale.
            real = said.rpartition(b"\0")[0].rpartition(b"\0")[2]
            await self._read_large(path, _text(real), sink)

    async def write_file(self, path: str, source: BinaryIO, size: int, mode: int | None) -> None:
        """Write through a temporary file beside the target; a symbolic link is followed."""
        bits, name = "" if mode is None else f"{mode:o}", f".sandboxio.{secrets.token_hex(8)}"
        written = False
        try:
            if size <= SMALL:
                data = base64.b64encode(_whole(source, size, path)).decode()
                await self._script(_STAGE + _WRITE_SMALL, path, bits, name, data)
            else:
                output = bytearray()
                await self._script(_STAGE + _TELL, path, bits, name, sink=output.extend)
                temp, target = (_text(part) for part in bytes(output).split(b"\0")[:2])
                await self._send(path, temp, source, size)
                await self._script(_COMMIT, temp, target, shown=path)
            written = True
        finally:
            if not written:
                put_off: list[BaseException] = []
                await bounded(lambda: self._discard(path, name), put_off=put_off)
                if put_off:
                    raise put_off[0]

    async def list_folder(self, path: str) -> list[FileInfo]:
        """The entries of a folder; a link to a folder counts as one."""
        output = bytearray()
        await self._script(_LIST, path, sink=output.extend)
        found: list[FileInfo] = []
        for record in bytes(output).split(b"\0")[:-1]:
            kind, size, name = record.split(b" ", 2)
            is_folder = kind == b"d"
            entry = posixpath.join(path, _text(name))
            found.append(FileInfo(entry, 0 if is_folder else int(size), is_folder))
        return found

    async def make_folder(self, path: str, *, parents: bool) -> None:
        """Make a folder."""
        await self._script(_MAKE, path, "yes" if parents else "")

    async def remove_path(self, path: str) -> None:
        """Remove a file, or a folder with all that is in it."""
        await self._script(_REMOVE, path)

    async def _read_large(self, path: str, real: str, sink: Callable[[bytes], None]) -> None:
        try:
            await self._place.envd.read_file(real, sink)
        except RpcError as error:
            raise file_error(error, path, self._place.sandbox.id, "Reading") from error
        except (Garbled, Broken) as error:
            raise await self._place.explain(error, f"Reading {path!r}") from error

    async def _send(self, path: str, temp: str, source: BinaryIO, size: int) -> None:
        try:
            await self._place.envd.write_file(temp, source, size)
        except Short as error:
            raise _shorter(path) from error
        except RpcError as error:
            raise file_error(error, path, self._place.sandbox.id, "Writing") from error
        except (Garbled, Broken) as error:
            raise await self._place.explain(error, f"Writing {path!r}") from error

    async def _discard(self, path: str, name: str) -> None:
        try:
            await self._place.envd.run(Command(program(_DISCARD, path, name), seconds=30))
        except (RpcError, Garbled, Broken):
            return  # the sandbox is gone or unreachable, and what failed before says so

    async def _script(
        self,
        text: str,
        path: str,
        *arguments: str,
        sink: Callable[[bytes], None] | None = None,
        shown: str | None = None,
    ) -> tuple[int, bytes]:
        """Run a script on ``path`` to its end, and return its exit code and what it said on stderr.

        Cancelled, or when ``sink`` raises, it is killed like any command.
        """
        given = "./-" if path == "-" else path  # for cat and stat "-" is their standard input
        run = CommandRun(self._place, tuple(program(_START + text, given, *arguments)), {})
        said = bytearray()
        async with running(run, self._owner):
            await run.start()
            while (chunk := await run.receive()) is not None:
                if chunk.stream == "stderr":
                    said += chunk.data
                elif sink is not None:
                    sink(chunk.data)
        ended = run.exit
        if ended is None:
            error = Broken("the script did not say how it ended")
            raise traffic_error(error, self._place.sandbox.id, "A file operation")
        if ended.exit_code not in (0, _LARGE):
            raise _failure(shown or path, ended.exit_code, said.decode("utf-8", "replace"))
        return ended.exit_code, bytes(said)


def _text(octets: bytes) -> str:
    return octets.decode("utf-8", "surrogateescape")


def _whole(source: BinaryIO, size: int, path: str) -> bytes:
    data = source.read(size)
    if len(data) != size:
        raise _shorter(path)
    return data


def _shorter(path: str) -> FileSystemError:
    return FileSystemError(
        f"The content for {path!r} is shorter than announced.",
        hint="It changed while it was read; try again when nobody writes to it.",
    )


_WORDS: Final = {
    "Is a directory": ("{path!r} is a folder.", "Give the path of a file."),
    "Not a directory": ("{path!r} is no folder, or leads through a file.", "Check the parts of the path."),
    "Not a regular file": ("{path!r} is no regular file.", "Devices, FIFOs and sockets are not transferred."),
    "Permission denied": ("No permission for {path!r}.", "Check its owner and mode; commands run as `user`."),
    "Operation not permitted": ("{path!r} may not be changed.", "Check its owner and mode."),
    "File exists": ("{path!r} exists already.", "Use another name, or mkdir(..., parents=True)."),
    "File name too long": (
        "{path!r} is too long, or a name in it.",
        "Use names of at most 255 bytes, and paths of at most 4095.",
    ),
    "No space left on device": ("No space is left for {path!r}.", "Free space in the sandbox."),
    "Disk quota exceeded": ("No space is left for {path!r}.", "Free space in the sandbox."),
    "Read-only file system": (
        "{path!r} is on a read-only file system.",
        "Write to a path that may be written, such as /tmp.",
    ),
    "Too many levels of symbolic links": (
        "{path!r} leads through too many symbolic links.",
        "Check the links with files.ls().",
    ),
    "Device or resource busy": ("{path!r} is in use: it is a mount point.", "Choose a path inside it."),
}


_NOWHERE: Final = "No such file or directory"
_UNSEEN: Final = ("Permission denied", "File name too long", "Too many levels of symbolic links")
"""Why a path cannot be looked at that may be there."""


def _failure(path: str, code: int, said: str) -> SandboxError:
    """The public error for what a script reports, in the C locale's words."""
    words = _reason(said)
    if words == _NOWHERE or (code == _MISSING and words not in _UNSEEN):
        return PathNotFound(f"{path!r} does not exist in the sandbox.")
    if words in _WORDS:
        text, hint = _WORDS[words]
        return FileSystemError(text.format(path=path), hint=hint)
    return FileSystemError(f"The operation on {path!r} failed ({code}): {said.strip()[:200]}.")


def _reason(said: str) -> str:
    """The words for a reason that end a line; before them there may be names that hold the same words."""
    # bash's own warnings are about the caller's locale and no reason.
    lines = [line for line in said.splitlines() if "warning: setlocale" not in line]
    for words in (_NOWHERE, *_WORDS):
        if any(line.endswith(words) for line in lines):
            return words
    return ""

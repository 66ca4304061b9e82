"""Files through ``docker exec``: what is written is what processes see, tmpfs and volumes included.

The engine's archive endpoints look below such mounts, so they are not used here. A shell does the work as
the user that runs commands, which gives the right owner; it needs the usual small tools of an image:
``cat``, ``head``, ``wc``, ``mv``, ``chmod``, ``stat``, ``find``, ``mkdir``, ``rm``, ``readlink``.

A path is one argument in the notation of ``printf %b``, so no byte of it means anything to a shell. The
scripts answer with exit codes of their own; the words of a tool only reach the message.
"""

from __future__ import annotations

import posixpath
import re
import secrets
from collections.abc import Callable, Iterator
from typing import BinaryIO, Final

import anyio.lowlevel

from sandboxio.adapter import Owner, running
from sandboxio.errors import FileSystemError, PathNotFound
from sandboxio.models import FileInfo

from .channel import SHELL
from .exec_run import CHUNK, ExecHost, ExecRun
from .hostconfig import WORK

MISSING, FOLDER, SPECIAL, FORBIDDEN, NO_FOLDER, EXISTS, FAILED, CUT = range(64, 72)
"""What the scripts say by their exit code."""
LISTING_LIMIT: Final = 8 << 20
"""Bytes of a listing that are kept: some 200,000 entries."""

_PATH: Final = """
p=$(printf %b. "$1") p=${p%.}
there() { [ -e "$p" ] || [ -L "$p" ] || exit 64; }
"""
_READ: Final = """
[ -e "$p" ] || exit 64
[ -d "$p" ] && exit 65
[ -f "$p" ] || exit 66
[ -r "$p" ] || exit 67
cat "$p" && printf %s "$2"
"""
_WRITE: Final = """
size=$2 mode=$3
case $p in */) exit 65 ;; esac
[ -L "$p" ] && { q=$(readlink -f "$p" && echo .) || exit 64; p=${q%??}; }
[ -d "$p" ] && exit 65
[ -e "$p" ] && ! [ -f "$p" ] && exit 66
[ -d "${p%/*}/" ] || exit 64
[ -e "$p" ] && { [ -w "$p" ] || { true >>"$p"; exit 67; }; [ "$mode" ] || mode=$(stat -c %a "$p"); }
t=${p%/*}/.sandboxio-$4
umask 077
trap 'rm -f "$t"' EXIT
trap 'exit 71' HUP INT TERM PIPE
true >"$t" || exit 67
head -c "$size" >"$t" || exit 70
[ $(wc -c <"$t") = "$size" ] || exit 71
chmod "${mode:-644}" "$t" || exit 70
mv -f "$t" "$p" || exit 70
"""
_LIST: Final = """
there
[ -d "$p" ] || exit 68
[ -r "$p" ] && [ -x "$p" ] || exit 67
cd "$p" || exit 70
find . -mindepth 1 -maxdepth 1 -exec stat -c '%f %s %n/' {} + || exit 70
echo //
find . -mindepth 1 -maxdepth 1 -type l -exec /bin/sh -c \
  'for f; do [ -d "$f" ] && printf "%s/\\n" "$f"; done' sh {} +
printf %s "$2"
"""
_MAKE: Final = """
if [ "$2" ]; then
  [ -d "$p" ] && exit 0
  mkdir -p "$p" || exit 70
else
  [ -e "$p" ] || [ -L "$p" ] && exit 69
  q=${p%"${p##*[!/]}"}
  [ -d "${q%/*}/" ] || exit 64
  mkdir "$p" || exit 70
fi
"""
# With a slash behind it rm would empty the folder that a link leads to, and keep the link.
_REMOVE: Final = """
there
while [ "${p%/}" != "$p" ] && [ "$p" != / ]; do p=${p%/}; done
rm -rf "$p" || exit 70
"""


class ExecFiles:
    """The file primitives; see :class:`sandboxio.adapter.FileTransfer`."""

    def __init__(self, host: ExecHost, owner: Callable[[], Owner]) -> None:
        self._host = host
        self._owner = owner

    async def read_file(self, path: str, sink: Callable[[bytes], None]) -> None:
        """Hand the bytes of a regular file to ``sink``."""
        await self._run(_READ, path, sink=sink)

    async def write_file(self, path: str, source: BinaryIO, size: int, mode: int | None) -> None:
        """Write through a temporary file beside the target; a symbolic link is followed."""
        token = secrets.token_hex(8)
        bits = "" if mode is None else f"{mode:o}"
        await self._run(_WRITE, path, str(size), bits, token, source=source, size=size)

    async def list_folder(self, path: str) -> list[FileInfo]:
        """The entries of a folder; a link to a folder counts as one."""
        found = bytearray()

        def keep(piece: bytes) -> None:
            if len(found) + len(piece) > LISTING_LIMIT:
                raise FileSystemError(
                    f"The listing of {path!r} is larger than {LISTING_LIMIT >> 20} MiB, "
                    "the most that ls() holds in memory.",
                    hint="List it with run(), for example ['find', path, '-name', ...].",
                )
            found.extend(piece)

        await self._run(_LIST, path, sink=keep)
        entries: list[FileInfo] = []
        for entry in _entries(bytes(found), path):
            entries.append(entry)
            if not len(entries) % 1000:
                await anyio.lowlevel.checkpoint()  # a large folder never stops the other tasks
        return entries

    async def make_folder(self, path: str, *, parents: bool) -> None:
        """Make a folder."""
        await self._run(_MAKE, path, "1" if parents else "")

    async def remove_path(self, path: str) -> None:
        """Remove a file, or a folder with all that is in it."""
        await self._run(_REMOVE, path)

    async def _run(
        self,
        script: str,
        path: str,
        *more: str,
        sink: Callable[[bytes], None] | None = None,
        source: BinaryIO | None = None,
        size: int = 0,
    ) -> None:
        """Run a script to its end; whatever breaks it off, kill it."""
        full = escaped(posixpath.join(WORK, path))
        # each its own: a file that holds its mark could be cut off behind it
        marks = () if sink is None else (secrets.token_hex(8),)
        argv = [SHELL, "-c", _PATH + script, "sandboxio-files", full, *more, *marks]
        mark, feed = "".join(marks).encode(), source is not None
        run = ExecRun(self._host, argv, feed=feed, plain=True, mark=mark, folder="/")
        words = bytearray()
        async with running(run, self._owner()):
            await run.start()
            if source is not None:
                await _feed(run, source, size, path)
            while (chunk := await run.receive()) is not None:
                if chunk.stream == "stderr":
                    words += chunk.data[: 2000 - len(words)]
                elif sink is not None:
                    sink(chunk.data)
        assert run.exit is not None
        if run.exit.exit_code:
            raise _failure(path, run.exit.exit_code, words.decode("utf-8", "replace").strip())


async def _feed(run: ExecRun, source: BinaryIO, size: int, path: str) -> None:
    left = size
    while left:
        piece = source.read(min(left, CHUNK))
        if not piece:
            raise FileSystemError(
                f"The content for {path!r} has {size - left} bytes instead of the {size} announced.",
                hint="It changed while it was read; try again when nobody writes to it.",
            )
        left -= len(piece)
        if not await run.send(piece):
            return


def escaped(path: str) -> str:
    r"""A path in the notation of ``printf %b``: every byte that is not plain is ``\0ooo``.

    >>> escaped("/work/a b")
    '/work/a\\0040b'
    """
    data = path.encode("utf-8", "surrogateescape")
    return "".join(chr(byte) if chr(byte) in _PLAIN else f"\\0{byte:03o}" for byte in data)


def _entries(data: bytes, folder: str) -> Iterator[FileInfo]:
    """What the listing script printed: ``mode size ./name/`` lines, ``//``, and links to folders.

    A name holds no slash, so a slash before a newline ends it whatever else is in it. The shell is the
    sandbox's: each entry begins where the one before ended, and nothing in it is longer than Linux allows,
    so that no output takes more than one pass.
    """
    listed, end, links = data.partition(b"//\n")
    folders = {name.removeprefix(b"./") for name in links.split(b"/\n")}
    at = 0
    while match := _ENTRY.match(listed, at):
        at = match.end()
        name = match[3]
        is_folder = int(match[1], 16) & 0o170000 == 0o040000
        path = posixpath.join(folder, name.decode("utf-8", "surrogateescape"))
        size = 0 if is_folder else int(match[2])
        yield FileInfo(path, size, is_folder or name in folders)
    if at != len(listed) or not end:
        raise FileSystemError(
            f"What lists {folder!r} in the sandbox gave no listing.",
            hint="The image's shell, find or stat was replaced or is damaged; create a new sandbox.",
        )


_ENTRY: Final = re.compile(rb"([0-9a-f]{1,8}) ([0-9]{1,19}) \./([^/]{1,4095})/\n")
_PLAIN: Final = frozenset("/._-ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")

_WORDS: Final = {
    FOLDER: ("{path!r} is a folder.", "Give the path of a file."),
    SPECIAL: ("{path!r} is no regular file.", "Devices, FIFOs and sockets are not transferred."),
    FORBIDDEN: ("No permission for {path!r}.", "Check its owner and mode; commands run as the image's user."),
    NO_FOLDER: ("{path!r} is no folder.", "Give the path of a folder."),
    EXISTS: ("{path!r} exists already.", "Use another name, or mkdir(..., parents=True)."),
    CUT: ("The transfer to {path!r} was cut off.", "Try again; the old file is unchanged."),
}
_READ_ONLY: Final = "Write to a path that the sandbox may write, for example /tmp."
_TOOL_HINTS: Final = (
    ("No space left", "Free space in the sandbox, or on the engine's disk."),
    ("File name too long", "Use a name of at most 255 bytes."),
    ("ot a directory", "A part of the path is a file."),
    ("not found", "The image lacks this tool; use an image that has it, or one with Python."),
)


def _failure(path: str, code: int, words: str) -> FileSystemError:
    if code == MISSING:
        return PathNotFound(f"{path!r} does not exist in the sandbox.")
    if re.search("Read-only file system$", words, re.MULTILINE):
        return FileSystemError(f"{path!r} is on a read-only file system.", hint=_READ_ONLY)
    fix = next((fix for text, fix in _TOOL_HINTS if text in words), None)
    if code in _WORDS and not (code == FORBIDDEN and fix):
        text, hint = _WORDS[code]
        return FileSystemError(text.format(path=path), hint=hint)
    reason = words.splitlines()[-1] if words else f"the helper ended with {code}"
    return FileSystemError(f"The operation on {path!r} failed: {reason}", hint=fix)

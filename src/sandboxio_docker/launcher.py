"""What a sandbox's container executes first: a shell text that becomes the guest, or stays and keeps time.

The guest's program is not on the command line, where ``docker inspect`` would show it and where it would
not fit. A small bootstrap reads it from stdin as the first message: ``SBX1``, u32 length of the rest,
u32 CRC-32 of the rest; then u32 length of the program's text, the text, and after it what this Python made
of the text: its magic number (four bytes) and the marshalled code, compressed. An inside whose Python has
the same magic number (in practice, the same minor version) saves the 13 ms that compiling takes; every other
compiles the text. Code travels this way only: the host never unmarshals anything.

What is on the command line is not secret: lifetime, lifeline, working folder.

If the image has no Python 3.8, the shell says so on stdout, in one line that starts with ``sandboxio: ``
(no frame starts with that byte), and stays process 1 of the container. It keeps the two promises that
must hold whatever the host does: the container ends when its lifetime is over, and, with the lifeline,
when the host's connection ends. Other channels (the engine's exec) do the work. Two forms, tried in turn:

* *A shell alone*, this one or another of the image. ``read -t`` on stdin is both clock and lifeline, where
  a shell has it (bash, busybox ash): nothing is started. Process 1 cannot be stopped or killed from
  inside, and this one ignores every signal that it would handle, so code inside can postpone neither
  promise. Every three seconds it waits for a child of its own, and with it for all orphans; a bash
  collects them anyway, an ash only then. It does not where processes are scarce: a failed fork would end it.
* *``sleep``.* Without the lifeline process 1 becomes ``sleep``, which nothing inside can touch. With it,
  process 1 waits for a ``sleep`` that a watcher ends on EOF of stdin. Both are ordinary processes: hostile
  code of the same user ends its own sandbox early by killing ``sleep``, keeps it beyond its lifetime by
  stopping ``sleep``, and beyond its connection by stopping the watcher. With both stopped only the host ends
  it. Orphans are not collected while ``sleep`` runs as process 1.
"""

from __future__ import annotations

import importlib.util
import marshal
import struct
import zlib
from functools import cache
from types import CodeType
from typing import Any, Final, cast

PROGRAM_MAGIC: Final = b"SBX1"
LONGEST: Final = 1e9
"""Seconds, 31 years: select() of Python takes ten times as many, some shells only twice."""
NAME: Final = "sandboxio"
"""What the launcher is called in the container's list of processes."""

_FIND: Final = r"""
if command -v python3 >/dev/null 2>&1; then exec python3 -I -S -c "$5" "$@"; fi
if command -v python >/dev/null 2>&1 &&
  python -c 'import sys; sys.exit(sys.version_info < (3, 8))' </dev/null >/dev/null 2>&1
then exec python -I -S -c "$5" "$@"; fi
eval "$6"
"""

# Runs under python3 of any version. argv: lifetime, lifeline, work, localhost, this text, _STAY.
_BOOT: Final = r"""
import os, sys
if sys.version_info < (3, 8):
    os.execvp("sh", ["sh", "-c", sys.argv[6], "sandboxio"] + sys.argv[1:])
import gc, select, time
from binascii import crc32
gc.disable()
began = time.monotonic()
def take(size):
    data = b""
    while len(data) < size:
        left = began + float(sys.argv[1]) - time.monotonic() if float(sys.argv[1]) else None
        if not select.select([0], [], [], left and max(0, left))[0]:
            os._exit(0)
        more = os.read(0, size - len(data))
        if not more:
            os._exit(0)
        data += more
    return data
head = take(12)
body = take(int.from_bytes(head[4:8], "big")) if head[:4] == b"SBX1" else b""
if not body or crc32(body) != int.from_bytes(head[8:], "big"):
    os.write(2, b"sandboxio launcher: what came is not the guest's program\n")
    os._exit(3)
end = 4 + int.from_bytes(body[:4], "big")
code = body[4:end]
try:
    import marshal, zlib
    from _frozen_importlib_external import MAGIC_NUMBER
    if body[end : end + 4] == MAGIC_NUMBER:
        code = marshal.loads(zlib.decompress(body[end + 4 :]))
except ImportError:
    pass
names = {"__name__": "sandboxio_guest"}
exec(compile(code, "<sandboxio guest>", "exec") if code.__class__ is bytes else code, names)
del head, body, code
gc.enable()
names["main"](sys.argv[1:5], began)
"""

# Without a network the engine makes no /etc/hosts, and localhost would have no address ($4, see below).
# Signals that a shell would end at are ignored: as process 1 it gets from inside whatever it handles.
# A line on stdin is the guest's program, sent before the host knew: it is read and dropped. Where the
# lifeline is off, opening the own stdin for writing keeps it from ever ending. A read that failed too
# early to have timed out met EOF; some shells have one exit code for both.
_STAY: Final = r"""
named() {
  while read -r _ names; do
    case " $names " in *[[:space:]]localhost[[:space:]]*) return 0 ;; esac
  done
  return 1
}
if [ "$4" = 1 ] && ! named </etc/hosts 2>/dev/null; then
  printf '127.0.0.1\tlocalhost\n::1\tlocalhost\n' >>/etc/hosts
fi 2>/dev/null
echo "sandboxio: no python3 of version 3.8 or newer"
keep='trap "" 1 2 3 10 12 13 14 15 24
  [ "$2" = 1 ] || ! (exec 0<>/proc/self/fd/0) 2>/dev/null || exec 0<>/proc/self/fd/0
  now() { read -r up _ </proc/uptime; up=${up%.*}${up#*.}; }
  now; end=$((up + ${1%.*} * 100 + 100))
  while now; left=$(((end - up) / 100)); [ "$left" -gt 0 ]; do
    [ "$left" -lt 3 ] || left=3
    before=$up
    if ! IFS= read -r -t "$left" line; then
      now
      [ $((up - before)) -ge $((left * 100 - 20)) ] || exit 0
      set -- /proc/[0-9]*
      [ $# -gt 400 ] || (:)
    fi
  done; exit 0'
can='IFS= read -r -t 1 line </dev/null; [ $? = 1 ]'
if (eval "$can") 2>/dev/null; then eval "$keep"; fi
for other in bash "busybox ash" zsh mksh ksh; do
  if $other -c "$can" 2>/dev/null; then exec $other -c "$keep" "$0" "$@"; fi
done
trap "" 1 2 3 10 12 13 14 15 24
if [ "$2" != 1 ]; then exec sleep "$1"; fi
exec 3<&0
sleep "$1" </dev/null >/dev/null 2>&1 3<&- &
clock=$!
(while IFS= read -r line; do :; done; kill -9 "$clock") <&3 >/dev/null 2>&1 &
exec 3<&-
wait "$clock"
"""


def arguments(lifetime: float, *, lifeline: bool, work: str, localhost: bool) -> list[str]:
    """What guest and launcher are told: seconds to live (0: no end), folder of the runs, two switches.

    A lifetime beyond ``LONGEST`` is that.

    ``localhost`` lets the guest write /etc/hosts, which the engine does not make without a network.
    """
    seconds = f"{min(lifetime, LONGEST):.3f}".rstrip("0").rstrip(".") or "0"
    return [seconds, str(int(lifeline)), work, str(int(localhost))]


def with_shell(told: list[str], shell: str = "/bin/sh") -> list[str]:
    """The container's entrypoint, for images with a shell. ``told`` is from :func:`arguments`."""
    return [shell, "-c", _FIND.strip(), NAME, *told, _BOOT.strip(), _STAY.strip()]


def with_python(told: list[str], python: str = "python3") -> list[str]:
    """The entrypoint for images without a shell; also the command of a second guest."""
    return [python, "-I", "-S", "-c", _BOOT.strip(), *told]


@cache
def program() -> bytes:
    """The guest's program as the first message on stdin."""
    name = "sandboxio_docker.guest"
    # an importlib.abc.InspectLoader, whether the library lies in a folder or in a zip file
    loader = cast("Any", importlib.util.find_spec(name)).loader
    return message(loader.get_source(name).encode(), loader.get_code(name))


def message(text: bytes, code: CodeType | None = None) -> bytes:
    """A program text as the bootstrap reads it, and what this interpreter has made of it."""
    body = struct.pack(">I", len(text)) + text
    if code is not None:
        body += importlib.util.MAGIC_NUMBER + zlib.compress(marshal.dumps(_anonymous(code)))
    return PROGRAM_MAGIC + struct.pack(">II", len(body), zlib.crc32(body)) + body


def _anonymous(code: CodeType) -> CodeType:
    """The code without the path where this library is installed, which is nobody's business inside."""
    inner = (_anonymous(each) if isinstance(each, CodeType) else each for each in code.co_consts)
    return code.replace(co_filename="<sandboxio guest>", co_consts=tuple(inner))

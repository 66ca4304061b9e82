r"""The scripts that run inside a sandbox, and what they say. Text only, no I/O.

E2B's envd starts processes and signals their direct child, no more; it calls a process ended when its
pipes are closed, however long a background child holds them. So every command runs under a small bash
script (the SDK runs everything through ``/bin/bash`` too) that

* gives the command a process group, so that its `kill 0` meets no other run,
* marks the command, so that all its descendants can be found and killed later, and
* prints on both streams, when the command itself has ended, its exit code behind a secret.

The mark is a pair of resource limits that restrict nothing: the number of file locks (``ulimit -x``,
without effect since Linux 2.4) is set to k, the realtime timeout (``ulimit -R``) to 2^62 - k microseconds.
They survive fork, exec, setsid and a cleared environment, and can only be lowered, which keeps a process
inside the range of its own run: locks <= k and timeout <= 2^62 - k. Root can leave that range. Before
its first line the script has no mark yet, only the secret among its arguments, so a kill looks for both.
"""

from __future__ import annotations

import itertools
import re
import secrets
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

_SHELL_NAME: Final = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_RANGE: Final = 1 << 62
_DIGITS: Final = 3

_RUN: Final = r"""
exec 3>&2 2>/dev/null
ulimit -x "$1"; ulimit -R "$2"
set -m
(exec 2>&3 3>&-; exec -- "${@:4}") &
set +m
wait "$!"
code=$?
# One that stops itself before job control is off again counts for wait as ended, until it really has.
while ((code > 128)) && [[ $(jobs -s) ]]; do /bin/sleep 0.1; wait "$!"; code=$?; done
set -- "$3" "$code"
printf '\036%s %d\036' "$@"
printf '\036%s %d\036' "$@" >&3
"""

_KILL: Final = r"""
k=$1 r=$2 word=$3$4 self=$$

# Sets: alive, the members of the run that are not dead; moving, those of them that are not stopped.
scan() {
  alive=() moving=()
  local -A parent=() state=() member=()
  local folder pid text line grown
  for folder in /proc/[0-9]*; do
    pid=${folder#/proc/}
    ((pid == 1 || pid == self)) && continue
    read -rd '' text <"$folder/stat"
    [[ $text ]] || continue
    set -- ${text##*) }
    [[ $1 == X || ($1 == Z && ${18} -le 1) ]] && continue  # a process outlives its first thread
    state[$pid]=$1 parent[$pid]=$2
    marked "$folder" && member[$pid]=1
  done
  grown=1
  while [[ $grown ]]; do
    grown=
    for pid in "${!parent[@]}"; do
      [[ ${member[$pid]} || ! ${member[${parent[$pid]}]} ]] && continue
      member[$pid]=1 grown=1
    done
  done
  for pid in "${!member[@]}"; do
    alive+=("$pid")
    [[ ${state[$pid]} == [Tt] ]] || moving+=("$pid")
  done
}

marked() {
  local lines line locks= timeout=
  mapfile -t lines <"$1/limits"
  for line in "${lines[@]}"; do
    case $line in
      'Max file locks'*) set -- "$1" ${line#Max file locks}; locks=$2 ;;
      'Max realtime timeout'*) set -- "$1" ${line#Max realtime timeout}; timeout=$2 ;;
    esac
  done
  # Never a process that has a mark: its words may be those of a run that it looked at.
  if [[ $word ]] && { [[ ! $timeout || $timeout == *[!0-9]* ]] || ((timeout < 1 << 61)); }; then
    mapfile -d '' -t lines <"$1/cmdline"
    [[ "${lines[*]}" == *"$word"* ]] && return 0
  fi
  [[ $locks == *[!0-9]* || ! $locks ]] && return 1
  if [[ $timeout == *[!0-9]* || ! $timeout ]]; then ((locks == k)); else ((locks <= k && timeout <= r)); fi
}

# By the clock, not by rounds: on a busy machine even a killed process needs its turn to die.
for ((round = 0; SECONDS < 15; round++)); do
  scan
  ((${#alive[@]} == 0)) && exit 0
  if ((${#moving[@]} && round < 20)); then kill -STOP "${moving[@]}"; else kill -KILL "${alive[@]}"; fi
done 2>/dev/null
printf '%s ' "${alive[@]}"
exit 1
"""


@dataclass(frozen=True)
class Mark:
    """What all processes of one run have in common, and the secret behind which it tells its end."""

    number: int
    token: str

    @classmethod
    def new(cls) -> Mark:
        return cls(secrets.randbelow(1 << 60) + (1 << 20), secrets.token_hex(16))

    @property
    def limits(self) -> tuple[str, str]:
        """The two limits, as text."""
        return str(self.number), str(_RANGE - self.number)

    @property
    def ending(self) -> bytes:
        """How the text begins that tells the exit code."""
        return f"\x1e{self.token} ".encode()


def run_command(command: str | Sequence[str], mark: Mark, env: Mapping[str, str]) -> list[str]:
    """The argument list that runs ``command``: text through a login shell, a list as it is.

    A login shell sets PATH anew, so a PATH of the caller's is set again inside.
    """
    if isinstance(command, str):
        if "PATH" in env:
            command = f"export PATH={quote(env['PATH'])}\n{command}"
        command = ("/bin/bash", "-l", "-c", command)
    return program(_RUN, *mark.limits, mark.token, *command)


def kill_command(mark: Mark, word: str = "") -> list[str]:
    """The argument list that kills a run; with ``word``, also what has it in its command line.

    Exit code 0: nothing of it is alive. The word is passed in two parts: this script must not match.
    """
    return program(_KILL, *mark.limits, word[:4], word[4:])


def program(script: str, *arguments: str) -> list[str]:
    """bash that runs ``script`` with ``arguments``; nothing of the environment changes how (``-p``).

    JSON carries only Unicode, so arguments that hold other bytes become part of the script's text.
    """
    plain = [argument for argument in arguments if _is_plain(argument)]
    if len(plain) < len(arguments):
        numbers = itertools.count(1)
        words = (f'"${{{next(numbers)}}}"' if _is_plain(each) else quote(each) for each in arguments)
        script = f"set -- {' '.join(words)}\n{script}"
    return ["/bin/bash", "-p", "-c", script, "bash", *plain]


def with_env(argv: list[str], env: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """``argv`` behind what sets the variables that envd cannot, and the variables for envd.

    envd starts everything through /bin/sh, which drops names that no shell could have set. Those travel
    inside variables with names of ours: their values are in no command line that envd keeps. What JSON
    cannot carry is exported by a shell in front.
    """
    pairs = [f"{name}={value}" for name, value in env.items() if not _SHELL_NAME.fullmatch(name)]
    carriers = {f"SANDBOXIO_ENV_{number}": pair for number, pair in enumerate(pairs)}
    named = {name: value for name, value in env.items() if _SHELL_NAME.fullmatch(name)}
    plain, other = split_env({**named, **carriers})
    if carriers:
        drops = " ".join(f"-u {name}" for name in carriers)
        sets = " ".join(f'"${name}"' for name in carriers)
        argv = program(f'exec /usr/bin/env {drops} -- {sets} "$@"', *argv)
    if other:
        exports = " ".join(f"{name}={quote(value)}" for name, value in other.items())
        argv = program(f'export {exports}; exec "$@"', *argv)
    return argv, plain


def split_env(env: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Variables that JSON can carry, and those whose value holds bytes that are not UTF-8."""
    plain = {name: value for name, value in env.items() if _is_plain(name) and _is_plain(value)}
    return plain, {name: value for name, value in env.items() if name not in plain}


def quote(text: str) -> str:
    r"""``text`` for bash; bytes that are not UTF-8 (lone surrogates) as ``$'\xff'``."""
    if _is_plain(text):
        return shlex.quote(text)
    octets = text.encode("utf-8", "surrogateescape")
    return "$'" + "".join(f"\\x{octet:02x}" for octet in octets) + "'"


def _is_plain(text: str) -> bool:
    return not any("\udc80" <= letter <= "\udcff" for letter in text)


class EndingFilter:
    """Takes the ending out of one stream of a run; feed it what arrives."""

    def __init__(self, mark: Mark) -> None:
        self._ending = mark.ending
        self._pattern = re.compile(re.escape(mark.ending) + rb"([0-9]{1,3})\x1e")
        self._held = b""
        self.exit_code: int | None = None

    def feed(self, data: bytes) -> bytes:
        """What of ``data``, and of what was held back before, belongs to the command.

        A tail that may be the beginning of the ending is held back. What comes after the ending was
        written by a background child, and is dropped.
        """
        if self.exit_code is not None:
            return b""
        data = self._held + data
        match = self._pattern.search(data)
        if match is not None:
            self.exit_code, self._held = int(match[1]) & 0xFF, b""
            return data[: match.start()]
        keep = len(data) - self._possible(data)
        self._held = data[keep:]
        return data[:keep]

    def _possible(self, data: bytes) -> int:
        """The length of the longest tail of ``data`` that may become the ending."""
        start = data.find(b"\x1e", max(0, len(data) - len(self._ending) - _DIGITS))
        while start >= 0:
            tail = data[start:]
            head, digits = tail[: len(self._ending)], tail[len(self._ending) :]
            if self._ending.startswith(head) and (not digits or digits.isdigit()):
                return len(tail)
            start = data.find(b"\x1e", start + 1)
        return 0

    def rest(self) -> bytes:
        """What was held back when the stream ended without the ending."""
        rest, self._held = self._held, b""
        return rest

"""How one run of the exec channel is found and killed, with nothing but a POSIX shell in the image.

The engine cannot signal an exec. A second exec does it instead: a shell script of builtins only, so it
needs no free process slot and no tool of the image.

A process belongs to a run if its environment holds the run's marker, if its parent belongs to it, or if
its session belongs to it. What has cleared its environment, left its session *and* lost its parent
before the kill is not found; the guest channel finds that too.

The script stops what it finds until a scan brings nothing new, so that nothing forks past it, then
kills until a scan finds nothing alive. What still moves after some rounds is frozen together with
everything else in the container for one scan (``kill(-1)`` is one step for the kernel).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Final

MARKER: Final = "SANDBOXIO_RUN"
"""Environment variable that carries a run's token."""

DEAD: Final = b"dead\n"
"""What the script prints once nothing of the runs is alive. Its exit code says the same, but later: an
engine may wait seconds for another exec's output before it tells of an end (Docker 20.10)."""

_SCRIPT: Final = r"""
name=$1 marks=$2 self=$$ seen=' ' known=' ' sessions=' ' stopped=' '

# Fields of /proc/PID/stat behind the name, which may hold anything: state ppid sid start. A process whose
# first thread has ended counts as alive while it has others.
status() {
  text=
  { while IFS= read -r part || [ "$part" ]; do text="$text$part "; done </proc/$1/stat; } 2>/dev/null
  [ "$text" ] || return 1
  set -- ${text##*) }
  state=$1 ppid=$2 sid=$4 start=${20}
  headless=
  case $state in Z) [ "${18}" -gt 1 ] && state=S headless=1 ;; esac
  return 0
}

marked() {
  set -- /proc/$1
  [ "$headless" ] && set -- "$1"/task/*
  for each_environment; do
    { while IFS= read -r part || [ "$part" ]; do
        case $part in *"$name"*) ;; *) continue ;; esac
        for mark in $marks; do
          case $part in *"$mark"*) return 0 ;; esac
        done
      done <"$each_environment/environ"; } 2>/dev/null
  done
  return 1
}

# Sets: alive, the live members; fresh, those not stopped yet; others, everybody else alive; asleep,
# those of them who are stopped.
look() {
  grown=1
  while [ "$grown" ]; do
    grown= alive= fresh= others= asleep=' '
    for each in /proc/[0-9]*; do
      pid=${each#/proc/}
      [ "$pid" = 1 ] || [ "$pid" = "$self" ] && continue
      status "$pid" || continue
      id=$pid:$start
      case $known in *" $id "*) ;; *)
        member=
        case $sessions in *" $sid "*) member=1 ;; esac
        case $known in *" $ppid:"*) member=1 ;; esac
        case $seen in *" $id "*) ;; *)
          seen="$seen$id "
          [ "$member" ] || marked "$pid" && member=1 ;;
        esac
        if [ "$member" ]; then
          grown=1 known="$known$id "
          [ "$sid" -gt 1 ] && sessions="$sessions$sid "
        else
          case $state in Z | X) ;; *) others="$others $pid" ;; esac
          case $state in T | t) asleep="$asleep$pid " ;; esac
          continue
        fi ;;
      esac
      case $state in Z | X) continue ;; esac
      alive="$alive $pid"
      case $stopped in *" $id "*) ;; *) fresh="$fresh $pid" stopped="$stopped$id " ;; esac
    done
  done
}

round=0
while [ $round -lt 20 ]; do
  look
  [ "$fresh" ] || break
  kill -STOP $fresh 2>/dev/null
  round=$((round + 1))
done
round=0
while [ "$alive" ]; do
  [ $round -lt 400 ] || exit 1
  kill -KILL $alive 2>/dev/null
  look
  round=$((round + 1))
  if [ $((round % 8)) = 0 ] && [ "$alive" ]; then
    before=$asleep
    kill -STOP -- -1 2>/dev/null
    look
    [ "$alive" ] && kill -KILL $alive 2>/dev/null
    for pid in $others; do
      case $before in *" $pid "*) ;; *) kill -CONT $pid 2>/dev/null ;; esac
    done
    look
  fi
done
echo dead
"""


def new_marker() -> str:
    """The value of ``MARKER`` for one run: 128 random bits, so that no program guesses another's."""
    return secrets.token_hex(16)


def kill_command(markers: Iterable[str]) -> list[str]:
    """The command line that kills the runs with these markers, in the container."""
    return ["/bin/sh", "-c", _SCRIPT, "sandboxio-kill", MARKER, " ".join(markers)]

"""One command through ``docker exec``: started, read to its end, killed.

How a run ends is read from the engine (``GET /exec/{id}/json``), not from its output: a background child
may keep the pipe open long after the command (moby issue 41052), and Podman keeps the connection open.

A command that could not be started makes the engine write its own words into stdout and give 126 for
everything (20.10; other versions differ). Here that text goes to stderr, and the code is 127 for a
program that does not exist and 126 for one that cannot be executed. Two of these failures certainly
happened before the program and can be mended; such a start is tried once more.

Docker 20.10 tells of the ends in one container one after another, and waits up to four seconds for output
that a background child still holds. So after such a command the next ones may seem to last longer.

Podman 4.3 says of every exec that has not ended ``ExitCode: 0``, and of every one that has ended ``Pid: 0``;
only ``CanRemove`` tells an end. It tells of no memory kill at all, so that counter is read inside.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

import anyio

from sandboxio.adapter import Execution, Exit
from sandboxio.errors import ConnectError, ResourceLimitExceeded, SandboxError
from sandboxio.models import OutputChunk

from .channel import too_long
from .ending import Ending, killed_here
from .engine import Engine, EngineError, EngineUnavailable, Fault, Hijacked
from .faults import MAX_REASON, classify
from .frames import Demultiplexer, StreamDamaged
from .hostconfig import MAX_PIDS, WORK
from .killer import DEAD, MARKER, kill_command, new_marker

KILLED: Final = 137
"""128 + SIGKILL."""
QUIET_FIRST: Final = 0.05
QUIET_MOST: Final = 1.0
"""Seconds of silence after which the engine is asked whether the command has ended; doubled each time. At
most so many pass between two questions."""
SILENCE: Final = 3.0
"""Seconds after the end of a command in which its connection closes or brings more; else the run is over
all the same. Docker closes it after two where a background child holds the output, and at once otherwise."""
MARK_SILENCE: Final = 10.0
"""The same for a helper that prints a mark at its end, and fails without."""
LATEST: Final = 10.0
"""Seconds after the end of a command at which the run is over although more arrives: a background child may
print for ever, and Podman keeps its output open."""
DRAIN_MOST: Final = 16 << 20
"""Bytes that a background child may add meanwhile before the run is over all the same."""
SEND_PATIENCE: Final = 0.5
"""Seconds in which a piece of stdin must be taken before the engine is asked whether anybody reads it."""
REFUSED: Final = 0.3
"""Seconds after which a start that the engine has refused certainly did not happen all the same."""
HELPER_OUTPUT: Final = 1 << 16
"""Bytes of a helper's output that are kept."""
UNSURE: Final = "The engine kept the output open after the command's end; what came later may be missing."
LEAVING: Final = 50
"""Times 10 ms that a helper gets to remove its temporary file when its stdin was cut off."""
CHUNK: Final = 1 << 16

_REFUSAL = re.compile(
    rb"OCI runtime|unable to find (user|group)|runc|crun|exec |cannot exec|failed to", re.IGNORECASE
)
"""How the engine's own words begin where a command's output should."""
_PODMAN_REFUSAL = re.compile(rb"Error: (runc|crun|OCI runtime)", re.IGNORECASE)
"""The same for Podman, where nothing else tells a start that failed from a command that prints this."""
_TOO_LONG = re.compile(rb"exec [^\n]*: argument list too long\s*\Z")
"""The runtime's words for E2BIG; its exit code is 1. A command may print the same."""
LONG: Final = 1 << 16
"""Bytes of arguments and variables; Linux refuses none below 128 KiB, with those of the image."""
_OOMS: Final = """
for file in /sys/fs/cgroup/memory/memory.oom_control /sys/fs/cgroup/memory.events; do
  [ ! -r "$file" ] || while read -r name count; do
    [ "$name" != oom_kill ] || echo "$count"
  done <"$file"
done"""
_MENDABLE: Final = (Fault.NO_SUCH_FOLDER, Fault.START_INTERRUPTED)
_PROGRAM: Final = (Fault.NO_SUCH_PROGRAM, Fault.NOT_EXECUTABLE, Fault.NO_SUCH_FOLDER)
"""Reasons that lie in the command: a result with 127 or 126. All others are errors."""
_NOT_STARTED: Final = (
    *_PROGRAM,
    Fault.NO_SUCH_USER,
    Fault.NO_PROCESSES,
    Fault.START_INTERRUPTED,
    Fault.NOT_RUNNING,
)
"""What newer engines answer before the upgrade, and older ones write into the output."""


@dataclass
class ExecHost:
    """What the runs of one sandbox share. ``variables`` are the environment of every run."""

    engine: Engine
    container: str
    ending: Ending
    variables: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    streams: set[Hijacked] = field(default_factory=set[Hijacked], repr=False)
    doomed: list[str] = field(default_factory=list[str], repr=False)
    killing: anyio.Lock = field(default_factory=anyio.Lock, repr=False)
    closed: bool = False
    podman: bool = False

    async def create(self, argv: list[str], env: Mapping[str, str], *, stdin: bool, folder: str) -> str:
        """The id of a new exec, which runs nothing yet."""
        body = {
            "AttachStdin": stdin,
            "AttachStdout": True,
            "AttachStderr": True,
            "Tty": False,
            "Cmd": argv,
            "Env": [f"{name}={value}" for name, value in env.items()],
            "WorkingDir": folder,
        }
        answer = await self.engine.post_json(f"/containers/{self.container}/exec", body)
        self.podman = (await self.engine.negotiate()).podman
        return str(answer["Id"])

    async def begin(self, exec_id: str, sending: Callable[[], None] = lambda: None) -> Hijacked:
        """Start it. Cancelled, it may start all the same if ``sending`` was called."""
        body = {"Detach": False, "Tty": False}
        stream = await self.engine.upgrade("POST", f"/exec/{exec_id}/start", json=body, sending=sending)
        self.streams.add(stream)
        return stream

    async def state(self, exec_id: str) -> Mapping[str, Any]:
        """What the engine knows of an exec: Running, ExitCode, Pid."""
        answer: dict[str, Any] = await self.engine.get_json(f"/exec/{exec_id}/json")
        if self.podman and not answer.get("CanRemove"):
            answer["ExitCode"] = None
        return answer

    async def counted_ooms(self) -> int:
        """How often the kernel has killed for memory in the container, as its control group says."""
        output = b""
        with suppress(SandboxError):  # no process left to ask with: the run's own end is worth more
            _, output = await ExecRun(self, ["/bin/sh", "-c", _OOMS], plain=True, folder="/").whole()
        return int(output) if re.fullmatch(rb"\s*\d{1,18}\s*", output) else self.ending.ooms_told

    def end(self, stream: Hijacked | None) -> None:
        """Close the connection of one exec."""
        if stream is not None:
            stream.close()
            self.streams.discard(stream)

    def close(self) -> None:
        """Close all connections; whoever waits on one wakes with ``SandboxGone``."""
        self.closed = True
        for stream in tuple(self.streams):
            self.end(stream)

    async def kill(self, marker: str) -> None:
        """Kill a run. Those that wait for their turn are killed together, by one exec.

        Two helpers at once could stop each other, so there is one at a time.
        """
        self.doomed.append(marker)
        async with self.killing:
            if marker not in self.doomed:
                return
            markers = tuple(self.doomed)
            helper = ExecRun(self, kill_command(markers), plain=True, folder="/")
            code, output = await helper.whole(DEAD)
            if not output.endswith(DEAD):
                words = output[-300:].decode("utf-8", "replace")
                raise ConnectError(f"The helper that kills a run ended with {code}: {words}")
            self.doomed = [each for each in self.doomed if each not in markers]


class ExecRun(Execution):
    """One ``docker exec``.

    Args:
        host: The sandbox's.
        argv: Program and arguments, no shell.
        env: This run's own variables, on top of the sandbox's.
        stdin: What the program reads; None is an stdin at its end from the beginning.
        sized: True if the program knows where its ``stdin`` ends; then no end of it is sent.
        feed: True if the caller sends the stdin by :meth:`send` after ``start``.
        plain: A helper of the adapter's own: no variables, no look for memory kills, no second try.
        mark: What it prints to stdout at the very end if it does all it should. Not a part of the output;
            an exit code of 0 without it is an error, since a part of the output must be missing.
        folder: Where it starts.
    """

    def __init__(
        self,
        host: ExecHost,
        argv: list[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        sized: bool = False,
        feed: bool = False,
        plain: bool = False,
        mark: bytes = b"",
        folder: str = WORK,
    ) -> None:
        self._host = host
        self._argv = argv
        self._env = env or {}
        self._stdin = stdin
        self._sized = sized
        self._feed = feed
        self._plain = plain
        self._mark = mark
        self._folder = folder
        self._tries = 1 if plain or feed else 2
        words = (*argv, *(f"{name}={value}" for name, value in {**host.variables, **self._env}.items()))
        self._long = sum(len(word.encode("utf-8", "replace")) for word in words) > LONG
        self._marker = new_marker()
        self._killing: anyio.Event | None = None
        self._reset()

    def _reset(self) -> None:
        self._exec = ""
        self._asked = self._refused = False
        self._stream: Hijacked | None = None
        self._demux = Demultiplexer()
        self._ready: deque[OutputChunk] = deque()
        self._held: OutputChunk | None = None
        self._first = True
        self._tail = b""
        self._eof = False
        self._unsure = False
        self._quiet = QUIET_FIRST
        self._final: Mapping[str, Any] | None = None
        self._late = 0
        self._until = math.inf
        self._ask_at = math.inf

    async def start(self) -> None:
        """Start the command and give it its stdin."""
        env = {**({} if self._plain else self._host.variables), **self._env, MARKER: self._marker}
        try:
            self._exec = await self._host.create(self._argv, env, stdin=self._asks_stdin, folder=self._folder)
            self._stream = await self._host.begin(self._exec, self._sending)
            self._ask_at = anyio.current_time() + QUIET_MOST
        except EngineError as error:
            self._refused = True
            if error.fault in _NOT_STARTED:
                await self._not_started(error.reason)
                return
            raise await self._host.ending.translated(error) from error
        if self._stdin is not None:
            view = memoryview(self._stdin)
            for at in range(0, len(view), CHUNK):
                if not await self.send(view[at : at + CHUNK]):
                    return
            if not self._sized:
                await self.send(None)

    def _sending(self) -> None:
        self._asked = True

    @property
    def _asks_stdin(self) -> bool:
        return self._feed or self._stdin is not None

    async def send(self, data: memoryview | bytes | None) -> bool:
        """A piece of stdin, None for its end; False if the program reads no more.

        An engine may neither read on nor close after the program's end; then its state tells.
        """
        if self._stream is None:
            return False
        rest = data
        try:
            while self._final is None:
                with anyio.move_on_after(SEND_PATIENCE):
                    await (self._stream.half_close() if rest is None else self._stream.send(rest))
                    return True
                rest = None if data is None else b""  # the connection keeps what is unsent
                await self._ask()
        except EngineUnavailable:
            pass  # it has ended; its output and exit code say why
        return False

    async def receive(self) -> OutputChunk | None:
        """The next piece of output, None at the end."""
        while not self._ready and self.exit is None:
            await self._advance()
        return self._ready.popleft() if self._ready else None

    def receive_nowait(self) -> OutputChunk | None:
        """A piece that has arrived, or None."""
        return self._ready.popleft() if self._ready else None

    async def whole(self, last: bytes | None = None) -> tuple[int | None, bytes]:
        """Start, read to the end or until ``last`` came, close: exit code and what was printed."""
        output = bytearray()
        try:
            await self.start()
            while (chunk := await self.receive()) is not None:
                output += chunk.data[: HELPER_OUTPUT - len(output)]
                if last is not None and output.endswith(last):
                    break
        finally:
            self.close()
        return self.exit.exit_code if self.exit else None, bytes(output)

    async def kill(self) -> None:
        """Kill the command with its descendants; see ``killer.py`` for what is found.

        The helper is a shell of the image, which root inside can replace. So it is the engine that says
        whether the command has ended; of its descendants, which the engine does not know, the helper.
        """
        if self.exit is not None:
            return
        self._killing = anyio.Event()
        try:
            await self._kill()
        finally:
            self._killing.set()

    async def _kill(self) -> None:
        self._drain_now()
        # Unread output would keep the engine from telling of any end in this container for seconds; and
        # a helper whose stdin ends tidies up after itself.
        self.close()
        over = not self._asked or not await self._has_started() or (self._feed and await self._leaves())
        while not over:  # the caller's bound ends this, and then the sandbox
            await self._host.kill(self._marker)
            over = await self._leaves()  # if not, the runtime may not have given it its environment yet
        self._end(Exit(KILLED))

    def close(self) -> None:
        """Close the connection."""
        self._host.end(self._stream)

    # Reading

    async def _advance(self) -> None:
        """One step towards the end: read, ask, or conclude. Whatever is cancelled is taken up again."""
        if self._final is not None and self._complete():
            await self._conclude(self._final)
        elif self._eof:
            await anyio.sleep(self._quiet)
            await self._ask()
        else:
            await self._read()

    def _complete(self) -> bool:
        if self._mark:
            return self._eof or self._tail == self._mark
        if not self._eof and anyio.current_time() > self._until:
            self._unsure = True
            return True
        return self._eof or self._late > DRAIN_MOST

    async def _read(self) -> None:
        assert self._stream is not None
        data: bytes | None = None
        silence = MARK_SILENCE if self._mark else SILENCE
        try:
            with anyio.move_on_after(self._quiet if self._final is None else silence):
                data = await self._stream.receive()
            if data == b"":
                self._demux.feed(b"")
                self._demux.next_chunk()  # raises where the other side ended inside a frame
        except (EngineUnavailable, StreamDamaged) as error:
            await self._lost(error)
        else:
            await self._arrived(data)

    async def _arrived(self, data: bytes | None) -> None:
        if data:
            self._quiet = QUIET_FIRST
            self._late += len(data) if self._final is not None else 0
            self._take(data)
            if self._final is None and anyio.current_time() > self._ask_at:
                await self._ask()  # a background child may never leave a silence
        elif self._final is not None:
            self._eof, self._unsure = True, data is None
        elif data is None:
            await self._ask()
        else:
            self._eof = True
            self._quiet = 0.001
            await self._ask()

    async def _lost(self, error: ConnectError) -> None:
        """The connection broke: what does that say of the command?"""
        if self._killing is not None and not self._killing.is_set():
            await self._killing.wait()  # killed from another task, which closed the connection
        if self.exit is not None:
            return
        if self._host.closed:
            raise killed_here() from error
        await self._ask()
        if self._final is None and await self._host.ending.ended():
            raise await self._host.ending.explained() from error
        # a command that ends without reading all its stdin resets the connection; nothing else should
        if self._final is None or not self._asks_stdin:
            raise error
        self._eof = True

    async def _ask(self) -> None:
        """Has the command ended?"""
        state = await self._state()
        self._ask_at = anyio.current_time() + QUIET_MOST
        if not state.get("Running") and state.get("ExitCode") is not None:
            self._final = state
            self._until = anyio.current_time() + LATEST
        self._quiet = min(self._quiet * 2, QUIET_MOST)

    async def _state(self) -> Mapping[str, Any]:
        try:
            return await self._host.state(self._exec)
        except EngineError as error:
            raise await self._host.ending.translated(error) from error

    def _take(self, data: bytes) -> None:
        self._demux.feed(data)
        refusal = _PODMAN_REFUSAL if self._host.podman else _REFUSAL
        while (chunk := self._demux.next_chunk()) is not None:
            if self._first and refusal.match(chunk.data):
                self._held = chunk  # perhaps not the command's; the end tells
            else:
                self._release()
                self._print(chunk)
            self._first = False

    def _print(self, chunk: OutputChunk) -> None:
        """Hand it over, all but what may be the mark."""
        if self._mark and chunk.stream == "stdout":
            data = self._tail + chunk.data
            self._tail = data[-len(self._mark) :]
            chunk = OutputChunk("stdout", data[: -len(self._mark)])
        if chunk.data:
            self._ready.append(chunk)

    def _release(self) -> None:
        if self._held is not None:
            self._print(self._held)
            self._held = None

    def _drain_now(self) -> None:
        """Take what has arrived, without waiting."""
        if self._stream is None or self._stream.closed:
            return
        taken = 0
        try:
            while taken < DRAIN_MOST and (data := self._stream.receive_now()):
                taken += len(data)
                self._take(data)
        except ConnectError:
            pass  # damaged or broken: there is no more
        self._release()

    # Ending

    async def _conclude(self, state: Mapping[str, Any]) -> None:
        code = int(state["ExitCode"])
        if self._held is not None and self._host.podman and code in (126, 127):
            await self._perhaps_not_started(code, self._held.data)
            return
        if self._held is not None and code in (126, 127) and not state.get("Pid"):
            await self._not_started(self._held.data.decode("utf-8", "replace"))
            return
        if self._held is not None and code == 1 and self._long and _TOO_LONG.match(self._held.data):
            raise too_long()
        ending = self._host.ending
        if code == KILLED and not self._plain and await ending.ends():
            self._release()
            raise await ending.explained()
        ended = Exit(code) if self._plain else await self._judged(code)
        self._release()
        if self._mark and not code and self._tail != self._mark:
            raise ConnectError(
                "The end of what the helper in the sandbox printed did not arrive.",
                hint="Try again; the connection to the engine may be bad, or the image's shell replaced.",
            )
        if self._unsure:
            ended = replace(ended, notes=(*ended.notes, UNSURE))
        self._end(ended)

    async def _judged(self, code: int) -> Exit:
        """The exit, with what the engine saw of memory meanwhile."""
        ending = self._host.ending
        if not self._host.podman:
            ooms = await ending.ooms()
        elif code:
            ooms = await self._host.counted_ooms()
        else:
            return Exit(code)  # another exec after each run would be dear
        if ooms <= ending.ooms_told:
            return Exit(code)
        ending.ooms_told = ooms
        cap = "the memory cap" if ending.memory_mb is None else f"the memory cap of {ending.memory_mb} MiB"
        if code == KILLED:
            return Exit(code, limit=f"The command was killed at {cap}.")
        return Exit(code, notes=(f"A process of the sandbox was killed at {cap} meanwhile.",))

    async def _not_started(self, reason: str) -> None:
        """The engine could not start the command, which therefore has done nothing."""
        reason = reason[:MAX_REASON]
        fault = classify(0, reason)
        self._tries -= 1
        if fault in _MENDABLE and self._tries:
            self._host.end(self._stream)
            self._reset()
            if fault is Fault.NO_SUCH_FOLDER:
                make = ["/bin/sh", "-c", 'exec mkdir -p "$1"', "sh", self._folder]
                await ExecRun(self._host, make, plain=True, folder="/").whole()
            await self.start()
            return
        self._held = None
        text = " ".join(reason.split()) or "the engine could not start the command"
        if fault not in _PROGRAM:
            raise await self._unserved(fault, text)
        self._ready.append(OutputChunk("stderr", f"{text}\n".encode()))
        self._end(Exit(127 if fault is Fault.NO_SUCH_PROGRAM else 126))

    async def _perhaps_not_started(self, code: int, words: bytes) -> None:
        """As :meth:`_not_started` on Podman, where nothing tells its words from a command's own.

        So there is no second try, which would run such a command twice, and no error that is made of words.
        """
        if await self._host.ending.ends():
            raise await self._host.ending.explained()
        self._held = None
        self._ready.append(OutputChunk("stderr", words))
        self._end(Exit(code))

    async def _unserved(self, fault: Fault, text: str) -> SandboxError:
        """The error for a start that failed for the engine's reasons: never dressed as a command's output.

        What ends a handle for ever is believed of the engine's state only, never of a text.
        """
        if await self._host.ending.ends(likely=fault is Fault.NOT_RUNNING):
            return await self._host.ending.explained()
        if fault is Fault.NO_PROCESSES:
            return ResourceLimitExceeded(
                f"The sandbox could not start a process: it is at its ceiling of {MAX_PIDS}.",
                hint="End processes in the sandbox, or create a new one.",
            )
        return ConnectError(
            f"The engine could not start the command: {text}",
            hint="Try again; if it stays so, read the engine's log and run `sandboxio doctor`.",
        )

    def _end(self, ended: Exit) -> None:
        if self.exit is None:
            self.exit = ended
        self.close()

    async def _leaves(self) -> bool:
        """Wait a moment for the command to end by itself; True if it did."""
        for _ in range(LEAVING):
            state = await self._state()
            if not state.get("Running"):
                return True
            await anyio.sleep(0.01)
        return False

    async def _has_started(self) -> bool:
        """Wait until it is clear whether the command runs: a cancelled start may still be on its way.

        It may stay so for ever on a bad connection; then the caller's bound ends this, and the sandbox.
        """
        patience = REFUSED
        while True:
            state = await self._state()
            if state.get("ExitCode") is not None:
                return False
            if state.get("Running") and state.get("Pid"):
                return True
            if not state.get("Running") and self._refused:
                if patience <= 0:
                    return False
                patience -= 0.01
            await anyio.sleep(0.01)

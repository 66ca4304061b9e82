"""Why a container ended, told from outside: the engine's events still know when the container is gone.

``GET /events`` of the past answers in a millisecond and never waits for the container. ``inspect`` does
(moby issue 41827), so it is only asked where nothing else helps, and under a bound.
Source: Docker Engine API v1.41, GET /events; the engine keeps the last 256 events.

Podman's service says of the past what its log holds, but only while ``until`` is still to come, and keeps
the answer open until then; it tells of no ``oom`` and says ``remove`` for ``destroy`` (seen on 4.3.1).
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import anyio

from sandboxio.errors import ConnectError, SandboxError, SandboxGone

from .engine import Engine, EngineError, EngineUnavailable, Fault

LOOK: Final = 1.0
"""Seconds that an explanation may take; without one, the error says less."""
FOLLOWS: Final = 0.1
FOLLOWS_KILL: Final = 3.0
"""Seconds in which a container follows a process that was killed; the second where it was killed itself."""

QUIET: Final = 0.1
"""Seconds of silence after which Podman's answer counts as complete."""

_OVER: Final = frozenset({"die", "destroy", "remove"})
_GONE: Final = frozenset({Fault.NO_SUCH_CONTAINER, Fault.NOT_RUNNING, Fault.REMOVING, Fault.NO_SUCH_EXEC})


@dataclass
class Ending:
    """The end of one container, once it has come. ``timeout`` is its lifetime in seconds."""

    engine: Engine
    container: str
    timeout: float
    memory_mb: int | None
    began: float = field(default_factory=time.monotonic)
    ooms_told: int = 0

    async def translated(self, error: EngineError) -> SandboxError:
        """``error``, or ``SandboxGone`` with the reason if it means that the container has ended."""
        return await self.explained() if error.fault in _GONE else error

    async def explained(self) -> SandboxGone:
        """``SandboxGone`` that says how the container ended."""
        events = await self.past_events()
        if not any(_action(event) in _OVER for event in events):
            state = await self.state()
            if state is not None and not state.get("Running"):
                return self._told(state.get("ExitCode"), oom=bool(state.get("OOMKilled")), outside=False)
        code, oom, outside = None, False, False
        for event in events:
            action = _action(event)
            oom = oom or action == "oom"
            outside = outside or action == "kill"
            if action == "die":
                code = _attributes(event).get("exitCode")
        return self._told(code, oom=oom and str(code) == "137", outside=outside)

    async def ends(self, *, likely: bool = False) -> bool:
        """As :meth:`ended`, when a process of the container was killed and the rest may follow.

        Where it is ``likely``, the engine has seen a kill, or the lifetime is over, the end is waited for:
        the engine may tell of each process on its own first, and only seconds later of the container.
        """
        until = time.monotonic() + FOLLOWS
        while not await self.ended():
            events = await self.past_events()
            near = likely or self.lifetime_over or any(_action(event) in ("kill", "oom") for event in events)
            if time.monotonic() > until + (FOLLOWS_KILL if near else 0):
                return False
            await anyio.sleep(0.02)
        return True

    @property
    def lifetime_over(self) -> bool:
        """True once the container's own clock ends it."""
        return time.monotonic() - self.began >= self.timeout - 0.5

    async def ended(self) -> bool:
        """True if the container certainly runs no more; False if it runs or nothing can be learnt."""
        if any(_action(event) in _OVER for event in await self.past_events()):
            return True
        state = await self.state()
        return state is not None and not state.get("Running")

    async def check_paused(self) -> None:
        """Raise ``ConnectError`` if the container is paused. Lists, for that never waits for a container."""
        found: list[dict[str, Any]] = []
        with anyio.move_on_after(LOOK), suppress(EngineError, EngineUnavailable):
            # all: Podman counts a paused container as not running
            params = {"all": True, "filters": {"id": [self.container]}}
            found = await self.engine.get_list("/containers/json", params=params)
        if any(entry.get("State") == "paused" for entry in found):
            raise ConnectError(
                f"The container {self.container[:12]} is paused.",
                hint=f"Resume it with `docker unpause {self.container[:12]}`, or create a new sandbox.",
            )

    async def ooms(self) -> int:
        """How often the kernel has killed something in the container for memory, as the engine saw it."""
        return sum(_action(event) == "oom" for event in await self.past_events())

    async def past_events(self) -> list[dict[str, Any]]:
        """What the engine remembers of this container, oldest first; empty if it cannot be asked."""
        body = bytearray()
        try:
            with anyio.move_on_after(LOOK) as look:  # an engine whose clock is behind ours answers later
                latest = look.deadline
                podman = (await self.engine.negotiate()).podman
                params = {
                    "since": "1",
                    "until": f"{time.time() + (LOOK if podman else 0):.9f}",
                    "filters": {"container": [self.container], "type": ["container"]},
                }
                async with self.engine.stream("GET", "/events", params=params) as answer:
                    async for piece in answer:
                        body += piece
                        if podman:
                            look.deadline = min(latest, anyio.current_time() + QUIET)
        except (EngineError, EngineUnavailable):
            pass
        return _parsed(bytes(body))

    async def state(self) -> dict[str, Any] | None:
        """``State`` of ``GET /containers/{id}/json``, None if it cannot be had in time."""
        answer: dict[str, Any] = {}
        try:
            with anyio.move_on_after(LOOK):
                answer = await self.engine.get_object(f"/containers/{self.container}/json")
        except (EngineError, EngineUnavailable):
            return None
        state: Any = answer.get("State")
        return state if isinstance(state, dict) else None  # pyright: ignore[reportUnknownVariableType]

    def _told(self, code: object, *, oom: bool, outside: bool) -> SandboxGone:
        if oom:
            cap = "its memory cap" if self.memory_mb is None else f"its memory cap of {self.memory_mb} MiB"
            return SandboxGone(
                f"The container ran out of memory: its main process was killed at {cap}.",
                hint="Raise the cap: create(resources=Resources(memory_mb=...)).",
            )
        if outside:
            return SandboxGone("The container was killed or removed by somebody else.")
        if self.lifetime_over:
            return SandboxGone(f"The container's lifetime of {self.timeout:g} s is over.")
        ended = "" if code is None else f" (exit code {code})"
        return SandboxGone(f"The container has ended{ended}.")


def killed_here() -> SandboxGone:
    """The error of a call whose sandbox was ended by another call of this program."""
    return SandboxGone("The sandbox was killed while this ran.", hint="Create a new sandbox.")


def _parsed(body: bytes) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    for line in body.splitlines():
        try:
            event: Any = json.loads(line)
        except (ValueError, RecursionError):
            continue  # cut off
        if isinstance(event, dict):
            events.append(event)  # pyright: ignore[reportUnknownArgumentType]
    return events


def _action(event: dict[str, Any]) -> str:
    return str(event.get("Action", event.get("status", "")))


def _attributes(event: dict[str, Any]) -> dict[str, Any]:
    actor: Any = event.get("Actor")
    found: Any = actor.get("Attributes") if isinstance(actor, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return found if isinstance(found, dict) else {}  # pyright: ignore[reportUnknownVariableType]

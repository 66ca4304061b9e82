"""A container's beginning and end, such that nothing is left behind wherever it is broken off.

The engine creates a container some milliseconds *after* a cancelled request, when a DELETE by name has
already answered 404. So a cancelled create reads the same answer to its end and deletes by id. Only if no
answer of the engine's comes is DELETE by name repeated until it hits, or the teardown grace ends: a 404
proves nothing.

The attach connection is closed before any DELETE: with undelivered output and a dead process 1 the engine
hangs in kill, DELETE and inspect until its client reads or closes (moby issue 41827). 409 on DELETE means
that the removal is under way; it is done when DELETE answers 404. ``inspect`` is never part of an end.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, Final

import anyio

from sandboxio.adapter import bounded, teardown_grace, warn_orphan
from sandboxio.errors import ConnectError, SandboxError

from .answers import json_list
from .engine import Engine, EngineError, EngineUnavailable, Fault, Hijacked, Pending, misshapen, object_in

AGAIN: Final = 0.02
"""Seconds between two looks at a removal that somebody else has begun, or at a name that may appear."""

REMOVAL: Final = 30.0
"""Seconds that a removal may stay under way: an engine whose disk is stuck says so for ever."""

LOOKS: Final = 10
"""Tries of a list; see :func:`listed`."""

_UNDER_WAY: Final = frozenset({Fault.REMOVING, Fault.NOT_RUNNING})
"""Answers to DELETE that another one will follow. Podman 4.3 says "could not be stopped: ... container state
improper" where the container ends by itself between its two looks at it."""

_OF_A_GATEWAY: Final = frozenset({502, 504})
"""Answers of a proxy before an engine that has lost the answer, or waits no more: the engine may yet act."""


def new_name() -> str:
    """A container name, chosen here so that a container whose creation went unanswered can be found."""
    return f"sandboxio-{secrets.token_hex(8)}"


class Birth:
    """A container on its way: what may exist of it already, and how to undo that."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.name = new_name()
        self.id = ""
        self.warnings: tuple[str, ...] = ()
        """What the engine says of a container that it has made differently than it was asked to."""
        self.attached: Hijacked | None = None
        self._pending: Pending | None = None

    async def create(self, body: Mapping[str, Any]) -> str:
        """Create the container; its id."""
        self._pending = self.engine.resumable(
            "POST", "/containers/create", params={"name": self.name}, json=body
        )
        await self._answer(self._pending)
        return self.id

    async def attach(self) -> Hijacked:
        """Attach to process 1 before it exists, so that no byte of it is lost."""
        params = {"stream": True, "stdin": True, "stdout": True, "stderr": True}
        self.attached = await self.engine.upgrade("POST", f"/containers/{self.id}/attach", params=params)
        return self.attached

    async def start(self) -> None:
        """Start it. From here on it ends when the attach connection does."""
        await self.engine.request("POST", f"/containers/{self.id}/start")

    async def undone(self, labels: Mapping[str, str], backend: str) -> None:
        """Remove whatever there is, shielded and bounded; warn if that was not possible.

        Raises nothing but what ``asyncio.Task.cancel`` threw in meanwhile, once all is done.
        """
        why: str | None = f"it was not removed within {teardown_grace():g} s"
        put_off: list[BaseException] = []
        try:
            if await bounded(self._undo, put_off=put_off):
                why = None
        except SandboxError as error:
            why = error.message
        finally:
            self.close()
        if why is not None:
            warn_orphan(f"Container {self.id or self.name}", backend=backend, labels=labels, why=why)
        if put_off:
            raise put_off[0]

    def close(self) -> None:
        """Close the connection of the create request."""
        if self._pending is not None:
            self._pending.close()

    async def _undo(self) -> None:
        if self.attached is not None:
            self.attached.close()
        if not self.id and self._pending is not None:
            if not self._pending.sent:
                return
            try:
                with anyio.move_on_after(teardown_grace() / 2):
                    await self._answer(self._pending)
            except EngineError as error:
                if error.status not in _OF_A_GATEWAY:
                    return  # it was refused, so there is nothing
            except EngineUnavailable:
                pass
        if self.id:
            await remove(self.engine, self.id)
        elif self._pending is not None:
            await _remove_when_it_appears(self.engine, self.name)

    async def _answer(self, pending: Pending) -> None:
        response = await pending.finish()
        pending.close()
        answer = object_in(response, "/containers/create", need="Id")
        self.id = answer["Id"]
        warnings: Any = answer.get("Warnings") or []
        if json_list(warnings) is not warnings:  # what they say of caps must not be passed over
            raise misshapen("/containers/create")
        self.warnings = tuple(map(str, warnings))


async def remove(engine: Engine, container: str) -> bool:
    """End a container and return when it is gone; False if it was gone before.

    Close every attach connection to it first. Raises :class:`ConnectError` if the engine refuses, or if a
    removal is under way for longer than ``REMOVAL``.
    """
    removed = False
    last = anyio.current_time() + REMOVAL
    while True:
        try:
            await engine.request("DELETE", f"/containers/{container}", params={"force": True, "v": True})
        except EngineError as error:
            if error.status == 404:
                return removed
            if error.fault not in _UNDER_WAY:
                raise ConnectError(
                    f"The engine did not remove container {container[:12]}: {error.reason}",
                    hint="Repair the engine, then remove what is left with `sandboxio reap --kill`.",
                ) from error
            if anyio.current_time() > last:
                raise ConnectError(
                    f"Container {container[:12]} was not removed within {REMOVAL:g} s: {error.reason}",
                    hint="Restart the engine, which ends a stuck removal; then `sandboxio reap --kill`.",
                ) from error
        else:
            return True
        removed = True  # under way, by AutoRemove or by somebody else
        await anyio.sleep(AGAIN)


async def listed(engine: Engine, filters: Mapping[str, list[str]]) -> list[dict[str, Any]]:
    """Containers in any state. Podman 4.3 refuses the whole list when one of it ends meanwhile."""
    tries = LOOKS
    while True:
        try:
            params = {"all": True, "filters": filters}
            return await engine.get_list("/containers/json", params=params, need="Id")
        except EngineError as error:
            tries -= 1
            if not tries or error.status != 500 or "no such" not in error.reason:
                raise
        await anyio.sleep(AGAIN)


async def _remove_when_it_appears(engine: Engine, name: str) -> None:
    while True:
        try:
            if await remove(engine, name):
                return
        except EngineUnavailable:
            pass  # it may come back
        await anyio.sleep(AGAIN)

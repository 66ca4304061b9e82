"""A second handle on a container that runs: what may be joined, and how.

The creator's connection to process 1 cannot be shared. A second client starts a guest of its own through
an exec: the same program and protocol, only not process 1. Where the image has no Python, it uses execs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import anyio

from sandboxio.adapter import SandboxRequest
from sandboxio.errors import ConnectError, SandboxError

from . import launcher
from .answers import json_object
from .config import ChannelChoice
from .ending import Ending
from .engine import Engine, EngineError, Fault
from .exec_run import ExecHost
from .guest_link import GuestLink, unfit
from .guest_protocol import ConnectionLost, Hello, Notice
from .hostconfig import WORK
from .labels import is_managed, labels_of, metadata_in, timeout_in

ANSWER: Final = 30.0
"""Seconds in which a second guest must answer: 20 ms on an idle machine, never if code inside stops it."""


async def look_up(engine: Engine, sandbox_id: str) -> Mapping[str, Any]:
    """The description of a container that may be joined. Raises ``ConnectError`` for any other."""
    try:
        found = await engine.get_object(f"/containers/{sandbox_id}/json", need="Id")
    except EngineError as error:
        if error.status == 404:
            raise ConnectError(f"There is no sandbox {sandbox_id!r} on this engine.") from error
        raise
    if not is_managed(labels_of(json_object(found.get("Config")))):
        raise ConnectError(
            f"The container {sandbox_id!r} is not a sandbox of sandboxio.",
            hint="`sandboxio reap` lists the sandboxes that it made.",
        )
    state = json_object(found.get("State"))
    if state.get("Paused"):
        raise ConnectError(
            f"The sandbox {sandbox_id!r} is paused.",
            hint=f"Resume it first: docker unpause {sandbox_id[:12]}",
        )
    if not state.get("Running"):
        raise ConnectError(
            f"The sandbox {sandbox_id!r} has ended ({state.get('Status', 'not running')}).",
            hint="Create a new sandbox.",
        )
    return found


def request_of(found: Mapping[str, Any]) -> SandboxRequest:
    """What the labels tell of the request behind a container."""
    config = json_object(found.get("Config"))
    labels = labels_of(config)
    return SandboxRequest(
        timeout=timeout_in(labels), template=str(config.get("Image")), metadata=metadata_in(labels)
    )


async def second_guest(
    engine: Engine, container: str, ending: Ending, channel: ChannelChoice
) -> tuple[GuestLink | None, str]:
    """A guest of one's own in the container, or None and why there is none."""
    if channel == "exec":
        return None, "chosen"
    host = ExecHost(engine, container, ending)
    told = launcher.arguments(0, lifeline=True, work=WORK, localhost=False)
    why = "no Python"
    for argv in (launcher.with_shell(told), launcher.with_python(told)):
        exec_id = await host.create(argv, {}, stdin=True, folder="/")
        link = GuestLink(await host.begin(exec_id), ending)
        greeting: Hello | Notice | None = None
        try:
            with anyio.move_on_after(ANSWER):
                await link.send_program()
                greeting = await link.greeting({})
            if greeting is None:
                raise ConnectError(
                    f"What was started in the sandbox {container[:12]} did not answer in {ANSWER:g} s.",
                    hint="Code inside may stop every new process; `sandboxio reap --kill` ends the sandbox.",
                )
        except ConnectionLost as error:
            why = link.last_words or str(error)
        finally:
            if greeting is None or unfit(greeting):
                link.close()
        if greeting is not None:
            why = unfit(greeting)
            if not why:
                return link, ""
            break
    if channel == "guest":
        raise ConnectError(
            f'No guest can be started in the sandbox, as channel="guest" asks: {why}.',
            hint='Use DockerBackend(channel="auto").',
        )
    return None, why


def refused(error: EngineError) -> SandboxError:
    """The error of ``connect()`` for a container that changed meanwhile."""
    if error.fault in (Fault.NOT_RUNNING, Fault.NO_SUCH_CONTAINER, Fault.REMOVING):
        return error.to(ConnectError, f"The sandbox has ended: {error.reason}")
    return error

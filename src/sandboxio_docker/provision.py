"""From a checked request to a running container whose process 1 has answered."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sandboxio.adapter import OUTPUT_LIMIT, SandboxRequest
from sandboxio.errors import ConfigurationError, CreationError, SandboxError
from sandboxio.models import IsolationTier

from . import launcher
from .answers import json_object
from .config import DEFAULT_IMAGE, ChannelChoice
from .credentials import registry_auth
from .ending import Ending
from .engine import Engine, EngineError, EngineUnavailable, Fault, Hijacked
from .guest_link import GuestLink, unfit
from .guest_protocol import ConnectionLost, Hello, Notice
from .hostconfig import WORK, container_config, memory_mb, refuse_what_was_discarded, warn_of_swap
from .isolation import Proof, promised
from .labels import refuse_labels_of_ours
from .lifecycle import Birth
from .prepare import is_root, prepare_for_user
from .pull import PullProgress, pull
from .reference import Reference, parse_reference

BACKEND: Final = "docker"


@dataclass(frozen=True)
class Settings:
    """What one backend object was made with; see :class:`sandboxio_docker.DockerBackend`."""

    image: str = DEFAULT_IMAGE
    interpreter: str | None = None
    channel: ChannelChoice = "auto"
    runtime: str | None = None
    output_limit: int = OUTPUT_LIMIT
    progress: Callable[[PullProgress], object] | None = None
    lifeline: bool = True


@dataclass(frozen=True)
class Alive:
    """A container that runs and whose process 1 has spoken."""

    id: str
    link: GuestLink
    greeting: Hello | Notice
    ending: Ending


@dataclass(frozen=True)
class _Plan:
    """One container that is to be: ``body`` of ContainerCreate, and what has to be proven, if anything."""

    body: Mapping[str, Any]
    request: SandboxRequest
    settings: Settings
    image: Mapping[str, Any]
    proof: Proof | None


class _LacksProgram(Exception):
    """The container's first program is not in the image; nothing of the container is left."""


async def bring_up(engine: Engine, request: SandboxRequest, settings: Settings) -> Alive:
    """A running container. Cancelled or failed, it leaves nothing, bounded by the teardown grace."""
    reference = parse_reference(request.template or settings.image)
    try:
        await _refuse_too_many_cpus(engine, request.resources.cpu)
        image = await _image(engine, reference, settings)
        refuse_labels_of_ours(str(reference), image)
        return await _first_that_starts(engine, request, settings, reference, image)
    except EngineError as error:
        raise _public(error, reference, request) from error
    except EngineUnavailable as error:
        raise error.to(CreationError) from error


async def _refuse_too_many_cpus(engine: Engine, asked: float | None) -> None:
    """As Docker refuses by itself; Podman takes any number, and a cap above the machine caps nothing."""
    if asked is None or not (await engine.negotiate()).podman:
        return
    has = (await engine.get_object("/info")).get("NCPU")
    if isinstance(has, int) and asked > has:
        raise CreationError(
            f"Resources(cpu={asked:g}) is more than the engine has: there are only {has} CPUs available.",
            hint="Ask for no more CPUs than the engine's machine has: Resources(cpu=...).",
        )


async def _image(engine: Engine, reference: Reference, settings: Settings) -> Mapping[str, Any]:
    """The image's description; pulled first if the engine has no such image."""
    path = f"/images/{reference}/json"
    try:
        return await engine.get_object(path)
    except EngineError as error:
        if error.status != 404:
            raise
        auth = await registry_auth(reference.domain)
        await pull(engine, reference, auth=auth, progress=settings.progress)
        return await engine.get_object(path)


async def _first_that_starts(
    engine: Engine,
    request: SandboxRequest,
    settings: Settings,
    reference: Reference,
    image: Mapping[str, Any],
) -> Alive:
    """With a shell as the first program, or, in an image without one, with Python."""
    denied = request.network.egress != "allow"
    told = launcher.arguments(request.timeout, lifeline=settings.lifeline, work=WORK, localhost=denied)
    ways = [launcher.with_shell(told), launcher.with_python(told)]
    for entrypoint in ways[:1] if settings.channel == "exec" else ways:
        body = container_config(
            request,
            image=str(reference),
            entrypoint=entrypoint,
            runtime=settings.runtime,
            lifeline=settings.lifeline,
        )
        proof: Proof | None = None
        if settings.runtime is not None and promised(settings.runtime) is IsolationTier.GVISOR:
            proof = Proof(settings.runtime, image)
            body = proof.over(body)
        try:
            return await _born(engine, _Plan(body, request, settings, image, proof))
        except _LacksProgram:
            continue
    need = "/bin/sh" if settings.channel == "exec" else "neither /bin/sh nor python3"
    lacks = f"has no {need}" if settings.channel == "exec" else f"has {need}"
    raise CreationError(
        f"The image {reference} {lacks}, so nothing can keep a sandbox alive in it.",
        hint="Use an image with a shell or with Python 3.8 or newer, such as python:3.12-slim.",
    )


async def _born(engine: Engine, plan: _Plan) -> Alive:
    """One container, or one of the errors and nothing left."""
    birth = Birth(engine)
    alive: Alive | None = None
    try:
        alive = await _bear(birth, plan)
        return alive
    finally:
        if alive is None:
            await birth.undone(plan.request.metadata, BACKEND)
        else:
            birth.close()


async def _bear(birth: Birth, plan: _Plan) -> Alive:
    request, body, proof = plan.request, plan.body, plan.proof
    await birth.create(body)
    refuse_what_was_discarded(birth.warnings)
    await _furnish(birth, plan)
    ending = Ending(birth.engine, birth.id, request.timeout, memory_mb(request.resources))
    stream = await _attached(birth)
    if proof is not None:
        await birth.start()
        ending.began = time.monotonic()
        if not await proof.demand(stream, ending):
            raise _LacksProgram
    link = GuestLink(stream, ending)
    try:
        await link.send_program()
        if proof is None:
            await birth.start()
            ending.began = time.monotonic()
        greeting = await link.greeting(request.variables)
    except EngineError as error:
        if error.fault is Fault.NO_SUCH_PROGRAM:
            raise _LacksProgram from error
        raise
    except ConnectionLost as error:
        raise await _stillborn(error, link, body) from error
    if plan.settings.channel == "guest" and (why := unfit(greeting)):
        raise CreationError(
            f'The image {body["Image"]} cannot run the guest that channel="guest" asks for: {why}.',
            hint='Use an image with a whole Python 3.8 or newer, or DockerBackend(channel="auto").',
        )
    warn_of_swap(birth.warnings)  # where warnings are errors, what is made is removed again
    return Alive(birth.id, link, greeting, ending)


async def _attached(birth: Birth) -> Hijacked:
    """Attach. Podman makes the process for it, and so tells here, not at the start, what the image lacks."""
    try:
        return await birth.attach()
    except EngineError as error:
        if error.fault is Fault.NO_SUCH_PROGRAM:
            raise _LacksProgram from error
        raise


async def _furnish(birth: Birth, plan: _Plan) -> None:
    """Put into the created container what has to be there before it starts."""
    user = str(json_object(plan.image.get("Config")).get("User") or "")
    if not is_root(user):
        denied = bool(plan.body["NetworkDisabled"])
        await prepare_for_user(birth.engine, birth.id, user, localhost=denied)
    if plan.proof is not None:
        await plan.proof.install(birth.engine, birth.id)


async def _stillborn(error: ConnectionLost, link: GuestLink, body: Mapping[str, Any]) -> SandboxError:
    """The error for a container that ended, or spoke nonsense, before it was ready."""
    how = (await link.ending.explained()).message
    if not isinstance(error.__cause__, EOFError):
        how = f"{how} What it said is not what was expected: {error}."
    words = f" Its last output: {link.last_words!r}." if link.last_words else ""
    return CreationError(
        f"The container of image {body['Image']} was not ready: {how}{words}",
        hint="Try the image with `docker run`; it needs a shell or Python, and enough memory.",
    )


def _public(error: EngineError, reference: Reference, request: SandboxRequest) -> SandboxError:
    """The error of ``create()`` for what the engine refused."""
    if error.fault is Fault.NO_SUCH_RUNTIME:
        return error.to(ConfigurationError)
    if error.fault is Fault.TOO_MANY_CPUS:
        asked = request.resources.cpu
        return error.to(
            CreationError, f"Resources(cpu={asked:g}) is more than the engine has: {error.reason}"
        )
    if error.fault in (Fault.NOT_EXECUTABLE, Fault.WRONG_PLATFORM):
        return error.to(CreationError, f"The image {reference} cannot run on this engine: {error.reason}")
    return error.to(CreationError)

"""The Docker backend: one container for each sandbox."""

from __future__ import annotations

import copy
import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any

from sandboxio.adapter import OUTPUT_LIMIT, BaseBackend, SandboxRequest
from sandboxio.audit import AuditConfig
from sandboxio.errors import ConfigurationError, ConnectError
from sandboxio.models import BackendConfig, Capability, Diagnosis, IsolationTier, ManagedSandbox, Progress

from .answers import json_list
from .channel import Channel
from .channel_exec import ExecChannel
from .channel_guest import GuestChannel
from .config import DEFAULT_IMAGE, ChannelChoice, DockerConfig
from .diagnose import diagnose
from .ending import Ending
from .endpoint import Endpoint
from .engine import Engine, EngineError
from .exec_run import ExecHost
from .guest_link import GuestLink, unfit
from .guest_protocol import Hello
from .hostconfig import memory_cap, refuse_what_docker_cannot
from .isolation import promised, proven
from .join import look_up, refused, request_of, second_guest
from .labels import MANAGED, is_managed, labels_of, managed_of
from .lifecycle import listed, remove
from .native import DockerContainer
from .provision import Settings, bring_up
from .pull import PullProgress
from .reference import parse_reference
from .sandbox import DockerSandbox

CAPABILITIES = (
    Capability.RUN_COMMAND
    | Capability.RUN_CODE
    | Capability.STREAMING
    | Capability.FILESYSTEM
    | Capability.UPLOAD_DOWNLOAD
    | Capability.NETWORK_POLICY
)


class DockerBackend(BaseBackend):
    """Sandboxes as containers of a Docker Engine, or of Podman's Docker-compatible service.

    Args:
        image: The image of a sandbox whose creator names none.
        interpreter: The program that runs code; by default ``python3`` or ``python``, whichever the
            image has.
        channel: How commands reach the container. ``"guest"``: a program of sandboxio's own is process
            1 and serves everything over one connection; it needs Python 3.8 in the image. ``"exec"``:
            one ``docker exec`` for each command; it needs ``/bin/sh``. ``"auto"``: the guest if the image
            has Python, else exec. The sandbox's repr says which and why.
        runtime: An OCI runtime that the engine knows; None is its default. A name with the word ``runsc``
            or ``gvisor`` promises the tier ``GVISOR``, and ``create`` proves it or refuses.
        host: The engine's address (``unix:///path`` or ``tcp://host:port``); None looks where the
            ``docker`` command looks.
        audit: Where records of operations go.
        output_limit: Bytes kept of each stream of ``run`` and ``run_code``.
        progress: Called for each status line while an image is pulled.

    With ``SBX_DOCKER_REAPER=0`` in the environment a container outlives a creator that crashed, until
    its lifetime ends, and is then left stopped for ``sandboxio reap``.

    >>> DockerBackend(image="python:3.13-slim", channel="exec", host="unix:///run/podman/podman.sock")
    <DockerBackend docker container>
    """

    name = "docker"
    isolation = IsolationTier.CONTAINER
    capabilities = CAPABILITIES

    def __init__(
        self,
        *,
        image: str = DEFAULT_IMAGE,
        interpreter: str | None = None,
        channel: ChannelChoice = "auto",
        runtime: str | None = None,
        host: Endpoint | str | None = None,
        audit: AuditConfig | None = None,
        output_limit: int = OUTPUT_LIMIT,
        progress: Callable[[PullProgress], object] | None = None,
    ) -> None:
        super().__init__(audit=audit)
        if channel not in ("auto", "guest", "exec"):
            raise ConfigurationError(f'channel must be "auto", "guest" or "exec", got {channel!r}.')
        if isinstance(output_limit, bool) or not isinstance(output_limit, int) or output_limit < 0:
            raise ConfigurationError(f"output_limit must be a number of bytes, got {output_limit!r}.")
        parse_reference(image)
        self.isolation = promised(runtime)
        self._engine = Engine(host)
        self._settings = Settings(
            image=image,
            interpreter=interpreter,
            channel=channel,
            runtime=runtime,
            output_limit=output_limit,
            progress=progress,
        )

    def configured(self, config: BackendConfig) -> DockerBackend:
        """This backend with the runtime that ``config`` names, and the tier that the name promises."""
        if not isinstance(config, DockerConfig):
            raise ConfigurationError(f"The Docker backend takes a DockerConfig, got {type(config).__name__}.")
        if config.runtime is None:
            return self
        other = copy.copy(self)
        other._settings = dataclasses.replace(self._settings, runtime=config.runtime)  # noqa: SLF001 - a copy of this
        other.isolation = promised(config.runtime)
        return other

    def reporting(self, report: Callable[[Progress], object]) -> DockerBackend:
        """This backend, telling ``report`` how far the pull of an image is."""

        def progress(seen: PullProgress) -> None:
            report(Progress(seen.status, seen.layer, seen.current, seen.total))

        other = copy.copy(self)
        other._settings = dataclasses.replace(self._settings, progress=progress)  # noqa: SLF001 - a copy of this
        return other

    async def diagnose(self) -> Diagnosis:
        """What the engine says of itself; creates nothing."""
        settings = self._settings
        found = await diagnose(
            self._engine, image=settings.image, channel=settings.channel, runtime=settings.runtime
        )
        return dataclasses.replace(found, isolation=self.isolation)

    async def list_managed(self, *, labels: Mapping[str, str] | None = None) -> list[ManagedSandbox]:
        """Every container under sandboxio's label, stopped ones too; ``labels`` narrows by metadata.

        Raises ``ConnectError`` if the engine does not answer.
        """
        found = [managed_of(entry, self.name) for entry in await self._list(label=f"{MANAGED}=true")]
        wanted = (labels or {}).items()
        return [each for each in found if wanted <= each.labels.items()]

    async def kill_managed(self, sandbox_id: str) -> bool:
        """Remove a sandbox; False if it was gone already.

        Raises ``ConnectError`` if the engine refuses, or if the container is not sandboxio's.
        """
        entry = await self._find(sandbox_id)
        return False if entry is None else await remove(self._engine, str(entry["Id"]))

    def _check(self, request: SandboxRequest) -> None:
        refuse_what_docker_cannot(request)
        if request.template is not None:
            parse_reference(request.template)

    async def _provision(self, request: SandboxRequest) -> DockerSandbox:
        lifeline = os.environ.get("SBX_DOCKER_REAPER", "") != "0"
        settings = dataclasses.replace(self._settings, lifeline=lifeline)
        alive = await bring_up(self._engine, request, settings)
        told, link = alive.greeting, alive.link
        why = unfit(told)
        if not why and settings.channel != "exec":
            return self._sandbox(
                alive.id, request, alive.ending, link, "", keeper=None, python=True, isolation=self.isolation
            )
        python = isinstance(told, Hello)
        return self._sandbox(
            alive.id,
            request,
            alive.ending,
            None,
            why or "chosen",
            keeper=link,
            python=python,
            isolation=self.isolation,
        )

    async def _attach(self, sandbox_id: str) -> DockerSandbox:
        found = await look_up(self._engine, sandbox_id)
        container, request = str(found["Id"]), request_of(found)
        ending = Ending(self._engine, container, request.timeout, memory_cap(found))
        try:
            link, why = await second_guest(self._engine, container, ending, self._settings.channel)
        except EngineError as error:
            raise refused(error) from error
        tier = proven(found)
        return self._sandbox(container, request, ending, link, why, keeper=None, python=True, isolation=tier)

    def _sandbox(
        self,
        container: str,
        request: SandboxRequest,
        ending: Ending,
        link: GuestLink | None,
        why: str,
        *,
        keeper: GuestLink | None,
        python: bool,
        isolation: IsolationTier,
    ) -> DockerSandbox:
        """The handle. ``link`` is a guest to work through; None means exec, and ``why``."""
        made: list[DockerSandbox] = []
        interpreter = self._settings.interpreter
        channel: Channel
        if link is not None and link.hello is not None:
            channel = GuestChannel(link, lambda: made[0], interpreter=interpreter, memory_mb=ending.memory_mb)
            about = f"guest(python {'.'.join(map(str, link.hello.python))})"
        else:
            host = ExecHost(self._engine, container, ending, request.variables)
            channel = ExecChannel(host, lambda: made[0], interpreter=interpreter, link=keeper)
            about = f"exec({why})"
        sandbox = DockerSandbox(
            container=DockerContainer(container, self._engine),
            channel=channel,
            about=about,
            capabilities=CAPABILITIES if python or interpreter else CAPABILITIES & ~Capability.RUN_CODE,
            isolation=isolation,
            request=request,
            recorder=self._recorder,
            output_limit=self._settings.output_limit,
        )
        made.append(sandbox)
        return sandbox

    async def _list(self, **filters: str) -> list[dict[str, Any]]:
        return await listed(self._engine, {name: [value] for name, value in filters.items()})

    async def _find(self, sandbox_id: str) -> Mapping[str, Any] | None:
        """The container of this id, a prefix of twelve characters or its name; None if there is none."""
        for entry in await self._list():
            names = [str(name).removeprefix("/") for name in json_list(entry.get("Names"))]
            whole = str(entry["Id"])
            if sandbox_id not in (whole, whole[:12], *names):
                continue
            if not is_managed(labels_of(entry)):
                raise ConnectError(
                    f"The container {sandbox_id!r} is not a sandbox of sandboxio.",
                    hint="`sandboxio reap` lists the sandboxes that it made.",
                )
            return entry
        return None

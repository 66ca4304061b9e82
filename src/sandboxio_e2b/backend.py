"""The E2B backend: one Firecracker microVM for each sandbox."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import anyio

from sandboxio.adapter import (
    OUTPUT_LIMIT,
    BaseBackend,
    Recorder,
    SandboxRequest,
    bounded,
    teardown_grace,
    warn_orphan,
)
from sandboxio.audit import AuditConfig
from sandboxio.errors import ConfigurationError, ConnectError, SandboxError
from sandboxio.models import (
    DEFAULT_TIMEOUT,
    BackendConfig,
    Diagnosis,
    IsolationTier,
    ManagedSandbox,
    Resources,
)

from .control import ControlPlane, Creation, Order, Placed, is_name
from .diagnose import diagnose
from .endpoints import KEY_VARIABLE, Settings, on_this_machine, read_settings
from .sandbox import CAPABILITIES, E2BSandbox
from .wire import is_plain

DEFAULT_TEMPLATE: Final = "code-interpreter-v1"
RESERVED: Final = "sandboxio_"
MANAGED: Final = "sandboxio_managed"
SESSION: Final = "sandboxio_session"
CREATION: Final = "sandboxio_creation"
"""Tells one create call from all others, so that a sandbox whose answer was lost can be found."""
LIFETIME: Final = "sandboxio_timeout"
"""The seconds that calls inherit, for a handle made by connect()."""
AGAIN: Final = 0.5
"""Seconds between two looks for a sandbox whose creation went unanswered."""


@dataclass(frozen=True, kw_only=True)
class E2BConfig(BackendConfig):
    """A typed target for ``sandboxio.create()`` on E2B. ``template`` is a template's name or id.

    >>> E2BConfig(template="my-team-template").backend
    'e2b'
    """

    backend: str = "e2b"


class E2BBackend(BaseBackend):
    """Sandboxes at E2B, or at a deployment of its open source.

    ``E2B_API_KEY`` is read when a sandbox is created, connected to or listed; ``E2B_DOMAIN``,
    ``E2B_API_URL``, ``E2B_SANDBOX_URL`` and ``E2B_DEBUG`` are E2B's own variables for another
    deployment. The backend holds no connection, so it needs no closing.

    Args:
        audit: Where records of operations go.
        output_limit: Bytes kept of each stream of ``run`` and ``run_code``.

    >>> E2BBackend(output_limit=1_000_000)
    <E2BBackend e2b microvm>
    """

    name = "e2b"
    isolation = IsolationTier.MICROVM  # Firecracker: https://e2b.dev/security, August 2026
    capabilities = CAPABILITIES

    def __init__(self, *, audit: AuditConfig | None = None, output_limit: int = OUTPUT_LIMIT) -> None:
        super().__init__(audit=audit)
        self._recorder = Recorder(self.name, audit, credentials=_keys, loggers=("httpx", "e2b"))
        self._output_limit = output_limit
        if on_this_machine():
            self.isolation = IsolationTier.UNKNOWN  # on localhost there may be anything

    def configured(self, config: BackendConfig) -> E2BBackend:
        """This backend: an ``E2BConfig`` has no field beyond ``BackendConfig``'s."""
        if not isinstance(config, E2BConfig):
            raise ConfigurationError(f"The E2B backend takes an E2BConfig, got {type(config).__name__}.")
        return self

    async def diagnose(self) -> Diagnosis:
        """Whether the environment is complete. Asks E2B nothing."""
        return replace(diagnose(), isolation=self.isolation)

    async def list_managed(self, *, labels: Mapping[str, str] | None = None) -> list[ManagedSandbox]:
        """Every running or paused sandbox that sandboxio made; ``labels`` narrows by metadata."""
        wanted = dict(labels or {})
        if not all(map(is_plain, (*wanted, *wanted.values()))):
            raise ConfigurationError(f"labels hold a lone surrogate, so they are not UTF-8: {wanted!r}.")
        control = ControlPlane(read_settings())
        found = await control.find_all({MANAGED: "true", **wanted})
        return [_managed(each) for each in found]

    async def kill_managed(self, sandbox_id: str) -> bool:
        """End a sandbox; False if it was gone already. Raises ``ConnectError``, also for a foreign one."""
        control = ControlPlane(read_settings())
        _check_id(sandbox_id)
        found = await control.find(sandbox_id)
        if found is None:
            return False
        _refuse_foreign(found)
        return await control.kill(sandbox_id)

    def _check(self, request: SandboxRequest) -> None:
        if replace(request.resources, gpu=None) != Resources():
            raise ConfigurationError(
                "CPU, memory and disk of an E2B sandbox come from its template, so Resources(...) cannot be "
                f"applied: {request.resources!r}.",
                hint="Build a template with these resources and name it: create('e2b://my-template').",
            )
        if request.template is not None and not is_plain(request.template):
            raise ConfigurationError(
                f"The template {request.template!r} holds a lone surrogate, so it is not UTF-8.",
                hint="Name a template as `e2b template list` shows it.",
            )
        for key in request.metadata:
            if key.startswith(RESERVED):
                raise ConfigurationError(
                    f"The metadata key {key!r} is reserved.",
                    hint=f"Use a key that does not begin with {RESERVED!r}.",
                )

    async def _provision(self, request: SandboxRequest) -> E2BSandbox:
        settings = read_settings()
        control = ControlPlane(settings)
        creation = control.creation(_order(request))
        try:
            sandbox = await creation.finish()
        except BaseException:  # cancelled or failed, nothing may be left; always re-raised
            if creation.may_exist:
                await self._undo(control, creation, request)
            raise
        finally:
            creation.close()
        return self._sandbox(settings, control, sandbox, request)

    async def _attach(self, sandbox_id: str) -> E2BSandbox:
        settings = read_settings()
        control = ControlPlane(settings)
        _check_id(sandbox_id)
        found = await control.find(sandbox_id)
        if found is None:
            raise ConnectError(f"E2B has no sandbox {sandbox_id}.")
        _refuse_foreign(found)
        if found.state != "running":
            raise ConnectError(
                f"Sandbox {sandbox_id} is {found.state}, not running.",
                hint="Resume it with E2B's own client: AsyncSandbox.connect(sandbox_id).",
            )
        # This call gives the tokens; its timeout of a second cannot shorten the lifetime.
        sandbox = await control.connect(sandbox_id)
        request = SandboxRequest(timeout=_lifetime(found.metadata), metadata=_labels(found.metadata))
        return self._sandbox(settings, control, sandbox, request)

    async def _undo(self, control: ControlPlane, creation: Creation, request: SandboxRequest) -> None:
        """Remove what a broken-off creation may have made, shielded and bounded; warn if that failed.

        Raises nothing but what ``asyncio.Task.cancel`` threw in meanwhile, once all is done.
        """
        why: str | None = f"it was not found and removed within {teardown_grace():g} s"
        put_off: list[BaseException] = []
        try:
            if await bounded(lambda: _remove_created(control, creation), put_off=put_off):
                why = None
        except SandboxError as error:
            why = error.message
        if why is not None:
            labels = {**request.metadata, CREATION: creation.order.metadata[CREATION]}
            warn_orphan("A sandbox whose creation was broken off", backend=self.name, labels=labels, why=why)
        if put_off:
            raise put_off[0]

    def _sandbox(
        self, settings: Settings, control: ControlPlane, sandbox: Placed, request: SandboxRequest
    ) -> E2BSandbox:
        return E2BSandbox(
            sandbox=sandbox,
            settings=settings,
            control=control,
            isolation=IsolationTier.UNKNOWN if settings.local else self.isolation,
            request=request,
            recorder=self._recorder,
            output_limit=self._output_limit,
        )


def _keys() -> Iterable[str]:
    key = os.environ.get(KEY_VARIABLE, "").strip()
    return (key,) if key else ()


def _order(request: SandboxRequest) -> Order:
    labels = {
        MANAGED: "true",
        SESSION: str(os.getpid()),
        CREATION: uuid.uuid4().hex,
        LIFETIME: f"{request.timeout:g}",
    }
    return Order(
        template=request.template or DEFAULT_TEMPLATE,
        seconds=request.timeout,
        metadata={**request.metadata, **labels},
        internet=request.network.egress == "allow",
        allowed=request.network.allow,
    )


async def _remove_created(control: ControlPlane, creation: Creation) -> None:
    """Find the sandbox of a broken-off creation and kill it. Returns when there is none."""
    try:
        with anyio.move_on_after(teardown_grace() / 2):
            sandbox = await creation.finish()
            await control.kill(sandbox.id)
            return
    except SandboxError:
        if creation.refused:
            return  # an answer, and it was no
    for _ in range(3):
        found = await control.find_all({CREATION: creation.order.metadata[CREATION]})
        for each in found:
            await control.kill(each.id)
        if found:
            return
        await anyio.sleep(AGAIN)


def _check_id(sandbox_id: str) -> None:
    if not is_name(sandbox_id):
        raise ConnectError(
            f"{sandbox_id!r} is not an id of E2B's.", hint="`sandboxio reap --backend e2b` lists them."
        )


def _labels(metadata: Mapping[str, str]) -> dict[str, str]:
    """The creator's own metadata."""
    return {key: value for key, value in metadata.items() if not key.startswith(RESERVED)}


def _lifetime(metadata: Mapping[str, str]) -> float:
    try:
        seconds = float(metadata[LIFETIME])
    except (KeyError, ValueError):
        return DEFAULT_TIMEOUT
    return seconds if 0 < seconds < float("inf") else DEFAULT_TIMEOUT


def _managed(sandbox: Placed) -> ManagedSandbox:
    return ManagedSandbox(
        sandbox_id=sandbox.id,
        backend="e2b",
        state="paused" if sandbox.state == "paused" else "running",
        created_at=sandbox.started,
        labels=_labels(sandbox.metadata),
    )


def _refuse_foreign(sandbox: Placed) -> None:
    if sandbox.metadata.get(MANAGED) != "true":
        raise ConnectError(
            f"Sandbox {sandbox.id} was not made by sandboxio.", hint="Use E2B's own client for it."
        )

"""A backend, whatever the provider: ``create()`` and ``connect()`` around an adapter's primitives."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import wraps
from typing import Any, ClassVar, cast

import anyio

from ._record import Recorder, Subject
from ._redact import MIN_SECRET, Redactor, current, too_short
from ._request import SandboxRequest, check_request
from ._sandbox import BaseSandbox, capability_error
from ._scrub import guarded
from ._teardown import teardown_grace
from .audit import AuditConfig, AuditPolicy
from .errors import CapabilityNotSupported, ConnectError, CreateTimeout, SandboxWarning
from .models import Capability, IsolationTier, NetworkPolicy, Resources


class BaseBackend(ABC):
    """A backend, complete but for ``_check``, ``_provision`` and ``_attach``.

    ``loggers`` names those of the libraries that the adapter uses, such as ``"httpx"``: what they log
    during an operation is redacted. A logger's children need names of their own.
    """

    name: str
    loggers: ClassVar[tuple[str, ...]] = ()
    isolation: IsolationTier = IsolationTier.UNKNOWN
    capabilities: Capability = Capability(0)

    def __init_subclass__(cls) -> None:
        """What an adapter writes itself and calls without a record tells no credential either."""
        super().__init_subclass__()
        for name in ("list_managed", "kill_managed"):
            if name in vars(cls):
                setattr(cls, name, cls._redacted(vars(cls)[name]))

    def __init__(self, *, audit: AuditConfig | None = None) -> None:
        self._recorder = Recorder(self.name, audit, credentials=self._credentials, loggers=self.loggers)

    def _check(self, request: SandboxRequest) -> None:  # noqa: B027 - a backend may honour everything
        """Refuse, before any I/O, what this backend cannot honour; never ignore it."""

    def _credentials(self) -> Iterable[str]:
        """The provider's keys and tokens that this backend uses; redacted like ``secrets=``.

        Asked for each sandbox that is created or connected to, and read from the environment then.
        """
        return ()

    @abstractmethod
    async def _provision(self, request: SandboxRequest) -> BaseSandbox:
        """A usable sandbox with policy and caps applied before any user code can run.

        Cancel-safe at every await: cancelled or failed, it leaves nothing behind (bounded by the grace).
        """

    @abstractmethod
    async def _attach(self, sandbox_id: str) -> BaseSandbox:
        """A handle on a running, managed sandbox; ``ConnectError`` for any other. Creates nothing."""

    @staticmethod
    def _redacted(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """``method`` of a backend, with the provider's credentials out of its errors, warnings and logs."""

        @wraps(method)
        async def _method(self: BaseBackend, *args: Any, **options: Any) -> Any:
            redactor = Redactor(self._recorder.credentials())
            outside = current.set(redactor)
            try:
                with guarded(redactor):
                    return await method(self, *args, **options)
            finally:
                current.reset(outside)

        return _method

    async def create(
        self,
        *,
        template: str | None = None,
        resources: Resources = Resources(),
        network: NetworkPolicy = NetworkPolicy(),
        env: dict[str, str] | None = None,
        secrets: dict[str, str] | None = None,
        timeout: float = 300,
        metadata: dict[str, str] | None = None,
    ) -> BaseSandbox:
        """A new sandbox. Raises ``CreateTimeout`` after ``timeout`` seconds; cancelled, it leaves nothing."""
        with guarded(_claimed(secrets, env)):
            request = check_request(
                template=template,
                resources=resources,
                network=network,
                env=env,
                secrets=secrets,
                timeout=timeout,
                metadata=metadata,
            )
        _warn_of_short(request.secrets)
        redactor = request.redactor.also(self._recorder.credentials())
        with guarded(redactor):
            self._recorder.check()
            teardown_grace()  # what it refuses now could not be ended later
            self._check_policy(request)
            self._check(request)
        subject = Subject("", self.isolation, request.metadata, redactor)
        policy = AuditPolicy(request.template, request.network, request.resources, request.timeout)
        sandbox: BaseSandbox | None = None
        try:
            async with self._recorder.operation("create", subject, policy=policy) as record:
                with anyio.move_on_after(request.timeout):
                    sandbox = await self._provision(request)
                if sandbox is None:  # the scope above swallowed its own cancellation
                    raise _create_timeout(request)
                record.subject = sandbox.subject()
        except BaseException as error:  # nothing may be left, whatever happened; always re-raised
            if sandbox is not None:
                await sandbox.kill_because_of(error)
            raise
        return sandbox

    async def connect(self, sandbox_id: str) -> BaseSandbox:
        """A handle on a sandbox that already runs. Raises ``ConnectError`` if there is none."""
        if not isinstance(sandbox_id, str) or not sandbox_id.strip() or "\0" in sandbox_id:
            raise ConnectError(f"{sandbox_id!r} is not a sandbox id.")
        teardown_grace()  # as for create()
        subject = Subject(sandbox_id, self.isolation, redactor=Redactor(self._recorder.credentials()))
        sandbox: BaseSandbox | None = None
        try:
            async with self._recorder.operation("connect", subject) as record:
                sandbox = await self._attach(sandbox_id)
                record.subject = sandbox.subject()
        except BaseException:  # the sandbox lives on, but nobody gets this handle; always re-raised
            if sandbox is not None:
                sandbox.mark_gone("this handle was never handed out")
            raise
        return sandbox

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {self.isolation.value}>"

    def _check_policy(self, request: SandboxRequest) -> None:
        if Capability.NETWORK_POLICY not in self.capabilities:
            raise capability_error(self.name, Capability.NETWORK_POLICY, "create(): deny-by-default egress")
        if request.network.egress == "learn":
            raise CapabilityNotSupported(
                'NetworkPolicy(egress="learn") is reserved for a later release.',
                hint='Use egress="deny", or list hosts in allow=(...) on a backend that can.',
            )
        if request.network.ingress_ports and Capability.TUNNELS not in self.capabilities:
            raise capability_error(self.name, Capability.TUNNELS, "NetworkPolicy(ingress_ports=...)")
        if request.resources.gpu is not None and Capability.GPU not in self.capabilities:
            raise capability_error(self.name, Capability.GPU, "Resources(gpu=...)")


def _claimed(*mappings: object) -> Redactor:
    """Whatever may be a secret in arguments that are not checked yet."""
    checked = [cast("Mapping[object, object]", each) for each in mappings if isinstance(each, Mapping)]
    return Redactor(value for each in checked for value in each.values() if isinstance(value, str))


def _warn_of_short(secrets: Mapping[str, str]) -> None:
    short = sorted(name for name, value in secrets.items() if too_short(value))
    if short:
        warnings.warn(
            f"Too short to be redacted: the value of {', '.join(short)} has fewer than {MIN_SECRET} "
            "characters and would blot out ordinary text.",
            SandboxWarning,
            stacklevel=4,
        )


def _create_timeout(request: SandboxRequest) -> CreateTimeout:
    return CreateTimeout(f"No usable sandbox came up within {request.timeout:g} s.")

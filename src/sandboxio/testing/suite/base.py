"""What the tests of the contract share: probes, selection by capability, and waiting with a deadline.

Rules of this package:

1. A test opens its own sandbox and leaves nothing. Its last act is never a sleep: it waits for what it
   expects, and says what it saw instead when the time is over.
2. Nothing assumes virtual time, and no bound is tight: backends are slow and machines are busy.
3. What a backend does not declare is skipped, by name, and has its negative test instead.
4. What only the backend's author can bring about is a *probe*. A missing probe skips; it never passes.
"""

from __future__ import annotations

import inspect
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from typing import Any, ClassVar, NoReturn, TypeVar, cast

import anyio
import pytest
from anyio.abc import TaskGroup

from sandboxio.errors import SandboxError
from sandboxio.models import Capability, ManagedSandbox, NetworkPolicy, Resources
from sandboxio.protocols import AsyncSandbox, Backend, ReapableBackend
from sandboxio.testing.recording import RecordingSink

from .canary import Canary, serve

T = TypeVar("T")
Function = TypeVar("Function", bound=Callable[..., Any])

LABEL = "sbx_suite"
"""Metadata key by which a test finds its own sandboxes again."""
MARK = "SBX_SUITE_MARK"
"""Environment variable by which a test finds the processes of one run, descendants included."""
LIFETIME = 600.0
"""Seconds that a sandbox of the suite lives if its test does not end it."""


def needs(*capabilities: Capability) -> Callable[[Function], Function]:
    """Select a test for backends that declare all of these."""

    def mark(function: Function) -> Function:
        function.__sbx_needs__ = capabilities  # type: ignore[attr-defined]
        return function

    return mark


def lacks(capability: Capability) -> Callable[[Function], Function]:
    """Select a negative test for backends that do not declare this."""

    def mark(function: Function) -> Function:
        function.__sbx_lacks__ = capability  # type: ignore[attr-defined]
        return function

    return mark


class Contract:
    """What an adapter's author gives: the backend, and as many probes as there are.

    ``backend`` is an object, or a pytest fixture of the class that makes one. Everything else has a
    default for a POSIX image.
    """

    pytestmark: ClassVar[pytest.MarkDecorator] = pytest.mark.anyio

    backend: ClassVar[Any]
    deviations: ClassVar[dict[str, str]] = {}
    """Name of a test to the reason why this backend differs: a strict expected failure."""

    # What the backend is like, beyond its capabilities.

    template: ClassVar[str | None] = None
    """Template or image for every sandbox of the suite."""
    audit_sink: ClassVar[RecordingSink | None] = None
    """The sink in the backend's ``AuditConfig``."""
    resource_caps_supported: ClassVar[bool] = True
    """False where caps belong to the template: then ``Resources(...)`` is refused."""
    allowlists_supported: ClassVar[bool] = False
    """True if ``NetworkPolicy(allow=...)`` is a real control here; otherwise it is refused."""
    rich_outputs: ClassVar[bool] = False
    """True if ``run_code`` returns display outputs; otherwise ``results`` is None."""
    output_limit: ClassVar[int] = 8 << 20
    """Bytes kept of each stream of ``run``."""
    canary_host: ClassVar[str | None] = None
    """Address of this machine that a sandbox with egress allowed can reach."""
    gpu: ClassVar[str | None] = None
    """A device type for ``Resources(gpu=...)``, where GPU is declared."""

    patience: ClassVar[float] = 20.0
    """Seconds that anything may take which should be immediate."""

    # Commands, as argument lists; those that end in "+" below get more arguments appended.

    cmd_echo: ClassVar[list[str]] = ["echo"]  # +
    cmd_exit: ClassVar[list[str]] = ["sh", "-c", 'exit "$0"']  # + the code
    cmd_printenv: ClassVar[list[str]] = ["printenv"]  # + a name
    cmd_cat: ClassVar[list[str]] = ["cat"]  # + a path
    cmd_count: ClassVar[list[str]] = ["seq"]  # + the last number, one line each from 1
    cmd_fetch: ClassVar[list[str]] = ["curl", "-sS", "-m", "10"]  # + a URL; exit code 0 if it answered
    cmd_both: ClassVar[list[str]] = ["sh", "-c", "echo out; echo err >&2"]
    cmd_hang: ClassVar[list[str]] = ["sh", "-c", "echo ready; sleep 3600; sleep 3600"]
    cmd_deaf: ClassVar[list[str]] = [
        "sh",
        "-c",
        "trap '' TERM INT HUP; echo ready; sleep 3600; sleep 3600",
    ]
    cmd_partial: ClassVar[list[str]] = ["sh", "-c", "echo one; echo two >&2; sleep 3600; sleep 3600"]
    cmd_slow: ClassVar[list[str]] = ["sh", "-c", "echo a; sleep 3; echo b"]
    cmd_background: ClassVar[list[str]] = ["sh", "-c", "sleep 3600 & echo started"]
    cmd_split_utf8: ClassVar[list[str]] = [
        "sh",
        "-c",
        r"printf '\303'; sleep 0.2; printf '\251\360\237'; sleep 0.2; printf '\231\202\n'",
    ]
    cmd_bad_utf8: ClassVar[list[str]] = ["sh", "-c", r"printf 'a\377b\303\n'"]
    cmd_exhaust_memory: ClassVar[list[str] | None] = None
    """Uses more than 128 MiB until it is stopped."""

    # Code.

    code_syntax_error: ClassVar[str] = "print('"
    code_error: ClassVar[str] = "raise ValueError('broken on purpose')"
    code_both: ClassVar[str] = "import sys\nprint('out')\nprint('err', file=sys.stderr)"
    code_rich: ClassVar[str] = "6 * 7"
    """Its value is a display output where there are any."""

    def code_hang(self, mark: str) -> str:
        """Code that runs for an hour; what it starts carries ``MARK=mark`` in its environment."""
        return (
            "import os, subprocess\n"
            f"subprocess.run(['sleep', '3600'], env={{**os.environ, {MARK!r}: {mark!r}}})\n"
        )

    # Probes: what only the author of an adapter can bring about or see.

    async def processes_marked(self, sandbox: AsyncSandbox, mark: str) -> list[str]:
        """Processes of the sandbox that have ``MARK=mark`` in their environment.

        Needs ``sh``, ``grep`` and /proc in the sandbox; override it for an image without.
        """
        look = 'grep -l -F "$0" /proc/[0-9]*/environ 2>/dev/null; true'
        found = await sandbox.run(["sh", "-c", look, f"{MARK}={mark}"], timeout=60)
        return [line.split("/")[2] for line in found.stdout.splitlines()]

    async def provider_sandboxes(self, label: str) -> list[ManagedSandbox]:
        """What the provider holds with ``metadata={LABEL: label}``."""
        if not isinstance(self.backend, ReapableBackend):
            self.skip_probe("provider_sandboxes", "or implement list_managed() and kill_managed()")
        return await self.backend.list_managed(labels={LABEL: label})

    async def provider_labels(self, sandbox: AsyncSandbox) -> dict[str, str]:
        """The metadata that the provider stores with the sandbox."""
        if not isinstance(self.backend, ReapableBackend):
            self.skip_probe("provider_labels", "or implement list_managed()")
        held = {each.sandbox_id: each.labels for each in await self.backend.list_managed()}
        return held.get(sandbox.id, {})

    async def applied_resources(self, sandbox: AsyncSandbox) -> Resources:
        """The caps that are in force, as the provider tells them."""
        self.skip_probe("applied_resources")

    async def expire_sandbox(self, sandbox: AsyncSandbox) -> None:
        """Make the provider end the sandbox behind the library's back."""
        self.skip_probe("expire_sandbox")

    def simulate_slow_create(self) -> AbstractContextManager[None]:
        """Inside, ``create(timeout=1)`` cannot be served in time."""
        self.skip_probe("simulate_slow_create")

    def simulate_provider_failure(self) -> AbstractContextManager[None]:
        """Inside, the provider fails every creation."""
        self.skip_probe("simulate_provider_failure")

    def simulate_missing_credential(self) -> AbstractContextManager[str]:
        """Inside, there is no credential; gives the name of the variable that should hold it."""
        self.skip_probe("simulate_missing_credential")

    def simulate_kill_hang(self, sandbox: AsyncSandbox) -> AbstractContextManager[None]:
        """Inside, the provider does not answer a request to end the sandbox."""
        self.skip_probe("simulate_kill_hang")

    def simulate_kill_failure(self, sandbox: AsyncSandbox) -> AbstractContextManager[None]:
        """Inside, the provider refuses to end the sandbox."""
        self.skip_probe("simulate_kill_failure")

    @asynccontextmanager
    async def canary(self) -> AsyncGenerator[Canary]:
        """A server that a sandbox with egress allowed reaches, and that counts its visitors."""
        if self.canary_host is None:
            self.skip_probe("canary_host", "the address of this machine as a sandbox sees it")
        async with serve(self.canary_host) as canary:
            yield canary

    def skip_probe(self, name: str, advice: str = "") -> NoReturn:
        """Skip the test in hand, since a probe is not there."""
        says = f" ({advice})" if advice else ""
        pytest.skip(f"{type(self).__name__} has no probe {name}{says}")

    # How tests are selected.

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        tests = {name for name in dir(cls) if name.startswith("test_")}
        for name, reason in cls.deviations.items():
            if name not in tests and tests:
                raise TypeError(f"{cls.__name__}.deviations names {name!r}, and the suite has no such test.")
            if not isinstance(reason, str) or not reason.strip():
                raise TypeError(f"{cls.__name__}.deviations[{name!r}] must say why this backend differs.")

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Called by pytest for each test of the class, while it collects."""
        if not hasattr(type(self), "backend"):
            raise pytest.Collector.CollectError(
                f"{type(self).__name__} has no backend. Write in it:\n\n    backend = YourBackend()\n\n"
                "or a pytest fixture of that name that returns one."
            )

    @pytest.fixture(params=["asyncio", "trio"])
    def anyio_backend(self, request: pytest.FixtureRequest) -> str:
        """Every test runs on both event loops."""
        if request.param == "trio":
            pytest.importorskip("trio", reason="trio is not installed: pip install sandboxio[trio]")
        return cast("str", request.param)

    @pytest.fixture(autouse=True)
    def contract(self, request: pytest.FixtureRequest) -> None:
        """Get the backend ready, and skip or expect a failure where the class says so."""
        if not hasattr(type(self).backend, "create"):
            self.backend = request.getfixturevalue("backend")  # type: ignore[misc]
        name = getattr(self.backend, "name", type(self.backend).__name__)
        request.node.user_properties.append(("backend", name))
        declared = cast("Capability", self.backend.capabilities)
        for capability in getattr(request.function, "__sbx_needs__", ()):
            if capability not in declared:
                pytest.skip(f"backend {name!r} does not declare {capability.name}")
        lacked = getattr(request.function, "__sbx_lacks__", None)
        if lacked is not None and lacked in declared:
            pytest.skip(f"backend {name!r} declares {lacked.name}, so it has nothing to refuse")
        opens = getattr(request.function, "__sbx_opens__", True)
        if opens and Capability.NETWORK_POLICY not in declared:
            pytest.skip(f"backend {name!r} does not declare NETWORK_POLICY, so it creates nothing")
        if (reason := self.deviations.get(request.function.__name__)) is not None:
            request.node.add_marker(pytest.mark.xfail(reason=reason, strict=True))

    # What tests use.

    @asynccontextmanager
    async def sandbox(
        self,
        *,
        label: str | None = None,
        resources: Resources = Resources(),
        network: NetworkPolicy = NetworkPolicy(),
        env: dict[str, str] | None = None,
        secrets: dict[str, str] | None = None,
        timeout: float = LIFETIME,
        metadata: dict[str, str] | None = None,
    ) -> AsyncGenerator[AsyncSandbox]:
        """A sandbox that is killed at the end, whatever the test did with it.

        This last kill is tidying, not a check: what it raises is dropped.
        """
        sandbox = await self.created(
            label=label,
            resources=resources,
            network=network,
            env=env,
            secrets=secrets,
            timeout=timeout,
            metadata=metadata,
        )
        try:
            yield sandbox
        finally:
            with suppress(SandboxError):
                await sandbox.kill()

    async def created(
        self,
        *,
        label: str | None = None,
        resources: Resources = Resources(),
        network: NetworkPolicy = NetworkPolicy(),
        env: dict[str, str] | None = None,
        secrets: dict[str, str] | None = None,
        timeout: float = LIFETIME,
        metadata: dict[str, str] | None = None,
    ) -> AsyncSandbox:
        """A new sandbox with the suite's template, for creations that should fail or are cancelled."""
        return await cast("Backend", self.backend).create(
            template=self.template,
            resources=resources,
            network=network,
            env=env,
            secrets=secrets,
            timeout=timeout,
            metadata={**(metadata or {}), LABEL: label or new_mark()},
        )

    async def probe(self, name: str, *arguments: Any) -> Any:
        """The answer of a probe; its failures are told as such."""
        with self.probing(name):
            answer = getattr(self, name)(*arguments)
            return await answer if inspect.isawaitable(answer) else answer

    @contextmanager
    def simulated(self, name: str, *arguments: Any) -> Generator[Any]:
        """The inside of a ``simulate_...`` probe."""
        with self.probing(name):
            simulation = getattr(self, name)(*arguments)
            if not hasattr(simulation, "__exit__"):
                raise TypeError("it must return a context manager, for example with @contextmanager")
            value = simulation.__enter__()
        try:
            yield value
        finally:
            with self.probing(name):
                simulation.__exit__(None, None, None)

    @contextmanager
    def probing(self, name: str) -> Generator[None]:
        """Name the probe in whatever it raises."""
        try:
            yield
        except Exception as error:  # whatever it is, it came out of the author's probe
            raise AssertionError(
                f"The probe {type(self).__name__}.{name} raised {type(error).__name__}: {error}. "
                "A probe does its work, returns what its docstring says, or calls self.skip_probe()."
            ) from error

    async def until(
        self,
        look: Callable[[], Awaitable[T]],
        done: Callable[[T], bool],
        what: str,
        *,
        seconds: float | None = None,
    ) -> T:
        """Look again and again until ``done``; fails with the last sight after ``seconds``."""
        seconds = self.patience if seconds is None else seconds
        deadline = time.monotonic() + seconds
        pause = 0.01
        while True:
            seen = await look()
            if done(seen):
                return seen
            assert time.monotonic() < deadline, (
                f"after {seconds:g} s still not so: {what}; last seen: {seen!r}"
            )
            await anyio.sleep(pause)
            pause = min(pause * 2, 0.25)

    @asynccontextmanager
    async def within(self, seconds: float, what: str) -> AsyncGenerator[None]:
        """Fail if the body does not end in time."""
        with anyio.move_on_after(seconds) as scope:
            yield
        assert not scope.cancelled_caught, f"{what} did not end within {seconds:g} s"

    @asynccontextmanager
    async def tasks(self) -> AsyncGenerator[TaskGroup]:
        """A task group out of which a failed or skipped check comes by itself, not in a group."""
        judged: BaseException | None = None
        try:
            async with anyio.create_task_group() as group:
                yield group
        except* (AssertionError, pytest.skip.Exception) as checks:
            judged = _first(checks)
        if judged is not None:
            raise judged

    async def assert_no_orphans(self, sandbox: AsyncSandbox, mark: str) -> None:
        """Fail if processes with this mark are still there after a while."""
        await self.until(
            lambda: self.probe("processes_marked", sandbox, mark),
            lambda found: not found,
            f"no process with {MARK}={mark} is left in the sandbox",
        )

    async def assert_running(self, sandbox: AsyncSandbox, mark: str) -> None:
        """Wait until a process with this mark is there."""
        await self.until(
            lambda: self.probe("processes_marked", sandbox, mark),
            bool,
            f"a process with {MARK}={mark} runs in the sandbox",
        )

    async def assert_nothing_left(self, label: str) -> None:
        """Fail if the provider still holds a sandbox with this label after a while."""
        await self.until(
            lambda: self.probe("provider_sandboxes", label),
            lambda held: not held,
            f"the provider holds no sandbox with {LABEL}={label}",
        )

    async def cancelled(
        self, operation: Callable[[], Awaitable[object]], begun: Callable[[], Awaitable[object]]
    ) -> object:
        """Cancel ``operation`` once ``begun`` has returned; what came out of it, exception or value."""
        outcome: list[object] = []

        async def perform() -> None:
            try:
                outcome.append(await operation())
            except BaseException as error:
                outcome.append(error)
                raise

        async with self.within(3 * self.patience, "a cancelled operation"):
            try:
                async with self.tasks() as tasks:
                    tasks.start_soon(perform)
                    await begun()
                    tasks.cancel_scope.cancel()
            except* SandboxError:
                pass  # the test judges what is in outcome
        return outcome[0]

    def assert_cancelled(self, outcome: object) -> None:
        """Fail unless a cancellation came out as what it is."""
        assert isinstance(outcome, anyio.get_cancelled_exc_class()), (
            f"a cancelled operation must end with the loop's own cancellation, not with {outcome!r}"
        )
        assert not isinstance(outcome, SandboxError)


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return error  # pyright: ignore[reportUnknownVariableType]


def new_mark() -> str:
    """A name that nothing else has."""
    return uuid.uuid4().hex

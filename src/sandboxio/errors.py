"""Every exception and warning that sandboxio raises.

    SandboxError
    ├── ConfigurationError            SBX_E1000   the request cannot be understood
    │   ├── BackendNotFound           SBX_E1001   no backend of that name
    │   └── BackendNotInstalled       SBX_E1002   its extra is missing
    ├── CapabilityNotSupported        SBX_E1101   this backend cannot do that
    ├── CreationError                 SBX_E1201   no usable sandbox came of it
    │   └── CreateTimeout             SBX_E1203   ... in time; also a SandboxTimeout
    ├── ConnectError                  SBX_E1202   a management call was not served
    ├── SandboxGone                   SBX_E1204   the sandbox has ended; not a timeout
    ├── ExecutionError                SBX_E1301   non-zero exit, and you asked to raise
    ├── SandboxTimeout                (no code)   catches every sandbox deadline
    │   └── ExecutionTimeout          SBX_E1302   a run exceeded its timeout
    ├── NetworkPolicyViolation        SBX_E1401   the network policy was broken
    ├── ResourceLimitExceeded         SBX_E1402   a resource cap was hit
    ├── AuthError                     SBX_E1501   a credential is missing or refused
    ├── RateLimitError                SBX_E1502   the provider throttles
    ├── AuditSinkError                SBX_E1601   a record could not be written
    └── FileSystemError               SBX_E1700   a file operation failed
        └── PathNotFound              SBX_E1701   no such path in the sandbox

Rules of this file:

1. No class inherits a builtin exception. ``except TimeoutError`` must keep meaning the caller's own
   deadline (``asyncio.timeout``); a sandbox's deadline is :class:`SandboxTimeout`.
2. A code never changes its meaning; the first line of a class's docstring is its line in the
   catalogue, so the generated pages cannot drift from the code.
3. A hint is the fix itself, not the problem told again.
4. An instance can be pickled: only ``message`` is positional, everything else has a default.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Protocol

DOCS_URL = "https://docs.sandboxio.dev/errors/"


class CommandOutput(Protocol):
    """What a command had printed when something ended it; ``ExecResult`` is one.

    Declared here as a shape because results raise errors, so errors cannot import results.
    """

    @property
    def exit_code(self) -> int:
        """0 to 255."""
        ...

    @property
    def stdout(self) -> str:
        """Decoded standard output."""
        ...

    @property
    def stderr(self) -> str:
        """Decoded standard error."""
        ...

    @property
    def truncated(self) -> bool:
        """True if more was printed than is kept."""
        ...


class SandboxError(Exception):
    """The base of every error that sandboxio raises.

    >>> from sandboxio import create_sync
    >>> try:
    ...     create_sync("nowhere://")
    ... except SandboxError as error:
    ...     print(error.code, error.url)
    SBX_E1001 https://docs.sandboxio.dev/errors/SBX_E1001/
    """

    code: ClassVar[str] = ""
    default_hint: ClassVar[str] = ""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        if not self.code:
            raise TypeError(f"{type(self).__name__} is a base class: raise one that has a code")
        super().__init__(message)
        self.message = message
        self.hint: str = self.default_hint if hint is None else hint

    @property
    def url(self) -> str:
        """The documentation page of this code."""
        return f"{DOCS_URL}{self.code}/"

    def __str__(self) -> str:
        return f"[{self.code}] {self.message}\n  Fix:  {self.hint}\n  Docs: {self.url}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.code}, {self.message!r})"


class ConfigurationError(SandboxError):
    """The request could not be understood or contradicts itself; nothing was started.

    >>> from sandboxio import create_sync
    >>> try:
    ...     create_sync("fake://?timeout=soon")
    ... except ConfigurationError as error:
    ...     print(error.hint)
    Write ?timeout=300.
    """

    code = "SBX_E1000"
    default_hint = "Correct the argument that the message names."


class BackendNotFound(ConfigurationError):
    """No backend is registered under that name.

    >>> from sandboxio import create_sync
    >>> try:
    ...     create_sync("dokcer://")
    ... except BackendNotFound as error:
    ...     print(error.hint)
    Did you mean "docker://"?
    """

    code = "SBX_E1001"
    default_hint = "Use docker://, e2b:// or fake://, or sandboxio.register(name, factory)."


class BackendNotInstalled(ConfigurationError):
    """A known backend whose extra is not installed.

    >>> BackendNotInstalled("No docker.", hint='pip install "sandboxio[docker]"').hint
    'pip install "sandboxio[docker]"'
    """

    code = "SBX_E1002"
    default_hint = 'pip install "sandboxio[all]"'


class CapabilityNotSupported(SandboxError):
    """The backend does not declare the capability that this call needs.

    >>> from sandboxio import Resources, create_sync
    >>> try:
    ...     create_sync("fake://", resources=Resources(gpu="T4"))
    ... except CapabilityNotSupported as error:
    ...     print(error.message)
    Backend 'fake' does not declare GPU, which Resources(gpu=...) needs.
    """

    code = "SBX_E1101"
    default_hint = "Check `Capability.X in sandbox.capabilities` first, or use another backend."


class CreationError(SandboxError):
    """The backend did not produce a usable sandbox; whatever it had made is removed.

    >>> from sandboxio.testing import FakeBackend
    >>> import anyio
    >>> fake = FakeBackend()
    >>> fake.simulate(create_fails=OSError("no space"))
    >>> try:
    ...     anyio.run(fake.create)
    ... except CreationError as error:
    ...     print(repr(error.__cause__))
    OSError('no space')
    """

    code = "SBX_E1201"
    default_hint = "Run `sandboxio doctor` to see what is missing."


class ConnectError(SandboxError):
    """The backend did not serve a management call: connect, list or kill.

    >>> from sandboxio import connect_sync
    >>> try:
    ...     connect_sync("fake://", "fake-9999")
    ... except ConnectError as error:
    ...     print(error.code)
    SBX_E1202
    """

    code = "SBX_E1202"
    default_hint = "Check the sandbox id with `sandboxio reap`, and the backend with `sandboxio doctor`."


class SandboxTimeout(SandboxError):
    """The base of every sandbox deadline; catches them all and is never raised itself.

    >>> from sandboxio import create_sync
    >>> with create_sync("fake://") as sandbox:
    ...     try:
    ...         sandbox.run(["sleep", "60"], timeout=5)
    ...     except SandboxTimeout as error:
    ...         print(type(error).__name__, isinstance(error, TimeoutError))
    ExecutionTimeout False
    """


class CreateTimeout(CreationError, SandboxTimeout):
    """``create()`` was not done within its timeout.

    >>> from sandboxio.testing import FakeBackend
    >>> import anyio
    >>> fake = FakeBackend()
    >>> fake.simulate(create_takes=3600)
    >>> async def main():
    ...     try:
    ...         await fake.create(timeout=10)
    ...     except CreateTimeout as error:
    ...         print(error.message)
    >>> anyio.run(main)
    No usable sandbox came up within 10 s.
    """

    code = "SBX_E1203"
    default_hint = "Pull the image or build the template beforehand, or raise create(timeout=...)."


class SandboxGone(SandboxError):
    """The sandbox no longer exists: its lifetime ended, or something removed it.

    Not a timeout: the deadline of a call did not pass, the sandbox under it went away.
    ``partial`` holds what the interrupted command had printed, or None outside a command.

    >>> from sandboxio import create_sync
    >>> with create_sync("fake://") as sandbox:
    ...     sandbox.kill()
    ...     try:
    ...         sandbox.run(["true"])
    ...     except SandboxGone as error:
    ...         print(error.code)
    SBX_E1204
    """

    code = "SBX_E1204"
    default_hint = "Create a new sandbox; raise create(timeout=...) if its lifetime ended too early."
    partial: CommandOutput | None = None


class ExecutionError(SandboxError):
    """A command exited non-zero and ``raise_for_status()`` was called.

    ``result`` is the whole result, or None if the error was built without one.

    >>> from sandboxio import create_sync
    >>> with create_sync("fake://") as sandbox:
    ...     try:
    ...         sandbox.run("echo no >&2; exit 3").raise_for_status()
    ...     except ExecutionError as error:
    ...         print(error.result.exit_code, error.result.stderr)
    3 no
    <BLANKLINE>
    """

    code = "SBX_E1301"
    default_hint = "Read .result.stderr; a non-zero exit is the command's own answer."
    result: CommandOutput | None = None


class ExecutionTimeout(SandboxTimeout):
    """A run exceeded its timeout; it was killed with all its descendants.

    ``partial`` holds what it had printed until then, within the output cap.

    >>> from sandboxio import create_sync
    >>> with create_sync("fake://") as sandbox:
    ...     try:
    ...         sandbox.run("echo early; sleep 60", timeout=5)
    ...     except ExecutionTimeout as error:
    ...         print(error.partial.stdout, end="")
    early
    """

    code = "SBX_E1302"
    default_hint = "Raise timeout= on the call, or make the command do less; see .partial for its output."
    partial: CommandOutput | None = None


class NetworkPolicyViolation(SandboxError):
    """Sandboxed code attempted egress that the network policy denies.

    >>> NetworkPolicyViolation("The sandbox tried to reach 192.0.2.1.").code
    'SBX_E1401'
    """

    code = "SBX_E1401"
    default_hint = "Allow the host explicitly, on a backend that can: NetworkPolicy(allow=(...,))."


class ResourceLimitExceeded(SandboxError):
    """A resource cap was hit; the message names the cap and its value.

    ``partial`` holds what the command had printed until then, or None outside a command.

    >>> error = ResourceLimitExceeded("The command was killed at the memory cap of 512 MiB.")
    >>> error.hint, error.partial
    ('Raise the cap: create(resources=Resources(...)).', None)
    """

    code = "SBX_E1402"
    default_hint = "Raise the cap: create(resources=Resources(...))."
    partial: CommandOutput | None = None


class AuthError(SandboxError):
    """A provider credential is missing or was refused; the message names the variable.

    >>> from sandboxio.testing import FakeBackend
    >>> import anyio
    >>> fake = FakeBackend()
    >>> fake.simulate(auth_missing=True)
    >>> try:
    ...     anyio.run(fake.create)
    ... except AuthError as error:
    ...     print(error.hint)
    export SBX_FAKE_TOKEN=...
    """

    code = "SBX_E1501"
    default_hint = "Set the credential's environment variable."


class RateLimitError(SandboxError):
    """The provider throttled the request; sandboxio does not retry on its own.

    ``retry_after`` is the provider's advice in seconds, or None if it gave none.

    >>> from sandboxio.testing import FakeBackend
    >>> import anyio
    >>> fake = FakeBackend()
    >>> fake.simulate(rate_limited=30.0)
    >>> try:
    ...     anyio.run(fake.create)
    ... except RateLimitError as error:
    ...     print(error.retry_after)
    30.0
    """

    code = "SBX_E1502"
    default_hint = "Wait and try again, or ask the provider for a higher limit."
    retry_after: float | None = None


class AuditSinkError(SandboxError):
    """An audit sink failed and ``on_sink_failure="fail"`` was configured.

    >>> AuditSinkError("FileSink raised OSError; the create operation is not recorded.").code
    'SBX_E1601'
    """

    code = "SBX_E1601"
    default_hint = 'Repair the sink, or set AuditConfig(on_sink_failure="warn").'


class FileSystemError(SandboxError):
    """A file operation in the sandbox failed for another reason than a missing path.

    >>> from sandboxio import create_sync
    >>> with create_sync("fake://") as sandbox:
    ...     try:
    ...         sandbox.files.read("/tmp")
    ...     except FileSystemError as error:
    ...         print(error.code)
    SBX_E1700
    """

    code = "SBX_E1700"
    default_hint = "Check the path, its permissions and the free space in the sandbox."


class PathNotFound(FileSystemError):
    """The path does not exist in the sandbox.

    >>> from sandboxio import create_sync
    >>> with create_sync("fake://") as sandbox:
    ...     try:
    ...         sandbox.files.read("missing.txt")
    ...     except PathNotFound as error:
    ...         print(error.code)
    SBX_E1701
    """

    code = "SBX_E1701"
    default_hint = (
        "List the folder with files.ls(), or make it with files.mkdir(path, parents=True); "
        "relative paths start at the sandbox's working folder."
    )


def catalogue() -> list[type[SandboxError]]:
    """Every class that carries a code, in the order of the codes.

    >>> [error.code for error in catalogue()][:2]
    ['SBX_E1000', 'SBX_E1001']
    """

    def below(parent: type[SandboxError]) -> Iterator[type[SandboxError]]:
        for child in parent.__subclasses__():
            yield child
            yield from below(child)

    ours = {error for error in below(SandboxError) if error.__module__ == __name__ and error.code}
    return sorted(ours, key=lambda error: error.code)


class SandboxWarning(UserWarning):
    """The base of every warning that sandboxio emits.

    >>> import warnings
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", SandboxWarning)    # a program that wants to stop at them
    """


class OrphanedSandboxWarning(SandboxWarning):
    """A sandbox or process could not be ended in time; the text names it and its labels.

    >>> issubclass(OrphanedSandboxWarning, SandboxWarning)
    True
    """


class UnverifiedIsolationWarning(SandboxWarning):
    """A sandbox was created on a backend whose isolation nobody verified.

    >>> import sandboxio
    >>> sandboxio.IsolationTier.UNKNOWN.satisfies(sandboxio.IsolationTier.CONTAINER)
    False
    """


class AuditSinkWarning(SandboxWarning):
    """An audit sink failed or dropped a record, and the operation went on.

    >>> from sandboxio.audit import AuditConfig
    >>> AuditConfig(on_sink_failure="fail").on_sink_failure    # an error instead of this warning
    'fail'
    """


class ExperimentalWarning(SandboxWarning):
    """The API in use may change in any release.

    >>> import warnings
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore", ExperimentalWarning)    # after reading what it says
    """

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
    """The base of every error that sandboxio raises."""

    code: ClassVar[str] = ""
    default_hint: ClassVar[str] = ""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        if not self.code:
            raise TypeError(f"{type(self).__name__} is a base class: raise one that has a code")
        super().__init__(message)
        self.message = message
        self.hint = self.default_hint if hint is None else hint

    @property
    def url(self) -> str:
        """The documentation page of this code."""
        return f"{DOCS_URL}{self.code}/"

    def __str__(self) -> str:
        return f"[{self.code}] {self.message}\n  Fix:  {self.hint}\n  Docs: {self.url}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.code}, {self.message!r})"


class ConfigurationError(SandboxError):
    """The request could not be understood or contradicts itself; nothing was started."""

    code = "SBX_E1000"
    default_hint = "Correct the argument that the message names."


class BackendNotFound(ConfigurationError):
    """No backend is registered under that name."""

    code = "SBX_E1001"
    default_hint = "Use docker://, e2b:// or fake://, or sandboxio.register(name, factory)."


class BackendNotInstalled(ConfigurationError):
    """A known backend whose extra is not installed."""

    code = "SBX_E1002"
    default_hint = 'pip install "sandboxio[all]"'


class CapabilityNotSupported(SandboxError):
    """The backend does not declare the capability that this call needs."""

    code = "SBX_E1101"
    default_hint = "Check `Capability.X in sandbox.capabilities` first, or use another backend."


class CreationError(SandboxError):
    """The backend did not produce a usable sandbox; whatever it had made is removed."""

    code = "SBX_E1201"
    default_hint = "Run `sandboxio doctor` to see what is missing."


class ConnectError(SandboxError):
    """The backend did not serve a management call: connect, list or kill."""

    code = "SBX_E1202"
    default_hint = "Check the sandbox id with `sandboxio reap`, and the backend with `sandboxio doctor`."


class SandboxTimeout(SandboxError):
    """The base of every sandbox deadline; catches them all and is never raised itself."""


class CreateTimeout(CreationError, SandboxTimeout):
    """``create()`` was not done within its timeout."""

    code = "SBX_E1203"
    default_hint = "Pull the image or build the template beforehand, or raise create(timeout=...)."


class SandboxGone(SandboxError):
    """The sandbox no longer exists: its lifetime ended, or something removed it.

    Not a timeout: the deadline of a call did not pass, the sandbox under it went away.
    ``partial`` holds what the interrupted command had printed, or None outside a command.
    """

    code = "SBX_E1204"
    default_hint = "Create a new sandbox; raise create(timeout=...) if its lifetime ended too early."
    partial: CommandOutput | None = None


class ExecutionError(SandboxError):
    """A command exited non-zero and ``raise_for_status()`` was called.

    ``result`` is the whole result, or None if the error was built without one.
    """

    code = "SBX_E1301"
    default_hint = "Read .result.stderr; a non-zero exit is the command's own answer."
    result: CommandOutput | None = None


class ExecutionTimeout(SandboxTimeout):
    """A run exceeded its timeout; it was killed with all its descendants.

    ``partial`` holds what it had printed until then, within the output cap.
    """

    code = "SBX_E1302"
    default_hint = "Raise timeout= on the call, or make the command do less; see .partial for its output."
    partial: CommandOutput | None = None


class NetworkPolicyViolation(SandboxError):
    """Sandboxed code attempted egress that the network policy denies."""

    code = "SBX_E1401"
    default_hint = "Allow the host explicitly, on a backend that can: NetworkPolicy(allow=(...,))."


class ResourceLimitExceeded(SandboxError):
    """A resource cap was hit; the message names the cap and its value.

    ``partial`` holds what the command had printed until then, or None outside a command.
    """

    code = "SBX_E1402"
    default_hint = "Raise the cap: create(resources=Resources(...))."
    partial: CommandOutput | None = None


class AuthError(SandboxError):
    """A provider credential is missing or was refused; the message names the variable."""

    code = "SBX_E1501"
    default_hint = "Set the credential's environment variable."


class RateLimitError(SandboxError):
    """The provider throttled the request; sandboxio does not retry on its own.

    ``retry_after`` is the provider's advice in seconds, or None if it gave none.
    """

    code = "SBX_E1502"
    default_hint = "Wait and try again, or ask the provider for a higher limit."
    retry_after: float | None = None


class AuditSinkError(SandboxError):
    """An audit sink failed and ``on_sink_failure="fail"`` was configured."""

    code = "SBX_E1601"
    default_hint = 'Repair the sink, or set AuditConfig(on_sink_failure="warn").'


class FileSystemError(SandboxError):
    """A file operation in the sandbox failed for another reason than a missing path."""

    code = "SBX_E1700"
    default_hint = "Check the path, its permissions and the free space in the sandbox."


class PathNotFound(FileSystemError):
    """The path does not exist in the sandbox."""

    code = "SBX_E1701"
    default_hint = "List the folder with files.ls(); relative paths start at the sandbox's working folder."


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
    """The base of every warning that sandboxio emits."""


class OrphanedSandboxWarning(SandboxWarning):
    """A sandbox or process could not be ended in time; the text names it and its labels."""


class UnverifiedIsolationWarning(SandboxWarning):
    """A sandbox was created on a backend whose isolation nobody verified."""


class AuditSinkWarning(SandboxWarning):
    """An audit sink failed or dropped a record, and the operation went on."""


class ExperimentalWarning(SandboxWarning):
    """The API in use may change in any release."""

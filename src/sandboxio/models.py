"""The values of the API: frozen, compared by value, checked when they are built.

Nothing here does I/O. A value that cannot be right (a negative cap, a policy that contradicts
itself) raises :class:`ConfigurationError` in its constructor, long before anything is started.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from enum import Enum, Flag, auto
from typing import Any, ClassVar, Literal, SupportsIndex, cast

from .errors import ConfigurationError, ExecutionError

BackendName = Literal["docker", "e2b", "modal", "fake"]
QUOTED_LINE = 200
"""Characters of stderr that an ``ExecutionError`` quotes."""
SHOWN_END = 1000
"""Characters that the repr of a result shows of either end of a long text."""


class _DefaultTimeout(float):
    """A copy of the default is the default, in another process, too."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> str:
        return "DEFAULT_TIMEOUT"


DEFAULT_TIMEOUT: float = _DefaultTimeout(300)
"""Seconds that a sandbox lives and a call may take when the caller says nothing.

Another object of the same value was given by somebody."""


class Capability(Flag):
    """What a sandbox can do. Ask the sandbox, never infer it from the backend's name.

    >>> Capability.RUN_CODE in (Capability.RUN_COMMAND | Capability.RUN_CODE)
    True
    """

    RUN_COMMAND = auto()
    RUN_CODE = auto()
    STATEFUL_CODE = auto()
    STREAMING = auto()
    FILESYSTEM = auto()
    UPLOAD_DOWNLOAD = auto()
    PTY = auto()
    PAUSE_RESUME = auto()
    SNAPSHOT_FORK = auto()
    GPU = auto()
    LSP = auto()
    GIT = auto()
    NETWORK_POLICY = auto()
    TUNNELS = auto()
    COST_REPORTING = auto()


class IsolationTier(Enum):
    """How well a sandbox resists an adversary who attacks the kernel; only that.

    The order is an explicit rank, not the value: ``UNKNOWN`` satisfies no requirement at all.

    >>> IsolationTier.MICROVM.satisfies(IsolationTier.CONTAINER)
    True
    >>> IsolationTier.UNKNOWN.satisfies(IsolationTier.CONTAINER)
    False
    >>> IsolationTier.CONTAINER < IsolationTier.GVISOR
    True
    """

    UNKNOWN = "unknown"
    CONTAINER = "container"
    GVISOR = "gvisor"
    MICROVM = "microvm"

    @property
    def rank(self) -> int:
        """Position on the scale; spaced by ten so that a tier can be put between two."""
        return _RANKS[self]

    def satisfies(self, minimum: IsolationTier) -> bool:
        """True if this tier is known and at least ``minimum``."""
        return self is not IsolationTier.UNKNOWN and self.rank >= minimum.rank

    def __lt__(self, other: object) -> bool:
        return self.rank < other.rank if isinstance(other, IsolationTier) else NotImplemented

    def __le__(self, other: object) -> bool:
        return self.rank <= other.rank if isinstance(other, IsolationTier) else NotImplemented

    def __gt__(self, other: object) -> bool:
        return self.rank > other.rank if isinstance(other, IsolationTier) else NotImplemented

    def __ge__(self, other: object) -> bool:
        return self.rank >= other.rank if isinstance(other, IsolationTier) else NotImplemented


_RANKS = {
    IsolationTier.UNKNOWN: 0,
    IsolationTier.CONTAINER: 10,
    IsolationTier.GVISOR: 20,
    IsolationTier.MICROVM: 30,
}


@dataclass(frozen=True)
class Resources:
    """Caps of a sandbox. ``None`` means the backend's modest default, never "unlimited".

    ``cpu`` counts cores and may be a fraction; ``memory_mb`` and ``disk_mb`` are MiB; ``gpu`` names
    a device type. Raises :class:`ConfigurationError` for values that are not positive and finite.

    >>> Resources(memory_mb=2048).memory_mb
    2048
    """

    cpu: float | None = None
    memory_mb: int | None = None
    disk_mb: int | None = None
    gpu: str | None = None

    def __post_init__(self) -> None:
        for name in ("cpu", "memory_mb", "disk_mb"):
            value = getattr(self, name)
            kinds = (int, float) if name == "cpu" else (int,)
            if value is None:
                continue
            if not isinstance(value, kinds) or isinstance(value, bool):
                raise ConfigurationError(
                    f"Resources.{name} must be a number{' of MiB' if name != 'cpu' else ''}, got {value!r}."
                )
            if not 0 < value <= sys.float_info.max:
                raise ConfigurationError(f"Resources.{name} must be positive and finite, got {value!r}.")


@dataclass(frozen=True)
class NetworkPolicy:
    """What may leave the sandbox. The default lets nothing out.

    ``egress="deny"`` with an empty ``allow`` blocks everything; with hosts or CIDRs in ``allow`` it
    blocks everything else. ``egress="allow"`` opens everything. ``"learn"`` is reserved and refused by
    every backend of this release. A policy holds for the sandbox's whole life.

    >>> NetworkPolicy() == NetworkPolicy(egress="deny")
    True
    """

    egress: Literal["deny", "allow", "learn"] = "deny"
    allow: tuple[str, ...] = ()
    ingress_ports: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.egress not in ("deny", "allow", "learn"):
            raise ConfigurationError(
                f'NetworkPolicy.egress must be "deny", "allow" or "learn", got {self.egress!r}.'
            )
        for name, kind in (("allow", str), ("ingress_ports", int)):
            value: tuple[object, ...] = getattr(self, name)
            if not isinstance(value, tuple) or not all(isinstance(item, kind) and item for item in value):
                raise ConfigurationError(
                    f"NetworkPolicy.{name} must be a tuple of {kind.__name__}, got {value!r}.",
                    hint=f"Write a tuple, with its comma: NetworkPolicy({name}={_as_tuple(value)!r}).",
                )
        if self.egress == "allow" and self.allow:
            raise ConfigurationError(
                'NetworkPolicy(egress="allow") lets everything out, so allow=... would have no effect.',
                hint='Drop egress="allow" to let only the listed hosts through.',
            )

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        """A copy of the default is the default, in another process, too: see ``DEFAULT_NETWORK``."""
        return "DEFAULT_NETWORK" if self is DEFAULT_NETWORK else super().__reduce_ex__(protocol)


def _as_tuple(value: object) -> tuple[object, ...]:
    many = isinstance(value, (list, set, frozenset, tuple))
    return tuple(cast("Iterable[object]", value)) if many else (value,)


DEFAULT_NETWORK = NetworkPolicy()
"""The default of ``create()`` and of configs; another object of the same value was given by somebody."""


@dataclass(frozen=True)
class RichOutput:
    """One display output of an interpreter: ``data`` is text, or base64 text for binary types.

    >>> RichOutput("text/plain", "42").mime_type
    'text/plain'
    """

    mime_type: str
    data: str


@dataclass(frozen=True)
class FileInfo:
    """One entry of a folder in the sandbox.

    ``path`` is a sandbox path; bytes of a name that are not UTF-8 are kept as lone surrogates
    (``surrogateescape``). ``size`` is in bytes; 0 for a folder.

    >>> FileInfo("/work/out.txt", 12, is_dir=False).size
    12
    """

    path: str
    size: int
    is_dir: bool


@dataclass(frozen=True)
class OutputChunk:
    r"""Some bytes of one stream, as the program wrote them: undecoded, split anywhere.

    >>> OutputChunk("stdout", "caf\u00e9".encode()).data
    b'caf\xc3\xa9'
    """

    stream: Literal["stdout", "stderr"]
    data: bytes


@dataclass(frozen=True)
class Meter:
    """How long an operation took, in milliseconds, and where.

    >>> Meter(duration_ms=12, backend="docker").duration_ms
    12
    """

    duration_ms: int
    backend: str


@dataclass(frozen=True, repr=False)
class ExecResult:
    """How a command ended and what it printed.

    ``exit_code`` is 0 to 255: 128+n for a death by signal n, 126 for a file that is not executable,
    127 for a program that does not exist. ``stdout`` and ``stderr`` are UTF-8 with U+FFFD for bytes
    that are not. ``truncated`` says that more was printed than is kept. ``notes`` are remarks of the
    backend about the run (for example that one of its children ran out of memory). ``streamed`` is
    True for a result of ``Process.wait()``: the caller has read the output, so both texts are empty.

    >>> ExecResult(0, "hello", "").ok
    True
    """

    exit_code: int
    stdout: str
    stderr: str
    results: tuple[RichOutput, ...] | None = None
    meter: Meter | None = None
    streamed: bool = False
    truncated: bool = False
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """As dataclasses do it, but for the middle of long texts: results end up in logs."""
        shown = ((each.name, getattr(self, each.name)) for each in fields(self))
        parts = (
            f"{name}={_shortened(value) if type(value) is str else repr(value)}" for name, value in shown
        )
        return f"{type(self).__qualname__}({', '.join(parts)})"

    @property
    def ok(self) -> bool:
        """True if the command exited with 0."""
        return self.exit_code == 0

    def raise_for_status(self) -> None:
        """Raise :class:`ExecutionError` with this result if the exit code is not 0."""
        if self.ok:
            return
        last = _last_line(self.stderr)[:QUOTED_LINE] if self._quoted is None else self._quoted
        error = ExecutionError(f"The command exited with {self.exit_code}" + (f": {last}" if last else "."))
        error.result = self
        raise error

    _quoted: ClassVar[str | None] = None
    """What ``raise_for_status`` quotes; set on the instance, so it is no part of ==, repr and asdict."""


def quote_stderr(result: ExecResult, excerpt: Callable[[str, int], str]) -> None:
    """Let ``raise_for_status`` quote what ``excerpt`` makes of stderr's last line and a limit.

    Output is the caller's data and stays as it is; an exception must be safe to log.
    """
    object.__setattr__(result, "_quoted", excerpt(_last_line(result.stderr), QUOTED_LINE))


def _shortened(text: str) -> str:
    left_out = len(text) - 2 * SHOWN_END
    if left_out <= SHOWN_END:
        return repr(text)
    return f"{text[:SHOWN_END]!r}<{left_out} characters>{text[-SHOWN_END:]!r}"


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]


@dataclass(frozen=True)
class ManagedSandbox:
    """A sandbox that a backend still holds under sandboxio's label; nothing can run through it.

    ``labels`` is the ``metadata`` of its creator. ``created_at`` is aware, or None if unknown.

    >>> ManagedSandbox("3f2a", "docker", "running", labels={"tenant_id": "acme"}).labels
    {'tenant_id': 'acme'}
    """

    sandbox_id: str
    backend: str
    state: Literal["running", "stopped", "paused"]
    created_at: datetime | None = None
    labels: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class Progress:
    """How far a long step of ``create()`` is, such as the download of an image.

    ``part`` names what ``current`` and ``total`` count, in bytes; ``""`` stands for the whole step, and
    None for a number that is not known.

    >>> Progress("Downloading", "layer 1f2e", 512, 2048).total
    2048
    """

    status: str
    part: str = ""
    current: int | None = None
    total: int | None = None


@dataclass(frozen=True)
class DoctorCheck:
    """One line of a diagnosis: what was looked at, and what was found.

    ``ok`` is None for a remark that is neither good nor bad. A line that failed says in ``fix`` what to
    do. ``detail`` and ``fix`` end up in bug reports: no credential may stand in them.

    >>> DoctorCheck("engine", True, "it answers").ok
    True
    """

    name: str
    ok: bool | None
    detail: str
    fix: str | None = None

    def __post_init__(self) -> None:
        if self.ok is False and not self.fix:
            raise ConfigurationError(
                f"The failed check {self.name!r} names no fix.",
                hint="Say in fix= what the user can do, as a command where there is one.",
            )


@dataclass(frozen=True)
class Diagnosis:
    """What a backend finds out about itself on this machine, at no cost.

    ``isolation`` is the tier that a sandbox would have, or None if that cannot be told. ``versions``
    are those of the packages and services it uses. ``credentials`` says of each environment variable
    whether it is set; there is no place for a value, on purpose.

    >>> Diagnosis(credentials={"ACME_TOKEN": False}).checks
    ()
    """

    checks: tuple[DoctorCheck, ...] = ()
    isolation: IsolationTier | None = None
    versions: dict[str, str] = field(default_factory=dict[str, str])
    credentials: dict[str, bool] = field(default_factory=dict[str, bool])


@dataclass(frozen=True, kw_only=True)
class BackendConfig:
    """Typed configuration for ``create()``; a DSN is parsed into one of these.

    Adapters subclass it with their own fields (``DockerConfig(runtime=...)``). The values of ``env``
    and ``secrets`` stay out of its repr.

    >>> BackendConfig(backend="docker", template="python:3.12-slim", secrets={"TOKEN": "t"})
    BackendConfig(backend='docker', template='python:3.12-slim', ...)
    """

    backend: str
    template: str | None = None
    resources: Resources = Resources()
    network: NetworkPolicy = DEFAULT_NETWORK
    timeout: float = DEFAULT_TIMEOUT
    env: Mapping[str, str] | None = field(default=None, repr=False)
    secrets: Mapping[str, str] | None = field(default=None, repr=False)
    metadata: Mapping[str, str] | None = None

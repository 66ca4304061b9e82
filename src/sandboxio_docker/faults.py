"""The errors of the engine client: what the engine refused, and that it cannot be reached.

    ConnectError                  (public, SBX_E1202)
    ├── EngineError               it answered with an error: status, its own words, a ``Fault``
    └── EngineUnavailable         it did not answer, or what answered is not a Docker Engine

Both are typed errors with a fix of their own, so nothing untyped escapes where a caller forgets to
translate. A backend asks ``error.fault`` what happened and names the public class that fits the
operation: ``raise error.to(CreationError) from error``.

The engine tells most failures apart in its text only, and the text differs by version. ``_TABLE`` is
the one place that reads it. Texts were collected from Docker 20.10, 26.1 and 28, Podman 4.3 and gVisor
20221219; the order of the rows matters: the first that fits wins.
"""

from __future__ import annotations

import html
import json
import re
from enum import Enum
from typing import Any, Final, TypeVar

from sandboxio.errors import ConnectError, SandboxError

from .words import printable

_Error = TypeVar("_Error", bound=SandboxError)

MAX_REASON: Final = 2000
"""Characters of the engine's own words that a message keeps; runtimes add whole stack traces."""


MAX_PAGE: Final = 1 << 16
"""Characters of a page or message that are looked through for words."""


class Fault(Enum):
    """What kind of refusal it was, as far as status and text say."""

    NO_SUCH_IMAGE = "no such image"
    NO_SUCH_CONTAINER = "no such container"
    NO_SUCH_EXEC = "no such exec"
    NO_SUCH_PATH = "no such path in the container"
    NO_SUCH_PROGRAM = "program not found (127)"
    NOT_EXECUTABLE = "program not executable (126)"
    NO_SUCH_FOLDER = "working folder missing"
    NO_SUCH_USER = "user missing in the image"
    NO_SUCH_RUNTIME = "runtime not installed"
    NAME_IN_USE = "container name in use"
    REMOVING = "container is being removed"
    PAUSED = "container is paused"
    NOT_RUNNING = "container is not running"
    NO_SPACE = "no space left"
    READ_ONLY = "read-only file system"
    NO_PROCESSES = "no process left"
    TOO_MANY_CPUS = "more CPUs than the host has"
    START_INTERRUPTED = "runtime start interrupted"
    WRONG_PLATFORM = "image for another platform"
    UNAUTHORIZED = "registry credentials missing or refused"
    RATE_LIMITED = "registry throttles"
    FORBIDDEN = "not permitted"
    API_VERSION = "API version not supported"
    BAD_REQUEST = "bad request"
    NOT_FOUND = "not found"
    CONFLICT = "conflict"
    OTHER = "engine failure"


_QUOTED: Final = r'"(?:[^"\\]|\\.)*"'
"""A string as Go's %q writes it: no quote in it without a backslash, so nothing in it can end it."""
_NOWHERE: Final = (
    "(executable file not found|no such file|not a directory|file name too long|too many levels of symbolic)"
)

_TABLE: Final[tuple[tuple[str, Fault], ...]] = (
    # Whole sentences first: what follows in them is a name of the user's and may say anything.
    (r"^could not find the file|^no such file or directory$", Fault.NO_SUCH_PATH),
    (r"^no such image", Fault.NO_SUCH_IMAGE),
    (r"^no such container", Fault.NO_SUCH_CONTAINER),
    (r"^no such exec|no such exec session", Fault.NO_SUCH_EXEC),
    # The runtime's sentence of a program. One who chooses its name chooses no other fault by it.
    (rf"in sandbox: error finding executable {_QUOTED} in PATH", Fault.NO_SUCH_PROGRAM),
    (r"in sandbox: failed to load .*: no such file", Fault.NO_SUCH_PROGRAM),
    (r"in sandbox: failed to load .*: permission denied", Fault.NOT_EXECUTABLE),
    (rf'^[^"]*exec: {_QUOTED}: (stat .*: )?{_NOWHERE}', Fault.NO_SUCH_PROGRAM),
    (rf'^[^"]*exec: {_QUOTED}: (permission denied|is a directory)', Fault.NOT_EXECUTABLE),
    (r'exec: "(?:[^"\\]|\\.)*$', Fault.NO_SUCH_PROGRAM),  # cut off inside a name longer than any real one
    (r"name \S+ is already in use", Fault.NAME_IN_USE),
    (r"cannot remove .* running", Fault.CONFLICT),
    (r"client version .* is too (old|new)|API version .* is not supported", Fault.API_VERSION),
    (
        r"no matching manifest for|does not match the specified platform|image operating system",
        Fault.WRONG_PLATFORM,
    ),
    (r"toomanyrequests|too many requests|rate limit", Fault.RATE_LIMITED),
    (r"no space left on device|disk quota exceeded|not enough space", Fault.NO_SPACE),
    (
        r"manifest unknown|manifest for .* not found|no such image|image not known|name unknown",
        Fault.NO_SUCH_IMAGE,
    ),
    (
        r"pull access denied|unauthorized|authentication required|no basic auth|denied: requested",
        Fault.UNAUTHORIZED,
    ),
    (r"removal of container .* in progress|marked for removal|is being removed", Fault.REMOVING),
    (r"is paused|container paused", Fault.PAUSED),
    (r"is not running|container state improper|cannot exec in a stopped", Fault.NOT_RUNNING),
    (r"no such container|no container with", Fault.NO_SUCH_CONTAINER),
    (r"range of cpus is from|greater than .* cpus", Fault.TOO_MANY_CPUS),
    (r"unknown or invalid runtime|unknown runtime|runtime \S+ not found", Fault.NO_SUCH_RUNTIME),
    (r"unable to find (user|group)|no matching entries in (passwd|group)", Fault.NO_SUCH_USER),
    (r"interrupted system call", Fault.START_INTERRUPTED),
    (r"resource temporarily unavailable|pids? limit", Fault.NO_PROCESSES),
    (
        r"chdir to cwd| workdir: |current working directory|working directory .* (invalid|not)",
        Fault.NO_SUCH_FOLDER,
    ),
    (r"read-only file system|is marked read-only", Fault.READ_ONLY),
    (r"executable file .*not found|exec: .*: no such file|stat .*: no such file", Fault.NO_SUCH_PROGRAM),
    (r"exec format error|: is a directory: unknown", Fault.NOT_EXECUTABLE),
    (r"exec.*permission denied", Fault.NOT_EXECUTABLE),
)
_PATTERNS: Final = tuple((re.compile(pattern, re.IGNORECASE | re.DOTALL), fault) for pattern, fault in _TABLE)

_BY_STATUS: Final = {
    400: Fault.BAD_REQUEST,
    401: Fault.UNAUTHORIZED,
    403: Fault.FORBIDDEN,
    404: Fault.NOT_FOUND,
    409: Fault.CONFLICT,
    429: Fault.RATE_LIMITED,
}

_HINTS: Final = {
    Fault.NO_SUCH_IMAGE: "Check the image's name and tag, or pull or build it first.",
    Fault.NO_SUCH_CONTAINER: "It has ended or was removed; create a new sandbox.",
    Fault.NO_SUCH_PATH: "Check the path; relative paths start at the sandbox's working folder.",
    Fault.NO_SUCH_PROGRAM: "Use a program that the image has, or an image that has the program.",
    Fault.NOT_EXECUTABLE: "Make the file executable and check that it is built for the image's platform.",
    Fault.NO_SUCH_FOLDER: "Use a working folder that exists in the image.",
    Fault.NO_SUCH_USER: "Use a user that exists in the image, or a numeric uid.",
    Fault.NO_SUCH_RUNTIME: "Register the runtime with the engine, or drop runtime=.",
    Fault.NAME_IN_USE: "Remove the other container, or let sandboxio choose the name.",
    Fault.REMOVING: "Wait until the removal is done, or create a new sandbox.",
    Fault.PAUSED: "Unpause the container (`docker unpause`), or create a new sandbox.",
    Fault.NOT_RUNNING: "It has ended; create a new sandbox.",
    Fault.NO_SPACE: "Free disk space on the engine's machine (`docker system df`), or in the sandbox.",
    Fault.READ_ONLY: "Write to a path that the sandbox may write, for example /tmp.",
    Fault.NO_PROCESSES: "End processes in the sandbox, or raise its process limit.",
    Fault.TOO_MANY_CPUS: "Ask for no more CPUs than the engine's machine has: Resources(cpu=...).",
    Fault.START_INTERRUPTED: "Try again; the runtime was interrupted before the program started.",
    Fault.WRONG_PLATFORM: "Use an image built for this machine's architecture.",
    Fault.UNAUTHORIZED: "Check the image's name; if it is private, `docker login` to its registry.",
    Fault.RATE_LIMITED: "Wait and try again, or `docker login` for a higher limit.",
    Fault.FORBIDDEN: "Ask the engine's administrator for permission.",
    Fault.API_VERSION: "Unset DOCKER_API_VERSION, or use an engine that serves a common version.",
    Fault.BAD_REQUEST: "Correct the value that the message names.",
}
_OTHER_HINT: Final = (
    "Read the engine's own words in the message, and its log; `sandboxio doctor` checks the engine."
)


def classify(status: int, reason: str) -> Fault:
    """The kind of a refusal. ``status`` is 0 for an error that arrived inside a successful answer.

    >>> classify(409, 'Conflict. The container name "/x" is already in use by container "1f".')
    <Fault.NAME_IN_USE: 'container name in use'>
    >>> classify(404, "page not found")
    <Fault.NOT_FOUND: 'not found'>
    """
    if status == 429:  # whatever the text says
        return Fault.RATE_LIMITED
    for pattern, fault in _PATTERNS:
        if pattern.search(reason):
            return fault
    return _BY_STATUS.get(status, Fault.OTHER)


def reason_in(body: bytes) -> str:
    """The engine's own words in the body of an error answer: JSON, plain text, or HTML of a proxy.

    >>> reason_in(b'{"message":"No such image: x"}')
    'No such image: x'
    >>> reason_in(b"<html><title>502 Bad Gateway</title><p>nginx</p></html>")
    '502 Bad Gateway nginx'
    """
    text = body.decode("utf-8", "replace").strip()
    try:
        parsed: Any = json.loads(text)
    except (ValueError, RecursionError):
        parsed = None
    if isinstance(parsed, dict):
        fields: dict[str, Any] = parsed  # pyright: ignore[reportUnknownVariableType]
        # Podman has "cause" and "message"; its message contains the cause
        for key in ("message", "error", "cause"):
            if isinstance(fields.get(key), str) and fields[key]:
                text = fields[key]
                break
    elif text[:1] == "<":
        text = html.unescape(re.sub(r"<[^<>]*>", " ", text[:MAX_PAGE]))
    return _shortened(printable(text[:MAX_PAGE]))


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_REASON else text[:MAX_REASON] + " ..."


class EngineError(ConnectError):
    """The engine answered with an error.

    ``status`` is the HTTP status, 0 for an error inside a successful answer (an image pull);
    ``reason`` are the engine's own words, shortened; ``fault`` is their kind; ``retry_after`` is the
    advice of a throttling registry in seconds.
    """

    status: int = 0
    reason: str = ""
    fault: Fault = Fault.OTHER
    retry_after: float | None = None

    @classmethod
    def of_answer(cls, operation: str, status: int, retry_after: str, body: bytes) -> EngineError:
        """The error for an answer; ``retry_after`` is that header, only seconds are understood."""
        seconds = float(retry_after) if re.fullmatch(r"\d{1,9}", retry_after) else None
        return cls.of(operation, status, reason_in(body), retry_after=seconds)

    @classmethod
    def of(cls, operation: str, status: int, reason: str, *, retry_after: float | None = None) -> EngineError:
        """The error for a refusal. ``operation`` names it, for example ``POST /containers/create``."""
        fault = classify(status, reason)
        code = f" (HTTP {status})" if status else ""
        words = reason or "it gave no reason"
        error = cls(f"The engine refused {operation}{code}: {words}", hint=_HINTS.get(fault, _OTHER_HINT))
        error.status, error.reason, error.fault, error.retry_after = (
            status,
            reason,
            fault,
            retry_after,
        )
        return error

    def to(self, kind: type[_Error], message: str | None = None) -> _Error:
        """The same failure as a public error of the class ``kind``, with the fix that fits it."""
        return kind(message or self.message, hint=self.hint)


class EngineUnavailable(ConnectError):
    """Nothing at the endpoint serves the Docker Engine API, or the connection to it broke.

    ``sent`` says whether a part of the request may have reached the engine: only with ``False`` is it
    certain that nothing was done.
    """

    default_hint = "Start Docker, or set DOCKER_HOST; `sandboxio doctor` shows what was tried."
    sent: bool = False

    def to(self, kind: type[_Error], message: str | None = None) -> _Error:
        """The same failure as a public error of the class ``kind``, with the same fix."""
        return kind(message or self.message, hint=self.hint)

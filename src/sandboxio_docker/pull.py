"""Pulling an image: progress, and errors that come inside a successful answer.

``POST /images/create`` answers 200 before it knows whether it will succeed, and then sends JSON objects,
one after another: status lines with a layer's progress, and at the end perhaps an error. The objects may be
split over reads anywhere and need not be separated by newlines.
Source: Docker Engine API v1.41, "Create an image"; moby pkg/jsonmessage.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from sandboxio.errors import AuthError, ConfigurationError, CreationError, RateLimitError

from .answers import json_object
from .engine import Engine, EngineError, EngineUnavailable, Fault
from .faults import reason_in
from .reference import Reference

MAX_OBJECT: Final = 1 << 20
"""Bytes of one progress message that are kept while its end is missing; real ones have about 200."""
MAX_DEPTH: Final = 64
"""Levels of nesting; real messages have three, and Python's parser recurses."""

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True)
class PullProgress:
    """One status line of a pull. ``layer`` is ``""`` for a line about the whole image.

    ``current`` and ``total`` are bytes of that layer, None where the engine gives none.

    >>> PullProgress("Downloading", "1f2e", current=512, total=2048).layer
    '1f2e'
    """

    status: str
    layer: str = ""
    current: int | None = None
    total: int | None = None


async def pull(
    engine: Engine,
    reference: Reference,
    *,
    platform: str | None = None,
    auth: str | None = None,
    progress: Callable[[PullProgress], object] | None = None,
) -> None:
    """Pull one image and make sure that it is there.

    ``platform`` is for example ``linux/arm64``; ``auth`` the value of ``X-Registry-Auth``. ``progress``
    is called for each status line; if it raises, that is logged once and the pull goes on without it.

    Raises :class:`CreationError` (no such image, wrong platform, no space, interrupted, registry out of
    reach, ...), :class:`AuthError` and :class:`RateLimitError`; all name the reference. Cancelled: the
    engine stops pulling soon after, unless somebody else waits for the same image; layers that it has
    are kept.
    """
    if reference.image_id:
        raise ConfigurationError(
            f"The image {reference} is an id, and not on this engine; only a name can be pulled.",
            hint="Give the image's name, or load it into this engine.",
        )
    params = {**reference.pull_params, "platform": platform}
    headers = {"X-Registry-Auth": auth} if auth else None
    report = _Reporter(progress)
    objects = JSONObjects()
    try:
        async with engine.stream("POST", "/images/create", params=params, headers=headers) as answer:
            async for piece in answer:
                for message in objects.feed(piece):
                    _check(reference, message)
                    report(message)
        objects.end()
        await engine.request("GET", f"/images/{reference}/json")
    except EngineError as error:
        _raise_public(reference, error)
    except EngineUnavailable as error:
        raise _interrupted(reference, error.message) from error
    except ValueError as error:
        raise _interrupted(reference, f"{error}.") from error


class JSONObjects:
    """Cuts a stream of JSON objects apart, wherever it is split; no I/O.

    >>> objects = JSONObjects()
    >>> list(objects.feed(b'{"a": "}"}{"b"')), list(objects.feed(b': 2}'))
    ([{'a': '}'}], [{'b': 2}])
    """

    _begin: Final = re.compile(rb"\s*(\{|$)")
    _marks: Final = re.compile(rb'["\\{}]')

    def __init__(self) -> None:
        self._data = bytearray()
        self._at = 0  # where to look for the next mark
        self._depth = 0
        self._in_string = False

    def feed(self, piece: bytes) -> Iterator[dict[str, Any]]:
        """The objects that are complete now. Raises ``ValueError`` for anything that is none."""
        self._data += piece
        while (end := self._object_end()) is not None:
            text, self._at = bytes(self._data[:end]), 0
            del self._data[:end]
            yield _object(text)
        if len(self._data) > MAX_OBJECT:
            raise ValueError("the engine sent an endless message")

    def end(self) -> None:
        """Raises ``ValueError`` if the stream ended inside an object."""
        if self._data.strip():
            raise ValueError("the answer ended in the middle of a message")

    def _object_end(self) -> int | None:
        """Where the first object ends; None if it is not complete."""
        if not self._depth and not self._begin.match(self._data):
            words = reason_in(bytes(self._data[:200]))
            raise ValueError(f"the engine sent something else than progress: {words!r}")
        while mark := self._marks.search(self._data, self._at):
            self._at = mark.end()
            character = mark[0]
            if self._in_string:
                if character == b"\\":
                    if self._at == len(self._data):
                        self._at -= 1  # what it escapes has not come yet
                        return None
                    self._at += 1
                elif character == b'"':
                    self._in_string = False
            elif character == b'"':
                self._in_string = True
            elif character != b"\\":
                self._depth += 1 if character == b"{" else -1
                if self._depth == 0:
                    return self._at
                if self._depth > MAX_DEPTH:
                    raise ValueError("the engine sent a message that is nested too deeply")
        self._at = len(self._data)
        return None


def _object(text: bytes) -> dict[str, Any]:
    try:
        return json_object(json.loads(text))
    except RecursionError:  # of arrays, which are not counted
        raise ValueError("the engine sent a message that is nested too deeply") from None


class _Reporter:
    def __init__(self, progress: Callable[[PullProgress], object] | None) -> None:
        self._progress = progress

    def __call__(self, message: dict[str, Any]) -> None:
        if self._progress is None or not isinstance(message.get("status"), str):
            return
        detail = json_object(message.get("progressDetail"))
        current, total = (value if isinstance(value, int) else None for value in map(detail.get, _DETAIL))
        try:
            self._progress(PullProgress(message["status"], str(message.get("id", "")), current, total))
        except Exception:  # noqa: BLE001  # the caller's code: a progress bar must not cost a download
            _log.warning("the progress callback failed and is not called again", exc_info=True)
            self._progress = None


_DETAIL: Final = ("current", "total")


def _check(reference: Reference, message: dict[str, Any]) -> None:
    detail = json_object(message.get("errorDetail"))
    text = detail.get("message") or message.get("error")
    if text or detail:
        code = detail.get("code")
        status = code if isinstance(code, int) and 400 <= code < 600 else 0
        words = reason_in(str(text or "it gave no reason").encode())
        raise EngineError.of(f"the pull of {reference}", status, words, retry_after=_retry_after(words))


def _retry_after(words: str) -> float | None:
    """The advice that some registries put into their text (ghcr.io: "retry-after: 877.3ms")."""
    match = re.search(r"retry-after: (\d+(?:\.\d+)?)(ms|µs|s|m)?", words, re.IGNORECASE)
    scale = {"ms": 1e-3, "µs": 1e-6, "m": 60.0}
    return float(match[1]) * scale.get(match[2], 1.0) if match else None


def _interrupted(reference: Reference, why: str) -> CreationError:
    return CreationError(
        f"The pull of {reference} was interrupted: {why}",
        hint="Try again; layers that are complete are kept.",
    )


def _raise_public(reference: Reference, error: EngineError) -> NoReturn:
    """Raise the public error for a refused pull."""
    text = f"The image {reference} cannot be pulled: {error.reason or 'the engine gave no reason'}"
    if error.fault in (Fault.OTHER, Fault.NOT_FOUND):
        for pattern, hint in _IN_PULLS:
            if pattern.search(error.reason):
                raise CreationError(text, hint=hint) from error
    if error.fault is Fault.RATE_LIMITED:
        limited = error.to(RateLimitError, text)
        limited.retry_after = error.retry_after
        raise limited from error
    # Docker Hub says "pull access denied" for a repository that does not exist
    if error.fault is Fault.UNAUTHORIZED and "may require" not in error.reason:
        raise error.to(AuthError, text) from error
    raise error.to(CreationError, text) from error


# What texts mean in a pull, and only there, so that they are not in faults.py; the first that fits decides.
# Sources: containerd issues 5190 and 3786 (platform); containers/image, "no image found in image index";
# containerd, "failed to resolve reference"; Go's net, net/http, crypto/tls and crypto/x509 packages.
_PLATFORM: Final = re.compile(r"no match for platform|no image found in (manifest list|image index)")
_MISSING: Final = re.compile(r": not found$")
_TLS: Final = re.compile(
    r"server gave HTTP response to HTTPS client|x509:|tls: |TLS handshake|certificate", re.IGNORECASE
)
_LOST: Final = re.compile(
    r"connection (refused|reset)|no such host|no route|unreachable|timeout|deadline exceeded|broken pipe|"
    r"closed network connection|EOF\b|proxyconnect|unexpected HTTP status|misbehaving",
    re.IGNORECASE,
)
_TLS_HINT: Final = (
    "Give the engine the registry's certificate (/etc/docker/certs.d/HOST/ca.crt), or, for a registry"
    " without TLS, name it in the engine's insecure-registries."
)
_LOST_HINT: Final = (
    "The engine did not reach the registry, or lost it: check the registry's name and the network of"
    " the engine's machine, then try again; layers that are complete are kept."
)
_IN_PULLS: Final = (
    (_PLATFORM, "Use an image built for this machine's architecture."),
    (_MISSING, "Check the image's name and tag."),
    (_TLS, _TLS_HINT),
    (_LOST, _LOST_HINT),
)

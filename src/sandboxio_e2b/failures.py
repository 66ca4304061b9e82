"""What goes wrong between here and E2B, as errors that people can act on.

The key is sent in a header and nowhere else, and no header is ever part of a message.
"""

from __future__ import annotations

import os
from typing import Any, Final, cast

import httpx

from sandboxio.errors import (
    AuthError,
    ConnectError,
    CreationError,
    FileSystemError,
    PathNotFound,
    RateLimitError,
    SandboxError,
    SandboxGone,
)

from .connection import Broken
from .endpoints import KEY_VARIABLE
from .wire import Garbled, RpcError, parse, plain

NOT_FOUND_TEXT: Final = "sandbox was not found"
"""The edge's answer (502) for a sandbox that has ended (e2b-dev/infra, packages/shared/pkg/proxy)."""
PORT_CLOSED_TEXT: Final = "port is not open"

_STATUS_CODES: Final = {
    400: "invalid_argument",
    401: "unauthenticated",
    403: "permission_denied",
    404: "not_found",
    409: "already_exists",
    429: "resource_exhausted",
    502: "unavailable",
    503: "unavailable",
    504: "deadline_exceeded",
}
"""Plain answers on an RPC path, as ``e2b/envd/client_shared.py`` (2.63.0) reads them."""


class Refusal(Exception):
    """An answer that is no success; the cause of the error that a caller sees."""

    def __init__(self, response: httpx.Response) -> None:
        super().__init__(f"{response.status_code}: {message_of(response)}")


def message_of(response: httpx.Response) -> str:
    """What an error answer says: its ``message``, or the beginning of its text."""
    body = _json(response)
    if isinstance(body, dict):
        message = cast("dict[str, Any]", body).get("message")
        if isinstance(message, str) and message:
            return plain(message)[:500]
    if looks_like_html(response):
        return "it answered with a web page instead of JSON"
    return response.text.strip()[:200] or f"it answered {response.status_code} and nothing else"


def looks_like_html(response: httpx.Response) -> bool:
    return response.headers.get("content-type", "").startswith("text/html") or response.text.lstrip()[
        :9
    ].lower().startswith(("<!doctype", "<html"))


def _json(response: httpx.Response) -> object:
    try:
        return parse(response.content)
    except Garbled:
        return None


def retry_after(response: httpx.Response) -> float | None:
    """The seconds of ``Retry-After``; None if it is missing or a date."""
    text = response.headers.get("retry-after", "").strip()
    return float(text) if text.isdecimal() else None


def control_error(response: httpx.Response, what: str, *, creating: bool, url: str) -> SandboxError:
    """The error of a control-plane answer that is no success."""
    status, said = response.status_code, message_of(response)
    if looks_like_html(response):
        return _family(creating)(
            f"{what}: {url} answered {status} with a web page, not with E2B's API.",
            hint="Check E2B_API_URL and E2B_DOMAIN, and any proxy or gateway between.",
        )
    if status in (401, 403):
        return AuthError(
            f"{what}: E2B refused the key in {KEY_VARIABLE} ({status}: {said}).",
            hint=f"export {KEY_VARIABLE}=e2b_...  # a key of the right team, from https://e2b.dev/dashboard",
        )
    if status == 429 or (status == 503 and "retry-after" in response.headers):
        return _rate_limit(response, what, said)
    if status == 404 and creating:
        return CreationError(
            f"{what}: E2B does not know it ({said}).",
            hint="Use a template that the key's team can see: e2b://code-interpreter-v1, or one of "
            "`e2b template list`.",
        )
    if status >= 500:
        return _family(creating)(
            f"{what}: E2B failed with {status}: {said}.",
            hint="Try again; see https://status.e2b.dev if it lasts.",
        )
    return _family(creating)(f"{what}: E2B refused with {status}: {said}.")


def _rate_limit(response: httpx.Response, what: str, said: str) -> RateLimitError:
    seconds = retry_after(response)
    wait = "a while" if seconds is None else f"{seconds:g} s"
    error = RateLimitError(
        f"{what}: E2B throttles ({response.status_code}: {said}).",
        hint=f"Wait {wait} and try again, or ask E2B for a higher limit.",
    )
    error.retry_after = seconds
    return error


def unreachable(cause: Exception, what: str, *, creating: bool, url: str) -> SandboxError:
    """Nothing came back from the control plane, or nothing that makes sense."""
    return _family(creating)(
        f"{what}: {url} cannot be used: {cause}.",
        hint=f"Check the network, and E2B_DOMAIN and E2B_API_URL if they are set.{_about_proxies()}",
    )


def _about_proxies() -> str:
    """A word on a proxy that the environment names, for the adapter connects directly."""
    names = [
        name for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy") if os.environ.get(name)
    ]
    return f" {names[0]} is set and not used: E2B must be reachable without a proxy." if names else ""


def _family(creating: bool) -> type[CreationError | ConnectError]:
    return CreationError if creating else ConnectError


def rpc_failure(response: httpx.Response) -> RpcError:
    """The error of an envd answer: Connect's own (a text code), or by its HTTP status."""
    body = _json(response)
    code: object = cast("dict[str, Any]", body).get("code") if isinstance(body, dict) else None
    if isinstance(code, str):
        return RpcError(code, message_of(response))
    status = code if isinstance(code, int) else response.status_code
    return RpcError(_STATUS_CODES.get(status, "unknown"), message_of(response))


def gone(sandbox_id: str) -> SandboxGone:
    return SandboxGone(f"Sandbox {sandbox_id} has ended: E2B does not know it any longer.")


def traffic_error(error: RpcError | Garbled | Broken, sandbox_id: str, what: str) -> SandboxError:
    """The error of a call to a sandbox that failed for no reason of the command or the file."""
    if isinstance(error, RpcError):
        if NOT_FOUND_TEXT in error.message:
            return gone(sandbox_id)
        if error.code == "unauthenticated":
            return AuthError(
                f"{what}: sandbox {sandbox_id} refused the access token ({error.message}).",
                hint="connect() to the sandbox again; its token may have been replaced.",
            )
        if error.code == "resource_exhausted":
            return RateLimitError(f"{what}: E2B throttles ({error.message}).")
    return ConnectError(
        f"{what}: sandbox {sandbox_id} did not serve it ({error}).",
        hint="Check the network and E2B_SANDBOX_URL, and whether the sandbox still runs: `sandboxio reap`.",
    )


def file_error(error: RpcError, path: str, sandbox_id: str, what: str) -> SandboxError:
    """The error of a file operation."""
    if error.code == "not_found":
        return PathNotFound(f"{what} of {path!r}: there is no such path in the sandbox.")
    if error.code in ("invalid_argument", "already_exists", "internal", "unknown", "failed_precondition"):
        return FileSystemError(f"{what} of {path!r}: {error.message}.")
    return traffic_error(error, sandbox_id, f"{what} of {path!r}")

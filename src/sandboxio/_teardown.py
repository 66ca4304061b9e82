"""The only file of the core that shields work from cancellation.

1. Shielded work is always bounded: by ``SBX_TEARDOWN_GRACE`` seconds, or by a given bound.
2. A cancellation is never swallowed: :func:`bounded` runs the work to its end and then lets the
   pending cancellation out at its own checkpoint.
3. What asyncio's ``Task.cancel`` throws into shielded work is put off, not obeyed: see ``put_off``.
4. Teardown never replaces the caller's exception: errors of the work are reported to the caller of
   :func:`bounded`, who decides.

Source of the pattern: anyio documentation, "Cancellation and timeouts", section "Shielding".
"""

from __future__ import annotations

import math
import os
import sys
import warnings
from collections.abc import Awaitable, Callable, Mapping

import anyio

from ._redact import cleaned
from .errors import ConfigurationError, OrphanedSandboxWarning

DEFAULT_GRACE = 5.0
"""Seconds: an engine removes a busy container in well under two; a cloud call takes one or two."""


def seconds_from_environment(name: str, default: float) -> float:
    """A positive number of seconds from the environment variable ``name``, or ``default``.

    Raises :class:`ConfigurationError` if the variable is set to anything else.
    """
    text = os.environ.get(name)
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value <= 0:
        raise ConfigurationError(
            f"{name} must be a positive number of seconds, got {text!r}.",
            hint=f"export {name}={default:g}",
        )
    return value


def teardown_grace() -> float:
    """Seconds that a teardown may take before it gives up: ``SBX_TEARDOWN_GRACE``, or 5."""
    return seconds_from_environment("SBX_TEARDOWN_GRACE", DEFAULT_GRACE)


async def bounded(
    work: Callable[[], Awaitable[None]],
    *,
    seconds: float | None = None,
    put_off: list[BaseException] | None = None,
) -> bool:
    """Run ``work`` whatever is cancelled outside, for at most ``seconds``; True if it came to its end.

    ``seconds`` is the teardown grace by default. Errors of ``work`` pass through. This is not a
    checkpoint: callers that must let a pending cancellation out do so after their last step.

    No scope shields from asyncio's own ``Task.cancel``, which ``asyncio.timeout`` uses, too. With
    ``put_off``, ``work`` is done again after such an interruption, so it has to be idempotent; the
    interruption is put there, and the caller raises it after its last step.
    """
    try:
        with anyio.move_on_after(teardown_grace() if seconds is None else seconds, shield=True) as scope:
            if put_off is None:
                await work()
            else:
                await _undeterred(work, scope, put_off)
    except anyio.get_cancelled_exc_class() as interruption:  # noqa: ASYNC103 - the caller raises it
        if put_off is None:
            raise
        put_off.append(interruption)  # anyio lets its own out, too, if another one was asked for meanwhile
        return False  # noqa: ASYNC104 - it is in put_off
    return not scope.cancelled_caught


async def _undeterred(
    work: Callable[[], Awaitable[None]], bound: anyio.CancelScope, put_off: list[BaseException]
) -> None:
    known = -1
    while True:
        try:
            return await work()
        except anyio.get_cancelled_exc_class() as interruption:  # noqa: ASYNC103 - as above
            requests = _cancel_requests()
            if bound.cancel_called or requests <= known:
                raise
            known = requests
            put_off.append(interruption)


def _cancel_requests() -> int:
    """Calls of ``Task.cancel`` that this task has had; -1 on trio, which knows no such thing."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is None or anyio.get_cancelled_exc_class() is not asyncio.CancelledError:
        return -1
    task = asyncio.current_task()
    return -1 if task is None else task.cancelling()


def warn_orphan(what: str, *, backend: str, labels: Mapping[str, str], why: str) -> None:
    """Emit :class:`OrphanedSandboxWarning` so that an operator can find ``what`` by its labels."""
    shown = ", ".join(f"{key}={value}" for key, value in labels.items()) or "none"
    warnings.warn(
        cleaned(
            f"{what} on backend {backend!r} may still exist: {why} (labels: {shown}). "
            f"Look with `sandboxio reap --backend {backend}`, remove with --kill."
        ),
        OrphanedSandboxWarning,
        stacklevel=2,
    )

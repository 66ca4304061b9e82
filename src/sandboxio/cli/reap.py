"""``sandboxio reap``: what backends still hold under sandboxio's label, and its removal."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

import anyio

from sandboxio import registry
from sandboxio._doctor import not_installed
from sandboxio.errors import BackendNotInstalled, CapabilityNotSupported, ConnectError, SandboxError
from sandboxio.models import ManagedSandbox
from sandboxio.protocols import ReapableBackend

from .output import Output, error_dict

HELP: str = "list all sandboxes of sandboxio, also those in use; with --kill, remove them"
EXAMPLES: str = """\
examples:
  sandboxio reap                                list, remove nothing
  sandboxio reap --backend docker               one backend only
  sandboxio reap --label tenant_id=acme         narrowed by the metadata of create()
  sandboxio reap --label run=7 --kill           remove what such a list shows
  sandboxio reap --json                         the same for programs

Sandboxes of programs that still run are listed too: look at the list before you use --kill.

exit codes:
  0    done
  1    a backend could not be listed or a removal failed
  2    wrong usage
  130  interrupted
"""

Status = Literal["listed", "not installed", "cannot list", "failed"]
Outcome = Literal["kept", "removed", "gone", "failed"]


@dataclass
class Found:
    """One sandbox, and what was done about it."""

    sandbox: ManagedSandbox
    outcome: Outcome = "kept"
    error: SandboxError | None = None

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        created = self.sandbox.created_at
        return {
            "sandbox_id": self.sandbox.sandbox_id,
            "state": self.sandbox.state,
            "created_at": None if created is None else created.isoformat(),
            "labels": dict(self.sandbox.labels),
            "outcome": self.outcome,
            "error": None if self.error is None else error_dict(self.error),
        }


@dataclass
class Reaped:
    """One backend's part of the result."""

    name: str
    status: Status
    found: list[Found] = field(default_factory=list[Found])
    error: SandboxError | None = None
    asked_for: bool = False

    @property
    def failed(self) -> bool:
        """True if listing or a removal failed, or if a backend that was named is not there."""
        if self.status == "not installed":
            return self.asked_for
        return self.status == "failed" or any(one.outcome == "failed" for one in self.found)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        return {
            "name": self.name,
            "status": self.status,
            "error": None if self.error is None else error_dict(self.error),
            "sandboxes": [one.as_dict() for one in self.found],
        }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--kill", action="store_true", help="remove what is listed; without it, nothing is")
    parser.add_argument(
        "--label",
        metavar="KEY=VAL",
        type=_label,
        action="append",
        default=[],
        help="only sandboxes whose metadata has this; may be given more than once",
    )
    parser.add_argument(
        "--backend",
        metavar="NAME",
        action="append",
        default=[],
        help="only this backend; may be given more than once (default: every real one)",
    )


def run(arguments: argparse.Namespace, output: Output) -> int:
    """List, and remove if asked to; 1 if that failed anywhere."""
    names: list[str] = [name.partition("://")[0] for name in arguments.backend]
    labels: dict[str, str] = dict(arguments.label)
    kill: bool = arguments.kill
    reaped = anyio.run(_reap_all, names, labels, kill)
    output.payload({"kill": kill, "labels": labels, "backends": [one.as_dict() for one in reaped]})
    _print(reaped, output, kill=kill)
    return 1 if any(one.failed for one in reaped) else 0


def _label(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not key or not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


async def _reap_all(names: list[str], labels: Mapping[str, str], kill: bool) -> list[Reaped]:
    # The fake's sandboxes live and die with the process that made them: there is never one to find.
    chosen = names or [name for name in registry.names() if name != "fake" or registry.is_registered(name)]
    return [await _reap(name, labels, kill=kill, asked_for=bool(names)) for name in dict.fromkeys(chosen)]


async def _reap(name: str, labels: Mapping[str, str], *, kill: bool, asked_for: bool) -> Reaped:
    if (missing := not_installed(name)) is not None:
        return Reaped(name, "not installed", error=missing, asked_for=asked_for)
    try:
        backend = registry.resolve(name)
        if not isinstance(backend, ReapableBackend):
            refusal = CapabilityNotSupported(
                f"Backend {name!r} cannot list its sandboxes.", hint="Look for them at the provider."
            )
            return Reaped(name, "failed" if asked_for else "cannot list", error=refusal)
        found = [Found(one) for one in await backend.list_managed(labels=labels or None)]
    except BackendNotInstalled as error:
        return Reaped(name, "not installed", error=error, asked_for=asked_for)
    except SandboxError as error:
        return Reaped(name, "failed", error=error)
    except Exception as error:  # noqa: BLE001 - a broken adapter must not keep the others from being reaped
        return Reaped(name, "failed", error=_broken(name, error))
    if kill:
        for one in found:
            await _remove(name, backend, one)
    return Reaped(name, "listed", found)


async def _remove(name: str, backend: ReapableBackend, one: Found) -> None:
    try:
        one.outcome = "removed" if await backend.kill_managed(one.sandbox.sandbox_id) else "gone"
    except SandboxError as error:
        one.outcome, one.error = "failed", error
    except Exception as error:  # noqa: BLE001 - nor one sandbox the others
        one.outcome, one.error = "failed", _broken(name, error)


def _broken(name: str, error: Exception) -> ConnectError:
    failure = ConnectError(
        f"The adapter of {name!r} failed: {type(error).__name__}: {error}",
        hint="Upgrade or reinstall the adapter.",
    )
    failure.__cause__ = error
    return failure


def _print(reaped: list[Reaped], output: Output, *, kill: bool) -> None:
    for backend in reaped:
        if backend.status == "listed":
            count = len(backend.found)
            output.title(f"{backend.name}: {count or 'no'} sandbox{'' if count == 1 else 'es'}")
            for one in backend.found:
                _print_one(one, output, kill=kill)
        elif backend.error is not None:
            if backend.status == "failed":
                output.traceback(backend.error)
            output.title(f"{backend.name}: {backend.status}")
            if backend.status != "not installed":
                output.line(backend.error.message, indent=2)
            output.line(f"fix: {backend.error.hint}", indent=2, hang=2)
    if not kill and any(one.found for one in reaped):
        output.line("Nothing was removed. Remove them with --kill.")


def _print_one(one: Found, output: Output, *, kill: bool) -> None:
    sandbox = one.sandbox
    parts = [f"{sandbox.sandbox_id[:24]}  {sandbox.state}"]
    if sandbox.created_at is not None:
        parts.append(_age(sandbox.created_at))
    parts.extend(f"{key}={value}" for key, value in sorted(sandbox.labels.items()))
    if kill:
        parts.append(one.outcome)
    output.line("  ".join(parts), indent=2, hang=4)
    if one.error is not None:
        output.traceback(one.error)
        output.line(one.error.message, indent=6)
        output.line(f"fix: {one.error.hint}", indent=6, hang=2)


def _age(created: datetime) -> str:
    if created.tzinfo is None:  # what a provider writes without a zone is UTC
        created = created.replace(tzinfo=UTC)
    seconds = max(0.0, (datetime.now(UTC) - created).total_seconds())
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} old"
    return f"{seconds:.0f} s old"

"""The labels that tell a sandbox from any other container, and what can be read back from them.

========================== =================================================================
io.sandboxio.managed       ``true``: sandboxio made it
io.sandboxio.session       process id of its creator, on the creator's machine
io.sandboxio.timeout       its lifetime in seconds
io.sandboxio.meta.<key>    one for each entry of the caller's ``metadata``, unchanged
========================== =================================================================

A caller's keys live behind their own prefix, so none can pose as one of ours. An image's labels become
labels of its containers (Docker Engine API v1.41, ContainerCreate), so an image with one of ours is refused.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

from sandboxio.errors import ConfigurationError
from sandboxio.models import DEFAULT_TIMEOUT, ManagedSandbox

from .answers import json_object

OURS = "io.sandboxio."
MANAGED = "io.sandboxio.managed"
SESSION = "io.sandboxio.session"
TIMEOUT = "io.sandboxio.timeout"
META = "io.sandboxio.meta."

_STATES: Mapping[str, Literal["running", "stopped", "paused"]] = {
    "running": "running",
    "restarting": "running",
    "paused": "paused",
}


def labels_for(metadata: Mapping[str, str], timeout: float) -> dict[str, str]:
    """The labels of a new sandbox."""
    caller = {META + key: value for key, value in metadata.items()}
    return {**caller, MANAGED: "true", SESSION: str(os.getpid()), TIMEOUT: f"{timeout:g}"}


def refuse_labels_of_ours(name: str, image: Mapping[str, Any]) -> None:
    """Raise if an image, by its description, sets labels that only ``create`` may set.

    They would pose as a creator's metadata, or as the proof of gVisor (``isolation.py``).
    """
    found = sorted(key for key in labels_of(json_object(image.get("Config"))) if key.startswith(OURS))
    if found:
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        raise ConfigurationError(
            f"The image {name} has labels that are sandboxio's own: {', '.join(found[:3])}{more}.",
            hint="Build the image without them. One made by `docker commit` of a sandbox has them; "
            "`docker export CONTAINER | docker import - NAME` makes one without any label.",
        )


def is_managed(labels: Mapping[str, str]) -> bool:
    """True for a container that sandboxio made."""
    return labels.get(MANAGED) == "true"


def metadata_in(labels: Mapping[str, str]) -> dict[str, str]:
    """The creator's ``metadata``.

    >>> metadata_in({"io.sandboxio.managed": "true", "io.sandboxio.meta.tenant_id": "acme"})
    {'tenant_id': 'acme'}
    """
    return {key.removeprefix(META): text for key, text in labels.items() if key.startswith(META)}


def timeout_in(labels: Mapping[str, str]) -> float:
    """The lifetime in seconds; the default if the label is missing or was tampered with."""
    try:
        value = float(labels.get(TIMEOUT, ""))
    except ValueError:
        return DEFAULT_TIMEOUT
    return value if math.isfinite(value) and value > 0 else DEFAULT_TIMEOUT


def labels_of(answer: Mapping[str, Any]) -> dict[str, str]:
    """The labels in an entry of ``GET /containers/json``, or in a container's or image's config."""
    return {str(key): str(value) for key, value in json_object(answer.get("Labels")).items()}


def managed_of(entry: Mapping[str, Any], backend: str) -> ManagedSandbox:
    """One entry of ``GET /containers/json``. A container that never started counts as stopped."""
    return ManagedSandbox(
        sandbox_id=str(entry["Id"]),
        backend=backend,
        state=_STATES.get(str(entry.get("State")), "stopped"),
        created_at=_time(entry.get("Created")),
        labels=metadata_in(labels_of(entry)),
    )


def _time(seconds: Any) -> datetime | None:
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (TypeError, ValueError, OverflowError, OSError):  # not a number, or of no year that there is
        return None

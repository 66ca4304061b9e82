"""What is read of a JSON answer, whose shape nobody has checked: as it should be, or as if it were not there.

For what must be there, :class:`sandboxio_docker.engine.Engine` has ``get_object`` and ``get_list``.
"""

from __future__ import annotations

from typing import Any


def json_object(value: Any) -> dict[str, Any]:
    """``value`` if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}  # pyright: ignore[reportUnknownVariableType]


def json_list(value: Any) -> list[Any]:
    """``value`` if it is a JSON array, else an empty one."""
    return value if isinstance(value, list) else []  # pyright: ignore[reportUnknownVariableType]

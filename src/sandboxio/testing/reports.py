"""Values of the library's own frames out of pytest's reports.

pytest shows the arguments of the function that raised, and with ``--showlocals`` every variable. Inside
of a call into sandboxio these are requests and environments, so a test log could hold a secret that the
exception itself does not show. Lines of code, files and messages stay; so do the values of the test.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).parents[1]


def leave_out_values(report: Any) -> None:
    """Change a failure report of pytest in place; anything else passes.

    Frames from the first one inside of sandboxio on lose their values, and so do those of every exception
    in the chain below.
    """
    inside = False
    chain: list[tuple[Any, Any, Any]] = list(getattr(report, "chain", ()))
    for traceback, _, _ in reversed(chain):  # the exception that came out first
        for entry in getattr(traceback, "reprentries", ()):
            inside = inside or _is_ours(entry)
            if inside and hasattr(entry, "reprfuncargs"):
                entry.reprfuncargs = None
                entry.reprlocals = None


def _is_ours(entry: Any) -> bool:
    location = getattr(entry, "reprfileloc", None)
    return location is not None and Path(location.path).resolve().is_relative_to(_PACKAGE)

"""Writes down which tests ran and how they ended, for whoever has to know that a certain test did run.

``pytest --outcomes FILE`` appends a line of JSON for each; several runs may share the file. The tests of the
contract are written in one place and run in others, so a line names both: where the function stands, and
where pytest found it.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def places(item: pytest.Function) -> list[str]:
    """``path::function`` of a test, as pytest found it and as it is written; paths from the repository."""
    name = item.originalname
    source = inspect.getsourcefile(inspect.unwrap(item.function))
    paths = {Path(item.path), Path(source or item.path)}
    return sorted(f"{_relative(path)}::{name}" for path in paths)


def _relative(path: Path) -> str:
    path = path.resolve()
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else str(path)


def line(item: pytest.Item, report: pytest.TestReport) -> str | None:
    """The line of one phase of a test; None where the phase decides nothing."""
    if not isinstance(item, pytest.Function) or (report.passed and report.when != "call"):
        return None
    outcome = "xfailed" if hasattr(report, "wasxfail") and report.skipped else report.outcome
    found: dict[str, Any] = {"places": places(item), "test": item.nodeid, "outcome": outcome}
    return json.dumps(found) + "\n"


def append(file: Path, item: pytest.Item, report: pytest.TestReport) -> None:
    """Append at once: a run that breaks off has told what it saw."""
    if (text := line(item, report)) is not None:
        with file.open("a") as opened:
            opened.write(text)

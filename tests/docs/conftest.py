"""Tells at the end of a run how many blocks of the pages were executed, and where."""

from __future__ import annotations

from collections import Counter
from typing import Any


def pytest_terminal_summary(terminalreporter: Any) -> None:
    places: Counter[str] = Counter()
    for report in terminalreporter.getreports("passed"):
        places.update(str(value) for name, value in report.user_properties if name == "executed")
    if places:
        told = "; ".join(f"{count} in {place}" for place, count in sorted(places.items()))
        terminalreporter.write_line(f"blocks of the documentation that were executed: {told}")

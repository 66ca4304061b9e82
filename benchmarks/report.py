"""Results for people: a table of medians and ratios."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

TITLES = {
    "true": 'run(["true"])',
    "code": 'run_code("print(1)")',
    "small_file": "write + read 1 KiB",
    "burst_64": "64 at once",
    "first_result": "create to first result",
    "stream_200mb": "one stream of 200 MiB",
    "timeout_overshoot": "timeout overshoot",
    "cancel_to_gone": "cancel to process gone",
    "import": "import",
    "kill": "kill of one process",
    "cpu_per_1000": "CPU per 1,000 commands",
}


def table(results: dict[str, Any]) -> Iterator[str]:
    """Lines: one measure after the other, best subject first."""
    for name, measure in results["measures"].items():
        yield ""
        yield f"{TITLES.get(name, name)}"
        rows = [
            (statistics.median(values), subject, values) for subject, values in measure["samples"].items()
        ]
        for middle, subject, values in sorted(rows, reverse=measure["better"] == "more"):
            spread = f"{shown(min(values), measure['unit'])} to {shown(max(values), measure['unit'])}"
            yield f"  {subject:36s} {shown(middle, measure['unit']):>12s}   ({spread}, n={len(values)})"
    if record := results.get("record"):
        yield ""
        yield "one record of an operation"
        yield from (f"  {name:36s} {value:9.1f} us" for name, value in record.items())
    for name, loops in results.get("heavy", {}).items():
        for loop, figures in loops.items():
            yield ""
            yield f"{name} ({loop})"
            yield from (f"  {figure:36s} {value:12.3f}" for figure, value in figures.items())


def shown(value: float, unit: str) -> str:
    """A figure with a unit that reads well."""
    if unit == "s":
        return f"{value * 1000:.2f} ms" if value < 1 else f"{value:.2f} s"
    if unit == "B/s":
        return f"{value / 1e6:.0f} MB/s"
    return f"{value:.0f} {unit}"

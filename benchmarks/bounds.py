"""The bounds that the project set itself, and whether a run of measurements keeps them.

Ratios of medians from one interleaved run; a margin stands for the noise of a shared machine.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MARGIN = 1.15
"""A ratio may miss its bound by this factor before it fails: medians of two runs here differ by 10 %."""

Results = dict[str, Any]


@dataclass(frozen=True)
class Bound:
    """``measured`` gives the figure of a results file; ``limit`` is the most, or least, it may be.

    ``ceiling`` is what could be reached at best on the machine of that file. A bound beyond it stays missed;
    the line says so.
    """

    what: str
    beside: str
    limit: float
    measured: Callable[[Results], float]
    least: bool = False
    unit: str = "x"
    ceiling: Callable[[Results], float] | None = None

    def holds(self, figure: float) -> bool:
        """True within the margin."""
        return figure * MARGIN >= self.limit if self.least else figure <= self.limit * MARGIN


def median(results: Results, measure: str, subject: str) -> float:
    """The median of one subject's samples."""
    return statistics.median(results["measures"][measure]["samples"][subject])


def ratio(measure: str, one: str, other: str) -> Callable[[Results], float]:
    """Median of one subject over the median of another."""
    return lambda results: median(results, measure, one) / median(results, measure, other)


def best_of(measure: str, several: tuple[str, ...], other: str) -> Callable[[Results], float]:
    """The largest of several medians over the median of another subject."""
    return lambda results: (
        max(median(results, measure, one) for one in several) / median(results, measure, other)
    )


def heavy(name: str, figure: str) -> Callable[[Results], float]:
    """The worse of both loops."""
    return lambda results: max(figures[figure] for figures in results["heavy"][name].values())


OURS, OURS_TRIO = "sandboxio guest (asyncio)", "sandboxio guest (trio)"
FLOOR, FLOOR_TRIO = "local subprocess (asyncio)", "local subprocess (trio)"

BOUNDS = [
    Bound('run(["true"])', "anyio.run_process on the host, asyncio", 1.5, ratio("true", OURS, FLOOR)),
    Bound('run(["true"])', "anyio.run_process on the host, trio", 1.5, ratio("true", OURS_TRIO, FLOOR_TRIO)),
    Bound('run(["true"])', "docker-py exec_run", 1 / 25, ratio("true", OURS, "docker-py")),
    Bound(
        '64 run(["true"]) at once, rate',
        "docker-py, 64 threads",
        40,
        ratio("burst_64", OURS, "docker-py"),
        least=True,
    ),
    Bound(
        "create() to first result",
        "the engine's create + attach + start",
        1.2,
        ratio("first_result", OURS, "raw engine"),
    ),
    Bound(
        "create() to first result",
        "docker-py run(detach) + exec_run",
        0.7,
        ratio("first_result", OURS, "docker-py"),
    ),
    Bound(
        "one stream of 200 MB, rate",
        "the same stream, unread, asyncio",
        0.7,
        ratio("stream_200mb", OURS, "guest stream, unread (asyncio)"),
        least=True,
    ),
    Bound(
        "one stream of 200 MB, rate",
        "the same stream, unread, trio",
        0.7,
        ratio("stream_200mb", OURS_TRIO, "guest stream, unread (trio)"),
        least=True,
    ),
    Bound(
        "one stream of 200 MB, rate",
        "docker-py exec_run(stream=True)",
        2,
        ratio("stream_200mb", OURS, "docker-py"),
        least=True,
        ceiling=best_of("stream_200mb", ("raw engine, attach", "raw engine, exec"), "docker-py"),
    ),
    Bound(
        "timeout overshoot", "-", 0.05, lambda results: median(results, "timeout_overshoot", OURS), unit="s"
    ),
    Bound(
        "write + read of 1 KiB",
        "docker-py put_archive + get_archive",
        0.1,
        ratio("small_file", OURS, "docker-py"),
    ),
    Bound("1 GiB upload, growth of memory", "-", 50, heavy("transfer", "upload_rss_growth_mb"), unit="MB"),
    Bound(
        "1 GiB download, growth of memory", "-", 50, heavy("transfer", "download_rss_growth_mb"), unit="MB"
    ),
    Bound("500 live streams, threads added", "-", 0, heavy("many_streams", "threads_added"), unit=""),
    Bound("500 live streams, kill", "-", 1.0, heavy("many_streams", "kill_s"), unit="s"),
    Bound(
        "one record, with NoopSink",
        'run(["true"])',
        0.05,
        lambda results: results["record"]["NoopSink"] / 1e6 / median(results, "true", OURS),
    ),
    Bound(
        "import sandboxio",
        "python -c pass",
        0.05,
        lambda results: (
            median(results, "import", "import sandboxio") - median(results, "import", "python -c pass")
        ),
        unit="s",
    ),
]


def check(results: Results) -> tuple[list[str], int]:
    """A line for each bound, and how many are missed."""
    lines, missed = [], 0
    for bound in BOUNDS:
        sign = ">=" if bound.least else "<="
        try:
            figure = bound.measured(results)
        except KeyError as error:
            lines.append(f"not measured  {bound.what} beside {bound.beside} ({error})")
            missed += 1
            continue
        holds = bound.holds(figure)
        missed += not holds
        verdict = "ok  " if holds else "MISS"
        limit = f"{sign} {bound.limit:.3g} {bound.unit}"
        line = f"{verdict}  {bound.what:34s} {figure:9.3f}  {limit:12s} beside {bound.beside}"
        lines.append(line + ceiling(bound, results))
    return lines, missed


def ceiling(bound: Bound, results: Results) -> str:
    """What the engine itself could reach, for a bound whose measure was taken with it."""
    if bound.ceiling is None:
        return ""
    try:
        return f" (the engine's own stream reaches {bound.ceiling(results):.2f})"
    except KeyError:
        return ""

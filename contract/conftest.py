"""A table at the end of the run: outcomes of the contract by backend and loop, and why tests were skipped."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

import pytest

from tests.harness.twins import loop_of

OUTCOMES = ("passed", "failed", "skipped", "xfailed")

_suites: dict[str, tuple[str, str]] = {}
_counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
_reasons: dict[str, Counter[str]] = defaultdict(Counter)


def pytest_collection_modifyitems(items: Iterable[pytest.Item]) -> None:
    for item in items:
        if (suite := getattr(item, "cls", None)) is not None:
            _suites[item.nodeid] = (suite.__name__, loop_of(item) or "sync")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.nodeid not in _suites or (report.when != "call" and report.outcome == "passed"):
        return
    suite, loop = _suites[report.nodeid]
    outcome = "xfailed" if report.skipped and hasattr(report, "wasxfail") else report.outcome
    _counts[suite, loop][outcome] += 1
    if outcome == "skipped" and isinstance(report.longrepr, tuple):
        _reasons[suite][report.longrepr[2].removeprefix("Skipped: ")] += 1


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if not _counts:
        return
    terminalreporter.section("contract")
    width = max(len(suite) for suite, _ in _counts)
    terminalreporter.line(f"{'':{width}}  loop     " + "".join(f"{each:>9}" for each in OUTCOMES))
    for suite, loop in sorted(_counts):
        counts = "".join(f"{_counts[suite, loop][each]:>9}" for each in OUTCOMES)
        terminalreporter.line(f"{suite:{width}}  {loop:<8} {counts}")
    for suite in sorted(_reasons):
        terminalreporter.line(f"skipped in {suite}:")
        for reason, count in _reasons[suite].most_common():
            terminalreporter.line(f"  {count:>4}  {reason}")

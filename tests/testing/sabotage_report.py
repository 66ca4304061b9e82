"""A pytest plugin for the run of the broken fakes: one loop for most tests, outcomes as JSON lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sabotage-report", help="file for one line a test: fake, test, loop, outcome, why")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    names = sorted({getattr(item, "cls").__name__ for item in items})  # noqa: B009 - not every item has one
    loops = {name: ("asyncio", "trio")[number % 2] for number, name in enumerate(names)}
    items[:] = [item for item in items if _wanted(item, loops)]


def _wanted(item: Any, loops: dict[str, str]) -> bool:
    """All that must fail, on both loops; of the rest what this fake is checked with, on one."""
    suite, name = item.cls, item.originalname
    if name in suite.catches:
        return True
    areas = {_area(suite, caught) for caught in suite.catches}
    if not suite.thorough and _area(suite, name) not in areas:
        return False
    return _loop(item) in (None, loops[suite.__name__])


def _area(suite: type, name: str) -> type:
    return next(each for each in suite.__mro__ if name in vars(each))


def _loop(item: Any) -> str | None:
    callspec = getattr(item, "callspec", None)
    return None if callspec is None else callspec.params.get("anyio_backend")


class Outcomes:
    def __init__(self, path: Path) -> None:
        self._file = path.open("w")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            _, fake, test = report.nodeid.rsplit("::", 2)
            name, _, parameters = test.partition("[")
            loop = "trio" if "trio" in parameters else "asyncio" if "asyncio" in parameters else "none"
            why = str(report.longrepr)[-800:] if report.failed else ""
            self._file.write(json.dumps([fake, name, loop, report.outcome, why]) + "\n")

    def pytest_unconfigure(self) -> None:
        self._file.close()


def pytest_configure(config: pytest.Config) -> None:
    if path := config.getoption("--sabotage-report"):
        config.pluginmanager.register(Outcomes(Path(path)))

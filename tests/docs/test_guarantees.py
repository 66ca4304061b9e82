"""Every promise has a proof: the tests that docs/guarantees.md names exist and would be collected."""

from __future__ import annotations

import ast
import re

from .pages import ROOT

PAGE = (ROOT / "docs/guarantees.md").read_text()
ROWS = re.findall(r"^\| (?!Promise|-)(.+?) \| (.+?) \|$", PAGE, re.MULTILINE)


def functions_of(text: str) -> set[str]:
    tree = ast.walk(ast.parse(text))
    return {each.name for each in tree if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}


def missing(proof: str) -> str | None:
    """What is wrong with a proof such as ```tests/x.py::test_y```; None if nothing is."""
    match = re.fullmatch(r"`([\w/]+\.py)(?:::(test_\w+))?`", proof)
    if match is None:
        return f"{proof} names no test"
    path = ROOT / match[1]
    if not path.exists():
        return f"{match[1]} does not exist"
    found = functions_of(path.read_text())
    if match[2] is None:
        return None if any(name.startswith("test_") for name in found) else f"{match[1]} has no test"
    return None if match[2] in found else f"{match[1]} has no {match[2]}"


def test_every_promise_names_a_test_that_exists() -> None:
    assert len(ROWS) >= 50
    assert [complaint for _, proof in ROWS if (complaint := missing(proof))] == []


def test_no_promise_stands_twice() -> None:
    assert len({promise for promise, _ in ROWS}) == len(ROWS)


def test_a_test_that_is_gone_is_found() -> None:
    here = "tests/docs/test_guarantees.py"
    assert missing(f"`{here}::test_no_promise_stands_twice`") is None
    assert missing(f"`{here}::test_that_nobody_wrote`") is not None
    assert missing("`tests/docs/nothing.py::test_it`") is not None
    assert missing("see the tests") is not None

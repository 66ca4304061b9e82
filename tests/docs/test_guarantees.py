"""Every promise has a proof: the tests that docs/guarantees.md names exist, and whether they ran is seen.

That they ran and passed is checked where everything has run: at the end of scripts/run_tests.sh.
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

from scripts import guarantees
from tests.harness import outcomes

from .pages import ROOT

PAGE = guarantees.PAGE.read_text()
ROWS = guarantees.promises(PAGE)


def functions_of(text: str) -> set[str]:
    tree = ast.walk(ast.parse(text))
    return {each.name for each in tree if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}


def missing(proof: str) -> str | None:
    """What is wrong with a proof such as ``tests/x.py::test_y``; None if nothing is."""
    match = re.fullmatch(r"([\w/]+\.py)(?:::(test_\w+))?", proof)
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
    assert missing(f"{here}::test_no_promise_stands_twice") is None
    assert missing(f"{here}::test_that_nobody_wrote") is not None
    assert missing("tests/docs/nothing.py::test_it") is not None
    assert missing("see the tests") is not None


# Whether they ran


TABLE = """| Promise | Proof |
|---|---|
| Kept on two backends | `src/suite.py::test_kept` |
| Kept by a whole file | `tests/test_whole.py` |
| Fails once | `tests/test_it.py::test_fails` |
| Skipped everywhere | `tests/test_it.py::test_skipped` |
| Known not to hold | `tests/test_it.py::test_known` |
| Not run | `tests/test_it.py::test_not_run` |
"""


def ended(outcome: str, test: str, *places: str) -> str:
    return json.dumps({"places": [*places, test], "test": test, "outcome": outcome})


RAN = [
    ended("passed", "contract/test_a.py::test_kept", "src/suite.py::test_kept"),
    ended("passed", "contract/test_b.py::test_kept", "src/suite.py::test_kept"),
    ended("skipped", "contract/test_c.py::test_kept", "src/suite.py::test_kept"),
    ended("passed", "tests/test_whole.py::test_one"),
    ended("passed", "tests/test_it.py::test_fails"),
    ended("failed", "tests/test_it.py::test_fails"),
    ended("skipped", "tests/test_it.py::test_skipped"),
    ended("xfailed", "tests/test_it.py::test_known"),
]


def test_what_ran_is_told_and_what_did_not_is_found() -> None:
    told = guarantees.report(TABLE, RAN)
    assert [line for _, line in told] == [
        "proved      Kept on two backends: contract/test_a.py 1x, contract/test_b.py 1x",
        "proved      Kept by a whole file: tests/test_whole.py 1x",
        "NOT PROVED  Fails once: tests/test_it.py::test_fails failed 1 times",
        "NOT PROVED  Skipped everywhere: tests/test_it.py::test_skipped skipped 1 times",
        "NOT PROVED  Known not to hold: tests/test_it.py::test_known xfailed 1 times",
        "NOT PROVED  Not run: tests/test_it.py::test_not_run did not run",
    ]
    assert [verdict for verdict, _ in told] == ["proved"] * 2 + ["NOT PROVED"] * 4


def test_a_promise_with_an_unsteady_test_is_not_called_proved() -> None:
    told = guarantees.report(TABLE, RAN, ["tests/test_it.py::test_fails"])
    assert told[2] == ("unsteady", "unsteady    Fails once: tests/test_it.py 1x")
    assert [verdict for verdict, _ in told].count("proved") == 2
    other = guarantees.report(TABLE, RAN, ["tests/test_it.py::test_skipped"])
    assert other == guarantees.report(TABLE, RAN), "only a failure is forgiven"


def test_the_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "outcomes"
    file.write_text("")
    assert guarantees.main([str(file)]) == 1
    assert f"0 of {len(ROWS)} promises proved, 0 unsteady" in capsys.readouterr().out
    file.write_text("\n".join(ended("passed", proof) for _, proof in ROWS))
    assert guarantees.main([str(file)]) == 0
    proof = ROWS[0][1]
    file.write_text(file.read_text() + "\n" + ended("failed", proof))
    assert guarantees.main([str(file)]) == 1
    unsteady = tmp_path / "unsteady"
    unsteady.write_text(f"{proof}\n")
    assert guarantees.main([str(file), str(unsteady)]) == 0
    assert guarantees.main([]) == 2


def test_a_test_is_known_by_where_it_stands(request: pytest.FixtureRequest) -> None:
    """Through decorators too: what hypothesis and others wrap is found where it is written."""
    assert isinstance(request.node, pytest.Function)
    here = "tests/docs/test_guarantees.py::test_a_test_is_known_by_where_it_stands"
    assert outcomes.places(request.node) == [here]


def test_the_last_step_of_all_tests_looks_at_them() -> None:
    script = (ROOT / "scripts/run_tests.sh").read_text()
    assert "--outcomes" in script
    assert re.search(r"-m scripts\.guarantees .*\|\| fail guarantees", script)

"""The contract suite finds faults: each broken fake fails the tests made for its fault, and no other.

The tests that must catch a fault run on both loops. Of the others, all or those of the same areas run
on one loop, for half of the fakes on asyncio and for half on trio.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from . import broken

ROOT = Path(__file__).parents[2]
FAKES = sorted(name for name in vars(broken) if name.startswith("Test"))
SHARDS = 4
"""Runs beside each other: most of their time is spent waiting for what must not come."""

Failures = dict[str, dict[str, dict[str, str]]]


def started(shard: int, folder: Path) -> subprocess.Popen[str]:
    ini = folder / "pytest.ini"
    ini.write_text(f"[pytest]\npythonpath = {ROOT}\nfilterwarnings = error\npython_files = broken.py\n")
    off = [f"no:{plugin}" for plugin in ("asyncio", "trio", "randomly", "cacheprovider")]
    options = ["-c", str(ini), "--rootdir", str(ROOT), "--noconftest", "--import-mode=importlib", "-q"]
    options += [word for plugin in (*off, "tests.testing.sabotage_report") for word in ("-p", plugin)]
    options += ["--sabotage-report", str(folder / f"{shard}.jsonl"), "--tb=no", "--timeout=120"]
    fakes = [f"{ROOT}/tests/testing/broken.py::{name}" for name in FAKES[shard::SHARDS]]
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, *fakes],
        cwd=ROOT,
        env={**os.environ, "CI": "true"},  # as where people run the suite: pytest shortens nothing then
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> Failures:
    """Broken fake to test to loop to the failure, from one run of all of them."""
    folder = tmp_path_factory.mktemp("sabotage")
    runs = [started(shard, folder) for shard in range(SHARDS)]
    try:
        for run in runs:
            output, _ = run.communicate(timeout=840)
            assert run.returncode == pytest.ExitCode.TESTS_FAILED, output[-3000:]
    finally:
        for run in runs:
            run.kill()
            run.wait()
    failed: Failures = defaultdict(lambda: defaultdict(dict))
    for shard in range(SHARDS):
        for line in (folder / f"{shard}.jsonl").read_text().splitlines():
            fake, test, loop, outcome, why = json.loads(line)
            if outcome == "failed":
                failed[fake][test][loop] = why
    return failed


def test_there_are_many_ways_to_be_broken() -> None:
    assert len(FAKES) >= 15


@pytest.mark.timeout(900)
@pytest.mark.slow
@pytest.mark.parametrize("fake", FAKES)
def test_a_broken_fake_is_caught_by_the_tests_made_for_it(fake: str, failures: Failures) -> None:
    kind = getattr(broken, fake)
    others = {test: why for test, why in failures[fake].items() if test not in kind.catches | kind.may_catch}
    assert not others
    for test in kind.catches:
        assert set(failures[fake][test]) in ({"asyncio", "trio"}, {"none"}), f"{test} missed it on a loop"

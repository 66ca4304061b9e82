"""Run the contract on every engine and print one table of what came of it.

    python -m scripts.engines_matrix                     # all engines
    python -m scripts.engines_matrix docker26 podman     # these; SBX_ENGINES="docker26 podman" says the same
    python -m scripts.engines_matrix --list              # the further engines that `make test` takes

Where engines cannot be brought up (not root, or not Debian and its like) and none is named, only the first
one counts; a sentence says so. An engine that is named and cannot be brought up is a failure.

Needs the packages of the project and pytest, as `make engines` has them. The table has one row for each
engine, runtime, channel and loop ("other" is what tests outside the contract measure), then how long the
container of a killed program took to go, and for each engine the labelled containers that are left on it.
Exit 1 if a test failed, if none ran where some should, or if a container is left. Engines that were down
before are taken down afterwards; `--keep` leaves them.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from scripts import engine_api, engines
from scripts.engine import Problem, say

ROOT = Path(__file__).parents[1]
OUTCOMES = ("passed", "failed", "skipped", "xfailed")
SETTLE_SECONDS = 10.0
"""How long an engine may take to remove what it was told to."""

MANAGED = {"label": ["io.sandboxio.managed=true"]}
CREATOR = "io.sandboxio.session"


@dataclass(frozen=True)
class Row:
    """What one part of a run is called."""

    engine: str
    runtime: str
    channel: str
    loop: str


@dataclass
class Result:
    """What came of the contract on one engine."""

    counts: dict[Row, Counter[str]] = field(default_factory=dict[Row, Counter[str]])
    seconds: float = 0.0
    problem: str = ""
    left: list[str] = field(default_factory=list[str])
    killed: dict[str, list[float]] = field(default_factory=dict[str, list[float]])

    @property
    def bad(self) -> bool:
        failed = any(counts["failed"] for counts in self.counts.values())
        ran = any(counts["passed"] for counts in self.counts.values())
        return bool(failed or not ran or self.problem or self.left)


SUITE = ("contract/test_docker.py", "tests/real/test_creator_killed.py")
GVISOR = ("contract/test_docker_gvisor.py", "tests/real/test_gvisor.py")
KILLED = "killed in "


def suite_of(name: str, *, short: bool = False) -> tuple[tuple[str, ...], str]:
    """The files that run on an engine, as far as they are there, and the runtime in them."""
    files, runtime = (GVISOR, "runsc") if name.endswith("-runsc") else (SUITE, "runc")
    if short and runtime == "runsc":
        files = files[1:]
    return tuple(file for file in files if (ROOT / file).exists()), runtime


def rows(report: ET.Element, engine: str, runtime: str) -> dict[Row, Counter[str]]:
    """The counts in a report in JUnit's form, as pytest writes it."""
    found: dict[Row, Counter[str]] = {}
    for case in report.iter("testcase"):
        suite = case.get("classname", "").rpartition(".")[2]
        channel = next((kind for kind in ("guest", "exec") if kind in suite.lower()), "other")
        loop = re.search(r"\[.*?\b(asyncio|trio)\b", case.get("name", ""))
        row = Row(engine, runtime, channel, loop[1] if loop else "sync")
        found.setdefault(row, Counter())[outcome(case)] += 1
    return found


def outcome(case: ET.Element) -> str:
    """How one test ended. What fails while it is set up or taken down has failed, whatever else it did."""
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    skipped = case.find("skipped")
    if skipped is None:
        return "passed"
    return "xfailed" if skipped.get("type") == "pytest.xfail" else "skipped"


def killed(report: ET.Element) -> dict[str, list[float]]:
    """Seconds until the container of a killed program was gone, by what the program did."""
    found: dict[str, list[float]] = {}
    for each in report.iter("property"):
        if (name := each.get("name", "")).startswith(KILLED):
            found.setdefault(name.removeprefix(KILLED), []).append(float(each.get("value", "nan")))
    return found


def containers_left(host: str, since: float) -> list[str]:
    """Sandboxes that began after `since` and whose creator is gone: others may use the first engine, too."""
    try:
        listed = engine_api.containers(MANAGED, host)
    except OSError as error:
        raise Problem(str(error)) from error
    return [
        f"{found['Names'][0].lstrip('/')} ({found['State']})"
        for found in listed
        if found["Created"] >= int(since) and not Path("/proc", found["Labels"].get(CREATOR, "none")).exists()
    ]


def settled(host: str, since: float) -> list[str]:
    deadline = time.monotonic() + SETTLE_SECONDS
    while (left := containers_left(host, since)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def run(name: str, extra: list[str], *, together: bool = False) -> Result:
    """The contract on one engine, which is brought up. Run `together`, it shows its output at the end."""
    result = Result()
    began = time.monotonic()
    try:
        host, image = engines.up(name)
    except Problem as problem:
        result.problem = f"it could not be brought up: {problem}"
        return result
    files, runtime = suite_of(name, short=together)
    since = time.time()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        report = Path(folder, "report.xml")
        pytest = [sys.executable, "-m", "pytest", *files, "-q", "--tb=native", "-o", "junit_family=xunit1"]
        need = ["--require", "docker", f"--junitxml={report}", f"--basetemp={folder}/t"]
        environment = os.environ | {"DOCKER_HOST": host, "SBX_TEST_IMAGE": image}
        with tempfile.TemporaryFile() as output:
            done = subprocess.run(
                [*pytest, *need, *extra],
                cwd=ROOT,
                env=environment,
                stdout=output if together else None,
                stderr=subprocess.STDOUT if together else None,
                check=False,
            )
            output.seek(0)
            if together:  # in one piece
                print(f"== contract on {name}", output.read().decode(errors="replace"), sep="\n", flush=True)
        if done.returncode:
            result.problem = f"pytest ended with {done.returncode}"
        try:
            root = ET.parse(report).getroot()
            result.counts, result.killed = rows(root, name, runtime), killed(root)
        except (OSError, ET.ParseError):
            result.problem = f"pytest ended with {done.returncode} and without a report"
    result.left = settled(host, since)
    result.seconds = time.monotonic() - began
    return result


def run_together(names: list[str], extra: list[str]) -> dict[str, Result]:
    """The contract on several engines at once: it waits more than it computes."""
    for name in names:
        with suppress(Problem):  # told by run(); one after another, since apt does not wait for itself
            engines.up(name)
    with ThreadPoolExecutor(len(names)) as pool:
        done = pool.map(partial(run, extra=extra, together=True), names)
        return dict(zip(names, done, strict=True))


def table(results: dict[str, Result]) -> Iterable[str]:
    """The lines of the table, and below it what is wrong."""
    yield "engine          runtime  channel  loop     " + "".join(f"{each:>9}" for each in OUTCOMES)
    for result in results.values():
        for row in sorted(result.counts, key=lambda row: (row.channel == "exec", row.loop)):
            counts = "".join(f"{result.counts[row][each]:>9}" for each in OUTCOMES)
            yield f"{row.engine:<15} {row.runtime:<8} {row.channel:<8} {row.loop:<8} {counts}"
    yield ""
    for name, result in results.items():
        times = ", ".join(f"{moment} {max(seconds):.2f}" for moment, seconds in sorted(result.killed.items()))
        if times:
            yield f"{name:<15} creator killed, container gone after at most (s): {times}"
    for name, result in results.items():
        yield f"{name:<15} {len(result.left)} labelled containers left; {result.seconds:.0f} s"
        yield from (f"  left: {each}" for each in result.left)
    for name, result in results.items():
        if result.bad:
            yield f"{name}: {result.problem or 'see above'}"


def wanted(named: list[str]) -> list[str]:
    """The engines to run on: those that were named, those of SBX_ENGINES, or all that can be brought up."""
    chosen = named or os.environ.get("SBX_ENGINES", "").replace(",", " ").split()
    if unknown := [name for name in chosen if name not in engines.NAMES]:
        raise Problem(f"no such engine: {' '.join(unknown)}; there are {', '.join(engines.NAMES)}")
    if chosen:
        return chosen
    if problem := engines.problem():
        say(f"Left out: {', '.join(engines.FURTHER)}. {problem}")
        return [engines.FIRST]
    return list(engines.NAMES)


def main() -> int:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="scripts.engines_matrix", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("engines", nargs="*", metavar="engine", help=", ".join(engines.NAMES))
    parser.add_argument("--keep", action="store_true", help="leave the engines up")
    parser.add_argument(
        "--together", action="store_true", help="at the same time; of gVisor the proof, not the contract"
    )
    parser.add_argument("--list", action="store_true", help="only print the further engines")
    options, extra = parser.parse_known_args()
    results: dict[str, Result] = {}
    try:
        chosen = wanted(options.engines)
        if options.list:
            print(*(name for name in chosen if name != engines.FIRST))
            return 0
        were_up = {name for name in chosen if name == engines.FIRST or engines.is_up(name)}
        if options.together:
            results = run_together(chosen, extra)
        for name in chosen:
            if name not in results:
                say(f"== contract on {name}")
                results[name] = run(name, extra)
            if name not in were_up and not options.keep:
                engines.down([name])
    except Problem as problem:
        say(str(problem))
        return 1
    print("\n" + "\n".join(table(results)))
    return int(any(result.bad for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())

"""``python -m benchmarks``: measure, tell, and write the results as JSON.

    python -m benchmarks                            everything, about a quarter of an hour
    python -m benchmarks --quick                    fewer rounds
    python -m benchmarks --check                    measure what the bounds need, then compare
    python -m benchmarks --check --from FILE        compare a file of results
    python -m benchmarks --plots FILE               draw the plots of a file of results

The image comes from SBX_TEST_IMAGE, the engine from DOCKER_HOST.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import anyio

from . import bounds, e2b, machine, measures, plots, record_overhead, report, scale
from .heavy import BOUNDED, HEAVY


def say(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


def measure_all(*, rounds: int, bounds_only: bool) -> dict[str, Any]:
    """Run everything and collect plain data."""
    few = max(3, rounds // 4)
    taken: list[measures.Measure] = []
    subjects = measures.open_all(measures.everybody(), say)
    try:
        taken.append(measures.calls(subjects, "true", rounds, say))
        taken.append(measures.calls(subjects, "small_file", max(3, rounds // 2), say))
        taken.append(measures.bursts(subjects, few, say))
        if not bounds_only:
            taken.append(measures.calls(subjects, "code", max(3, rounds // 2), say, quick=3))
            taken.append(measures.cpu(subjects, say))
    finally:
        measures.close_all(subjects)
    taken.append(measures.creates(rounds, say))
    taken.append(measures.streams(few, say))
    taken += measures.endings(few if bounds_only else rounds, say)
    taken.append(measures.imports(rounds, say))
    if not bounds_only:
        taken += scale.runs_at_once(say)
        taken += scale.sandboxes(say)
        taken += scale.file_sizes(say)
        taken += e2b.beside_the_sdk(rounds, say)
    return {
        "machine": machine.facts(),
        "measures": {each.name: asdict(each) for each in taken},
        "heavy": {
            name: {loop: heavy(name, loop) for loop in loops}
            for name, (_, loops) in HEAVY.items()
            if name in BOUNDED or not bounds_only
        },
        "record": anyio.run(record_overhead.measure),
    }


def heavy(name: str, loop: str) -> dict[str, float]:
    """One measure in a process of its own."""
    say(f"{name} on {loop}")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.heavy", name, loop], capture_output=True, text=True, check=True
    )
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument(
        "--check", action="store_true", help="compare with the bounds; exit 1 if one is missed"
    )
    parser.add_argument(
        "--from", dest="source", type=Path, metavar="FILE", help="use these results, measure nothing"
    )
    parser.add_argument("--plots", type=Path, metavar="FILE", help="draw the plots of these results and stop")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/latest.json"), metavar="FILE")
    given = parser.parse_args()
    if given.plots:
        for drawn in plots.draw(json.loads(given.plots.read_text()), given.plots.parent):
            print(drawn)
        return 0
    if given.source:
        results = json.loads(given.source.read_text())
    else:
        results = measure_all(rounds=6 if given.quick else 20, bounds_only=given.check)
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(results, indent=1) + "\n")
        print("\n".join(report.table(results)))
        print(f"\nwritten to {given.out}")
    if not given.check:
        return 0
    lines, missed = bounds.check(results)
    print("\n" + "\n".join(lines))
    print(f"\n{len(lines) - missed} of {len(lines)} bounds hold (margin for noise: {bounds.MARGIN}x)")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

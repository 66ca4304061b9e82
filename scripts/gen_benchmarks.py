"""Writes docs/benchmarks.md with its drawings, and the README's table of speed, from the results of a run.

No figure is typed by hand. The results are benchmarks/results/latest.json; `make bench` ends with this.

python -m scripts.gen_benchmarks            write the page and the drawings
python -m scripts.gen_benchmarks --check    change nothing; exit 1 and name what differs
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from benchmarks import bounds, plots

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results/latest.json"
START, END = "<!-- speed: written by scripts/gen_benchmarks.py -->", "<!-- speed ends -->"
NOTE = "<!-- Generated from benchmarks/results/latest.json by scripts/gen_benchmarks.py. Do not edit. -->"
INTRODUCTION = """\
# Speed, measured

All of this comes from one run of `make bench` on one machine:

{machine}

Every figure is a median. All subjects have the same image, the same caps and no network, and are visited in
turn, round after round, in random order, so that drift hits all alike. What matters is the ratio between two
rows: figures from another machine will differ. The *floor* is what no library can be faster than: a process
of the machine itself, or the engine's bare API. *guest* and *exec* are the two
[ways into a container](explanation/guest-and-lifeline.md).

## Bounds

The project set itself these bounds; `make bench-check` measures them again. {verdict}

| What | Beside | Measured | Bound | |
|---|---|---|---|---|
"""


def files(results: dict[str, Any], readme: str) -> dict[str, str]:
    """Path in the repository to text: the page, one drawing for each measure, the README with its table."""
    drawn = {f"benchmarks/{name}.svg": text for name, text in plots.drawings(results).items()}
    found = {f"docs/{name}": text for name, text in drawn.items()}
    before, _, rest = readme.partition(START)
    after = rest.partition(END)[2]
    table = short_table(results)
    return {
        "docs/benchmarks.md": page(results, list(drawn)),
        "README.md": f"{before}{START}\n{table}{END}{after}",
        **found,
    }


def short_table(results: dict[str, Any]) -> str:
    """The README's: ratios to others, and which bounds of the project are missed."""
    lines = ["| What | sandboxio | Beside |", "|---|---|---|"]
    missed = []
    for bound in bounds.BOUNDS:
        try:
            figure = bound.measured(results)
        except KeyError:
            continue
        if bound.unit == "x":
            lines.append(f"| {_cell(bound.what)} | {_ratio(figure, 'x')} | {_cell(bound.beside)} |")
        if not bound.holds(figure):
            sign = "at least" if bound.least else "at most"
            missed.append(f"{bound.what} beside {bound.beside} ({sign} {_ratio(bound.limit, bound.unit)})")
    text = "\n".join(lines) + "\n\n"
    return text + (f"Bounds of the project that are missed: {'; '.join(missed)}.\n" if missed else "")


def page(results: dict[str, Any], drawn: list[str]) -> str:
    """The page's Markdown."""
    rows, missed = bound_rows(results)
    verdict = "All of them hold." if not missed else f"{missed} of {len(rows)} are missed."
    parts = [INTRODUCTION.format(machine=machine(results["machine"]), verdict=verdict) + "".join(rows)]
    for path in drawn:
        name = Path(path).stem
        measure = results["measures"].get(name)
        title = plots.TITLES[name] if measure else plots.SWEEPS[f"{name}_"][0]
        parts.append(f"## {title}\n\n![{title}]({path})\n" + (f"\n{table(measure)}" if measure else ""))
    return "\n".join([*parts, heavy(results.get("heavy", {})), NOTE]) + "\n"


def machine(facts: dict[str, Any]) -> str:
    """What was measured on."""
    versions = ", ".join(
        f"{name} {version}" for name, version in facts["packages"].items() if name != "sandboxio"
    )
    return (
        f"{facts['cpus']} cores ({facts['cpu']}), {facts['memory_gib']:g} GiB, Linux {facts['kernel']}, "
        f"Python {facts['python']}, Docker {facts['engine']}; {versions}."
    )


def bound_rows(results: dict[str, Any]) -> tuple[list[str], int]:
    """A row for each bound that was measured, and how many of them are missed."""
    rows, missed = [], 0
    for bound in bounds.BOUNDS:
        try:
            figure = bound.measured(results)
        except KeyError:
            continue  # a run with fewer measures
        kept = figure >= bound.limit if bound.least else figure <= bound.limit
        missed += not bound.holds(figure)
        verdict = "holds" if kept else "within the noise" if bound.holds(figure) else "**missed**"
        rows.append(
            f"| {_cell(bound.what)} | {_cell(bound.beside)} | {_ratio(figure, bound.unit)} "
            f"| {'at least' if bound.least else 'at most'} {_ratio(bound.limit, bound.unit)} | {verdict} |\n"
        )
    return rows, missed


def _ratio(figure: float, unit: str) -> str:
    if unit == "x":
        return f"1/{1 / figure:.0f}" if 0 < figure < 0.2 else f"{figure:.3g} x"
    return plots.shown(figure, unit) if unit == "s" else f"{figure:.3g} {unit}".strip()


def _cell(text: str) -> str:
    return "" if text == "-" else text.replace("|", "\\|")


def table(measure: dict[str, Any]) -> str:
    """Median, least and most of each subject, the best first."""
    unit, more = measure["unit"], measure["better"] == "more"
    lines = ["| | Median | Least | Most | Samples |", "|---|---:|---:|---:|---:|"]
    samples = measure["samples"]
    for name in sorted(samples, key=lambda each: statistics.median(samples[each]), reverse=more):
        values = samples[name]
        figures = (statistics.median(values), min(values), max(values))
        cells = " | ".join(plots.shown(figure, unit) for figure in figures)
        lines.append(f"| {name} | {cells} | {len(values)} |")
    return "\n".join(lines) + "\n"


def heavy(results: dict[str, Any]) -> str:
    """What was measured in a process of its own: memory, many streams, many sandboxes."""
    if not results:
        return ""
    lines = ["## In a process of its own", "", "| What | Figure | Loop | Value |", "|---|---|---|---:|"]
    lines += [
        f"| {name.replace('_', ' ')} | {figure.replace('_', ' ')} | {loop} | {value:,.3g} |"
        for name, loops in results.items()
        for loop, figures in loops.items()
        for figure, value in figures.items()
    ]
    return "\n".join(lines) + "\n"


def differences(wanted: dict[str, str], folder: Path) -> list[str]:
    """One line for each file that is missing, superfluous or out of date."""
    lines = []
    for name, text in wanted.items():
        path = folder / name
        if not path.exists():
            lines.append(f"{name}: missing")
        elif path.read_text() != text:
            lines.append(f"{name}: out of date")
    kept = {f"docs/benchmarks/{path.name}" for path in (folder / "docs/benchmarks").glob("*.svg")}
    return lines + [f"{name}: nothing was measured under that name" for name in sorted(kept - wanted.keys())]


def main(arguments: list[str], source: Path = RESULTS, folder: Path = ROOT) -> int:
    """Write or check; the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="change nothing, exit 1 if something differs")
    wanted = files(json.loads(source.read_text()), (folder / "README.md").read_text())
    if parser.parse_args(arguments).check:
        lines = differences(wanted, folder)
        print("\n".join([*lines, *(["Run: python -m scripts.gen_benchmarks"] if lines else [])]))
        return 1 if lines else 0
    (folder / "docs/benchmarks").mkdir(parents=True, exist_ok=True)
    for path in (folder / "docs/benchmarks").glob("*.svg"):
        path.unlink()
    for name, text in wanted.items():
        (folder / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Plots of a results file: readable on light and dark pages, units on every axis, the floor drawn in."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

mpl.use("Agg")

INK = "#8a8f98"
"""Grey that reads on white and on near-black; backgrounds stay transparent."""
OURS, OTHERS, FLOOR = "#2f81f7", "#9a6700", "#1a7f37"


def draw(results: dict[str, Any], folder: Path) -> Iterator[Path]:
    """Write the plots as SVG and PNG; yields each file."""
    measures = results["measures"]
    yield from _save(_one_command(measures["true"]["samples"]), folder / "one_command")
    if any(name.startswith("at_once_") for name in measures):
        yield from _save(_at_once(measures), folder / "at_once")
    if "sandboxes_at_once" in measures:
        yield from _save(_sandboxes(measures["sandboxes_at_once"]["samples"]), folder / "sandboxes")
    yield from _save(_first_result(measures["first_result"]["samples"]), folder / "first_result")


def _save(figure: plt.Figure, path: Path) -> Iterator[Path]:
    for ending in (".svg", ".png"):
        figure.savefig(path.with_suffix(ending), transparent=True, dpi=144)
        yield path.with_suffix(ending)
    plt.close(figure)


def _axes(title: str, *, height: float = 4.0) -> tuple[plt.Figure, Axes]:
    figure, axes = plt.subplots(figsize=(7.5, height), layout="constrained")
    axes.set_title(title, color=INK, loc="left")
    axes.tick_params(colors=INK, which="both")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(INK)
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)
    axes.grid(visible=True, axis="x", color=INK, alpha=0.25, which="both")
    return figure, axes


def _colour(subject: str) -> str:
    if "local" in subject or "raw" in subject:
        return FLOOR
    return OURS if "sandboxio" in subject else OTHERS


def _bars(title: str, samples: dict[str, list[float]]) -> plt.Figure:
    rows = sorted(
        ((statistics.median(values) * 1000, name) for name, values in samples.items()), reverse=True
    )
    figure, axes = _axes(title, height=0.8 + 0.36 * len(rows))
    names = [name for _, name in rows]
    bars = axes.barh(names, [value for value, _ in rows], color=[_colour(name) for name in names])
    axes.bar_label(bars, fmt="%.3g ms", padding=4, color=INK)
    axes.set_xscale("log")
    axes.set_xlabel("milliseconds, median, logarithmic (less is better)")
    axes.margins(x=0.15)
    return figure


def _one_command(samples: dict[str, list[float]]) -> plt.Figure:
    return _bars('One command: run(["true"])', samples)


def _first_result(samples: dict[str, list[float]]) -> plt.Figure:
    return _bars("From create() to the first result", samples)


def _at_once(measures: dict[str, Any]) -> plt.Figure:
    figure, axes = _axes("Commands per second by how many run at once")
    series: dict[str, list[tuple[int, float]]] = {}
    for name, measure in measures.items():
        if name.startswith("at_once_"):
            for subject, values in measure["samples"].items():
                series.setdefault(subject, []).append(
                    (int(name.rpartition("_")[2]), statistics.median(values))
                )
    for number, (subject, points) in enumerate(series.items()):
        points.sort()
        axes.plot(
            *zip(*points, strict=True),
            marker="o",
            label=subject,
            color=_colour(subject),
            linestyle="-:"[number % 2],
        )
    axes.set_xscale("log", base=4)
    axes.set_yscale("log")
    axes.set_xticks([1, 4, 16, 64, 256], ["1", "4", "16", "64", "256"])
    axes.set_xlabel("runs at once")
    axes.set_ylabel("commands per second, logarithmic (more is better)")
    axes.legend(labelcolor=INK, frameon=False)
    return figure


def _sandboxes(samples: dict[str, list[float]]) -> plt.Figure:
    figure, axes = _axes("Opening sandboxes at once, each until its first result")
    counts = sorted(int(count) for count in samples)
    seconds = [statistics.median(samples[str(count)]) for count in counts]
    axes.plot(counts, seconds, marker="o", color=OURS, label="sandboxio")
    axes.plot(
        counts,
        [seconds[0] * count for count in counts],
        color=FLOOR,
        linestyle="--",
        label="one after another",
    )
    axes.set_xlabel("sandboxes")
    axes.set_ylabel("seconds (less is better)")
    axes.legend(labelcolor=INK, frameon=False)
    return figure

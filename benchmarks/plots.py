"""Drawings of a results file: one row or line a subject, units on every axis, the floor drawn in.

Plain SVG without any library, so the same results give the same bytes and a test can compare them. The few
colours are those of docs/diagrams; the site exchanges them on a dark page (docs/assets/site.css).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

Results = dict[str, Any]
Samples = dict[str, list[float]]
Points = list[tuple[float, float]]

PAPER, INK, MUTED, LINE = "#ffffff", "#1b2733", "#44566c", "#33475b"
OURS, OTHERS, FLOOR = "#0b6e99", "#a06a13", LINE
WIDTH, LEFT, RIGHT = 520, 20, 96
"""Narrow enough to be read on a phone as it is."""
ROW = 40
TITLES = {
    "true": "One command: true",
    "code": "One line of Python",
    "small_file": "Write and read a file of 1 KiB",
    "first_result": "From create() to the first result",
    "burst_64": "64 commands started at once",
    "stream_200mb": "One stream of 200 MiB",
    "timeout_overshoot": "How late a timeout ends a command",
    "cancel_to_gone": "From a cancellation until the process is gone",
    "kill": "Kill of one process",
    "cpu_per_1000": "CPU time of 1,000 commands",
    "import": "Import in a new interpreter",
    "e2b_true": "E2B's stand-in: one command",
    "e2b_small_file": "E2B's stand-in: write and read 1 KiB",
    "e2b_first_result": "E2B's stand-in: create() to the first result",
    "e2b_stream_20mb": "E2B's stand-in: one stream of 20 MiB",
}
"""Measures in the order in which they are shown; one that a file lacks is left out."""
SWEEPS = {
    "at_once_": ("Commands a second, by how many run at once", "commands at once"),
    "sandboxes_": ("Sandboxes opened at once, until each gave a result", "sandboxes"),
    "upload_": ("Upload, by size of the file", "size of the file"),
    "download_": ("Download, by size of the file", "size of the file"),
}
"""Measures that come in steps: prefix, then title and name of the horizontal axis."""


def draw(results: Results, folder: Path) -> Iterator[Path]:
    """Write every drawing; yields each file."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in drawings(results).items():
        path = folder / f"{name}.svg"
        path.write_text(text)
        yield path


def drawings(results: Results) -> dict[str, str]:
    """Name of a measure, or of a sweep, to its drawing."""
    measures = results["measures"]
    found = {name: rows(TITLES[name], measures[name]) for name in TITLES if name in measures}
    for prefix, (title, across) in SWEEPS.items():
        steps = {
            int(name.removeprefix(prefix)): measure
            for name, measure in measures.items()
            if name.startswith(prefix) and name.removeprefix(prefix).isdigit()
        }
        if len(steps) > 1:
            found[prefix.rstrip("_")] = lines(title, across, steps)
    return found


def shown(value: float, unit: str, *, round_value: bool = False) -> str:
    """A figure of three digits with the unit that suits it; a round value has no zeros behind its point."""
    if unit == "s":
        value, unit = next(
            ((value * by, name) for by, name in ((1e6, "\u00b5s"), (1e3, "ms")) if value * by < 999.5),
            (value, "s"),
        )
    elif unit == "B/s":
        value, unit = value / 1e6, "MB/s"
    elif unit == "bytes":
        value, unit = next(
            (value / by, name)
            for by, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1024, "KiB"), (1, "B"))
            if value >= by
        )
    digits = max(0, 2 - math.floor(math.log10(value))) if value > 0 else 0
    text = f"{value:,.{digits}f}"
    if "." in text and (round_value or unit.endswith("B")):
        text = text.rstrip("0").rstrip(".")
    return f"{text}/s" if unit == "1/s" else f"{text} {unit}".strip()


def is_floor(subject: str) -> bool:
    """What no library can be faster than: a process of this machine, the engine's bare API."""
    return subject.startswith(("local", "raw", "guest stream", "python -c"))


def _colour(subject: str) -> str:
    return FLOOR if is_floor(subject) else OURS if "sandboxio" in subject else OTHERS


# One row for each subject


def rows(title: str, measure: dict[str, Any]) -> str:
    """Median of each subject as a dot on its span from least to most, the best on top."""
    unit, more = measure["unit"], measure["better"] == "more"
    samples: Samples = measure["samples"]
    order = sorted(samples, key=lambda name: statistics.median(samples[name]), reverse=more)
    top, bottom = 44, 54 + ROW * len(order)
    axis = Axis([value for values in samples.values() for value in values], LEFT, WIDTH - RIGHT)
    parts = [_text(16, 28, title, size=16, weight="bold")]
    for value in axis.ticks():
        x = axis.place(value)
        parts += [
            _line(x, top, x, bottom, width=0.6),
            _text(x, bottom + 18, shown(value, unit, round_value=True), anchor="middle"),
        ]
    floors = [name for name in order if is_floor(name)]
    floor = axis.place(statistics.median(samples[floors[0]])) if floors else None
    for number, name in enumerate(order):
        y, colour, values = top + ROW * number + 28, _colour(name), samples[name]
        middle, most = axis.place(statistics.median(values)), axis.place(max(values))
        if floor is not None:  # row by row, so that it crosses no name
            parts.append(_line(floor, y - 8, floor, y + 12, colour=FLOOR, width=1.6, dashes="4 3"))
        parts += [
            _text(LEFT, y - 11, name, colour=INK, halo=True),
            _line(axis.place(min(values)), y, most, y, colour=colour, width=3),
            _dot(middle, y, colour, hollow=is_floor(name)),
            _text(most + 10, y + 4.5, shown(statistics.median(values), unit), colour=INK, halo=True),
        ]
    words = f"{'more' if more else 'less'} is better; dot: median, bar: least to most"
    words += ", logarithmic" if axis.logarithmic else ""
    words += "; dashed: the floor" if floors else ""
    parts.append(_text(LEFT, bottom + 40, words))
    medians = "; ".join(f"{name} {shown(statistics.median(samples[name]), unit)}" for name in order)
    return _svg(bottom + 54, title, f"Medians: {medians}.", parts)


# One line for each subject


def lines(title: str, across: str, steps: dict[int, dict[str, Any]]) -> str:
    """Medians over the steps of a sweep, both axes logarithmic; names stand below."""
    first = next(iter(steps.values()))
    unit, more = first["unit"], first["better"] == "more"
    series: dict[str, Points] = {}
    for step in sorted(steps):
        for name, values in steps[step]["samples"].items():
            series.setdefault(name, []).append((step, statistics.median(values)))
    left, right, top, bottom = 84, WIDTH - 24, 44, 324
    x_axis = Axis([float(step) for step in steps], left, right, logarithmic=True)
    y_axis = Axis([y for points in series.values() for _, y in points], bottom, top, logarithmic=True)
    parts = [_text(16, 28, title, size=16, weight="bold")]
    for value in y_axis.ticks():
        y = y_axis.place(value)
        parts += [
            _line(left, y, right, y, width=0.6),
            _text(left - 8, y + 4.5, shown(value, unit, round_value=True), anchor="end"),
        ]
    for step in sorted(steps):
        x = x_axis.place(step)
        label = shown(step, "bytes") if across.startswith("size") else f"{step:,}"
        parts += [_line(x, bottom, x, bottom + 5), _text(x, bottom + 20, label, anchor="middle")]
    names_from = bottom + 70
    for number, (name, points) in enumerate(series.items()):
        colour, dashes = _colour(name), ("", "7 4", "2 3")[number % 3]
        path = " ".join(f"{x_axis.place(x):.1f},{y_axis.place(y):.1f}" for x, y in points)
        dash = f' stroke-dasharray="{dashes}"' if dashes else ""
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        parts += [_dot(x_axis.place(x), y_axis.place(y), colour, hollow=is_floor(name)) for x, y in points]
        y = names_from + 20 * number
        parts += [
            _line(left, y - 4.5, left + 46, y - 4.5, colour=colour, width=2, dashes=dashes),
            _dot(left + 23, y - 4.5, colour, hollow=is_floor(name)),
            _text(left + 58, y, f"{name}: {shown(points[-1][1], unit)} at the end", colour=INK),
        ]
    words = f"{across}; {'more' if more else 'less'} is better; logarithmic"
    parts.append(_text(left, bottom + 44, words))
    last = "; ".join(
        f"{name} {shown(points[-1][1], unit)} at {points[-1][0]:,}" for name, points in series.items()
    )
    return _svg(names_from + 20 * len(series), title, f"Medians at the last step: {last}.", parts)


# Parts


class Axis:
    """From values to places; logarithmic where values differ by more than a factor of eight."""

    def __init__(
        self, values: Sequence[float], start: float, end: float, *, logarithmic: bool | None = None
    ) -> None:
        positive = [value for value in values if value > 0] or [1.0]
        low, high = min(positive), max(positive)
        self.logarithmic = high / low > 8 if logarithmic is None else logarithmic
        self.low, self.high = (low / 1.15, high * 1.15) if self.logarithmic else (0.0, high * 1.05)
        self.start, self.end = start, end

    def place(self, value: float) -> float:
        """The place of ``value``; one below the axis stands at its beginning."""
        if self.logarithmic:
            value = max(value, self.low)
            part = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            part = value / self.high
        return self.start + part * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Round values; few enough to have room for their names."""
        if not self.logarithmic:
            step = 10 ** math.floor(math.log10(self.high))
            step = next(each for each in (step / 5, step / 2, step) if self.high / each <= 6)
            return [step * number for number in range(1, int(self.high / step) + 1)]
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        every = max(1, round((last - first) / 7))
        factors: Iterable[int] = (1, 2, 5) if last - first <= 3 else (1,)
        found = [factor * 10.0**power for power in range(first, last + 1, every) for factor in factors]
        return [value for value in found if self.low <= value <= self.high]


def _text(
    x: float,
    y: float,
    text: str,
    *,
    anchor: str = "start",
    size: int = 13,
    weight: str = "",
    colour: str = MUTED,
    halo: bool = False,
) -> str:
    around = f' stroke="{PAPER}" stroke-width="5" paint-order="stroke"' if halo else ""
    bold = f' font-weight="{weight}"' if weight else ""
    colour = INK if weight else colour
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}"{bold}{around} '
        f'fill="{colour}" font-family="Helvetica, Arial, sans-serif">{escape(text)}</text>'
    )


def _line(
    x: float, y: float, to_x: float, to_y: float, *, colour: str = LINE, width: float = 1, dashes: str = ""
) -> str:
    faint = ' stroke-opacity="0.35"' if width < 0.7 else ""
    dash = f' stroke-dasharray="{dashes}"' if dashes else ""
    return (
        f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}" stroke="{colour}" '
        f'stroke-width="{width}"{faint}{dash}/>'
    )


def _dot(x: float, y: float, colour: str, *, hollow: bool) -> str:
    inside = PAPER if hollow else colour
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{inside}" stroke="{colour}" stroke-width="2"/>'


def _svg(height: float, title: str, description: str, parts: Iterable[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" '
        f'height="{height:.0f}" role="img" aria-labelledby="t d">\n<title id="t">{escape(title)}</title>\n'
        f'<desc id="d">{escape(description)}</desc>\n'
        f'<rect x="0" y="0" width="{WIDTH}" height="{height:.0f}" fill="{PAPER}"/>\n'
    )
    return head + "\n".join(parts) + "\n</svg>\n"

"""The page of speed is what the results say, and its drawings show what they should."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from benchmarks import plots
from scripts import gen_benchmarks

RESULTS: dict[str, Any] = json.loads(gen_benchmarks.RESULTS.read_text())


def test_the_page_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    code = gen_benchmarks.main(["--check"])
    assert code == 0, capsys.readouterr().out


def test_other_results_make_it_out_of_date(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "README.md").write_text(f"before\n{gen_benchmarks.START}\n{gen_benchmarks.END}\nafter\n")
    results = copy.deepcopy(RESULTS)
    source = tmp_path / "results.json"
    source.write_text(json.dumps(results))
    assert gen_benchmarks.main([], source, tmp_path) == 0
    assert gen_benchmarks.main(["--check"], source, tmp_path) == 0
    samples = results["measures"]["true"]["samples"]
    samples["docker-py"] = [value * 3 for value in samples["docker-py"]]
    source.write_text(json.dumps(results))
    (tmp_path / "docs/benchmarks/stray.svg").write_text("<svg/>")
    assert gen_benchmarks.main(["--check"], source, tmp_path) == 1
    told = capsys.readouterr().out
    for name in ("docs/benchmarks.md", "docs/benchmarks/true.svg", "docs/benchmarks/stray.svg", "README.md"):
        assert name in told
    readme = (tmp_path / "README.md").read_text()
    assert readme.startswith("before\n")
    assert readme.endswith("after\n")


def sweep() -> dict[str, Any]:
    """Results of commands at once, with a subject that stops early."""
    steps = {}
    for count in (1, 4, 16):
        samples = {"sandboxio guest (asyncio)": [100.0 * count], "local subprocess (asyncio)": [900.0]}
        if count < 16:
            samples["docker-py"] = [20.0]
        steps[f"at_once_{count}"] = {"unit": "1/s", "better": "more", "samples": samples}
    return {"measures": steps}


@pytest.mark.parametrize("results", [RESULTS, sweep()], ids=["measured", "sweep"])
def test_drawings_are_xml_and_stay_inside(results: dict[str, Any]) -> None:
    drawn = plots.drawings(results)
    assert drawn
    for text in drawn.values():
        root = ET.fromstring(text)
        width, height = float(root.get("width", "0")), float(root.get("height", "0"))
        for element in root.iter():
            for name, value in element.attrib.items():
                if name in ("x", "cx", "x1", "x2"):
                    assert 0 <= float(value) <= width
                if name in ("y", "cy", "y1", "y2"):
                    assert 0 <= float(value) <= height


def test_every_subject_is_named_and_the_floor_is_drawn() -> None:
    text = plots.drawings(RESULTS)["true"]
    for subject in RESULTS["measures"]["true"]["samples"]:
        assert f">{subject}</text>" in text
    assert "stroke-dasharray" in text
    assert "dashed: the floor" in text


def test_a_name_from_outside_is_escaped() -> None:
    measure = {"unit": "s", "better": "less", "samples": {"<b>&": [0.5]}}
    assert "<b>" not in plots.rows("title", measure)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0011734, "s", "1.17 ms"),
        (0.0000004, "s", "0.400 \u00b5s"),
        (12.5, "s", "12.5 s"),
        (1609.2, "1/s", "1,609/s"),
        (307e6, "B/s", "307 MB/s"),
        (1 << 20, "bytes", "1 MiB"),
        (0, "s", "0 \u00b5s"),
    ],
)
def test_figures_have_units_that_suit_them(value: float, unit: str, text: str) -> None:
    assert plots.shown(value, unit) == text

"""Links lead somewhere; modules, variables and codes that a page names exist."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from .pages import PAGES, ROOT, dead_links, name_of

ATTRIBUTES = set(re.findall(r"\"(sandboxio\.[\w.]+)\"", (ROOT / "src/sandboxio/otel.py").read_text()))
"""Names of span attributes, which are no modules."""
SOURCES = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_and_anchors_resolve(page: Path) -> None:
    assert dead_links(page) == []


def test_a_dead_link_and_a_dead_anchor_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One Name\n\n[a](#one-name) [b](gone.md) [c](#two) [d](page.md#one-name)\n")
    assert dead_links(page) == ["gone.md", "#two"]


def unknown_names(text: str) -> list[str]:
    """Dotted names of ours in backticks that cannot be imported."""
    dotted = re.findall(r"`((?:sandboxio|sandboxio_docker|sandboxio_e2b)(?:\.\w+)+)(?:\([^`]*\))?`", text)
    return [name for name in dotted if name not in ATTRIBUTES and not _exists(name)]


def _exists(name: str) -> bool:
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_names_of_ours_exist(page: Path) -> None:
    assert unknown_names(page.read_text().replace("`sandboxio.backends`", "")) == []


def test_an_unknown_name_is_found() -> None:
    assert unknown_names("`sandboxio.create()`, `sandboxio.creat()`") == ["sandboxio.creat"]


def test_every_switch_of_the_environment_is_on_the_page_and_the_other_way_round() -> None:
    page = (ROOT / "docs/how-to/operations.md").read_text()
    own = {"SBX_FAKE_TOKEN", "SBX_SUITE_MARK", "SBX_SUITE_HOST"}  # of the fake and of the suite
    read = set(re.findall(r"\"(SBX_[A-DF-Z][A-Z_]+)\"", SOURCES)) - own
    assert set(re.findall(r"`(SBX_[A-DF-Z][A-Z_]+)`", page)) == read


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_codes_on_a_page_exist(page: Path) -> None:
    known = {path.stem for path in (ROOT / "docs/errors").glob("SBX_E*.md")}
    assert set(re.findall(r"SBX_E\d{4}", page.read_text())) <= known


def test_drawings_are_xml_with_a_text_for_those_who_cannot_see_them() -> None:
    drawings = sorted((ROOT / "docs/diagrams").glob("*.svg"))
    assert drawings
    for drawing in drawings:
        root = ET.fromstring(drawing.read_text())
        assert [root[0].tag, root[1].tag] == [
            f"{{http://www.w3.org/2000/svg}}{tag}" for tag in ("title", "desc")
        ]

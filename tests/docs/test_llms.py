"""docs/llms.txt lists pages that exist, no page is left out, and one file can hold them all."""

from __future__ import annotations

from pathlib import Path

from scripts import gen_llms_full

from .pages import ROOT, dead_links

MAINTAINERS = {"docs/README.md", "docs/runbook.md", "docs/churn-log.md"}
FROM_SOURCE = "docs/reference/python/"
"""Pages that only name what the site takes from docstrings; their README is in the list."""


def test_its_links_resolve() -> None:
    assert dead_links(ROOT / "docs/llms.txt") == []


def test_every_page_of_the_documentation_is_reached() -> None:
    reached = {str(page.relative_to(ROOT)) for page in gen_llms_full.pages()}
    written = {str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md")}
    named_only = {
        page for page in written if page.startswith(FROM_SOURCE) and "\n::: " in (ROOT / page).read_text()
    }
    assert len(named_only) > 5
    assert written - reached - named_only == MAINTAINERS


def test_the_whole_text_holds_each_page_once(tmp_path: Path) -> None:
    target = tmp_path / "llms-full.txt"
    assert gen_llms_full.main([str(target)]) == 0
    text = target.read_text()
    for page in gen_llms_full.pages():
        assert text.count(f"<!-- {page.relative_to(ROOT)} -->") == 1
        assert page.read_text().strip() in text


def test_wrong_usage() -> None:
    assert gen_llms_full.main(["a", "b"]) == 2

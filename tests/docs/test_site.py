"""The site is built strictly, loads nothing from elsewhere, and has a page where something leads to one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import pytest

import sandboxio_docker
import sandboxio_e2b
from sandboxio import adapter, audit
from sandboxio.errors import DOCS_URL, catalogue
from scripts.site_docstrings import markdown

from .pages import ROOT
from .test_reference import public_names

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
SITE_URL = re.findall(r"^site_url: (\S+)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)[0]


def build(config: Path, target: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(config), "-d", str(target)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; a warning of the builder is a failure."""
    target = tmp_path_factory.mktemp("site")
    done = build(ROOT / "mkdocs.yml", target)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return target


class Links(HTMLParser):
    """What a page loads, where it leads, and which anchors it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.leads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.anchors.update(filter(None, (found.get("id"), found.get("name"))))
        if tag == "a" and "href" in found:
            self.leads.append(found["href"])
        elif tag == "link" and found.get("rel") not in ("canonical", "next", "prev"):
            self.loads.append(found.get("href", ""))
        elif "src" in found:
            self.loads.append(found["src"])


def foreign(text: str) -> list[str]:
    """Addresses of other places that a page loads from."""
    return [address for address in Links(text).loads if re.match(r"(https?:)?//", address)]


def dead(site: Path) -> list[str]:
    """Links between pages that lead to no page or no anchor."""
    pages = {path: Links(path.read_text()) for path in site.rglob("*.html") if path.name != "404.html"}
    found = []
    for path, page in pages.items():
        here = f"/{path.parent.relative_to(site).as_posix()}/".replace("/./", "/")
        for link in page.leads:
            target = urlsplit(urljoin(here, link))
            if target.scheme or target.netloc:
                continue
            file = site / unquote(target.path).lstrip("/")
            file = file / "index.html" if file.is_dir() else file
            anchor = unquote(target.fragment)
            if not file.exists() or (anchor and file in pages and anchor not in pages[file].anchors):
                found.append(f"{here}: {link}")
    return found


def test_every_error_leads_to_its_page(site: Path) -> None:
    assert DOCS_URL.startswith(SITE_URL)
    for error in catalogue():
        page = site / f"{DOCS_URL}{error.code}/".removeprefix(SITE_URL) / "index.html"
        assert f"{error.code}: {error.__name__}" in page.read_text()


def test_every_public_name_has_its_entry(site: Path) -> None:
    anchors = {
        each
        for page in (site / "reference/python").rglob("*.html")
        for each in Links(page.read_text()).anchors
    }
    modules = {"audit", "errors", "protocols", "sync", "testing"}
    wanted = {f"sandboxio.{name}" for name in public_names() - modules}
    wanted |= {f"sandboxio_docker.{name}" for name in dir(sandboxio_docker) if name[0].isupper()}
    wanted |= {f"sandboxio_e2b.{name}" for name in dir(sandboxio_e2b) if name[0].isupper()}
    wanted |= {f"sandboxio.audit.{name}" for name in vars(audit) if name.endswith("Sink")}
    wanted |= {f"sandboxio.adapter.{name}" for name in vars(adapter) if name.startswith("Base")}
    wanted |= {
        "sandboxio.testing.FakeBackend",
        "sandboxio.mcp.server",
        "sandboxio.testing.BackendContractSuite",
    }
    assert len(wanted) > 60
    assert wanted - anchors == set()


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert foreign(page.read_text()) == []
    for sheet in site.rglob("*.css"):
        assert re.findall(r"(?:url\(|@import )[\"']?(?:https?:)?//", sheet.read_text()) == []


def test_every_link_between_pages_resolves(site: Path) -> None:
    assert dead(site) == []


def test_drawings_stand_in_their_pages(site: Path) -> None:
    """So that they take the page's colours; an ``img`` could not."""
    assert (site / "explanation/architecture/index.html").read_text().count("<figure") == 2
    assert "<figure" in (site / "benchmarks/index.html").read_text()
    ends = [address for page in site.rglob("*.html") for address in Links(page.read_text()).loads]
    assert not [each for each in ends if each.endswith(".svg") and "favicon" not in each]


def test_lists_for_language_models_have_addresses_of_the_site(site: Path) -> None:
    addresses = re.findall(r"\]\(([^)]+)\)", (site / "llms.txt").read_text())
    assert len(addresses) > 20
    for address in addresses:
        assert address.startswith(SITE_URL)
        assert (site / address.removeprefix(SITE_URL) / "index.html").exists(), address
    assert "# Quickstart" in (site / "llms-full.txt").read_text()


def test_a_dead_link_fails_the_build(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/README.md").write_text("# Page\n\n[nowhere](gone.md) and [no anchor](#gone)\n")
    config = tmp_path / "mkdocs.yml"
    config.write_text(f"INHERIT: {ROOT / 'mkdocs.yml'}\nnav: [README.md]\nhooks: []\nplugins: [search]\n")
    done = build(config, tmp_path / "site")
    assert done.returncode != 0
    assert "gone.md" in done.stderr
    assert "#gone" in done.stderr


def test_what_is_wrong_with_a_page_is_found(tmp_path: Path) -> None:
    (tmp_path / "page").mkdir()
    (tmp_path / "page/index.html").write_text(
        '<a href="../#no">x</a><a href="../gone/">x</a><a href="..">x</a>'
    )
    (tmp_path / "index.html").write_text(
        '<a id="yes" href="page/"><a href="#yes"><script src="//cdn.invalid/x">'
    )
    assert dead(tmp_path) == ["/page/: ../#no", "/page/: ../gone/"]
    assert foreign((tmp_path / "index.html").read_text()) == ["//cdn.invalid/x"]


def test_docstrings_become_markdown() -> None:
    text = "See :class:`~sandboxio.ExecResult`.\n\n>>> 1 + 1\n2\n\nMore."
    assert markdown(text) == "See `sandboxio.ExecResult`.\n\n```pycon\n>>> 1 + 1\n2\n```\n\nMore."

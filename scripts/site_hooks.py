"""What MkDocs does not do by itself for this repository's site (mkdocs.yml names this file).

Pages outside of docs/ that the documentation links to join the site, and links to them are followed there as
they are on a forge. Drawings go into the page, so that they take its colours. llms.txt gets real addresses.
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from scripts import gen_llms_full  # noqa: E402

OUTSIDE = [
    "AGENTS.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE-DOCS",
    "SECURITY.md",
    "contract/README.md",
    "docker/mcp/README.md",
    *(f"examples/{path.name}" for path in sorted((ROOT / "examples").iterdir()) if path.is_file()),
]
"""Files of the repository that become pages of the site, at the same place as seen from docs/."""
FENCE = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(\]\()(?!https?://|mailto:|#)([^)\s#]+)")
DRAWING = re.compile(r"^!\[([^\]]*)\]\(([^)\s]+\.svg)\)$", re.MULTILINE)


def page_path(path: str) -> str:
    """Where a file of ``OUTSIDE`` lies on the site: sources and texts become Markdown pages."""
    return path if path.endswith(".md") else f"{path.removesuffix('.py')}.md"


def page_text(path: str) -> str:
    """A page's Markdown; a program or a plain text stands in a block of its own."""
    text = (ROOT / path).read_text()
    if path.endswith(".md"):
        return text
    if path.endswith(".py"):
        return f"# {Path(path).name}\n\n```python\n{text}```\n"
    return f"# {Path(path).name}\n\n{text}"


def repository_path(page: str) -> str:
    """The file behind a page of the site."""
    return _FILES.get(page, f"docs/{page}")


_FILES = {page_path(path): path for path in OUTSIDE}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.nav = [_filled(item) for item in config.nav or []]
    return config


def _filled(item: Any) -> Any:
    """A navigation item with ``folder/*`` replaced by the pages of that folder, its README first."""
    if isinstance(item, dict):
        return {title: _filled(below) for title, below in item.items()}
    if isinstance(item, list):
        return [_filled(below) for below in item]
    if item.endswith("/*"):
        folder = item.removesuffix("/*")
        inside = [page_path(path) for path in OUTSIDE if path.startswith(f"{folder}/")]
        inside += [str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs" / folder).glob("*.md")]
        return sorted(inside, key=lambda page: (not page.endswith("README.md"), page))
    return page_path(item) if item in OUTSIDE else item


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path in OUTSIDE:
        files.append(File.generated(config, page_path(path), content=page_text(path)))
    if unlisted := files.get_file_from_path("llms.txt"):
        files.remove(unlisted)  # on_post_build writes it with addresses
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    here = repository_path(page.file.src_uri)
    markdown = DRAWING.sub(lambda match: _drawing(match[1], posixpath.dirname(here), match[2]), markdown)
    parts = FENCE.split(markdown)
    for number in range(0, len(parts), 2):
        parts[number] = LINK.sub(lambda match: match[1] + _link(here, page, match[2]), parts[number])
    return "".join(parts)


def _link(here: str, page: Page, target: str) -> str:
    """A link as seen from the page of the site; one that leads nowhere stays, and fails a strict build."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(here), target))
    if path in OUTSIDE:
        wanted = page_path(path)
    elif path == "README.md":
        wanted = "README.md"
    elif path.startswith("docs/") and here in OUTSIDE:
        wanted = path.removeprefix("docs/")
    else:
        return target
    return posixpath.relpath(wanted, posixpath.dirname(page.file.src_uri) or ".")


def _drawing(text: str, folder: str, target: str) -> str:
    """The drawing itself, with ids of its own, in a box that scrolls where the page is narrow."""
    path = ROOT / posixpath.normpath(posixpath.join(folder, target))
    drawing = re.sub(r">\s+<", "><", path.read_text().strip())
    drawing = re.sub(r' (?:width|height)="\d+"', "", drawing, count=2)
    drawing = re.sub(r'id="(\w+)"', rf'id="{path.stem}-\1"', drawing)
    drawing = re.sub(
        r'aria-labelledby="([^"]*)"',
        lambda match: f'aria-labelledby="{" ".join(f"{path.stem}-{name}" for name in match[1].split())}"',
        drawing,
    )
    wide = " wide" if float(drawing.partition('viewBox="0 0 ')[2].partition(" ")[0]) > 600 else ""
    return f'<figure class="drawing{wide}" tabindex="0" aria-label="{text}">{drawing}</figure>'


def on_post_build(config: MkDocsConfig) -> None:
    site = Path(config.site_dir)
    listed = gen_llms_full.LIST.read_text()
    base = config.site_url or "/"
    (site / "llms.txt").write_text(re.sub(r"\]\(([^)]+)\)", lambda m: f"]({base}{_address(m[1])})", listed))
    (site / "llms-full.txt").write_text(gen_llms_full.full_text())


def _address(target: str) -> str:
    """The address, below the site's, of a page that docs/llms.txt lists."""
    path = posixpath.normpath(posixpath.join("docs", target))
    page = "README.md" if path == "README.md" else page_path(path).removeprefix("docs/")
    return re.sub(r"(^|/)README\.md$|\.md$", "/", page).lstrip("/")

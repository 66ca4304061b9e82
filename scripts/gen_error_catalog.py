"""Writes docs/errors/ from src/sandboxio/errors.py, so that pages and code cannot differ.

python -m scripts.gen_error_catalog            write the pages, remove what has no code any more
python -m scripts.gen_error_catalog --check    change nothing; exit 1 and name what differs
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from pathlib import Path

from sandboxio.errors import SandboxError, SandboxTimeout, catalogue

FOLDER = Path(__file__).parents[1] / "docs" / "errors"
NOTE = "<!-- Generated from src/sandboxio/errors.py by scripts/gen_error_catalog.py. Do not edit. -->"
INTRODUCTION = """\
# Error codes

Every error that sandboxio raises carries one of these codes, the fix as a hint, and the address of its
page here. A code never changes its meaning. `except sandboxio.SandboxError` catches them all,
`except sandboxio.SandboxTimeout` every deadline of a sandbox; none of them is a builtin `TimeoutError`.

| Code | Class | Meaning |
|------|-------|---------|
"""


def pages(errors: list[type[SandboxError]]) -> dict[str, str]:
    """File name to text."""
    rows = [
        f"| [{error.code}]({error.code}.md) | `{error.__name__}` | {_markdown(_first_line(error))} |\n"
        for error in errors
    ]
    found = {"README.md": f"{INTRODUCTION}{''.join(rows)}\n{NOTE}\n"}
    for error in errors:
        found[f"{error.code}.md"] = _page(error)
    return found


def _page(error: type[SandboxError]) -> str:
    text, example = _parts(error)
    first, _, rest = text.partition("\n\n")
    parents = [base for base in error.__mro__[1:] if issubclass(base, SandboxError)]
    caught = ", ".join(f"`sandboxio.{base.__name__}`" for base in (error, *parents))
    parts = [
        f"# {error.code}: {error.__name__}",
        _markdown(first),
        *([_markdown(rest)] if rest else []),
        f"**Fix:** {error.default_hint}" + _OFTEN,
        f"**Caught by:** {caught}." + (_TIMEOUT if issubclass(error, SandboxTimeout) else ""),
        f"```pycon\n>>> from sandboxio import {error.__name__}\n{example}\n```",
        "[All error codes](README.md)",
        NOTE,
    ]
    return "\n\n".join(parts) + "\n"


_OFTEN = "\n\nAn error knows more than its class: the hint of the error at hand comes first."
_TIMEOUT = " Not by `TimeoutError`, which stays your own deadline."


def _parts(error: type[SandboxError]) -> tuple[str, str]:
    """The docstring's text and its example."""
    text, separator, example = inspect.cleandoc(error.__doc__ or "").partition("\n\n>>> ")
    if not separator:
        raise SystemExit(f"{error.__name__} has no example in its docstring")
    return text, f">>> {example}".rstrip()


def _first_line(error: type[SandboxError]) -> str:
    return _parts(error)[0].partition("\n\n")[0].replace("\n", " ")


def _markdown(text: str) -> str:
    """reStructuredText of the docstrings as Markdown: roles and double backticks."""
    text = re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"`\1`", text)
    return text.replace("``", "`").replace("|", "\\|")


def differences(folder: Path, wanted: dict[str, str]) -> list[str]:
    """One line for each page that is missing, superfluous or out of date."""
    found = {path.name: path.read_text() for path in sorted(folder.glob("*.md"))}
    lines = [f"{name}: missing" for name in wanted if name not in found]
    lines += [f"{name}: there is no such code" for name in found if name not in wanted]
    lines += [f"{name}: out of date" for name in wanted if name in found and found[name] != wanted[name]]
    return lines


def main(arguments: list[str], folder: Path = FOLDER) -> int:
    """Write or check; the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="change nothing, exit 1 if something differs")
    wanted = pages(catalogue())
    if parser.parse_args(arguments).check:
        lines = differences(folder, wanted)
        for line in lines:
            print(f"{folder / line}")
        if lines:
            print("Run: python -m scripts.gen_error_catalog")
        return 1 if lines else 0
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*.md"):
        if path.name not in wanted:
            path.unlink()
    for name, text in wanted.items():
        (folder / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

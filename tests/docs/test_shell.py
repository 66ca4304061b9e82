"""Commands of ours on the pages are understood by the parsers of the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandboxio.cli import _main as cli
from sandboxio.mcp import command as mcp

from .pages import PAGES, commands, name_of, own_arguments


def complaint(command: str, capsys: pytest.CaptureFixture[str]) -> str | None:
    """What the parser says against a command; None if it takes it, or if it is not ours."""
    if "\u2026" in command or "..." in command or (parts := own_arguments(command)) is None:
        return None
    program, arguments = parts
    parser = cli._parser() if program == "sandboxio" else mcp._parser()
    try:
        parser.parse_args(arguments)
    except SystemExit as end:
        if end.code not in (0, None):
            return capsys.readouterr().err
    return None


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_are_understood(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in commands(page.read_text()):
        assert complaint(command, capsys) is None, command


def test_there_are_commands() -> None:
    ours = [c for page in PAGES for c in commands(page.read_text()) if own_arguments(c) is not None]
    assert len(ours) >= 25


@pytest.mark.parametrize(
    "text",
    [
        "```console\n$ sandboxio reap --all\n```",
        "```bash\npython -m sandboxio.mcp --port soon\n```",
        "Run `sandboxio docter`.",
        "```yaml\n  - run: sandboxio reap --colour\n```",
    ],
)
def test_a_wrong_command_is_found(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert any(complaint(command, capsys) for command in commands(text))

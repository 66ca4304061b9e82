"""Arguments in, exit code out: what the three commands have in common."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Protocol

from sandboxio.errors import SandboxError

from . import demo, doctor, reap
from .help import HelpFormatter
from .output import Output, say, use_rich_tracebacks


class Command(Protocol):
    """What a file of this folder has to offer."""

    HELP: str
    EXAMPLES: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...
    def run(self, arguments: argparse.Namespace, output: Output) -> int: ...


COMMANDS: dict[str, Command] = {"doctor": doctor, "reap": reap, "demo": demo}
DESCRIPTION = "Run code of AI agents in a sandbox: Docker, E2B or an in-process fake."
EXAMPLES = """\
examples:
  sandboxio demo              does it work here? five steps, each timed
  sandboxio doctor            what is missing, and how to fix it
  sandboxio reap              sandboxes that were left behind

`sandboxio COMMAND --help` shows more examples. Every command takes --json.

environment:
  NO_COLOR=1   no colours
  SBX_DEBUG=1  full tracebacks

exit codes:
  0    success
  1    a problem was found or the command failed
  2    wrong usage
  130  interrupted
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code. Wrong usage ends in ``SystemExit(2)``, as argparse has it.

    >>> main([])
    2
    """
    debug = os.environ.get("SBX_DEBUG") == "1"
    if debug:
        use_rich_tracebacks()
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.command is None:
        parser.print_help(sys.stderr)
        return 2
    output = Output(as_json=arguments.json, debug=debug)
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        code = _run(arguments, output)
    output.flush()
    return code


def _run(arguments: argparse.Namespace, output: Output) -> int:
    try:
        return COMMANDS[arguments.command].run(arguments, output)
    except KeyboardInterrupt:
        say("sandboxio: interrupted")
        return 130
    except SandboxError as error:
        output.traceback(error)
        output.error(error)
    except Exception as error:  # noqa: BLE001 - the end of a program: a sentence, and on request the traceback
        output.traceback(error)
        hint = "" if output.debug else "; SBX_DEBUG=1 shows where"
        say(f"sandboxio: {arguments.command} failed with {type(error).__name__}: {error}{hint}")
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sandboxio",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=HelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, command in COMMANDS.items():
        sub = commands.add_parser(
            name,
            help=command.HELP,
            description=command.HELP[0].upper() + command.HELP[1:] + ".",
            epilog=command.EXAMPLES,
            formatter_class=HelpFormatter,
            allow_abbrev=False,
        )
        sub.add_argument("--json", action="store_true", help="print the result as one JSON object")
        command.add_arguments(sub)
    return parser


def _version() -> str:
    try:
        return f"sandboxio {importlib.metadata.version('sandboxio')}"
    except importlib.metadata.PackageNotFoundError:
        return "sandboxio (not installed)"


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: object = None,
    line: str | None = None,
) -> None:
    say(f"warning: {message}")

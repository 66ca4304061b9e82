"""``sandboxio doctor``: what this machine has, line by line, each failure with its fix."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from sandboxio._doctor import BackendReport, doctor as examine
from sandboxio.models import DoctorCheck

from .output import Output

HELP: str = "show which backends work on this machine, and the fix for what does not"
EXAMPLES: str = """\
examples:
  sandboxio doctor            what works here, and what to do about the rest
  sandboxio doctor --json     the same for programs and bug reports

Nothing is created and no provider is called. Credentials appear by name only.

exit codes:
  0    every installed backend is healthy
  1    one is not
  2    wrong usage
  130  interrupted
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """This command takes no options of its own."""


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Print the report; 1 if something failed."""
    report = examine()
    output.payload(report.as_dict())
    package = report.sandboxio or "(not installed)"
    output.line(f"sandboxio {package}, Python {report.python}, {report.platform}")
    _print_checks(report.checks, output, max((len(check.name) for check in report.checks), default=0))
    for backend in report.backends:
        output.line()
        _print_backend(backend, output)
    return 0 if report.healthy else 1


def _print_backend(backend: BackendReport, output: Output) -> None:
    if not backend.installed:
        output.title(f"{backend.name}: not installed")
        output.line(f"install: {backend.install}", indent=8, hang=2)
        return
    tier = f", isolation tier {backend.isolation.value}" if backend.isolation is not None else ""
    state = "healthy" if backend.healthy else "not working"
    output.title(f"{backend.name}: {state}{tier}")
    width = max(map(len, ["versions", *backend.credentials, *(check.name for check in backend.checks)]))
    _print_checks(backend.checks, output, width)
    for variable, is_set in backend.credentials.items():
        output.status("-", variable, "set" if is_set else "not set", name_width=width)
    if backend.versions:
        found = ", ".join(f"{name} {version}" for name, version in backend.versions.items())
        output.status("-", "versions", found, name_width=width)


def _print_checks(checks: Iterable[DoctorCheck], output: Output, width: int) -> None:
    for check in checks:
        status = {True: "ok", False: "FAIL", None: "-"}[check.ok]
        output.status(status, check.name, check.detail, name_width=width)
        if check.fix is not None:
            output.line(f"fix: {check.fix}", indent=8, hang=2)

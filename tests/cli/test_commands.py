"""What holds for every command: usage, exit codes, JSON, help, errors."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import sandboxio
from sandboxio.cli._main import COMMANDS, _parser
from sandboxio.errors import ConnectError
from sandboxio.testing import FakeBackend

from .conftest import Command, start

# Usage


def test_without_a_command_the_help_and_2(command: Command) -> None:
    ran = command()
    assert ran.code == 2
    assert ran.out == ""
    assert "sandboxio demo" in ran.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["doctor", "--nonsense"],
        ["doctor", "extra"],
        ["reap", "--label", "novalue"],
        ["reap", "--label", "=x"],
        ["reap", "--ki"],  # no abbreviations: --kill must be meant
        ["demo", "--backend", "not a dsn"],
        ["demo", "--backend", "docker://x?egress=allow"],
        ["demo", "--backend", "docker://x?timeout=0"],
        ["demo", "--egress", "allow"],
    ],
)
def test_wrong_usage_is_2(command: Command, arguments: list[str]) -> None:
    ran = command(*arguments)
    assert ran.code == 2
    assert ran.out == ""
    assert ran.err.startswith("usage: sandboxio")


def test_a_credential_in_a_wrong_dsn_is_not_repeated(command: Command) -> None:
    ran = command("demo", "--backend", "e2b://base?api_key=sk-12345678")
    assert ran.code == 2
    assert "sk-12345678" not in ran.err


def test_version(command: Command) -> None:
    assert re.fullmatch(r"sandboxio \d+\.\d+\.\d+\S*\n", command("--version").out)


# Help


def subparsers() -> dict[str, argparse.ArgumentParser]:
    for action in _parser()._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    raise AssertionError("no commands")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_shows_examples_codes_and_json(command: Command, name: str) -> None:
    ran = command(name, "--help")
    assert ran.code == 0
    assert "examples:\n" in ran.out
    assert "--json" in ran.out
    for code in ("exit codes:", "0 ", "1 ", "2 ", "130 "):
        assert code in ran.out


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_the_examples_of_the_help_are_valid(name: str) -> None:
    parser = subparsers()[name] if name else _parser()
    examples = re.findall(r"^  sandboxio (\S.*?)(?:\s{2,}.*)?$", parser.format_help(), re.MULTILINE)
    assert examples
    for example in examples:
        _parser().parse_args(example.split())


def test_the_epilogues_fit_a_terminal() -> None:
    texts = [(command.HELP, command.EXAMPLES) for command in COMMANDS.values()]
    assert max(len(line) for _, text in texts for line in text.splitlines()) <= 110


def test_the_alias_is_never_in_a_text_to_copy() -> None:
    """``sbx`` on the package index is somebody else's."""
    for parser in (_parser(), *subparsers().values()):
        assert not re.search(r"\bsbx\b", parser.format_help())


# Errors


def test_an_error_is_a_sentence_its_fix_and_its_page(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(arguments: object, output: object) -> int:
        raise ConnectError("No.", hint="Yes.")

    monkeypatch.setattr(COMMANDS["doctor"], "run", fail)
    ran = command("doctor")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == (
        "sandboxio: [SBX_E1202] No.\n  Fix:  Yes.\n  Docs: https://docs.sandboxio.dev/errors/SBX_E1202/\n"
    )
    ran = command("doctor", "--json")
    assert (ran.code, ran.err) == (1, "")
    assert ran.payload == {
        "error": {
            "code": "SBX_E1202",
            "message": "No.",
            "fix": "Yes.",
            "docs": "https://docs.sandboxio.dev/errors/SBX_E1202/",
        }
    }


def test_a_bug_is_a_sentence_and_with_debug_a_traceback(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(arguments: object, output: object) -> int:
        local = "do-not-" + "print"
        raise LookupError("odd" if local else "")

    monkeypatch.setattr(COMMANDS["doctor"], "run", fail)
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    ran = command("doctor")
    assert ran.code == 1
    assert ran.err == "sandboxio: doctor failed with LookupError: odd; SBX_DEBUG=1 shows where\n"
    monkeypatch.setenv("SBX_DEBUG", "1")
    ran = command("doctor")
    assert ran.code == 1
    assert "Traceback" in ran.err
    assert "do-not-print" not in ran.err
    assert ran.err.endswith("sandboxio: doctor failed with LookupError: odd\n")


def test_a_warning_is_one_line(command: Command, fake: FakeBackend) -> None:
    class Careless(FakeBackend):
        async def list_managed(self, *, labels: object = None) -> list[sandboxio.ManagedSandbox]:
            import warnings

            warnings.warn("Look out.", sandboxio.SandboxWarning, stacklevel=1)
            return []

    sandboxio.register("docker", Careless)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        shown = warnings.showwarning
        ran = command("reap", "--backend", "docker")
        assert warnings.showwarning is shown
    assert (ran.code, ran.err) == (0, "warning: Look out.\n")


# As a program


def test_as_a_module_and_as_scripts(tmp_path: Path) -> None:
    program = start("demo", "--backend", "fake://", "--json", stdout=subprocess.PIPE)
    assert program.wait(30) == 0
    assert program.stdout is not None
    program.stdout.close()


def test_a_reader_that_leaves_stops_the_output_and_not_the_work() -> None:
    read, write = os.pipe()
    os.close(read)
    program = start("demo", "--backend", "fake://", stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    _, err = program.communicate(timeout=30)
    assert (program.returncode, err) == (0, "")


CHATTY = """
import sys
import sandboxio
from sandboxio.audit import AuditConfig
from sandboxio.cli import main
from sandboxio.testing import FakeBackend

class Print:
    async def emit(self, event):
        print(event.event)  # a backend, or its sink, that prints by itself

sandboxio.register("fake", lambda: FakeBackend(audit=AuditConfig(sinks=(Print(),))))
sys.exit(main(["demo", "--backend", "fake://"]))
"""


def test_what_others_print_after_the_reader_left_does_no_harm() -> None:
    read, write = os.pipe()
    os.close(read)
    program = subprocess.Popen(
        [sys.executable, "-c", CHATTY],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
    )
    os.close(write)
    _, err = program.communicate(timeout=30)
    assert (program.returncode, err) == (0, "")


def test_head_gets_its_line() -> None:
    shell = subprocess.run(
        [
            "bash",
            "-c",
            'set -o pipefail; "$0" -m sandboxio demo --backend fake:// | head -n 1',
            sys.executable,
        ],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert shell.stdout.startswith("  ok    create")
    assert (shell.stdout.count("\n"), shell.returncode, shell.stderr) == (1, 0, "")


@pytest.mark.parametrize("closed", ["", ">&-", "2>&-", ">&- 2>&-"])
def test_streams_that_were_closed_before_are_no_failure(closed: str) -> None:
    """As a supervisor may start it. What belongs on stderr never goes to stdout instead."""
    program = (
        "import sys, warnings; from sandboxio.cli import main; from sandboxio.testing import FakeBackend;"
        "import sandboxio; fake = FakeBackend(); create = fake.create\n"
        "def warned(**options): warnings.warn('careful'); return create(**options)\n"
        "fake.create = warned; sandboxio.register('fake', lambda: fake)\n"
        "sys.exit(main(['demo', '--backend', 'fake://', '--json']))"
    )
    shell = subprocess.run(
        ["bash", "-c", f'"$0" -c "$1" {closed}', sys.executable, program],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert shell.returncode == 0
    assert shell.stderr == ("" if "2>&-" in closed else "warning: careful\n")
    if closed.startswith(">"):
        assert shell.stdout == ""
    else:
        assert json.loads(shell.stdout)["ok"] is True


LABELLED = """
import sys
import sandboxio
from sandboxio.cli import main
from sandboxio.testing import FakeBackend
fake = FakeBackend()
sandboxio.register("docker", lambda: fake)
with sandboxio.create_sync("docker://", metadata={"kunde": "M\\u00fcller \\u4e2d \\x1b[31m\\u202e"}):
    sys.exit(main(["reap", "--backend", "docker", *sys.argv[1:]]))
"""


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [("ascii", r"M\xfcller \u4e2d "), ("latin-1", "M\u00fcller \\u4e2d "), ("utf-8", "M\u00fcller \u4e2d ")],
)
def test_any_encoding_will_do_and_no_label_steers_the_terminal(encoding: str, shown: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", LABELLED],
        capture_output=True,
        timeout=30,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": encoding},
    )
    text = ran.stdout.decode(encoding)
    assert f"kunde={shown}\\x1b[31m\\u202e\n" in text
    assert (ran.returncode, ran.stderr) == (0, b"")


SLOW = """
import os, sys
import sandboxio
from sandboxio.cli import main
from tests.sync.hostprocess import HostBackend

class Backend(HostBackend):
    async def _provision(self, request):
        sandbox = await super()._provision(request)
        print(sandbox.id, file=sys.stderr, flush=True)
        return sandbox

from tests.sync import hostprocess
hostprocess.HostSandbox._code = lambda self, code, **_: hostprocess.HostRun(("sleep", "600"), self.native, {})
sandboxio.register("host", Backend)
sys.exit(main(["demo", "--backend", "host://", *sys.argv[1:]]))
"""


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_interrupted_is_130_and_the_sandbox_is_gone(options: list[str], tmp_path: Path) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", SLOW, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "SBX_TEST_HOST": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert program.stderr is not None
    folder = program.stderr.readline().strip()
    assert Path(folder).is_dir()
    program.send_signal(signal.SIGINT)
    _, err = program.communicate(timeout=20)
    assert (program.returncode, err) == (130, "sandboxio: interrupted\n")
    assert not Path(folder).exists()

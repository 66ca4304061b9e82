"""The virtual shell and the recognised Python, line by line."""

from __future__ import annotations

import pytest

from sandboxio import ExecResult, ExecutionTimeout, NetworkPolicy
from sandboxio.testing import FakeBackend
from sandboxio.testing.fake.context import Context
from sandboxio.testing.fake.programs import PROGRAMS
from sandboxio.testing.fake.steps import Pause, Program

COMMANDS: list[tuple[str | list[str], tuple[int, str, str]]] = [
    # programs, without a shell
    (["echo", "a", "b"], (0, "a b\n", "")),
    (["echo", "-n", "a"], (0, "a", "")),
    (["echo", "-e", r"a\tb\0101\x"], (0, "a\tbA\\x\n", "")),
    (["echo", r"a\tb"], (0, "a\\tb\n", "")),
    (["echo", "-x", "-n"], (0, "-x -n\n", "")),
    (["printf", r"%s-%d\n", "a", "1", "b", "2"], (0, "a-1\nb-2\n", "")),
    (["printf", r"100%%\101\n"], (0, "100%A\n", "")),
    (["printf", "%s"], (0, "", "")),
    (["printf", "%x", "1"], (2, "", "printf: the fake knows %s, %d and %% only, not '%x'\n")),
    (["printf", "%d", "x"], (1, "0", "printf: expected numeric value\n")),
    (["printf"], (2, "", "printf: usage: printf format [arguments]\n")),
    (["seq", "3"], (0, "1\n2\n3\n", "")),
    (["seq", "5", "-2", "1"], (0, "5\n3\n1\n", "")),
    (["seq", "2", "1"], (0, "", "")),
    (["seq", "x"], (1, "", "seq: expected one to three whole numbers\n")),
    (["seq", "1", "0", "3"], (1, "", "seq: the increment must not be zero\n")),
    (["printenv", "HOME", "NOPE"], (1, "/root\n", "")),
    (["cat", "/dev/null"], (0, "", "")),
    (["cat", "/etc", "nope"], (1, "", "cat: /etc: Is a directory\ncat: nope: No such file or directory\n")),
    (["sleep"], (1, "", "sleep: missing operand\n")),
    (["sleep", "x"], (1, "", "sleep: invalid time interval 'x'\n")),
    (["sleep", "1m", "0.5", ".5", "+1.", "1e-1s"], (0, "", "")),
    (["sleep", "٣"], (1, "", "sleep: invalid time interval '٣'\n")),
    (["sleep", "1_0"], (1, "", "sleep: invalid time interval '1_0'\n")),
    (["sleep", "-1"], (1, "", "sleep: invalid time interval '-1'\n")),
    (["seq", "²"], (1, "", "seq: expected one to three whole numbers\n")),
    (["printf", "%d", "٣"], (1, "0", "printf: expected numeric value\n")),
    (["pwd"], (0, "/work\n", "")),
    (["true"], (0, "", "")),
    (["false"], (1, "", "")),
    (["/bin/echo", "x"], (0, "x\n", "")),
    (["curl"], (2, "", "curl: (2) no URL specified\n")),
    (["git", "status"], (127, "", "git: not found\n")),
    (["./nope"], (127, "", "./nope: No such file or directory\n")),
    (["/etc"], (126, "", "/etc: Permission denied\n")),
    (["/etc/passwd"], (126, "", "/etc/passwd: Permission denied\n")),
    (["sh", "-c", 'echo "$0|$1|$2"', "zero", "one two"], (0, "zero|one two|\n", "")),
    (["sh", "-x"], (2, "", "sh: 0: Illegal option -x\n")),
    (["sh", "nope"], (2, "", "sh: 0: cannot open nope: No such file or directory\n")),
    # the shell
    ("echo a; echo b\necho c", (0, "a\nb\nc\n", "")),
    ("true && echo yes || echo no", (0, "yes\n", "")),
    ("false && echo yes || echo no", (0, "no\n", "")),
    ("false; echo $?", (0, "1\n", "")),
    ("exit 3; echo never", (3, "", "")),
    ("exit 300", (44, "", "")),
    ("exit ²", (2, "", "sh: 1: exit: Illegal number: ²\n")),
    ("exit ٣", (2, "", "sh: 1: exit: Illegal number: ٣\n")),
    ("exit 2147483647", (255, "", "")),
    ("exit 2147483648", (2, "", "sh: 1: exit: Illegal number: 2147483648\n")),
    ("exit 0000000000000003", (3, "", "")),
    ("exit x", (2, "", "sh: 1: exit: Illegal number: x\n")),
    ("A='b  c'; echo $A; echo \"$A\"; echo '$A' \\$A", (0, "b c\nb  c\n$A $A\n", "")),
    ("A=1 printenv A; printenv A", (1, "1\n", "")),
    ("A=1; printenv A; export A; printenv A; export B=2; printenv B", (0, "1\n2\n", "")),
    ('E=""; echo a $E "$E" b', (0, "a  b\n", "")),
    ("echo ${HOME}x # a comment", (0, "/rootx\n", "")),
    ("echo one >&2; echo two 2>&1", (0, "two\n", "one\n")),
    ("cat nope 2>&1", (1, "cat: nope: No such file or directory\n", "")),
    ("cat nope 2> /dev/null", (1, "", "")),
    ("echo a > f; echo b >> f; cat f; cat < f", (0, "a\nb\na\nb\n", "")),
    ("echo a > no/f", (2, "", "sh: 1: cannot create no/f: No such file or directory\n")),
    ('echo a > ""; cd ""; pwd', (0, "/work\n", "sh: 1: cannot create : No such file or directory\n")),
    (
        "echo a > .; echo a > ..",
        (2, "", "sh: 1: cannot create .: Is a directory\nsh: 1: cannot create ..: Is a directory\n"),
    ),
    ("cat < no; echo $?", (0, "2\n", "sh: 1: cannot open no: No such file or directory\n")),
    ("seq 3 | cat", (0, "1\n2\n3\n", "")),
    ("echo x | false", (1, "", "")),
    ("echo a | cat - /dev/null | cat", (0, "a\n", "")),
    ("cd /tmp && pwd; cd nope; echo $?", (0, "/tmp\n2\n", "sh: 1: cd: can't cd to nope\n")),
    ("cd /tmp | pwd", (0, "/work\n", "")),
    (r"echo 'a\nb'", (0, "a\nb\n", "")),
    (r"echo -n 'a\c' b", (0, "a", "")),
    ("exec echo replaced; echo never", (0, "replaced\n", "")),
    (": ; trap '' TERM; echo ok", (0, "ok\n", "")),
    ("sleep 100 & echo on", (0, "on\n", "")),
    ("nope; echo $?", (0, "127\n", "nope: not found\n")),
    ("/bin/sh -c 'exit 4'", (4, "", "")),
]

NOT_UNDERSTOOD = [
    "for i in 1 2; do echo $i; done",
    "if true; then echo x; fi",
    "echo $(date)",
    "echo `date`",
    "echo *.py",
    "(echo x)",
    "f() { echo x; }",
    "echo ${A:-b}",
    "echo $@",
    "cat <<END",
    "echo ~",
    "test -f x",
    "[ -f x ]",
    "set -e",
    "echo 'open",
    'echo "open',
    "echo x |",
    "&& echo x",
    "echo x >",
    "trap 'echo bye' EXIT",
    "! true",
]

CODE: list[tuple[str, tuple[int, str, str]]] = [
    ("print('hello')", (0, "hello\n", "")),
    ("x = 41\nprint(x + 1)", (0, "42\n", "")),
    ("x: int = 2\nx **= 3\nprint(f'{x!r} is {x}')", (0, "8 is 8\n", "")),
    (
        "print(1, 'a', [1, (2,)], {'k': {3}}, None, sep='|', end='!')",
        (0, "1|a|[1, (2,)]|{'k': {3}}|None!", ""),
    ),
    ("import sys\nprint('e', file=sys.stderr)\nsys.stdout.write('o')", (0, "o", "e\n")),
    ("print('a'.upper(), 'b c'.split(), {'k': 1}['k'], {'k': 1}.get('x', 2))", (0, "A ['b', 'c'] 1 2\n", "")),
    ("print(len('abc'), max(1, 2), sum([1, 2]), not 1, -2, 1 < 2 <= 2)", (0, "3 2 3 False -2 True\n", "")),
    ("import os\nprint(os.environ['HOME'], os.getenv('NOPE', 'default'))", (0, "/root default\n", "")),
    ("import time as t\nt.sleep(5)\nprint('woke')", (0, "woke\n", "")),
    ("from time import sleep\nsleep(1)", (0, "", "")),
    ("import sys\nsys.exit(3)", (3, "", "")),
    ("raise SystemExit('bye')", (1, "", "bye\n")),
    ("import sys\nsys.exit('no input')", (1, "", "no input\n")),
    ("exit()", (0, "", "")),
    (
        "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    pass\nelse:\n    print('no')\nprint('on')",
        (0, "on\n", ""),
    ),
    (
        "try:\n    raise ValueError('x')\nexcept (KeyError, ValueError):\n    print('caught')",
        (0, "caught\n", ""),
    ),
]

FAILING_CODE = [
    ("import time\ntime.sleep(-1)", "ValueError: sleep length must be non-negative"),
    ("import time\ntime.sleep(float('nan'))", "ValueError: Invalid value NaN"),
    ("print(x)", "NameError: name 'x' is not defined"),
    ("print(1", "SyntaxError"),
    ("1 / 0", "ZeroDivisionError: division by zero"),
    ("'a' + 1", "TypeError"),
    ("{'k': 1}['x']", "KeyError"),
    ("raise ValueError('broken')", "ValueError: broken"),
    ("import pandas", "ModuleNotFoundError: No module named 'pandas'"),
    ("from numpy import array", "ModuleNotFoundError: No module named 'numpy'"),
    ("x = 1\nx()", "TypeError: 'int' object is not callable"),
]

NOT_RECOGNISED = [
    "for i in range(3): print(i)",
    "def f(): pass",
    "class A: pass",
    "open('x')",
    "__import__('os').system('true')",
    "eval('1')",
    "x = [i for i in range(3)]",
    "'a' * 10**9",
    "10 ** 10 ** 10",
    "2 ** 100000",
    "'%s' % 'x'",
    "(lambda: 1)()",
    "import os\nos.system('true')",
    "import os\nprint(os)",
    "().__class__",
    "x = y = 1\nx.y = 2",
    "not " * 3000 + "1",
    "-" * 90_000 + "1",
    "raise UnknownKind()",
]


async def test_no_number_of_digits_gets_out_of_exit() -> None:
    assert (await FakeBackend().sandbox.run("exit " + "9" * 5000)).exit_code == 2


@pytest.mark.parametrize(("command", "expected"), COMMANDS, ids=str)
async def test_a_command(command: str | list[str], expected: tuple[int, str, str]) -> None:
    result = await FakeBackend().sandbox.run(command)
    assert (result.exit_code, result.stdout, result.stderr) == expected


async def test_what_the_shell_does_not_understand_is_said_and_not_guessed() -> None:
    sandbox = FakeBackend().sandbox
    for text in NOT_UNDERSTOOD:
        result = await sandbox.run(text)
        assert (result.exit_code, result.stdout) == (2, ""), text
        assert "script this command with on_run(" in result.stderr, text


@pytest.mark.parametrize("command", ["ls *.py & echo on", "sleep 1 && ls *.py & echo on; sleep 2"])
async def test_what_is_not_understood_in_the_background_is_said_too(command: str) -> None:
    """Not tried for ever, and no exception of the fake's own."""
    result = await FakeBackend().sandbox.run(command)
    assert (result.exit_code, result.stdout) == (0, "on\n")
    assert "does not understand the pattern '*'" in result.stderr


async def test_a_script_that_was_uploaded_runs_if_it_may() -> None:
    sandbox = FakeBackend().sandbox
    machine = sandbox.native
    machine.tree.write("ok", b'#!/bin/sh\necho "ran $1"\n', mode=0o755)
    machine.tree.write("elf", b"\x7fELF", mode=0o755)
    assert (await sandbox.run(["./ok", "well"])).stdout == "ran well\n"
    assert (await sandbox.run(["/work/ok"])).stdout == "ran \n"
    assert (await sandbox.run(["sh", "ok"])).stdout == "ran \n"
    assert (await sandbox.run(["./elf"])).exit_code == 126
    assert (await sandbox.run("cat ok | sh")).stdout == "ran \n"


async def test_curl_says_where_it_cannot_write() -> None:
    async with await FakeBackend().create(network=NetworkPolicy(egress="allow")) as sandbox:
        for target, why in (("/nope/x", "No such file or directory"), ("/etc", "Is a directory")):
            result = await sandbox.run(["curl", "-o", target, "http://example.com"])
            assert (result.exit_code, result.stdout) == (23, "")
            assert result.stderr == (
                f"Warning: Failed to open the file {target}: {why}\n"
                "curl: (23) Failure writing output to destination\n"
            )
        assert (await sandbox.run(["curl", "http://\udcff.example/"])).ok


@pytest.mark.parametrize(
    "script",
    [
        "sh x.sh",
        "./x.sh",
        "exec sh x.sh",
        "cat x.sh | sh",
        "sh x.sh; sh x.sh",
        "sh x.sh & sh x.sh",
        "sh -c './x.sh' > f",
    ],
)
async def test_a_script_that_runs_itself_ends_as_where_no_process_can_be_made(script: str) -> None:
    sandbox = FakeBackend().sandbox
    sandbox.native.tree.write("x.sh", f"#!/bin/sh\n{script}\n".encode(), mode=0o755)
    result = await sandbox.run("sh x.sh")
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (2, "sh: 1: Cannot fork")


async def test_many_shells_one_after_another_are_fine() -> None:
    script = "sh -c 'echo x'\n" * 500
    assert (await FakeBackend().sandbox.run(script)).stdout == "x\n" * 500


async def test_a_background_job_may_lose_the_file_that_it_writes() -> None:
    sandbox = FakeBackend().sandbox
    await sandbox.files.mkdir("d")
    await sandbox.run("sh -c 'echo a; sleep 1; echo b; sleep 2; echo c' > d/f &")
    await sandbox.run("sleep 2")
    await sandbox.run("echo in between >> d/f")
    assert await sandbox.files.read("d/f") == b"a\nb\nin between\n"
    await sandbox.files.remove("d")
    assert (await sandbox.run("sleep 2; cat d/f")).exit_code == 1
    assert sandbox.native.processes() == []


async def test_a_fault_of_the_fake_is_a_result_of_its_own_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def faulty(arguments: tuple[str, ...], context: Context) -> Program:
        yield Pause(float(arguments[0]))
        raise RuntimeError("\ud800")

    monkeypatch.setitem(PROGRAMS, "faulty", faulty)
    sandbox = FakeBackend().sandbox
    result = await sandbox.run(["faulty", "0"])
    assert (result.exit_code, result.stdout) == (255, "")
    assert "the fake failed in test_virtual_programs.py, line" in result.stderr
    assert r"RuntimeError: \ud800; please report this" in result.stderr
    await sandbox.run("faulty 1 &")
    await sandbox.run("sleep 2")
    assert (await sandbox.run("echo x")).stdout == "x\n"


@pytest.mark.parametrize(("code", "expected"), CODE, ids=str)
async def test_code_that_is_recognised(code: str, expected: tuple[int, str, str]) -> None:
    result = await FakeBackend().sandbox.run_code(code)
    assert (result.exit_code, result.stdout, result.stderr) == expected


async def test_code_that_fails_says_what_python_says() -> None:
    sandbox = FakeBackend().sandbox
    for code, message in FAILING_CODE:
        result = await sandbox.run_code(code)
        assert (result.exit_code, result.stdout) == (1, ""), code
        assert message in result.stderr, code


@pytest.mark.parametrize(
    ("code", "status", "last"),
    [
        ("raise KeyboardInterrupt", 130, "KeyboardInterrupt"),
        ("raise BaseException('x')", 1, "BaseException: x"),
        ("raise GeneratorExit", 1, "GeneratorExit"),
        ("raise StopIteration(3)", 1, "StopIteration: 3"),
        ("raise ValueError('\\ud800')", 1, "ValueError: \\ud800"),
        ("raise ValueError(10 ** 4000 * 10 ** 900)", 1, "ValueError: <exception str() failed>"),
        ("raise SystemExit([10 ** 4000 * 10 ** 900])", 1, "<str() failed>"),
        ("raise SystemExit('\\ud800')", 1, "\\ud800"),
    ],
)
async def test_no_exception_of_the_code_gets_out(code: str, status: int, last: str) -> None:
    result = await FakeBackend().sandbox.run_code(code)
    assert (result.exit_code, result.stdout) == (status, "")
    assert result.stderr.splitlines()[-1] == last


@pytest.mark.parametrize("kind", ["KeyboardInterrupt", "GeneratorExit", "StopIteration", "SystemExit"])
async def test_code_may_catch_what_it_raises(kind: str) -> None:
    code = f"try:\n    raise {kind}('x')\nexcept {kind}:\n    print('caught')\n"
    result = await FakeBackend().sandbox.run_code(code)
    assert (result.exit_code, result.stdout) == (0, "caught\n")


async def test_code_that_catches_everything_ends_when_it_is_stopped() -> None:
    code = "import time\ntry:\n    time.sleep(100)\nexcept BaseException:\n    time.sleep(100)\n"
    fake = FakeBackend()
    with pytest.raises(ExecutionTimeout):
        await fake.sandbox.run_code(code, timeout=1)
    assert fake.sandbox.native.processes() == []


async def test_code_that_is_not_recognised_is_said_and_not_executed() -> None:
    sandbox = FakeBackend().sandbox
    for code in NOT_RECOGNISED:
        result = await sandbox.run_code(code)
        assert (result.exit_code, result.stdout) == (1, ""), code
        assert "script this code with on_run_code(" in result.stderr, code


async def test_a_recognised_network_call_obeys_the_policy() -> None:
    code = (
        "import urllib.request, socket\n"
        "try:\n"
        "    print(urllib.request.urlopen('http://a.example/', timeout=5).read())\n"
        "except OSError as error:\n"
        "    print('blocked')\n"
        "print(socket.gethostbyname('a.example'))\n"
    )
    fake = FakeBackend()
    denied = await fake.sandbox.run_code(code)
    assert denied.stdout == "blocked\n"
    assert "gaierror" in denied.stderr
    assert fake.events[-1].network_denials == 2
    async with await fake.create(network=NetworkPolicy(allow=("a.example",))) as sandbox:
        allowed = await sandbox.run_code(code)
        assert (allowed.exit_code, allowed.stdout.splitlines()[0]) == (0, "b'fake answer of a.example\\n'")
    assert fake.reached == ["a.example", "a.example"]


async def test_display_outputs_come_only_with_an_interpreter() -> None:
    fake = FakeBackend()
    result = await fake.sandbox.run_code("x = 2\nx * 21")
    assert [(each.mime_type, each.data) for each in result.results or ()] == [("text/plain", "42")]
    assert (await fake.sandbox.run_code("x = 1")).results == ()
    stateless = FakeBackend(capabilities=fake.capabilities & ~type(fake.capabilities).STATEFUL_CODE)
    assert (await stateless.sandbox.run_code("6 * 7")).results is None


async def test_a_killed_context_starts_clean() -> None:
    fake = FakeBackend()
    fake.on_run_code("forever", ExecResult(0, "", ""), hangs=True)
    await fake.sandbox.run_code("x = 1", context_id="one")
    assert (await fake.sandbox.run_code("print(x)", context_id="one")).stdout == "1\n"
    with pytest.raises(Exception, match="did not end"):
        await fake.sandbox.run_code("while True:\n    pass", context_id="one", timeout=5)
    assert "NameError" in (await fake.sandbox.run_code("print(x)", context_id="one")).stderr

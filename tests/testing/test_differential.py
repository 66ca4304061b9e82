"""The fake and a real sandbox do the same, for whatever the fake claims to support.

hypothesis makes up programs of operations; both sides start each one with an empty working folder. What
programs say on stderr is compared only as said or not said: texts differ between versions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings, strategies as st

import sandboxio
from sandboxio import SandboxError
from sandboxio.sync import SyncSandbox
from sandboxio.testing import FakeBackend

NAMES = ("a", "b.txt", ".h", "d", "d/x", "d/e", "d/e/y", "n o", "-r", "é")
VARIABLES = ("A", "B", "HOME", "NOPE", "?")

# Words of the shell, as text; a value with a pattern in it is beyond the fake, which says so


plain = st.text("abcx0123456789-_.,:/=+@%é", min_size=1, max_size=6)
single = st.text('ab $`"\\;|&<>~#()é\t\n', max_size=6).map(lambda text: f"'{text}'")
escaped = st.sampled_from(" $'\"\\;|&<>#~ab").map(lambda letter: f"\\{letter}")
variable = st.sampled_from(VARIABLES).map(lambda name: f"${name}")
braced = st.sampled_from(VARIABLES[:4]).map(lambda name: f"${{{name}}}")
double = st.lists(
    st.one_of(
        st.text("ab ';|&<>~#é\n", max_size=4),
        st.sampled_from(["\\$", '\\"', "\\\\", "\\a"]),
        variable,
        braced,
    ),
    max_size=3,
).map(lambda parts: '"' + "".join(parts) + '"')
word = st.lists(st.one_of(plain, single, escaped, variable, braced, double), min_size=1, max_size=3).map(
    "".join
)
name = st.sampled_from(NAMES).map(lambda text: f"./'{text}'")

# Commands and lists of them

simple = st.one_of(
    st.lists(word, max_size=3).map(lambda words: " ".join(["echo", *words])),
    st.lists(word, max_size=2).map(lambda words: " ".join(["echo", "-n", *words])),
    st.lists(word, max_size=3).map(lambda words: " ".join([r"printf '%s|\n'", *words])),
    st.sampled_from(
        [r"printf 'a\tb\n'", r"printf '\101\0\n'", "printf '%d%%\\n' 7", "printf x", "echo '*' \"?\" \\*"]
    ),
    st.lists(name, min_size=1, max_size=2).map(lambda names: " ".join(["cat", *names])),
    st.integers(-2, 5).map(lambda last: f"seq {last}"),
    st.tuples(st.integers(-3, 3), st.sampled_from([-2, -1, 1, 2]), st.integers(-3, 3)).map(
        lambda numbers: "seq {} {} {}".format(*numbers)
    ),
    st.sampled_from(
        ["true", "false", "pwd", ":", "cat", "no-such-program", "sleep 0", "printenv A B", "cd d", "cd /tmp"]
    ),
    st.tuples(st.sampled_from("AB"), word).map("=".join),
    st.tuples(st.sampled_from("AB"), word).map(lambda pair: f"export {pair[0]}=x && {pair[0]}={pair[1]}"),
    st.tuples(st.sampled_from("AB"), word, st.sampled_from("AB")).map(
        lambda each: f"{each[0]}={each[1]} printenv {each[2]}"
    ),
    st.tuples(word, st.sampled_from("AB")).map(
        lambda each: f'sh -c \'echo "$0" "$1" ${each[1]}\' x {each[0]}'
    ),
)
redirected = st.tuples(
    simple, st.one_of(name.map(lambda text: f"> {text}"), name.map(lambda text: f">> {text}"))
).map(" ".join)
fed = st.tuples(st.sampled_from(["cat", "cat -"]), name).map(lambda pair: f"{pair[0]} < {pair[1]}")
aside = st.tuples(simple, st.sampled_from(["2>/dev/null", ">&2", ">/dev/null"])).map(" ".join)
command = st.one_of(simple, simple, redirected, fed, aside)
pipeline = st.lists(command, min_size=1, max_size=2).map(" | ".join)
script = st.lists(
    st.tuples(pipeline, st.sampled_from([" && ", " || ", "; ", "\n"])), min_size=1, max_size=3
).map(lambda parts: "".join(text + operator for text, operator in parts) + "echo end $?")


@dataclass(frozen=True)
class Operation:
    """One call on a sandbox."""

    method: str
    arguments: tuple[Any, ...]

    def on(self, sandbox: SyncSandbox) -> object:
        """What comes of it, in a form that two backends can agree on."""
        owner = sandbox if self.method in ("run", "run_code") else sandbox.files
        try:
            result = getattr(owner, self.method)(*self.arguments)
        except SandboxError as error:
            return type(error).__name__
        if isinstance(result, sandboxio.ExecResult):
            return (result.exit_code, result.stdout, bool(result.stderr))
        if isinstance(result, list):
            return [(each.path, each.is_dir, None if each.is_dir else each.size) for each in result]
        return result


argument = st.text("ab $'\"\\;|&<>*?~#é\n\t-", max_size=5)
operation = st.one_of(
    script.map(lambda text: Operation("run", (text,))),
    st.lists(argument, max_size=3).map(lambda words: Operation("run", (["echo", *words],))),
    st.lists(argument, max_size=3).map(lambda words: Operation("run", (["printf", "%s|", *words],))),
    st.sampled_from(NAMES).map(lambda path: Operation("run", (["cat", f"./{path}"],))),
    st.tuples(st.sampled_from(NAMES), st.binary(max_size=5)).map(lambda pair: Operation("write", pair)),
    st.sampled_from(NAMES).map(lambda path: Operation("read", (path,))),
    st.sampled_from(NAMES).map(lambda path: Operation("mkdir", (path,))),
    st.sampled_from(NAMES).map(lambda path: Operation("remove", (path,))),
    st.sampled_from((".", *NAMES)).map(lambda path: Operation("ls", (path,))),
)


@pytest.fixture(scope="module")
def real(docker_image: str) -> Iterator[SyncSandbox]:
    with sandboxio.create_sync(f"docker://{docker_image}", timeout=900) as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def fake() -> Iterator[SyncSandbox]:
    backend = FakeBackend()
    yield backend.sync_sandbox
    backend.close()


def emptied(sandbox: SyncSandbox) -> None:
    for each in sandbox.files.ls():
        sandbox.files.remove(each.path)


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.timeout(300)
@settings(
    max_examples=150,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(program=st.lists(operation, min_size=1, max_size=6))
def test_the_same_program_gives_the_same_results(
    program: list[Operation], real: SyncSandbox, fake: SyncSandbox
) -> None:
    emptied(real)
    emptied(fake)
    for each in program:
        expected = each.on(real)
        assert each.on(fake) == expected, each
        event(f"{each.method}: {expected if isinstance(expected, str) else 'done'}")
    assert Operation("ls", ()).on(fake) == Operation("ls", ()).on(real)

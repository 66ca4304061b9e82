"""``run``: arguments, environment, output, exit codes."""

from __future__ import annotations

from typing import Any

import pytest

from sandboxio.errors import ConfigurationError, ExecutionTimeout
from sandboxio.models import Capability

from .base import MARK, Contract, needs, new_mark
from .comparing import difference

ODD_ARGUMENTS = (
    "two words",
    "$HOME `id` $(id)",
    "a;b & c | d > e",
    'it\'s "quoted" \\ back',
    "*",
    "",
    "-n",
    "new\nline",
    "é漢🙂",
    "~",
)
ODD_VALUES = {
    "LINES": "l1\nl2\n",
    "BLANKS": "  sp  ",
    "DOLLARS": "$HOME ${PATH} $(id)",
    "QUOTES": "'\"\\",
    "EMPTY": "",
    "EQUALS": "a=b==",
    "UNICODE": "é漢🙂",
    "lower_case": "1",
}
BAD_COMMANDS: tuple[Any, ...] = ("", "  ", [], [""], ["echo", 1], ["echo", "a\0b"], None, 3, b"echo", "a\0b")
BAD_ENV: tuple[Any, ...] = (
    {"": "x"},
    {"A=B": "x"},
    {"A\0": "x"},
    {"A": "x\0y"},
    {"A": 1},
    {"A": None},
    [("A", "x")],
)
BAD_TIMEOUTS: tuple[Any, ...] = (0, -1, float("nan"), float("inf"), True, "5")


class RunTests(Contract):
    """Row "run"."""

    @needs(Capability.RUN_COMMAND)
    async def test_run_exit_codes(self) -> None:
        async with self.sandbox() as sandbox:
            for code in (0, 1, 2, 42, 126, 255):
                result = await sandbox.run([*self.cmd_exit, str(code)])
                assert result.exit_code == code
                assert result.ok is (code == 0)

    @needs(Capability.RUN_COMMAND)
    async def test_run_a_program_that_cannot_start(self) -> None:
        async with self.sandbox() as sandbox:
            for command in (["no-such-program-at-all"], "no-such-program-at-all"):
                result = await sandbox.run(command)
                assert (result.exit_code, result.stdout) == (127, "")
                assert "no-such-program-at-all" in result.stderr, "the reason belongs on stderr"
            result = await sandbox.run(["/tmp"])
            assert (result.exit_code, result.stdout) == (126, "")

    @needs(Capability.RUN_COMMAND)
    async def test_run_keeps_stdout_and_stderr_apart(self) -> None:
        async with self.sandbox() as sandbox:
            result = await sandbox.run(self.cmd_both)
            assert (result.stdout, result.stderr) == ("out\n", "err\n")
            assert not result.streamed
            assert not result.truncated

    @needs(Capability.RUN_COMMAND)
    async def test_run_a_list_goes_through_no_shell(self) -> None:
        async with self.sandbox() as sandbox:
            for argument in ODD_ARGUMENTS:
                result = await sandbox.run([*self.cmd_echo, "x", argument])
                assert result.stdout == f"x {argument}\n"

    @needs(Capability.RUN_COMMAND)
    async def test_run_a_string_goes_through_a_shell(self) -> None:
        async with self.sandbox() as sandbox:
            result = await sandbox.run('A=1; echo "$A" && echo two; echo three >&2; exit 4')
            assert (result.exit_code, result.stdout, result.stderr) == (4, "1\ntwo\n", "three\n")

    @needs(Capability.RUN_COMMAND)
    async def test_run_env_is_added_for_one_call(self) -> None:
        async with self.sandbox(env={"BOTH": "create", "CREATED": "create"}) as sandbox:
            for name, expected in (("BOTH", "call"), ("CREATED", "create"), ("CALLED", "call")):
                result = await sandbox.run([*self.cmd_printenv, name], env={"BOTH": "call", "CALLED": "call"})
                assert result.stdout == f"{expected}\n"
            assert (await sandbox.run([*self.cmd_printenv, "BOTH"])).stdout == "create\n"
            assert (await sandbox.run([*self.cmd_printenv, "CALLED"])).exit_code == 1
            path = await sandbox.run([*self.cmd_printenv, "PATH"], env={"OTHER": "x"})
            assert path.stdout.strip(), "the image's own variables stay"

    @needs(Capability.RUN_COMMAND)
    async def test_run_env_values_arrive_byte_for_byte(self) -> None:
        async with self.sandbox(env={f"C_{name}": value for name, value in ODD_VALUES.items()}) as sandbox:
            for name, value in ODD_VALUES.items():
                for variable in (name, f"C_{name}"):
                    result = await sandbox.run([*self.cmd_printenv, variable], env=dict(ODD_VALUES))
                    assert result.stdout == f"{value}\n", variable

    @needs(Capability.RUN_COMMAND)
    async def test_run_sees_nothing_of_the_host_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SBX_SUITE_HOST", "leaked")
        async with self.sandbox() as sandbox:
            result = await sandbox.run([*self.cmd_printenv, "SBX_SUITE_HOST"])
            assert (result.exit_code, result.stdout) == (1, "")

    @needs(Capability.RUN_COMMAND)
    async def test_run_has_no_standard_input(self) -> None:
        async with self.sandbox() as sandbox, self.within(self.patience, "a command that reads its input"):
            result = await sandbox.run(self.cmd_cat)
            assert (result.exit_code, result.stdout) == (0, "")

    @needs(Capability.RUN_COMMAND)
    async def test_run_does_not_wait_for_a_background_child(self) -> None:
        async with self.sandbox() as sandbox:
            for _ in range(2):
                async with self.within(self.patience, "a run with a child in the background"):
                    result = await sandbox.run(self.cmd_background, timeout=300)
                    assert (result.exit_code, result.stdout) == (0, "started\n")

    @needs(Capability.RUN_COMMAND)
    async def test_run_decodes_characters_that_arrive_in_pieces(self) -> None:
        async with self.sandbox() as sandbox:
            result = await sandbox.run(self.cmd_split_utf8)
            assert result.stdout == "é🙂\n"

    @needs(Capability.RUN_COMMAND)
    async def test_run_replaces_bytes_that_are_not_utf8(self) -> None:
        async with self.sandbox() as sandbox:
            result = await sandbox.run(self.cmd_bad_utf8)
            assert result.stdout == "a\ufffdb\ufffd\n"

    @needs(Capability.RUN_COMMAND, Capability.FILESYSTEM)
    async def test_run_decodes_text_longer_than_any_buffer(self) -> None:
        text = "a" + "é漢🙂" * 50_000
        async with self.sandbox() as sandbox:
            await sandbox.files.write("long.txt", text)
            result = await sandbox.run([*self.cmd_cat, "long.txt"])
            assert not difference(result.stdout, text), "characters at the seams of reads are damaged"

    @needs(Capability.RUN_COMMAND)
    async def test_run_output_is_capped_and_says_so(self) -> None:
        last = self.output_limit // 7  # numbers of seven and eight bytes a line, so more than the limit
        everything = "".join(f"{number}\n" for number in range(1, last + 200_000))
        async with self.sandbox() as sandbox:
            result = await sandbox.run([*self.cmd_count, str(last + 199_999)], timeout=300)
        assert result.truncated
        assert result.exit_code == 0
        assert 0 < len(result.stdout.encode()) <= self.output_limit
        assert not difference(result.stdout, everything[: len(result.stdout)]), (
            "what is kept is the beginning"
        )

    @needs(Capability.RUN_COMMAND)
    async def test_run_output_below_the_cap_is_whole(self) -> None:
        async with self.sandbox() as sandbox:
            result = await sandbox.run([*self.cmd_count, "100000"])
        assert not difference(result.stdout, "".join(f"{number}\n" for number in range(1, 100_001)))
        assert not result.truncated

    @needs(Capability.RUN_COMMAND)
    async def test_run_many_at_once(self) -> None:
        results: dict[int, str] = {}

        async def echo(number: int) -> None:
            results[number] = (await sandbox.run([*self.cmd_echo, str(number)])).stdout

        async with self.sandbox() as sandbox, self.tasks() as tasks:
            for number in range(20):
                tasks.start_soon(echo, number)
        assert results == {number: f"{number}\n" for number in range(20)}

    @needs(Capability.RUN_COMMAND)
    async def test_run_refuses_what_is_no_command(self) -> None:
        async with self.sandbox() as sandbox:
            for command in BAD_COMMANDS:
                with pytest.raises(ConfigurationError):
                    await sandbox.run(command)
            for env in BAD_ENV:
                with pytest.raises(ConfigurationError):
                    await sandbox.run([*self.cmd_echo, "x"], env=env)
            assert (await sandbox.run([*self.cmd_echo, "x"])).ok

    @needs(Capability.RUN_COMMAND)
    async def test_run_refuses_arguments_longer_than_linux_passes(self) -> None:
        async with self.sandbox() as sandbox:
            for command, env in (
                ([*self.cmd_echo, "a" * 200_000], None),
                ("echo " + "a" * 200_000, None),
                ([*self.cmd_echo, "x"], {"LONG": "a" * 200_000}),
            ):
                with pytest.raises(ConfigurationError, match="13107"):
                    await sandbox.run(command, env=env)
            assert (await sandbox.run([*self.cmd_echo, "x"])).ok


class RunTimeoutTests(Contract):
    """What a deadline does to ``run``."""

    @needs(Capability.RUN_COMMAND)
    async def test_a_run_timeout_raises_and_kills(self) -> None:
        mark = new_mark()
        async with self.sandbox() as sandbox:
            async with self.within(1 + self.patience, "a run with a timeout of one second"):
                with pytest.raises(ExecutionTimeout):
                    await sandbox.run(self.cmd_hang, env={MARK: mark}, timeout=1)
            await self.assert_no_orphans(sandbox, mark)
            assert (await sandbox.run([*self.cmd_echo, "still here"])).stdout == "still here\n"

    @needs(Capability.RUN_COMMAND)
    async def test_a_run_timeout_kills_what_ignores_signals(self) -> None:
        mark = new_mark()
        async with self.sandbox() as sandbox:
            async with self.within(1 + self.patience, "a run with a timeout of one second"):
                with pytest.raises(ExecutionTimeout):
                    await sandbox.run(self.cmd_deaf, env={MARK: mark}, timeout=1)
            await self.assert_no_orphans(sandbox, mark)

    @needs(Capability.RUN_COMMAND)
    async def test_a_run_timeout_keeps_what_was_printed(self) -> None:
        async with self.sandbox() as sandbox:
            async with self.within(2 + self.patience, "a run with a timeout of two seconds"):
                with pytest.raises(ExecutionTimeout) as caught:
                    await sandbox.run(self.cmd_partial, timeout=2)
            partial = caught.value.partial
            assert partial is not None
            assert (partial.stdout, partial.stderr) == ("one\n", "two\n")

    @needs(Capability.RUN_COMMAND)
    async def test_a_run_timeout_spares_other_runs(self) -> None:
        slow: list[str] = []

        async def run_slowly() -> None:
            slow.append((await sandbox.run(self.cmd_slow, timeout=300)).stdout)

        async with (
            self.sandbox() as sandbox,
            self.within(4 + self.patience, "two runs"),
            self.tasks() as tasks,
        ):
            tasks.start_soon(run_slowly)
            with pytest.raises(ExecutionTimeout):
                await sandbox.run(self.cmd_hang, timeout=1)
        assert slow == ["a\nb\n"]

    @needs(Capability.RUN_COMMAND)
    async def test_run_refuses_a_timeout_that_is_none(self) -> None:
        async with self.sandbox() as sandbox:
            for timeout in BAD_TIMEOUTS:
                with pytest.raises(ConfigurationError):
                    await sandbox.run([*self.cmd_echo, "x"], timeout=timeout)

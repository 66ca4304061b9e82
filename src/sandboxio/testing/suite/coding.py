"""``run_code``: interpreters."""

from __future__ import annotations

import pytest

from sandboxio.errors import CapabilityNotSupported, ConfigurationError, ExecutionTimeout
from sandboxio.models import Capability, RichOutput

from .base import Contract, lacks, needs, new_mark


class RunCodeTests(Contract):
    """Row "run_code"."""

    @needs(Capability.RUN_CODE)
    async def test_run_code_prints(self) -> None:
        async with self.sandbox() as sandbox:
            result = await sandbox.run_code(self.code_both)
            assert (result.exit_code, result.stdout, result.stderr) == (0, "out\n", "err\n")

    @needs(Capability.RUN_CODE)
    async def test_run_code_that_is_not_python_fails_with_its_reason(self) -> None:
        async with self.sandbox() as sandbox:
            result = await sandbox.run_code(self.code_syntax_error)
            assert result.exit_code != 0
            assert "SyntaxError" in result.stderr

    @needs(Capability.RUN_CODE)
    async def test_run_code_that_raises_fails_with_its_reason(self) -> None:
        async with self.sandbox() as sandbox:
            result = await sandbox.run_code(f"print('before')\n{self.code_error}\nprint('after')")
            assert result.exit_code != 0
            assert result.stdout == "before\n"
            assert "ValueError" in result.stderr
            assert "broken on purpose" in result.stderr

    @needs(Capability.RUN_CODE)
    async def test_run_code_with_text_beyond_ascii(self) -> None:
        async with self.sandbox() as sandbox:
            assert (await sandbox.run_code("print('é漢🙂')")).stdout == "é漢🙂\n"

    @needs(Capability.RUN_CODE)
    async def test_run_code_longer_than_an_argument_may_be(self) -> None:
        async with self.sandbox() as sandbox:
            for size in (131_072, 2_000_000):
                result = await sandbox.run_code(f"x = '''{'a' * size}'''\nprint(len(x))")
                assert (result.exit_code, result.stdout) == (0, f"{size}\n")

    @needs(Capability.RUN_CODE)
    async def test_run_code_sees_the_environment_of_the_sandbox(self) -> None:
        async with self.sandbox(env={"GREETING": "hello"}) as sandbox:
            result = await sandbox.run_code("import os\nprint(os.environ['GREETING'])")
            assert result.stdout == "hello\n"

    @needs(Capability.RUN_CODE)
    async def test_run_code_without_a_context_keeps_nothing(self) -> None:
        async with self.sandbox() as sandbox:
            await sandbox.run_code("x = 1")
            result = await sandbox.run_code("print(x)")
            assert result.exit_code != 0
            assert "NameError" in result.stderr

    @needs(Capability.RUN_CODE)
    async def test_run_code_timeout_raises_and_kills(self) -> None:
        mark = new_mark()
        async with self.sandbox() as sandbox:
            async with self.within(2 + self.patience, "code with a timeout of two seconds"):
                with pytest.raises(ExecutionTimeout):
                    await sandbox.run_code(self.code_hang(mark), timeout=2)
            if Capability.RUN_COMMAND in self.backend.capabilities:
                await self.assert_no_orphans(sandbox, mark)
            assert (await sandbox.run_code("print('still here')")).stdout == "still here\n"

    @needs(Capability.RUN_CODE)
    async def test_run_code_refuses_a_language_it_does_not_have(self) -> None:
        async with self.sandbox() as sandbox:
            with pytest.raises(CapabilityNotSupported, match="no-such-language"):
                await sandbox.run_code("x", language="no-such-language")

    @needs(Capability.RUN_CODE)
    async def test_run_code_refuses_what_is_no_code(self) -> None:
        async with self.sandbox() as sandbox:
            for code in (None, b"print(1)", "print('\ud800')"):
                with pytest.raises(ConfigurationError):
                    await sandbox.run_code(code)  # type: ignore[arg-type]
            with pytest.raises(ConfigurationError):
                await sandbox.run_code("print(1)", timeout=0)

    @needs(Capability.RUN_CODE)
    async def test_run_code_has_rich_outputs_only_if_declared(self) -> None:
        async with self.sandbox() as sandbox:
            results = (await sandbox.run_code(self.code_rich)).results
            if not self.rich_outputs:
                assert results is None, "results must be None where there are no rich outputs"
                return
            assert results, "rich outputs are declared, and none came"
            assert all(isinstance(each, RichOutput) and each.mime_type and each.data for each in results)

    @needs(Capability.STATEFUL_CODE)
    async def test_a_context_keeps_variables(self) -> None:
        async with self.sandbox() as sandbox:
            await sandbox.run_code("x = 41", context_id="one")
            await sandbox.run_code("x = 1", context_id="two")
            assert (await sandbox.run_code("print(x + 1)", context_id="one")).stdout == "42\n"
            assert (await sandbox.run_code("print(x + 1)", context_id="two")).stdout == "2\n"
            assert (await sandbox.run_code("print(x)")).exit_code != 0

    @needs(Capability.STATEFUL_CODE)
    async def test_a_timeout_spares_other_contexts(self) -> None:
        async with self.sandbox() as sandbox:
            await sandbox.run_code("x = 41", context_id="one")
            with pytest.raises(ExecutionTimeout):
                await sandbox.run_code(self.code_hang(new_mark()), context_id="two", timeout=2)
            assert (await sandbox.run_code("print(x + 1)", context_id="one")).stdout == "42\n"
            assert (await sandbox.run_code("print('again')", context_id="two")).stdout == "again\n"

    @lacks(Capability.STATEFUL_CODE)
    @needs(Capability.RUN_CODE)
    async def test_a_context_is_refused(self) -> None:
        async with self.sandbox() as sandbox:
            with pytest.raises(CapabilityNotSupported, match="STATEFUL_CODE"):
                await sandbox.run_code("x = 1", context_id="one")

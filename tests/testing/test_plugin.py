"""The fixture `sbx_fake`, in the projects that it is for: any async plugin, or none."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

Run = Callable[..., pytest.RunResult]

ASYNC_TESTS = """
    import pytest
    import sandboxio
    from sandboxio import ExecResult, NetworkPolicy
    {mark}

    async def test_script_and_calls(sbx_fake):
        sbx_fake.on_run_code(match="import pandas", returns=ExecResult(0, "2.2.1\\n", ""))
        result = await sbx_fake.sandbox.run_code("import pandas; print(pandas.__version__)")
        assert "2.2.1" in result.stdout
        assert sbx_fake.calls[0].op == "create"
        assert sbx_fake.calls[0].network == NetworkPolicy(egress="deny")

    async def test_the_dsn_means_the_same_fake(sbx_fake):
        async with await sandboxio.create("fake://", metadata={{"a": "b"}}) as sandbox:
            async with sandbox.stream(["seq", "3"]) as process:
                assert b"".join([chunk.data async for chunk in process]) == b"1\\n2\\n3\\n"
        assert [call.op for call in sbx_fake.calls] == ["create", "stream", "kill"]
        assert sbx_fake.calls[0].metadata == {{"a": "b"}}

    async def test_a_hang_is_short(sbx_fake):
        sbx_fake.on_run(match="slow", hangs=True)
        with pytest.raises(sandboxio.SandboxTimeout):
            await sbx_fake.sandbox.run(["slow"], timeout=30)
    """


@pytest.fixture
def run(pytester: pytest.Pytester) -> Run:
    """Runs a test module in an empty project, with the plugins that the arguments leave."""

    def run(source: str, *arguments: str) -> pytest.RunResult:
        pytester.makepyfile(source)
        return pytester.runpytest_subprocess(
            "-p", "no:randomly", "-p", "no:cacheprovider", "-W", "error", *arguments, timeout=60
        )

    return run


def test_with_the_plugin_of_anyio(run: Run) -> None:
    source = ASYNC_TESTS.format(mark="pytestmark = pytest.mark.anyio")
    run(source, "-p", "no:asyncio", "-p", "no:trio").assert_outcomes(passed=6)


ASYNCIO = ("-p", "no:trio", "-o", "asyncio_default_fixture_loop_scope=function")


def test_with_pytest_asyncio(run: Run) -> None:
    source = ASYNC_TESTS.format(mark="pytestmark = pytest.mark.asyncio")
    run(source, *ASYNCIO).assert_outcomes(passed=3)


def test_with_pytest_asyncio_in_auto_mode(run: Run) -> None:
    source = ASYNC_TESTS.format(mark="")
    run(source, *ASYNCIO, "--asyncio-mode=auto").assert_outcomes(passed=3)


def test_with_pytest_trio(run: Run) -> None:
    source = ASYNC_TESTS.format(mark="pytestmark = pytest.mark.trio")
    run(source, "-p", "no:asyncio").assert_outcomes(passed=3)


def test_without_any_async_plugin(run: Run) -> None:
    result = run(
        """
        import threading
        import anyio
        import pytest
        import sandboxio
        from sandboxio import ExecResult, NetworkPolicy

        def my_agent_tool(sandbox, query):
            return sandbox.run_code(f"import pandas  # {query}").stdout

        @pytest.fixture(autouse=True)
        def no_thread_is_left():
            before = threading.active_count()
            yield
            assert threading.active_count() == before

        def test_a_blocking_tool(sbx_fake):
            sbx_fake.on_run_code(match="import pandas", returns=ExecResult(0, "2.2.1\\n", ""))
            assert "2.2.1" in my_agent_tool(sbx_fake.sync_sandbox, "check pandas version")
            assert sbx_fake.calls[0].op == "create"
            assert sbx_fake.calls[0].network == NetworkPolicy(egress="deny")

        def test_both_views_are_one_sandbox(sbx_fake):
            sbx_fake.sync_sandbox.files.write("x", "1")
            assert sbx_fake.sync_sandbox.id == sbx_fake.sandbox.id
            assert anyio.run(sbx_fake.sandbox.files.read, "x") == b"1"

        def test_create_sync(sbx_fake):
            with sandboxio.create_sync("fake://") as sandbox:
                assert sandbox.run(["echo", "hello"]).stdout == "hello\\n"
            assert [call.op for call in sbx_fake.calls][0] == "create"

        @pytest.mark.parametrize("backend", ["asyncio", "trio"])
        def test_an_event_loop_of_its_own(sbx_fake, backend):
            assert anyio.run(sbx_fake.sandbox.run, "echo hello", backend=backend).stdout == "hello\\n"
        """,
        *("-p", "no:asyncio", "-p", "no:trio", "-p", "no:anyio"),
    )
    result.assert_outcomes(passed=5)


def test_each_test_gets_a_fake_of_its_own(run: Run) -> None:
    result = run(
        """
        import sandboxio
        from sandboxio import registry
        def test_one(sbx_fake):
            assert registry.resolve("fake") is sbx_fake
            sbx_fake.sandbox
        def test_two(sbx_fake):
            assert sbx_fake.calls == []
        def test_three():
            assert registry.resolve("fake").calls == []
        """,
        *("-p", "no:asyncio", "-p", "no:trio"),
    )
    result.assert_outcomes(passed=3)


def test_production_code_keeps_its_dsn(run: Run) -> None:
    result = run(
        """
        import pytest
        import sandboxio
        from sandboxio import ExecResult
        from sandboxio.testing import FakeBackend

        async def my_tool(query):
            async with await sandboxio.create("docker://python:3.12-slim") as sandbox:
                return (await sandbox.run_code(f"print({query!r}.upper())")).stdout

        @pytest.mark.anyio
        async def test_tool_without_docker():
            fake = FakeBackend()
            fake.on_run_code(match="upper", returns=ExecResult(0, "HELLO\\n", ""))
            sandboxio.register("docker", lambda: fake)
            assert await my_tool("hello") == "HELLO\\n"
            assert fake.calls[0].timeout == 300
            assert fake.calls[0].template == "python:3.12-slim"
        """,
        *("-p", "no:asyncio", "-p", "no:trio"),
    )
    result.assert_outcomes(passed=2)


def test_the_testing_module_needs_no_pytest() -> None:
    code = (
        "import sys; sys.modules['pytest'] = None; import sandboxio.testing as t; "
        "t.FakeBackend(); t.RecordingSink(); assert 'FakeBackend' in dir(t)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_plugin_imports_no_sandbox_code_before_it_is_used() -> None:
    code = (
        "import sys, sandboxio.testing.plugin; "
        "print([m for m in sys.modules if m.startswith('sandboxio.testing.') and 'plugin' not in m])"
    )
    run = subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True, text=True)
    assert run.stdout == "[]\n"

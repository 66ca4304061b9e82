"""What an adapter's author meets: the suite in a project of its own, and its errors."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Run = Callable[..., pytest.RunResult]


@pytest.fixture
def run(pytester: pytest.Pytester) -> Run:
    """Runs a test module in an empty project with pytest and the anyio plugin only."""

    def run(source: str, *arguments: str) -> pytest.RunResult:
        pytester.makepyfile(source)
        plain = ["-p", "no:asyncio", "-p", "no:trio", "-p", "no:randomly", "-p", "no:cacheprovider", "-rs"]
        return pytester.runpytest_subprocess(*plain, *arguments, timeout=60)

    return run


def test_a_class_with_a_backend_is_all_it_takes(run: Run) -> None:
    result = run(
        """
        from sandboxio.testing import FakeBackend
        from sandboxio.testing.suite import BackendContractSuite
        class TestMine(BackendContractSuite):
            backend = FakeBackend()
        """,
        "-k",
        "test_run_exit_codes or test_a_missing_credential or test_stream_is_refused",
    )
    result.assert_outcomes(passed=2, skipped=4, deselected=result.parseoutcomes()["deselected"])
    result.stdout.fnmatch_lines_random(
        [
            "*2* TestMine has no probe simulate_missing_credential",
            "*2* backend 'fake' declares STREAMING, so it has nothing to refuse",
        ]
    )


def test_the_backend_may_be_a_fixture(run: Run) -> None:
    result = run(
        """
        import pytest
        from sandboxio.testing import FakeBackend
        from sandboxio.testing.suite import BackendContractSuite
        class TestMine(BackendContractSuite):
            @pytest.fixture
            def backend(self):
                return FakeBackend()
        """,
        "-k",
        "test_run_exit_codes",
    )
    assert result.parseoutcomes()["passed"] == 2


def test_without_a_backend_one_error_says_what_to_write(run: Run) -> None:
    result = run(
        """
        from sandboxio.testing.suite import BackendContractSuite
        class TestMine(BackendContractSuite):
            pass
        """
    )
    assert result.parseoutcomes() == {"errors": 1} or result.parseoutcomes() == {"error": 1}
    result.stdout.fnmatch_lines(["*TestMine has no backend. Write in it:*", "*backend = YourBackend()*"])


def test_a_capability_without_its_method_is_named(run: Run) -> None:
    result = run(
        """
        from sandboxio import Capability
        from sandboxio.testing import FakeBackend
        from sandboxio.testing.suite.honesty import CapabilityTests

        class Half:
            def __init__(self, sandbox):
                self.id, self.isolation, self.native = sandbox.id, sandbox.isolation, sandbox
                self.capabilities, self.run, self.kill = sandbox.capabilities, sandbox.run, sandbox.kill

        class HalfBackend(FakeBackend):
            async def create(self, **options):
                return Half(await super().create(**options))

        class TestHalf(CapabilityTests):
            backend = HalfBackend(capabilities=Capability.STREAMING | Capability.NETWORK_POLICY)

        class TestMore(CapabilityTests):
            backend = FakeBackend()
            backend.capabilities |= Capability.PTY
        """,
        "-k",
        "test_every_declared_capability",
    )
    result.assert_outcomes(failed=4, deselected=result.parseoutcomes()["deselected"])
    result.stdout.fnmatch_lines_random(
        [
            "*backend 'fake' declares STREAMING, and Half has no stream. Write: def stream(self, cmd, *",
            "*backend 'fake' declares PTY, for which this release has no method: take it out*",
        ]
    )


def test_a_probe_that_raises_is_named(run: Run) -> None:
    result = run(
        """
        from sandboxio.testing import FakeBackend
        from sandboxio.testing.suite.faults import ErrorTests, TimeoutTests
        class TestMine(TimeoutTests, ErrorTests):
            backend = FakeBackend()
            async def expire_sandbox(self, sandbox):
                raise KeyError("no such machine")
            def simulate_provider_failure(self):
                return "not a context manager"
        """,
        "-k",
        "test_an_expired_sandbox or test_a_failure_of_the_provider",
    )
    result.assert_outcomes(failed=4, deselected=result.parseoutcomes()["deselected"])
    result.stdout.fnmatch_lines_random(
        [
            "*The probe TestMine.expire_sandbox raised KeyError: 'no such machine'*",
            "*TestMine.simulate_provider_failure raised TypeError: it must return a context manager*",
        ]
    )


def test_a_deviation_is_a_strict_expected_failure(run: Run) -> None:
    result = run(
        """
        from sandboxio.testing import FakeBackend
        from sandboxio.testing.suite.running import RunTests
        class TestMine(RunTests):
            backend = FakeBackend()
            cmd_echo = ["echo", "-n"]
            deviations = {
                "test_run_a_list_goes_through_no_shell": "our echo adds no newline",
                "test_run_exit_codes": "repaired long ago",
            }
        """,
        "-k",
        "test_run_a_list or test_run_exit_codes",
        "-rx",
    )
    result.assert_outcomes(xfailed=2, failed=2, deselected=result.parseoutcomes()["deselected"])
    result.stdout.fnmatch_lines_random(
        ["*XFAIL*test_run_a_list*our echo adds no newline", "*XPASS(strict)*repaired long ago"]
    )


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ('{"test_of_nothing": "because"}', "*names 'test_of_nothing', and the suite has no such test.*"),
        ('{"test_run_exit_codes": " "}', "*must say why this backend differs*"),
    ],
)
def test_a_deviation_that_means_nothing_is_refused(run: Run, entry: str, message: str) -> None:
    result = run(
        f"""
        from sandboxio.testing import FakeBackend
        from sandboxio.testing.suite import BackendContractSuite
        class TestMine(BackendContractSuite):
            backend = FakeBackend()
            deviations = {entry}
        """
    )
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines([message])

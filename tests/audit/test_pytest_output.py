"""What pytest prints when somebody's test fails around a sandbox."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .encoded import found_in

SECRET = "it's a canary /?&= 7"
ROOT = Path(__file__).parents[2]

TEST = """
import os, pytest, sandboxio
from sandboxio import BackendConfig
from tests.audit.parrot import Far, ParrotBackend
from tests.audit.operations import OPERATIONS

SECRET = os.environ["CANARY"]
FAR = Far()
sandboxio.register("parrot", lambda: ParrotBackend(FAR))

async def sandbox():
    FAR.says = "yes"
    return await sandboxio.create("parrot://", secrets={"CANARY": os.environ["CANARY"]})

@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("end", ["an error with a cause", "an error with a context", "a bug", "hangs"])
@pytest.mark.parametrize("name", OPERATIONS)
async def test_operation(name, end, tmp_path):
    made = await sandbox()
    made._request = made._request.__class__(timeout=0.05, secrets=made._request.secrets)
    FAR.says = end
    await OPERATIONS[name][1](made, os.environ["CANARY"], tmp_path)

@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("wrong", [
    dict(env={"CANARY": "x"}), dict(env={"X": "\\0"}), dict(timeout=-1), dict(template=""),
    dict(metadata={"": ""}),
])
async def test_create(wrong):
    await sandboxio.create(BackendConfig(backend="parrot", secrets={"CANARY": os.environ["CANARY"]}), **wrong)

@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_create_twice():
    config = BackendConfig(backend="parrot", secrets={"CANARY": os.environ["CANARY"]})
    await sandboxio.create(config, secrets={"CANARY": os.environ["CANARY"] + "x"})

@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_run_with_a_wrong_env():
    await (await sandbox()).run(["x"], env={"TOKEN": os.environ["CANARY"], "X": "\\0"})

@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_assertion():
    made = await sandbox()
    assert made is None
"""


@pytest.fixture
def failing(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Callable[..., pytest.RunResult]:
    """Runs the tests above as somebody else's project would."""
    monkeypatch.setenv("CANARY", SECRET)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makepyfile(TEST)
    pytester.makeini("[pytest]\nanyio_mode = auto\n")

    def run(*arguments: str) -> pytest.RunResult:
        plain = ["-p", "no:asyncio", "-p", "no:trio", "-p", "no:randomly", "-p", "no:cacheprovider"]
        return pytester.runpytest_subprocess(*plain, *arguments, timeout=50)

    return run


def telling_lines(result: pytest.RunResult) -> list[str]:
    return [line for line in result.outlines + result.errlines if found_in(line, SECRET)]


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [(), ("--tb=long", "-k", "run_code")], ids=["as usual", "long"])
def test_a_failing_test_shows_no_secret(
    failing: Callable[..., pytest.RunResult], arguments: tuple[str, ...]
) -> None:
    result = failing(*arguments)
    assert result.parseoutcomes()["failed"] == (4 if arguments else 52)
    result.stdout.fnmatch_lines(["E *sandboxio.errors.ConnectError: *The far side refused: *"])
    if arguments:
        # The frames of the test itself and of what it calls are its own, and show their values.
        assert {line.partition(" = ")[0] for line in telling_lines(result)} <= {"secret"}
    else:
        assert not telling_lines(result)


@pytest.mark.slow
def test_without_the_plugin_pytest_shows_what_the_frames_hold(
    failing: Callable[..., pytest.RunResult],
) -> None:
    result = failing("-p", "no:sandboxio", "-k", "run_code and cause")
    assert result.parseoutcomes()["failed"] == 1
    assert telling_lines(result)

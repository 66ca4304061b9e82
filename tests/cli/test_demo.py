"""``sandboxio demo``: five steps, and an egress probe that can fail."""

from __future__ import annotations

import re
from collections.abc import Callable

import anyio
import anyio.lowlevel
import pytest

import sandboxio
from sandboxio import Capability, CreationError, ExecResult, Progress
from sandboxio.cli import egress
from sandboxio.cli.egress import judge
from sandboxio.testing import FakeBackend

from .conftest import Command

STEPS = ["create", "run_code", "stream", "egress", "teardown"]


def statuses(payload: dict[str, object]) -> list[str]:
    steps = payload["steps"]
    assert isinstance(steps, list)
    return [f"{step['name']} {step['status']}" for step in steps]


def test_five_steps_with_their_times(command: Command) -> None:
    ran = command("demo", "--backend", "fake://")
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert [line.split()[:2] for line in lines[:5]] == [["ok", name] for name in STEPS]
    assert all(re.search(r" \d+ ms  \S", line) for line in lines[:5])
    assert re.fullmatch(r"It works \(\d+\.\d s\)\.", lines[6])


def test_json_has_the_same_steps(command: Command) -> None:
    ran = command("demo", "--backend", "fake://thing", "--json")
    assert (ran.code, ran.err) == (0, "")
    payload = ran.payload
    assert statuses(payload) == [f"{name} ok" for name in STEPS]
    assert payload["ok"] is True
    assert (payload["backend"], payload["template"]) == ("fake", "thing")
    assert payload["isolation"] == "container"
    assert payload["total_ms"] >= sum(step["ms"] for step in payload["steps"]) - 5


def test_without_its_extra_the_install_command_and_1(command: Command, only: Callable[..., None]) -> None:
    only()
    ran = command("demo")
    assert ran.code == 1
    assert 'fix: pip install "sandboxio[docker]"' in ran.out
    assert "It does not work yet" in ran.out
    payload = command("demo", "--json").payload
    assert statuses(payload) == ["create failed"]
    assert payload["steps"][0]["error"]["code"] == "SBX_E1002"
    assert payload["sandbox_id"] is None


def test_a_failed_creation_shows_its_fix(command: Command, fake: FakeBackend) -> None:
    fake.simulate(create_fails=CreationError("No room."))
    ran = command("demo")
    assert ran.code == 1
    assert "FAIL  create" in ran.out
    assert "docs: https://docs.sandboxio.dev/errors/SBX_E1201/" in ran.out


def test_steps_after_a_failed_one_still_run_and_the_sandbox_goes(command: Command, fake: FakeBackend) -> None:
    fake.on_run_code(match="hello", returns=ExecResult(1, "", "broken\n"))
    payload = command("demo", "--json").payload
    assert statuses(payload) == ["create ok", "run_code failed", "stream ok", "egress ok", "teardown ok"]
    assert payload["ok"] is False
    assert "broken" in payload["steps"][1]["detail"]


def test_a_backend_without_streaming_skips_that_step(command: Command, only: Callable[..., None]) -> None:
    able = FakeBackend().capabilities & ~Capability.STREAMING
    only(quiet=lambda: FakeBackend(capabilities=able))
    ran = command("demo", "--backend", "quiet://")
    assert ran.code == 0
    assert "skip  stream" in ran.out


def test_reaching_the_network_fails_the_demo(command: Command, fake: FakeBackend) -> None:
    """The policy does not hold: here, because the backend quietly ignores it."""
    fake.on_run_code(match="urlopen", returns=ExecResult(0, "200\n", ""))
    ran = command("demo")
    assert ran.code == 1
    assert "FAIL  egress" in ran.out
    assert "reached: something answered" in ran.out
    assert fake.calls[-1].op == "kill"


def test_the_demo_cannot_be_told_to_weaken_its_policy(command: Command, fake: FakeBackend) -> None:
    command("demo", "--backend", "docker://x?timeout=77")
    assert fake.calls[0].op == "create"
    assert fake.calls[0].network == sandboxio.NetworkPolicy()
    assert fake.calls[0].timeout == 77


@pytest.mark.parametrize("simulated", [{"kill_hangs": True}, {"kill_fails": LookupError()}])
def test_a_teardown_that_fails_is_told_once(
    command: Command, fake: FakeBackend, monkeypatch: pytest.MonkeyPatch, simulated: dict[str, object]
) -> None:
    monkeypatch.setenv("SBX_TEARDOWN_GRACE", "0.1")
    fake.simulate(**simulated)  # type: ignore[arg-type]
    ran = command("demo", "--json")
    assert (ran.code, ran.err) == (1, "")
    assert statuses(ran.payload)[-1] == "teardown failed"
    fake.simulate()


# Progress


class Pulling(FakeBackend):
    """Reports a download, then creates."""

    report: Callable[[Progress], object] | None = None

    def reporting(self, report: Callable[[Progress], object]) -> Pulling:
        self.report = report
        return self

    async def _provision(self, request: object) -> object:  # type: ignore[override]
        await anyio.lowlevel.checkpoint()
        assert self.report is not None
        for current in (1, 2):
            self.report(Progress("Downloading", "layer", current << 20, 2 << 20))
        return await super()._provision(request)  # type: ignore[arg-type]


def test_progress_goes_to_a_terminal_only(command: Command, only: Callable[..., None]) -> None:
    only(pulling=Pulling)
    ran = command("demo", "--backend", "pulling://")
    assert ran.code == 0
    assert "Downloading" not in ran.out + ran.err


# The verdict

LOOPBACK = ExecResult(0, '{"up": ["lo"], "routes": []}\n', "")
DOWN = ExecResult(0, '{"up": ["lo"], "routes": ["eth0"]}\n', "")
ROUTELESS = ExecResult(0, '{"up": ["lo", "eth0"], "routes": ["lo"]}\n', "")
BRIDGE = ExecResult(0, '{"up": ["lo", "eth0"], "routes": ["eth0", "lo"]}\n', "")
UNKNOWN = ExecResult(1, "", "OSError\n")
GARBLED = ExecResult(0, "[1]\n", "")


def died(last: str, code: int = 1) -> ExecResult:
    return ExecResult(code, "", f"Traceback (most recent call last):\n{last}\n")


UNREACHABLE = died("urllib.error.URLError: <urlopen error [Errno 101] Network is unreachable>")
REFUSED = died("urllib.error.URLError: <urlopen error [Errno 111] Connection refused>")
FORBIDDEN = died("urllib.error.URLError: <urlopen error [Errno 1] Operation not permitted>")
RESET = died("ConnectionResetError: [Errno 104] Connection reset by peer")
CLOSED = died("http.client.RemoteDisconnected: Remote end closed connection without response")
SILENT = died("urllib.error.URLError: <urlopen error timed out>")
ANSWERED = died("urllib.error.HTTPError: HTTP Error 403: Forbidden")
ODD = died("ModuleNotFoundError: No module named 'urllib'")
CONNECTED = ExecResult(0, "200\n", "")


@pytest.mark.parametrize(
    ("attempt", "interfaces", "verdict"),
    [
        # nothing leads out: proof, whatever the attempt looked like
        (UNREACHABLE, LOOPBACK, "denied"),
        (SILENT, LOOPBACK, "denied"),
        (UNREACHABLE, DOWN, "denied"),
        (UNREACHABLE, ROUTELESS, "denied"),
        # something answered: the policy does not hold, whatever the interfaces
        (CONNECTED, LOOPBACK, "reached"),
        (CONNECTED, BRIDGE, "reached"),
        (ANSWERED, BRIDGE, "reached"),
        (CONNECTED, UNKNOWN, "reached"),
        # a way out, and something that turned the attempt away
        (REFUSED, BRIDGE, "denied"),
        (FORBIDDEN, BRIDGE, "denied"),
        (CLOSED, BRIDGE, "denied"),
        (RESET, BRIDGE, "denied"),
        # a way out, and what an open network shows too: no pass
        (SILENT, BRIDGE, "unproven"),
        (UNREACHABLE, BRIDGE, "unproven"),
        # the probe itself did not work: no pass either
        (ODD, BRIDGE, "unproven"),
        (ODD, UNKNOWN, "unproven"),
        (ExecResult(127, "", ""), UNKNOWN, "unproven"),
        (SILENT, UNKNOWN, "unproven"),
        (SILENT, GARBLED, "unproven"),
        (UNREACHABLE, UNKNOWN, "denied"),
        (REFUSED, None, "denied"),
    ],
)
def test_only_shown_denial_passes(attempt: ExecResult, interfaces: ExecResult | None, verdict: str) -> None:
    assert judge(attempt, interfaces).verdict == verdict


def test_the_target_belongs_to_nobody() -> None:
    import ipaddress

    assert ipaddress.ip_address(egress.TARGET) in ipaddress.ip_network("192.0.2.0/24")  # RFC 5737
    assert egress.TARGET in egress.ATTEMPT
    for source in (egress.ATTEMPT, egress.INTERFACES):
        compile(source, "probe", "exec")


def test_the_probe_of_interfaces_works_on_this_machine() -> None:
    """Run outside any sandbox, it sees at least loopback."""
    import json
    import subprocess
    import sys

    found = json.loads(subprocess.check_output([sys.executable, "-c", egress.INTERFACES]))
    assert "lo" in found["up"]


# For real


@pytest.mark.engine
def test_on_docker(command: Command, docker_image: str) -> None:
    payload = command("demo", "--backend", f"docker://{docker_image}", "--json").payload
    assert statuses(payload) == [f"{name} ok" for name in STEPS]
    assert payload["steps"][3]["detail"].startswith("denied: no interface but loopback, no route out")

"""scripts/engines.py and scripts/engines_matrix.py: what can be seen of them without an engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import tomllib
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from scripts import engine, engine_api, engines, engines_matrix
from scripts.engine import Problem
from scripts.engines import DockerInDocker, Podman, SecondDocker
from scripts.engines_matrix import Result, Row

REPORT = """
<testsuites><testsuite>
<testcase classname="contract.test_docker.TestDockerGuest" name="test_a[asyncio]"/>
<testcase classname="contract.test_docker.TestDockerGuest" name="test_a[trio-0.3]"><failure/></testcase>
<testcase classname="contract.test_docker.TestDockerGuest" name="test_b[trio]"><error/></testcase>
<testcase classname="contract.test_docker.TestDockerExec" name="test_c"/>
<testcase classname="contract.test_docker.TestDockerExec" name="test_a[asyncio]">
  <skipped type="pytest.skip" message="why"/></testcase>
<testcase classname="contract.test_docker.TestDockerExec" name="test_d[asyncio]">
  <skipped type="pytest.xfail" message="why"/></testcase>
<testcase classname="tests.real.test_creator_killed" name="test_e[guest-asyncio-run]">
  <properties><property name="killed in run" value="0.25"/></properties></testcase>
<testcase classname="tests.real.test_creator_killed" name="test_e[guest-trio-run]">
  <properties><property name="killed in run" value="0.5"/></properties></testcase>
</testsuite></testsuites>
"""


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DOCKER_HOST", "SBX_TEST_IMAGE", "SBX_ENGINES"):
        monkeypatch.delenv(name, raising=False)


# The engines


def test_no_two_engines_share_anything() -> None:
    further = engines.FURTHER.values()
    for part in ("root", "socket", "bridge", "subnet"):
        assert len({getattr(each, part) for each in further}) == len(further), part
    assert all(len(each.bridge) <= 15 for each in further)
    assert "docker0" not in {each.bridge for each in further}


def test_no_engine_takes_docker0_away() -> None:
    """`dockerd --bridge=none` removes the interface, which is the first engine's."""
    for command in (SecondDocker().place.command(), DockerInDocker().command()):
        bridges = [word for word in command if word.startswith("--bridge=")]
        assert bridges
        assert bridges != ["--bridge=none"]
        assert "--iptables=false" in command


def test_the_settings_of_podman_are_what_this_process_may_ask_for() -> None:
    settings = tomllib.loads(Podman().settings())
    assert settings["engine"]["runtime"] == "runc"
    limits = dict(each.split("=") for each in settings["containers"]["default_ulimits"])
    hard = int(limits["nofile"].split(":")[1])
    assert 0 < hard <= 32768
    network = json.loads(Podman().network())
    assert network["name"] == "podman"
    assert network["plugins"][0]["ipam"]["ranges"][0][0]["gateway"] == Podman().gateway


def test_gvisor_is_known_as_runsc() -> None:
    assert set(json.loads(SecondDocker().settings())["runtimes"]) == {"runsc"}


def test_the_inner_engine_is_given_no_more_than_it_needs() -> None:
    host: Any = DockerInDocker().body()["HostConfig"]
    assert "Privileged" not in host
    assert "/var/run/docker.sock" not in json.dumps(host)


def test_processes_are_found_by_program_and_text(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print(1, flush=True); input()", str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"1\n"  # from here on it is what its command line says
        name = Path(sys.executable).name
        assert engines.processes(name, str(tmp_path)) == [child.pid]
        assert engines.processes("conmon", str(tmp_path)) == []
        child.communicate(b"\n")


def test_mounts_are_found_innermost_first() -> None:
    found = engines.mounts_below(Path("/"))
    assert "/proc" in found
    assert found[-1] == "/"
    assert engines.mounts_below(Path("/nowhere")) == []


# Who can


def test_elsewhere_one_sentence_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "is_debian", lambda: False)
    with pytest.raises(
        Problem, match=r"^podman cannot be brought up\. Further engines need root, and Debian"
    ):
        engines.up("podman")


def test_the_variables_of_a_further_engine_do_not_hide_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", Podman().host)
    engines.forget_own()
    assert "DOCKER_HOST" not in os.environ
    monkeypatch.setenv("DOCKER_HOST", "unix:///elsewhere.sock")
    engines.forget_own()
    assert os.environ["DOCKER_HOST"] == "unix:///elsewhere.sock"


def test_a_refusal_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_api, "request", lambda *_, **__: (500, b"disk full"))
    with pytest.raises(Problem, match="unix:///x refuses POST /y: 500 b'disk full'"):
        engines.ask("unix:///x", "POST", "/y")
    assert engines.ask("unix:///x", "POST", "/y", fine=(500,)) == b"disk full"


def test_an_engine_that_does_not_exist_is_refused() -> None:
    command = [sys.executable, "-m", "scripts.engines", "down", "docker19"]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no such engine: docker19; there are docker20, docker26, podman, docker20-runsc" in done.stderr


# Which are asked for


def test_engines_are_chosen(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(engines, "problem", lambda: None)
    assert engines_matrix.wanted([]) == list(engines.NAMES)
    assert engines_matrix.wanted(["podman"]) == ["podman"]
    monkeypatch.setenv("SBX_ENGINES", "docker20,docker26")
    assert engines_matrix.wanted([]) == ["docker20", "docker26"]
    assert engines_matrix.wanted(["podman"]) == ["podman"]
    monkeypatch.setenv("SBX_ENGINES", "docker21")
    with pytest.raises(Problem, match="no such engine: docker21"):
        engines_matrix.wanted([])
    assert capsys.readouterr().err == ""


def test_where_none_can_be_brought_up_a_sentence_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(engines, "problem", lambda: "Why.")
    assert engines_matrix.wanted([]) == ["docker20"]
    assert capsys.readouterr().err == "Left out: docker26, podman, docker20-runsc. Why.\n"
    assert engines_matrix.wanted(["podman"]) == ["podman"], "what was named is tried, and fails"


# The table


def counted() -> dict[Row, Counter[str]]:
    return engines_matrix.rows(ET.fromstring(REPORT), "podman", "runc")


def test_a_report_is_counted_by_channel_and_loop() -> None:
    assert counted() == {
        Row("podman", "runc", "guest", "asyncio"): Counter(passed=1),
        Row("podman", "runc", "guest", "trio"): Counter(failed=2),
        Row("podman", "runc", "exec", "sync"): Counter(passed=1),
        Row("podman", "runc", "exec", "asyncio"): Counter(skipped=1, xfailed=1),
        Row("podman", "runc", "other", "asyncio"): Counter(passed=1),
        Row("podman", "runc", "other", "trio"): Counter(passed=1),
    }
    assert engines_matrix.killed(ET.fromstring(REPORT)) == {"run": [0.25, 0.5]}


def test_the_table_says_all_on_one_screen() -> None:
    left = ["sandboxio-1 (running)"]
    result = Result(counted(), 61.4, "pytest ended with 1", left, {"run": [0.25, 0.5]})
    text = "\n".join(engines_matrix.table({"podman": result}))
    assert "podman          runc     guest    trio             0        2        0        0" in text
    assert "container gone after at most (s): run 0.50" in text
    assert "podman          1 labelled containers left; 61 s\n  left: sandboxio-1 (running)" in text
    assert text.endswith("podman: pytest ended with 1")


def test_what_is_wrong_fails() -> None:
    row = Row("podman", "runc", "guest", "trio")
    good = Result({row: Counter(passed=1, skipped=2)})
    assert not good.bad
    assert Result({row: Counter(passed=1, failed=1)}).bad
    assert Result({row: Counter(skipped=9)}).bad, "a table in which nothing passed shows nothing"
    assert Result(good.counts, left=["one"]).bad
    assert Result(good.counts, problem="it could not be brought up").bad


def test_containers_of_others_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def container(name: str, creator: str, created: float) -> dict[str, Any]:
        labels = {"io.sandboxio.session": creator}
        return {"Names": [f"/{name}"], "State": "exited", "Created": int(created), "Labels": labels}

    now = time.time()
    gone = str(max(int(each.name) for each in Path("/proc").glob("[0-9]*")) + 100_000)
    listed = [
        container("left", gone, now),
        container("theirs", str(os.getpid()), now),
        container("older", gone, now - 60),
    ]
    monkeypatch.setattr(engine_api, "request", lambda *_, **__: (200, json.dumps(listed).encode()))
    assert engines_matrix.containers_left("unix:///x", now) == ["left (exited)"]
    monkeypatch.setattr(engine_api, "request", lambda *_, **__: (404, b"?"))
    with pytest.raises(Problem, match="unix:///x lists no containers: 404"):
        engines_matrix.containers_left("unix:///x", now)


def test_engines_run_at_once_are_brought_up_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be brought up is a failure of that engine, and no reason to leave the others out."""
    both = threading.Barrier(2, timeout=10)

    def up(name: str) -> tuple[str, str]:
        if name == "docker26":
            raise Problem("no space")
        return "unix:///x", "image"

    def run(name: str, extra: list[str], *, together: bool) -> Result:
        assert together
        both.wait()
        return Result(problem="no space" if name == "docker26" else "")

    monkeypatch.setattr(engines, "up", up)
    monkeypatch.setattr(engines_matrix, "run", run)
    found = engines_matrix.run_together(["docker26", "podman"], [])
    assert {name: result.problem for name, result in found.items()} == {"docker26": "no space", "podman": ""}

"""scripts/engine.py: what it says and does on machines that have, lack or forbid an engine."""

from __future__ import annotations

import os
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from scripts import engine
from scripts.engine import Place, Problem


class _Server(socketserver.ThreadingUnixStreamServer):
    images: set[str]
    received: list[tuple[str, bytes]]


class _Engine(BaseHTTPRequestHandler):
    """Enough of an engine to be found, asked for images, and handed one."""

    protocol_version = "HTTP/1.1"
    server: _Server

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        if self.path == "/_ping":
            return self._answer(200, b"OK")
        name = self.path.removeprefix("/images/").removesuffix("/json").replace("%3A", ":")
        return self._answer(200 if name in self.server.images else 404, b"{}")

    def do_POST(self) -> None:
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        self.server.received.append((self.path, body))
        if "refused" in self.path:
            return self._answer(200, b'{"status":"x"}\n{"error":"no space left"}\n')
        return self._answer(200, b'{"status":"sha256:1"}\n')

    def log_message(self, *args: object) -> None:
        pass

    def address_string(self) -> str:
        return "unix"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[_Server]:
    server = _Server(str(tmp_path / "docker.sock"), _Engine)
    server.images, server.received = set(), []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A machine without variables, whose only engine can be the one of `server`."""
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.delenv("SBX_TEST_IMAGE", raising=False)
    place = Place(tmp_path / "root", tmp_path / "docker.sock")
    monkeypatch.setattr(engine, "usual_hosts", lambda: [place.host])
    return place


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "is_debian", lambda: False)


@pytest.mark.parametrize("image", [engine.BUILT_IMAGE, engine.PULLED_IMAGE])
def test_an_engine_that_answers_is_used_as_it_is(
    server: _Server, place: Place, capsys: pytest.CaptureFixture[str], image: str
) -> None:
    server.images.add(image)
    engine.up(place)
    out, err = capsys.readouterr()
    assert out == f"export DOCKER_HOST={place.host} SBX_TEST_IMAGE={image}\n"
    assert err == ""
    assert server.received == []


def test_the_output_is_for_the_shell(server: _Server, place: Place) -> None:
    server.images.add(engine.BUILT_IMAGE)
    program = (
        "from pathlib import Path; from scripts import engine;"
        f"engine.usual_hosts = lambda: [{place.host!r}];"
        f"engine.up(engine.Place(Path({str(place.root)!r}), Path({str(place.socket)!r})))"
    )
    command = f'eval "$({sys.executable} -c "{program}")"; echo "$DOCKER_HOST $SBX_TEST_IMAGE"'
    root = Path(__file__).parents[2]
    done = subprocess.run(["bash", "-c", command], cwd=root, text=True, capture_output=True, check=True)
    assert done.stdout == f"{place.host} {engine.BUILT_IMAGE}\n"


def test_elsewhere_one_sentence_says_what_to_do(place: Place, elsewhere: None) -> None:
    with pytest.raises(Problem, match=r"^No Docker engine answers\. Start Docker .*set DOCKER_HOST"):
        engine.up(place)


def test_elsewhere_an_engine_without_image_says_what_to_pull(
    server: _Server, place: Place, elsewhere: None
) -> None:
    with pytest.raises(Problem, match=r"no image for the tests: run `docker pull python:3\.12-slim`"):
        engine.up(place)


def test_a_named_engine_that_is_dead_is_not_replaced(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(Problem, match="DOCKER_HOST is set, but no Docker engine answers at unix:///now"):
        engine.up(place)


def test_a_named_image_that_is_missing_is_not_replaced(
    server: _Server, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.images.add(engine.BUILT_IMAGE)
    monkeypatch.setenv("SBX_TEST_IMAGE", "mine:1")
    with pytest.raises(Problem, match="SBX_TEST_IMAGE names mine:1, which the engine"):
        engine.up(place)


def test_a_folder_that_cannot_be_written_is_one_sentence(place: Place, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Problem, match="cannot write to "):
        engine.up(Place(tmp_path / "file" / "root", place.socket))


def test_a_tree_becomes_an_image(server: _Server, place: Place, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "marker").write_text("x" * 100)
    engine.import_tree(tree, "name:tag", place.host)
    ((path, body),) = server.received
    assert path == "/images/create?fromSrc=-&repo=name&tag=tag"
    assert b"./marker" in body
    with pytest.raises(Problem, match="no space left"):
        engine.import_tree(tree, "refused:tag", place.host)


def test_down_ends_only_what_up_started(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.root.mkdir()
    place.pidfile.write_text(str(os.getpid()))  # left by a machine that went down; the number is ours now
    assert place.pid() is None
    engine.stop_engine(place)
    assert "No engine that this script started" in capsys.readouterr().err


def test_down_ends_the_process_that_carries_its_pid_file(place: Place) -> None:
    place.root.mkdir()
    command = [sys.executable, "-c", "import time; time.sleep(60)", f"--pidfile={place.pidfile}"]
    with subprocess.Popen(command) as process:
        place.pidfile.write_text(str(process.pid))
        reaper = threading.Thread(target=process.wait)
        reaper.start()
        engine.stop_engine(place)
        reaper.join()
    assert process.returncode == -15

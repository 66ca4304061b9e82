"""Where is the engine? (case 41): argument, DOCKER_HOST, context, known sockets; in a home of its own."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest

from sandboxio.errors import ConfigurationError
from sandboxio_docker.endpoint import Endpoint, TLSFiles, find_endpoint, known_sockets
from sandboxio_docker.faults import EngineUnavailable


@pytest.fixture
def home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="sbx-home-") as folder:  # short: sockets are in it
        yield Path(folder)


@pytest.fixture(autouse=True)
def only_sockets_of_the_test(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """The two system-wide paths of the list would reach the machine's own engine."""
    real = known_sockets

    def moved(environ: Any, folder: Path) -> list[str]:
        return [path if path.startswith(str(home)) else f"{home}{path}" for path in real(environ, folder)]

    monkeypatch.setattr("sandboxio_docker.endpoint.known_sockets", moved)


@contextmanager
def listening(path: Path | str) -> Generator[str, None, None]:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(1)
        yield f"unix://{path}"


def context(home: Path, name: str, docker: object, *, current: bool = True) -> None:
    key = hashlib.sha256(name.encode()).hexdigest()
    folder = home / ".docker/contexts/meta" / key
    folder.mkdir(parents=True)
    meta = {"Name": name, "Metadata": {}, "Endpoints": {"docker": docker}}
    (folder / "meta.json").write_text(json.dumps(meta))
    if current:
        (home / ".docker/config.json").write_text(json.dumps({"currentContext": name, "auths": {}}))


def found(home: Path, host: str | None = None, **environ: str) -> str:
    return str(find_endpoint(host, environ=environ, home=home))


# Forms of an address


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("unix:///p", "unix:///p"),
        ("unix:///with space/é.sock", "unix:///with space/é.sock"),
        ("tcp://h:2375", "tcp://h:2375"),
        ("tcp://h", "tcp://h:2375"),
        ("tcp://h/", "tcp://h:2375"),
        ("tcp://127.0.0.1:1", "tcp://127.0.0.1:1"),
        ("tcp://[::1]:5", "tcp://[::1]:5"),
        ("tcp://[::1]", "tcp://[::1]:2375"),
        ("tcp://bücher.example:1", "tcp://xn--bcher-kva.example:1"),
    ],
)
def test_addresses(home: Path, text: str, endpoint: str) -> None:
    assert found(home, text) == endpoint
    assert found(home, DOCKER_HOST=text) == endpoint


@pytest.mark.parametrize(
    ("text", "why", "fix"),
    [
        ("unix://", "names no socket", "absolute path"),
        ("unix://relative", "path is relative", "unix://relative"),
        ("unix://~/x.sock", "path is relative", "unix:///"),
        ("/plain/path", "no scheme", "unix:///plain/path"),
        ("engine:2375", "no scheme", "unix:///path"),
        ("ssh://u@h", "ssh:// is not supported", "ssh -nNT -L /tmp/docker.sock:/var/run/docker.sock u@h"),
        ("npipe:////./pipe/x", "npipe:// is not supported", "WSL"),
        ("https://h:2376", "https:// is not supported", "tcp://h:2376 with DOCKER_TLS_VERIFY=1"),
        ("http://h:2375", "http:// is not supported", "tcp://h:2375"),
        ("fd://3", "fd:// is not supported", "unix:///path"),
        ("tcp://", "names no host", "tcp://host:port"),
        ("tcp://:2375", "names no host", "tcp://host:port"),
        ("tcp://h:port", "cannot be read", "tcp://host:port"),
        ("tcp://h:99999", "cannot be read", "tcp://host:port"),
        ("tcp://h:1/prefix", "path behind the port", "tcp://host:port"),
        ("tcp://[::1:5", "cannot be read", "tcp://host:port"),
        ("tcp://a..b:1", "cannot be read", "tcp://host:port"),
        ("tcp://" + "x" * 70, "cannot be read", "tcp://host:port"),
        (" unix:///p", "white space", "unix:///path"),
        ("unix:///p\n", "white space", "unix:///path"),
        ("unix:///p\0", "NUL", "unix:///path"),
        ("   ", "white space", "unix:///path"),
    ],
)
def test_addresses_that_cannot_be_used(home: Path, text: str, why: str, fix: str) -> None:
    for arguments, origin in (({"host": text}, "the host argument"), ({"DOCKER_HOST": text}, "DOCKER_HOST")):
        with pytest.raises(ConfigurationError) as caught:
            found(home, **arguments)
        assert why in caught.value.message
        assert origin in caught.value.message
        assert repr(text) in caught.value.message
        assert fix in caught.value.hint


@pytest.mark.parametrize(
    "text",
    [
        "tcp://user:s3cret@h:2375",
        "tcp://user:s3cret@h:99999",
        "tcp://user:s3cret@h:notaport",
        "tcp://user:s3cret@[::1",
        "tcp://user:s3cret@h:1/path",
        "tcp://user:s3cret@h\0",
        "tcp://s3cret@h:2375",
        "tcp://user:x/s3cret@h",
        "tcp://user:x@s3cret@h",
        "TCP://user:s3cret@h:2375",
        " tcp://user:s3cret@h:2375",
        "ssh://user:s3cret@h",
        "http://user:s3cret@h:2375",
        "https://user:s3cret@h:2376",
        "unix://user:s3cret@h",
        "user:s3cret@h:2375",
        "user:s3cret@h://x",
    ],
)
def test_a_password_is_not_repeated(home: Path, text: str) -> None:
    """Neither in the message nor in the hint, and the rest of the address is still there."""
    for arguments in ({"host": text}, {"DOCKER_HOST": text}):
        with pytest.raises(ConfigurationError) as caught:
            found(home, **arguments)
        assert "s3cret" not in f"{caught.value} {caught.value.hint}"
        assert "...@" in caught.value.message
        assert "...@" not in caught.value.hint, "it is to be copied"
    context(home, "c", {"Host": text})
    with pytest.raises(ConfigurationError) as caught:
        found(home)
    assert "s3cret" not in f"{caught.value} {caught.value.hint}"


def test_an_at_sign_in_a_path_is_no_password(home: Path) -> None:
    assert found(home, "unix:///run/a:b@c.sock") == "unix:///run/a:b@c.sock"


def test_an_empty_argument_is_an_error_and_an_empty_variable_is_none(home: Path) -> None:
    with pytest.raises(ConfigurationError, match="it is empty"):
        found(home, "")
    with listening(home / ".docker/run/docker.sock") as url:
        assert found(home, DOCKER_HOST="") == url


def test_a_user_without_a_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `docker run --user 54321` has it: no HOME, and nobody in /etc/passwd."""
    homeless(monkeypatch)
    assert str(find_endpoint("unix:///x", environ={})) == "unix:///x"
    assert str(find_endpoint(environ={"DOCKER_HOST": "unix:///x"})) == "unix:///x"
    with listening(home / "var/run/docker.sock") as system:
        assert str(find_endpoint(environ={})) == system


def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(uid: int) -> NoReturn:
        raise KeyError(uid)

    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", nobody)
    with pytest.raises(RuntimeError):
        Path.home()


# Precedence


def test_the_order(home: Path) -> None:
    with listening(home / "var/run/docker.sock") as system:
        assert found(home) == system
        context(home, "colima", {"Host": "unix:///colima.sock"})
        context(home, "other", {"Host": "unix:///other.sock"}, current=False)
        assert found(home) == "unix:///colima.sock"
        assert found(home, DOCKER_CONTEXT="other") == "unix:///other.sock"
        assert found(home, DOCKER_CONTEXT="other", DOCKER_HOST="unix:///env.sock") == "unix:///env.sock"
        assert found(home, "unix:///arg.sock", DOCKER_HOST="unix:///env.sock") == "unix:///arg.sock"
        assert found(home, DOCKER_CONTEXT="default") == system


def test_who_chose_it_is_named(home: Path) -> None:
    context(home, "colima", {"Host": "unix:///colima.sock"})
    assert find_endpoint(environ={}, home=home).origin == "the Docker context 'colima'"
    assert find_endpoint("unix:///a", environ={}, home=home).origin == "the host argument"
    assert find_endpoint(environ={"DOCKER_HOST": "unix:///a"}, home=home).origin == "DOCKER_HOST"


def test_a_configuration_folder_of_its_own(home: Path) -> None:
    context(home, "x", {"Host": "unix:///x.sock"})
    (home / ".docker").rename(home / "elsewhere")
    with listening(home / "var/run/docker.sock") as system:
        assert found(home) == system
        assert found(home, DOCKER_CONFIG=str(home / "elsewhere")) == "unix:///x.sock"


@pytest.mark.parametrize("docker", [{}, {"Host": 5}, None, [], {"Host": ""}])
def test_a_context_that_names_no_engine(home: Path, docker: object) -> None:
    context(home, "broken", docker)
    with pytest.raises(ConfigurationError):
        found(home)


def test_a_context_that_does_not_exist(home: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"'gone' \(from DOCKER_CONTEXT\) does not exist") as caught:
        found(home, DOCKER_CONTEXT="gone")
    assert "docker context ls" in caught.value.hint


def test_a_context_with_ssh(home: Path) -> None:
    context(home, "far", {"Host": "ssh://u@far"})
    with pytest.raises(ConfigurationError, match=r"ssh:// is not supported") as caught:
        found(home)
    assert "the Docker context 'far'" in caught.value.message


@pytest.mark.parametrize("text", ["{", '["a"', "\udcff"])
def test_a_broken_configuration_is_not_passed_over(home: Path, text: str) -> None:
    (home / ".docker").mkdir()
    (home / ".docker/config.json").write_bytes(text.encode(errors="surrogateescape"))
    with listening(home / "var/run/docker.sock") as system:
        with pytest.raises(ConfigurationError, match=r"config\.json cannot be read"):
            found(home)
        assert found(home, DOCKER_HOST=system) == system


@pytest.mark.parametrize("text", ["{}", "[]", '{"currentContext": ""}', '{"currentContext": null}'])
def test_a_configuration_without_a_context(home: Path, text: str) -> None:
    (home / ".docker").mkdir()
    (home / ".docker/config.json").write_text(text)
    with listening(home / "var/run/docker.sock") as system:
        assert found(home) == system


# TLS


def test_tls_files(home: Path) -> None:
    certs = home / "certs"
    certs.mkdir()
    for name in ("ca", "cert", "key"):
        (certs / f"{name}.pem").touch()
    three = (certs / "ca.pem", certs / "cert.pem", certs / "key.pem")
    environ = {"DOCKER_CERT_PATH": str(certs)}
    endpoint = find_endpoint("tcp://h", environ=environ, home=home)
    assert (endpoint.port, endpoint.tls) == (2376, TLSFiles(*three, verify=False))
    endpoint = find_endpoint("tcp://h:1", environ={**environ, "DOCKER_TLS_VERIFY": "1"}, home=home)
    assert (endpoint.port, endpoint.tls) == (1, TLSFiles(*three, verify=True))
    endpoint = find_endpoint("tcp://h", environ={"DOCKER_TLS_VERIFY": "1"}, home=home)
    assert endpoint.tls == TLSFiles(None, None, None, verify=True)
    assert find_endpoint("tcp://h", environ={"DOCKER_TLS_VERIFY": ""}, home=home).tls is None
    assert find_endpoint("unix:///s", environ=environ, home=home).tls is None


def test_a_certificate_folder_without_certificates(home: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"DOCKER_CERT_PATH=/nowhere holds no certificates"):
        found(home, "tcp://h", DOCKER_CERT_PATH="/nowhere")


def test_a_context_with_tls(home: Path) -> None:
    context(home, "far", {"Host": "tcp://far:2376", "SkipTLSVerify": True})
    key = hashlib.sha256(b"far").hexdigest()
    files = home / ".docker/contexts/tls" / key / "docker"
    files.mkdir(parents=True)
    (files / "ca.pem").touch()
    endpoint = find_endpoint(environ={"DOCKER_TLS_VERIFY": "1"}, home=home)
    assert endpoint.tls == TLSFiles(files / "ca.pem", None, None, verify=False)


@pytest.mark.parametrize(
    ("skip", "tls", "port"),
    [
        (True, TLSFiles(None, None, None, verify=False), 2376),
        (False, None, 2375),
        ("false", None, 2375),
        (None, None, 2375),
    ],
)
def test_a_context_that_trusts_any_certificate(
    home: Path, skip: object, tls: TLSFiles | None, port: int
) -> None:
    """Without a file of its own it still means TLS, never a plain connection."""
    context(home, "far", {"Host": "tcp://far", "SkipTLSVerify": skip})
    endpoint = find_endpoint(environ={}, home=home)
    assert (endpoint.tls, endpoint.port) == (tls, port)


# Known sockets


def every_known(home: Path) -> list[str]:
    return [
        f"{home}/var/run/docker.sock",
        f"{home}/run/user/1/docker.sock",
        f"{home}/.docker/run/docker.sock",
        f"{home}/.docker/desktop/docker.sock",
        f"{home}/.colima/default/docker.sock",
        f"{home}/.orbstack/run/docker.sock",
        f"{home}/.rd/docker.sock",
        f"{home}/run/user/1/podman/podman.sock",
        f"{home}/run/podman/podman.sock",
    ]


@pytest.mark.parametrize("number", range(9))
def test_each_known_socket_is_found(home: Path, number: int) -> None:
    path = every_known(home)[number]
    with listening(path):
        assert found(home, XDG_RUNTIME_DIR=f"{home}/run/user/1") == f"unix://{path}"


def test_the_first_that_accepts_wins(home: Path) -> None:
    """A file left by an engine that has ended is passed over."""
    with listening(home / "var/run/docker.sock"):
        pass
    with listening(home / ".colima/default/docker.sock") as colima, listening(home / ".rd/docker.sock"):
        assert found(home) == colima


def test_a_full_queue_still_counts_as_an_engine(home: Path) -> None:
    with listening(home / "var/run/docker.sock") as url:
        clients = []
        try:
            for _ in range(5):
                client = socket.socket(socket.AF_UNIX)
                client.setblocking(False)
                client.connect_ex(url[7:])
                clients.append(client)
            assert found(home) == url
        finally:
            for client in clients:
                client.close()


@contextmanager
def as_nobody() -> Generator[None, None, None]:
    """Root may connect to any socket; become somebody who may not."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_when_none_accepts_each_is_listed_with_its_reason(home: Path) -> None:
    paths = every_known(home)
    home.chmod(0o755)
    with listening(paths[0]):
        pass
    Path(paths[2]).parent.mkdir(parents=True)
    Path(paths[2]).touch()
    (home / ".colima").touch()
    with listening(paths[5]):
        Path(paths[5]).chmod(0)
        with pytest.raises(EngineUnavailable) as caught, as_nobody():
            found(home, XDG_RUNTIME_DIR=f"{home}/run/user/1")
    Path(paths[0]).chmod(0o666)
    lines = dict(line.strip().split(": ", 1) for line in caught.value.message.splitlines()[1:])
    assert list(lines) == paths
    assert lines[paths[1]] == "there is no such socket"
    assert lines[paths[4]] == "there is no such socket: a part of the path is a file"
    assert lines[paths[5]] == "permission denied"
    assert "usermod -aG docker" in caught.value.hint
    assert "DOCKER_HOST is not set" in caught.value.message


def test_stale_sockets_and_plain_files(home: Path) -> None:
    paths = every_known(home)
    with listening(paths[0]):
        pass
    Path(paths[2]).parent.mkdir(parents=True)
    Path(paths[2]).touch()
    with pytest.raises(EngineUnavailable) as caught:
        found(home)
    assert f"{paths[0]}: connection refused: nothing listens there" in caught.value.message
    assert f"{paths[2]}: it is not a socket" in caught.value.message
    assert caught.value.hint == EngineUnavailable.default_hint


def test_a_path_too_long_for_a_socket(home: Path) -> None:
    with pytest.raises(EngineUnavailable) as caught:
        find_endpoint(environ={"XDG_RUNTIME_DIR": f"{home}/{'x' * 200}"}, home=home)
    assert "AF_UNIX path too long" in caught.value.message


def test_a_relative_runtime_folder_is_ignored(home: Path) -> None:
    assert not any("relative" in path for path in known_sockets({"XDG_RUNTIME_DIR": "relative"}, home))


def test_an_endpoint_reads_back() -> None:
    for endpoint in (
        Endpoint("x", path="/a"),
        Endpoint("x", host="h", port=1),
        Endpoint("x", host="::1", port=2),
    ):
        assert str(find_endpoint(str(endpoint), environ={}, home=Path("/"))) == str(endpoint)

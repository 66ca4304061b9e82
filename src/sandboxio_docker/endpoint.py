"""Where the engine is: a Unix socket or a TCP address, found the way the ``docker`` command finds it.

The first of these that says something decides; a later one is never a fallback for an earlier one:

1. the caller's own ``host``;
2. ``DOCKER_HOST`` (set but empty counts as not set, as the ``docker`` command has it);
3. the current context: ``DOCKER_CONTEXT``, else ``currentContext`` in ``config.json`` of
   ``DOCKER_CONFIG`` (``~/.docker``); the context ``default`` names no address and goes on to 4;
4. the known sockets of :func:`known_sockets`, in order: the first that accepts a connection.

``tcp://`` uses TLS if ``DOCKER_TLS_VERIFY`` or ``DOCKER_CERT_PATH`` is set, with ``ca.pem``,
``cert.pem`` and ``key.pem`` of ``DOCKER_CERT_PATH`` (``~/.docker``); with ``DOCKER_CERT_PATH`` alone
the server's certificate is not verified, as in Docker's own Go client (client/options.go,
``WithTLSClientConfigFromEnv``). A context uses TLS if it has such files, or ``SkipTLSVerify``, which
leaves out the verification and not the TLS (docker/cli, cli/context/docker/load.go). Proxy variables are
never looked at.

Everything here is synchronous: small local files, and connects to local sockets that do not block.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import socket
import ssl
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from sandboxio.errors import ConfigurationError

from .answers import json_object
from .faults import EngineUnavailable

PLAIN_PORT: Final = 2375
TLS_PORT: Final = 2376
"""The ports that Docker has registered for itself, used when a ``tcp://`` address has none."""

_SCHEME: Final = re.compile(r"\s*[A-Za-z][A-Za-z0-9+.-]*://")
_HIDDEN: Final = "...@"
_PEM: Final = ("ca", "cert", "key")
_USABLE: Final = "Use unix:///path/to.sock or tcp://host:port."
_TLS: Final = (
    "Check DOCKER_TLS_VERIFY and DOCKER_CERT_PATH: the engine must speak TLS on this port, and its "
    "certificate must be valid for this host."
)
_GROUP: Final = (
    "Add your user to the group `docker` (`sudo usermod -aG docker $USER`, then log in again), "
    "or use a rootless engine."
)


@dataclass(frozen=True)
class TLSFiles:
    """PEM files on this machine for one TLS endpoint; ``None`` where there is no such file."""

    ca: Path | None
    cert: Path | None
    key: Path | None
    verify: bool


@dataclass(frozen=True)
class Endpoint:
    """One address of an engine: either ``path`` (Unix socket), or ``host`` and ``port``.

    ``origin`` says who chose it, for messages. ``tls`` is None for a plain connection.
    """

    origin: str
    path: str = ""
    host: str = ""
    port: int = 0
    tls: TLSFiles | None = None

    def __str__(self) -> str:
        if self.path:
            return f"unix://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tcp://{host}:{self.port}"

    def explain(self, error: BaseException) -> EngineUnavailable:
        """The typed error for a failed connection to this endpoint."""
        reason, hint = _why(error)
        where = f"{self} (from {self.origin})"
        return EngineUnavailable(f"Cannot connect to the Docker engine at {where}: {reason}.", hint=hint)


def find_endpoint(
    host: str | None = None, *, environ: Mapping[str, str] | None = None, home: Path | None = None
) -> Endpoint:
    """The engine's address, by the order at the top of this file.

    ``environ`` and ``home`` stand for the process's own environment and home folder. Raises
    :class:`ConfigurationError` for an address that cannot be used, :class:`EngineUnavailable` if no
    known socket accepts a connection; its message lists each with the reason.
    """
    environ = os.environ if environ is None else environ
    home = home_folder() if home is None else home
    if host is not None:
        return parse_endpoint(host, origin="the host argument", environ=environ, home=home)
    if environ.get("DOCKER_HOST"):
        return parse_endpoint(environ["DOCKER_HOST"], origin="DOCKER_HOST", environ=environ, home=home)
    return _from_context(environ, home) or _first_that_accepts(known_sockets(environ, home))


def parse_endpoint(
    text: str, *, origin: str, environ: Mapping[str, str], home: Path, tls: TLSFiles | None = None
) -> Endpoint:
    """Read one address; ``tls`` overrides what the environment says about certificates.

    >>> str(parse_endpoint("tcp://[::1]", origin="a test", environ={}, home=Path("/root")))
    'tcp://[::1]:2375'
    """
    clean = _without_password(text)
    scheme, separator, rest = clean.partition("://")
    if "\0" in text or text != text.strip():
        raise _refused(clean, origin, "it contains white space or a NUL byte at an end", _USABLE)
    if not text:
        raise _refused(clean, origin, "it is empty", _USABLE)
    if not separator:
        fix = f"Write unix://{clean}" if clean.startswith("/") else _USABLE
        raise _refused(clean, origin, "it has no scheme", fix)
    if scheme == "unix":
        return Endpoint(origin, path=_socket_path(text, clean, origin))
    if scheme == "tcp":
        return _parse_tcp(text, clean, origin, tls or _tls_of(environ, home))
    raise _refused(
        clean, origin, f"{scheme}:// is not supported", _other_scheme(scheme, rest.removeprefix(_HIDDEN))
    )


def known_sockets(environ: Mapping[str, str], home: Path) -> list[str]:
    """The sockets that are tried when nothing names one, first to last.

    The system's engine, rootless Docker, Docker Desktop (macOS, Linux), Colima, OrbStack, Rancher
    Desktop, then Podman's Docker-compatible service of the user and of the system.
    """
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    mine = [f"{runtime}/docker.sock"] if runtime.startswith("/") else []
    podman = [f"{runtime}/podman/podman.sock"] if runtime.startswith("/") else []
    return [
        "/var/run/docker.sock",
        *mine,
        str(home / ".docker/run/docker.sock"),
        str(home / ".docker/desktop/docker.sock"),
        str(home / ".colima/default/docker.sock"),
        str(home / ".orbstack/run/docker.sock"),
        str(home / ".rd/docker.sock"),
        *podman,
        "/run/podman/podman.sock",
    ]


def _without_password(text: str) -> str:
    """An address for a message or a hint. Broken ones too may hold a password, so nothing is parsed.

    A name alone is kept for ssh, where the hint needs it; elsewhere it may be a token.
    """
    scheme = _SCHEME.match(text)
    start = scheme.end() if scheme else 0
    name, at, host = text[start:].rpartition("@")
    if not at or text.startswith("unix:///") or (text.startswith("ssh://") and ":" not in name):
        return text
    return f"{text[:start]}{_HIDDEN}{host}"


def _refused(text: str, origin: str, why: str, fix: str) -> ConfigurationError:
    return ConfigurationError(f"The engine address {text!r} (from {origin}) cannot be used: {why}.", hint=fix)


def _other_scheme(scheme: str, rest: str) -> str:
    if scheme == "ssh":
        target = rest.partition("/")[0]
        return (
            f"Forward the socket yourself: ssh -nNT -L /tmp/docker.sock:/var/run/docker.sock {target}, "
            "then use unix:///tmp/docker.sock."
        )
    if scheme == "npipe":
        return "Run in WSL 2, or expose the engine as tcp://; Windows pipes are not supported."
    if scheme in ("http", "https"):
        tls = " with DOCKER_TLS_VERIFY=1" if scheme == "https" else ""
        return f"Write tcp://{rest}{tls}."
    return _USABLE


def _socket_path(text: str, clean: str, origin: str) -> str:
    path, shown = text.removeprefix("unix://"), clean.removeprefix("unix://").removeprefix(_HIDDEN)
    if not path:
        raise _refused(clean, origin, "it names no socket", "Write unix:// and an absolute path.")
    if not path.startswith("/"):
        fix = f"Write unix:///... , not unix://{shown}"
        raise _refused(clean, origin, "the socket's path is relative", fix)
    return path


def _parse_tcp(text: str, clean: str, origin: str, tls: TLSFiles | None) -> Endpoint:
    try:
        parts = urlsplit(text)
        port = parts.port
        host = (parts.hostname or "").encode("idna").decode()
    except ValueError:  # UnicodeError is one
        raise _refused(clean, origin, "host or port cannot be read", "Write tcp://host:port.") from None
    if "@" in parts.netloc:
        raise _refused(clean, origin, "it contains a user name", "Use TLS certificates instead.")
    if not host:
        raise _refused(clean, origin, "it names no host", "Write tcp://host:port.")
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise _refused(clean, origin, "it has a path behind the port", "Write tcp://host:port.")
    return Endpoint(origin, host=host, port=port or (TLS_PORT if tls else PLAIN_PORT), tls=tls)


def _tls_of(environ: Mapping[str, str], home: Path) -> TLSFiles | None:
    verify, folder = bool(environ.get("DOCKER_TLS_VERIFY")), environ.get("DOCKER_CERT_PATH")
    if not verify and not folder:
        return None
    files = _tls_in(Path(folder) if folder else config_folder(environ, home), verify)
    if folder and not (files.ca or files.cert):
        raise ConfigurationError(
            f"DOCKER_CERT_PATH={folder} holds no certificates.",
            hint="It is a folder with ca.pem, cert.pem and key.pem; unset it for a plain connection.",
        )
    return files


def _tls_in(folder: Path, verify: bool) -> TLSFiles:
    ca, cert, key = (path if path.is_file() else None for path in (folder / f"{n}.pem" for n in _PEM))
    return TLSFiles(ca, cert, key, verify)


def home_folder() -> Path:
    """The user's home folder.

    A user id without an entry in the system's list and without HOME, as containers have them, has none.
    It gets the one that Debian reserves for not being there, so nothing is read from the current folder.
    """
    try:
        return Path.home()
    except RuntimeError:
        return Path("/nonexistent")


def config_folder(environ: Mapping[str, str], home: Path) -> Path:
    """Where the ``docker`` command keeps its configuration."""
    return Path(environ.get("DOCKER_CONFIG") or home / ".docker")


def _from_context(environ: Mapping[str, str], home: Path) -> Endpoint | None:
    """The address of the current context; None if there is none, or it is ``default``."""
    folder = config_folder(environ, home)
    name, origin = environ.get("DOCKER_CONTEXT", ""), "DOCKER_CONTEXT"
    if not name:
        origin = f"{folder / 'config.json'}"
        chosen = read_json(folder / "config.json").get("currentContext", "")
        name = chosen if isinstance(chosen, str) else ""
    if name in ("", "default"):
        return None
    # docker/cli, cli/context/store: the folder of a context is the SHA-256 of its name
    key = hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()
    meta = read_json(folder / "contexts/meta" / key / "meta.json")
    fields = json_object(json_object(meta.get("Endpoints")).get("docker"))
    if not isinstance(fields.get("Host"), str):
        raise ConfigurationError(
            f"The Docker context {name!r} (from {origin}) does not exist or names no engine.",
            hint="`docker context ls` shows the contexts; choose one, or set DOCKER_HOST.",
        )
    files = folder / "contexts/tls" / key / "docker"
    unverified = fields.get("SkipTLSVerify") is True
    tls = _tls_in(files, verify=not unverified) if unverified or files.is_dir() else None
    return parse_endpoint(
        fields["Host"], origin=f"the Docker context {name!r}", environ={}, home=home, tls=tls
    )


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty if there is no such file.

    A broken file is an error: going on without it could silently choose another engine.
    """
    try:
        value: Any = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(
            f"Docker's configuration {path} cannot be read: {error}.",
            hint="Repair the file, or set DOCKER_HOST so that it is not needed.",
        ) from error
    return json_object(value)


def _first_that_accepts(paths: list[str]) -> Endpoint:
    failures: list[tuple[str, str]] = []
    hints: list[str] = []
    for path in paths:
        error = _try(path)
        if error is None:
            return Endpoint("the list of known sockets", path=path)
        reason, hint = _why(error)
        failures.append((path, reason))
        if error.errno in (errno.EACCES, errno.EPERM):
            hints.append(hint)
    lines = "".join(f"\n    {path}: {reason}" for path, reason in failures)
    raise EngineUnavailable(
        f"No Docker engine found. DOCKER_HOST is not set, no context is chosen; tried:{lines}",
        hint=hints[0] if hints else EngineUnavailable.default_hint,
    )


def _try(path: str) -> OSError | None:
    """Why a Unix socket does not accept; None if it does. Never blocks."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.setblocking(False)
        try:
            code = sock.connect_ex(path)
        except OSError as error:  # "AF_UNIX path too long" has no errno and comes as an exception
            return error
    # EAGAIN: somebody listens, and the queue is full at this moment
    return None if code in (0, errno.EAGAIN, errno.EINPROGRESS) else OSError(code, os.strerror(code), path)


def _why(error: BaseException) -> tuple[str, str]:
    """Reason and fix for a connection that failed."""
    hint = EngineUnavailable.default_hint
    # these two are OSErrors with numbers of their own: an SSLError's 1 is not EPERM
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {error.reason or error}", _TLS
    if isinstance(error, socket.gaierror):
        return "the host name is not known", "Check the host name in DOCKER_HOST."
    code = error.errno if isinstance(error, OSError) else None
    if code == errno.ENOENT:
        return "there is no such socket", hint
    if code == errno.ENOTDIR:
        return "there is no such socket: a part of the path is a file", hint
    if code in (errno.EACCES, errno.EPERM):
        return "permission denied", _GROUP
    if code == errno.ECONNREFUSED:
        path = error.filename if isinstance(error, OSError) and isinstance(error.filename, str) else ""
        if path and not _is_socket(path):
            return "it is not a socket", "Give the path of the engine's socket."
        return "connection refused: nothing listens there", hint
    return " ".join(str(error).split()) or type(error).__name__, hint


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(Path(path).stat().st_mode)
    except OSError:
        return True  # unknown: say nothing about it

"""Registry credentials of the Docker configuration, for pulling private images.

Looked up as the ``docker`` command does (docker/cli, cli/config/configfile): ``credHelpers`` for the
registry, else ``credsStore``, else ``auths`` in ``config.json``. A helper is a program
``docker-credential-NAME`` that gets the server's address on its stdin and answers JSON
(docker/docker-credential-helpers, "get"). Nothing found means an anonymous pull.

No credential is ever part of a message.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import anyio

from sandboxio.errors import AuthError

from .answers import json_object
from .endpoint import config_folder, home_folder, read_json

HUB: Final = "https://index.docker.io/v1/"
"""Docker Hub's key in the configuration, unlike every other registry's not its host name."""
_HUB_DOMAINS: Final = ("", "docker.io", "index.docker.io")
"""How a reference can name Docker Hub (distribution/reference, normalize.go)."""
HELPER_TIMEOUT: Final = 10.0
"""Seconds that a credential helper may take; one that asks the user for a password would take for ever."""
_PIPE: Final = 4096
"""Bytes that fit into a pipe without blocking on every system (PIPE_BUF); a host name has at most 253."""


async def registry_auth(
    domain: str, *, environ: Mapping[str, str] | None = None, home: Path | None = None
) -> str | None:
    """The value of ``X-Registry-Auth`` for a reference's registry, None if there is none.

    ``domain`` is the reference's (``""``: Docker Hub). The files are read and the helper is asked now;
    nothing is remembered.

    Raises :class:`AuthError` if the configured helper is missing, fails or is silent, and
    :class:`ConfigurationError` for a configuration file that cannot be read. Cancelled: the helper is
    killed.
    """
    environ = os.environ if environ is None else environ
    home = home_folder() if home is None else home
    config = read_json(config_folder(environ, home) / "config.json")
    server = HUB if domain in _HUB_DOMAINS else domain
    helper = json_object(config.get("credHelpers")).get(server) or config.get("credsStore")
    found = await _ask(helper, server, environ) if isinstance(helper, str) and helper else None
    if found is not None:
        return _encoded(server, found)
    for key, entry in json_object(config.get("auths")).items():
        if _host(key) == _host(server) and (stored := _stored(json_object(entry))):
            return _encoded(server, stored)
    return None


def _host(server: str) -> str:
    """The host in a configuration key: some were written as addresses by old versions."""
    return server.removeprefix("https://").removeprefix("http://").partition("/")[0]


def _stored(entry: Mapping[str, Any]) -> dict[str, str] | None:
    if token := entry.get("identitytoken"):
        return {"identitytoken": str(token)}
    auth = entry.get("auth")
    if not isinstance(auth, str) or not auth:
        return None
    try:
        user, colon, password = base64.b64decode(auth).decode().partition(":")
    except ValueError:
        return None  # as if there were none; the registry will say that it wants some
    return {"username": user, "password": password.rstrip("\0")} if colon else None


async def _ask(helper: str, server: str, environ: Mapping[str, str]) -> dict[str, str] | None:
    """What a helper knows about a server; None if it knows nothing."""
    name = f"docker-credential-{helper}"
    program = shutil.which(name, path=environ.get("PATH"))
    if program is None or os.sep in helper:
        raise _failed(name, server, "it is not installed")
    with anyio.move_on_after(HELPER_TIMEOUT):
        try:
            done = await _run(program, server.encode())
        except OSError as error:
            raise _failed(name, server, f"it cannot be run ({error})") from error
        if done.returncode:
            if b"credentials not found" in done.stdout + done.stderr:
                return None
            raise _failed(name, server, f"it ended with {done.returncode}")
        answer = _answered(done.stdout)
        if answer is None:
            raise _failed(name, server, "its answer is not JSON")
        user, secret = str(answer.get("Username", "")), str(answer.get("Secret", ""))
        # docker/cli: this user name says that the secret is a token
        return {"identitytoken": secret} if user == "<token>" else {"username": user, "password": secret}
    raise _failed(name, server, f"it did not answer within {HELPER_TIMEOUT:g} s")


def _answered(text: bytes) -> dict[str, Any] | None:
    try:
        return json_object(json.loads(text))
    except (ValueError, RecursionError):  # it holds the whole text, so it must not become anybody's context
        return None


async def _run(program: str, question: bytes) -> subprocess.CompletedProcess[bytes]:
    # the question is put into a pipe beforehand: a helper that does not read it is no broken pipe of ours
    reading, writing = os.pipe()
    os.write(writing, question[:_PIPE])
    os.close(writing)
    try:
        return await anyio.run_process([program, "get"], stdin=reading, check=False)
    finally:
        os.close(reading)


def _encoded(server: str, fields: dict[str, str]) -> str:
    raw = json.dumps({**fields, "serveraddress": server}).encode()
    return base64.urlsafe_b64encode(raw).decode()


def _failed(name: str, server: str, why: str) -> AuthError:
    return AuthError(
        f"The credential helper {name} cannot be used for {server}: {why}.",
        hint="Install or repair it, `docker login` again, or pull the image yourself (`docker pull`).",
    )

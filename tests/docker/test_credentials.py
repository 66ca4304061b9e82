"""Registry credentials of the Docker configuration: which, from where, and never in a message."""

from __future__ import annotations

import base64
import json
import os
import stat
from pathlib import Path
from typing import Any

import anyio
import pytest

from sandboxio.errors import AuthError, ConfigurationError
from sandboxio_docker.credentials import registry_auth

from .test_endpoint import homeless

SECRET = "p:ss-w0rd"


def stored(user: str = "u", secret: str = SECRET) -> dict[str, str]:
    return {"auth": base64.b64encode(f"{user}:{secret}".encode()).decode()}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / ".docker").mkdir()
    (tmp_path / "bin").mkdir()
    return tmp_path


def configure(home: Path, **config: Any) -> None:
    (home / ".docker/config.json").write_text(json.dumps(config))


def helper(home: Path, name: str, script: str) -> None:
    program = home / f"bin/docker-credential-{name}"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


async def found(home: Path, domain: str = "") -> dict[str, str] | None:
    value = await registry_auth(domain, environ={"PATH": f"{home}/bin:{os.environ['PATH']}"}, home=home)
    return None if value is None else json.loads(base64.urlsafe_b64decode(value))


async def test_nothing_configured(home: Path) -> None:
    assert await found(home) is None
    configure(home, auths={})
    assert await found(home, "ghcr.io") is None


@pytest.mark.parametrize(
    ("domain", "key"),
    [
        ("", "https://index.docker.io/v1/"),
        ("docker.io", "https://index.docker.io/v1/"),
        ("index.docker.io", "https://index.docker.io/v1/"),
        ("", "index.docker.io"),
        ("ghcr.io", "ghcr.io"),
        ("ghcr.io", "https://ghcr.io"),
        ("ghcr.io", "https://ghcr.io/v2/"),
        ("localhost:5000", "localhost:5000"),
    ],
)
async def test_stored_credentials(home: Path, domain: str, key: str) -> None:
    configure(home, auths={"other.test": stored("x"), key: stored()})
    assert await found(home, domain) == {
        "username": "u",
        "password": SECRET,
        "serveraddress": "https://index.docker.io/v1/" if "docker.io" in key else domain,
    }


async def test_credentials_go_to_their_own_registry_only(home: Path) -> None:
    configure(home, auths={"https://index.docker.io/v1/": stored(), "ghcr.io": stored()})
    for other in ("ghcr.io.evil.test", "evil.test", "localhost:5000", "ghcr.io:444"):
        assert await found(home, other) is None


async def test_a_helper_is_named_by_the_registry_it_is_for(home: Path) -> None:
    """One for Docker Hub goes by Docker Hub's key, whichever way the reference names it."""
    helper(home, "hub", 'cat > "$0.in"; echo \'{"Username": "u", "Secret": "s"}\'')
    configure(home, credHelpers={"https://index.docker.io/v1/": "hub"})
    for domain in ("", "docker.io"):
        assert (await found(home, domain) or {})["serveraddress"] == "https://index.docker.io/v1/"
        assert (home / "bin/docker-credential-hub.in").read_text() == "https://index.docker.io/v1/"
    assert await found(home, "quay.io") is None


async def test_what_changes_counts_for_the_next_pull(home: Path) -> None:
    configure(home, auths={"ghcr.io": stored()})
    assert (await found(home, "ghcr.io") or {})["password"] == SECRET
    configure(home, auths={"ghcr.io": stored(secret="another")})
    assert (await found(home, "ghcr.io") or {})["password"] == "another"
    configure(home)
    assert await found(home, "ghcr.io") is None


async def test_a_token(home: Path) -> None:
    configure(home, auths={"ghcr.io": {"auth": "", "identitytoken": SECRET}})
    assert await found(home, "ghcr.io") == {"identitytoken": SECRET, "serveraddress": "ghcr.io"}


@pytest.mark.parametrize(
    "entry", [{}, {"auth": ""}, {"auth": "///"}, {"auth": "dQ=="}, {"auth": 5}, [], None]
)
async def test_an_entry_without_credentials(home: Path, entry: object) -> None:
    configure(home, auths={"ghcr.io": entry})
    assert await found(home, "ghcr.io") is None


async def test_a_broken_configuration(home: Path) -> None:
    (home / ".docker/config.json").write_text("{")
    with pytest.raises(ConfigurationError, match=r"config\.json"):
        await found(home)


async def test_helpers(home: Path) -> None:
    answer = json.dumps({"ServerURL": "x", "Username": "u", "Secret": SECRET})
    helper(home, "one", f'test "$1" = get && test "$(cat)" = ghcr.io && echo \'{answer}\'')
    helper(home, "all", 'cat > "$0.in"; echo \'{"Username": "<token>", "Secret": "t"}\'')
    configure(home, credHelpers={"ghcr.io": "one"}, credsStore="all", auths={"quay.io": stored()})
    assert await found(home, "ghcr.io") == {"username": "u", "password": SECRET, "serveraddress": "ghcr.io"}
    assert await found(home, "quay.io") == {"identitytoken": "t", "serveraddress": "quay.io"}
    await found(home)
    assert (home / "bin/docker-credential-all.in").read_text() == "https://index.docker.io/v1/"


async def test_a_helper_that_knows_nothing(home: Path) -> None:
    helper(home, "none", "echo credentials not found in native keychain; exit 1")
    configure(home, credsStore="none", auths={"ghcr.io": stored()})
    assert await found(home, "quay.io") is None
    assert await found(home, "ghcr.io") is not None


@pytest.mark.parametrize(
    ("script", "why"),
    [(None, "not installed"), (f"echo {SECRET} >&2; exit 3", "ended with 3"), (f"echo {SECRET}", "not JSON")],
)
async def test_a_helper_that_fails(home: Path, script: str | None, why: str) -> None:
    if script is not None:
        helper(home, "bad", script)
    configure(home, credsStore="bad")
    with pytest.raises(
        AuthError, match=f"docker-credential-bad cannot be used for ghcr.io: .*{why}"
    ) as caught:
        await found(home, "ghcr.io")
    assert SECRET not in str(caught.value)
    assert caught.value.__context__ is None, "the parser's error holds all of the answer"
    assert "docker login" in caught.value.hint


async def test_a_helper_is_no_path(home: Path) -> None:
    configure(home, credsStore="../../bin/x")
    with pytest.raises(AuthError, match="not installed"):
        await found(home)


async def test_a_silent_helper_is_ended(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandboxio_docker.credentials.HELPER_TIMEOUT", 0.3)
    helper(home, "mute", "exec sleep 600")
    configure(home, credsStore="mute")
    with anyio.fail_after(5), pytest.raises(AuthError, match=r"did not answer within 0\.3 s"):
        await found(home)


async def test_a_cancelled_look_up_ends_the_helper(home: Path) -> None:
    helper(home, "mute", "exec sleep 600")
    configure(home, credsStore="mute")
    with anyio.move_on_after(0.3) as scope:
        await found(home)
    assert scope.cancelled_caught  # the fixture that watches children does the rest


async def test_a_user_without_a_home_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    homeless(monkeypatch)
    assert await registry_auth("ghcr.io", environ={}) is None

"""Where things are: every path of E2B's surface that the adapter uses, and the URLs in front of them.

Sources: e2b-dev/infra ``spec/openapi.yml`` and ``packages/envd/spec``, e2b-dev/code-interpreter
``template/server/main.py`` (August 2026), and the client in ``e2b`` 2.63.0, which already uses the
``/v2`` paths for create.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from sandboxio.errors import AuthError, ConfigurationError

CREATE: Final = "/v2/sandboxes"
CREATE_V1: Final = "/sandboxes"
"""For self-hosted control planes that do not know the other one yet."""
LIST: Final = "/v2/sandboxes"
ONE: Final = "/sandboxes/{id}"
CONNECT: Final = "/v2/sandboxes/{id}/connect"
CONNECT_V1: Final = "/sandboxes/{id}/connect"

HEALTH: Final = "/health"
FILES: Final = "/files"
START: Final = "/process.Process/Start"

EXECUTE: Final = "/execute"
CONTEXTS: Final = "/contexts"
ONE_CONTEXT: Final = "/contexts/{id}"

ENVD_PORT: Final = 49983
INTERPRETER_PORT: Final = 49999

DEFAULT_DOMAIN: Final = "e2b.app"
KEY_VARIABLE: Final = "E2B_API_KEY"

_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_DOMAIN = re.compile(rf"{_LABEL}(?:\.{_LABEL})*\.?(?::[0-9]{{1,5}})?")


@dataclass(frozen=True)
class Settings:
    """What the environment says about the service, by E2B's own names.

    ``E2B_API_KEY`` is needed. ``E2B_DOMAIN`` is another deployment; ``E2B_API_URL`` and
    ``E2B_SANDBOX_URL`` replace the URLs of the control plane and of all sandboxes; ``E2B_DEBUG=true``
    puts both on localhost, as for a deployment on this machine.
    """

    api_key: str = field(repr=False)
    domain: str = DEFAULT_DOMAIN
    api_url: str = f"https://api.{DEFAULT_DOMAIN}"
    sandbox_url: str | None = None
    debug: bool = False

    @property
    def local(self) -> bool:
        """True if the control plane or the sandboxes are on this machine, where there may be anything."""
        return self.debug or any(map(_is_here, (self.api_url, self.sandbox_url or "")))

    def sandbox_base(self, sandbox_id: str, port: int, domain: str | None) -> str:
        """The URL of one port of a sandbox; ``domain`` is what the control plane said, if anything."""
        if self.sandbox_url is not None:
            return self.sandbox_url
        if self.debug:
            return f"http://localhost:{port}"
        return f"https://{port}-{sandbox_id}.{domain or self.domain}"


def read_settings(environ: Mapping[str, str] = os.environ) -> Settings:
    """The settings of this moment.

    Raises ``AuthError`` without a key, ``ConfigurationError`` for a URL or a domain that is none.
    """
    key = environ.get(KEY_VARIABLE, "").strip()
    if not key:
        raise AuthError(
            f"{KEY_VARIABLE} is not set, so E2B cannot be used.",
            hint=f"export {KEY_VARIABLE}=e2b_...  # from https://e2b.dev/dashboard",
        )
    if not key.isascii() or not key.isprintable():
        raise AuthError(
            f"{KEY_VARIABLE} holds characters that no key has.",
            hint=f"Copy the key into {KEY_VARIABLE} again.",
        )
    debug = debugging(environ)
    domain = environ.get("E2B_DOMAIN", "").strip() or DEFAULT_DOMAIN
    if not is_domain(domain):  # put into a URL, it could name another host, which would get the key
        raise ConfigurationError(
            "E2B_DOMAIN must be a host name alone.", hint=f"export E2B_DOMAIN={DEFAULT_DOMAIN}"
        )
    default = "http://localhost:3000" if debug else f"https://api.{domain}"
    return Settings(
        api_key=key,
        domain=domain,
        api_url=_url(environ, "E2B_API_URL") or default,
        sandbox_url=_url(environ, "E2B_SANDBOX_URL"),
        debug=debug,
    )


def debugging(environ: Mapping[str, str] = os.environ) -> bool:
    """True if ``E2B_DEBUG`` points at this machine."""
    return environ.get("E2B_DEBUG", "").lower() == "true"


def on_this_machine(environ: Mapping[str, str] = os.environ) -> bool:
    """True if the environment points at this machine, also where it is not complete yet."""
    domain = environ.get("E2B_DOMAIN", "").strip()
    urls = (environ.get("E2B_API_URL", ""), environ.get("E2B_SANDBOX_URL", ""), f"https://api.{domain}")
    return debugging(environ) or any(map(_is_here, urls))


def _is_here(url: str) -> bool:
    try:
        host = (urlsplit(url).hostname or "").rstrip(".")
    except ValueError:  # no URL, which read_settings refuses
        return False
    if host == "localhost" or host.endswith(".localhost"):  # RFC 6761, section 6.3
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None) or address
    return mapped.is_loopback or mapped.is_unspecified  # the second reaches this machine, too


def is_domain(text: str) -> bool:
    """True for a host name, with or without a port, and nothing else."""
    return _DOMAIN.fullmatch(text) is not None


def _url(environ: Mapping[str, str], name: str) -> str | None:
    text = environ.get(name) or None
    if text is not None and not (text.startswith(("http://", "https://")) and _names_a_host(text)):
        raise ConfigurationError(
            f"{name} must begin with http:// or https:// and name a host.",
            hint=f"export {name}=https://api.example.org",
        )
    return text


def _names_a_host(url: str) -> bool:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:  # half an IPv6 address, or a port that is none
        return False
    return bool(host) and url.isprintable() and " " not in url

"""Options of ``python -m sandboxio.mcp``, and what guards the server."""

from __future__ import annotations

import argparse
import os
import secrets
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import anyio
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.transport_security import TransportSecuritySettings
from pydantic import AnyHttpUrl

from sandboxio.errors import ConfigurationError, SandboxError
from sandboxio.mcp.holder import Holder
from sandboxio.mcp.server import Settings, build
from sandboxio.mcp.serving import serve_http, serve_http_on_trio, serve_stdio

TOKEN_VARIABLE = "SBX_MCP_TOKEN"  # noqa: S105 - the variable's name
LOCAL = ("127.0.0.1", "localhost", "::1")
MAX_BODY = 32 << 20
"""Bytes of one HTTP request; the SDK's 4 MiB are too few for a file. base64 makes 24 MiB of content fit."""
LEAST_TOKEN = 16
NO_ISSUER = AnyHttpUrl("https://no-issuer.invalid")
"""The SDK wants to name who issues tokens; here it is whoever started the server."""

EXAMPLES = """examples:
  python -m sandboxio.mcp                                        Docker, over stdio
  python -m sandboxio.mcp --backend e2b://code-interpreter-v1    E2B (needs E2B_API_KEY)
  python -m sandboxio.mcp --transport streamable-http --port 8000
  SBX_MCP_TOKEN=... python -m sandboxio.mcp --transport streamable-http \\
      --host 0.0.0.0 --allowed-host sandbox.example.org
"""


@dataclass(frozen=True)
class StaticToken:
    """Accepts one bearer token, compared in constant time."""

    token: str = field(repr=False)

    async def verify_token(self, token: str) -> AccessToken | None:
        """The SDK's hook."""
        if not secrets.compare_digest(token.encode(), self.token.encode()):
            return None
        return AccessToken(token=token, client_id="sandboxio", scopes=[])


def main(argv: Sequence[str] | None = None) -> int:
    """Run the server until its client goes or a signal ends it."""
    given = _parser().parse_args(argv)
    try:
        return _serve(given)
    except SandboxError as error:
        sys.stderr.write(f"{error}\n")  # stdout carries nothing but the protocol
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sandboxio.mcp",
        description="Serve one sandbox over the Model Context Protocol. No client can change these options.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--backend", default="docker://", metavar="DSN", help="where the sandbox runs (docker://)"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        metavar="SECONDS",
        help="life of the sandbox, and of a call (that of the DSN, or 3600)",
    )
    parser.add_argument(
        "--egress", choices=("deny", "allow"), default="deny", help="network of the sandbox (deny)"
    )
    parser.add_argument("--transport", choices=("stdio", "streamable-http"), default="stdio")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=int, default=8000, help="port to listen on (8000)")
    parser.add_argument(
        "--allowed-host",
        action="append",
        default=[],
        metavar="HOST",
        help="a Host header to accept, with its port if it has one; needed for another --host; repeatable",
    )
    parser.add_argument("--loop", choices=("asyncio", "trio"), default="asyncio", help="event loop (asyncio)")
    return parser


def _serve(given: argparse.Namespace) -> int:
    settings = Settings(given.backend, given.timeout, given.egress)
    holder = Holder(settings.create)
    if given.transport == "stdio":
        return anyio.run(serve_stdio, build(settings, holder), holder, backend=given.loop)
    security, token = _security(given)
    _check_address(given.host, given.port)
    if token is None:
        server = build(settings, holder)
    else:
        auth = AuthSettings(issuer_url=NO_ISSUER, resource_server_url=None)
        server = build(settings, holder, auth=auth, token_verifier=StaticToken(token))
    app = server.streamable_http_app(
        host=given.host, transport_security=security, max_request_body_size=MAX_BODY
    )
    serve = serve_http_on_trio if given.loop == "trio" else serve_http
    return anyio.run(serve, app, holder, given.host, given.port, backend=given.loop)


def _check_address(host: str, port: int) -> None:
    """Refuse what the servers would answer with a traceback: they bind the address inside of task groups."""
    try:
        socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except (OSError, OverflowError, ValueError) as error:  # the last for a name that is none
        raise ConfigurationError(
            f"Nothing can listen on {host}, port {port}: {error}.", hint="Choose another --port or --host."
        ) from error


def _security(given: argparse.Namespace) -> tuple[TransportSecuritySettings | None, str | None]:
    """What guards the HTTP server. Beyond this machine, allowed hosts and a token are required.

    None leaves the SDK's own protection against DNS rebinding, which is on for local addresses only.
    """
    token = os.environ.get(TOKEN_VARIABLE)
    if token is not None and len(token) < LEAST_TOKEN:
        raise ConfigurationError(
            f"{TOKEN_VARIABLE} has fewer than {LEAST_TOKEN} characters.",
            hint=f"export {TOKEN_VARIABLE}=$(python3 -c 'import secrets; print(secrets.token_urlsafe())')",
        )
    if given.host not in LOCAL:
        if not given.allowed_host:
            raise ConfigurationError(
                f"Listening on {given.host} needs the names under which clients may come.",
                hint="Add --allowed-host NAME for each, or listen on 127.0.0.1.",
            )
        if token is None:
            raise ConfigurationError(
                f"Listening on {given.host} without a token would let anyone run code.",
                hint=f"Set {TOKEN_VARIABLE}, or listen on 127.0.0.1.",
            )
    if not given.allowed_host:
        given.allowed_host = [f"{given.host}:{given.port}"]
        return None, token
    origins = [f"{scheme}://{host}" for host in given.allowed_host for scheme in ("http", "https")]
    return TransportSecuritySettings(allowed_hosts=given.allowed_host, allowed_origins=origins), token

"""``sandbox.native``: E2B's own client on the same sandbox."""

from __future__ import annotations

from typing import Any

from sandboxio.errors import BackendNotInstalled

from .control import Placed
from .endpoints import Settings


def native_sandbox(settings: Settings, sandbox: Placed) -> Any:
    """An ``e2b.AsyncSandbox``, built without I/O. Its methods need asyncio.

    ``e2b`` is imported here and nowhere else: it takes half a second and 50 MB.
    """
    try:
        from e2b import AsyncSandbox, ConnectionConfig  # noqa: PLC0415
        from packaging.version import Version  # noqa: PLC0415
    except ImportError as error:
        raise BackendNotInstalled(
            f"sandbox.native is e2b's AsyncSandbox, and {error.name} is not installed.",
            hint='pip install "sandboxio[e2b]"',
        ) from error
    headers = {"E2b-Sandbox-Id": sandbox.id, "E2b-Sandbox-Port": str(ConnectionConfig.envd_port)}
    if sandbox.token is not None:
        headers["X-Access-Token"] = sandbox.token
    config = ConnectionConfig(
        api_key=settings.api_key,
        domain=settings.domain,
        api_url=settings.api_url,
        sandbox_url=settings.sandbox_url,
        debug=settings.debug,
        extra_sandbox_headers=headers,
    )
    return AsyncSandbox(
        sandbox_id=sandbox.id,
        sandbox_domain=sandbox.domain,
        envd_version=Version(sandbox.envd_version or "99.99.99"),
        envd_access_token=sandbox.token,
        traffic_access_token=sandbox.traffic_token,
        connection_config=config,
    )

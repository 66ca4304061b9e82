"""The transports, and how a signal ends each: the sandbox first, then the server.

A client gives a server of its own 2 s between SIGTERM and SIGKILL (mcp 2.3, ``mcp/client/stdio.py``), and
both HTTP servers wait for calls that still run. So what ends first is the sandbox: its calls fail with that,
also the one that is just making it, and nothing is left to wait for.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, cast

import anyio
from mcp.server.mcpserver import MCPServer

from sandboxio.errors import ConfigurationError
from sandboxio.mcp.holder import Holder

GRACE = 1
"""Seconds that an HTTP server waits, once the sandbox has ended, for answers that are on their way."""


async def serve_stdio(server: MCPServer[Holder], holder: Holder) -> int:
    """Serve until the client goes (0 is returned) or a signal comes, which ends the process."""

    def stop(number: int) -> None:
        os._exit(128 + number)  # the SDK reads stdin in a thread that nothing can interrupt

    try:
        await _until_signal(server.run_stdio_async, holder, stop)
    except* BrokenPipeError:  # the client went without a word while an answer was on its way
        # The SDK's writer still holds the rest of it. Since Python 3.13 a file that cannot be flushed when it
        # is collected says so on stderr (What's New, io).
        sys.unraisablehook = _unless_the_pipe_is_broken
    return 0


def _unless_the_pipe_is_broken(unraisable: sys.UnraisableHookArgs) -> None:
    if not isinstance(unraisable.exc_value, BrokenPipeError):
        sys.__unraisablehook__(unraisable)


async def serve_http(app: Any, holder: Holder, host: str, port: int) -> int:
    """Serve an ASGI application on asyncio until a signal comes; 128 and its number."""
    import uvicorn  # noqa: PLC0415 - comes with the mcp package; only HTTP needs it

    class Server(uvicorn.Server):
        def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
            return nullcontext()  # they are received below

    config = uvicorn.Config(app, host=host, port=port, log_level="warning", timeout_graceful_shutdown=GRACE)
    server = Server(config)
    received: list[int] = []

    def stop(number: int) -> None:
        received.append(number)
        server.should_exit = True

    await _until_signal(server.serve, holder, stop)
    return 128 + received[0] if received else 0


async def serve_http_on_trio(app: Any, holder: Holder, host: str, port: int) -> int:
    """The same on trio, which uvicorn does not know."""
    try:
        from hypercorn.config import Config  # noqa: PLC0415
        from hypercorn.trio import serve  # noqa: PLC0415  # pyright: ignore[reportUnknownVariableType]
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "HTTP on trio needs hypercorn.", hint='pip install "hypercorn[trio]", or use --loop asyncio.'
        ) from error
    config = Config()
    config.bind = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}"]
    config.errorlog = config.accesslog = None
    config.graceful_timeout = GRACE
    received: list[int] = []
    stopped = anyio.Event()

    def stop(number: int) -> None:
        received.append(number)
        stopped.set()

    serving = cast("Callable[..., Awaitable[None]]", serve)
    await _until_signal(partial(serving, app, config, shutdown_trigger=stopped.wait), holder, stop)
    return 128 + received[0] if received else 0


async def _until_signal(
    serve: Callable[[], Awaitable[None]], holder: Holder, stop: Callable[[int], None]
) -> None:
    """Run ``serve``; at SIGTERM or SIGINT end the sandbox and then call ``stop`` with the signal's number."""
    async with anyio.create_task_group() as group:

        async def watch() -> None:
            with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                async for number in signals:
                    try:
                        await holder.close()
                    finally:
                        stop(number)

        group.start_soon(watch)
        await serve()
        group.cancel_scope.cancel()

"""The code interpreter: contexts on real kernels, cell output as lines of JSON.

The protocol is that of ``template/server`` in e2b-dev/code-interpreter (``main.py``,
``messaging.py``, ``api/models/result.py``). Only Python is spoken here.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import uuid
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from jupyter_client import AsyncKernelManager
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from .guest import Guest

KEEPALIVE_SECONDS = 5.0
INTERRUPT_SECONDS = 2.0
HOME = "/home/user"
LANGUAGES = {None: "python", "": "python", "python": "python", "js": "javascript", "ts": "typescript"}
MIME_FIELDS = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "text/latex": "latex",
    "application/json": "json",
    "application/javascript": "javascript",
    "e2b/data": "data",
    "e2b/chart": "chart",
}
Event = dict[str, Any]


class NoKernel(Exception):
    """There is no kernel for a language."""


@dataclass(eq=False)
class Context:
    """One kernel, and the cell that it runs."""

    id: str
    language: str
    cwd: str
    manager: AsyncKernelManager
    client: Any
    variables: Mapping[str, str]
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    reason: str = "UnexpectedEndOfExecution"
    _named: bool = False
    watcher: asyncio.Task[None] = field(init=False)

    _ready: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._ready.set()
        self.watcher = asyncio.create_task(self.watch())

    def describe(self) -> dict[str, str]:
        return {"id": self.id, "language": self.language, "cwd": self.cwd}

    async def execute(self, code: str, variables: Mapping[str, str]) -> AsyncGenerator[Event, None]:
        """The events of one cell. Closing the iterator interrupts the kernel."""
        async with self.lock:
            await self._ready.wait()
            head = "" if self._named else _set_variables(self.variables)
            self._named = True
            indent = _indent_of(code)
            setup = "".join(f"{indent}{line}\n" for line in (head + _set_variables(variables)).splitlines())
            lost = self.lost
            message = self.client.execute(setup + code, allow_stdin=False, stop_on_error=True)
            finished = False
            try:
                async with aclosing(self._output(message, lost)) as output:
                    async for event in output:
                        yield event
                finished = True
            finally:
                if not finished and not lost.is_set():
                    await asyncio.shield(self._interrupt(message))
            if variables and not lost.is_set():
                self.client.execute("".join(_unset(key) for key in variables), silent=True, allow_stdin=False)

    async def _interrupt(self, message: str) -> None:
        """Interrupt, and let the cell come to its end: ipykernel drops what is queued behind a failed one."""
        await self.manager.interrupt_kernel()
        try:
            async with asyncio.timeout(INTERRUPT_SECONDS):
                while not _is_idle(await self.client.get_iopub_msg(timeout=None), message):
                    pass
        except TimeoutError:
            pass  # it ignores interrupts: the next cell waits for it, as on the real server

    async def _output(self, message: str, lost: asyncio.Event) -> AsyncGenerator[Event, None]:
        errored = False
        gone = asyncio.ensure_future(lost.wait())
        channel: asyncio.Future[Any] | None = None
        try:
            while True:
                channel = channel or asyncio.ensure_future(self.client.get_iopub_msg(timeout=None))
                await asyncio.wait(
                    (channel, gone), timeout=KEEPALIVE_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
                if gone.done():
                    yield {"type": "error", "name": self.reason, "value": LOST[self.reason], "traceback": ""}
                    return
                if not channel.done():
                    yield {"type": "keepalive"}
                    continue
                received, channel = channel.result(), None
                if _is_idle(received, message):
                    return
                if received["parent_header"].get("msg_id") != message:
                    continue
                kind, content = received["msg_type"], received["content"]
                event = _event(kind, content, received)
                if event is not None and not (event["type"] == "error" and errored):
                    errored = errored or event["type"] == "error"
                    yield event
        finally:
            for task in (channel, gone):
                if task is not None:
                    task.cancel()

    async def watch(self) -> None:
        """Start the kernel again whenever it dies by itself, as Jupyter does."""
        while True:
            await self.manager.provisioner.wait()
            self.reason = "ContextRestarting"
            self._ready.clear()
            self.lost.set()
            self.client.stop_channels()
            await self.manager.restart_kernel(now=True)
            self.client = self.manager.client()
            self.client.start_channels()
            await self.client.wait_for_ready(timeout=60)
            self.lost, self._named = asyncio.Event(), False
            self._ready.set()

    async def stop(self, reason: str) -> None:
        """Stop the kernel; a running cell ends with ``reason``."""
        self.watcher.cancel()
        self.reason = reason
        self.lost.set()
        self.client.stop_channels()
        await self.manager.shutdown_kernel(now=True)


LOST = {
    "UnexpectedEndOfExecution": "Connection to the execution was closed before the execution was finished",
    "ContextRestarting": "Context was restarted",
}


def _is_idle(received: Mapping[str, Any], message: str) -> bool:
    return (
        received["parent_header"].get("msg_id") == message
        and received["msg_type"] == "status"
        and received["content"]["execution_state"] == "idle"
    )


def _event(kind: str, content: Mapping[str, Any], message: Mapping[str, Any]) -> Event | None:
    if kind == "stream":
        stamp = message["header"]["date"]
        return {
            "type": content["name"],
            "text": content["text"],
            "timestamp": stamp if isinstance(stamp, str) else stamp.isoformat(),
        }
    if kind in ("display_data", "execute_result"):
        return _result(dict(content["data"]), main=kind == "execute_result")
    if kind == "error":
        trace = "".join(content["traceback"])
        return {"type": "error", "name": content["ename"], "value": content["evalue"], "traceback": trace}
    if kind == "execute_input":
        return {"type": "number_of_executions", "execution_count": content["execution_count"]}
    return None


def _result(data: dict[str, Any], *, main: bool) -> Event:
    event: Event = {"type": "result"}
    for mime, name in MIME_FIELDS.items():
        value = data.pop(mime, None)
        if value is not None:
            event[name] = value
    text = event.get("text")
    if text and text[0] in "'\"" and text[-1] == text[0]:
        event["text"] = text[1:-1]
    return {**event, "extra": data, "is_main_result": main}


def _indent_of(code: str) -> str:
    line = next((line for line in code.split("\n") if line.strip()), "")
    return line[: len(line) - len(line.lstrip())]


def _set_variables(variables: Mapping[str, str]) -> str:
    return "".join(f"import os; os.environ['{key}'] = '{value}'\n" for key, value in variables.items())


def _unset(key: str) -> str:
    return f"import os; os.environ.pop('{key}', None)\n"


class _Interruptible(StreamingResponse):
    """Ends its generator as soon as the client is gone, also while the cell is silent.

    The real server may notice only at its next write, five seconds later.
    """

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def gone() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        answer = asyncio.ensure_future(self.stream_response(send))
        watch = asyncio.ensure_future(gone())
        await asyncio.wait((answer, watch), return_when=asyncio.FIRST_COMPLETED)
        answered = answer.done()
        for task in (answer, watch):
            task.cancel()
        await asyncio.gather(answer, watch, return_exceptions=True)
        await self.body_iterator.aclose()  # type: ignore[attr-defined]
        if answered:
            answer.result()


class Interpreter:
    """The server on port 49999 of one guest."""

    def __init__(self, guest: Guest) -> None:
        self._guest = guest
        self._contexts: dict[str, Context] = {}
        self._default: str | None = None
        self._lock = asyncio.Lock()

    def routes(self) -> list[Route]:
        return [
            Route("/health", self.health, methods=["GET"]),
            Route("/execute", self.execute, methods=["POST"]),
            Route("/contexts", self.create, methods=["POST"]),
            Route("/contexts", self.list, methods=["GET"]),
            Route("/contexts/{id}/restart", self.restart, methods=["POST"]),
            Route("/contexts/{id}", self.remove, methods=["DELETE"]),
        ]

    async def health(self, request: Request) -> Response:
        return JSONResponse("OK")

    async def execute(self, request: Request) -> Response:
        body = await request.json()
        name, language = body.get("context_id"), body.get("language")
        if name and language:
            return PlainTextResponse("Only one of context_id or language can be provided", 400)
        try:
            context = self._contexts.get(name) if name else await self._default_context(language)
        except NoKernel as error:
            return PlainTextResponse(str(error), 500)
        if context is None:
            return PlainTextResponse(f"Context {name} not found", 404)
        lines = _lines(context.execute(body["code"], body.get("env_vars") or {}))
        return _Interruptible(lines)

    async def create(self, request: Request) -> Response:
        body = await request.json()
        try:
            context = await self._start(body.get("language"), body.get("cwd") or HOME)
        except NoKernel as error:
            return PlainTextResponse(str(error), 500)
        return JSONResponse(context.describe())

    async def list(self, request: Request) -> Response:
        default = await self._default_context(None)
        others = [context for context in self._contexts.values() if context is not default]
        return JSONResponse([context.describe() for context in (default, *others)])

    async def restart(self, request: Request) -> Response:
        context = self._contexts.get(request.path_params["id"])
        if context is None:
            return PlainTextResponse(f"Context {request.path_params['id']} not found", 404)
        await context.stop("UnexpectedEndOfExecution")
        fresh = await _kernel(context.id, context.language, context.cwd, self._guest.variables)
        self._contexts[context.id] = fresh
        return JSONResponse(None)

    async def remove(self, request: Request) -> Response:
        context = self._contexts.pop(request.path_params["id"], None)
        if context is None:
            return PlainTextResponse(f"Context {request.path_params['id']} not found", 404)
        await context.stop("UnexpectedEndOfExecution")
        return JSONResponse(None)

    async def _default_context(self, language: str | None) -> Context:
        """The real server has its default context before anything else; here it starts when needed."""
        async with self._lock:
            if _normal(language) != "python":
                raise NoKernel(f"Failed to create context: no kernel for {language}")
            if self._default not in self._contexts:
                self._default = (await self._start("python", HOME)).id
            return self._contexts[self._default or ""]

    async def _start(self, language: str | None, cwd: str) -> Context:
        if _normal(language) != "python":
            raise NoKernel(f"Failed to create context: no kernel for {language}")
        context = await _kernel(str(uuid.uuid4()), "python", cwd, self._guest.variables)
        self._contexts[context.id] = context
        return context


def _normal(language: str | None) -> str:
    return LANGUAGES.get((language or "").lower().strip(), language or "")


async def _kernel(name: str, language: str, cwd: str, variables: Mapping[str, str]) -> Context:
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    os.makedirs("/run/kernels", exist_ok=True)
    manager = AsyncKernelManager(
        transport="ipc",
        ip=f"/run/kernels/{name}",
        kernel_cmd=command,
        connection_file=f"/run/kernels/kernel-{name}.json",
    )
    environment = {
        **os.environ,
        "HOME": "/root",
        "IPYTHONDIR": "/run/ipython",
        "JUPYTER_RUNTIME_DIR": "/run/jupyter",
    }
    await manager.start_kernel(
        cwd=cwd,
        env=environment,
        # The real ones share a file; here many start at once, and SQLite lets one of them make its tables.
        extra_arguments=[f"--HistoryManager.hist_file=/run/kernels/{name}.sqlite", "--log-level=CRITICAL"],
    )
    client = manager.client()
    client.start_channels()
    await client.wait_for_ready(timeout=60)
    return Context(name, language, cwd, manager, client, variables)


async def _lines(events: AsyncGenerator[Event, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(events):
        async for event in events:
            yield json.dumps(event).encode() + b"\n"
    yield b'{"type": "end_of_execution"}\n'

"""The Docker Engine API as the adapter speaks it: requests, streams, upgrades, one version.

    engine = Engine()                              # finds the endpoint; or Engine("unix:///x.sock")
    await engine.get_json("/info")                 # whatever it is; of a checked shape:
    await engine.get_list("/containers/json", params={"all": True, "filters": {"label": ["x"]}})
    await engine.request("DELETE", f"/containers/{cid}", params={"force": True})  -> httpx.Response
    async with engine.stream("GET", "/events", params=...) as answer:
        async for piece in answer: ...             # answer.status, answer.headers; bytes
    with engine.resumable("POST", "/containers/create", json=...) as pending:
        response = await pending.finish()          # cancelled? finish() again under the caller's shield
    attach = await engine.upgrade("POST", f"/containers/{cid}/attach", params=...)  -> Hijacked
    await attach.send(data); await attach.receive(); await attach.half_close(); attach.close()
    await engine.negotiate()                       -> Versions(used="1.41", engine="1.41", ...)

Paths are given without the version; it is negotiated once per engine (``GET /_ping``) and put in front.
Parameters: True is 1, None is left out, a mapping or list is JSON, text keeps bytes that are not UTF-8
(lone surrogates). Errors are :class:`EngineError` (it answered with one) and :class:`EngineUnavailable`
(nothing answered, or the connection broke), besides :class:`ConfigurationError` for an address that
cannot be used. ``__cause__`` is kept.

An engine object holds no connection: it needs no closing, and serves several event loops and threads
at once. The timeouts of this file end waits for an engine that is silent; only a caller's own deadline
ends a stream.

Source: Docker Engine API v1.41 to v1.52, https://docs.docker.com/reference/api/engine/version-history/
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, cast

import anyio
import h11
import httpx

from sandboxio.errors import ConfigurationError

from .answers import json_object
from .endpoint import Endpoint, find_endpoint
from .faults import EngineError, EngineUnavailable, Fault, reason_in
from .hijack import Hijacked
from .transport import Call, Content, EngineTransport, Exchange
from .versions import LEAST_API, NEWEST_API, Versions, choose, numbers

__all__ = [
    "LEAST_API",
    "NEWEST_API",
    "BodyStream",
    "Engine",
    "EngineError",
    "EngineUnavailable",
    "Fault",
    "Hijacked",
    "Pending",
    "Versions",
    "misshapen",
    "object_in",
]

PROBE_TIMEOUT: Final = 4.0
"""Seconds in which a connection must open, and in which the first request must be answered in full."""
WRITE_TIMEOUT: Final = 30.0
"""Seconds in which the engine must take at least one byte of a request."""
READ_TIMEOUT: Final = 120.0
"""Seconds without a byte before a plain request fails: starts and removals on a busy disk are slow."""
MAX_ANSWER: Final = 64 << 20
"""Bytes of an answer that is read as a whole; a list of ten thousand containers is about 20 MB."""

Params = Mapping[str, object]


class Engine:
    """A client of one engine; see the top of the file. ``endpoint`` is found at the first request."""

    def __init__(
        self,
        endpoint: Endpoint | str | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        home: Path | None = None,
    ) -> None:
        self._given = endpoint
        self._environ = os.environ if environ is None else environ
        self._home = home
        self._transport: EngineTransport | None = None
        self._versions: Versions | None = None

    @property
    def endpoint(self) -> Endpoint:
        """Where the engine is. Raises what :func:`find_endpoint` raises."""
        return self._reach().endpoint

    async def negotiate(self) -> Versions:
        """The version in use; asks the engine the first time. Two tasks at once may both ask.

        Raises :class:`EngineUnavailable` within ``PROBE_TIMEOUT`` if nothing answers, if it is not a
        Docker engine, or if it serves no version that this adapter speaks.
        """
        if self._versions is None:
            self._versions = await _negotiate(self, self._environ.get("DOCKER_API_VERSION", ""))
        return self._versions

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        json: object = None,
        content: Content | None = None,
        headers: Mapping[str, str] | None = None,
        read_timeout: float | None = READ_TIMEOUT,
    ) -> httpx.Response:
        """One request; its whole answer. Raises :class:`EngineError` for a refusal."""
        pending = Pending(self, Call(method, path, params, json, content, headers, read_timeout))
        with pending:
            return await pending.finish()

    async def get_json(self, path: str, *, params: Params | None = None) -> Any:
        """The parsed JSON answer of a GET."""
        return _parsed(await self.request("GET", path, params=params), path)

    async def get_object(self, path: str, *, params: Params | None = None, need: str = "") -> dict[str, Any]:
        """The JSON object that answers a GET; ``need`` is a field that has to be text in it.

        Raises :class:`EngineUnavailable` for any other answer.
        """
        return object_in(await self.request("GET", path, params=params), path, need=need)

    async def get_list(
        self, path: str, *, params: Params | None = None, need: str = ""
    ) -> list[dict[str, Any]]:
        """The JSON objects in the array that answers a GET; else as :meth:`get_object`."""
        found = _parsed(await self.request("GET", path, params=params), path)
        if not isinstance(found, list):
            raise misshapen(path)
        return [_object(each, path, need) for each in found]  # pyright: ignore[reportUnknownVariableType]

    async def post_json(self, path: str, json: object = None, *, params: Params | None = None) -> Any:
        """The parsed JSON answer of a POST; None if the answer is empty."""
        response = await self.request("POST", path, params=params, json=json)
        return _parsed(response, path) if response.content else None

    def resumable(
        self, method: str, path: str, *, params: Params | None = None, json: object = None
    ) -> Pending:
        """A request whose answer can still be read after a cancellation. Does no I/O by itself."""
        return Pending(self, Call(method, path, params, json, None, None, READ_TIMEOUT))

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        json: object = None,
        content: Content | None = None,
        headers: Mapping[str, str] | None = None,
        read_timeout: float | None = None,
    ) -> AsyncGenerator[BodyStream, None]:
        """A request whose answer is read piece by piece, inside ``async with``; leaving it closes.

        ``read_timeout`` None: only the caller's own deadline ends a silent stream.
        """
        await self.negotiate()
        request = Call(method, path, params, json, content, headers, read_timeout)
        exchange = self.exchange(request)
        try:
            with _typed(self, request, exchange):
                head = await exchange.head()
            if _is_refusal(head.status_code):
                raise await _refusal(self, request, exchange)
            yield BodyStream(self, request, exchange, head)
        finally:
            exchange.close()

    async def upgrade(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        json: object = None,
        sending: Callable[[], None] = lambda: None,
    ) -> Hijacked:
        """A request that turns its connection into a raw one (attach, exec start); the caller closes it.

        Both ``101`` and, from engines that upgrade without saying so, ``200`` are taken. Cancelled: the
        connection is closed; what the engine had started by then, it has started. However this ends,
        ``sending`` has been called if a byte of the request may have reached the engine.
        """
        await self.negotiate()
        upgrade = {"Upgrade": "tcp", "Connection": "Upgrade"}
        request = Call(method, path, params, json, None, upgrade, READ_TIMEOUT)
        exchange = self.exchange(request)
        try:
            with _typed(self, request, exchange):
                head = await exchange.head()
            if _is_refusal(head.status_code):
                raise await _refusal(self, request, exchange)
            framed = {b"content-length", b"transfer-encoding"} & {name for name, _ in head.headers}
            if head.status_code not in (101, 200) or (head.status_code == 200 and framed):
                raise _broken(
                    self, request, f"it answered {head.status_code} with an ordinary body", exchange
                )
            wire, early = exchange.detach()
            return Hijacked(request.operation, wire, early)
        finally:
            if exchange.sent:
                sending()
            exchange.close()

    def forget_version(self) -> None:
        """Negotiate again at the next request: the engine was replaced by another version."""
        self._versions = None

    def exchange(self, request: Call, prefix: str | None = None) -> Exchange:
        """For the parts of this file: one request, not begun yet; the caller closes it."""
        transport = self._reach()
        if prefix is None:
            prefix = f"/v{self._versions.used}" if self._versions else ""
        return transport.exchange(
            request.build(transport.endpoint, prefix, connect=PROBE_TIMEOUT, write=WRITE_TIMEOUT)
        )

    def _reach(self) -> EngineTransport:
        if self._transport is None:
            given = self._given
            if not isinstance(given, Endpoint):
                given = find_endpoint(given, environ=self._environ, home=self._home)
            self._transport = EngineTransport(given)
        return self._transport


class Pending:
    """A request on a connection of its own that survives a cancellation of ``finish()``.

    Use it in a ``with`` block: leaving the block closes the connection. ``sent`` says whether a byte of
    the request may have reached the engine; while it is False, nothing was asked and nothing is due.
    """

    def __init__(self, engine: Engine, request: Call) -> None:
        self._engine = engine
        self._request = request
        self._exchange: Exchange | None = None
        self._body = bytearray()
        self._response: httpx.Response | None = None
        self._closed = False

    @property
    def sent(self) -> bool:
        """True once the engine may act on the request."""
        return self._exchange is not None and self._exchange.sent

    async def finish(self) -> httpx.Response:
        """Send what is not sent yet and read what is not read yet.

        Cancelled: call it again, and it goes on where it was. Done: it returns, or raises, the same
        again. Raises :class:`EngineError` for a refusal.
        """
        if self._response is None:
            if self._closed:
                raise EngineUnavailable(f"{self._request.operation} was given up: it is closed.")
            if self._exchange is None:
                await self._engine.negotiate()
                self._exchange = self._engine.exchange(self._request)
            self._response = await _read(self._engine, self._request, self._exchange, self._body)
        if _is_refusal(self._response.status_code):
            error = _error_of(self._request, self._response)
            if error.fault is Fault.API_VERSION:  # the engine was replaced under us: ask again next time
                self._engine.forget_version()
            raise error
        return self._response

    def close(self) -> None:
        """Close the connection; an answer that was not read is lost, and nothing is sent any more."""
        self._closed = True
        if self._exchange is not None:
            self._exchange.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class BodyStream:
    """The answer of :meth:`Engine.stream`: ``async for piece in answer``, or ``receive()``.

    ``status`` is below 400; ``headers`` are httpx's. A cancelled ``receive()`` loses no byte.
    """

    def __init__(
        self,
        engine: Engine,
        request: Call,
        exchange: Exchange,
        head: h11.Response | h11.InformationalResponse,
    ) -> None:
        self._engine = engine
        self._request = request
        self._exchange = exchange
        self.status = head.status_code
        self.headers = httpx.Headers(head.headers.raw_items())

    async def receive(self) -> bytes:
        """Some bytes, ``b""`` at the end. Raises :class:`EngineUnavailable` if the stream was cut off."""
        with _typed(self._engine, self._request, self._exchange):
            return await self._exchange.receive()

    def __aiter__(self) -> BodyStream:
        return self

    async def __anext__(self) -> bytes:
        if piece := await self.receive():
            return piece
        raise StopAsyncIteration


# --- answers -------------------------------------------------------------------------------------


async def _read(engine: Engine, request: Call, exchange: Exchange, body: bytearray) -> httpx.Response:
    """Read the whole answer into ``body``, which keeps what came if this is cancelled."""
    with _typed(engine, request, exchange):
        head = await exchange.head()
        while piece := await exchange.receive():
            body += piece
            if len(body) > MAX_ANSWER:
                raise _broken(engine, request, f"its answer is larger than {MAX_ANSWER >> 20} MiB", exchange)
    exchange.close()
    headers = httpx.Headers(head.headers.raw_items())
    if headers.get("Content-Encoding", "identity").strip().lower() != "identity":
        # nobody asked for it, and what is small here may be endless when it is unpacked
        raise _broken(engine, request, "its answer is compressed", exchange)
    return httpx.Response(head.status_code, headers=headers, content=bytes(body))


def _is_refusal(status: int) -> bool:
    """True for errors and for redirects, which this API has none of; 304 is "already so"."""
    return status >= 300 and status != 304


async def _refusal(engine: Engine, request: Call, exchange: Exchange) -> EngineError:
    """The error that the rest of an answer describes."""
    return _error_of(request, await _read(engine, request, exchange, bytearray()))


def object_in(response: httpx.Response, path: str, *, need: str = "") -> dict[str, Any]:
    """The JSON object that an answer is; ``path`` and ``need`` as in :meth:`Engine.get_object`."""
    return _object(_parsed(response, path), path, need)


def _object(value: Any, path: str, need: str) -> dict[str, Any]:
    found = json_object(value)
    lacks = need and not (isinstance(found.get(need), str) and found[need])
    if lacks or not isinstance(value, dict):
        raise misshapen(path)
    return found


def misshapen(path: str) -> EngineUnavailable:
    """The error for an answer that is JSON and not of the shape that the API says."""
    failure = EngineUnavailable(
        f"The engine's answer to {path} has not the shape that the Docker Engine API says.", hint=_NOT_DOCKER
    )
    failure.sent = True
    return failure


def _parsed(response: httpx.Response, path: str) -> Any:
    try:
        return response.json()
    except (ValueError, RecursionError) as error:
        failure = EngineUnavailable(f"The engine's answer to {path} is not JSON.", hint=_NOT_DOCKER)
        failure.sent = True
        raise failure from error


def _error_of(request: Call, response: httpx.Response) -> EngineError:
    retry_after = response.headers.get("Retry-After", "")
    return EngineError.of_answer(request.operation, response.status_code, retry_after, response.content)


# --- failures ------------------------------------------------------------------------------------

_TLS_OR_NOT: Final = (
    "Check that it runs, and that it wants what DOCKER_TLS_VERIFY and DOCKER_CERT_PATH say: TLS or not."
)
_NOT_DOCKER: Final = "Check the address: DOCKER_HOST, or the current `docker context`."


@contextmanager
def _typed(engine: Engine, request: Call, exchange: Exchange) -> Generator[None, None, None]:
    """Turn the transport's errors into ours."""
    try:
        yield
    except httpx.ConnectError as error:
        raise engine.endpoint.explain(error.__cause__ or error) from error
    except httpx.TransportError as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise _broken(engine, request, reason, exchange) from error


def _broken(engine: Engine, request: Call, reason: str, exchange: Exchange) -> EngineUnavailable:
    endpoint = engine.endpoint
    failure = EngineUnavailable(
        f"The engine at {endpoint} did not serve {request.operation}: {reason}.",
        hint=_TLS_OR_NOT if endpoint.port else None,
    )
    failure.sent = exchange.sent
    return failure


# --- versions ------------------------------------------------------------------------------------


async def _negotiate(engine: Engine, wanted: str) -> Versions:
    wanted = wanted.removeprefix("v")
    if wanted and not numbers(wanted):
        raise ConfigurationError(
            f"DOCKER_API_VERSION={wanted!r} is not a version.",
            hint="Unset it, or write for example 1.44.",
        )
    ping = await _probe(engine, "/_ping")
    newest, least = ping.headers.get("Api-Version", ""), ""
    if not numbers(newest) or numbers(newest) > numbers(NEWEST_API):
        # only then the engine's own minimum matters, and only this answer has it
        newest, least = _offered(await _probe(engine, "/version"), newest)
    used = choose(str(engine.endpoint), wanted, newest, least)
    return Versions(used, newest, least, ping.headers.get("Ostype", ""), ping.headers.get("Server", ""))


async def _probe(engine: Engine, path: str) -> httpx.Response:
    """One bounded GET without a version; the answer comes from a Docker engine or this raises."""
    request = Call("GET", path, None, None, None, None, PROBE_TIMEOUT)
    exchange = engine.exchange(request, prefix="")
    response: httpx.Response | None = None
    try:
        with anyio.move_on_after(PROBE_TIMEOUT):
            response = await _read(engine, request, exchange, bytearray())
    finally:
        exchange.close()
    if response is None:
        raise _broken(engine, request, f"no complete answer within {PROBE_TIMEOUT:g} s", exchange)
    if response.status_code == 200 and ("Api-Version" in response.headers or _looks_right(path, response)):
        return response
    reason = reason_in(response.content)[:300]
    failure = EngineUnavailable(
        f"What answers at {engine.endpoint} is not a working Docker engine: "
        f"GET {path} gave HTTP {response.status_code}, {reason!r}.",
        hint="Set DOCKER_TLS_VERIFY=1 and DOCKER_CERT_PATH." if "HTTPS server" in reason else _NOT_DOCKER,
    )
    raise failure


def _looks_right(path: str, response: httpx.Response) -> bool:
    return response.content.strip() == b"OK" if path == "/_ping" else response.content.lstrip()[:1] == b"{"


def _offered(response: httpx.Response, newest: str) -> tuple[str, str]:
    """Newest and least version out of ``GET /version``, ``""`` for what is not said."""
    answer = _parsed(response, "/version")
    fields = cast("dict[str, Any]", answer) if isinstance(answer, dict) else {}
    said = [fields.get("ApiVersion", newest), fields.get("MinAPIVersion", "")]
    first, second = (text if isinstance(text, str) and numbers(text) else "" for text in said)
    return first, second

"""One request, one connection: the transport between the engine client and a socket.

httpx's connection pool is not used. It loses slots and sockets when a request is cancelled at the wrong
moment (httpcore 1.0.9: issue 1093, and a connection cancelled between connect and the state lock is
never reclaimed), and a kept-alive connection that the engine closes fails the next request. Here:

1. A connection serves one request and is closed synchronously, so a cancellation at any await leaves
   nothing behind.
2. All state of an exchange is in the object, none in a suspended coroutine: whoever was cancelled, or
   somebody else, may call the same method again and goes on where it stopped. That is how the answer of
   a cancelled "create container" can still be read.
3. The only awaits are those of ``wire``: a socket that is ready. What the kernel gave is stored before the
   next await, so no byte is lost; every read yields to the event loop first, so a fast peer does not starve
   other tasks.
"""

from __future__ import annotations

import inspect
import json as _json
import re
import ssl
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final, Self, cast
from urllib.parse import quote

import anyio
import anyio.lowlevel
import h11
import httpx

from sandboxio.errors import ConfigurationError

from .endpoint import Endpoint
from .wire import Wire, connect, read_tls

_STRAY: Final = re.compile(r"^[^/]|//|/$|/\.\.?(/|$)|[\0-\x20]")
"""What an id given by a user must not do to a path: add segments, or take some away."""

Content = bytes | Iterable[bytes] | AsyncIterable[bytes]
"""A request's body. Pieces are read one by one; give ``Content-Length`` in the headers if it is known."""


@dataclass(frozen=True)
class Call:
    """One request as the engine client means it, before it has a version, a host and a connection."""

    method: str
    path: str
    params: Mapping[str, object] | None
    json: object
    content: Content | None
    headers: Mapping[str, str] | None
    read_timeout: float | None

    @property
    def operation(self) -> str:
        """How messages name it: without the parameters, which may hold a path of the user's."""
        return f"{self.method} {self.path}"

    def build(self, endpoint: Endpoint, prefix: str, *, connect: float, write: float) -> httpx.Request:
        """The HTTP request; ``connect`` and ``write`` are timeouts in seconds."""
        if _STRAY.search(self.path):
            raise ConfigurationError(
                f"{self.path!r} is not a path of the engine's API.",
                hint="An id or a name in it is empty or has a wrong character.",
            )
        authority = "docker" if endpoint.path else str(endpoint).removeprefix("tcp://")
        query = _query(self.params or {})
        target = _quoted(prefix + self.path, safe="/:@") + (f"?{query}" if query else "")
        headers = {
            "Host": authority,
            "User-Agent": "sandboxio",
            "Connection": "close",
            **(self.headers or {}),
        }
        body: dict[str, Any] = {}
        if self.json is not None:
            body["content"] = _json.dumps(self.json).encode()
            headers["Content-Type"] = "application/json"
        elif isinstance(self.content, bytes):
            body["content"] = self.content
        elif self.content is not None:
            body["stream"] = Upload(self.content)
            if "Content-Length" not in headers:
                headers["Transfer-Encoding"] = "chunked"
        elif self.method in ("POST", "PUT"):
            body["content"] = b""
        try:
            url = httpx.URL(scheme="http", host="docker", raw_path=target.encode("ascii"))
        except httpx.InvalidURL as error:  # longer than 64 KiB
            raise ConfigurationError(
                f"{self.path[:60]!r}... is not a path of the engine's API: {error}.",
                hint="An id or a name in it is too long.",
            ) from error
        timeouts = httpx.Timeout(connect=connect, write=write, read=self.read_timeout, pool=None)
        return httpx.Request(
            self.method,
            url,
            headers=headers,
            **body,
            extensions={"timeout": timeouts.as_dict()},
        )


def _query(params: Mapping[str, object]) -> str:
    """A query string; bytes that are not UTF-8 come through as they are.

    >>> _query({"path": "/a b", "force": True, "platform": None, "filters": {"label": ["x"]}})
    'path=%2Fa%20b&force=1&filters=%7B%22label%22%3A%20%5B%22x%22%5D%7D'
    """
    pairs: list[str] = []
    for name, value in params.items():
        if value is None:
            continue
        if isinstance(value, bool):
            text = "1" if value else "0"
        elif isinstance(value, (Mapping, list, tuple)):
            text = _json.dumps(value)
        else:
            text = str(value)
        pairs.append(f"{_quoted(name)}={_quoted(text)}")
    return "&".join(pairs)


def _quoted(text: str, safe: str = "") -> str:
    try:
        return quote(text.encode("utf-8", "surrogateescape"), safe=safe)
    except UnicodeEncodeError:  # half of a UTF-16 pair: not a byte, not a character
        raise ConfigurationError(f"{text!r} cannot be sent to the engine: it is not text.") from None


class Exchange:
    """One request and its answer, on a connection of their own.

    ``await head()``, then ``await receive()`` until it returns ``b""``. Both may be called again after
    a cancellation and go on where they stopped, unless the request's body is an async iterator, which a
    cancellation ends. Both raise httpx's transport errors only.
    """

    def __init__(self, transport: EngineTransport, request: httpx.Request) -> None:
        self._transport = transport
        self._request = request
        self._timeouts = cast("dict[str, float | None]", request.extensions.get("timeout", {}))
        self._http = h11.Connection(h11.CLIENT)
        self._wire: Wire | None = None
        self._unsent = memoryview(b"")
        self._streaming = False
        self._head: h11.Response | h11.InformationalResponse | None = None
        self._ended = False
        self.sent = False
        """True once a byte of the request was given to the kernel: the engine may act on it."""

    async def head(self) -> h11.Response | h11.InformationalResponse:
        """Send the request and wait for the head of the answer: a final one, or 101."""
        if self._wire is None:
            self._wire = await self._connect()
        if self._head is None:
            await self._transmit(self._wire)
        while self._head is None:
            self._take(await self._event(self._wire))
        return self._head

    async def receive(self) -> bytes:
        """A piece of the answer's body, ``b""`` at its end."""
        if self._wire is None or self._head is None:
            raise RuntimeError("receive() comes after head()")
        while not self._ended:
            event = await self._event(self._wire)
            if isinstance(event, h11.Data):
                return bytes(event.data)
            self._ended = True
        return b""

    def detach(self) -> tuple[Wire, bytes]:
        """Hand over the connection and the bytes that came behind the head; ``close()`` spares it then."""
        if self._wire is None or self._head is None:
            raise RuntimeError("detach() comes after head()")
        wire, self._wire, self._ended = self._wire, None, True
        return wire, self._http.trailing_data[0]

    def close(self) -> None:
        """Close the connection, wherever the exchange is."""
        if self._wire is not None:
            self._wire.close()

    async def _connect(self) -> Wire:
        timeout = self._timeouts.get("connect")
        with anyio.move_on_after(timeout):
            try:
                return await connect(self._transport.endpoint, self._transport.tls_context())
            except OSError as error:
                raise httpx.ConnectError(str(error), request=self._request) from error
        raise httpx.ConnectTimeout(f"no connection within {timeout} s", request=self._request)

    async def _transmit(self, wire: Wire) -> None:
        """Send what is left of the request; stop early if the engine answers or stops listening."""
        if self._http.our_state is h11.IDLE:
            self._begin()
        try:
            if self._streaming:
                await self._transmit_stream(wire)
            await self._flush(wire)
        except (BrokenPipeError, ConnectionResetError):
            self._unsent = memoryview(b"")  # the answer may say why
        except OSError as error:
            raise httpx.WriteError(str(error), request=self._request) from error
        except anyio.ClosedResourceError as error:
            raise httpx.WriteError("the connection was closed", request=self._request) from error

    def _begin(self) -> None:
        """Put the head, and the body if it is in memory, into what is to be sent."""
        request = self._request
        try:
            head = h11.Request(
                method=request.method, target=request.url.raw_path, headers=request.headers.raw
            )
            self._push(self._http.send(head))
        except h11.LocalProtocolError as error:
            raise httpx.LocalProtocolError(str(error), request=request) from error
        try:
            body = request.content
        except httpx.RequestNotRead:
            self._streaming = True
            return
        self._push(self._http.send(h11.Data(data=body)) if body else b"")
        self._push(self._http.send(h11.EndOfMessage()))

    async def _transmit_stream(self, wire: Wire) -> None:
        self._streaming = False
        stream = cast("httpx.AsyncByteStream", self._request.stream)
        try:
            async for piece in stream:
                await anyio.lowlevel.checkpoint()  # a fast file and a fast engine would never let others run
                if self._answered(wire):
                    return
                self._push(self._http.send(h11.Data(data=piece)) if piece else b"")
                await self._flush(wire)
            self._push(self._http.send(h11.EndOfMessage()))
        except h11.LocalProtocolError as error:
            raise httpx.LocalProtocolError(str(error), request=self._request) from error
        finally:
            await stream.aclose()

    def _push(self, data: bytes | None) -> None:
        if data:
            self._unsent = memoryview(bytes(self._unsent) + data)

    async def _flush(self, wire: Wire) -> None:
        timeout = self._timeouts.get("write")
        while self._unsent and self._head is None:
            count = 0
            with anyio.move_on_after(timeout):
                count = await wire.send_some(self._unsent)
            if not count and not self._answered(wire):
                raise httpx.WriteTimeout(f"nothing was accepted for {timeout} s", request=self._request)
            self.sent = self.sent or count > 0
            self._unsent = self._unsent[count:]

    def _answered(self, wire: Wire) -> bool:
        """Look, without waiting, whether an answer came before the request was complete."""
        data = wire.receive_now()
        if data is not None:
            self._http.receive_data(data)
            while self._head is None and (event := self._next_event()) is not h11.NEED_DATA:
                self._take(event)
        return self._head is not None

    def _take(self, event: object) -> None:
        if isinstance(event, h11.InformationalResponse) and event.status_code != 101:
            return  # "100 Continue" and its like announce, they do not answer
        if not isinstance(event, (h11.Response, h11.InformationalResponse)):
            raise httpx.RemoteProtocolError(
                "the connection was closed without an answer", request=self._request
            )
        self._head = event

    async def _event(self, wire: Wire) -> object:
        timeout = self._timeouts.get("read")
        while (event := self._next_event()) is h11.NEED_DATA:
            data: bytes | None = None
            try:
                with anyio.move_on_after(timeout):
                    data = await wire.receive_some()
            except OSError as error:
                raise httpx.ReadError(str(error), request=self._request) from error
            except anyio.ClosedResourceError as error:
                raise httpx.ReadError("the connection was closed", request=self._request) from error
            if data is None:
                raise httpx.ReadTimeout(f"no byte came for {timeout} s", request=self._request)
            self._http.receive_data(data)
        return event

    def _next_event(self) -> object:
        try:
            return self._http.next_event()
        except h11.RemoteProtocolError as error:
            raise httpx.RemoteProtocolError(self._why(error), request=self._request) from error

    def _why(self, error: h11.RemoteProtocolError) -> str:
        """What went wrong, where h11 can only speak of its own states."""
        unread, ended = self._http.trailing_data
        if self._head is None and (unread or not ended) and not unread.startswith(b"HTTP/1."):
            what = f"it sent {bytes(unread[:40])!r}" if unread else f"{error}"[:80]
            return f"what answers there does not speak HTTP ({what})"
        if not ended:
            return str(error)
        where = "in the middle of the answer" if self._head or unread else "without an answer"
        return f"the connection was closed {where}"


class Upload(httpx.AsyncByteStream):
    """A request body that comes in pieces; the request's headers say how long it is, or "chunked".

    httpx wraps such a body into async generators of its own, which stay suspended when an early answer
    makes us stop in the middle. This one is no generator.
    """

    def __init__(self, source: AsyncIterable[bytes] | Iterable[bytes]) -> None:
        self._pieces = aiter(source) if isinstance(source, AsyncIterable) else iter(source)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if isinstance(self._pieces, AsyncIterator):
            return await anext(self._pieces)
        for piece in self._pieces:
            return piece
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Close a source that is a generator; other sources are the caller's."""
        source: object = self._pieces
        if inspect.isasyncgen(source):
            await source.aclose()
        elif inspect.isgenerator(source):
            source.close()


class EngineTransport(httpx.AsyncBaseTransport):
    """An httpx transport to one endpoint; holds no connection, so it never needs closing."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._tls_context: ssl.SSLContext | None = None

    def exchange(self, request: httpx.Request) -> Exchange:
        """An exchange that has not begun; the caller closes it."""
        return Exchange(self, request)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """As httpx wants it: the answer's head, its body as a stream whose ``aclose`` closes all."""
        exchange = self.exchange(request)
        with ExitStack() as undo:
            undo.callback(exchange.close)
            head = await exchange.head()
            undo.pop_all()  # from here on the answer owns the connection
        stream = _Body(exchange)
        return httpx.Response(
            head.status_code, headers=head.headers.raw_items(), stream=stream, request=request
        )

    def tls_context(self) -> ssl.SSLContext | None:
        """The endpoint's TLS settings, read from its files once; None for a plain connection."""
        if self.endpoint.tls is not None and self._tls_context is None:
            self._tls_context = read_tls(self.endpoint.tls)
        return self._tls_context


class _Body(httpx.AsyncByteStream):
    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if piece := await self._exchange.receive():
            return piece
        raise StopAsyncIteration

    async def aclose(self) -> None:
        self._exchange.close()

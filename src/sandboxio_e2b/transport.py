"""HTTP/1.1 exchanges, one at a time on a connection.

httpx supplies the request and the response; its connection pool stays out, because a cancelled request
leaks sockets and slots in httpcore 1.0.9. Here a connection belongs to one exchange, or is idle in a
:class:`Client` and belongs to nobody.

An :class:`Exchange` with a plain body can be resumed: cancelled, it remembers what is sent and received,
and calling it again goes on from there.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self
from urllib.parse import quote_from_bytes

import h11
import httpx

from .connection import Broken, Silent, Wire, connect

READ_TIMEOUT: Final = 60.0
"""Seconds without a byte before a plain request fails; e2b 2.63.0 uses the same."""
MAX_ANSWER: Final = 16 << 20
"""Bytes of an answer that is read as a whole."""


@dataclass(frozen=True)
class Head:
    """Status and headers of an answer."""

    status: int
    headers: httpx.Headers

    @property
    def content_type(self) -> str:
        value: str = self.headers.get("content-type", "")
        return value.partition(";")[0].strip().lower()


class Client:
    """Makes exchanges with one base URL, and keeps connections that may be used again.

    ``reuse=False`` keeps none: such a client holds nothing and serves any number of event loops.
    """

    def __init__(self, base_url: str, headers: Mapping[str, str], *, reuse: bool) -> None:
        self.base_url = httpx.URL(base_url)
        self._headers = dict(headers)
        self._reuse = reuse
        self._idle: list[Wire] = []
        self._closed = False

    @property
    def name(self) -> str:
        """The base URL for messages: without a user, password or path."""
        return f"{self.base_url.scheme}://{self.base_url.netloc.decode()}"

    def exchange(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        json: object = None,
        content: bytes | AsyncIterable[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        read_timeout: float | None = READ_TIMEOUT,
    ) -> Exchange:
        """One request that is not begun yet; the caller closes it.

        ``params`` may hold raw bytes as lone surrogates.
        """
        raw = path.encode() + (b"?" + _query(params) if params else b"")
        base = self.base_url.raw_path.rstrip(b"/")
        url = self.base_url.copy_with(raw_path=base + raw)
        request = httpx.Request(
            method,
            url,
            json=json,
            content=content,
            headers={**self._headers, "Accept-Encoding": "identity", **(headers or {})},
        )
        return Exchange(self, request, read_timeout)

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        json: object = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        read_timeout: float | None = READ_TIMEOUT,
    ) -> httpx.Response:
        """One request and its whole answer, whatever its status. Raises :class:`Broken`."""
        with self.exchange(
            method,
            path,
            params=params,
            json=json,
            content=content,
            headers=headers,
            read_timeout=read_timeout,
        ) as exchange:
            return await exchange.response()

    async def take(self) -> Wire:
        """An idle connection, or a new one."""
        while self._idle:
            wire = self._idle.pop()
            if wire.reusable:
                return wire
            wire.close()
        return await connect(self.base_url)

    def put_back(self, wire: Wire) -> None:
        """Keep a connection whose answer is complete, or close it."""
        try:
            wire.http.start_next_cycle()
        except h11.LocalProtocolError:
            wire.close()
            return
        wire.used = time.monotonic()
        if self._reuse and not self._closed and not wire.http.trailing_data[0]:
            self._idle.append(wire)
        else:
            wire.close()

    def close(self) -> None:
        """Close the idle connections, and keep none from now on."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()


def _query(params: Mapping[str, str]) -> bytes:
    pairs = ((key, value.encode("utf-8", "surrogateescape")) for key, value in params.items())
    return "&".join(f"{key}={quote_from_bytes(value, safe='')}" for key, value in pairs).encode()


class Exchange:
    """One request and its answer; see the module for what a cancellation leaves."""

    def __init__(self, client: Client, request: httpx.Request, read_timeout: float | None) -> None:
        self._client = client
        self.request = request
        self._read_timeout = read_timeout
        self._wire: Wire | None = None
        self._begun = False
        self._head: Head | None = None
        self._body = bytearray()
        self._complete = False

    @property
    def sent(self) -> bool:
        """True once the far side may have seen some of the request."""
        return self._begun

    async def head(self) -> Head:
        """Status and headers. Raises :class:`Broken`."""
        if self._head is None:
            if self._wire is None:
                self._wire = await self._client.take()
            await self._send(self._wire)
            event = await self._event(self._wire)
            while isinstance(event, h11.InformationalResponse):
                event = await self._event(self._wire)
            if not isinstance(event, h11.Response):
                raise Broken("the connection ended before an answer")
            headers = httpx.Headers(event.headers.raw_items())
            coding: str = headers.get("content-encoding", "identity").strip().lower()
            if coding not in ("", "identity"):  # unpacked, some bytes could become any number of them
                raise Broken(f"the answer is packed ({coding[:40]!r}), which was not asked for")
            self._head = Head(event.status_code, headers)
        return self._head

    async def receive(self) -> bytes | None:
        """The next piece of the body, None at its end."""
        await self.head()
        assert self._wire is not None or self._complete
        if self._wire is None:
            return None
        event = await self._event(self._wire)
        if isinstance(event, h11.Data):
            return bytes(event.data)
        if not isinstance(event, h11.EndOfMessage):
            raise Broken("the connection ended inside the answer")
        self._complete = True
        wire, self._wire = self._wire, None
        self._client.put_back(wire)
        return None

    async def response(self) -> httpx.Response:
        """The whole answer."""
        head = await self.head()
        while (piece := await self.receive()) is not None:
            self._body += piece
            if len(self._body) > MAX_ANSWER:
                raise Broken(f"the answer is longer than {MAX_ANSWER >> 20} MiB")
        response = httpx.Response(head.status, headers=head.headers, content=bytes(self._body))
        response.encoding = "utf-8"  # whatever the header says: some names are no encodings of text
        return response

    def close(self) -> None:
        """Close the connection unless the answer was complete. Idempotent."""
        if self._wire is not None:
            self._wire.close()

    async def _send(self, wire: Wire) -> None:
        if not self._begun:
            self._begun = True
            request = h11.Request(
                method=self.request.method,
                target=self.request.url.raw_path,
                headers=self.request.headers.raw,
            )
            wire.unsent += wire.http.send(request) or b""
            if isinstance(self.request.stream, httpx.SyncByteStream):
                for piece in self.request.stream:
                    wire.unsent += wire.http.send(h11.Data(data=piece)) or b""
                wire.unsent += wire.http.send(h11.EndOfMessage()) or b""
            else:
                await self._send_stream(wire)
        try:
            await wire.flush()
        except Silent:
            raise
        except Broken:
            pass  # the answer may say why it does not want the rest

    async def _send_stream(self, wire: Wire) -> None:
        assert isinstance(self.request.stream, httpx.AsyncByteStream)
        try:
            async for piece in self.request.stream:
                wire.unsent += wire.http.send(h11.Data(data=piece)) or b""
                await wire.flush()
        except Silent:
            raise
        except Broken:
            return
        wire.unsent += wire.http.send(h11.EndOfMessage()) or b""

    async def _event(self, wire: Wire) -> object:
        try:
            while (event := wire.http.next_event()) is h11.NEED_DATA:
                await wire.fill(self._read_timeout)
        except h11.RemoteProtocolError as error:
            raise Broken("the connection ended early, or did not speak HTTP") from error
        return event

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

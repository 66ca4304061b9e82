"""The control plane: create, look at, list and kill sandboxes over REST."""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, cast
from urllib.parse import quote, urlencode

import httpx

from sandboxio.errors import ConnectError, SandboxError

from . import endpoints
from .connection import Broken
from .endpoints import Settings
from .failures import Refusal, control_error, looks_like_html, unreachable
from .transport import Client, Exchange
from .wire import Garbled, mapping, parse, parse_object, plain, text_of

PAGE: Final = 100
"""Sandboxes on one page of a list: the most that E2B gives."""
EVERYTHING: Final = "0.0.0.0/0"


@dataclass(frozen=True)
class Placed:
    """A sandbox as the control plane describes it. The token opens the sandbox and is in no repr."""

    id: str
    envd_version: str
    token: str | None = field(repr=False)
    traffic_token: str | None = field(repr=False)
    domain: str | None
    metadata: Mapping[str, str]
    state: str
    started: datetime | None


def placed(value: object) -> Placed:
    """Reads any of the shapes in which the API gives a sandbox. Raises :class:`Garbled`."""
    body = mapping(value)
    name = _part(body, "sandboxID", is_name)
    if name is None:
        raise Garbled("a sandbox without its sandboxID")
    metadata = mapping(body.get("metadata"))
    return Placed(
        id=name,
        envd_version=text_of(body.get("envdVersion") or ""),
        token=_part(body, "envdAccessToken", _fits_a_header),
        traffic_token=_part(body, "trafficAccessToken", _fits_a_header),
        domain=_part(body, "domain", endpoints.is_domain),
        metadata={plain(key): plain(text_of(value)) for key, value in metadata.items()},
        state=plain(text_of(body.get("state") or "running")),
        started=_moment(body.get("startedAt")),
    )


def _part(body: Mapping[str, Any], name: str, fits: Callable[[str], bool]) -> str | None:
    """Text that becomes part of a URL or of a header; its value, maybe a secret, is in no message."""
    value: object = body.get(name) or None
    if value is not None and not (isinstance(value, str) and fits(value)):
        raise Garbled(f"a sandbox whose {name} cannot be used")
    return value


def is_name(text: str) -> bool:
    """True for what may be a sandbox's id."""
    return re.fullmatch(r"[A-Za-z0-9_-]+", text) is not None


def _fits_a_header(text: str) -> bool:
    return text.isascii() and text.isprintable() and text == text.strip()


def _moment(text: object) -> datetime | None:
    try:
        return datetime.fromisoformat(text_of(text))
    except ValueError:
        return None


@dataclass(frozen=True)
class Order:
    """What a new sandbox shall be."""

    template: str
    seconds: float
    metadata: Mapping[str, str]
    internet: bool
    allowed: tuple[str, ...]

    def body(self) -> dict[str, object]:
        """The JSON of the create request. The lifetime is whole seconds, rounded up."""
        body: dict[str, object] = {
            "templateID": self.template,
            "timeout": math.ceil(self.seconds),
            "autoPause": False,
            "metadata": dict(self.metadata),
            # False with an allowlist too: it closes a control plane that does not know ``network``, and one
            # that does keeps what is allowed (e2b-dev/infra, August 2026, ``buildNetworkConfig`` in
            # packages/api/internal/orchestrator/create_instance.go).
            "allow_internet_access": self.internet,
        }
        # Ports stay closed to the world: only who has the sandbox's traffic token gets through.
        network: dict[str, object] = {"allowPublicTraffic": False}
        if self.allowed:
            network |= {"allowOut": list(self.allowed), "denyOut": [EVERYTHING]}
        return {**body, "network": network}


class Creation:
    """One create call. Cancelled, it can be finished later: the answer is still on its way."""

    def __init__(self, client: Client, order: Order) -> None:
        self._client = client
        self.order = order
        self.refused = False
        """True once the answer is one that only a service gives that has made no sandbox."""
        self._key = uuid.uuid4().hex
        self._exchange = self._request(endpoints.CREATE, order.body())
        self._what = f"Creating a sandbox of template {order.template!r}"

    @property
    def may_exist(self) -> bool:
        """False while the service cannot have seen the request."""
        return self._exchange.sent

    async def finish(self) -> Placed:
        """The new sandbox. Raises ``CreationError``, ``AuthError`` or ``RateLimitError``."""
        url = self._client.name
        try:
            response = await self._exchange.response()
            if _is_unknown_route(response) and self._exchange.request.url.path.endswith(endpoints.CREATE):
                self._exchange.close()
                self._exchange = self._request(endpoints.CREATE_V1, {**self.order.body(), "secure": True})
                response = await self._exchange.response()
            if response.status_code // 100 != 2 or looks_like_html(response):
                # A gateway that gives up says nothing about what is behind it, and looks like the service.
                self.refused = response.status_code < 500 and response.status_code != 408
                raise control_error(response, self._what, creating=True, url=url) from Refusal(response)
            return placed(parse_object(response.content))
        except (Broken, Garbled) as error:
            raise unreachable(error, self._what, creating=True, url=url) from error

    def close(self) -> None:
        self._exchange.close()

    def _request(self, path: str, body: Mapping[str, object]) -> Exchange:
        return self._client.exchange("POST", path, json=body, headers={"Idempotency-Key": self._key})


def _is_unknown_route(response: httpx.Response) -> bool:
    """True for a control plane without this path; a missing template is a 404 with a message of its own."""
    if response.status_code == 405:
        return True
    return response.status_code == 404 and "template" not in response.text.lower()


class ControlPlane:
    """The management calls. Holds no connection, so it needs no closing and serves any event loop."""

    def __init__(self, settings: Settings) -> None:
        headers = {"X-API-KEY": settings.api_key, "User-Agent": "sandboxio"}
        self._client = Client(settings.api_url, headers, reuse=False)

    def creation(self, order: Order) -> Creation:
        """A create call that is not begun yet; the caller closes it."""
        return Creation(self._client, order)

    async def find(self, sandbox_id: str) -> Placed | None:
        """The sandbox of that id, running or paused; None if there is none. Changes nothing about it."""
        what = f"Looking for sandbox {sandbox_id}"
        response = await self._request("GET", _one(sandbox_id), what)
        if response.status_code == 404:
            return None
        return self._placed(response, what)

    async def connect(self, sandbox_id: str) -> Placed:
        """A running sandbox with its tokens. Its lifetime is only ever extended, and not by a second."""
        what = f"Connecting to sandbox {sandbox_id}"
        name = quote(sandbox_id, safe="")
        response = await self._request("POST", endpoints.CONNECT.format(id=name), what, {"timeout": 1})
        if response.status_code in (404, 405):
            response = await self._request("POST", endpoints.CONNECT_V1.format(id=name), what, {"timeout": 1})
        return self._placed(response, what)

    async def kill(self, sandbox_id: str) -> bool:
        """End a sandbox; False if it was gone already."""
        what = f"Killing sandbox {sandbox_id}"
        response = await self._request("DELETE", _one(sandbox_id), what)
        if response.status_code == 404:
            return False
        if response.status_code // 100 != 2:
            error = control_error(response, what, creating=False, url=self._url)
            raise _refused_kill(error) from Refusal(response)
        return True

    async def find_all(self, metadata: Mapping[str, str]) -> list[Placed]:
        """Every running or paused sandbox that carries all of ``metadata``, page by page."""
        what = "Listing sandboxes"
        # As the SDK does it: each part is quoted, and quoted again as part of a query of its own.
        wanted = urlencode({quote(key): quote(value) for key, value in metadata.items()})
        params = {"state": "running,paused", "limit": str(PAGE), "metadata": wanted}
        found: list[Placed] = []
        pages = set[str]()
        while True:
            response = await self._request("GET", endpoints.LIST, what, params=params)
            try:
                found += [placed(item) for item in self._items(response, what)]
            except Garbled as error:
                raise unreachable(error, what, creating=False, url=self._url) from error
            token = response.headers.get("x-next-token")
            if not token:
                # Again here: what is found may be killed, and not every control plane knows the filter.
                return [each for each in found if metadata.items() <= each.metadata.items()]
            if token in pages:
                raise unreachable(Garbled("a list without an end"), what, creating=False, url=self._url)
            pages.add(token)
            params["nextToken"] = token

    def _items(self, response: httpx.Response, what: str) -> list[Mapping[str, Any]]:
        if response.status_code // 100 != 2 or looks_like_html(response):
            raise control_error(response, what, creating=False, url=self._url) from Refusal(response)
        try:
            items = parse(response.content)
        except Garbled as error:
            raise unreachable(error, what, creating=False, url=self._url) from error
        if not isinstance(items, list):
            raise unreachable(Garbled("no JSON list"), what, creating=False, url=self._url)
        return cast("list[Mapping[str, Any]]", items)

    async def _request(
        self,
        method: str,
        path: str,
        what: str,
        body: object = None,
        *,
        params: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        try:
            return await self._client.request(method, path, params=params, json=body)
        except Broken as error:
            raise unreachable(error, what, creating=False, url=self._url) from error

    def _placed(self, response: httpx.Response, what: str) -> Placed:
        if response.status_code // 100 != 2 or looks_like_html(response):
            raise control_error(response, what, creating=False, url=self._url) from Refusal(response)
        try:
            return placed(parse_object(response.content))
        except Garbled as error:
            raise unreachable(error, what, creating=False, url=self._url) from error

    @property
    def _url(self) -> str:
        return self._client.name


def _one(sandbox_id: str) -> str:
    return endpoints.ONE.format(id=quote(sandbox_id, safe=""))


def _refused_kill(error: SandboxError) -> SandboxError:
    if isinstance(error, ConnectError):
        error.hint = "Try again: `sandboxio reap --backend e2b --kill`."
    return error

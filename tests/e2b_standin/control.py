"""The control plane: the REST routes under ``https://api.<domain>``, in both their versions."""

from __future__ import annotations

import base64
import ipaddress
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs, unquote

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from .fleet import CLIENT_ID, EVERYTHING, TEMPLATES, Fleet, Sandbox, now
from .running import API_KEY

MAX_LIFETIME = 86_400
DEFAULT_LIFETIME, DEFAULT_LIFETIME_V1 = 300, 15
PAGE = 100


def error(status: int, message: str) -> JSONResponse:
    return JSONResponse({"code": status, "message": message}, status)


class Refused(Exception):
    """Carries the answer to a bad request."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.response = error(status, message)


def stamp(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


class ControlPlane:
    """Handlers of the REST routes."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def app(self) -> Starlette:
        one = "/sandboxes/{id}"
        routes = [
            Route("/v2/sandboxes", self.create, methods=["POST"]),
            Route("/sandboxes", self.create_v1, methods=["POST"]),
            Route("/v2/sandboxes", self.list, methods=["GET"]),
            Route("/v2" + one + "/connect", self.connect, methods=["POST"]),
            Route(one + "/connect", self.connect, methods=["POST"]),
            Route(one, self.info, methods=["GET"]),
            Route(one, self.kill, methods=["DELETE"]),
            Route(one + "/timeout", self.set_timeout, methods=["POST"]),
            Route(one + "/pause", self.pause, methods=["POST"]),
            Route(one + "/metrics", self.metrics, methods=["GET"]),
            Route(one + "/network", self.network, methods=["PUT"]),
        ]
        app = Starlette(routes=routes, exception_handlers={Refused: _refused})
        app.add_middleware(_Key)
        return app

    async def create(self, request: Request) -> Response:
        return await self._create(request, DEFAULT_LIFETIME)

    async def create_v1(self, request: Request) -> Response:
        return await self._create(request, DEFAULT_LIFETIME_V1)

    async def _create(self, request: Request, default: int) -> Response:
        order = await request.json()
        key = request.headers.get("idempotency-key")
        if key is not None and not re.fullmatch(r"[a-z0-9-]{1,255}", key):
            raise Refused(400, "invalid idempotency key")
        known = self._fleet.live.get(self._fleet.keys.get(key or "", ""))
        if known is None:
            if order.get("templateID") not in TEMPLATES:
                raise Refused(404, f"template '{order.get('templateID')}' not found")
            lifetime = _lifetime(order.get("timeout", default))
            _check_network(order.get("network") or {})
            known = self._fleet.create(order, lifetime=lifetime)
            if key is not None:
                self._fleet.keys[key] = known.id
        return JSONResponse(_created(known), 201)

    async def connect(self, request: Request) -> Response:
        sandbox = self._find(request)
        seconds = _lifetime((await request.json()).get("timeout", DEFAULT_LIFETIME))
        if sandbox.state == "paused":
            self._fleet.resume(sandbox, seconds)
            return JSONResponse(_created(sandbox), 201)
        left = (sandbox.ends - now()).total_seconds()
        if seconds > left:
            self._fleet.set_lifetime(sandbox, seconds)
        return JSONResponse(_created(sandbox), 200)

    async def info(self, request: Request) -> Response:
        return JSONResponse(_details(self._find(request)))

    async def list(self, request: Request) -> Response:
        found = _select(self._fleet.live.values(), request.scope["query_string"].decode())
        limit = min(int(request.query_params.get("limit", PAGE)), PAGE)
        start = int(base64.b64decode(request.query_params.get("nextToken", "") or b"MA=="))
        headers = {"x-total-running": str(sum(item.state == "running" for item in found))}
        if len(found) > start + limit:
            headers["x-next-token"] = base64.b64encode(str(start + limit).encode()).decode()
        return JSONResponse([_listed(item) for item in found[start : start + limit]], headers=headers)

    async def kill(self, request: Request) -> Response:
        self._fleet.kill(self._find(request))
        return Response(status_code=204)

    async def set_timeout(self, request: Request) -> Response:
        sandbox = self._find(request)
        self._fleet.set_lifetime(sandbox, _lifetime((await request.json())["timeout"]))
        return Response(status_code=204)

    async def pause(self, request: Request) -> Response:
        sandbox = self._find(request)
        if sandbox.state == "paused":
            raise Refused(409, f"Error pausing sandbox - sandbox '{sandbox.id}' is already paused")
        self._fleet.pause(sandbox)
        return Response(status_code=204)

    async def metrics(self, request: Request) -> Response:
        self._find(request)
        moment = now()
        sample = {
            "cpuCount": 2,
            "cpuUsedPct": 1.5,
            "memUsed": 1 << 26,
            "memTotal": 1 << 29,
            "memCache": 1 << 24,
        }
        sample |= {"diskUsed": 1 << 30, "diskTotal": 1 << 33, "timestampUnix": int(moment.timestamp())}
        return JSONResponse([{**sample, "timestamp": stamp(moment)}])

    async def network(self, request: Request) -> Response:
        sandbox = self._find(request)
        rules = await request.json()
        _check_network(rules)
        sandbox.network = rules
        return Response(status_code=204)

    def _find(self, request: Request) -> Sandbox:
        name = request.path_params["id"]
        sandbox = self._fleet.live.get(name.partition("-")[0])
        if sandbox is None:
            raise Refused(404, f"sandbox '{name}' not found")
        return sandbox


async def _refused(request: Request, refused: Exception) -> Response:
    assert isinstance(refused, Refused)
    return refused.response


class _Key:
    """ASGI middleware: every route wants the team's key."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            key = dict(scope["headers"]).get(b"x-api-key", b"").decode()
            if key != API_KEY:
                text = "Invalid API key format" if key and not key.startswith("e2b_") else "Invalid API key"
                text = text if key else "authorization header is missing"
                await error(401, text)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _lifetime(value: Any) -> float:
    if not isinstance(value, int) or value < 0:
        raise Refused(400, "request body has an error: timeout must be a non-negative integer")
    if value > MAX_LIFETIME:
        raise Refused(400, f"Timeout cannot be greater than {MAX_LIFETIME // 3600} hours")
    return value


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return True


def _check_network(rules: Mapping[str, Any]) -> None:
    """The rules of infra's ``validateEgressRules``."""
    deny: Sequence[str] = rules.get("denyOut") or ()
    allow: Sequence[str] = rules.get("allowOut") or ()
    for item in deny:
        if not _is_address(item):
            raise Refused(400, f"invalid denied CIDR {item}")
    if any(not _is_address(item) for item in allow) and EVERYTHING not in deny:
        raise Refused(
            400,
            "When specifying allowed domains in allow out, you must include 'ALL_TRAFFIC' in deny out "
            "to block all other traffic.",
        )


def _select(sandboxes: Any, query: str) -> list[Sandbox]:
    given = parse_qs(query, keep_blank_values=True)
    states = [state for item in given.get("state", ["running,paused"]) for state in item.split(",")]
    wanted = parse_qs(given.get("metadata", [""])[0], keep_blank_values=True)
    pairs = {unquote(key): unquote(values[0]) for key, values in wanted.items()}
    found = [
        item
        for item in sandboxes
        if item.state in states and all(item.metadata.get(key) == value for key, value in pairs.items())
    ]
    newest_first = given.get("order", ["desc"])[0] != "asc"
    return sorted(found, key=lambda item: item.order, reverse=newest_first)


def _created(sandbox: Sandbox) -> dict[str, Any]:
    return {
        "templateID": sandbox.template,
        "sandboxID": sandbox.id,
        "clientID": CLIENT_ID,
        "alias": sandbox.alias,
        "envdVersion": sandbox.envd_version,
        "envdAccessToken": sandbox.token,
        "trafficAccessToken": sandbox.traffic_token,
        "domain": None,
    }


def _listed(sandbox: Sandbox) -> dict[str, Any]:
    return {
        "templateID": sandbox.template,
        "alias": sandbox.alias,
        "sandboxID": sandbox.id,
        "clientID": CLIENT_ID,
        "startedAt": stamp(sandbox.started.astimezone(UTC)),
        "endAt": stamp(sandbox.ends),
        "cpuCount": 2,
        "memoryMB": 512,
        "diskSizeMB": 8192,
        "metadata": sandbox.metadata,
        "state": sandbox.state,
        "envdVersion": sandbox.envd_version,
    }


def _details(sandbox: Sandbox) -> dict[str, Any]:
    return {
        **_listed(sandbox),
        "envdAccessToken": sandbox.token,
        "domain": None,
        "allowInternetAccess": sandbox.internet,
        "network": {key: value for key, value in sandbox.network.items() if key in ("allowOut", "denyOut")},
        "lifecycle": {"autoResume": False, "onTimeout": "pause" if sandbox.auto_pause else "kill"},
    }

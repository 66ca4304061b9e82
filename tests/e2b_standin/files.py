"""envd's plain HTTP surface: health, environment, metrics, and file transfer with signed URLs."""

# Paths are text here, as in envd: not normalised, and bytes that are not UTF-8 kept.

from __future__ import annotations

import base64
import errno
import gzip
import hashlib
import os
import pwd
import time
import zlib
from collections.abc import AsyncIterator
from email.message import Message
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from .guest import Guest, GuestError
from .rpc import XATTR_PREFIX, read_metadata

UNAUTHORIZED = "unauthorized access, please provide a valid access token or method signing if supported"


def answer_error(status: int, message: str) -> JSONResponse:
    """envd's error body: an integer code, unlike Connect's."""
    return JSONResponse({"code": status, "message": message}, status)


class _Refused(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.response = answer_error(status, message)


class FileRoutes:
    """``/files``, ``/health``, ``/envs`` and ``/metrics`` of one guest."""

    def __init__(self, guest: Guest) -> None:
        self._guest = guest

    def routes(self) -> list[Route]:
        return [
            Route("/health", self.health, methods=["GET"]),
            Route("/envs", self.envs, methods=["GET"]),
            Route("/metrics", self.metrics, methods=["GET"]),
            Route("/files", self.download, methods=["GET"]),
            Route("/files", self.upload, methods=["POST"]),
        ]

    async def health(self, request: Request) -> Response:
        return Response(status_code=204)

    async def envs(self, request: Request) -> Response:
        return JSONResponse(dict(self._guest.variables))

    async def metrics(self, request: Request) -> Response:
        return JSONResponse({"ts": int(time.time()), "cpu_count": 2, "cpu_used_pct": 1.0, "mem_total": 512})

    async def download(self, request: Request) -> Response:
        try:
            path, _ = self._authorised(request, "read")
        except _Refused as refused:
            return refused.response
        if not os.path.exists(path):
            return answer_error(404, f"path '{path}' does not exist")
        if os.path.isdir(path):
            return answer_error(400, f"path '{path}' is a directory")
        if "gzip" in request.headers.get("accept-encoding", "") and "range" not in request.headers:
            body = gzip.compress(Path(path).read_bytes())
            return Response(body, headers={"Content-Encoding": "gzip", "Vary": "Accept-Encoding"})
        name = os.path.basename(path).encode("ascii", "replace").decode()
        return FileResponse(path, filename=name, content_disposition_type="inline")

    async def upload(self, request: Request) -> Response:
        kind = request.headers.get("content-type", "").partition(";")[0]
        try:
            path, account = self._authorised(request, "write")
            metadata = self._metadata(request)
            if kind == "application/octet-stream" and self._guest.envd >= (0, 5, 7):
                if "path" not in request.query_params:
                    raise _Refused(400, "path query parameter is required for raw body upload")
                await self._store(path, account, _decoded(request), metadata)
                stored = [path]
            elif kind.startswith("multipart/"):
                stored = await self._store_parts(request, account, metadata)
            else:
                raise _Refused(500, "error parsing multipart form: request Content-Type isn't multipart")
        except _Refused as refused:
            return refused.response
        return JSONResponse([self._stored(item) for item in stored])

    def _stored(self, path: str) -> dict[str, object]:
        metadata = read_metadata(path)
        entry: dict[str, object] = {"path": path, "name": os.path.basename(path), "type": "file"}
        return {**entry, "metadata": metadata} if metadata else entry

    def _authorised(self, request: Request, operation: str) -> tuple[str, pwd.struct_passwd]:
        query = request.query_params
        token = request.headers.get("x-access-token")
        if token is None:
            self._check_signature(request, operation)
        elif token != self._guest.token:
            raise _Refused(401, "access token present in header but does not match")
        try:
            account = self._guest.account(query.get("username"))
        except GuestError as error:
            raise _Refused(401 if query.get("username") else 400, str(error)) from error
        try:
            return self._guest.resolve(_raw_path(request), account), account
        except GuestError as error:
            raise _Refused(400, str(error)) from error

    def _check_signature(self, request: Request, operation: str) -> None:
        query = request.query_params
        if "signature" not in query:
            raise _Refused(401, "missing signature query parameter")
        parts = [query.get("path", ""), operation, query.get("username", ""), self._guest.token]
        expires = query.get("signature_expiration")
        if expires is not None:
            parts.append(expires)
        digest = hashlib.sha256(":".join(parts).encode()).digest()
        if query["signature"] != "v1_" + base64.b64encode(digest).decode().rstrip("="):
            raise _Refused(401, "invalid signature")
        if expires is not None and int(expires) < time.time():
            raise _Refused(401, "signature is already expired")

    def _metadata(self, request: Request) -> dict[str, str]:
        if self._guest.envd < (0, 6, 2):
            return {}
        prefix = "x-metadata-"
        return {
            name[len(prefix) :]: value for name, value in request.headers.items() if name.startswith(prefix)
        }

    async def _store(
        self, path: str, account: pwd.struct_passwd, body: AsyncIterator[bytes], metadata: dict[str, str]
    ) -> None:
        if os.path.isdir(path):
            raise _Refused(400, f"path is a directory: {path}")
        try:
            self._guest.ensure_folders(os.path.dirname(path), account)
            with open(  # noqa: ASYNC230 - a guest's disk is memory
                path, "wb", opener=lambda name, flags: os.open(name, flags, 0o666)
            ) as file:
                os.fchown(file.fileno(), account.pw_uid, account.pw_gid)
                async for chunk in body:
                    file.write(chunk)
                _write_metadata(file.fileno(), metadata)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise _Refused(507, "not enough disk space available") from error
            raise _Refused(500, f"error writing file: {error}") from error

    async def _store_parts(
        self, request: Request, account: pwd.struct_passwd, metadata: dict[str, str]
    ) -> list[str]:
        body = b"".join([chunk async for chunk in _decoded(request)])
        stored: list[str] = []
        for filename, content in _parts(request.headers["content-type"], body):
            given = _raw_path(request) if "path" in request.query_params else filename
            path = self._guest.resolve(given, account)
            await self._store(path, account, _once(content), metadata)
            stored.append(path)
        return stored


def _raw_path(request: Request) -> str:
    """The ``path`` of the query with bytes that are not UTF-8 kept."""
    from urllib.parse import parse_qs

    query = parse_qs(request.scope["query_string"].decode("ascii"), True, errors="surrogateescape")
    return query.get("path", [""])[0]


async def _once(content: bytes) -> AsyncIterator[bytes]:
    yield content


async def _decoded(request: Request) -> AsyncIterator[bytes]:
    inflate = None
    if request.headers.get("content-encoding") == "gzip":
        inflate = zlib.decompressobj(zlib.MAX_WBITS | 16)
    async for chunk in request.stream():
        yield inflate.decompress(chunk) if inflate is not None else chunk


def _write_metadata(fd: int, metadata: dict[str, str]) -> None:
    """Every upload replaces the whole set."""
    for name in os.listxattr(fd):
        if name.startswith(XATTR_PREFIX):
            os.removexattr(fd, name)
    for key, value in metadata.items():
        os.setxattr(fd, XATTR_PREFIX + key, value.encode())


def _parts(content_type: str, body: bytes) -> list[tuple[str, bytes]]:
    """The parts named ``file`` of a multipart form, as (file name, content)."""
    header = Message()
    header["content-type"] = content_type
    boundary = b"--" + str(header.get_param("boundary")).encode()
    found: list[tuple[str, bytes]] = []
    for part in (b"\r\n" + body).split(b"\r\n" + boundary)[1:]:
        head, _, content = part.partition(b"\r\n\r\n")
        described = Message()
        for line in head.decode().splitlines():
            name, _, value = line.partition(":")
            if value:
                described[name] = value.strip()
        if described.get_param("name", header="content-disposition") == "file":
            found.append((str(described.get_param("filename", header="content-disposition")), content))
    return found

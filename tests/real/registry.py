"""Image registries on loopback: Debian's docker-registry, and images that tests put into it by hand.

Images are uploaded over the registry's own HTTP API and not pushed by the engine, which would then have
all their layers and download nothing. Source: OCI distribution specification 1.1, "Push", and Docker's
image manifest version 2, schema 2.
"""

from __future__ import annotations

import base64
import fcntl
import gzip
import hashlib
import http.client
import io
import json
import os
import re
import shutil
import ssl
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scripts.engine import Problem, apt_get, is_debian, run_quietly

START_SECONDS = 20.0
MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
USER, PASSWORD = "agent", "correct horse"
_HTPASSWD = "agent:$2b$04$gsLay777FjTjwf1cctYxJeh4tytb1oDsX43NEELJUS7VnlWk9c2Qu\n"  # bcrypt of PASSWORD

Files = Mapping[str, bytes | str]
"""Path to content: bytes are programs, text is where a link leads."""


# Programs


def unpacked(package: str, path: str) -> Path:
    """A file of a Debian package that is unpacked and not installed, so that no service is started.

    It is kept for the next run. Raises ``Problem`` where that is not possible.
    """
    kept = Path("~/.cache/sandboxio-tests", package).expanduser()
    kept.parent.mkdir(parents=True, exist_ok=True)
    with (kept.parent / f"{package}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (kept / path).exists():
            with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
                archive = _downloaded(package, Path(folder))
                run_quietly(["dpkg-deb", "--extract", str(archive), f"{folder}/tree"])
                shutil.rmtree(kept, ignore_errors=True)
                Path(folder, "tree").rename(kept)
    return kept / path


def _downloaded(package: str, folder: Path) -> Path:
    if not is_debian():
        raise Problem(f"this test needs Debian's package {package}, and this machine is not Debian's kind.")
    try:
        apt_get("download", package, cwd=folder)
    except Problem:
        if os.geteuid() != 0:
            raise
        apt_get("update")  # there were no lists, or old ones
        apt_get("download", package, cwd=folder)
    return next(folder.glob("*.deb"))


# Images


def tarball(files: Files) -> bytes:
    """A layer, or a whole root file system."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, content in files.items():
            entry = tarfile.TarInfo(path)
            entry.mode = 0o755
            if isinstance(content, str):
                entry.type, entry.linkname = tarfile.SYMTYPE, content
                archive.addfile(entry)
            else:
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


# The registry


class Registry:
    """One process; it listens when this object exists."""

    def __init__(self, folder: Path, *, password: bool, tls: Path | None) -> None:
        self._folder = folder
        self._tls = tls is not None
        self._password = password
        settings: dict[str, Any] = {
            "version": "0.1",
            "log": {"level": "info"},
            "storage": {"filesystem": {"rootdirectory": str(folder / "data")}},
            "http": {"addr": "127.0.0.1:0", "secret": "for one run"},
        }
        if password:
            (folder / "htpasswd").write_text(_HTPASSWD)
            settings["auth"] = {"htpasswd": {"realm": "tests", "path": str(folder / "htpasswd")}}
        if tls is not None:
            files = {"certificate": str(tls / "server.pem"), "key": str(tls / "server-key.pem")}
            settings["http"]["tls"] = files
        (folder / "settings.yml").write_text(json.dumps(settings))
        self.log = folder / "log"
        program = shutil.which("docker-registry") or unpacked("docker-registry", "usr/bin/docker-registry")
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [program, "serve", folder / "settings.yml"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            self.port = self._port()
        except BaseException:  # nobody else would end it; always re-raised
            self.kill()
            raise

    @property
    def host(self) -> str:
        """As it stands in front of an image's name."""
        return f"127.0.0.1:{self.port}"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def put(
        self,
        repository: str,
        tag: str,
        *layers: Files,
        config: Mapping[str, object] | None = None,
        architecture: str = "",
    ) -> str:
        """Upload an image; the digest of its manifest. Without a tag, only the digest names it."""
        raw = [tarball(layer) for layer in layers]
        about = {
            "architecture": architecture or machine(),
            "os": "linux",
            "config": {"Env": ["PATH=/bin"], **(config or {})},
            "rootfs": {"type": "layers", "diff_ids": [digest_of(each) for each in raw]},
        }
        kind = "application/vnd.docker.container.image.v1+json"
        body = json.dumps(about).encode()
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": self._blob(repository, kind, body),
            "layers": [
                self._blob(
                    repository,
                    "application/vnd.docker.image.rootfs.diff.tar.gzip",
                    gzip.compress(each, compresslevel=1, mtime=0),
                )
                for each in raw
            ],
        }
        return self._manifest(repository, tag, MANIFEST, manifest)

    def put_index(self, repository: str, tag: str, images: Sequence[tuple[str, str]]) -> str:
        """Upload a manifest list of (digest, architecture)."""
        manifests = [
            {
                "mediaType": MANIFEST,
                "digest": digest,
                "size": self._size(repository, digest),
                "platform": {"architecture": architecture, "os": "linux"},
            }
            for digest, architecture in images
        ]
        content = {"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests}
        return self._manifest(repository, tag, INDEX, content)

    def _manifest(self, repository: str, tag: str, kind: str, content: object) -> str:
        body = json.dumps(content).encode()
        name = tag or digest_of(body)
        self._ask("PUT", f"/v2/{repository}/manifests/{name}", body, kind)
        return digest_of(body)

    def _size(self, repository: str, digest: str) -> int:
        return len(self._ask("GET", f"/v2/{repository}/manifests/{digest}", accept=MANIFEST)[1])

    def _blob(self, repository: str, kind: str, content: bytes) -> dict[str, object]:
        digest = digest_of(content)
        where, _ = self._ask("POST", f"/v2/{repository}/blobs/uploads/")
        path = "/" + where.split("/", 3)[3]
        self._ask("PUT", f"{path}&digest={digest}", content, "application/octet-stream")
        return {"mediaType": kind, "size": len(content), "digest": digest}

    def _ask(
        self, method: str, path: str, body: bytes = b"", kind: str = "", accept: str = ""
    ) -> tuple[str, bytes]:
        headers = {"Content-Type": kind or "application/json", "Accept": accept or "*/*"}
        if self._password:
            pair = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
            headers["Authorization"] = f"Basic {pair}"
        if self._tls:
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                "127.0.0.1", self.port, timeout=20, context=context
            )
        else:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            content = answer.read()
            assert answer.status < 300, f"{method} {path}: {answer.status} {content[:300]!r}"
            return answer.headers.get("Location", ""), content
        finally:
            connection.close()

    def _port(self) -> int:
        deadline = time.monotonic() + START_SECONDS
        while True:
            text = self.log.read_text(errors="replace")
            if found := re.search(r"listening on \S*:(\d+)", text):
                return int(found[1])
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise Problem(f"the registry did not start: {text[-300:]}")
            time.sleep(0.02)


@contextmanager
def registry(*, password: bool = False, tls: Path | None = None) -> Generator[Registry]:
    """A registry with a folder of its own; both are gone afterwards. ``tls`` holds ``server*.pem``."""
    with tempfile.TemporaryDirectory(prefix="sandboxio-registry-") as folder:
        made = Registry(Path(folder), password=password, tls=tls)
        try:
            yield made
        finally:
            made.kill()


def machine() -> str:
    """This machine's architecture as images name it."""
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)

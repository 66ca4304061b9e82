"""A Docker engine in memory: real protocol, own state, and a gate at every point where it could be slow.

    async with FakeEngine.on(tmp_path) as fake:
        engine = Engine(fake.url, environ={})
        with fake.gate("create", "before") as gate:     # the request is read, nothing is done yet
            ...; await gate.reached.wait(); cancel; gate.release()
        fake.fail("start", 500, "OCI runtime create failed: ...")
        assert not fake.containers                      # nothing left

A program is what a container or an exec runs: ``async def program(io: IO) -> int`` reads ``io.read()``
(b"" at the end of stdin), writes ``io.write(data, stream=1)`` and returns the exit code. ``fake.main`` is
for PID 1, ``fake.exec`` for execs. As in the real engine, what a cancelled client asked for still happens.

Gates: an operation ("create", "start", "attach", "delete", "exec_create", ...; see ``_ROUTES``) and a phase:
"before" (nothing done), "after" (done, answer not sent), "half" (half of the answer is sent).
"""

from __future__ import annotations

import base64
import io
import itertools
import json
import math
import re
import tarfile
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import anyio

from .scripted import ScriptedEngine
from .server import Connection, Request, answer, running

Program = Callable[["IO"], Awaitable[int]]

UPGRADED: Final = b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"


class Refused(Exception):
    """An answer of the engine that is an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status} {message}")
        self.status, self.message = status, message


class IO:
    """The two ends of a program: its configuration, stdin, stdout and stderr."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self._input, self._stdin = anyio.create_memory_object_stream[bytes](math.inf)
        self.readers: set[Connection] = set()

    async def read(self) -> bytes:
        try:
            return await self._stdin.receive()
        except anyio.EndOfStream:
            return b""

    async def write(self, data: bytes, stream: int = 1) -> None:
        frame = bytes([stream, 0, 0, 0]) + len(data).to_bytes(4, "big") + data
        for reader in list(self.readers):
            try:
                await reader.send(frame, in_one_read=False)
            except (BrokenPipeError, ConnectionResetError):
                self.readers.discard(reader)

    def feed(self, data: bytes) -> None:
        """Bytes for stdin; b"" ends it."""
        if data:
            self._input.send_nowait(data)
        else:
            self._input.close()

    def close(self) -> None:
        self._input.close()
        self._stdin.close()
        for reader in self.readers:
            reader.end_sending()
        self.readers.clear()


@dataclass(eq=False)
class Process:
    """A container or an exec: created, then running, then ended."""

    id: str
    config: dict[str, Any]
    io: IO
    name: str = ""
    created: float = field(default_factory=time.time)
    state: str = "created"
    exit_code: int = 0
    oom_killed: bool = False
    container: str = ""
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    ended: anyio.Event = field(default_factory=anyio.Event)
    files: dict[bytes, bytes] = field(default_factory=dict)
    owners: dict[bytes, tuple[int, int, int]] = field(default_factory=dict)
    links: dict[bytes, bytes] = field(default_factory=dict)
    """Symbolic links, each with the path that the engine resolves it to."""

    @property
    def labels(self) -> dict[str, str]:
        return self.config.get("Labels") or {}

    @property
    def host_config(self) -> dict[str, Any]:
        return self.config.get("HostConfig") or {}


class Gate:
    def __init__(self) -> None:
        self.reached = anyio.Event()
        self._released = anyio.Event()

    def release(self) -> None:
        self._released.set()

    async def passed(self) -> None:
        self.reached.set()
        await self._released.wait()


async def until_stdin_ends(io: IO) -> int:
    """The default PID 1: lives as long as its stdin, as the real one does."""
    while await io.read():
        pass
    return 0


async def says_its_command(io: IO) -> int:
    """The default exec: ``echo`` of its own arguments; ``false`` and ``sleep`` as they are."""
    command = io.config["Cmd"]
    if command[0] == "sleep":
        await anyio.sleep(float(command[1]))
    elif command[0] == "false":
        return 1
    else:
        await io.write(" ".join(command[1:]).encode() + b"\n")
    return 0


_ROUTES: Final = [
    ("GET", r"/_ping", "ping"),
    ("GET", r"/version", "version"),
    ("GET", r"/info", "info"),
    ("GET", r"/events", "events"),
    ("GET", r"/images/(?P<image>.+)/json", "image"),
    ("GET", r"/containers/json", "list"),
    ("POST", r"/containers/create", "create"),
    ("GET", r"/containers/(?P<key>[^/]+)/json", "inspect"),
    ("POST", r"/containers/(?P<key>[^/]+)/attach", "attach"),
    ("POST", r"/containers/(?P<key>[^/]+)/(?P<what>start|kill|stop|pause|unpause|wait)", "{what}"),
    ("DELETE", r"/containers/(?P<key>[^/]+)", "delete"),
    ("POST", r"/containers/(?P<key>[^/]+)/exec", "exec_create"),
    ("POST", r"/exec/(?P<key>[^/]+)/start", "exec_start"),
    ("GET", r"/exec/(?P<key>[^/]+)/json", "exec_inspect"),
    ("HEAD", r"/containers/(?P<key>[^/]+)/archive", "archive_stat"),
    ("GET", r"/containers/(?P<key>[^/]+)/archive", "archive_get"),
    ("PUT", r"/containers/(?P<key>[^/]+)/archive", "archive_put"),
]


class FakeEngine(ScriptedEngine):
    """See the top of the file. A script for a path (``script()``) wins over the state."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._scripts.clear()  # /_ping is an operation here, with a gate
        self.pieces = 1  # in how many reads the client gets an answer
        self.api, self.least_api = "1.45", "1.24"
        self.main: Program = until_stdin_ends
        self.exec: Program = says_its_command
        self.images: dict[str, dict[str, Any]] = {"python:3.12-slim": {}}
        self.warnings: list[str] | None = None
        """What the answer to "create" warns of."""
        self.containers: dict[str, Process] = {}
        self.execs: dict[str, Process] = {}
        self.events: list[dict[str, Any]] = []
        self._numbers = itertools.count(1)
        self._gates: dict[tuple[str, str], Gate] = {}
        self._failures: dict[str, list[Refused]] = defaultdict(list)

    @classmethod
    @asynccontextmanager
    async def on(cls, folder: Path) -> AsyncGenerator[FakeEngine, None]:
        fake = cls(folder)
        try:
            async with anyio.create_task_group() as group, running(fake):
                fake._group = group
                yield fake
                group.cancel_scope.cancel()
        finally:
            for process in [*fake.containers.values(), *fake.execs.values()]:
                process.io.close()
            fake.path.unlink(missing_ok=True)
            fake.folder.rmdir()

    # What a test says

    @contextmanager
    def gate(self, operation: str, phase: str) -> Generator[Gate, None, None]:
        """Hold every request of an operation at a phase until ``release()`` or the end of the block."""
        gate = self._gates[operation, phase] = Gate()
        try:
            yield gate
        finally:
            del self._gates[operation, phase]
            gate.release()

    def fail(self, operation: str, status: int, message: str, *, times: int = 1) -> None:
        """Refuse the next requests of an operation without doing anything."""
        self._failures[operation] += [Refused(status, message)] * times

    def asked(self, operation: str) -> list[Request]:
        """The requests of an operation so far."""
        return [request for request in self.requests if self._route(request)[0] == operation]

    async def die(self, container: str, exit_code: int, *, oom: bool = False) -> None:
        """End a container's PID 1 from outside, as a crash or the OOM killer would."""
        process = self._container(container)
        process.oom_killed = oom
        if oom:
            self._event("oom", process)
        self._end(process, exit_code)
        await process.ended.wait()

    # Serving

    async def _play(self, connection: Connection, request: Request) -> None:
        if (request.method, re.sub(r"^/v\d+\.\d+(?=/)", "", request.path)) in self._scripts:
            await super()._play(connection, request)
            return
        operation, parts = self._route(request)
        await self._pass(operation, "before")
        try:
            if self._failures[operation]:
                raise self._failures[operation].pop(0)
            if operation in ("attach", "exec_start", "wait"):
                await getattr(self, f"_{operation}")(connection, request, **parts)
                return
            raw = await getattr(self, f"_{operation}")(request, **parts)
        except Refused as refused:
            raw = answer(refused.status, {"message": refused.message})
        await self._pass(operation, "after")
        if (operation, "half") in self._gates:
            await connection.send(raw[: len(raw) // 2])
            await self._pass(operation, "half")
            raw = raw[len(raw) // 2 :]
        size = math.ceil(len(raw) / self.pieces)
        for start in range(0, len(raw), size):
            await connection.send(raw[start : start + size], in_one_read=self.pieces > 1)

    async def _pass(self, operation: str, phase: str) -> None:
        if (operation, phase) in self._gates:
            await self._gates[operation, phase].passed()

    def _route(self, request: Request) -> tuple[str, dict[str, str]]:
        path = re.sub(r"^/v\d+\.\d+(?=/)", "", request.path)
        for method, pattern, operation in _ROUTES:
            match = re.fullmatch(pattern, path)
            if match and method == request.method:
                parts = match.groupdict()
                return operation.format(**parts), {k: v for k, v in parts.items() if k != "what"}
        raise AssertionError(f"the fake engine does not know {request}")

    # The engine itself

    async def _ping(self, request: Request) -> bytes:
        return answer(200, b"OK", {"Api-Version": self.api, "Ostype": "linux", "Server": "Fake/1"})

    async def _version(self, request: Request) -> bytes:
        return answer(200, {"Version": "fake", "ApiVersion": self.api, "MinAPIVersion": self.least_api})

    async def _info(self, request: Request) -> bytes:
        return answer(200, {"NCPU": 2, "MemTotal": 4 << 30, "Runtimes": {"runc": {}}, "OSType": "linux"})

    async def _events(self, request: Request) -> bytes:
        wanted = json.loads(request.query.get("filters", "{}"))
        since, until = (
            float(request.query.get(name, end)) for name, end in (("since", 0), ("until", math.inf))
        )
        lines = [
            json.dumps(event).encode() + b"\n"
            for event in self.events
            if since <= event["time"] <= until
            and event["Actor"]["ID"] in wanted.get("container", [event["Actor"]["ID"]])
        ]
        return answer(200, b"".join(lines))

    def _event(self, action: str, process: Process, **more: str) -> None:
        attributes = {"name": process.name, **process.labels, **more}
        self.events.append(
            {
                "Type": "container",
                "Action": action,
                "status": action,
                "id": process.id,
                "Actor": {"ID": process.id, "Attributes": attributes},
                "time": int(time.time()),
                "timeNano": time.time_ns(),
            }
        )

    async def _image(self, request: Request, image: str) -> bytes:
        if image not in self.images:
            raise Refused(404, f"No such image: {image}")
        config = {"Id": f"sha256:{image}", "Os": "linux", "Architecture": "amd64", "Config": {}}
        return answer(200, {**config, **self.images[image]})

    # Containers

    def _container(self, key: str) -> Process:
        for process in self.containers.values():
            if key == process.name or process.id.startswith(key):
                return process
        raise Refused(404, f"No such container: {key}")

    async def _create(self, request: Request) -> bytes:
        body, name = request.json, request.query.get("name", "")
        if body["Image"] not in self.images:
            raise Refused(404, f"No such image: {body['Image']}")
        number = next(self._numbers)
        name = name or f"fake_{number}"
        for other in self.containers.values():
            if other.name == name:
                raise Refused(
                    409,
                    f'Conflict. The container name "/{name}" is already in use by container "{other.id}".',
                )
        process = Process(f"{number:064x}", body, IO(body), name)
        self.containers[process.id] = process
        self._event("create", process)
        return answer(201, {"Id": process.id, "Warnings": self.warnings})

    async def _start(self, request: Request, key: str) -> bytes:
        process = self._container(key)
        if process.state == "running":
            return answer(304)
        process.state = "running"
        self._event("start", process)
        self._group.start_soon(self._run, process, self.main)
        return answer(204)

    async def _run(self, process: Process, program: Program) -> None:
        with process.scope:
            process.exit_code = await program(process.io)
        self._ended(process)

    def _ended(self, process: Process) -> None:
        process.state = "exited"
        process.io.close()
        if process.id in self.containers:
            self._event("die", process, exitCode=str(process.exit_code))
            for exec_process in list(self.execs.values()):
                if exec_process.container == process.id and exec_process.state == "running":
                    self._end(exec_process, 137)
            if process.host_config.get("AutoRemove"):
                self._remove(process)
        process.ended.set()

    def _end(self, process: Process, exit_code: int) -> None:
        process.exit_code = exit_code
        process.scope.cancel()

    def _remove(self, process: Process) -> None:
        del self.containers[process.id]
        self._event("destroy", process)

    async def _kill(self, request: Request, key: str) -> bytes:
        process = self._container(key)
        if process.state != "running":
            raise Refused(409, f"Cannot kill container: {key}: Container {process.id} is not running")
        self._end(process, 137)
        return answer(204)

    _stop = _kill

    async def _pause(self, request: Request, key: str) -> bytes:
        process = self._container(key)
        if process.state != "running":
            raise Refused(409, f"Container {process.id} is not running")
        process.state = "paused"
        return answer(204)

    async def _unpause(self, request: Request, key: str) -> bytes:
        self._container(key).state = "running"
        return answer(204)

    async def _delete(self, request: Request, key: str) -> bytes:
        process = self._container(key)
        if process.state in ("running", "paused"):
            if request.query.get("force", "0") not in ("1", "true"):
                raise Refused(409, f"You cannot remove a running container {process.id}.")
            process.config = {**process.config, "HostConfig": {}}  # it is removed here, once
            self._end(process, 137)
            await process.ended.wait()
        if process.id not in self.containers:
            raise Refused(404, f"No such container: {key}")
        process.io.close()
        self._remove(process)
        process.ended.set()  # also for one that never ran: who is attached to it sees the end
        return answer(204)

    def _shown(self, process: Process) -> dict[str, Any]:
        return {
            "Id": process.id,
            "Name": f"/{process.name}",
            "Created": time.strftime("%Y-%m-%dT%H:%M:%S.0Z", time.gmtime(process.created)),
            "State": {
                "Status": process.state,
                "Running": process.state in ("running", "paused"),
                "Paused": process.state == "paused",
                "ExitCode": process.exit_code,
                "OOMKilled": process.oom_killed,
            },
            "Config": {**process.config, "Labels": process.labels},
            "HostConfig": process.host_config,
        }

    async def _inspect(self, request: Request, key: str) -> bytes:
        return answer(200, self._shown(self._container(key)))

    async def _list(self, request: Request) -> bytes:
        everything = request.query.get("all", "0") in ("1", "true")
        wanted = [
            label.partition("=") for label in json.loads(request.query.get("filters", "{}")).get("label", [])
        ]
        found = [
            {
                "Id": process.id,
                "Names": [f"/{process.name}"],
                "Image": process.config["Image"],
                "State": process.state,
                "Created": int(process.created),
                "Labels": process.labels,
            }
            for process in self.containers.values()
            if (everything or process.state == "running")
            and all(
                key in process.labels and (not eq or process.labels[key] == value)
                for key, eq, value in wanted
            )
        ]
        return answer(200, found)

    async def _attach(self, connection: Connection, request: Request, key: str) -> None:
        process = self._container(key)
        await self._pass("attach", "after")
        await connection.send(UPGRADED, in_one_read=False)
        await self._pass("attach", "half")
        process.io.readers.add(connection)
        await self._talk(connection, process, once=bool(process.config.get("StdinOnce")))

    async def _talk(self, connection: Connection, process: Process, *, once: bool) -> None:
        """Carry stdin; when the client ends it, its output still comes until the program ends."""
        async with anyio.create_task_group() as group:

            async def carry() -> None:
                while data := await connection.receive():
                    if process.state != "exited":
                        process.io.feed(data)
                if once:
                    process.io.feed(b"")

            group.start_soon(carry)
            await process.ended.wait()
            with anyio.move_on_after(1):  # the client may read the rest; then it closes
                await connection.closed_by_client.wait()
            group.cancel_scope.cancel()

    async def _wait(self, connection: Connection, request: Request, key: str) -> None:
        process = self._container(key)
        await connection.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
        await process.ended.wait()
        await connection.send(json.dumps({"StatusCode": process.exit_code}).encode())

    # Execs

    async def _exec_create(self, request: Request, key: str) -> bytes:
        container = self._container(key)
        self._must_run(container)
        process = Process(
            f"e{next(self._numbers):063x}", request.json, IO(request.json), container=container.id
        )
        self.execs[process.id] = process
        return answer(201, {"Id": process.id})

    def _must_run(self, container: Process) -> None:
        if container.state == "paused":
            raise Refused(409, f"Container {container.id} is paused, unpause the container before exec")
        if container.state != "running":
            raise Refused(409, f"Container {container.id} is not running")

    async def _exec_start(self, connection: Connection, request: Request, key: str) -> None:
        process = self.execs.get(key)
        if process is None:
            raise Refused(404, f"No such exec instance: {key}")
        self._must_run(self._container(process.container))
        process.state = "running"
        await self._pass("exec_start", "after")
        process.io.readers.add(connection)
        with suppress(BrokenPipeError, ConnectionResetError):  # a client that has gone changes nothing
            await connection.send(UPGRADED, in_one_read=False)
        await self._pass("exec_start", "half")
        self._group.start_soon(self._run, process, self.exec)
        await self._talk(connection, process, once=bool(process.config.get("AttachStdin")))

    async def _exec_inspect(self, request: Request, key: str) -> bytes:
        process = self.execs.get(key)
        if process is None:
            raise Refused(404, f"No such exec instance: {key}")
        code = process.exit_code if process.state == "exited" else None
        shown = {
            "ID": key,
            "Running": process.state == "running",
            "ExitCode": code,
            "ContainerID": process.container,
        }
        return answer(200, {**shown, "Pid": 0 if process.state == "created" else 4242})

    # Files: one flat table of regular files for each container

    def _file(self, request: Request, key: str) -> tuple[bytes, bytes]:
        path, files = request.raw_query["path"], self._container(key).files
        if path not in files:
            raise Refused(404, f"Could not find the file {path.decode(errors='replace')} in container {key}")
        return path, files[path]

    async def _archive_stat(self, request: Request, key: str) -> bytes:
        try:
            path, data = self._file(request, key)
        except Refused as refused:
            return answer(refused.status)
        stat = {"name": path.rpartition(b"/")[2].decode(errors="replace"), "size": len(data), "mode": 0o644}
        return answer(
            200, b"", {"X-Docker-Container-Path-Stat": base64.b64encode(json.dumps(stat).encode()).decode()}
        )

    async def _archive_get(self, request: Request, key: str) -> bytes:
        if (link := request.raw_query["path"]) in (links := self._container(key).links):
            return _archived_link(link.decode(), links[link].decode())
        path, data = self._file(request, key)
        raw = io.BytesIO()
        with tarfile.open(fileobj=raw, mode="w", errors="surrogateescape") as tar:
            entry = tarfile.TarInfo(path.rpartition(b"/")[2].decode(errors="surrogateescape"))
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
        return answer(200, raw.getvalue(), {"Content-Type": "application/x-tar"})

    async def _archive_put(self, request: Request, key: str) -> bytes:
        folder = request.raw_query["path"].rstrip(b"/") + b"/"
        with tarfile.open(fileobj=io.BytesIO(request.body), errors="surrogateescape") as tar:
            for entry in tar:
                name = entry.name.encode(errors="surrogateescape")
                self._container(key).owners[folder + name] = (entry.uid, entry.gid, entry.mode)
                if entry.isdir():
                    continue
                content = tar.extractfile(entry)
                assert content is not None
                self._container(key).files[folder + name] = content.read()
        return answer(200)


def _archived_link(path: str, target: str) -> bytes:
    """The answer for a symbolic link, as Docker 26.1 gives it: the link itself, and where it leads."""
    name, raw = path.rpartition("/")[2], io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        entry = tarfile.TarInfo(name)
        entry.type, entry.linkname = tarfile.SYMTYPE, target
        tar.addfile(entry)
    stat = {"name": name, "size": len(target), "mode": 0o777 | 1 << 27, "linkTarget": target}
    told = base64.b64encode(json.dumps(stat).encode()).decode()
    return answer(
        200,
        raw.getvalue(),
        {"Content-Type": "application/x-tar", "X-Docker-Container-Path-Stat": told},
    )

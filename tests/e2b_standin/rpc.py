"""envd's Connect services: processes and the file system.

The framing and the messages are E2B's own (``e2b.envd``); only the methods are written here.
"""

# Paths are text here, as in envd: not normalised, and bytes that are not UTF-8 kept.

from __future__ import annotations

import asyncio
import base64
import contextlib
import grp
import os
import pwd
import signal
import stat
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from connectrpc.code import Code
from connectrpc.errors import ConnectError
from e2b.envd.filesystem import filesystem_pb as fs
from e2b.envd.process import process_pb as ps
from protobuf import Oneof
from protobuf.wkt import Timestamp

from .guest import Guest, GuestError
from .processes import Process, Watcher
from .watching import Watch

XATTR_PREFIX = "user.e2b."
DEFAULT_PING_SECONDS = 90


class ProcessService:
    """``process.Process``."""

    def __init__(self, guest: Guest) -> None:
        self._guest = guest

    async def list(self, request: ps.ListRequest, context: Any) -> ps.ListResponse:
        infos: list[ps.ProcessInfo] = []
        for process in self._guest.table.running.values():
            cmd, *args = process.command
            config = ps.ProcessConfig(cmd=cmd, args=args, envs=dict(process.envs), cwd=process.cwd)
            infos.append(ps.ProcessInfo(config=config, pid=process.pid, tag=process.tag))
        return ps.ListResponse(processes=infos)

    async def start(self, request: ps.StartRequest, context: Any) -> AsyncIterator[ps.StartResponse]:
        config = request.process or ps.ProcessConfig()
        account = self._account(context)
        cwd = self._resolve(config.cwd if config.has_field("cwd") else "", account)
        if not os.path.isdir(cwd):
            raise ConnectError(Code.INVALID_ARGUMENT, f"cwd '{cwd}' does not exist")
        size = None
        if request.pty is not None:
            shape = request.pty.size or ps.PTY.Size()
            size = (shape.rows, shape.cols)
        try:
            process = self._guest.table.start(
                (config.cmd, *config.args),
                account=account,
                environment=self._guest.environment(account),
                envs=dict(config.envs),
                cwd=cwd,
                shown_cwd=config.cwd if config.has_field("cwd") else None,
                tag=request.tag if request.has_field("tag") else None,
                stdin=request.stdin if request.has_field("stdin") else True,
                size=size,
            )
        except OSError as error:
            raise ConnectError(Code.INVALID_ARGUMENT, f"error starting process: {error}") from error
        watcher = process.watch()
        deadline = _deadline(context)
        if deadline is not None:
            asyncio.get_running_loop().call_later(deadline, _expire, process)
        async for event in _events(process, watcher, _ping(context), deadline):
            yield ps.StartResponse(event=event)

    async def connect(self, request: ps.ConnectRequest, context: Any) -> AsyncIterator[ps.ConnectResponse]:
        process = self._find(request.process, ended_too=True)
        watcher = process.watch()
        async for event in _events(process, watcher, _ping(context), _deadline(context)):
            yield ps.ConnectResponse(event=event)

    async def update(self, request: ps.UpdateRequest, context: Any) -> ps.UpdateResponse:
        process = self._find(request.process)
        if request.pty is not None and request.pty.size is not None:
            if process.terminal is None:
                raise ConnectError(Code.INTERNAL, "error resizing tty: tty not assigned to process")
            process.resize(request.pty.size.rows, request.pty.size.cols)
        return ps.UpdateResponse()

    async def send_input(self, request: ps.SendInputRequest, context: Any) -> ps.SendInputResponse:
        _feed(self._find(request.process), request.input)
        return ps.SendInputResponse()

    async def stream_input(
        self, request: AsyncIterator[ps.StreamInputRequest], context: Any
    ) -> ps.StreamInputResponse:
        process: Process | None = None
        async for message in request:
            assert message.event is not None
            if message.event.field == "start":
                process = self._find(message.event.value.process)
            elif message.event.field == "data":
                assert process is not None
                _feed(process, message.event.value.input)
        return ps.StreamInputResponse()

    async def send_signal(self, request: ps.SendSignalRequest, context: Any) -> ps.SendSignalResponse:
        process = self._find(request.process)
        if request.signal not in (ps.Signal.SIGKILL, ps.Signal.SIGTERM):
            raise ConnectError(Code.UNIMPLEMENTED, f"invalid signal: {request.signal}")
        process.signal(signal.SIGKILL if request.signal == ps.Signal.SIGKILL else signal.SIGTERM)
        return ps.SendSignalResponse()

    async def close_stdin(self, request: ps.CloseStdinRequest, context: Any) -> ps.CloseStdinResponse:
        if self._guest.envd < (0, 5, 2):
            raise ConnectError(Code.UNIMPLEMENTED, "Not implemented")
        process = self._find(request.process)
        if process.terminal is not None:
            raise ConnectError(Code.UNKNOWN, "error closing stdin: cannot close stdin for PTY process")
        process.close_stdin()
        return ps.CloseStdinResponse()

    def _find(self, selector: ps.ProcessSelector | None, *, ended_too: bool = False) -> Process:
        chosen = selector.selector if selector is not None else None
        if chosen is None:
            raise ConnectError(Code.UNIMPLEMENTED, "invalid input type")
        query = {chosen.field: chosen.value}
        process = self._guest.table.find(**query)
        if process is None and ended_too:
            process = self._guest.table.find(**query, retained=True)
        if process is None:
            raise ConnectError(Code.NOT_FOUND, f"process with {chosen.field} {chosen.value} not found")
        return process

    def _account(self, context: Any) -> pwd.struct_passwd:
        return _account(self._guest, context)

    def _resolve(self, path: str, account: pwd.struct_passwd) -> str:
        return _resolve(self._guest, path, account)


def _feed(process: Process, given: ps.ProcessInput | None) -> None:
    if given is None or given.input is None:
        raise ConnectError(Code.UNIMPLEMENTED, "invalid input type")
    if (given.input.field == "pty") != (process.terminal is not None):
        raise ConnectError(Code.INTERNAL, f"this process takes no input of type {given.input.field}")
    try:
        process.write(given.input.value)
    except (OSError, ValueError) as error:
        raise ConnectError(Code.INTERNAL, f"error writing to {given.input.field}: {error}") from error


def _expire(process: Process) -> None:
    if not process.ended.is_set():
        process.signal(signal.SIGKILL)


def _deadline(context: Any) -> float | None:
    text = context.request_headers.get("connect-timeout-ms")
    return int(text) / 1000 if text and int(text) > 0 else None


def _ping(context: Any) -> float:
    return float(context.request_headers.get("keepalive-ping-interval") or DEFAULT_PING_SECONDS)


async def _events(
    process: Process, watcher: Watcher, ping: float, deadline: float | None
) -> AsyncIterator[ps.ProcessEvent]:
    """Start, data and keepalive events, then the end; ``deadline_exceeded`` instead when it passes."""
    loop = asyncio.get_running_loop()
    over = None if deadline is None else loop.time() + deadline
    yield ps.ProcessEvent(event=Oneof("start", ps.ProcessEvent.StartEvent(pid=process.pid)))
    pending: asyncio.Future[Any] | None = None
    try:
        while True:
            pending = pending or asyncio.ensure_future(watcher.get())
            left = ping if over is None else min(ping, over - loop.time())
            await asyncio.wait((pending,), timeout=max(0.0, left))
            if over is not None and loop.time() >= over:
                raise ConnectError(Code.DEADLINE_EXCEEDED, "context deadline exceeded")
            if not pending.done():
                yield ps.ProcessEvent(event=Oneof("keepalive", ps.ProcessEvent.KeepAlive()))
                continue
            item, pending = pending.result(), None
            if item is None:
                break
            output = Oneof(item[0], item[1])
            yield ps.ProcessEvent(event=Oneof("data", ps.ProcessEvent.DataEvent(output=output)))
    finally:
        if pending is not None:
            pending.cancel()
        watcher.close()
        process.watchers.discard(watcher)
    await process.ended.wait()
    end = process.end
    assert end is not None
    yield ps.ProcessEvent(
        event=Oneof(
            "end",
            ps.ProcessEvent.EndEvent(
                exit_code=end.exit_code, exited=end.exited, status=end.status, error=end.error
            ),
        )
    )


def _account(guest: Guest, context: Any) -> pwd.struct_passwd:
    header = context.request_headers.get("authorization") or ""
    name: str | None = None
    if header.lower().startswith("basic "):
        name = base64.b64decode(header[6:]).decode().partition(":")[0]
    try:
        return guest.account(name)
    except GuestError as error:
        raise ConnectError(Code.UNAUTHENTICATED, str(error)) from error


def _resolve(guest: Guest, path: str, account: pwd.struct_passwd) -> str:
    try:
        return guest.resolve(path, account)
    except GuestError as error:
        raise ConnectError(Code.INVALID_ARGUMENT, str(error)) from error


def entry(path: str) -> fs.EntryInfo:
    """One directory entry; ``not_found`` if it is missing. A link's type and mode are its target's."""
    try:
        own = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ConnectError(Code.NOT_FOUND, f"file not found: {error}") from error
    except OSError as error:
        raise ConnectError(Code.INTERNAL, f"error getting file info: {error}") from error
    link = stat.S_ISLNK(own.st_mode)
    info = own
    if link:
        with contextlib.suppress(OSError):
            info = os.stat(path)
    kinds = {stat.S_IFDIR: fs.FileType.DIRECTORY, stat.S_IFREG: fs.FileType.FILE}
    return fs.EntryInfo(
        name=os.path.basename(path),
        type=kinds.get(stat.S_IFMT(info.st_mode), fs.FileType.UNSPECIFIED),
        path=path,
        size=own.st_size,
        mode=stat.S_IMODE(info.st_mode),
        permissions=stat.filemode(own.st_mode).replace("l", "L"),
        owner=_name(lambda: pwd.getpwuid(own.st_uid).pw_name, own.st_uid),
        group=_name(lambda: grp.getgrgid(own.st_gid).gr_name, own.st_gid),
        modified_time=Timestamp.from_datetime(datetime.fromtimestamp(own.st_mtime, UTC)),
        symlink_target=os.path.realpath(path) if link else None,
        metadata=read_metadata(path),
        is_symlink=link,
    )


def _name(look: Callable[[], str], number: int) -> str:
    try:
        return look()
    except KeyError:
        return str(number)


def read_metadata(path: str) -> dict[str, str]:
    """The attributes that an upload gave to a file."""
    try:
        names = os.listxattr(path, follow_symlinks=False)
    except OSError:
        return {}
    return {
        name[len(XATTR_PREFIX) :]: os.getxattr(path, name, follow_symlinks=False).decode()
        for name in names
        if name.startswith(XATTR_PREFIX)
    }


class FilesystemService:
    """``filesystem.Filesystem``."""

    def __init__(self, guest: Guest) -> None:
        self._guest = guest
        self._watches: dict[str, Watch] = {}

    async def stat(self, request: fs.StatRequest, context: Any) -> fs.StatResponse:
        return fs.StatResponse(entry=entry(self._path(request.path, context)))

    async def make_dir(self, request: fs.MakeDirRequest, context: Any) -> fs.MakeDirResponse:
        account = _account(self._guest, context)
        path = _resolve(self._guest, request.path, account)
        if os.path.isdir(path):
            raise ConnectError(Code.ALREADY_EXISTS, f"directory already exists: {path}")
        if os.path.lexists(path):
            raise ConnectError(
                Code.INVALID_ARGUMENT, f"path already exists but it is not a directory: {path}"
            )
        try:
            self._guest.ensure_folders(path, account)
        except OSError as error:
            raise ConnectError(Code.INTERNAL, str(error)) from error
        return fs.MakeDirResponse(entry=entry(path))

    async def move(self, request: fs.MoveRequest, context: Any) -> fs.MoveResponse:
        account = _account(self._guest, context)
        source = _resolve(self._guest, request.source, account)
        target = _resolve(self._guest, request.destination, account)
        self._guest.ensure_folders(os.path.dirname(target), account)
        try:
            os.rename(source, target)
        except FileNotFoundError as error:
            raise ConnectError(Code.NOT_FOUND, f"source file not found: {error}") from error
        except OSError as error:
            raise ConnectError(Code.INTERNAL, f"error renaming: {error}") from error
        return fs.MoveResponse(entry=entry(target))

    async def remove(self, request: fs.RemoveRequest, context: Any) -> fs.RemoveResponse:
        path = self._path(request.path, context)
        try:
            _remove_all(path)
        except OSError as error:
            raise ConnectError(Code.INTERNAL, f"error removing file or directory: {error}") from error
        return fs.RemoveResponse()

    async def list_dir(self, request: fs.ListDirRequest, context: Any) -> fs.ListDirResponse:
        asked = self._path(request.path, context)
        if not os.path.lexists(asked) or not os.path.exists(asked):
            raise ConnectError(Code.NOT_FOUND, f"path not found: {asked}")
        if not os.path.isdir(asked):
            raise ConnectError(Code.INVALID_ARGUMENT, f"path is not a directory: {asked}")
        entries: list[fs.EntryInfo] = []
        real = os.path.realpath(asked)
        for folder, folders, files in os.walk(real):
            depth = 1 if folder == real else 2 + os.path.relpath(folder, real).count(os.sep)
            if depth >= (request.depth or 1):
                stop, folders[:], names = True, [], [*folders, *files]
            else:
                stop, names = False, [*folders, *files]
            for name in sorted(names):
                info = entry(os.path.join(folder, name))
                relative = os.path.relpath(os.path.join(folder, name), real)
                info.path = os.path.join(asked, relative)
                if any("\udc80" <= letter <= "\udcff" for letter in info.path):
                    # Go refuses to marshal such a string.
                    raise ConnectError(Code.INTERNAL, "string field contains invalid UTF-8")
                entries.append(info)
            if stop and folder == real:
                break
        return fs.ListDirResponse(entries=entries)

    async def watch_dir(
        self, request: fs.WatchDirRequest, context: Any
    ) -> AsyncIterator[fs.WatchDirResponse]:
        with Watch(self._folder(request.path, context), request.recursive) as watch:
            yield fs.WatchDirResponse(event=Oneof("start", fs.WatchDirResponse.StartEvent()))
            ping = _ping(context)
            while True:
                for event in await watch.wait(ping) or (None,):
                    if event is None:
                        kept = fs.WatchDirResponse.KeepAlive()
                        yield fs.WatchDirResponse(event=Oneof("keepalive", kept))
                    else:
                        yield fs.WatchDirResponse(event=Oneof("filesystem", event))

    async def create_watcher(
        self, request: fs.CreateWatcherRequest, context: Any
    ) -> fs.CreateWatcherResponse:
        watch = Watch(self._folder(request.path, context), request.recursive)
        name = f"watcher-{len(self._watches)}-{os.urandom(4).hex()}"
        self._watches[name] = watch
        return fs.CreateWatcherResponse(watcher_id=name)

    async def get_watcher_events(
        self, request: fs.GetWatcherEventsRequest, context: Any
    ) -> fs.GetWatcherEventsResponse:
        return fs.GetWatcherEventsResponse(events=self._watch(request.watcher_id).take())

    async def remove_watcher(
        self, request: fs.RemoveWatcherRequest, context: Any
    ) -> fs.RemoveWatcherResponse:
        self._watch(request.watcher_id).close()
        del self._watches[request.watcher_id]
        return fs.RemoveWatcherResponse()

    def _watch(self, name: str) -> Watch:
        if name not in self._watches:
            raise ConnectError(Code.NOT_FOUND, f"watcher with id {name} not found")
        return self._watches[name]

    def _folder(self, path: str, context: Any) -> str:
        folder = self._path(path, context)
        if not os.path.exists(folder):
            raise ConnectError(Code.NOT_FOUND, f"path {folder} not found")
        if not os.path.isdir(folder):
            raise ConnectError(Code.INVALID_ARGUMENT, f"path {folder} not a directory")
        return folder

    def _path(self, path: str, context: Any) -> str:
        return _resolve(self._guest, path, _account(self._guest, context))


def _remove_all(path: str) -> None:
    """Go's os.RemoveAll: a missing path is fine."""
    if os.path.isdir(path) and not os.path.islink(path):
        for child in Path(path).iterdir():
            _remove_all(str(child))
        os.rmdir(path)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

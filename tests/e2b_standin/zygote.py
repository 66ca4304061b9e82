"""Starts sandboxes by forking: every import is done once, so one costs some tens of milliseconds.

The zygote is a single-threaded child of the stand-in. It reads requests from a socket, one JSON
datagram each, and answers each with one. When the socket closes it ends, and every sandbox with it.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import signal
import socket
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from . import jail
from .egress import connect_for, redirect

Guest = Callable[[socket.socket, socket.socket | None, Mapping[str, Any]], None]
"""Called with the socket to serve on, the connector (if there is one) and the settings."""
MAX_MESSAGE = 1 << 20


class Zygote:
    """The stand-in's end: asks for sandboxes. Calls block for some milliseconds."""

    def __init__(self, guest: Guest) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork() == 0:
            ours.close()
            _serve(theirs, guest)
            os._exit(0)
        theirs.close()
        self._socket = ours

    def start(self, listener: socket.socket, config: Mapping[str, Any]) -> int:
        """Start a guest that serves on ``listener``; the host's pid of its first process."""
        fds = array.array("i", [listener.fileno()])
        message = json.dumps({"start": dict(config)}).encode()
        self._socket.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
        answer = json.loads(self._socket.recv(MAX_MESSAGE))
        if "error" in answer:
            raise RuntimeError(f"the sandbox did not start: {answer['error']}")
        return answer["pid"]

    def kill(self, pid: int) -> None:
        """Kill a guest; on return all its processes are gone."""
        self._socket.send(json.dumps({"kill": pid}).encode())
        self._socket.recv(MAX_MESSAGE)


def _serve(control: socket.socket, guest: Guest) -> None:
    jail.die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    holders: dict[int, int] = {}
    while True:
        data, fds, _, _ = socket.recv_fds(control, MAX_MESSAGE, 1)
        if not data:
            return
        request = json.loads(data)
        if "start" in request:
            answer = _start(socket.socket(fileno=fds[0]), request["start"], guest, holders, control)
        else:
            answer = _kill(request["kill"], holders)
        control.send(json.dumps(answer).encode())


def _start(
    listener: socket.socket,
    config: Mapping[str, Any],
    guest: Guest,
    holders: dict[int, int],
    control: socket.socket,
) -> dict[str, Any]:
    reader, writer = os.pipe()
    holder = os.fork()
    if holder == 0:
        os.close(reader)
        control.close()
        _hold(listener, config, guest, writer)
    os.close(writer)
    listener.close()
    with os.fdopen(reader) as pipe:
        answer = json.loads(pipe.readline() or '{"error": "it died at once"}')
    if "pid" in answer:
        holders[answer["pid"]] = holder
    else:
        os.waitpid(holder, 0)
    return answer


def _kill(pid: int, holders: dict[int, int]) -> dict[str, Any]:
    holder = holders.pop(pid, None)
    if holder is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(holder, 0)  # it waits for the first process, which waits for all the others
    return {}


def _hold(listener: socket.socket, config: Mapping[str, Any], guest: Guest, writer: int) -> None:
    """The parent of a namespace's first process: makes the namespaces, waits, never returns."""
    try:
        jail.die_with_parent()
        connector = _connector() if config["egress"] is not None else None
        jail.leave_namespaces()
        first = os.fork()
        if first == 0:
            jail.die_with_parent()
            _first(listener, connector, config, guest, writer)
        listener.close()
        os.waitpid(first, 0)
    finally:
        os._exit(0)


def _connector() -> socket.socket:
    """A process that stays in this machine's network and opens connections for the sandbox."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        try:
            jail.die_with_parent()
            theirs.close()
            connect_for(ours)
        finally:
            os._exit(0)
    ours.close()
    return theirs


def _first(
    listener: socket.socket,
    connector: socket.socket | None,
    config: Mapping[str, Any],
    guest: Guest,
    writer: int,
) -> None:
    """PID 1 of a sandbox: builds the root, starts the guest, reaps orphans, never returns."""
    try:
        host_pid = int(os.readlink("/proc/self"))  # the host's /proc is still mounted here
        jail.build_root()
        jail.raise_loopback()
        if connector is not None:
            redirect()
        jail.drop_capabilities()
        server = os.fork()
        if server == 0:
            os.close(writer)
            _run_guest(guest, listener, connector, config)
        listener.close()
        os.write(writer, json.dumps({"pid": host_pid}).encode() + b"\n")
        os.close(writer)
        while os.wait()[0] != server:
            pass
    except BaseException as error:  # a forked child must not run the parent's stack any further
        os.write(writer, json.dumps({"error": repr(error)}).encode() + b"\n")
        raise
    finally:
        os._exit(0)


def _run_guest(
    guest: Guest, listener: socket.socket, connector: socket.socket | None, config: Mapping[str, Any]
) -> None:
    try:
        guest(listener, connector, config)
    except BaseException:  # noqa: BLE001 - a forked child must not run the parent's stack any further
        traceback.print_exc()
    finally:
        os._exit(1)

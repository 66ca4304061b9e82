"""The blocking facade over this backend."""

from __future__ import annotations

import inspect
import threading

import pytest

from sandboxio import protocols, sync
from sandboxio.errors import ConnectError, PathNotFound, SandboxGone
from sandboxio.models import Capability

from .base import Contract, needs
from .named import named

TWINS: tuple[tuple[type, type, dict[str, str]], ...] = (
    (protocols.AsyncSandbox, sync.SyncSandbox, {"__aenter__": "__enter__", "__aexit__": "__exit__"}),
    (
        protocols.Process,
        sync.SyncProcess,
        {"__aenter__": "__enter__", "__aexit__": "__exit__", "__aiter__": "__iter__"},
    ),
    (protocols.AsyncFileSystem, sync.SyncFileSystem, {}),
)


class SyncTests(Contract):
    """Row "Sync parity"."""

    def test_every_async_member_has_its_blocking_twin(self) -> None:
        for port, twin, renamed in TWINS:
            for name, member in vars(port).items():
                if name.startswith("_") and name not in renamed:
                    continue
                other = inspect.getattr_static(twin, renamed.get(name, name))
                if isinstance(member, property):
                    assert isinstance(other, property), f"{twin.__name__}.{name} must be a property"
                    continue
                ours, theirs = inspect.signature(member), inspect.signature(other)
                assert list(ours.parameters.values()) == list(theirs.parameters.values()), (
                    f"{twin.__name__}.{name}"
                )
                assert not inspect.iscoroutinefunction(other)

    @needs(Capability.RUN_COMMAND)
    def test_blocking_calls_work_and_leave_no_thread(self) -> None:
        before = set(threading.enumerate())
        with named(self.backend) as target, sync.create_sync(target, template=self.template) as sandbox:
            assert sandbox.run([*self.cmd_echo, "hello"]).stdout == "hello\n"
            assert sandbox.run([*self.cmd_exit, "3"]).exit_code == 3
            if Capability.STREAMING in sandbox.capabilities:
                with sandbox.stream([*self.cmd_count, "3"]) as process:
                    assert b"".join(chunk.data for chunk in process) == b"1\n2\n3\n"
                    assert process.wait().streamed
            if Capability.FILESYSTEM in sandbox.capabilities:
                sandbox.files.write("file", b"x")
                assert sandbox.files.read("file") == b"x"
        assert set(threading.enumerate()) <= before

    @needs(Capability.RUN_COMMAND)
    def test_blocking_calls_raise_the_same_errors(self) -> None:
        with named(self.backend) as target:
            with pytest.raises(ConnectError), sync.connect_sync(target, "no-such-sandbox"):
                pass
            with sync.create_sync(target, template=self.template) as sandbox:
                if Capability.FILESYSTEM in sandbox.capabilities:
                    with pytest.raises(PathNotFound):
                        sandbox.files.read("missing")
                sandbox.kill()
                sandbox.kill()
                with pytest.raises(SandboxGone):
                    sandbox.run([*self.cmd_echo, "x"])

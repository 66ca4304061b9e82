"""Records, labels and secrets."""

from __future__ import annotations

import logging
import traceback
import warnings
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sandboxio.audit import AuditEvent
from sandboxio.errors import ExecutionTimeout, PathNotFound, SandboxError
from sandboxio.models import Capability

from .base import Contract, needs, new_mark


class RecordTests(Contract):
    """Row "Observability": one operation, one record."""

    def events(self) -> list[AuditEvent]:
        """The recorded events, oldest first."""
        if self.audit_sink is None:
            self.skip_probe("audit_sink", "the RecordingSink in the AuditConfig of the backend")
        return self.audit_sink.events

    async def recorded(self, operation: Callable[[], Awaitable[object]]) -> AuditEvent:
        """The one event that an operation leaves."""
        before = len(self.events())
        await operation()
        new = self.events()[before:]
        assert len(new) == 1, f"one operation must leave one record, it left {new}"
        return new[0]

    @needs(Capability.RUN_COMMAND)
    async def test_a_run_leaves_one_record(self) -> None:
        self.events()
        metadata = {"tenant_id": "acme", "session_id": "s-1"}
        async with self.sandbox(metadata=metadata) as sandbox:
            event = await self.recorded(lambda: sandbox.run([*self.cmd_exit, "3"]))
            assert (event.event, event.exit_code) == ("exec", 3)
            assert (event.sandbox_id, event.backend) == (sandbox.id, self.backend.name)
            assert event.isolation is sandbox.isolation
            assert (event.tenant_id, event.session_id) == ("acme", "s-1")
            assert event.argv == (*self.cmd_exit, "3")
            assert event.duration_ms >= 0
            printed = await self.recorded(lambda: sandbox.run(self.cmd_both))
            assert printed.bytes_out == len("out\nerr\n")

    @needs(Capability.RUN_COMMAND)
    async def test_a_run_that_times_out_leaves_one_record(self) -> None:
        self.events()

        async def time_out() -> None:
            with pytest.raises(ExecutionTimeout):
                await sandbox.run(self.cmd_hang, timeout=1)

        async with self.sandbox() as sandbox, self.within(1 + self.patience, "a run with a timeout"):
            assert (await self.recorded(time_out)).event == "exec"

    @needs(Capability.RUN_CODE)
    async def test_a_run_of_code_leaves_one_record_with_its_hash(self) -> None:
        self.events()
        code = "print('recorded')"
        async with self.sandbox() as sandbox:
            event = await self.recorded(lambda: sandbox.run_code(code))
            assert (event.event, event.exit_code) == ("run_code", 0)
            assert len(event.code_sha256) == 64
            assert event.code is None, "code is hashed unless capture_code is set"
            assert code not in repr(event)

    @needs(Capability.STREAMING)
    async def test_a_stream_leaves_one_record(self) -> None:
        self.events()

        async def stream() -> None:
            async with sandbox.stream(self.cmd_both) as process:
                await process.wait()

        async with self.sandbox() as sandbox:
            event = await self.recorded(stream)
            assert (event.event, event.exit_code) == ("stream", 0)
            assert event.bytes_out == len("out\nerr\n")

    @needs(Capability.FILESYSTEM)
    async def test_a_file_operation_leaves_one_record(self) -> None:
        self.events()

        async def miss() -> None:
            with pytest.raises(PathNotFound):
                await sandbox.files.read("missing")

        async with self.sandbox() as sandbox:
            written = await self.recorded(lambda: sandbox.files.write("file", b"12345"))
            assert (written.event, written.bytes_in) == ("file_write", 5)
            read = await self.recorded(lambda: sandbox.files.read("file"))
            assert (read.event, read.bytes_out) == ("file_read", 5)
            await self.recorded(lambda: sandbox.files.mkdir("folder"))
            await self.recorded(lambda: sandbox.files.ls("folder"))
            await self.recorded(lambda: sandbox.files.remove("folder"))
            assert (await self.recorded(miss)).event == "file_read"

    async def test_metadata_reaches_the_labels_of_the_provider(self) -> None:
        metadata = {"tenant_id": "acme", "odd key/é": "value with 'quotes' and é🙂", "empty": ""}
        async with self.sandbox(metadata=metadata) as sandbox:
            labels = await self.probe("provider_labels", sandbox)
            assert {key: labels.get(key) for key in metadata} == metadata

    async def test_sandboxes_are_found_by_their_labels(self) -> None:
        label = new_mark()
        async with self.sandbox(label=label) as one, self.sandbox(label=label) as two, self.sandbox():
            held = await self.probe("provider_sandboxes", label)
            assert sorted(each.sandbox_id for each in held) == sorted([one.id, two.id])


class SecretTests(Contract):
    """No secret reaches a text that the library makes."""

    async def test_secrets_appear_nowhere(self, caplog: pytest.LogCaptureFixture) -> None:
        secret, credential = f"s3cr3t-{new_mark()}", f"cr3d-{new_mark()}"
        texts: list[str] = []
        before = len(self.audit_sink.events) if self.audit_sink is not None else 0
        with caplog.at_level(logging.DEBUG), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            async with self.sandbox(secrets={"VALUE": secret}, env={"API_TOKEN": credential}) as sandbox:
                texts += [repr(sandbox), str(sandbox), repr(self.backend)]
                for leak in (secret, credential):
                    await self.provoke(sandbox, leak, texts)
        texts += [f"{record.getMessage()} {record.exc_text}" for record in caplog.records]
        texts += [str(each.message) for each in caught]
        if self.audit_sink is not None:
            texts += [repr(event) + repr(event.as_dict()) for event in self.audit_sink.events[before:]]
        found = [text for text in texts if secret in text or credential in text]
        assert not found, f"a secret is in {found[0]!r}"

    async def provoke(self, sandbox: Any, leak: str, texts: list[str]) -> None:
        """Use the secret wherever a caller can, and note every text that comes back as an error."""
        operations: list[Callable[[], Awaitable[object]]] = [lambda: self.backend.connect(f"no-{leak}")]
        if Capability.RUN_COMMAND in self.backend.capabilities:
            operations += [
                lambda: sandbox.run(["no-such-program", leak]),
                lambda: sandbox.run(f"echo {leak} >&2; exit 1"),
                lambda: sandbox.run([*self.cmd_hang, leak], timeout=1, env={"SESSION_KEY": leak}),
            ]
        if Capability.RUN_CODE in self.backend.capabilities:
            operations.append(lambda: sandbox.run_code(f"raise ValueError({leak!r})"))
        if Capability.FILESYSTEM in self.backend.capabilities:
            operations += [
                lambda: sandbox.files.read(f"/{leak}"),
                lambda: sandbox.files.mkdir(f"/{leak}/x/{leak}"),
            ]
        for operation in operations[1:]:
            try:
                result = await operation()
            except SandboxError as error:
                texts.append("".join(traceback.format_exception_only(error)) + repr(error) + error.hint)
                texts += [str(each) for each in (error.__cause__, error.__context__) if each is not None]
            else:
                assert result is not None or Capability.FILESYSTEM in self.backend.capabilities

    @needs(Capability.RUN_COMMAND)
    async def test_secrets_are_there_for_the_commands(self) -> None:
        secret = f"s3cr3t-{new_mark()}"
        async with self.sandbox(secrets={"VALUE": secret}) as sandbox:
            assert (await sandbox.run([*self.cmd_printenv, "VALUE"])).stdout == f"{secret}\n"

"""Errors and deadlines: every failure is a typed error with a fix."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from sandboxio.errors import (
    AuthError,
    ConfigurationError,
    CreateTimeout,
    CreationError,
    ExecutionTimeout,
    SandboxError,
    SandboxGone,
    SandboxTimeout,
)
from sandboxio.models import Capability
from sandboxio.protocols import AsyncSandbox

from .base import Contract, needs, new_mark

BAD_CREATION: tuple[dict[str, Any], ...] = (
    {"timeout": None},
    {"timeout": 0},
    {"timeout": -1},
    {"timeout": float("inf")},
    {"timeout": float("nan")},
    {"timeout": True},
    {"template": " "},
    {"resources": None},
    {"network": "deny"},
    {"env": {"A": 1}},
    {"env": {"A=B": "x"}},
    {"secrets": {"": "x"}},
    {"env": {"A": "x"}, "secrets": {"A": "y"}},
    {"metadata": {"a": 1}},
    {"metadata": {"": "x"}},
)


def assert_helpful(error: SandboxError) -> None:
    """Fail unless the error says what it is, how to fix it and where to read on."""
    assert error.code.startswith("SBX_E")
    assert error.hint.strip()
    assert error.code in error.url
    assert error.code in str(error)


class ErrorTests(Contract):
    """Row "Errors"."""

    async def test_a_failure_of_the_provider_is_mapped_and_kept_as_cause(self) -> None:
        label = new_mark()
        with self.simulated("simulate_provider_failure"):
            with pytest.raises(CreationError) as caught:
                await self.created(label=label)
            assert caught.value.__cause__ is not None, "raise ... from error"
            assert_helpful(caught.value)
        await self.assert_nothing_left(label)

    async def test_a_missing_credential_is_named(self) -> None:
        with self.simulated("simulate_missing_credential") as variable:
            with pytest.raises(AuthError) as caught:
                await self.created()
            assert variable in str(caught.value)
            assert_helpful(caught.value)

    async def test_create_refuses_wrong_arguments_and_creates_nothing(self) -> None:
        label = new_mark()
        for options in BAD_CREATION:
            with pytest.raises(ConfigurationError) as caught:
                await self.backend.create(**{"metadata": {"sbx_suite": label}, **options})
            assert_helpful(caught.value)
        await self.assert_nothing_left(label)

    async def test_errors_carry_code_hint_and_page(self) -> None:
        errors: list[SandboxError] = []

        async def note(operation: Any) -> None:
            try:
                await operation
            except SandboxError as error:
                errors.append(error)

        await note(self.backend.connect("no-such-sandbox"))
        async with self.sandbox() as sandbox:
            if Capability.FILESYSTEM in self.backend.capabilities:
                await note(sandbox.files.read("missing"))
            if Capability.RUN_COMMAND in self.backend.capabilities:
                await note(sandbox.run(self.cmd_hang, timeout=1))
                await note(sandbox.run([]))
                await sandbox.kill()
                await note(sandbox.run([*self.cmd_echo, "x"]))
        assert errors
        for error in errors:
            assert_helpful(error)


class TimeoutTests(Contract):
    """Row "Timeouts"; those of ``run`` and ``stream`` stand with them."""

    async def test_a_creation_that_takes_too_long(self) -> None:
        label = new_mark()
        with self.simulated("simulate_slow_create"):
            with pytest.raises(CreateTimeout) as caught:
                await self.created(label=label, timeout=1)
            assert isinstance(caught.value, CreationError)
            assert isinstance(caught.value, SandboxTimeout)
            assert_helpful(caught.value)
        await self.assert_nothing_left(label)

    @needs(Capability.RUN_COMMAND)
    async def test_the_lifetime_ends_a_sandbox_in_use(self) -> None:
        """A call that names no timeout inherits the sandbox's, so either deadline may be the first."""
        caught: dict[str, SandboxError] = {}

        async def hang(name: str, timeout: float | None) -> None:
            try:
                await sandbox.run(self.cmd_hang, timeout=timeout)
            except SandboxError as error:
                caught[name] = error

        async with (
            self.sandbox(timeout=5) as sandbox,
            self.within(3 * self.patience, "a sandbox of five seconds"),
        ):
            async with self.tasks() as tasks:
                tasks.start_soon(hang, "inherits", None)
                tasks.start_soon(hang, "longer", 400)
            with pytest.raises(SandboxGone):
                await sandbox.run([*self.cmd_echo, "x"])
        assert isinstance(caught["inherits"], (ExecutionTimeout, SandboxGone))
        assert isinstance(caught["longer"], SandboxGone)

    @needs(Capability.RUN_COMMAND)
    async def test_an_expired_sandbox_is_gone(self) -> None:
        async with self.sandbox() as sandbox:
            await self.probe("expire_sandbox", sandbox)
            with pytest.raises(SandboxGone) as caught:
                await sandbox.run([*self.cmd_echo, "x"])
            assert not isinstance(caught.value, SandboxTimeout)
            assert_helpful(caught.value)

    @needs(Capability.RUN_COMMAND)
    async def test_a_sandbox_that_expires_under_a_run(self) -> None:
        mark, caught = new_mark(), list[SandboxError]()

        async def hang(sandbox: AsyncSandbox) -> None:
            try:
                await sandbox.run(self.cmd_hang, env={"SBX_SUITE_MARK": mark}, timeout=500)
            except SandboxError as error:
                caught.append(error)

        async with (
            self.sandbox() as sandbox,
            self.within(3 * self.patience, "a run in an expired sandbox"),
            self.tasks() as tasks,
        ):
            tasks.start_soon(hang, sandbox)
            await self.assert_running(sandbox, mark)
            await self.probe("expire_sandbox", sandbox)
        assert [type(error) for error in caught] == [SandboxGone]

    @needs(Capability.RUN_COMMAND)
    async def test_the_deadline_of_the_caller_is_no_sandbox_timeout(self) -> None:
        async with self.sandbox() as sandbox:
            caught: Exception | None = None
            try:
                with anyio.fail_after(0.3):
                    await sandbox.run(self.cmd_hang, timeout=500)
            except TimeoutError as error:
                caught = error
            assert caught is not None, "the caller's own deadline must end the run"
            assert not isinstance(caught, SandboxError)
            async with self.within(1 + self.patience, "a run with a timeout of one second"):
                with pytest.raises(SandboxTimeout) as ours:
                    await sandbox.run(self.cmd_hang, timeout=1)
            assert not isinstance(ours.value, TimeoutError), "no builtin TimeoutError may escape"

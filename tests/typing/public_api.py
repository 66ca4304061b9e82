"""What a type checker sees of the public API. Read by mypy and pyright, never run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, assert_type

import sandboxio
from sandboxio import protocols, sync
from sandboxio.testing import FakeBackend
from sandboxio_docker import DockerBackend, DockerConfig
from sandboxio_e2b import E2BBackend

# Results


async def asynchronous() -> None:
    sandbox = await sandboxio.create("docker://python:3.12-slim", timeout=60)
    assert_type(sandbox, protocols.AsyncSandbox)
    assert_type(await sandboxio.connect("docker://", "id"), protocols.AsyncSandbox)
    async with sandbox as entered:
        result = await entered.run(["true"], timeout=1.5, env={"A": "b"})
        assert_type(result, sandboxio.ExecResult)
        assert_type(result.exit_code, int)
        assert_type(result.stdout, str)
        assert_type(result.results, tuple[sandboxio.RichOutput, ...] | None)
        assert_type(result.truncated, bool)
        assert_type(await entered.run_code("1", language="python"), sandboxio.ExecResult)
        process = entered.stream("seq 3")
        assert_type(process, protocols.Process)
        async with process as started:
            assert_type(aiter(started), AsyncIterator[sandboxio.OutputChunk])
            async for chunk in started:
                assert_type(chunk.stream, Literal["stdout", "stderr"])
                assert_type(chunk.data, bytes)
            assert_type(await started.wait(), sandboxio.ExecResult)
            assert_type(started.returncode, int | None)
        assert_type(await entered.files.read("x"), bytes)
        assert_type(await entered.files.ls(), list[sandboxio.FileInfo])
        assert_type(await entered.files.upload(Path("x"), "y"), None)
        assert_type(entered.native, object)
        assert_type(sandboxio.Capability.GPU in entered.capabilities, bool)
        assert_type(entered.isolation.satisfies(sandboxio.IsolationTier.MICROVM), bool)


def blocking() -> None:
    with sandboxio.create_sync("fake://") as sandbox:
        assert_type(sandbox, sync.SyncSandbox)
        assert_type(sandbox.run("true"), sandboxio.ExecResult)
        assert_type(sandbox.run_code("1"), sandboxio.ExecResult)
        with sandbox.stream(["true"]) as process:
            assert_type(process, sync.SyncProcess)
            assert_type(iter(process), Iterator[sandboxio.OutputChunk])
            assert_type(process.wait(), sandboxio.ExecResult)
        assert_type(sandbox.files, sync.SyncFileSystem)
        assert_type(sandbox.files.read("x"), bytes)
    assert_type(sandboxio.connect_sync("fake://", "id"), sync.SyncSandbox)


def report() -> None:
    found = sandboxio.doctor()
    assert_type(found, sandboxio.DoctorReport)
    assert_type(found.healthy, bool)
    assert_type(found.as_dict(), dict[str, Any])


async def managed(backend: protocols.ReapableBackend) -> None:
    for sandbox in await backend.list_managed(labels={"a": "b"}):
        assert_type(sandbox, sandboxio.ManagedSandbox)
        assert_type(sandbox.created_at, datetime | None)
        assert_type(await backend.kill_managed(sandbox.sandbox_id), bool)


# Ports: what is shipped fits, without a cast


def ports() -> None:
    everything: list[protocols.ReapableBackend] = [FakeBackend(), DockerBackend(), E2BBackend()]
    diagnosable: list[protocols.DiagnosableBackend] = [DockerBackend(), E2BBackend()]
    configurable: list[protocols.ConfigurableBackend] = [FakeBackend(), DockerBackend(), E2BBackend()]
    reporting: protocols.ReportingBackend = DockerBackend()
    config: sandboxio.BackendConfig = DockerConfig(template="x", runtime="runsc")
    sandboxio.register("mine", DockerBackend)
    sandboxio.register("mine", lambda: FakeBackend(capabilities=sandboxio.Capability.RUN_COMMAND))
    sandboxio.register("mine", "package.module:Class")
    print(everything, diagnosable, configurable, reporting, config)


async def fake_sandboxes_are_sandboxes(backend: FakeBackend) -> None:
    sandbox: protocols.AsyncSandbox = await backend.create()
    print(sandbox)


# Errors


def errors(error: sandboxio.SandboxError, late: sandboxio.ExecutionTimeout) -> None:
    assert_type(error.code, str)
    assert_type(error.hint, str)
    assert_type(error.url, str)
    assert_type(error.message, str)
    partial = late.partial
    if partial is not None:
        assert_type(partial.stdout, str)
        assert_type(partial.exit_code, int)
    assert_type(sandboxio.RateLimitError("x").retry_after, float | None)


# Mistakes that a type checker has to see; an ignore that is not needed is an error


async def mistakes(sandbox: protocols.AsyncSandbox) -> None:
    await sandboxio.create("docker://", timeout=None)  # type: ignore[arg-type]
    await sandboxio.create("docker://", network="deny")  # type: ignore[arg-type]
    await sandboxio.create("docker://", egress="allow")  # type: ignore[call-arg]
    await sandbox.run(["true"], shell=True)  # type: ignore[call-arg]
    await sandbox.run(None)  # type: ignore[arg-type]
    await sandbox.stream(["true"])  # type: ignore[misc]
    sandboxio.NetworkPolicy(egress="none")  # type: ignore[arg-type]
    sandboxio.Diagnosis(credentials={"TOKEN": "value"})  # type: ignore[dict-item]
    sandboxio.ExecResult(0, "", "").stdout = "x"  # type: ignore[misc]

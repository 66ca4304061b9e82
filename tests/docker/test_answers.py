"""What answers may be a proxy, or another engine: a wrong shape is a typed error, or does no harm."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sandboxio.errors import CreationError, SandboxError
from sandboxio_docker import DockerBackend
from sandboxio_docker.engine import EngineUnavailable
from tests.fakes.engine import FakeEngine
from tests.fakes.inside import Inside
from tests.fakes.scripted import sends
from tests.fakes.server import answer

OURS: dict[str, Any] = {"Id": "abc", "Config": {"Labels": {"io.sandboxio.managed": "true"}}}


@asynccontextmanager
async def saying(folder: Path, method: str, path: str, body: object) -> AsyncGenerator[DockerBackend]:
    async with FakeEngine.on(folder) as fake:
        Inside(fake)
        fake.script(method, path, sends(answer(200, body)))
        yield DockerBackend(host=fake.url)
        await fake.all_closed()


@pytest.mark.parametrize("body", [[], None, "x", 5])
async def test_an_image_that_is_none(tmp_path: Path, body: object) -> None:
    async with saying(tmp_path, "GET", "/images/python:3.12-slim/json", body) as backend:
        with pytest.raises(CreationError, match="shape"):
            await backend.create(timeout=60)


@pytest.mark.parametrize("config", [[], "x", 5, {"User": 0}, {"Env": 5}, {"Labels": 5}])
async def test_an_image_whose_parts_are_none(tmp_path: Path, config: object) -> None:
    body = {"Config": config, "Architecture": 5}
    async with saying(tmp_path, "GET", "/images/python:3.12-slim/json", body) as backend:
        try:
            await (await backend.create(timeout=60)).kill()
        except SandboxError as error:
            assert error.hint  # noqa: PT017 - either is right


@pytest.mark.parametrize(
    "body",
    [[], None, {"Id": None}, {"Id": 5}, {"Id": ""}, {"Id": "a", "Warnings": 5}, {"Id": "a", "Warnings": "x"}],
)
@pytest.mark.filterwarnings("ignore::sandboxio.errors.OrphanedSandboxWarning")
async def test_a_container_that_is_none(
    tmp_path: Path, body: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be read as warnings may say that a cap is not enforced."""
    monkeypatch.setenv("SBX_TEARDOWN_GRACE", "0.2")
    async with saying(tmp_path, "POST", "/containers/create", body) as backend:
        with pytest.raises(CreationError, match="shape"):
            await backend.create(timeout=60)


@pytest.mark.parametrize("body", [None, {}, [5], [{}], [{"Id": 5}]])
async def test_a_list_that_is_none(tmp_path: Path, body: object) -> None:
    async with saying(tmp_path, "GET", "/containers/json", body) as backend:
        for call in (backend.list_managed(), backend.kill_managed("abc")):
            with pytest.raises(EngineUnavailable, match="shape"):
                await call


@pytest.mark.parametrize(
    "entry",
    [
        {"Created": 1e300},
        {"Created": -1e18},
        {"Created": "x"},
        {"Names": 5},
        {"Names": [None]},
        {"Labels": 5},
        {"State": []},
    ],
)
async def test_an_entry_whose_parts_are_none(tmp_path: Path, entry: dict[str, Any]) -> None:
    """One that cannot be read must not hide the others from `sandboxio reap`."""
    async with saying(tmp_path, "GET", "/containers/json", [{"Id": "f" * 64, **entry}]) as backend:
        (found,) = await backend.list_managed()
        assert found.sandbox_id == "f" * 64
        assert found.created_at is None
        assert await backend.kill_managed("abc") is False


@pytest.mark.parametrize(
    "body",
    [None, [], {}, {"Config": []}, {**OURS, "Id": None}, {**OURS, "State": []}, {**OURS, "State": 5}],
)
async def test_a_sandbox_that_is_none(tmp_path: Path, body: object) -> None:
    async with saying(tmp_path, "GET", "/containers/abc/json", body) as backend:
        with pytest.raises(SandboxError):
            await backend.connect("abc")


@pytest.mark.parametrize("memory", ["x", [], -1, 1e9, None])
async def test_a_cap_that_is_no_number(tmp_path: Path, memory: object) -> None:
    body = {**OURS, "State": {"Running": True}, "HostConfig": {"Memory": memory, "Runtime": 5}}
    async with saying(tmp_path, "GET", "/containers/abc/json", body) as backend:
        with pytest.raises(SandboxError, match="No such container"):  # comes after it: the exec
            await backend.connect("abc")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/info", {"Runtimes": 5, "SecurityOptions": 5}),
        ("/info", {"Runtimes": {"a": 1}, "SecurityOptions": "x", "Name": 5}),
        ("/info", []),
        ("/info", None),
        ("/version", {"Components": 5}),
        ("/version", {"Components": [5], "Platform": 5, "MinAPIVersion": 5}),
        ("/images/python:3.12-slim/json", []),
    ],
)
async def test_the_doctor_goes_on(tmp_path: Path, path: str, body: object) -> None:
    async with saying(tmp_path, "GET", path, body) as backend:
        found = await backend.diagnose()
        assert found.checks[0].ok

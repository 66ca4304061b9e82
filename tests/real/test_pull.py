"""Pulling for real: the engine, registries on loopback, and what can go wrong between them."""

from __future__ import annotations

import base64
import json
import logging
import os
import re
import traceback
import uuid
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, TypeVar

import anyio
import pytest

from sandboxio.errors import AuthError, CreateTimeout, CreationError, SandboxError
from sandboxio_docker import DockerBackend, PullProgress
from scripts import engine_api
from scripts.engine import Problem, is_debian

from . import images
from .creators import held
from .registry import PASSWORD, USER, Files, Registry, registry
from .registry_engine import SmallEngine, small_engine
from .registry_proxy import Proxy, listener, until

pytestmark = pytest.mark.engine

_Made = TypeVar("_Made")
TLS = Path(__file__).parents[1] / "docker" / "tls"
NOTHING: Files = {"hello.txt": b"hello"}


def entered(config: pytest.Config, stack: ExitStack, made: AbstractContextManager[_Made]) -> _Made:
    """What a test needs; where this machine could bring it up and does not, ``--require`` fails."""
    try:
        return stack.enter_context(made)
    except Problem as problem:
        able = is_debian() and os.geteuid() == 0
        if able and "docker" in config.getoption("--require"):
            pytest.fail(str(problem), pytrace=False)
        pytest.skip(str(problem))


@pytest.fixture(scope="session")
def open_registry(request: pytest.FixtureRequest) -> Generator[Registry]:
    with ExitStack() as stack:
        yield entered(request.config, stack, registry())


@pytest.fixture(scope="session")
def locked_registry(request: pytest.FixtureRequest) -> Generator[Registry]:
    """Wants USER and PASSWORD."""
    with ExitStack() as stack:
        yield entered(request.config, stack, registry(password=True))


@pytest.fixture(scope="session")
def small(request: pytest.FixtureRequest) -> Generator[SmallEngine]:
    with ExitStack() as stack:
        yield entered(request.config, stack, small_engine())


@pytest.fixture(scope="session")
def program() -> Files:
    found = images.busybox()
    if found is None:
        pytest.skip("this machine has no static busybox: apt-get install busybox-static")
    return images.busybox_files(found)


@pytest.fixture
def repository() -> Generator[str]:
    """A name that nobody else uses; images with it leave the engine after the test."""
    name = f"sandboxio-test-{uuid.uuid4().hex[:12]}"
    yield name
    for image in on_engine(name):
        images.ask("DELETE", f"/images/{image['Id']}", force="1")


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of Docker's configuration, empty."""
    folder = tmp_path / "docker"
    folder.mkdir()
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))
    return folder


@pytest.fixture(autouse=True)
def _apart(settings: Path) -> None:
    """Nobody's own credentials are used; and where "127.0.0.1" is another machine's, nothing here works."""
    if not engine_api.current_host().startswith("unix://"):
        pytest.skip("the engine may be elsewhere, and these registries listen on this machine's loopback")


def on_engine(repository: str) -> list[dict[str, Any]]:
    """The engine's images of a repository, in whichever registry."""
    everything: list[dict[str, Any]] = json.loads(images.ask("GET", "/images/json"))
    return [
        image
        for image in everything
        if any(f"/{repository}" in name for key in ("RepoTags", "RepoDigests") for name in image[key] or ())
    ]


def backend_for(image: str, progress: Callable[[PullProgress], object] | None = None) -> DockerBackend:
    return DockerBackend(image=image, host=engine_api.current_host(), progress=progress)


async def works(image: str, label: str) -> None:
    async with await backend_for(image).create(timeout=60, metadata={"test": label}) as sandbox:
        assert (await sandbox.run(["echo", "x"])).stdout == "x\n"


async def refused(image: str, host: str | None = None, timeout: float = 60) -> SandboxError:
    """The error of a creation, which names the image, has a fix, and has left nothing."""
    backend = DockerBackend(image=image, host=host or engine_api.current_host())
    label = uuid.uuid4().hex
    with pytest.raises(SandboxError) as caught:
        await backend.create(timeout=timeout, metadata={"test": label})
    assert caught.value.hint
    assert not held(label)
    return caught.value


def unique(repository: str, megabytes: float = 0) -> Files:
    """A layer that no engine has, and that cannot be compressed."""
    return {"unique": repository.encode(), "ballast": os.urandom(int(megabytes * (1 << 20)))}


# On demand


async def test_an_image_is_pulled_once_with_progress(
    open_registry: Registry, program: Files, repository: str
) -> None:
    open_registry.put(repository, "1", program, unique(repository, 4))
    lines: list[PullProgress] = []

    def bytes_are_counted() -> bool:
        return any(line.status == "Downloading" and line.layer and line.current for line in lines)

    async def use() -> None:
        async with await backend.create(timeout=60) as sandbox:
            assert (await sandbox.run(["cat", "/unique"])).stdout == repository

    with Proxy(open_registry.port) as proxy:
        image = f"{proxy.host}/{repository}:1"
        backend = backend_for(image, lines.append)
        proxy.hold_after(2 << 20)  # an engine that is quick enough says nothing in between
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(use)
            await until(bytes_are_counted, "a line of progress")
            proxy.go_on()
    assert all(0 <= line.current <= line.total for line in lines if line.current and line.total), lines
    statuses = {line.status for line in lines}
    assert {f"Pulling from {repository}", "Pull complete"} <= statuses
    assert f"Status: Downloaded newer image for {image}" in statuses
    lines.clear()
    await use()
    assert lines == [], "it was there"


@pytest.mark.parametrize("form", ["", ":1", "@{0}", ":1@{0}", ":gone@{0}"])
async def test_one_image_for_each_form_of_a_reference(
    form: str, open_registry: Registry, program: Files, repository: str
) -> None:
    """Case 48: a port is no tag, no tag is "latest" and not all of them, a digest decides."""
    open_registry.put(repository, "latest", program, {"tag": b"latest"})
    digest = open_registry.put(repository, "1", program, {"tag": b"1"})
    image = f"{open_registry.host}/{repository}{form.format(digest)}"
    async with await backend_for(image).create(timeout=60) as sandbox:
        expected = "1" if form else "latest"
        assert (await sandbox.run(["cat", "/tag"])).stdout == expected
    (only,) = on_engine(repository)
    tag = "" if "@" in form else form or ":latest"
    name = f"{open_registry.host}/{repository}{tag}"
    assert [each for each in only["RepoTags"] or () if "<none>" not in each] == ([name] if tag else [])


async def test_two_pulls_of_one_image_at_once(
    open_registry: Registry, program: Files, repository: str
) -> None:
    """Both get it, and it comes once; one that is given up does not take the other along."""
    # Both layers are of this test alone: another image may have brought the program's.
    open_registry.put(repository, "1", {**program, "ours": repository.encode()}, unique(repository, 2))
    with Proxy(open_registry.port) as proxy:
        image = f"{proxy.host}/{repository}:1"
        proxy.hold_after(1 << 20)
        async with anyio.create_task_group() as tasks, anyio.create_task_group() as given_up:
            tasks.start_soon(works, image, repository)
            tasks.start_soon(works, image, repository)
            await proxy.held()
            given_up.start_soon(works, image, repository)
            await until(lambda: proxy.count(b"/manifests/1 ") >= 3, "the third to ask")
            given_up.cancel_scope.cancel()
            proxy.go_on()
        await proxy.all_closed()
        fetched = Counter(re.findall(rb"GET /v2/\S+/blobs/(\S+)", proxy.asked))
    assert sorted(fetched.values())[:2] == [1, 1], "each layer once; each pull asks for the settings"
    assert len(fetched) == 3
    assert not held(repository)


# Credentials


def stored(password: str = PASSWORD) -> dict[str, str]:
    return {"auth": base64.b64encode(f"{USER}:{password}".encode()).decode()}


def configure(folder: Path, **content: object) -> None:
    (folder / "config.json").write_text(json.dumps(content))


def helper(folder: Path, monkeypatch: pytest.MonkeyPatch, server: str) -> Path:
    """A credential helper that knows one server; the list of what it was asked."""
    answer = json.dumps({"ServerURL": server, "Username": USER, "Secret": PASSWORD})
    asked = folder / "asked"
    tool = folder / "docker-credential-tests"
    tool.write_text(
        f'#!/bin/sh\nread -r server\necho "$* $server" >>{asked}\n'
        f"if [ \"$server\" = {server} ]; then echo '{answer}'; exit; fi\n"
        "echo credentials not found in native keychain\nexit 1\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return asked


async def test_credentials_of_the_configuration_file(
    locked_registry: Registry, program: Files, repository: str, settings: Path
) -> None:
    """They are read for each pull: what `docker login` writes later counts."""
    locked_registry.put(repository, "1", program, unique(repository))
    image = f"{locked_registry.host}/{repository}:1"
    assert isinstance(await refused(image), AuthError)
    configure(settings, auths={locked_registry.host: stored()})
    await works(image, repository)


async def test_credentials_of_a_helper(
    locked_registry: Registry,
    open_registry: Registry,
    program: Files,
    repository: str,
    settings: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is asked for the registry at hand, when something is pulled, and for nothing else."""
    host = locked_registry.host
    asked = helper(settings, monkeypatch, host)
    configure(settings, credHelpers={host: "tests"}, credsStore="missing")
    for each in (locked_registry, open_registry):
        each.put(repository, "1", program, unique(repository))
    await works(f"{host}/{repository}:1", repository)
    assert asked.read_text() == f"get {host}\n"
    await works(f"{host}/{repository}:1", repository)
    assert asked.read_text() == f"get {host}\n", "nothing had to be pulled"
    configure(settings, credsStore="tests")
    await works(f"{open_registry.host}/{repository}:1", repository)
    assert asked.read_text() == f"get {host}\nget {open_registry.host}\n"


async def test_credentials_go_to_their_own_registry(
    locked_registry: Registry, repository: str, settings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another port of the same address is another registry."""
    locked_registry.put(repository, "1", NOTHING)
    helper(settings, monkeypatch, locked_registry.host)
    with Proxy(locked_registry.port) as other:
        for content in ({"auths": {locked_registry.host: stored()}}, {"credsStore": "tests"}):
            configure(settings, **content)
            error = await refused(f"{other.host}/{repository}:1")
            assert isinstance(error, AuthError)
            assert "no basic auth credentials" in error.message
        assert other.count(b"/v2/")
        assert not other.count(b"uthorization")
        configure(settings, auths={other.host: stored()})
        error = await refused(f"{other.host}/{repository}:2")
        assert "not found" in error.message
        assert other.count(b"uthorization"), "the check above would see them"


async def test_no_configuration_is_read_for_an_image_that_is_there(
    open_registry: Registry, program: Files, repository: str, settings: Path
) -> None:
    open_registry.put(repository, "1", program, unique(repository))
    image = f"{open_registry.host}/{repository}:1"
    await works(image, repository)
    (settings / "config.json").write_text("{")
    await works(image, repository)
    error = await refused(f"{open_registry.host}/{repository}:2")
    assert "config.json" in error.message


async def test_a_wrong_password_is_said_and_not_repeated(
    locked_registry: Registry, repository: str, settings: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Case 77 for the password of a registry."""
    wrong = "s3cr3t-not-the-password"
    locked_registry.put(repository, "1", NOTHING)
    configure(settings, auths={locked_registry.host: stored(wrong)})
    with caplog.at_level(logging.DEBUG):
        error = await refused(f"{locked_registry.host}/{repository}:1")
    assert isinstance(error, AuthError)
    assert "docker login" in error.hint
    seen = "".join(traceback.format_exception(error)) + repr(error.__context__) + caplog.text
    for form in (wrong, stored(wrong)["auth"], base64.urlsafe_b64encode(wrong.encode()).decode().rstrip("=")):
        assert form not in seen


# What fails


async def test_what_the_registry_does_not_have(open_registry: Registry, repository: str) -> None:
    """Case 47: repository, tag and digest."""
    open_registry.put(repository, "1", NOTHING)
    for name in ("none", f"{repository}:2", f"{repository}@sha256:{'0' * 64}"):
        error = await refused(f"{open_registry.host}/{name}")
        assert type(error) is CreationError
        assert f"{open_registry.host}/{name}" in error.message
        assert "name and tag" in error.hint


async def test_an_image_for_other_machines_only(open_registry: Registry, repository: str) -> None:
    """Case 47: a list of manifests without this machine's."""
    alien = open_registry.put(repository, "", NOTHING, architecture="s390x")
    open_registry.put_index(repository, "1", [(alien, "s390x")])
    error = await refused(f"{open_registry.host}/{repository}:1")
    assert type(error) is CreationError
    assert "no matching manifest" in error.message
    assert "architecture" in error.hint


async def test_the_right_one_of_several_machines(
    open_registry: Registry, program: Files, repository: str
) -> None:
    alien = open_registry.put(repository, "", NOTHING, architecture="s390x")
    ours = open_registry.put(repository, "", program, unique(repository))
    name = json.loads(images.ask("GET", "/version"))["Arch"]
    open_registry.put_index(repository, "1", [(alien, "s390x"), (ours, name)])
    await works(f"{open_registry.host}/{repository}:1", repository)


async def test_a_registry_that_is_not_there(repository: str) -> None:
    with listener() as free:
        host = "{}:{}".format(*free.getsockname())
    error = await refused(f"{host}/{repository}:1")
    assert type(error) is CreationError
    assert "connection refused" in error.message
    assert "did not reach the registry" in error.hint


@pytest.fixture
def bridge() -> str:
    """This machine's side of the engine's bridge: for the engine not a loopback, so it insists on TLS."""
    config = json.loads(images.ask("GET", "/networks/bridge"))["IPAM"]["Config"][0]
    return str(config.get("Gateway") or config["Subnet"].replace(".0.0/16", ".0.1"))


async def test_a_registry_without_tls(open_registry: Registry, repository: str, bridge: str) -> None:
    open_registry.put(repository, "1", NOTHING)
    with Proxy(open_registry.port, listener(bridge)) as plain:
        error = await refused(f"{plain.host}/{repository}:1")
    assert type(error) is CreationError
    assert "HTTP response to HTTPS client" in error.message
    assert "insecure-registries" in error.hint


async def test_a_registry_with_a_certificate_that_nobody_knows(repository: str, bridge: str) -> None:
    with registry(tls=TLS) as signed, Proxy(signed.port, listener(bridge)) as outside:
        signed.put(repository, "1", NOTHING)
        error = await refused(f"{outside.host}/{repository}:1")
        assert type(error) is CreationError
        assert "x509" in error.message
        assert "certificate" in error.hint


async def test_a_registry_with_tls(program: Files, repository: str) -> None:
    """On a loopback the engine does not mind who signed."""
    with registry(tls=TLS) as signed:
        signed.put(repository, "1", program, unique(repository))
        await works(f"{signed.host}/{repository}:1", repository)


# Broken off


async def test_a_cancelled_pull_leaves_nothing(
    open_registry: Registry, program: Files, repository: str
) -> None:
    """Case 21: no sandbox, no connection; the engine stops, and the next pull works."""
    open_registry.put(repository, "1", program, unique(repository, 2))
    with Proxy(open_registry.port) as proxy:
        image = f"{proxy.host}/{repository}:1"
        proxy.hold_after(1 << 20)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(works, image, repository)
            await proxy.held()
            tasks.cancel_scope.cancel()
        assert not held(repository)
        proxy.go_on()  # an engine that waits for a byte notices with the next one
        await proxy.all_closed()
        assert on_engine(repository) == []
        await works(image, repository)


async def test_a_pull_that_takes_longer_than_creation_may(
    open_registry: Registry, program: Files, repository: str
) -> None:
    """The pull counts into the timeout of create()."""
    open_registry.put(repository, "1", program, unique(repository, 2))
    with Proxy(open_registry.port) as proxy:
        proxy.hold_after(1 << 20)
        error = await refused(f"{proxy.host}/{repository}:1", timeout=1)
        assert isinstance(error, CreateTimeout)
        proxy.go_on()
        await proxy.all_closed()


async def test_a_registry_that_ends_in_mid_pull(small: SmallEngine, repository: str) -> None:
    """The engine's own new tries included, which the small one does not wait a minute for."""
    with registry() as dying, Proxy(dying.port, small.entrance.dup()) as proxy:
        dying.put(repository, "1", unique(repository, 2))
        proxy.hold_after(1 << 20)
        errors: list[SandboxError] = []

        async def pull() -> None:
            errors.append(await refused(f"{proxy.host}/{repository}:1", small.host))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pull)
            await proxy.held()
            dying.kill()
            proxy.cut()
    (error,) = errors
    assert type(error) is CreationError
    assert f"{repository}:1" in error.message
    assert "did not reach the registry, or lost it" in error.hint


async def test_an_engine_that_ends_in_mid_pull(
    request: pytest.FixtureRequest, open_registry: Registry, repository: str
) -> None:
    open_registry.put(repository, "1", unique(repository, 2))
    errors: list[SandboxError] = []
    with ExitStack() as stack:
        engine = entered(request.config, stack, small_engine())
        proxy = stack.enter_context(Proxy(open_registry.port, engine.entrance.dup()))
        proxy.hold_after(1 << 20)

        async def pull() -> None:
            errors.append(await refused(f"{proxy.host}/{repository}:1", engine.host))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pull)
            await proxy.held()
            engine.process.terminate()
    (error,) = errors
    assert type(error) is CreationError
    assert f"{repository}:1" in error.message
    assert "try again" in error.hint.lower()


async def test_an_engine_whose_disk_is_full(
    small: SmallEngine, open_registry: Registry, repository: str
) -> None:
    """Much from little: it fails while it is unpacked, and leaves room for what does fit."""
    open_registry.put(repository, "large", {"zeros": bytes(80 << 20)})
    open_registry.put(repository, "1", NOTHING)
    with Proxy(open_registry.port, small.entrance.dup()) as proxy:
        error = await refused(f"{proxy.host}/{repository}:large", small.host)
        assert type(error) is CreationError
        assert "no space left on device" in error.message
        assert "disk space" in error.hint
        status, _ = engine_api.request(
            "POST", f"/images/create?fromImage={proxy.host}/{repository}&tag=1", host=small.host
        )
        assert status == 200
        assert engine_api.has_image(f"{proxy.host}/{repository}:1", small.host)

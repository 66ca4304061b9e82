"""What a runtime's name promises, and that create proves it before anything of the image runs."""

from __future__ import annotations

import functools
import tracemalloc
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from typing import Any, Literal

import anyio
import anyio.lowlevel
import pytest

import sandboxio
from sandboxio import IsolationTier, Resources
from sandboxio.adapter import SandboxRequest
from sandboxio.errors import ConfigurationError, CreationError
from sandboxio_docker import DockerBackend, DockerConfig, kernel
from sandboxio_docker.hostconfig import container_config
from sandboxio_docker.isolation import LABEL, Proof, promised, proven
from tests.fakes.engine import IO, FakeEngine
from tests.fakes.sweep import Outcome, sweep

from .test_backend import refused, world
from .test_kernel import LOG, report

LINUX = report(b"", shown=-1)


class AfterGo(IO):
    """stdin and stdout of the program that comes after the witness."""

    def __init__(self, io: IO, rest: bytes) -> None:
        self.__dict__.update(io.__dict__)
        self._rest = rest

    async def read(self) -> bytes:
        rest, self._rest = self._rest, b""
        return rest or await super().read()


def witnessing(fake: FakeEngine, told: bytes, *, ran: list[str]) -> Callable[[IO], Awaitable[int]]:
    """A first program as a real container has it: the witness, then what the image has."""
    image: Any = fake.main

    async def main(io: IO) -> int:
        path, *_ = io.config["Entrypoint"]
        (container,) = [each for each in fake.containers.values() if each.io is io]
        assert container.files[path.encode()] == kernel.program("amd64")
        assert container.owners[path.encode()] == (0, 0, 0o555)
        for at in range(0, len(told), 100):
            await io.write(told[at : at + 100])
        word = await io.read()
        if word[:1] != kernel.GO:
            return 126
        ran.append(path)
        code: int = await image(AfterGo(io, word[1:]))
        return code

    return main


@pytest.mark.parametrize(
    ("runtime", "tier"),
    [
        (None, "container"),
        ("runc", "container"),
        ("crun", "container"),
        ("kata", "container"),
        ("myrunscx", "container"),
        ("runsc", "gvisor"),
        ("runsc-kvm", "gvisor"),
        ("/usr/local/bin/runsc", "gvisor"),
        ("io.containerd.runsc.v1", "gvisor"),
        ("gVisor", "gvisor"),
    ],
)
def test_what_a_name_promises(runtime: str | None, tier: str) -> None:
    assert promised(runtime).value == tier
    assert DockerBackend(runtime=runtime).isolation.value == tier
    if runtime is not None:
        config = DockerConfig(runtime=runtime)
        assert DockerBackend().configured(config).isolation.value == tier


def test_a_configured_copy_leaves_the_backend_alone() -> None:
    backend = DockerBackend()
    assert backend.configured(DockerConfig(runtime="runsc")).isolation is IsolationTier.GVISOR
    assert backend.isolation is IsolationTier.CONTAINER
    assert (
        DockerBackend(runtime="runsc").configured(DockerConfig(runtime="runc")).isolation.value == "container"
    )


async def test_a_proven_sandbox(tmp_path: Path) -> None:
    async with world(tmp_path) as (fake, _, _):
        ran: list[str] = []
        fake.main = witnessing(fake, report(LOG), ran=ran)
        backend = DockerBackend(host=fake.url, runtime="runsc")
        async with await backend.create(timeout=60) as sandbox:
            assert sandbox.isolation is IsolationTier.GVISOR
            assert (await sandbox.run(["echo", "hi"])).stdout == "hi\n"
            (container,) = fake.containers.values()
            assert container.config["HostConfig"]["Runtime"] == "runsc"
            assert container.config["Entrypoint"][1:4] == ["/bin/sh", "", "/bin/sh"]
            assert container.config["Labels"][LABEL] == "gvisor"
            assert ran == container.config["Entrypoint"][:1]
            again = await DockerBackend(host=fake.url, channel="exec").connect(sandbox.id)
            assert again.isolation is IsolationTier.GVISOR


async def test_no_witness_where_nothing_is_promised(tmp_path: Path) -> None:
    async with world(tmp_path) as (fake, _, _):
        backend = DockerBackend(host=fake.url, runtime="runc")
        async with await backend.create(timeout=60) as sandbox:
            assert sandbox.isolation is IsolationTier.CONTAINER
            (container,) = fake.containers.values()
            assert container.config["Entrypoint"][0] == "/bin/sh"
            assert LABEL not in container.config["Labels"]
            assert not container.files
            again = await DockerBackend(host=fake.url, runtime="runsc", channel="exec").connect(sandbox.id)
            assert again.isolation is IsolationTier.CONTAINER, "the instance's tier, not the backend's"


@pytest.mark.parametrize("channel", ["guest", "exec"])
async def test_a_runtime_that_only_bears_the_name(tmp_path: Path, channel: Any) -> None:
    """Refused, nothing is left (see ``world``), and nothing of the image was run."""
    async with world(tmp_path) as (fake, _, _):
        ran: list[str] = []
        fake.main = witnessing(fake, LINUX, ran=ran)
        error = await refused(DockerBackend(host=fake.url, runtime="runsc", channel=channel))
        assert isinstance(error, ConfigurationError)
        assert "'runsc' is not gVisor" in error.message
        assert "Linux 4.4.0" in error.message, "the kernel's own word"
        assert not ran


async def test_what_an_image_says_is_no_proof(tmp_path: Path) -> None:
    """A first program that does not speak as the witness does."""
    async with world(tmp_path) as (fake, _, _):

        async def liar(io: IO) -> int:
            await io.write(LOG * 100)
            while await io.read():
                pass
            return 0

        fake.main = liar
        error = await refused(DockerBackend(host=fake.url, runtime="runsc"))
        assert isinstance(error, ConfigurationError)
        assert "no proof" in error.message


async def test_a_container_that_ends_before_it_is_heard(tmp_path: Path) -> None:
    async with world(tmp_path) as (fake, _, _):

        async def dies(io: IO) -> int:
            await io.write(report(LOG)[:50])
            await io.write(b"runsc: cannot go on", stream=2)
            return 128

        fake.main = dies
        error = await refused(DockerBackend(host=fake.url, runtime="runsc"))
        assert isinstance(error, CreationError)
        assert "exit code 128" in error.message
        assert "cannot go on" in error.message


async def test_an_image_without_a_shell(tmp_path: Path) -> None:
    """The witness says that the shell is missing; the second try offers every Python on the image's PATH."""
    async with world(tmp_path) as (fake, _, _):
        tried: list[list[str]] = []
        real = fake.main

        async def main(io: IO) -> int:
            entrypoint = io.config["Entrypoint"]
            tried.append(entrypoint[1 : entrypoint.index("")])
            found = -1 if tried[-1] == ["/bin/sh"] else 2
            return await witnessing_once(io, found)

        async def witnessing_once(io: IO, found: int) -> int:
            fake.main = real
            shim = witnessing(fake, report(LOG, found=found), ran=[])
            fake.main = main
            return await shim(io)

        fake.main = main
        async with await DockerBackend(host=fake.url, runtime="runsc").create(timeout=60) as sandbox:
            assert sandbox.isolation is IsolationTier.GVISOR
        assert tried[0] == ["/bin/sh"]
        assert "/usr/bin/python3" in tried[1]


async def test_an_architecture_without_gvisor(tmp_path: Path) -> None:
    async with world(tmp_path) as (fake, _, _):
        fake.images["python:3.12-slim"] = {"Architecture": "s390x"}
        error = await refused(DockerBackend(host=fake.url, runtime="runsc"))
        assert isinstance(error, ConfigurationError)
        assert "s390x" in error.message
        assert not fake.asked("create")


@pytest.mark.parametrize("how", ["scope", "task"])
async def test_a_proof_is_cancelled_at_every_await(tmp_path: Path, how: Literal["scope", "task"]) -> None:
    async with world(tmp_path) as (fake, _, _):
        fake.main = witnessing(fake, report(LOG), ran=[])
        made = 0

        async def nothing_left(outcome: Outcome[Any]) -> None:
            nonlocal made
            if outcome.value is not None:
                made += 1
                await outcome.value.kill()
            assert not fake.containers, f"left after a cancellation at await {outcome.point}"
            await fake.all_closed()

        create = functools.partial(DockerBackend(host=fake.url, runtime="runsc").create, timeout=60)
        assert await sweep(create, nothing_left, how) >= 8
        assert made


async def test_cancelled_while_the_witness_is_silent(tmp_path: Path) -> None:
    async with world(tmp_path) as (fake, _, _):
        heard = anyio.Event()

        async def silent(io: IO) -> int:
            heard.set()
            while await io.read():
                pass
            return 126

        fake.main = silent
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(DockerBackend(host=fake.url, runtime="runsc").create)
            with anyio.fail_after(10):
                await heard.wait()
            tasks.cancel_scope.cancel()
        assert not fake.containers


@pytest.fixture
def registered() -> Generator[Callable[[DockerBackend], None]]:
    """``docker://`` means the backend that is given."""
    yield lambda backend: sandboxio.register("docker", lambda: backend)
    sandboxio.registry.unregister("docker")


async def test_required_before_anything_is_made(
    tmp_path: Path, registered: Callable[[DockerBackend], None]
) -> None:
    async with world(tmp_path) as (fake, _, backend):
        registered(backend)
        with pytest.raises(ConfigurationError, match="nothing was created"):
            await sandboxio.create("docker://", require_isolation=IsolationTier.GVISOR)
        with pytest.raises(ConfigurationError, match="nothing was created"):
            await sandboxio.create(DockerConfig(runtime="kata"), require_isolation=IsolationTier.GVISOR)
        with pytest.raises(ConfigurationError, match="nothing was created"):
            await sandboxio.create(DockerConfig(runtime="runsc"), require_isolation=IsolationTier.MICROVM)
        assert not fake.requests
        fake.main = witnessing(fake, report(LOG), ran=[])
        config = DockerConfig(runtime="runsc", timeout=60)
        async with await sandboxio.create(config, require_isolation=IsolationTier.GVISOR) as sandbox:
            assert sandbox.isolation is IsolationTier.GVISOR


def test_a_label_alone_proves_nothing() -> None:
    """Nor the runtime alone: only what create proved has both."""
    label = {"Labels": {LABEL: "gvisor"}}
    assert proven({"Config": label, "HostConfig": {"Runtime": "runsc"}}) is IsolationTier.GVISOR
    assert proven({"Config": label, "HostConfig": {"Runtime": "runc"}}) is IsolationTier.CONTAINER
    assert proven({"Config": {}, "HostConfig": {"Runtime": "runsc"}}) is IsolationTier.CONTAINER
    assert (
        proven({"Config": {"Labels": {LABEL: "microvm"}}, "HostConfig": {"Runtime": "runsc"}}).value
        == "container"
    )
    assert proven({}) is IsolationTier.CONTAINER


def test_metadata_cannot_pose_as_the_proof() -> None:
    request = SandboxRequest(timeout=60, metadata={LABEL: "gvisor"}, resources=Resources())
    assert LABEL not in container_config(request, image="x:1", entrypoint=["/bin/sh"])["Labels"]


async def test_what_a_false_runtime_prints_is_not_kept() -> None:
    class Flood:
        """64 MiB on stderr, no report, and the end."""

        left = 256

        async def receive(self) -> bytes:
            await anyio.lowlevel.checkpoint()
            self.left -= 1
            return b"\2\0\0\0\0\4\0\0" + b"y" * (1 << 18) if self.left >= 0 else b""

    class Ended:
        async def explained(self) -> sandboxio.SandboxGone:
            return sandboxio.SandboxGone("it ended")

    proof: Any = Proof("runsc", {"Architecture": "amd64"})
    tracemalloc.start()
    try:
        with pytest.raises(CreationError, match=r"It said: y+") as caught:
            await proof.demand(Flood(), Ended())
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert len(str(caught.value)) < 3000


@pytest.mark.parametrize(
    ("runtime", "known"), [("runsc", False), ("runc", True), ("io.containerd.x.v1", True)]
)
async def test_doctor_says_whether_the_engine_knows_it(tmp_path: Path, runtime: str, known: bool) -> None:
    async with world(tmp_path) as (fake, _, _):
        found = await DockerBackend(host=fake.url, runtime=runtime).diagnose()
        (check,) = [each for each in found.checks if each.name == "runtime"]
        assert check.ok is known
        assert f"{runtime} by choice; runc by default" in check.detail
        assert bool(check.fix) is not known
        assert found.isolation is promised(runtime)

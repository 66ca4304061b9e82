"""create, connect, list and kill of the Docker backend, against an engine in memory."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

import sandboxio
from sandboxio import Capability, IsolationTier, Resources
from sandboxio.errors import (
    CapabilityNotSupported,
    ConfigurationError,
    ConnectError,
    CreationError,
    SandboxError,
    SandboxGone,
    SandboxWarning,
)
from sandboxio.models import BackendConfig
from sandboxio_docker import DockerBackend, DockerConfig, join, lifecycle
from sandboxio_docker.guest_protocol import Trait
from tests.fakes.engine import IO, FakeEngine, until_stdin_ends
from tests.fakes.inside import Inside
from tests.fakes.scripted import sends
from tests.fakes.server import answer


@asynccontextmanager
async def world(folder: Path) -> AsyncGenerator[tuple[FakeEngine, Inside, DockerBackend]]:
    async with FakeEngine.on(folder) as fake:
        yield fake, Inside(fake), DockerBackend(host=fake.url)
        assert not fake.containers
        await fake.all_closed()


async def refused(backend: DockerBackend, **options: Any) -> SandboxError:
    """The error of a creation, which has left nothing."""
    with pytest.raises(SandboxError) as caught:
        await backend.create(**{"timeout": 60, **options})
    assert caught.value.hint
    return caught.value


# create


async def test_the_order_of_things(tmp_path: Path) -> None:
    """Attached before it starts, so that no byte of process 1 is lost; the name is the library's."""
    async with world(tmp_path) as (fake, _, backend):
        async with await backend.create(timeout=60) as sandbox:
            steps = [fake._route(request)[0] for request in fake.requests]
            assert steps == ["ping", "image", "create", "attach", "start"]
            (container,) = fake.containers.values()
            assert container.name.startswith("sandboxio-")
            assert sandbox.id == container.id
            assert sandbox.isolation is IsolationTier.CONTAINER
        assert fake.asked("delete")[0].query == {"force": "1", "v": "1"}


async def test_what_is_visible_from_outside(tmp_path: Path) -> None:
    """Case 79: neither env nor secrets are in any request but a run's own; case 77: nor in a repr."""
    async with world(tmp_path) as (fake, _, backend):
        options: dict[str, Any] = {"env": {"A": "env-value"}, "secrets": {"B": "secret-value"}}
        async with await backend.create(timeout=60, **options) as sandbox:
            for request in fake.requests:
                for value in (b"env-value", b"secret-value"):
                    assert value not in request.body
                    assert value not in str(request).encode()
            assert "value" not in repr(sandbox)


async def test_the_repr_says_which_channel_and_why(tmp_path: Path) -> None:
    async with world(tmp_path) as (fake, inside, backend):
        async with await backend.create(timeout=60) as sandbox:
            assert "channel=guest(python 3.12.0)" in repr(sandbox)
        chosen = DockerBackend(host=fake.url, channel="exec")
        async with await chosen.create(timeout=60) as sandbox:
            assert "channel=exec(chosen)" in repr(sandbox)
        inside.without_python()
        async with await backend.create(timeout=60) as sandbox:
            assert "channel=exec(no python3 of version 3.8 or newer)" in repr(sandbox)


async def test_an_image_writes_no_escape_sequence_to_a_terminal(tmp_path: Path) -> None:
    """What an image prints becomes a part of reprs and messages, which people look at."""
    hostile = b"\x1b[2J\x1b[31mFAKE\r \x9b1m \xe2\x80\xae"

    async def line(io: IO) -> int:
        await io.write(b"sandboxio: " + hostile + b"\n")
        return await until_stdin_ends(io)

    async def last_words(io: IO) -> int:
        await io.write(hostile, 2)
        return 1

    async with world(tmp_path) as (fake, _, backend):
        fake.main = line
        async with await backend.create(timeout=60) as sandbox:
            assert "FAKE" in repr(sandbox)
            assert repr(sandbox).isprintable()
            fake.exec = last_words
            assert repr(await backend.connect(sandbox.id)).isprintable()
        fake.main = last_words
        proving = DockerBackend(host=fake.url, runtime="runsc")
        for each in (backend, proving):
            error = await refused(each)
            assert "FAKE" in error.message
            assert error.message.isprintable()


async def test_a_guest_that_cannot_hide_serves_no_commands(tmp_path: Path) -> None:
    """Without ctypes it is open to code inside, which could write the answers of other runs."""
    async with world(tmp_path) as (fake, inside, backend):
        inside.traits &= ~Trait.HIDDEN
        async with await backend.create(timeout=60) as sandbox:
            assert "channel=exec(no ctypes in this python3 to hide process 1 with)" in repr(sandbox)
            assert (await sandbox.run(["echo", "x"])).stdout == "x\n"
            assert Capability.RUN_CODE in sandbox.capabilities
            fake.exec = inside.guest
            second = await backend.connect(sandbox.id)
            assert "channel=exec(no ctypes" in repr(second)
        error = await refused(DockerBackend(host=fake.url, channel="guest"))
        assert isinstance(error, CreationError)
        assert "no ctypes" in error.message


async def test_without_python_there_is_no_code_to_run(tmp_path: Path) -> None:
    """Case 52: it says what the image lacks instead of a bare 127."""
    async with world(tmp_path) as (fake, inside, backend):
        inside.without_python()
        async with await backend.create(timeout=60) as sandbox:
            assert Capability.RUN_CODE not in sandbox.capabilities
            with pytest.raises(CapabilityNotSupported, match="no Python"):
                await sandbox.run_code("print(1)")
            assert (await sandbox.run(["echo", "x"])).stdout == "x\n"
        error = await refused(DockerBackend(host=fake.url, channel="guest"))
        assert isinstance(error, CreationError)
        assert 'channel="guest"' in error.message


async def test_an_image_with_neither_shell_nor_python(tmp_path: Path) -> None:
    words = 'OCI runtime create failed: exec: "{}": stat {}: no such file or directory: unknown'
    async with world(tmp_path) as (fake, _, backend):
        fake.fail("start", 400, words.replace("{}", "/bin/sh"))
        fake.fail("start", 400, words.replace("{}", "python3"))
        error = await refused(backend)
        assert isinstance(error, CreationError)
        assert "neither /bin/sh nor python3" in error.message
        first, second = (request.json["Entrypoint"][0] for request in fake.asked("create"))
        assert (first, second) == ("/bin/sh", "python3")


async def test_an_image_with_python_alone_starts_it_directly(tmp_path: Path) -> None:
    async with world(tmp_path) as (fake, _, backend):
        fake.fail("start", 404, 'exec: "/bin/sh": stat /bin/sh: no such file or directory')
        async with await backend.create(timeout=60) as sandbox:
            assert (await sandbox.run(["echo", "x"])).stdout == "x\n"
        fake.fail("start", 404, 'exec: "/bin/sh": stat /bin/sh: no such file or directory')
        error = await refused(DockerBackend(host=fake.url, channel="exec"))
        assert "no /bin/sh" in error.message


async def test_a_container_that_ends_at_once(tmp_path: Path) -> None:
    """Case 51: its exit code and its last output are in the error."""

    async def ends(io: IO) -> int:
        await io.write(b"no such library: libpython.so\n", 2)
        return 41

    async with world(tmp_path) as (fake, _, backend):
        fake.main = ends
        error = await refused(backend)
        assert isinstance(error, CreationError)
        assert "exit code 41" in error.message
        assert "libpython.so" in error.message


async def test_a_container_that_says_something_else(tmp_path: Path) -> None:
    async def talks(io: IO) -> int:
        await io.write(b"Welcome to my image!\n")
        await anyio.sleep(30)
        return 0

    async with world(tmp_path) as (fake, _, backend):
        fake.main = talks
        with anyio.fail_after(10):
            error = await refused(backend)
        assert isinstance(error, CreationError)
        assert "Welcome to my image" in error.message


@pytest.mark.parametrize(
    ("step", "status", "words", "kind", "says"),
    [
        ("create", 400, "Unknown runtime specified nope", ConfigurationError, "nope"),
        ("create", 500, "no space left on device", CreationError, "no space"),
        ("create", 403, "authorization denied by plugin", CreationError, "denied"),
        ("start", 500, "exec format error", CreationError, "python:3.12-slim"),
        ("start", 500, "the bridge is gone", CreationError, "bridge"),
        ("attach", 500, "attach is broken", CreationError, "broken"),
        ("image", 500, "the disk is on fire", CreationError, "fire"),
    ],
)
async def test_what_the_engine_refuses(
    step: str, status: int, words: str, kind: type[SandboxError], says: str, tmp_path: Path
) -> None:
    async with world(tmp_path) as (fake, _, backend):
        fake.fail(step, status, words)
        error = await refused(backend)
        assert isinstance(error, kind)
        assert says in error.message
        assert error.__cause__ is not None


async def test_more_cpus_than_there_are(tmp_path: Path) -> None:
    """Case 76: the error names what was asked and what there is."""
    async with world(tmp_path) as (fake, _, backend):
        words = "Range of CPUs is from 0.01 to 2.00, as there are only 2 CPUs available"
        fake.fail("create", 400, words)
        error = await refused(backend, resources=Resources(cpu=6))
        assert isinstance(error, CreationError)
        assert "cpu=6" in error.message
        assert "only 2 CPUs" in error.message


NOT_SUPPORTED = "Your kernel does not support {} limit capabilities or the cgroup is not mounted. {}"


@pytest.mark.parametrize(
    "words",
    [
        NOT_SUPPORTED.format("memory", "Limitation discarded."),
        NOT_SUPPORTED.format("PIDs", "PIDs limit discarded."),
        "Resource limits are not supported and ignored on cgroups V1 rootless systems",
    ],
)
async def test_a_cap_that_the_engine_discards_is_refused(words: str, tmp_path: Path) -> None:
    """The engine creates such a container all the same, and only warns in its answer."""
    async with world(tmp_path) as (fake, _, backend):
        fake.warnings = [words]
        error = await refused(backend)
        assert isinstance(error, CreationError)
        assert words in error.message
        assert not fake.asked("start")


WITHOUT_SWAP = NOT_SUPPORTED.format("swap", "Memory limited without swap.")


async def test_swap_that_is_not_counted_is_told(tmp_path: Path) -> None:
    """Once for each sandbox, also where the first program had to be another one."""
    async with world(tmp_path) as (fake, _, backend):
        fake.warnings = [WITHOUT_SWAP]
        fake.fail("start", 404, 'exec: "/bin/sh": stat /bin/sh: no such file or directory')
        with pytest.warns(SandboxWarning, match="swapaccount=1") as caught:
            sandbox = await backend.create(timeout=60)
        assert len(caught) == 1
        await sandbox.kill()


async def test_where_warnings_are_errors_no_sandbox_is_left(tmp_path: Path) -> None:
    async with world(tmp_path) as (fake, _, backend):
        fake.warnings = [WITHOUT_SWAP]
        with pytest.raises(SandboxWarning, match="does not count swap"):  # see filterwarnings
            await backend.create(timeout=60)
        assert fake.asked("start")


async def test_other_warnings_of_the_engine_are_none_of_a_cap(tmp_path: Path) -> None:
    async with world(tmp_path) as (fake, _, backend):
        fake.warnings = ["IPv4 forwarding is disabled. Networking will not work."]
        async with await backend.create(timeout=60):
            assert fake.asked("start")


async def test_an_engine_that_is_not_there() -> None:
    """Case 43."""
    with anyio.fail_after(6):
        error = await refused(DockerBackend(host="unix:///nowhere/docker.sock"))
    assert isinstance(error, CreationError)
    assert "/nowhere/docker.sock" in error.message


# Images


async def test_a_missing_image_is_pulled(tmp_path: Path) -> None:
    """Cases 47 and 48: exactly one tag, with progress, and created only after the pull."""
    async with world(tmp_path) as (fake, _, _):
        lines: list[str] = []
        backend = DockerBackend(host=fake.url, progress=lambda line: lines.append(line.status))

        async def pulls(connection: Any, request: Any) -> None:
            fake.images["localhost:5000/a/b:latest"] = {}
            await connection.send(answer(200, b'{"status":"Pulling"}{"status":"Done"}'))

        fake.script("POST", "/images/create", pulls)
        async with await backend.create(template="localhost:5000/a/b", timeout=60):
            pull = next(request for request in fake.requests if request.path.endswith("/images/create"))
            assert pull.query == {"fromImage": "localhost:5000/a/b", "tag": "latest"}
        assert lines == ["Pulling", "Done"]


async def test_a_pull_that_fails_inside_a_200_creates_nothing(tmp_path: Path) -> None:
    """Case 47."""
    async with world(tmp_path) as (fake, _, backend):
        broken = b'{"errorDetail":{"message":"manifest unknown"},"error":"manifest unknown"}'
        fake.script("POST", "/images/create", sends(answer(200, broken)))
        error = await refused(backend, template="nope/nope:1")
        assert isinstance(error, CreationError)
        assert "nope/nope:1" in error.message
        assert not any(request.path.endswith("/containers/create") for request in fake.requests)


@pytest.mark.parametrize("label", ["managed", "meta.tenant_id", "isolation", "of-a-later-version"])
async def test_an_image_with_labels_of_ours_is_refused(label: str, tmp_path: Path) -> None:
    """Its containers would have them too: as their creator's metadata, or as the proof of gVisor."""
    async with world(tmp_path) as (fake, _, backend):
        key = f"io.sandboxio.{label}"
        fake.images["app:1"] = {"Config": {"Labels": {"maintainer": "x", key: ""}}}
        error = await refused(backend, template="app:1")
        assert isinstance(error, ConfigurationError)
        assert key in error.message
        assert "docker commit" in (error.hint or "")
        assert not fake.asked("create")
        fake.images["app:1"] = {"Config": {"Labels": {"io.sandboxios": "x", "meta.tenant_id": "x"}}}
        async with await backend.create(template="app:1", timeout=60):
            assert fake.asked("create")


# Users


PASSWD = b"root:x:0:0::/root:/bin/sh\napp:x:1000:1001::/home/app:/bin/sh\n"


@asynccontextmanager
async def filled(fake: FakeEngine, **files: bytes) -> AsyncGenerator[None]:
    """Files of /etc in the container that is created meanwhile; what begins with "->" is a link."""
    with fake.gate("create", "after") as gate:

        async def fill() -> None:
            await gate.reached.wait()
            (container,) = fake.containers.values()
            for name, content in files.items():
                path = b"/etc/" + name.encode()
                if content.startswith(b"->"):
                    container.links[path] = content[2:]
                else:
                    container.files[path] = content
            gate.release()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fill)
            yield


@pytest.mark.parametrize(
    ("user", "owner"),
    [
        ("app", (1000, 1001)),
        ("1000", (1000, 1001)),
        ("1000:5", (1000, 5)),
        ("2000", (2000, 0)),
        ("app:staff", (1000, 50)),
        ("1000:staff", (1000, 50)),
        ("3000", (3000, 0)),
        ("2147483647:2147483647", (2147483647, 2147483647)),
    ],
)
@pytest.mark.parametrize("linked", [False, True])
async def test_an_image_with_a_user_gets_its_working_folder(
    user: str, owner: tuple[int, int], linked: bool, tmp_path: Path
) -> None:
    """Case 54: what is written belongs to the user that runs commands."""
    async with world(tmp_path) as (fake, _, backend):
        fake.images["app:1"] = {"Config": {"User": user}}
        files = {"passwd": PASSWD, "group": b"root:x:0:\nstaff:x:50:\n"}
        if linked:  # as in images that keep /etc elsewhere
            files = {"passwd": b"->/etc/a", "group": b"->/etc/b", "a": PASSWD, "b": files["group"]}
        async with filled(fake, **files):
            sandbox = await backend.create(template="app:1", timeout=60)
        (container,) = fake.containers.values()
        assert container.owners[b"/work"] == (*owner, 0o755)
        assert b"localhost" in container.files[b"/etc/hosts"]
        steps = [fake._route(request)[0] for request in fake.requests]
        assert steps.index("archive_put") < steps.index("start"), "before anything of it runs"
        await sandbox.kill()


async def test_a_user_that_is_two_numbers_needs_no_file(tmp_path: Path) -> None:
    async with world(tmp_path) as (fake, _, backend):
        fake.images["app:1"] = {"Config": {"User": "1000:1000"}}
        fake.fail("archive_get", 500, "nothing can be read")
        with pytest.raises(CreationError):
            await backend.create(template="app:1", timeout=60)
        assert [request.query["path"] for request in fake.asked("archive_get")] == ["/etc/hosts"]


@pytest.mark.parametrize(
    ("user", "files", "says"),
    [
        ("app", {"passwd": b"app:x:abc:100::/:/bin/sh\n"}, "'abc'"),
        ("app", {"passwd": b"app:x:1000:::/:/bin/sh\n"}, "''"),
        ("app", {"passwd": b"app:x:" + b"9" * 5000 + b":100::/:/bin/sh\n"}, "9999"),
        ("app", {"passwd": b"app:x:2147483648:100::/:/bin/sh\n"}, "larger"),
        ("app", {"passwd": b"app\n"}, "not in its /etc/passwd"),
        ("app", {"passwd": b"x:x:1:1:\x0capp:x:0:0::/:/bin/sh\n"}, "not in its /etc/passwd"),
        ("1:staff", {"group": b"staff:x:x:\n"}, "'x'"),
        ("app", {"passwd": b"->/etc/passwd"}, "too many"),
        ("app", {"passwd": b"x" * (1 << 20) + b"x"}, "at most"),
        ("4294967296", {}, "larger"),
        ("9" * 5000, {}, "larger"),
        ("1:" + "9" * 5000, {}, "larger"),
    ],
)
async def test_a_user_that_cannot_be_read(
    user: str, files: dict[str, bytes], says: str, tmp_path: Path
) -> None:
    """The engine would take root for some of these."""
    async with world(tmp_path) as (fake, _, backend):
        fake.images["app:1"] = {"Config": {"User": user}}
        async with filled(fake, **files):
            error = await refused(backend, template="app:1")
        assert isinstance(error, CreationError)
        assert says in error.message
        assert len(error.message) < 300


async def test_a_user_that_the_image_does_not_know(tmp_path: Path) -> None:
    async with world(tmp_path) as (fake, _, backend):
        fake.images["app:1"] = {"Config": {"User": "nobody-there"}}
        error = await refused(backend, template="app:1")
        assert isinstance(error, CreationError)
        assert "nobody-there" in error.message


# configured


async def test_a_config_with_a_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(tmp_path) as (fake, _, backend):
        sandboxio.register("docker", lambda: backend)
        try:
            async with await sandboxio.create(DockerConfig(runtime="kata")):
                (container,) = fake.containers.values()
                assert container.host_config["Runtime"] == "kata"
            async with await sandboxio.create("docker://"):
                (container,) = fake.containers.values()
                assert "Runtime" not in container.host_config
        finally:
            from sandboxio import registry

            registry.unregister("docker")
    with pytest.raises(ConfigurationError, match="DockerConfig"):
        backend.configured(BackendConfig(backend="docker"))


# The lifeline


@pytest.mark.parametrize(("value", "removes"), [(None, True), ("1", True), ("0", False)])
async def test_the_lifeline_can_be_turned_off(
    value: str | None, removes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if value is not None:
        monkeypatch.setenv("SBX_DOCKER_REAPER", value)
    async with world(tmp_path) as (fake, _, backend), await backend.create(timeout=7):
        (container,) = fake.containers.values()
        assert container.host_config["AutoRemove"] is removes
        lifetime, lifeline, work, localhost = container.config["Entrypoint"][4:8]
        assert (lifetime, lifeline, work, localhost) == ("7", str(int(removes)), "/work", "1")


# connect, list, kill


async def test_connect(tmp_path: Path) -> None:
    async with world(tmp_path) as (fake, _, backend):
        metadata = {"tenant_id": "acme", "k=v é": "x\ny"}
        async with await backend.create(timeout=50, metadata=metadata) as sandbox:
            again = await DockerBackend(host=fake.url, channel="exec").connect(sandbox.id)
            assert again.id == sandbox.id
            assert (await again.run(["echo", "x"])).stdout == "x\n"
            assert "chosen" in repr(again)
            await again.kill()
            assert not fake.containers
            with pytest.raises(SandboxGone):
                await sandbox.run(["true"])


async def test_what_cannot_be_connected_to(tmp_path: Path) -> None:
    async with world(tmp_path) as (fake, _, backend):
        sandbox = await backend.create(timeout=50)
        container = fake.containers[sandbox.id]
        for name in ("no-such-sandbox", "0" * 12 + "f"):
            with pytest.raises(ConnectError, match="no sandbox"):
                await backend.connect(name)
        for wrong in ("", " ", "a\0b"):
            with pytest.raises(ConnectError):
                await backend.connect(wrong)
        container.state = "paused"
        with pytest.raises(ConnectError, match="paused"):
            await backend.connect(sandbox.id)
        container.state = "exited"
        with pytest.raises(ConnectError, match="ended"):
            await backend.connect(sandbox.id)
        container.state = "running"
        labels, container.config["Labels"] = container.config["Labels"], {"owner": "somebody"}
        with pytest.raises(ConnectError, match="not a sandbox"):
            await backend.connect(sandbox.id)
        with pytest.raises(ConnectError, match="not a sandbox"):
            await backend.kill_managed(sandbox.id)
        assert await backend.list_managed() == []
        container.config["Labels"] = labels
        await sandbox.kill()


async def test_a_second_guest_that_never_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where code inside stops every process that starts."""
    monkeypatch.setattr(join, "ANSWER", 0.2)
    async with world(tmp_path) as (fake, _, backend), await backend.create(timeout=50) as sandbox:
        fake.exec = until_stdin_ends
        with anyio.fail_after(5), pytest.raises(ConnectError, match="did not answer"):
            await backend.connect(sandbox.id)
        (process,) = fake.execs.values()
        with anyio.fail_after(5):
            await process.ended.wait()
        assert (await sandbox.run(["echo", "x"])).stdout == "x\n"


async def test_list_and_kill(tmp_path: Path) -> None:
    """Case 27: everything under the label is listed, whatever its state; nothing else is touched."""
    async with world(tmp_path) as (fake, _, backend):
        one = await backend.create(timeout=50, metadata={"tenant_id": "acme", "run": "1"})
        two = await backend.create(timeout=50, metadata={"tenant_id": "other"})
        await backend._engine.post_json(
            "/containers/create", {"Image": "python:3.12-slim"}, params={"name": "foreign"}
        )
        found = {each.sandbox_id: each for each in await backend.list_managed()}
        assert set(found) == {one.id, two.id}
        assert found[one.id].labels == {"tenant_id": "acme", "run": "1"}
        assert found[one.id].state == "running"
        assert found[one.id].backend == "docker"
        assert [each.sandbox_id for each in await backend.list_managed(labels={"run": "1"})] == [one.id]
        assert await backend.list_managed(labels={"run": "2"}) == []
        assert await backend.kill_managed(one.id) is True
        assert await backend.kill_managed(one.id) is False
        assert await backend.kill_managed(fake.containers[two.id].name) is True
        with pytest.raises(ConnectError):
            await backend.kill_managed("foreign")
        (left,) = fake.containers
        await backend._engine.request("DELETE", f"/containers/{left}")
        await one.kill()
        await two.kill()


async def test_kill_waits_for_a_removal_under_way(tmp_path: Path) -> None:
    """Case 23: 409 means that somebody else removes it; kill() returns when it is gone."""
    async with world(tmp_path) as (fake, _, backend):
        sandbox = await backend.create(timeout=50)
        words = f"removal of container {sandbox.id} is already in progress"
        fake.fail("delete", 409, words, times=3)
        await sandbox.kill()
        assert len(fake.asked("delete")) >= 3
        assert not fake.containers
        await sandbox.kill()
        assert (await backend.kill_managed(sandbox.id)) is False


async def test_a_removal_that_never_ends_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or `sandboxio reap --kill` would not come to the next sandbox."""
    monkeypatch.setattr(lifecycle, "REMOVAL", 0.2)
    async with world(tmp_path) as (fake, _, backend):
        sandbox = await backend.create(timeout=50)
        fake.fail("delete", 409, f"removal of container {sandbox.id} is already in progress", times=1000)
        with anyio.fail_after(10), pytest.raises(ConnectError, match="already in progress") as caught:
            await backend.kill_managed(sandbox.id)
        assert "within 0.2 s" in caught.value.message
        assert "Restart the engine" in (caught.value.hint or "")
        fake._failures["delete"].clear()
        await sandbox.kill()


async def test_kill_is_quiet_about_what_is_gone(tmp_path: Path) -> None:
    async with world(tmp_path) as (fake, _, backend):
        sandbox = await backend.create(timeout=50)
        await fake.die(sandbox.id, 0)
        await sandbox.kill()
        await sandbox.kill()


async def test_a_refused_removal_says_how_to_finish_it(tmp_path: Path) -> None:
    async with world(tmp_path) as (fake, _, backend):
        sandbox = await backend.create(timeout=50)
        (container,) = fake.containers.values()
        container.config["HostConfig"]["AutoRemove"] = False
        fake.fail("delete", 500, "driver failed to remove root filesystem")
        with pytest.raises(ConnectError, match="root filesystem") as caught:
            await sandbox.kill()
        assert "sandboxio reap --kill" in caught.value.hint
        await backend.kill_managed(sandbox.id)


async def test_many_at_once(tmp_path: Path) -> None:
    """Case 22: closing many is concurrent; each has a container of its own."""
    async with world(tmp_path) as (fake, _, backend):
        made: list[Any] = []

        async def one() -> None:
            made.append(await backend.create(timeout=50))

        async with anyio.create_task_group() as tasks:
            for _ in range(30):
                tasks.start_soon(one)
        assert len(fake.containers) == len({each.id for each in made}) == 30
        async with anyio.create_task_group() as tasks:
            for each in made:
                tasks.start_soon(each.kill)


def test_one_backend_serves_one_loop_after_another(tmp_path: Path) -> None:
    """Nothing of a loop stays in the backend."""

    async def use(url: str) -> None:
        async with await backend.create(timeout=50) as sandbox:
            assert (await sandbox.run(["echo", "x"])).stdout == "x\n"

    async def main() -> None:
        async with FakeEngine.on(tmp_path) as fake:
            Inside(fake)
            backend._engine = type(backend._engine)(fake.url, environ={})
            await use(fake.url)

    backend = DockerBackend()
    for loop in ("asyncio", "trio", "asyncio"):
        anyio.run(main, backend=loop)


# SandboxGone tells why


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"exit_code": 3}, "exit code 3"),
        ({"exit_code": 137, "oom": True}, "512 MiB"),
    ],
)
async def test_how_a_sandbox_ended(how: dict[str, Any], says: str, tmp_path: Path) -> None:
    async with world(tmp_path) as (fake, inside, backend):
        sandbox = await backend.create(timeout=50)
        caught: list[SandboxGone] = []

        async def hang() -> None:
            with pytest.raises(SandboxGone, match=says) as error:
                await sandbox.run(["sleep", "30"])
            caught.append(error.value)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hang)
            with anyio.fail_after(5):
                while not inside.alive:
                    await anyio.sleep(0.01)
            await fake.die(sandbox.id, **how)
        assert caught[0].partial is not None
        with pytest.raises(SandboxGone, match=says):
            await sandbox.run(["true"])


async def test_the_end_of_the_lifetime_is_named(tmp_path: Path) -> None:
    async def ends_later(io: IO) -> int:
        with anyio.move_on_after(1.0):
            return await inside.guest(io)
        return 0

    async with world(tmp_path) as (fake, inside, backend):
        fake.main = ends_later
        sandbox = await backend.create(timeout=1)
        with pytest.raises(SandboxGone, match="lifetime of 1 s"):
            await sandbox.run(["sleep", "30"], timeout=20)


async def test_bytes_that_no_guest_sends_end_the_sandbox(tmp_path: Path) -> None:
    """What comes from inside is hostile: a typed error, and the container is removed."""
    created = anyio.Event()

    async def lies(io: IO) -> int:
        with anyio.move_on_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(inside.guest, io)
                await created.wait()
                await io.write(b"\xff" * 20)
                await anyio.sleep(20)
        return 0

    async with world(tmp_path) as (fake, inside, backend):
        fake.main = lies
        sandbox = await backend.create(timeout=50)
        created.set()
        with pytest.raises(ConnectError, match="protocol"):
            await sandbox.run(["sleep", "30"])
        assert not fake.containers
        with pytest.raises(SandboxGone):
            await sandbox.run(["true"])


def test_docker_backend_declares_what_it_can() -> None:
    backend = DockerBackend()
    assert backend.isolation is IsolationTier.CONTAINER
    assert Capability.STATEFUL_CODE not in backend.capabilities
    assert Capability.NETWORK_POLICY in backend.capabilities

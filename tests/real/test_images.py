"""Images as users have them: with an ENTRYPOINT or USER, without Python, shell or GNU tools."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from sandboxio import Capability
from sandboxio.errors import CapabilityNotSupported, CreationError, ExecutionTimeout
from sandboxio_docker import DockerBackend

from . import images
from .test_files import NAMES
from .test_lifecycle import held, none_held

pytestmark = pytest.mark.engine


async def works(backend: DockerBackend) -> None:
    """The least that a sandbox has to do."""
    async with await backend.create(timeout=120) as sandbox:
        assert (await sandbox.run(["echo", "x"])).stdout == "x\n"
        await sandbox.files.write("f", b"1")
        assert (await sandbox.run("cat f; pwd")).stdout == "1/work\n"


@pytest.mark.parametrize(
    "changes",
    [
        ('ENTRYPOINT ["/bin/bash"]',),
        ('ENTRYPOINT ["echo"]', 'CMD ["hello"]'),
        ("HEALTHCHECK CMD false",),
        ("USER root", "EXPOSE 80"),
        ("VOLUME /work",),
        ("WORKDIR /srv", "ENV PATH=/usr/bin:/bin"),
    ],
    ids=lambda changes: changes[0],
)
async def test_what_an_image_says_does_not_matter(
    changes: tuple[str, ...], docker_image: str, channel: Any
) -> None:
    """Case 51."""
    with images.derived(docker_image, "changed", *changes) as image:
        await works(DockerBackend(image=image, channel=channel))


@pytest.mark.parametrize("user", ["1000:1000", "app", "app:app", "4711"])
async def test_a_user_that_is_not_root(user: str, docker_image: str, channel: Any, tmp_path: Path) -> None:
    """Case 54: what is written belongs to the user that runs commands, who may change and remove it."""
    script = "useradd --create-home --uid 1000 app || useradd -m -u 1000 app"
    with images.derived(docker_image, "user", f"USER {user}", script=script) as image:
        local = tmp_path / "tool.sh"
        local.write_text("#!/bin/sh\nid -u\n")
        local.chmod(0o755)
        async with await DockerBackend(image=image, channel=channel).create(timeout=120) as sandbox:
            uid = (await sandbox.run(["id", "-u"])).stdout
            assert uid == ("4711\n" if user == "4711" else "1000\n")
            await sandbox.files.write("a.txt", b"1")
            result = await sandbox.run("echo 2 >> a.txt && stat -c %u a.txt . && rm a.txt")
            assert (result.exit_code, result.stdout) == (0, uid * 2), result
            await sandbox.files.upload(local, "tool.sh")
            assert (await sandbox.run(["./tool.sh"])).stdout == uid
            assert (await sandbox.run_code("import socket; print(socket.gethostbyname('localhost'))")).ok
            with pytest.raises(ExecutionTimeout):
                await sandbox.run("sleep 60", timeout=1)
            left = await sandbox.run("grep -al -e '[s]leep.60' /proc/[0-9]*/cmdline 2>/dev/null; true")
            assert left.stdout == ""


async def test_an_image_without_python(without_python: str) -> None:
    """Case 52: everything but code, over exec, and the repr says why."""
    backend = DockerBackend(image=without_python)
    await works(backend)
    async with await backend.create(timeout=120) as sandbox:
        assert "exec(no python3" in repr(sandbox)
        assert Capability.RUN_CODE not in sandbox.capabilities
        with pytest.raises(CapabilityNotSupported, match="no Python"):
            await sandbox.run_code("print(1)")
        assert "localhost" in (await sandbox.run("cat /etc/hosts")).stdout
    with pytest.raises(CreationError, match="guest"):
        await DockerBackend(image=without_python, channel="guest").create(timeout=60)


async def test_an_image_of_busybox(busybox_image: str) -> None:
    """Cases 10, 12, 52, 58 and 60 with busybox's own shell and tools."""
    async with await DockerBackend(image=busybox_image).create(timeout=120) as sandbox:
        await sandbox.files.mkdir("names")
        for name in NAMES:
            content = name.encode("utf-8", "surrogateescape")
            await sandbox.files.write(f"names/{name}", content)
            assert await sandbox.files.read(f"names/{name}") == content
        listed = {entry.path for entry in await sandbox.files.ls("names")}
        assert listed == {f"names/{name}" for name in NAMES}
        for command in ("sleep 61", "trap '' TERM; sleep 61; sleep 61", "sleep 61 & sleep 61"):
            with pytest.raises(ExecutionTimeout):
                await sandbox.run(command, timeout=1)
            left = await sandbox.run("grep -l -e '[s]leep.61' /proc/[0-9]*/cmdline 2>/dev/null; true")
            assert left.stdout == ""
        zombies = "grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l"
        await sandbox.run("for i in 1 2 3 4 5; do (sleep 0.05 &); done; sleep 0.3")
        with anyio.fail_after(20):  # process 1 is a shell that looks every three seconds
            while int((await sandbox.run(zombies)).stdout) > 2:
                await anyio.sleep(0.3)
        await sandbox.files.remove("names")


async def test_a_lifetime_without_python(busybox_image: str, without_python: str) -> None:
    for image in (busybox_image, without_python):
        began = time.monotonic()
        sandbox = await DockerBackend(image=image).create(timeout=2, metadata={"test": image})
        with pytest.raises(Exception, match="lifetime"):
            await sandbox.run("sleep 60", timeout=30)
        assert time.monotonic() - began < 8
        await sandbox.kill()
        await none_held(image)


async def test_an_image_without_a_shell(without_shell: str) -> None:
    """Case 52: Python alone is enough for the guest; a text command says what is missing."""
    async with await DockerBackend(image=without_shell).create(timeout=120) as sandbox:
        assert "guest(" in repr(sandbox)
        assert (await sandbox.run_code("print(1)")).stdout == "1\n"
        assert (await sandbox.run(["python3", "-c", "print(2)"])).stdout == "2\n"
        await sandbox.files.write("f", b"1")
        assert await sandbox.files.read("f") == b"1"
        result = await sandbox.run("echo hi")
        assert result.exit_code == 127
        assert "/bin/sh" in result.stderr
        with pytest.raises(ExecutionTimeout):
            await sandbox.run(["python3", "-c", "import time; time.sleep(60)"], timeout=1)
    with pytest.raises(CreationError, match="no /bin/sh"):
        await DockerBackend(image=without_shell, channel="exec").create(timeout=60)


async def test_an_image_with_nothing(with_nothing: str) -> None:
    for channel in ("auto", "guest", "exec"):
        with pytest.raises(CreationError, match="/bin/sh"):
            await DockerBackend(image=with_nothing, channel=channel).create(  # type: ignore[arg-type]
                timeout=60, metadata={"test": with_nothing}
            )
        assert not held(with_nothing)


async def test_an_image_for_another_machine(docker_image: str) -> None:
    """A program that the kernel cannot execute, as in an image for another architecture."""
    alien = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00\xb7\x00" + bytes(200)
    with images.imported("alien", {"bin/sh": alien}) as image:
        with pytest.raises(CreationError, match=image.partition(":")[2]):
            await DockerBackend(image=image).create(timeout=60, metadata={"test": image})
        assert not held(image)

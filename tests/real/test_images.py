"""Images as users have them: with an ENTRYPOINT or USER, without Python, shell or GNU tools."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest

from sandboxio import Capability
from sandboxio.errors import (
    CapabilityNotSupported,
    ConfigurationError,
    CreationError,
    ExecutionTimeout,
    FileSystemError,
    SandboxError,
)
from sandboxio_docker import DockerBackend
from scripts import engine_api

from . import images
from .creators import held
from .test_files import NAMES
from .test_lifecycle import none_held

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
        ('ENTRYPOINT ["/slow"]',),
        ("VOLUME /work", "USER app"),
        ("WORKDIR /work", "USER 1000:1000", "VOLUME /work /tmp"),
    ],
    ids=" ".join,
)
async def test_what_an_image_says_does_not_matter(
    changes: tuple[str, ...], docker_image: str, channel: Any
) -> None:
    """Cases 51 and 54: /work belongs to the user, also where the image has a folder or a volume there."""
    if "HEALTHCHECK" in changes[0] and images.is_podman():
        pytest.skip("Podman has no health check in an image that it makes")
    script = (
        "useradd --uid 1000 app; mkdir -p /work; echo old >/work/old; chmod 700 /work; "
        "printf '#!/bin/sh\\nsleep 600\\nexec \"$@\"\\n' >/slow; chmod 755 /slow"
    )
    with images.derived(docker_image, "changed", *changes, script=script, signal="SIGINT") as image:
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
            age = await sandbox.run("echo $(($(date +%s) - $(stat -c %Y tool.sh)))")
            assert -5 < int(age.stdout) < 100, "the time of an upload is now, not 1970"
            assert (await sandbox.run_code("import socket; print(socket.gethostbyname('localhost'))")).ok
            with pytest.raises(ExecutionTimeout):
                await sandbox.run("sleep 60", timeout=1)
            left = await sandbox.run("grep -al -e '[s]leep.60' /proc/[0-9]*/cmdline 2>/dev/null; true")
            assert left.stdout == ""


@pytest.fixture(scope="session")
def only_python(docker_image: str) -> Generator[Callable[[str], str]]:
    """An image whose only Python has the given version; each is made once."""
    with ExitStack() as stack:

        @functools.cache
        def image_for(version: str) -> str:
            found = images.python_of_pyenv(version)
            if found is None:
                pytest.skip(f"pyenv has no Python {version} on this machine: pyenv install {version}")
            content, program = found
            link = f"/usr/bin/python{version[0]}"
            script = (
                f"rm -f /usr/bin/python* /usr/local/bin/python*; ln -s {program} {link}; {link} --version"
            )
            made = images.derived(docker_image, f"py{version}", script=script, add=content)
            return stack.enter_context(made)

        yield image_for


@pytest.mark.parametrize("version", ["3.8", "3.13"])
async def test_an_image_with_another_python(
    version: str, only_python: Callable[[str], str], channel: Any
) -> None:
    """The oldest that the guest supports, and a new one."""
    async with await DockerBackend(image=only_python(version), channel=channel).create(
        timeout=120
    ) as sandbox:
        assert repr(sandbox).count(f"guest(python {version}.") == (channel == "guest")
        code = "import sys; print('é', *sys.version_info[:2], sep='.')\nopen('f', 'w').write('1')"
        assert (await sandbox.run_code(code)).stdout == f"é.{version}\n"
        assert await sandbox.files.read("f") == b"1"
        async with sandbox.stream("echo a; echo b >&2; exit 3") as process:
            seen = [(chunk.stream, chunk.data) async for chunk in process]
        assert sorted(seen) == [("stderr", b"b\n"), ("stdout", b"a\n")]
        assert (await sandbox.run("exit 3")).exit_code == 3
        with pytest.raises(ExecutionTimeout):
            await sandbox.run("trap '' TERM; sleep 62 & sleep 62", timeout=1)
        left = await sandbox.run("grep -al -e '[s]leep.62' /proc/[0-9]*/cmdline 2>/dev/null; true")
        assert left.stdout == ""


@pytest.mark.parametrize("version", ["2.7", "3.7"])
async def test_an_image_with_too_old_a_python(version: str, only_python: Callable[[str], str]) -> None:
    """As if it had none, unless an interpreter is named: then that one runs code."""
    image = only_python(version)
    async with await DockerBackend(image=image).create(timeout=120) as sandbox:
        assert "exec(no python3 of version 3.8 or newer)" in repr(sandbox)
        assert Capability.RUN_CODE not in sandbox.capabilities
        await sandbox.files.write("f", b"1")
        assert (await sandbox.run("cat f; pwd")).stdout == "1/work\n"
    if version > "3":  # an interpreter is called with options that Python 2 has not
        named = DockerBackend(image=image, interpreter="python3")
        async with await named.create(timeout=120) as sandbox:
            code = "import sys; print('é', *sys.version_info[:2], sep='.')"
            assert (await sandbox.run_code(code)).stdout == f"é.{version}\n"
    with pytest.raises(CreationError, match=r"3\.8 or newer"):
        await DockerBackend(image=image, channel="guest").create(timeout=60)


async def test_code_as_editors_write_it(docker_image: str, channel: Any) -> None:
    """Case 70: whatever the image's locale, code is UTF-8, with or without a mark or a cookie."""
    with images.derived(docker_image, "locale", "ENV LC_ALL=C", "ENV LANG=de_DE.ISO-8859-1") as image:
        async with await DockerBackend(image=image, channel=channel).create(timeout=120) as sandbox:
            for code in (
                "print('é漢🙂')",
                "\ufeffprint('é漢🙂')",
                "# -*- coding: latin-1 -*-\nprint('é漢🙂')\n",
                "if True:\r\n    print('é漢🙂')\r\n",
            ):
                result = await sandbox.run_code(code)
                assert (result.stdout, result.stderr) == ("é漢🙂\n", ""), code
            with pytest.raises(SandboxError, match="UTF-8"):
                await sandbox.run_code("print('\udcff')")
            code = "import os; print(os.environ['LC_ALL'], os.environ['LANG'])"
            assert (await sandbox.run_code(code)).stdout == "C de_DE.ISO-8859-1\n", "the image's own remain"


async def test_an_image_whose_python_is_broken(docker_image: str) -> None:
    """Case 51: the first program ends at once; the error has its exit code and its last words."""
    script = (
        "cd /usr/bin; rm -f /usr/local/bin/python3 python3; "
        "printf '#!/bin/sh\\necho no libraries today >&2\\nexit 9\\n' >python3; chmod 755 python3"
    )
    with images.derived(docker_image, "broken", script=script) as image:
        with pytest.raises(CreationError, match="no libraries today") as caught:
            await DockerBackend(image=image).create(timeout=60, metadata={"test": image})
        assert "9" in caught.value.message
        assert image in caught.value.message
        assert not held(image)


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
        kinds = (
            "mkdir -p d/e; cd d; touch 'a -> b' \"$(printf 'n\\nl')\" -- -dash .dot; echo 12345 >five; "
            "ln -s nowhere dangling; ln -s e link; mkfifo p"
        )
        assert (await sandbox.run(kinds)).ok
        found = {entry.path: (entry.is_dir, entry.size) for entry in await sandbox.files.ls("d")}
        folders = {"d/e", "d/link"}
        names = {"d/a -> b", "d/n\nl", "d/-dash", "d/.dot", "d/five", "d/dangling", "d/p"} | folders
        assert found.keys() == names
        assert {path for path, (is_folder, _) in found.items() if is_folder} == folders
        assert (found["d/five"], found["d/p"]) == ((False, 6), (False, 0))


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


BARE = """
import os
for folder in ("/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/local/bin"):
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        if not name.startswith("python"):
            os.remove(os.path.join(folder, name))
"""


@pytest.mark.parametrize("user", ["root", "65532:65532"])
async def test_an_image_of_python_alone(user: str, docker_image: str) -> None:
    """Cases 52 and 54: as distroless Python, which has no tool at all, and mostly another user than root."""
    with images.derived(docker_image, "bare", f"USER {user}", script=f"exec python3 -c '{BARE}'") as image:
        async with await DockerBackend(image=image).create(timeout=120) as sandbox:
            assert "guest(" in repr(sandbox)
            code = "import os; print(os.getuid(), os.getcwd(), os.stat('.').st_uid)"
            uid = 0 if user == "root" else 65532
            assert (await sandbox.run_code(code)).stdout == f"{uid} /work {uid}\n"
            await sandbox.files.mkdir("d")
            await sandbox.files.write("d/f", b"1")
            assert [entry.path for entry in await sandbox.files.ls("d")] == ["d/f"]
            assert await sandbox.files.read("d/f") == b"1"
            await sandbox.files.remove("d")
            assert (await sandbox.run(["ls"])).exit_code == 127
            nested = (
                "import subprocess, sys, time\nargs = [sys.executable, '-c', 'import time; time.sleep(63)']\n"
            )
            with pytest.raises(ExecutionTimeout):
                await sandbox.run_code(f"{nested}subprocess.Popen(args)\ntime.sleep(63)", timeout=1)
            alive = "import glob\nlines = [open(p, 'rb').read() for p in glob.glob('/proc/[0-9]*/cmdline')]\n"
            alive += "print([line for line in lines if b'sleep(63' in line])"
            assert (await sandbox.run_code(alive)).stdout == "[]\n"


@pytest.mark.parametrize("user", ["app", "1000", "1000:1000"])
async def test_a_user_whose_files_are_links(user: str, docker_image: str, channel: Any) -> None:
    """As in images that keep /etc elsewhere."""
    script = (
        "useradd --create-home --uid 1000 app || exit 1; mkdir /conf; cd /etc; "
        "mv passwd group /conf; ln -s ../conf/passwd link; ln -s link passwd; ln -s /conf/group group"
    )
    with images.derived(docker_image, "linked", f"USER {user}", script=script) as image:
        async with await DockerBackend(image=image, channel=channel).create(timeout=120) as sandbox:
            result = await sandbox.run("echo x > f; stat -c %u:%g . f; id -u")
            assert result.stdout == "1000:1000\n1000:1000\n1000\n"


async def test_a_user_on_busybox(busybox_image: str) -> None:
    """Case 54 where only small tools do the work."""
    with images.derived(busybox_image, "busybox-user", "USER app", "ENV PATH=/bin") as image:
        async with await DockerBackend(image=image).create(timeout=120) as sandbox:
            assert "exec(" in repr(sandbox)
            await sandbox.files.write("a.txt", b"1")
            result = await sandbox.run(
                "echo 2 >> a.txt && stat -c %u a.txt . && cat a.txt && rm a.txt; id -u"
            )
            assert result.stdout == "1000\n1000\n12\n1000\n", result


async def test_an_image_that_poses_as_somebodys_sandbox(docker_image: str) -> None:
    """The engine gives an image's labels to its containers, where they would be metadata and proof."""
    with images.derived(docker_image, "posing", "LABEL io.sandboxio.meta.tenant_id=victim") as image:
        with pytest.raises(ConfigurationError, match="tenant_id"):
            await DockerBackend(image=image).create(timeout=120)
        assert await DockerBackend().list_managed(labels={"tenant_id": "victim"}) == []


async def test_a_container_with_a_read_only_root(docker_image: str, channel: Any) -> None:
    """Case 57: one that somebody made, with a tmpfs to work in; what cannot be written says so."""
    body = {
        "Image": docker_image,
        "Entrypoint": ["sleep", "300"],
        "Cmd": [],
        "WorkingDir": "/work",
        "Labels": {"io.sandboxio.managed": "true", "io.sandboxio.timeout": "300"},
        "HostConfig": {"ReadonlyRootfs": True, "Tmpfs": {"/work": "", "/tmp": ""}, "NetworkMode": "none"},
    }
    container = json.loads(images.ask("POST", "/containers/create", body))["Id"]
    try:
        images.ask("POST", f"/containers/{container}/start")
        sandbox = await DockerBackend(channel=channel).connect(container)
        try:
            for path in ("f", "/tmp/f"):
                await sandbox.files.write(path, b"1")
                assert (await sandbox.run(["cat", path])).stdout == "1"
            await sandbox.run("echo 2 > b")
            assert await sandbox.files.read("b") == b"2\n"
            for path in ("/etc/x", "/etc/passwd"):
                with pytest.raises(FileSystemError, match="is on a read-only file system") as caught:
                    await sandbox.files.write(path, b"")
                assert "/tmp" in caught.value.hint
        finally:
            await sandbox.kill()
    finally:
        engine_api.request("DELETE", f"/containers/{container}?force=1")


async def test_an_image_with_one_program(docker_image: str) -> None:
    """Case 52: as `FROM scratch` with a static binary. Nothing in it can stay alive, and it says so."""
    tool = images.busybox()
    if tool is None:
        pytest.skip("this machine has no static busybox: apt-get install busybox-static")
    with images.imported("scratch", {"bin/app": Path(tool).read_bytes()}, 'ENTRYPOINT ["/bin/app"]') as image:
        with pytest.raises(CreationError, match="neither /bin/sh nor python3") as caught:
            await DockerBackend(image=image).create(timeout=60, metadata={"test": image})
        assert image in caught.value.message
        assert "Python" in caught.value.hint
        assert not held(image)


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

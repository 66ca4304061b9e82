"""Files of real containers, over both channels."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import anyio
import pytest

from sandboxio.errors import FileSystemError, PathNotFound, SandboxError
from sandboxio_docker import DockerBackend, guest_files
from sandboxio_docker.sandbox import DockerSandbox

from .test_commands import resident

pytestmark = pytest.mark.engine

NAMES = [
    "n" * 100,
    "n" * 101,
    "n" * 255,
    "é" * 127,
    "漢" * 85,
    "a " * 60 + "x",
    "-rf",
    "--help",
    "new\nline",
    "tab\t",
    "q'\"$`\\",
    "...",
    ".hidden",
    "%s{0}",
    "\\x27",
    "a -> b",
    "'; touch pwn; '",
    "$(touch pwn)",
    "\udcff\udcfe",
]


async def test_names_survive_every_operation(sandbox: DockerSandbox, tmp_path: Path) -> None:
    """Cases 58, 60 and 67: every name that Linux takes, byte for byte, and none is shell text."""
    await sandbox.files.mkdir("/work/names")
    for name in NAMES:
        content = name.encode("utf-8", "surrogateescape")
        await sandbox.files.write(f"/work/names/{name}", content)
        assert await sandbox.files.read(f"/work/names/{name}") == content
    listed = await sandbox.files.ls("/work/names")
    assert {entry.path for entry in listed} == {f"/work/names/{name}" for name in NAMES}
    for name in NAMES:
        local = tmp_path / "copy"
        await sandbox.files.download(f"/work/names/{name}", local)
        assert local.read_bytes() == name.encode("utf-8", "surrogateescape")
        await sandbox.files.remove(f"/work/names/{name}")
    assert await sandbox.files.ls("/work/names") == []
    for folder in ("/work", "/"):
        assert not [entry for entry in await sandbox.files.ls(folder) if entry.path.endswith("pwn")]


async def test_names_that_cannot_be(sandbox: DockerSandbox) -> None:
    """Case 58: a typed error, and nothing half-written."""
    with pytest.raises(FileSystemError, match="long"):
        await sandbox.files.write("/work/" + "n" * 256, b"")
    with pytest.raises(SandboxError, match="NUL"):
        await sandbox.files.write("/work/a\0b", b"")
    assert await sandbox.files.ls("/work") == []


CONTENTS = [
    b"",
    b"\0",
    bytes(range(256)) * 500,
    b"\r\n\r",
    b"\xef\xbb\xbfx",
    ("x" * 8191 + "é" * 3).encode(),
    b"\x1f\x8b" + b"x" * 1000,
]


@pytest.mark.parametrize("content", [*CONTENTS, os.urandom(3 << 20)], ids=len)
async def test_content_is_not_touched(content: bytes, sandbox: DockerSandbox) -> None:
    """Case 61."""
    await sandbox.files.write("f", content)
    assert await sandbox.files.read("f") == content
    result = await sandbox.run(["python3", "-c", "import os; print(os.path.getsize('f'))"])
    assert result.stdout == f"{len(content)}\n"


async def test_a_listing_of_all_kinds(sandbox: DockerSandbox) -> None:
    """Case 60: compared with what Python inside sees, whatever ls would print."""
    script = (
        "mkdir -p d/e; cd d; touch 'a -> b' 'x  y' \"$(printf 'n\\nl')\" \"'q'\" -- -dash .dot; "
        "ln -s 'to  there' 'l -> m'; ln -s nowhere dangling; ln -s e link; mkfifo p; echo 12345 > five"
    )
    assert (await sandbox.run(script, env={"QUOTING_STYLE": "shell"})).ok
    code = "import os; print(sorted((e.name, e.is_dir()) for e in os.scandir('d')))"
    seen = (await sandbox.run_code(code)).stdout
    entries = await sandbox.files.ls("d")
    assert str(sorted((entry.path.removeprefix("d/"), entry.is_dir) for entry in entries)) + "\n" == seen
    sizes = {entry.path: entry.size for entry in entries}
    assert (sizes["d/five"], sizes["d/e"], sizes["d/p"]) == (6, 0, 0)
    with pytest.raises(PathNotFound):
        await sandbox.files.ls("missing")
    with pytest.raises(FileSystemError, match="no folder"):
        await sandbox.files.ls("d/five")


async def test_a_folder_of_many(sandbox: DockerSandbox) -> None:
    assert (await sandbox.run("mkdir many && cd many && seq 1 20000 | xargs touch")).ok
    assert len(await sandbox.files.ls("many")) == 20000
    await sandbox.files.remove("many")
    with pytest.raises(PathNotFound):
        await sandbox.files.ls("many")


async def test_a_folder_of_too_many(docker_image: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is inside says how many there are, and may say so without end."""
    monkeypatch.setattr(guest_files, "MAX_LISTING", 1 << 16)
    async with await DockerBackend(image=docker_image, channel="guest").create(timeout=120) as sandbox:
        assert (await sandbox.run("mkdir many && cd many && seq 1 20000 | xargs touch")).ok
        with pytest.raises(FileSystemError, match="more entries") as caught:
            await sandbox.files.ls("many")
        assert "find" in (caught.value.hint or "")
        assert (await sandbox.run("rm many/??*; ls many | wc -l")).stdout == "9\n"
        assert len(await sandbox.files.ls("many")) == 9


async def test_through_links_and_mounts(sandbox: DockerSandbox) -> None:
    """Cases 56 and 57: what is written is what processes see, on a tmpfs as well."""
    await sandbox.run("mkdir -p /run/x && ln -sfn /run/x /lnk && ln -s target alias")
    await sandbox.files.write("/lnk/b", b"2")
    assert (await sandbox.run("cat /run/x/b")).stdout == "2"
    await sandbox.files.write("alias", b"through")
    assert (await sandbox.run("cat target; readlink alias")).stdout == "throughtarget\n"
    await sandbox.files.write("/dev/shm/a", b"1")
    assert (await sandbox.run(["cat", "/dev/shm/a"])).stdout == "1"
    await sandbox.run("echo 2 > /dev/shm/b")
    assert await sandbox.files.read("/dev/shm/b") == b"2\n"
    with pytest.raises(FileSystemError):
        await sandbox.files.write("/proc/sys/x", b"")


async def test_a_link_with_a_slash_behind_it_is_removed_and_not_emptied(sandbox: DockerSandbox) -> None:
    assert (await sandbox.run("mkdir -p real/sub; echo kept >real/sub/file; ln -s real link")).ok
    await sandbox.files.remove("link//")
    assert await sandbox.files.read("real/sub/file") == b"kept\n"
    await sandbox.files.remove("real//")
    assert await sandbox.files.ls(".") == []
    with pytest.raises(FileSystemError):
        await sandbox.files.remove("//")


async def test_modes(sandbox: DockerSandbox, tmp_path: Path) -> None:
    """Case 54: an upload keeps its bits, a new file has 0644, an overwritten one what it had."""
    local = tmp_path / "tool"
    local.write_text("#!/bin/sh\necho works\n")
    local.chmod(0o755)
    await sandbox.files.upload(local, "tool")
    assert (await sandbox.run(["./tool"])).stdout == "works\n"
    await sandbox.files.write("plain", b"1")
    await sandbox.run("chmod 4640 plain")
    await sandbox.files.write("plain", b"2")
    modes = await sandbox.run(["stat", "-c", "%a %u", "tool", "plain"])
    first, second = modes.stdout.splitlines()
    assert first == "755 0"
    assert second in ("640 0", "4640 0")
    target = tmp_path / "out"
    target.write_text("old")
    target.chmod(0o600)
    await sandbox.files.download("plain", target)
    assert target.read_bytes() == b"2"
    assert stat.S_IMODE(target.stat().st_mode) == 0o600


async def test_what_is_no_file(sandbox: DockerSandbox, tmp_path: Path) -> None:
    """Case 62: refused at once; files of /proc have their content."""
    await sandbox.run("mkfifo fifo; mkdir folder")
    for path in ("/dev/zero", "fifo", "folder"):
        with anyio.fail_after(10), pytest.raises(FileSystemError):
            await sandbox.files.read(path)
    assert b"MemTotal" in await sandbox.files.read("/proc/meminfo")
    for operation in (
        sandbox.files.read("missing/x"),
        sandbox.files.write("missing/x", b""),
        sandbox.files.remove("missing"),
        sandbox.files.mkdir("missing/x"),
        sandbox.files.download("missing", tmp_path / "x"),
    ):
        with pytest.raises(PathNotFound):
            await operation
    assert not (tmp_path / "x").exists()
    await sandbox.files.mkdir("missing/x", parents=True)
    await sandbox.files.mkdir("missing/x", parents=True)
    with pytest.raises(FileSystemError, match="exists"):
        await sandbox.files.mkdir("missing/x")
    with pytest.raises(FileSystemError):
        await sandbox.files.remove("/")


@pytest.mark.slow
@pytest.mark.timeout(200)
async def test_a_large_file_is_not_held_in_memory(sandbox: DockerSandbox, tmp_path: Path) -> None:
    """Case 62."""
    big, back = tmp_path / "big", tmp_path / "back"
    with big.open("wb") as file:
        for _ in range(192):
            file.write(os.urandom(1 << 20))
    before, most = resident(), 0

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, resident())
            await anyio.sleep(0.02)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        await sandbox.files.upload(big, "big")
        await sandbox.files.download("big", back)
        tasks.cancel_scope.cancel()
    assert most - before < 50 << 20
    with big.open("rb") as one, back.open("rb") as two:
        while piece := one.read(1 << 20):
            assert piece == two.read(1 << 20)
    with pytest.raises(FileSystemError, match="64 MiB"):
        await sandbox.files.read("big")


@pytest.mark.parametrize("delay", [0.0, 0.02, 0.1, 0.3])
async def test_a_cancelled_write_leaves_one_file_whole(
    delay: float, sandbox: DockerSandbox, tmp_path: Path
) -> None:
    """No part of the new one, and no temporary file.

    The old one, except where the cancellation came between the rename and its answer.
    """
    await sandbox.files.write("f", b"old")
    content: Any = bytes(30 << 20)
    with anyio.move_on_after(delay) as scope:
        await sandbox.files.write("f", content)
    size = int((await sandbox.run("stat -c %s f")).stdout)
    assert size in ((3, len(content)) if scope.cancelled_caught else (len(content),))
    assert [entry.path for entry in await sandbox.files.ls("/work")] == ["/work/f"]


async def test_a_full_disk(sandbox: DockerSandbox) -> None:
    """A small tmpfs of the sandbox's own: /dev has 64 MiB. The old file stays, and no temporary one."""
    await sandbox.files.write("/dev/keep", b"old")
    await sandbox.run("head -c 66000000 /dev/zero > /dev/fill")
    with pytest.raises(FileSystemError, match=r"(?i)space"):
        await sandbox.files.write("/dev/keep", bytes(8 << 20))
    assert await sandbox.files.read("/dev/keep") == b"old"
    left = await sandbox.run("ls -a /dev | grep sandboxio; rm /dev/fill")
    assert left.stdout == ""

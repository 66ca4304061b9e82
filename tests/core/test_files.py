"""Host side of file transfer: atomic downloads, regular files only, limits while reading."""

from __future__ import annotations

import os
import stat
from array import array
from pathlib import Path

import anyio
import pytest

from sandboxio import ConfigurationError, FileSystemError, PathNotFound, _files

from .scripted import ScriptedBackend, ScriptedSandbox, World


@pytest.fixture
async def sandbox() -> ScriptedSandbox:
    return await ScriptedBackend(World()).create()


async def test_text_and_bytes_round_trip(sandbox: ScriptedSandbox) -> None:
    """Case 61: bytes in are bytes out, no guessing."""
    for data in (b"", b"\0", bytes(range(256)) * 20, b"\r\n\r", b"\xef\xbb\xbfx"):
        await sandbox.files.write("f", data)
        assert await sandbox.files.read("f") == data
    await sandbox.files.write("t", "é漢🙂")
    assert await sandbox.files.read("t") == "é漢🙂".encode()


@pytest.mark.parametrize(
    "view", [memoryview(array("i", [1, 2, 3])), memoryview(b"abcdef")[::2]], ids=["of integers", "with gaps"]
)
async def test_a_view_is_written_whole(view: memoryview, sandbox: ScriptedSandbox) -> None:
    await sandbox.files.write("f", view)  # type: ignore[arg-type]
    assert await sandbox.files.read("f") == view.tobytes()


async def test_text_that_is_no_unicode_is_refused(sandbox: ScriptedSandbox) -> None:
    with pytest.raises(ConfigurationError, match="lone surrogate at character 1"):
        await sandbox.files.write("f", "a\udcff")
    with pytest.raises(ConfigurationError, match="takes bytes or str, got int"):
        await sandbox.files.write("f", 3)  # type: ignore[arg-type]


async def test_a_missing_path_is_an_error_and_never_empty(sandbox: ScriptedSandbox) -> None:
    with pytest.raises(PathNotFound):
        await sandbox.files.read("nothing")


async def test_reading_stops_at_the_limit(sandbox: ScriptedSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 62: reading an endless file into memory ends at a limit with a way out."""
    monkeypatch.setattr(_files, "READ_LIMIT", 1 << 20)
    sandbox.world.files["big"] = b"x" * ((1 << 20) + 1)
    with pytest.raises(FileSystemError, match="larger than 1 MiB") as caught:
        await sandbox.files.read("big")
    assert "download" in caught.value.hint


async def test_a_download_is_whole_and_replaces_the_old_file(
    sandbox: ScriptedSandbox, tmp_path: Path
) -> None:
    sandbox.world.files["f"] = b"new" * 1000
    target = tmp_path / "out"
    target.write_bytes(b"old")
    target.chmod(0o640)
    await sandbox.files.download("f", target)
    assert target.read_bytes() == b"new" * 1000
    assert target.stat().st_mode & 0o777 == 0o640
    fresh = tmp_path / "fresh"
    await sandbox.files.download("f", str(fresh))
    mask = os.umask(0)
    os.umask(mask)
    assert fresh.stat().st_mode & 0o777 == 0o666 & ~mask
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["fresh", "out"]


async def test_a_download_in_place_of_a_setuid_file_is_none(sandbox: ScriptedSandbox, tmp_path: Path) -> None:
    sandbox.world.files["f"] = b"new"
    target = tmp_path / "out"
    target.write_bytes(b"old")
    target.chmod(0o6755)
    await sandbox.files.download("f", target)
    assert stat.S_IMODE(target.stat().st_mode) == 0o755


async def test_a_failed_or_cancelled_download_leaves_the_old_file(
    sandbox: ScriptedSandbox, tmp_path: Path
) -> None:
    """Case 62: no partial file in place of the old one, no temporary file left."""
    target = tmp_path / "out"
    target.write_bytes(b"old")
    with pytest.raises(PathNotFound):
        await sandbox.files.download("nothing", target)
    sandbox.world.files["f"] = b"new" * 1000
    with anyio.CancelScope() as sandbox.world.scope:
        sandbox.world.cancel_at = sandbox.world.gates + 2
        await sandbox.files.download("f", target)
    assert target.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


async def test_a_download_leaves_the_umask_of_the_process_alone(
    sandbox: ScriptedSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads that set it for a moment, as two blocking sandboxes would, can leave it wrong for ever."""
    sandbox.world.files["f"] = b"new"
    monkeypatch.setattr(os, "umask", lambda mask: pytest.fail("the umask was changed"))
    await sandbox.files.download("f", tmp_path / "fresh")
    assert [entry.name for entry in tmp_path.iterdir()] == ["fresh"]


async def test_a_download_does_not_put_a_file_in_place_of_a_device(
    sandbox: ScriptedSandbox, tmp_path: Path
) -> None:
    """Root may rename a file onto /dev/null; a FIFO stands for it here."""
    sandbox.world.files["f"] = b"new"
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    (tmp_path / "link").symlink_to(fifo)
    for target in (fifo, tmp_path / "link"):
        with pytest.raises(FileSystemError, match="is not a regular file"):
            await sandbox.files.download("f", target)
    assert fifo.is_fifo()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["fifo", "link"]


@pytest.mark.parametrize("size", [1, 1000, 1 << 20])
async def test_a_full_disk_is_named_however_little_was_to_be_written(
    size: int, sandbox: ScriptedSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox.world.files["f"] = b"x" * size
    full = os.open("/dev/full", os.O_WRONLY)
    monkeypatch.setattr(_files, "_temporary_beside", lambda target: (full, tmp_path / "x.part"))
    with pytest.raises(FileSystemError, match="No space left"):
        await sandbox.files.download("f", tmp_path / "x")


@pytest.mark.parametrize("letter", ["x", "é", "漢", "🙂"])
async def test_a_local_name_may_be_as_long_as_names_can_be(
    letter: str, sandbox: ScriptedSandbox, tmp_path: Path
) -> None:
    """255 bytes, however many characters those are."""
    sandbox.world.files["f"] = b"new"
    target = tmp_path / (letter * (255 // len(letter.encode())))
    await sandbox.files.download("f", target)
    assert target.read_bytes() == b"new"


@pytest.mark.parametrize("kind", ["folder", "missing folder", "NUL"])
async def test_a_host_target_that_cannot_be_is_named(
    kind: str, sandbox: ScriptedSandbox, tmp_path: Path
) -> None:
    target = {"folder": tmp_path, "missing folder": tmp_path / "no" / "f", "NUL": Path("a\0b")}[kind]
    with pytest.raises(FileSystemError, match="Cannot write the local file"):
        await sandbox.files.download("f", target)


@pytest.mark.parametrize("kind", ["folder", "missing", "fifo", "NUL", "made up by the kernel"])
async def test_only_a_regular_host_file_is_uploaded(
    kind: str, sandbox: ScriptedSandbox, tmp_path: Path
) -> None:
    """Case 62: a FIFO is refused at once, not waited for."""
    local = Path("/proc/self/status") if kind == "made up by the kernel" else tmp_path / "x"
    if kind == "folder":
        local.mkdir()
    if kind == "fifo":
        os.mkfifo(local)
    with pytest.raises(FileSystemError):
        await sandbox.files.upload("a\0b" if kind == "NUL" else local, "x")
    assert sandbox.world.files == {}


async def test_an_upload_is_the_file(sandbox: ScriptedSandbox, tmp_path: Path) -> None:
    local = tmp_path / "x"
    local.write_bytes(b"data" * 1000)
    await sandbox.files.upload(local, "there")
    assert sandbox.world.files == {"there": b"data" * 1000}


@pytest.mark.parametrize("path", ["", "a\0b", None, 3])
async def test_a_sandbox_path_is_checked_before_anything_moves(path: str, sandbox: ScriptedSandbox) -> None:
    gates = sandbox.world.gates
    for use in (sandbox.files.read, sandbox.files.ls, sandbox.files.mkdir, sandbox.files.remove):
        with pytest.raises(ConfigurationError, match="path"):
            await use(path)
    assert sandbox.world.gates == gates

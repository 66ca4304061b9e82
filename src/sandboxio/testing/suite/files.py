"""``files``: bytes in, bytes out, under any name."""

from __future__ import annotations

import gzip
import os
import posixpath
from pathlib import Path
from typing import Any

import pytest

from sandboxio.errors import ConfigurationError, FileSystemError, PathNotFound, SandboxGone
from sandboxio.models import Capability, FileInfo

from .base import Contract, needs
from .comparing import difference

CONTENTS = (
    b"",
    b"\0",
    bytes(range(256)) * 500,
    b"\r\n\r",
    b"\xef\xbb\xbfx",
    ("x" * 8191 + "é" * 3).encode(),
    gzip.compress(b"x" * 100_000),
)
NAMES = (
    "plain.txt",
    "two words",
    ".hidden",
    "...",
    "-rf",
    "--help",
    "new\nline",
    "tab\there",
    "q'\"$`\\",
    "'; touch pwned; '",
    "$(touch pwned)",
    "`touch pwned`",
    "a -> b",
    "%s{0}",
    "é漢🙂",
    "e\u0301",
    "n" * 255,
    "é" * 127,
    "*",
    "~",
    "a:b",
)
NOT_UTF8 = "byte-\udcff"
"""A name with the byte 0xFF, as Python writes names that are not UTF-8 (PEP 383)."""


class FileTests(Contract):
    """Row "Filesystem"."""

    @needs(Capability.FILESYSTEM)
    async def test_files_round_trip_any_bytes(self) -> None:
        async with self.sandbox() as sandbox:
            for data in CONTENTS:
                await sandbox.files.write("data", data)
                assert not difference(await sandbox.files.read("data"), data)

    @needs(Capability.FILESYSTEM)
    async def test_files_write_text_as_utf8(self) -> None:
        async with self.sandbox() as sandbox:
            await sandbox.files.write("text", "é漢🙂\r\n")
            assert await sandbox.files.read("text") == "é漢🙂\r\n".encode()
            with pytest.raises(ConfigurationError):
                await sandbox.files.write("text", "\udcff")
            with pytest.raises(ConfigurationError):
                await sandbox.files.write("text", 3)  # type: ignore[arg-type]
            assert await sandbox.files.read("text") == "é漢🙂\r\n".encode()

    @needs(Capability.FILESYSTEM)
    async def test_files_of_several_megabytes(self) -> None:
        data = os.urandom(5 << 20)
        async with self.sandbox() as sandbox:
            await sandbox.files.write("large", data)
            assert not difference(await sandbox.files.read("large"), data)

    @needs(Capability.FILESYSTEM)
    async def test_files_under_odd_names(self) -> None:
        async with self.sandbox() as sandbox:
            await sandbox.files.mkdir("odd")
            for name in NAMES:
                await sandbox.files.write(f"odd/{name}", name)
            assert await self.names(await sandbox.files.ls("odd")) == sorted(NAMES)
            for name in NAMES:
                assert await sandbox.files.read(f"odd/{name}") == name.encode()
            for name in NAMES:
                await sandbox.files.remove(f"odd/{name}")
            assert await sandbox.files.ls("odd") == []
            around = await self.names(await sandbox.files.ls("."))
            assert "pwned" not in around, "a name was run as a command"

    @needs(Capability.FILESYSTEM)
    async def test_files_that_have_no_name_are_not_removed(self) -> None:
        async with self.sandbox() as sandbox:
            await sandbox.files.mkdir("folder/inner", parents=True)
            await sandbox.files.write("folder/inner/kept", b"x")
            for path in (".", "./", "folder/.", "folder/inner/..", "folder/inner/../", ".."):
                with pytest.raises(FileSystemError):
                    await sandbox.files.remove(path)
                assert await sandbox.files.read("folder/inner/kept") == b"x"

    @needs(Capability.FILESYSTEM)
    async def test_files_under_names_that_tools_take_for_something_else(self) -> None:
        async with self.sandbox() as sandbox:
            for name in ("-", "--", "-rf"):
                for data in (b"small", bytes(200_000)):
                    await sandbox.files.write(name, data)
                    assert not difference(await sandbox.files.read(name), data)
                await sandbox.files.remove(name)
                await sandbox.files.mkdir(name)
                await sandbox.files.write(f"{name}/inside", b"x")
                assert await sandbox.files.read(f"{name}/inside") == b"x"
                await sandbox.files.remove(name)
                for operation in (sandbox.files.read, sandbox.files.ls, sandbox.files.remove):
                    with pytest.raises(PathNotFound):
                        await operation(name)

    @needs(Capability.FILESYSTEM)
    async def test_files_under_a_name_that_is_not_utf8(self) -> None:
        async with self.sandbox() as sandbox:
            await sandbox.files.mkdir("odd")
            await sandbox.files.write(f"odd/{NOT_UTF8}", b"x")
            assert await self.names(await sandbox.files.ls("odd")) == [NOT_UTF8]
            assert await sandbox.files.read(f"odd/{NOT_UTF8}") == b"x"

    @needs(Capability.FILESYSTEM)
    async def test_files_refuse_a_name_that_is_too_long(self) -> None:
        async with self.sandbox() as sandbox:
            await sandbox.files.mkdir("odd")
            with pytest.raises(FileSystemError):
                await sandbox.files.write("odd/" + "n" * 256, b"x")
            assert await sandbox.files.ls("odd") == [], "nothing may be half-written"

    @needs(Capability.FILESYSTEM)
    async def test_files_refuse_what_is_no_path(self) -> None:
        paths: tuple[Any, ...] = ("", "a\0b", None, b"x", 3)
        async with self.sandbox() as sandbox:
            for path in paths:
                for operation in (
                    sandbox.files.read,
                    sandbox.files.mkdir,
                    sandbox.files.remove,
                    sandbox.files.ls,
                ):
                    with pytest.raises(ConfigurationError):
                        await operation(path)
                with pytest.raises(ConfigurationError):
                    await sandbox.files.write(path, b"x")

    @needs(Capability.FILESYSTEM, Capability.RUN_COMMAND)
    async def test_files_and_commands_see_the_same_files(self) -> None:
        async with self.sandbox() as sandbox:
            await sandbox.files.write("out.txt", "relative\n")
            assert (await sandbox.run([*self.cmd_cat, "out.txt"])).stdout == "relative\n"
            await sandbox.run("echo printed > made.txt")
            assert await sandbox.files.read("made.txt") == b"printed\n"
            await sandbox.files.write("/tmp/absolute", "absolute\n")
            assert (await sandbox.run([*self.cmd_cat, "/tmp/absolute"])).stdout == "absolute\n"

    @needs(Capability.FILESYSTEM)
    async def test_files_list_what_is_there(self) -> None:
        async with self.sandbox() as sandbox:
            await sandbox.files.mkdir("/tmp/box/deep/deeper", parents=True)
            await sandbox.files.write("/tmp/box/b", b"123")
            await sandbox.files.write("/tmp/box/.a", b"")
            listed = await sandbox.files.ls("/tmp/box")
            assert listed == sorted(listed, key=lambda each: each.path), "sorted by path"
            assert [(each.path, each.is_dir) for each in listed] == [
                ("/tmp/box/.a", False),
                ("/tmp/box/b", False),
                ("/tmp/box/deep", True),
            ]
            assert [each.size for each in listed if not each.is_dir] == [0, 3]
            assert await sandbox.files.ls("/tmp/box/deep/deeper") == []

    @needs(Capability.FILESYSTEM)
    async def test_files_list_paths_that_start_as_the_folder_was_given(self) -> None:
        async with self.sandbox() as sandbox:
            await sandbox.files.mkdir("box")
            for folder in ("box", "box/", "."):
                await sandbox.files.write(f"{folder}/here", b"x")
                found = [each.path for each in await sandbox.files.ls(folder) if not each.is_dir]
                assert posixpath.join(folder, "here") in found
                assert await sandbox.files.read(found[0]) == b"x", "a path that was listed can be used"
            assert await sandbox.files.ls() == await sandbox.files.ls(".")

    @needs(Capability.FILESYSTEM)
    async def test_files_that_are_missing(self) -> None:
        async with self.sandbox() as sandbox:
            for operation in (sandbox.files.read, sandbox.files.ls, sandbox.files.remove):
                with pytest.raises(PathNotFound, match="missing"):
                    await operation("missing")
            with pytest.raises(PathNotFound):
                await sandbox.files.mkdir("missing/folder")

    @needs(Capability.FILESYSTEM)
    async def test_files_that_are_of_another_kind(self) -> None:
        async with self.sandbox() as sandbox:
            await sandbox.files.mkdir("folder")
            await sandbox.files.write("file", b"x")
            for operation, path in (
                (sandbox.files.read, "folder"),
                (sandbox.files.ls, "file"),
                (sandbox.files.mkdir, "folder"),
                (sandbox.files.mkdir, "file"),
                (sandbox.files.read, "/dev/null"),
            ):
                async with self.within(20, f"a refusal of {path}"):
                    with pytest.raises(FileSystemError):
                        await operation(path)
            with pytest.raises(FileSystemError):
                await sandbox.files.write("folder", b"x")
            with pytest.raises(PathNotFound):
                await sandbox.files.read("file/below")
            assert await sandbox.files.read("file") == b"x"

    @needs(Capability.FILESYSTEM)
    async def test_files_make_folders(self) -> None:
        async with self.sandbox() as sandbox:
            await sandbox.files.mkdir("a/b/c", parents=True)
            await sandbox.files.mkdir("a/b/c", parents=True)
            await sandbox.files.write("a/b/c/file", b"x")
            await sandbox.files.mkdir("a/d")
            assert await self.names(await sandbox.files.ls("a")) == ["b", "d"]

    @needs(Capability.FILESYSTEM)
    async def test_files_remove_files_and_whole_folders(self) -> None:
        async with self.sandbox() as sandbox:
            await sandbox.files.mkdir("a/b", parents=True)
            await sandbox.files.write("a/b/file", b"x")
            await sandbox.files.write("beside", b"x")
            await sandbox.files.remove("a")
            await sandbox.files.remove("beside")
            for path in ("a", "beside"):
                with pytest.raises(PathNotFound):
                    await sandbox.files.remove(path)

    @needs(Capability.FILESYSTEM)
    async def test_files_of_the_host_are_out_of_reach(self, tmp_path: Path) -> None:
        secret = tmp_path / "host-secret"
        secret.write_text("of the host")
        async with self.sandbox() as sandbox:
            for path in (str(secret), "../" * 30 + str(secret)[1:]):
                with pytest.raises(FileSystemError):
                    await sandbox.files.read(path)
            await sandbox.files.mkdir(str(tmp_path), parents=True)
            await sandbox.files.write(str(secret), b"of the sandbox")
        assert secret.read_text() == "of the host"

    @needs(Capability.FILESYSTEM)
    async def test_files_of_an_ended_sandbox_are_gone(self) -> None:
        async with self.sandbox() as sandbox:
            await sandbox.files.write("file", b"x")
            await sandbox.kill()
            with pytest.raises(SandboxGone):
                await sandbox.files.read("file")
            with pytest.raises(SandboxGone):
                await sandbox.files.write("file", b"y")

    async def names(self, entries: list[FileInfo]) -> list[str]:
        """The last part of each path, sorted."""
        return sorted(each.path.rpartition("/")[2] for each in entries)


class TransferTests(Contract):
    """Upload and download, the only operations that touch the host's disk."""

    @needs(Capability.UPLOAD_DOWNLOAD)
    async def test_transfer_round_trips_any_bytes(self, tmp_path: Path) -> None:
        async with self.sandbox() as sandbox:
            for number, data in enumerate((*CONTENTS, os.urandom(3 << 20))):
                (tmp_path / "source").write_bytes(data)
                await sandbox.files.upload(tmp_path / "source", f"remote-{number}")
                await sandbox.files.download(f"remote-{number}", str(tmp_path / "target"))
                assert not difference((tmp_path / "target").read_bytes(), data)

    @needs(Capability.UPLOAD_DOWNLOAD, Capability.RUN_COMMAND)
    async def test_transfer_keeps_the_permission_to_execute(self, tmp_path: Path) -> None:
        script = tmp_path / "script"
        script.write_text("#!/bin/sh\necho ran\n")
        script.chmod(0o755)
        async with self.sandbox() as sandbox:
            await sandbox.files.upload(script, "/tmp/script")
            assert (await sandbox.run(["/tmp/script"])).stdout == "ran\n"
            script.chmod(0o644)
            await sandbox.files.upload(script, "/tmp/script")
            assert (await sandbox.run(["/tmp/script"])).exit_code == 126

    @needs(Capability.UPLOAD_DOWNLOAD)
    async def test_transfer_of_what_is_missing_changes_nothing(self, tmp_path: Path) -> None:
        target = tmp_path / "target"
        target.write_text("as before")
        async with self.sandbox() as sandbox:
            with pytest.raises(PathNotFound):
                await sandbox.files.download("missing", target)
            with pytest.raises(FileSystemError):
                await sandbox.files.upload(tmp_path / "missing", "remote")
            with pytest.raises(FileSystemError):
                await sandbox.files.upload(tmp_path, "remote")
            if Capability.FILESYSTEM in self.backend.capabilities:
                with pytest.raises(PathNotFound):
                    await sandbox.files.read("remote")
        assert target.read_text() == "as before"
        left = [each.name for each in tmp_path.iterdir()]  # noqa: ASYNC240 - a handful of names
        assert left == ["target"], "no half-written file may stay"

"""Files through the guest: exact names and bytes, and nothing waited for that may never come."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandboxio.testing.suite.comparing import difference
from sandboxio_docker import guest_protocol as w
from sandboxio_docker.guest_protocol import EntryKind, Fate, Reason
from tests.guest.rawclient import Local

Guests = Callable[..., Local]

CONTENTS = [b"", b"\0", bytes(range(256)) * 500, b"\r\n\r", "é漢🙂".encode(), os.urandom(3_000_000)]
NAMES = [
    b"n" * 255, "é".encode() * 127, b"a " * 60 + b"x", b"-rf", b"--help", b"new\nline", b"tab\t",
    b"q'\"$`\\", b"...", b".hidden", b"\xff\xfe", b"$(touch pwn)", b"'; touch pwn; '", b"*", b"%s{0}",
]  # fmt: skip


def failed(last: object, name: str, reason: Reason = Reason.SYSTEM) -> bool:
    return isinstance(last, w.Failed) and (last.errno_name, last.reason) == (name, reason)


def test_bytes_in_are_bytes_out(guest: Guests, work: Path, python: str) -> None:
    client = guest(python)
    for data in CONTENTS:
        assert client.write("f", data) == w.Done(client.wire._last, len(data))
        assert not difference((work / "f").read_bytes(), data)
        assert not difference(client.read("f"), data)


def test_names_are_bytes(guest: Guests, work: Path, python: str) -> None:
    client = guest(python)
    for name in NAMES:
        assert isinstance(client.write(name, name), w.Done)
        assert client.read(name) == name
    entries = client.ls(".")
    assert {entry.name for entry in entries} == set(NAMES)
    assert set(os.listdir(os.fsencode(work))) == set(NAMES)
    for name in NAMES:
        assert isinstance(client.request(client.wire.remove, name), w.Done)
    assert client.ls(b".") == []
    assert failed(client.write(b"n" * 256, b""), "ENAMETOOLONG")
    assert failed(client.read(b"a\0b"), "", Reason.BAD_REQUEST)
    assert failed(client.read(b""), "", Reason.BAD_REQUEST)


def test_a_new_file_has_an_ordinary_mode_and_an_old_one_keeps_its_own(guest: Guests, work: Path) -> None:
    client = guest()
    client.write("new", b"1")
    assert stat.S_IMODE((work / "new").stat().st_mode) == 0o644
    client.write("script", b"#!/bin/sh\necho ran\n", mode=0o755)
    assert client.run("./script")[1] == b"ran\n"
    (work / "old").write_bytes(b"0")
    (work / "old").chmod(0o640)
    if os.geteuid() == 0:
        os.chown(work / "old", 1234, 1235)
    before = (work / "old").stat()
    client.write("old", b"12")
    after = (work / "old").stat()
    assert after.st_size == 2
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)


def test_a_write_goes_through_links(guest: Guests, work: Path) -> None:
    client = guest()
    (work / "real").mkdir()
    (work / "folder").symlink_to("real")
    (work / "link").symlink_to("folder/file")
    (work / "deep").symlink_to("link")
    assert isinstance(client.write("deep", b"new"), w.Done)
    assert (work / "real/file").read_bytes() == b"new"
    assert (work / "deep").is_symlink()
    assert (work / "link").is_symlink()
    (work / "circle").symlink_to("circle")
    assert failed(client.write("circle", b""), "ELOOP")
    assert failed(client.read("circle"), "ELOOP")


def test_what_cannot_be_written_says_so(guest: Guests, work: Path, python: str) -> None:
    client = guest(python)
    (work / "folder").mkdir()
    os.mkfifo(work / "fifo")
    assert failed(client.write("folder", b"x"), "EISDIR")
    assert failed(client.write("folder/", b"x"), "EISDIR")
    assert failed(client.write("fifo", b"x"), "", Reason.NOT_REGULAR)
    assert failed(client.write("/dev/null", b"x"), "", Reason.NOT_REGULAR)
    assert failed(client.write("missing/file", b"x"), "ENOENT")
    assert failed(client.write("/proc/new", b"x"), "ENOENT")
    assert sorted(os.listdir(work)) == ["fifo", "folder"]
    assert client.run("true")[0].exit_code == 0


def test_what_is_no_file_is_refused_at_once(guest: Guests, work: Path, python: str) -> None:
    client = guest(python)
    os.mkfifo(work / "fifo")
    server = socket.socket(socket.AF_UNIX)
    here = os.getcwd()
    os.chdir(work)
    server.bind("socket")
    os.chdir(here)
    began = time.monotonic()
    for path in ("fifo", "socket", "/dev/zero", "/dev/tty"):
        assert failed(client.read(path), "", Reason.NOT_REGULAR), path
    server.close()
    assert failed(client.read("."), "EISDIR")
    assert failed(client.read("missing"), "ENOENT")
    assert failed(client.read("fifo/below"), "ENOTDIR")
    assert time.monotonic() - began < 2


def test_a_file_under_a_lease_does_not_stop_the_guest(guest: Guests, work: Path) -> None:
    (work / "leased").write_bytes(b"x")
    fd = os.open(work / "leased", os.O_RDWR)
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)  # what the holder is told of a break
    try:
        try:
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except OSError as error:
            pytest.skip(f"no leases here: {error}")
        client = guest()
        began = time.monotonic()
        assert failed(client.read("leased"), "EAGAIN")
        assert time.monotonic() - began < 2
    finally:
        os.close(fd)
        signal.signal(signal.SIGIO, before)


def test_proc_files_have_their_real_content(guest: Guests) -> None:
    client = guest()
    text = client.read("/proc/self/status")
    assert isinstance(text, bytes)
    assert b"\nPid:\t1\n" in text
    assert b"MemTotal" in client.read("/proc/meminfo")


def test_a_read_has_a_limit(guest: Guests, work: Path) -> None:
    client = guest()
    (work / "big").write_bytes(bytes(100_000))
    assert client.read("big", limit=100_000) == bytes(100_000)
    assert failed(client.read("big", limit=99_999), "", Reason.TOO_LARGE)
    assert failed(client.read("/proc/self/environ", limit=3), "", Reason.TOO_LARGE)


def test_a_listing_tells_what_each_name_is(guest: Guests, work: Path, python: str) -> None:
    text = "mkdir d; printf 12345 > f; ln -s d ld; ln -s f lf; ln -s nowhere dangling; mkfifo p; ln -s x x"
    subprocess.run(text, shell=True, cwd=work, check=True)
    found = {e.name: (e.kind, e.leads_to_folder, e.size > 0) for e in guest(python).ls(work)}
    assert found == {
        b"d": (EntryKind.FOLDER, False, False),
        b"f": (EntryKind.FILE, False, True),
        b"ld": (EntryKind.LINK, True, True),
        b"lf": (EntryKind.LINK, False, True),
        b"dangling": (EntryKind.LINK, False, True),
        b"x": (EntryKind.LINK, False, True),
        b"p": (EntryKind.OTHER, False, False),
    }


def test_a_listing_of_what_is_no_folder(guest: Guests, work: Path) -> None:
    client = guest()
    (work / "f").touch()
    assert failed(client.ls("f"), "ENOTDIR")
    assert failed(client.ls("missing"), "ENOENT")


def test_twenty_thousand_entries_while_others_work(guest: Guests, work: Path) -> None:
    folder = work / "many"
    folder.mkdir()
    for number in range(20_000):
        os.close(os.open(folder / f"entry-{number}", os.O_CREAT))
    client = guest()
    op = client.wire.new_operation()
    client.send(client.wire.list_folder(op, b"many"))
    began = time.monotonic()
    assert client.run("true")[0].exit_code == 0
    assert time.monotonic() - began < 0.5
    assert client.last(op).size == 20_000
    names = {e.name for event in client.events[op] if isinstance(event, w.Entries) for e in event.entries}
    assert len(names) == 20_000
    op = client.wire.new_operation()
    client.send(client.wire.remove(op, b"many"))
    began = time.monotonic()
    assert client.run("true")[0].exit_code == 0
    assert time.monotonic() - began < 0.5
    assert isinstance(client.last(op), w.Done)
    assert not folder.exists()


@pytest.mark.parametrize("paced", [False, True])
def test_a_reader_that_stops_is_not_sent_more(guest: Guests, work: Path, paced: bool) -> None:
    client = guest()
    (work / "big").write_bytes(bytes(2_000_000))
    window = w.PACED_BUDGET // 4 if paced else w.FIRST_WINDOW
    client.credit = False
    op = client.wire.new_operation()
    client.send(client.wire.read(op, b"big", paced=paced))
    while len(client.output[op, 0]) < window:
        client.pump(5)
    assert client.run("true")[0].exit_code == 0
    client.pump(0.1)
    assert len(client.output[op, 0]) == window
    client.credit = True
    client.give_back(op, 0, window)
    assert client.last(op).size == 2_000_000


def test_making_folders(guest: Guests, work: Path, python: str) -> None:
    client = guest(python)
    make = client.wire.make_folder
    assert isinstance(client.request(make, "a"), w.Done)
    assert failed(client.request(make, "a"), "EEXIST")
    assert failed(client.request(make, "x/y/z"), "ENOENT")
    assert isinstance(client.request(make, "x/y/z", parents=True), w.Done)
    assert isinstance(client.request(make, "x/y/z", parents=True), w.Done)
    assert isinstance(client.request(make, "x/y/z/", parents=True), w.Done)
    assert isinstance(client.request(make, work / "abs/b", parents=True), w.Done)
    (work / "f").touch()
    assert failed(client.request(make, "f", parents=True), "EEXIST")
    assert failed(client.request(make, "f/g", parents=True), "ENOTDIR") or failed(
        client.request(make, "f/g", parents=True), "EEXIST"
    )
    assert (work / "x/y/z").is_dir()


def test_removing(guest: Guests, work: Path, python: str) -> None:
    client = guest(python)
    remove = client.wire.remove
    outside = work.parent / "outside"
    outside.mkdir(exist_ok=True)
    (outside / "kept").touch()
    text = "mkdir -p d/e/f; touch d/1 d/e/2; ln -s ../../outside d/e/link; ln -s nowhere d/dangling"
    subprocess.run(f"{text}; ln -s d link; mkfifo d/p; mkdir empty", shell=True, cwd=work, check=True)
    for path in ("link", "d", "empty/"):
        assert isinstance(client.request(remove, path), w.Done), path
    assert os.listdir(work) == []
    assert (outside / "kept").exists()
    assert failed(client.request(remove, "missing"), "ENOENT")
    assert failed(client.request(remove, "/"), "", Reason.IN_USE)
    assert failed(client.request(remove, "//"), "", Reason.IN_USE)


def test_removing_a_very_deep_tree(guest: Guests, work: Path) -> None:
    here = os.open(work, os.O_RDONLY)
    fd = here
    for _ in range(600):
        os.mkdir("deep-" * 10, dir_fd=fd)
        below = os.open("deep-" * 10, os.O_RDONLY, dir_fd=fd)
        os.close(os.open("file", os.O_CREAT, dir_fd=below))
        os.close(fd)
        fd = below
    os.close(fd)
    client = guest()
    assert isinstance(client.request(client.wire.remove, "deep-" * 10), w.Done)
    assert os.listdir(work) == []


def test_what_is_known_of_a_path(guest: Guests, work: Path) -> None:
    client = guest()
    (work / "f").write_bytes(b"12345")
    (work / "f").chmod(0o600)
    (work / "l").symlink_to("f")
    facts = client.request(client.wire.facts, "l")
    assert (facts.kind, facts.mode, facts.size) == (EntryKind.FILE, 0o600, 5)
    assert facts.mtime_ns == (work / "f").stat().st_mtime_ns
    assert client.request(client.wire.facts, "l", follow=False).kind == EntryKind.LINK
    assert failed(client.request(client.wire.facts, "missing"), "ENOENT")


# Uploads that do not come to their end


def begin_upload(client: Local, name: bytes = b"target") -> int:
    op = client.wire.new_operation()
    client.send(client.wire.write(op, name))
    client.send(client.wire.input(op, bytes(60_000)))
    client.until(op, w.Grant)
    return op


def test_nothing_is_seen_of_an_upload_before_its_end(guest: Guests, work: Path, python: str) -> None:
    client = guest(python)
    (work / "target").write_bytes(b"old")
    op = begin_upload(client)
    assert (work / "target").read_bytes() == b"old"
    (temporary,) = set(os.listdir(work)) - {"target"}
    assert stat.S_IMODE((work / temporary).stat().st_mode) == 0o600
    client.send(client.wire.input_end(op))
    assert client.last(op).size == 60_000
    assert os.listdir(work) == ["target"]
    assert (work / "target").read_bytes() == bytes(60_000)


def test_a_cancelled_upload_leaves_nothing(guest: Guests, work: Path, python: str) -> None:
    client = guest(python)
    (work / "target").write_bytes(b"old")
    op = begin_upload(client)
    assert client.kill(op).fate == Fate.DEAD
    assert failed(client.last(op), "", Reason.CANCELLED)
    assert os.listdir(work) == ["target"]
    assert (work / "target").read_bytes() == b"old"
    assert isinstance(client.write("target", b"new"), w.Done)


def test_a_broken_connection_leaves_no_half_of_an_upload(guest: Guests, work: Path) -> None:
    client = guest(lifeline=False, lifetime=3)
    begin_upload(client)
    client.ours.close()
    deadline = time.monotonic() + 5
    while os.listdir(work):
        assert time.monotonic() < deadline, os.listdir(work)


@pytest.fixture
def small_disk(work: Path):
    if os.geteuid() != 0:
        pytest.skip("mounting takes root")
    folder = work / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", os.fspath(folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("no mounts here")
    yield folder
    subprocess.run(["umount", os.fspath(folder)], check=True)


def test_a_full_disk(guest: Guests, small_disk: Path, python: str) -> None:
    client = guest(python)
    (small_disk / "target").write_bytes(b"old")
    assert failed(client.write("disk/target", bytes(3_000_000)), "ENOSPC")
    assert os.listdir(small_disk) == ["target"]
    assert (small_disk / "target").read_bytes() == b"old"
    assert isinstance(client.write("disk/target", bytes(1000)), w.Done)


@pytest.fixture
def mounted(work: Path) -> Iterator[str]:
    """The name of a file that is a mount of another one, ``source``."""
    if os.geteuid() != 0:
        pytest.skip("mounting takes root")
    (work / "source").write_bytes(b"old and long")
    (work / "mounted").touch()
    bind = ["mount", "--bind", os.fspath(work / "source"), os.fspath(work / "mounted")]
    if subprocess.run(bind, check=False).returncode:
        pytest.skip("no mounts here")
    yield "mounted"
    subprocess.run(["umount", os.fspath(work / "mounted")], check=True)


def test_a_file_that_is_a_mount_is_filled_in_place(guest: Guests, work: Path, mounted: str) -> None:
    assert isinstance(guest().write(mounted, b"new"), w.Done)
    assert (work / "source").read_bytes() == b"new"
    assert sorted(os.listdir(work)) == ["mounted", "source"]


def test_a_fifo_in_place_of_the_temporary_file_does_not_stop_the_guest(
    guest: Guests, work: Path, mounted: str
) -> None:
    client = guest()
    op = client.wire.new_operation()
    client.send(client.wire.write(op, os.fsencode(mounted)))
    client.send(client.wire.input(op, b"new"))
    client.until(op, w.Grant)
    (temporary,) = work.glob(".sandboxio-*")
    temporary.unlink()
    os.mkfifo(temporary)
    client.send(client.wire.input_end(op))
    assert isinstance(client.last(op), w.Done)
    assert (work / "source").read_bytes() == b"new"
    assert client.run("echo", "works")[1] == b"works\n"


def test_errno_names_are_the_systems(guest: Guests) -> None:
    assert errno.errorcode[errno.ENOENT] == "ENOENT"
    assert failed(guest().read("/proc/self/mem"), "EIO")

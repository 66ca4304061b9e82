"""The witness: a program of machine code, run here for what it does, and read for what it says."""

from __future__ import annotations

import platform
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from sandboxio_docker import kernel

HERE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), "")
LOG = b"<6>[    0.000000] Starting gVisor...\n<6>[    0.354495] Daemonizing children...\n"


def report(log: bytes, *, shown: int | None = None, found: int = 1, magic: bytes = kernel.MAGIC) -> bytes:
    """What the witness would write."""
    names = b"".join(
        each.ljust(65, b"\0") for each in (b"Linux", b"box", b"4.4.0", b"#1 SMP", b"x86_64", b"")
    )
    return struct.pack("<4sii390s6x128s", magic, len(log) if shown is None else shown, found, names, log)


def runners() -> list[tuple[str, list[str]]]:
    """Architectures whose program can be run on this machine, and by what."""
    known: list[tuple[str, list[str]]] = [(HERE, [])] if HERE else []
    for name, emulator in (("arm64", "qemu-aarch64-static"), ("amd64", "qemu-x86_64-static")):
        if name != HERE and shutil.which(emulator):
            known.append((name, [emulator]))
    return known


@pytest.fixture(params=runners(), ids=lambda each: str(each[0]))
def witness(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[list[str], Path]:
    architecture, emulator = request.param
    content = kernel.program(architecture)
    assert content is not None
    file = tmp_path / "witness"
    file.write_bytes(content)
    file.chmod(0o755)
    return [*emulator, *kernel.entrypoint(str(file), [], [])[:-1]], file


def test_it_tells_the_kernel_and_becomes_the_program(witness: tuple[list[str], Path]) -> None:
    command, file = witness
    given = kernel.GO + b"what comes after is the program's"
    argv = [*command, "/nowhere/cat", shutil.which("cat") or "", "", "cat", "-"]
    done = subprocess.run(argv, input=given, capture_output=True, check=True, timeout=30)
    told, rest = done.stdout[: kernel.SIZE], done.stdout[kernel.SIZE :]
    assert rest == given[1:]
    seen = kernel.parse(told)
    assert seen is not None
    assert seen.name == " ".join(platform.uname()[index] for index in (0, 2, 3))
    assert seen.program == 1
    assert not seen.is_gvisor, "these tests do not run on gVisor"
    assert not file.exists(), "it removes itself"


def test_without_the_word_nothing_is_run(witness: tuple[list[str], Path]) -> None:
    """The host has gone, or does not want this kernel: its end of stdin closes."""
    command, file = witness
    argv = [*command, shutil.which("touch") or "", "", "touch", str(file.with_name("ran"))]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=30)
    assert (done.returncode, len(done.stdout)) == (126, kernel.SIZE)
    assert not file.with_name("ran").exists()


def test_it_says_when_no_program_is_there(witness: tuple[list[str], Path]) -> None:
    command, _ = witness
    argv = [*command, "/nowhere/a", "/nowhere/b", "", "a"]
    done = subprocess.run(argv, input=kernel.GO, capture_output=True, check=False, timeout=30)
    seen = kernel.parse(done.stdout)
    assert seen is not None
    assert (seen.program, done.returncode) == (-1, 126)


def test_the_environment_is_handed_on(witness: tuple[list[str], Path]) -> None:
    command, _ = witness
    argv = [*command, shutil.which("env") or "", "", "env"]
    done = subprocess.run(
        argv, input=kernel.GO, capture_output=True, check=True, timeout=30, env={"A": "b c"}
    )
    assert done.stdout[kernel.SIZE :].rstrip() == b"A=b c"


def test_gvisor_is_known_by_its_log() -> None:
    seen = kernel.parse(report(LOG))
    assert seen is not None
    assert seen.is_gvisor
    assert seen.name == "Linux 4.4.0 #1 SMP"


@pytest.mark.parametrize(
    "log",
    [
        b"",
        b"Starting gVisor...",
        b"<6>[   12.000000] Starting gVisor...",
        b"<6>[    0.000000] Linux version 6.1",
        b"<6>[    5.000000] x\n<6>[    0.000000] Starting gVisor...",
        b"<6>[    0.000000] cat[1]: Starting gVisor...",
    ],
)
def test_nothing_else_is(log: bytes) -> None:
    seen = kernel.parse(report(log))
    assert seen is not None
    assert not seen.is_gvisor


def test_a_log_that_was_not_shown_counts_for_nothing() -> None:
    """What stands in the buffer is not the kernel's word if the call failed."""
    seen = kernel.parse(report(LOG, shown=-1))
    assert seen is not None
    assert not seen.is_gvisor


@pytest.mark.parametrize("told", [b"", report(LOG)[:-1], report(LOG) + b"x", report(LOG, magic=b"SBXG")])
def test_no_report(told: bytes) -> None:
    assert kernel.parse(told) is None


@given(st.binary(min_size=kernel.SIZE, max_size=kernel.SIZE))
def test_any_bytes_are_parsed_or_refused(told: bytes) -> None:
    seen = kernel.parse(told)
    assert seen is None or told.startswith(kernel.MAGIC)
    again = kernel.parse(kernel.MAGIC + told[4:])
    assert again is not None
    assert again.program >= -1

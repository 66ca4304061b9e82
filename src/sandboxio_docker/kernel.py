"""Which kernel a container runs on, told by a program that is not the image's.

An image's own Python, shell or C library may say anything. So where it matters, the container's first
program is the one in this file: some 330 bytes of machine code that the engine puts into the container
before it starts, under a name nobody could know. It is static, so no library and no variable of the image
has a part in it, and it asks the kernel by system calls only. It runs before anything of the image does,
so the first bytes on stdout are its own. Then it waits for the host's word; only with that word it removes
its file and becomes the image's program.

What it tells, in the machine's byte order (little endian on both machines):

====== ===== =========================================================================================
offset bytes
====== ===== =========================================================================================
0      4     ``SBXK``
4      4     signed: what ``syslog(SYSLOG_ACTION_READ_ALL)`` returned: bytes, or minus errno
8      4     signed: which of the offered programs may be executed first, from 1; -1: none
12     390   ``struct utsname`` of ``uname``: six fields of 65 bytes
408    128   the first bytes of the kernel's log
====== ===== =========================================================================================

**The proof of gVisor** is its kernel log: it is answered by gVisor's own kernel, for everybody, and begins
with "Starting gVisor..." at second 0 (gvisor.dev, documentation, "Docker Quick Start", "Verify the
runtime"; sources of google/gvisor, pkg/sentry/kernel/syslog.go and sys_syslog.go). On Linux the same call
is answered by the host's kernel, whose log nobody in a container can write: without CAP_SYSLOG it fails
(Docker's default seccomp profile refuses it, too), and where it succeeds it gives the log's *last* lines,
each with its own time. ``uname`` is only told for the error message; its texts changed between versions
of gVisor (4.4.0, later 4.19.0-gvisor).

No ``await`` here.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from functools import cache
from typing import Final

MAGIC: Final = b"SBXK"
SIZE: Final = 536
"""Bytes of a report."""
GO: Final = b"G"
"""The host's word that the image's program may run."""

_GVISOR: Final = re.compile(rb"<\d>\[ *0\.000000\] Starting gVisor")
_LAYOUT: Final = struct.Struct("<4sii390s6x128s")

# Source: System V ABI, AMD64 supplement, 3.4.1 (argc, argv and envp on the stack) and A.2.1 (system calls);
# numbers: Linux, arch/x86/entry/syscalls/syscall_64.tbl.
_AMD64: Final = """
    48 8d 5c 24 08           ; lea rbx, [rsp+8]          rbx: argv
    4c 8b 34 24              ; mov r14, [rsp]            argc
    4e 8d 74 f3 08           ; lea r14, [rbx+r14*8+8]    r14: envp
    48 81 ec 20 02 00 00     ; sub rsp, 544              the report
    c7 04 24 53 42 58 4b     ; mov dword [rsp], "SBXK"
    48 8d 7c 24 0c           ; lea rdi, [rsp+12]
    b8 3f 00 00 00           ; mov eax, 63
    0f 05                    ; syscall                   uname(report+12)
    bf 03 00 00 00           ; mov edi, 3                SYSLOG_ACTION_READ_ALL
    48 8d b4 24 98 01 00 00  ; lea rsi, [rsp+408]
    ba 80 00 00 00           ; mov edx, 128
    b8 67 00 00 00           ; mov eax, 103
    0f 05                    ; syscall                   syslog(3, report+408, 128)
    89 44 24 04              ; mov [rsp+4], eax
    45 31 e4                 ; xor r12d, r12d            r12: the program, none yet
    c7 44 24 08 ff ff ff ff  ; mov dword [rsp+8], -1
    31 ed                    ; xor ebp, ebp              rbp: index in argv
    ff c5                    ; next: inc ebp
    4c 8b 2c eb              ; mov r13, [rbx+rbp*8]
    41 80 7d 00 00           ; cmp byte [r13], 0         an empty one ends the programs
    74 21                    ; je tell
    4d 85 e4                 ; test r12, r12             found: only look for the end
    75 ee                    ; jnz next
    4c 89 ef                 ; mov rdi, r13
    be 01 00 00 00           ; mov esi, 1                X_OK
    b8 15 00 00 00           ; mov eax, 21
    0f 05                    ; syscall                   access(program, X_OK)
    85 c0                    ; test eax, eax
    75 db                    ; jnz next
    4d 89 ec                 ; mov r12, r13
    89 6c 24 08              ; mov [rsp+8], ebp
    eb d2                    ; jmp next
    bf 01 00 00 00           ; tell: mov edi, 1
    48 89 e6                 ; mov rsi, rsp
    ba 18 02 00 00           ; mov edx, 536
    b8 01 00 00 00           ; mov eax, 1
    0f 05                    ; syscall                   write(1, report, 536)
    31 ff                    ; xor edi, edi
    48 89 e6                 ; mov rsi, rsp
    ba 01 00 00 00           ; mov edx, 1
    31 c0                    ; xor eax, eax
    0f 05                    ; syscall                   read(0, report, 1): wait for the host
    83 f8 01                 ; cmp eax, 1
    75 1c                    ; jne leave                 it has gone, or never wants this
    48 8b 3b                 ; mov rdi, [rbx]
    b8 57 00 00 00           ; mov eax, 87
    0f 05                    ; syscall                   unlink(argv[0])
    4c 89 e7                 ; mov rdi, r12
    48 8d 74 eb 08           ; lea rsi, [rbx+rbp*8+8]
    4c 89 f2                 ; mov rdx, r14
    b8 3b 00 00 00           ; mov eax, 59
    0f 05                    ; syscall                   execve(program, argv after the empty one, envp)
    bf 7e 00 00 00           ; leave: mov edi, 126
    b8 3c 00 00 00           ; mov eax, 60
    0f 05                    ; syscall                   exit(126)
"""

# Source: Procedure Call Standard for the Arm 64-bit Architecture; numbers: Linux,
# include/uapi/asm-generic/unistd.h. Words as objdump shows them.
_ARM64: Final = """
    f94003f4  ; ldr x20, [sp]               argc
    910023f3  ; add x19, sp, #8             x19: argv
    8b140e74  ; add x20, x19, x20, lsl #3
    91002294  ; add x20, x20, #8            x20: envp
    d10883ff  ; sub sp, sp, #544            the report
    52884a60  ; mov w0, #0x4253
    72a96b00  ; movk w0, #0x4b58, lsl #16
    b90003e0  ; str w0, [sp]                "SBXK"
    910033e0  ; add x0, sp, #12
    d2801408  ; mov x8, #160
    d4000001  ; svc #0                      uname(report+12)
    d2800060  ; mov x0, #3                  SYSLOG_ACTION_READ_ALL
    910663e1  ; add x1, sp, #408
    d2801002  ; mov x2, #128
    d2800e88  ; mov x8, #116
    d4000001  ; svc #0                      syslog(3, report+408, 128)
    b90007e0  ; str w0, [sp, #4]
    12800000  ; mov w0, #-1
    b9000be0  ; str w0, [sp, #8]
    d2800015  ; mov x21, #0                 x21: the program, none yet
    d2800016  ; mov x22, #0                 x22: index in argv
    910006d6  ; next: add x22, x22, #1
    f8767a77  ; ldr x23, [x19, x22, lsl #3]
    394002e0  ; ldrb w0, [x23]
    34000160  ; cbz w0, tell                an empty one ends the programs
    b5ffff95  ; cbnz x21, next              found: only look for the end
    92800c60  ; mov x0, #-100               AT_FDCWD
    aa1703e1  ; mov x1, x23
    d2800022  ; mov x2, #1                  X_OK
    d2800608  ; mov x8, #48
    d4000001  ; svc #0                      faccessat(AT_FDCWD, program, X_OK)
    35fffec0  ; cbnz w0, next
    aa1703f5  ; mov x21, x23
    b9000bf6  ; str w22, [sp, #8]
    17fffff3  ; b next
    d2800020  ; tell: mov x0, #1
    910003e1  ; mov x1, sp
    d2804302  ; mov x2, #536
    d2800808  ; mov x8, #64
    d4000001  ; svc #0                      write(1, report, 536)
    d2800000  ; mov x0, #0
    910003e1  ; mov x1, sp
    d2800022  ; mov x2, #1
    d28007e8  ; mov x8, #63
    d4000001  ; svc #0                      read(0, report, 1): wait for the host
    f100041f  ; cmp x0, #1
    54000181  ; b.ne leave                  it has gone, or never wants this
    92800c60  ; mov x0, #-100
    f9400261  ; ldr x1, [x19]
    d2800002  ; mov x2, #0
    d2800468  ; mov x8, #35
    d4000001  ; svc #0                      unlinkat(AT_FDCWD, argv[0], 0)
    8b160e61  ; add x1, x19, x22, lsl #3
    91002021  ; add x1, x1, #8
    aa1503e0  ; mov x0, x21
    aa1403e2  ; mov x2, x20
    d2801ba8  ; mov x8, #221
    d4000001  ; svc #0                      execve(program, argv after the empty one, envp)
    d2800fc0  ; leave: mov x0, #126
    d2800ba8  ; mov x8, #93
    d4000001  ; svc #0                      exit(126)
"""

_ELF: Final = struct.Struct("<4s5B7xHHIQQQIHHHHHH")
_SEGMENT: Final = struct.Struct("<IIQQQQQQ")
_BASE: Final = 0x400000
_MACHINES: Final = {"amd64": 62, "arm64": 183}
"""Architectures that gVisor runs on, as images name them, and their numbers in an ELF file."""


@dataclass(frozen=True)
class Kernel:
    """What the kernel of a container said of itself."""

    name: str
    """``uname``: system, release and version."""
    log: bytes
    """The first bytes of its log; empty if it does not show it."""
    program: int
    """Which of the offered programs may be executed, from 0; -1: none."""

    @property
    def is_gvisor(self) -> bool:
        """True for gVisor's kernel; see the top of the file for why."""
        return _GVISOR.match(self.log) is not None


@cache
def program(architecture: str) -> bytes | None:
    r"""The program as an ELF file; None for an architecture that gVisor does not run on.

    Source: Tool Interface Standard, ELF specification 1.2, book 1; one segment, readable and executable.

    >>> program("amd64")[:4], len(program("arm64")), program("s390x")
    (b'\x7fELF', 364, None)
    """
    if (machine := _MACHINES.get(architecture)) is None:
        return None
    code = _code(_AMD64, 1) if architecture == "amd64" else _code(_ARM64, 4)
    start = _ELF.size + _SEGMENT.size
    size = start + len(code)
    file = (b"\x7fELF", 2, 1, 1, 0, 0, 2, machine, 1, _BASE + start, _ELF.size, 0, 0)
    head = _ELF.pack(*file, _ELF.size, _SEGMENT.size, 1, 0, 0, 0)
    return head + _SEGMENT.pack(1, 5, 0, _BASE, _BASE, size, size, 0x10000) + code


def entrypoint(path: str, programs: list[str], argv: list[str]) -> list[str]:
    """The command line that runs the program at ``path``, then the first of ``programs`` that is there.

    >>> entrypoint("/work/.x", ["/bin/sh"], ["sh", "-c", "true"])
    ['/work/.x', '/bin/sh', '', 'sh', '-c', 'true']
    """
    return [path, *programs, "", *argv]


def parse(report: bytes) -> Kernel | None:
    """What the program wrote; None if this is no report of it.

    >>> parse(b"x" * 536) is None
    True
    """
    if len(report) != SIZE:
        return None
    magic, shown, found, names, log = _LAYOUT.unpack(report)
    if magic != MAGIC:
        return None
    fields = [names[at : at + 65].partition(b"\0")[0].decode("ascii", "replace") for at in range(0, 390, 65)]
    name = " ".join((fields[0], fields[2], fields[3]))
    return Kernel(name, log[: max(0, min(shown, len(log)))], found - 1 if found > 0 else -1)


def _code(listing: str, width: int) -> bytes:
    """Machine code of a listing; ``width`` is how many bytes a group of digits has."""
    groups = " ".join(line.partition(";")[0] for line in listing.splitlines()).split()
    return b"".join(int(group, 16).to_bytes(width, "little") for group in groups)

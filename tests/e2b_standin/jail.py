"""What a sandbox is on this machine: a process with namespaces and a disposable root of its own.

The root is an overlay of the host's, its upper layer in memory, so a sandbox may write anywhere and
nothing stays. ``/tmp``, ``/home`` and ``/run`` start empty. Everything ends with the first process of
the PID namespace.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path

CLONE_NEWNS = 0x00020000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 1 << 18
MS_NOSUID, MS_NODEV = 2, 4
PR_SET_PDEATHSIG, PR_CAPBSET_DROP = 1, 24
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
# chown, dac_override, dac_read_search, fowner, fsetid, kill, setgid, setuid, net_bind_service,
# net_raw, sys_chroot, sys_ptrace: what an ordinary root user in a guest needs; no mounts, no raw devices.
KEPT_CAPABILITIES = {0, 1, 2, 3, 4, 5, 6, 7, 10, 13, 18, 19}

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """mount(2)."""
    encode = lambda text: None if text is None else text.encode()  # noqa: E731
    _check(
        _libc.mount(encode(source), target.encode(), encode(kind), ctypes.c_ulong(flags), encode(data)),
        f"mount {target}",
    )


def die_with_parent() -> None:
    """Be killed when the parent process ends."""
    _check(_libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")


def leave_namespaces() -> None:
    """Enter new mount and PID (for children) namespaces, and a network one with nothing but loopback."""
    _check(_libc.unshare(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET), "unshare")


def build_root(hostname_user: str = "user") -> None:
    """Change into the disposable root; to be called by PID 1 of the namespace."""
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    mount("tmpfs", "/mnt", "tmpfs", 0, "mode=755")
    root = Path("/mnt/root")
    for name in ("upper", "work", "root"):
        Path("/mnt", name).mkdir()
    mount("overlay", str(root), "overlay", 0, "lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work")
    for name, mode in (("tmp", "1777"), ("home", "755"), ("run", "755")):
        mount("tmpfs", str(root / name), "tmpfs", MS_NOSUID | MS_NODEV, f"mode={mode}")
    _devices(root / "dev")
    _own_programs(root)
    os.chroot(root)
    os.chdir("/")
    mount("proc", "/proc", "proc", 0)
    _add_user(hostname_user)


def _own_programs(root: Path) -> None:
    """Show this Python and these sources in the new root, where it hides them or has them not."""
    for folder in (sys.base_prefix, sys.prefix, str(Path(__file__).resolve().parents[2])):
        shown = root / folder.lstrip("/")
        if not shown.is_dir() or not any(shown.iterdir()):
            shown.mkdir(parents=True, exist_ok=True)
            mount(folder, str(shown), None, MS_BIND | MS_REC)


def _devices(folder: Path) -> None:
    mount("tmpfs", str(folder), "tmpfs", MS_NOSUID, "mode=755")
    for name in DEVICES:
        (folder / name).touch()
        mount(f"/dev/{name}", str(folder / name), None, MS_BIND)
    for name in ("pts", "shm"):
        (folder / name).mkdir()
    mount("devpts", str(folder / "pts"), "devpts", 0, "newinstance,ptmxmode=0666,mode=620")
    mount("tmpfs", str(folder / "shm"), "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")
    (folder / "ptmx").symlink_to("pts/ptmx")
    for name, target in (("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        (folder / name).symlink_to(target)


def _add_user(name: str) -> None:
    """Give the guest the account that E2B's templates have, uid 1000."""
    passwd = [line for line in Path("/etc/passwd").read_text().splitlines() if ":1000:" not in line]
    group = [line for line in Path("/etc/group").read_text().splitlines() if ":1000:" not in line]
    Path("/etc/passwd").write_text("\n".join([*passwd, f"{name}:x:1000:1000::/home/{name}:/bin/bash", ""]))
    Path("/etc/group").write_text("\n".join([*group, f"{name}:x:1000:", ""]))
    home = Path("/home", name)
    home.mkdir(mode=0o755)
    os.chown(home, 1000, 1000)


def raise_loopback() -> None:
    """Bring ``lo`` up in a new network namespace."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


def drop_capabilities() -> None:
    """Take from every program started from here what a guest's root could harm the host with."""
    for capability in range(64):
        if capability not in KEPT_CAPABILITIES:
            _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)  # EINVAL beyond the kernel's last one

"""Every operation of a sandbox, each with a secret wherever a caller could put one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from sandboxio.adapter import BaseSandbox

Operation = Callable[[BaseSandbox, str, Path], Awaitable[object]]


async def _run(sandbox: BaseSandbox, secret: str, folder: Path) -> object:
    return await sandbox.run(["curl", f"http://x/?t={secret}"], env={"SOME_TOKEN": f"more-{secret}"})


async def _run_shell(sandbox: BaseSandbox, secret: str, folder: Path) -> object:
    return await sandbox.run(f"echo '{secret}' | sh")


async def _run_code(sandbox: BaseSandbox, secret: str, folder: Path) -> object:
    return await sandbox.run_code(f"token = {secret!r}\nprint(1)")


async def _stream(sandbox: BaseSandbox, secret: str, folder: Path) -> object:
    async with sandbox.stream(["x", secret], env={"PASSWORD": secret}) as process:
        async for _ in process:
            pass
        return await process.wait()


async def _read(sandbox: BaseSandbox, secret: str, folder: Path) -> object:
    return await sandbox.files.read(f"/tmp/{secret}")


async def _write(sandbox: BaseSandbox, secret: str, folder: Path) -> object:
    return await sandbox.files.write(f"/tmp/{secret}", f"content {secret}")


async def _upload(sandbox: BaseSandbox, secret: str, folder: Path) -> object:
    local = folder / "local"
    local.write_text(f"content {secret}")
    return await sandbox.files.upload(local, f"/tmp/{secret}")


async def _download(sandbox: BaseSandbox, secret: str, folder: Path) -> object:
    return await sandbox.files.download(f"/tmp/{secret}", folder / "target")


async def _ls(sandbox: BaseSandbox, secret: str, folder: Path) -> object:
    return await sandbox.files.ls(f"/tmp/{secret}")


async def _mkdir(sandbox: BaseSandbox, secret: str, folder: Path) -> object:
    return await sandbox.files.mkdir(f"/tmp/{secret}", parents=True)


async def _remove(sandbox: BaseSandbox, secret: str, folder: Path) -> object:
    return await sandbox.files.remove(f"/tmp/{secret}")


OPERATIONS: dict[str, tuple[str, Operation]] = {
    "run": ("exec", _run),
    "run a shell line": ("exec", _run_shell),
    "run_code": ("run_code", _run_code),
    "stream": ("stream", _stream),
    "read": ("file_read", _read),
    "write": ("file_write", _write),
    "upload": ("file_upload", _upload),
    "download": ("file_download", _download),
    "ls": ("file_list", _ls),
    "mkdir": ("file_mkdir", _mkdir),
    "remove": ("file_remove", _remove),
}
"""Name to the event it makes and the call; ``create``, ``connect`` and ``kill`` are no calls on a sandbox."""

"""Make .venv hold what a make target needs: `demo` (the library and Docker), `docs`, or `dev` (everything).

    python3 scripts/setup_venv.py dev

Done once for each state of pyproject.toml; after that it only looks. Two at once wait for each other.
"""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
INSTALLS = {
    "demo": ["-e", ".[docker]"],
    "docs": ["--group", "docs"],
    "dev": ["-e", ".[docker,e2b,trio,otel]", "--group", "dev"],
}


def is_ready(level: str, state: str) -> bool:
    marks = {"demo": ("demo", "dev"), "docs": ("docs", "dev"), "dev": ("dev",)}[level]
    return any((VENV / f".ready-{mark}-{state}").exists() for mark in marks)


def pip(*arguments: str) -> None:
    command = [str(VENV / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run([*command, *arguments], cwd=ROOT, check=True, stdin=subprocess.DEVNULL)


def main() -> int:
    level = sys.argv[1]
    state = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()[:12]
    VENV.mkdir(exist_ok=True)
    with (VENV / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_ready(level, state):
            return 0
        print(f"Installing into {VENV} ({level}) ...", file=sys.stderr, flush=True)
        if not (VENV / "bin" / "python").exists():
            subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
        pip("install", "--upgrade", "pip>=25.1")  # the first with --group
        pip("install", *INSTALLS[level])
        for mark in VENV.glob(".ready-*"):
            mark.unlink()
        (VENV / f".ready-{level}-{state}").touch()
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(f"setting up .venv failed at: {' '.join(error.cmd)}")

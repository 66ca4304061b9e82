"""One run of pytest; what failed in it is tried again, alone.

python -m scripts.run_pass UNSTEADY [pytest's arguments]

A test that failed and then passes three times on its own is unsteady. It is a fault, of the test or of what
it tests, that somebody has to look for, so it is appended to the file UNSTEADY, a line each, and `make test`
ends with those lines. It says nothing of the change at hand, so the run has passed. A test that fails again
has failed. More than two unsteady ones are no accident: then nothing is tried again.

A promise of docs/guarantees.md whose test is unsteady is not called proved: see ``scripts.guarantees``.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

TRIES = 3
MOST = 2
TESTS_FAILED = 1
"""pytest's exit code, https://docs.pytest.org/en/stable/reference/exit-codes.html"""


def run(arguments: Sequence[str], unsteady: Path) -> int:
    """The exit code of the run, 0 if what failed in it is only unsteady."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        cache = Path(folder, "0/cache")
        code = pytest(arguments, cache)
        if code != TESTS_FAILED:
            return code
        failed = failures(cache)
        if not 0 < len(failed) <= MOST:
            return code
        for number in range(1, TRIES + 1):
            print(f"== once more, {number} of {TRIES}: {', '.join(map(ascii, failed))}", flush=True)
            again = Path(folder, str(number), "cache")
            shutil.copytree(cache, again)
            if pytest([*arguments, "--last-failed", "--last-failed-no-failures=none"], again):
                return code
        with unsteady.open("a") as file:
            file.writelines(f"{ascii(test)[1:-1]}\n" for test in failed)
        return 0


def pytest(arguments: Sequence[str], cache: Path) -> int:
    """Run it with a cache and a folder for temporary files of its own: several may run at once.

    With the shared folder one run may remove what another one removes too, and end with that.
    """
    own = ["-o", f"cache_dir={cache}", f"--basetemp={cache.with_name('t')}"]
    cache.parent.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "pytest", *own, *arguments]
    with subprocess.Popen(command) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.wait()  # pytest has heard it too, and takes down what its tests made
            raise


def failures(cache: Path) -> list[str]:
    """What failed in the run with this cache, teardown included; nothing where only the whole has failed."""
    found = cache / "v/cache/lastfailed"
    return sorted(json.loads(found.read_text())) if found.exists() else []


if __name__ == "__main__":
    try:
        sys.exit(run(sys.argv[2:], Path(sys.argv[1])))
    except KeyboardInterrupt:
        sys.exit(130)

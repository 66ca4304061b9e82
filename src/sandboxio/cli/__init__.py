"""The command ``sandboxio``.

The same command runs as ``python -m sandboxio``. Exit codes are stable: 0 success, 1 a problem was found
or the command failed, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

from ._main import main as main

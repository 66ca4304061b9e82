"""What every part of a guest shares: its settings, accounts, paths and environment."""

# Paths are text here, as in envd: not normalised, and bytes that are not UTF-8 kept.

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .processes import Table

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
DEFAULT_USER = "user"


class GuestError(Exception):
    """A request that envd refuses; the text is its answer."""


def parse_version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.partition("-")[0].split("."))


@dataclass
class Guest:
    """One sandbox, seen from inside."""

    token: str
    envd_version: str
    variables: Mapping[str, str]
    started: float = field(default_factory=time.time)
    table: Table = field(default_factory=Table)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Guest:
        return cls(config["token"], config["envd_version"], config["variables"])

    @property
    def envd(self) -> tuple[int, ...]:
        return parse_version(self.envd_version)

    def account(self, name: str | None) -> pwd.struct_passwd:
        """The account of that name; envd knows a default user since 0.4.0."""
        if not name:
            if self.envd < (0, 4, 0):
                raise GuestError("no user specified")
            name = DEFAULT_USER
        try:
            return pwd.getpwnam(name)
        except KeyError:
            raise GuestError(f"invalid username: '{name}'") from None

    def resolve(self, path: str, account: pwd.struct_passwd) -> str:
        """An absolute path: ``~`` and relative paths start at the home folder."""
        if path.startswith("~"):
            if len(path) > 1 and path[1] != "/":
                raise GuestError("cannot expand user-specific home dir")
            path = account.pw_dir + path[1:]
        return path if os.path.isabs(path) else os.path.normpath(os.path.join(account.pw_dir, path))

    def ensure_folders(self, folder: str, account: pwd.struct_passwd) -> None:
        """Make ``folder`` and what is missing above it, owned by the account."""
        missing: list[str] = []
        while not os.path.lexists(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)
        if not os.path.isdir(folder):
            raise OSError(f"path is a file: {folder}")
        for path in reversed(missing):
            os.mkdir(path, 0o755)
            os.chown(path, account.pw_uid, account.pw_gid)

    def environment(self, account: pwd.struct_passwd) -> dict[str, str]:
        """The environment of a process before its own variables."""
        base = {"PATH": PATH, "HOME": account.pw_dir, "USER": account.pw_name, "LOGNAME": account.pw_name}
        return {**base, **self.variables}

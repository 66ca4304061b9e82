"""``python -m sandboxio.mcp``."""

from __future__ import annotations

import sys

from sandboxio.errors import BackendNotInstalled


def main() -> int:
    """Start the server; without the ``mcp`` extra, say what to install."""
    try:
        from sandboxio.mcp import command  # noqa: PLC0415 - it needs the extra
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("mcp", "mcp_types", "pydantic"):
            raise
        missing = BackendNotInstalled(
            "The MCP server needs the mcp package.", hint='pip install "sandboxio[mcp]"'
        )
        sys.stderr.write(f"{missing}\n")
        return 1
    return command.main()


if __name__ == "__main__":
    sys.exit(main())

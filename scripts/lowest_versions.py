"""Replace the dependencies in this environment by the lowest versions that pyproject.toml allows.

    python -m scripts.lowest_versions [EXTRA]

For throw-away environments only: `tox run -e lowest` uses it to prove that the bounds are true, and
`tox run -e mcp-lowest`, for example, with the extra of one framework: each pins dozens of packages of its
own.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

EXTRAS = ("docker", "e2b", "trio", "otel")

# pytest 9.2 renamed what the pytest plugin of old anyio imports; the tests' OpenTelemetry SDK
# and the API go together, as do the two packages of E2B; Jupyter's newest want a newer typing-extensions.
TOOLS = [
    "pytest<9.2",
    "opentelemetry-sdk==1.39.1",
    "opentelemetry-exporter-otlp-proto-http==1.39.1",
    "e2b-code-interpreter==2.5",
    "ipykernel<7",
    "jupyter-client<8.7",
]


def lowest(bounds: list[str]) -> list[str]:
    """One `name==version` for each `name>=version`."""
    pins = {}
    for bound in bounds:
        match = re.fullmatch(r"([A-Za-z0-9._-]+)>=([0-9.]+)", bound)
        if match is None:
            raise SystemExit(f"not a plain lower bound: {bound!r}")
        pins[match[1]] = f"{match[1]}=={match[2]}"
    return sorted(pins.values())


def wanted(extra: str | None) -> list[str]:
    """What to install for one extra, or for the project with EXTRAS."""
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    project = tomllib.loads(text)["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    if extra is not None:
        return lowest(extras[extra])
    return [*lowest([*project["dependencies"], *(each for name in EXTRAS for each in extras[name])]), *TOOLS]


if __name__ == "__main__":
    packages = wanted(sys.argv[1] if len(sys.argv) > 1 else None)
    print("installing", " ".join(packages), flush=True)
    command = [sys.executable, "-m", "pip", "install", "-q", *packages]
    sys.exit(subprocess.run(command, check=False).returncode)

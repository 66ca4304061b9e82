"""Replace the dependencies in this environment by the lowest versions that pyproject.toml allows.

    python -m scripts.lowest_versions

For throw-away environments only: `tox run -e lowest` uses it to prove that the bounds are true.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

EXTRAS = ("docker", "e2b", "trio", "otel")
"""The frameworks are not here: each pins dozens of packages of its own."""

# pytest 9.2 renamed what the pytest plugin of old anyio imports; the tests' OpenTelemetry SDK
# and the API go together.
TOOLS = [
    "pytest<9.2",
    "opentelemetry-sdk==1.39.1",
    "opentelemetry-exporter-otlp-proto-http==1.39.1",
]


def lowest() -> list[str]:
    """One `name==version` for each `name>=version` of the project and of EXTRAS."""
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    project = tomllib.loads(text)["project"]
    bounds = [*project["dependencies"]]
    for extra in EXTRAS:
        bounds += project["optional-dependencies"][extra]
    pins = {}
    for bound in bounds:
        match = re.fullmatch(r"([A-Za-z0-9._-]+)>=([0-9.]+)", bound)
        if match is None:
            raise SystemExit(f"not a plain lower bound: {bound!r}")
        pins[match[1]] = f"{match[1]}=={match[2]}"
    return sorted(pins.values())


if __name__ == "__main__":
    wanted = [*lowest(), *TOOLS]
    print("installing", " ".join(wanted), flush=True)
    command = [sys.executable, "-m", "pip", "install", "-q", *wanted]
    sys.exit(subprocess.run(command, check=False).returncode)

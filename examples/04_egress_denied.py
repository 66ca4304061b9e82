# /// script
# requires-python = ">=3.11"
# dependencies = ["sandboxio[docker]"]
# ///
"""Nothing leaves a sandbox unless you say so, and what cannot be enforced is refused.

    python 04_egress_denied.py [DSN]

The program exits with 1 if the sandbox reached the network.
"""

from __future__ import annotations

import sys

import anyio

import sandboxio
from sandboxio import NetworkPolicy

# 192.0.2.1 belongs to nobody (RFC 5737). With a network the attempt would time out after 3 s;
# without one it ends at once.
ATTEMPT = """
import urllib.request
print(urllib.request.urlopen("http://192.0.2.1/", timeout=3).status)
"""


async def main(dsn: str) -> int:
    async with await sandboxio.create(dsn, timeout=120) as sandbox:
        result = await sandbox.run_code(ATTEMPT, timeout=30)
        print("without a word about the network:", result.stderr.strip().rpartition("\n")[2])
        if result.ok:
            print("the network was reached: this must not happen")
            return 1

    # To let everything out, say so. One line, easy to find in a review.
    async with await sandboxio.create(dsn, network=NetworkPolicy(egress="allow"), timeout=120) as sandbox:
        print("with egress allowed:", sandbox)

    try:
        policy = NetworkPolicy(allow=("api.example.org",))
        async with await sandboxio.create(dsn, network=policy, timeout=120):
            print("with an allowlist: this backend can enforce it")
    except sandboxio.CapabilityNotSupported as error:
        print("with an allowlist:", error.message)
    return 0


sys.exit(anyio.run(main, sys.argv[1] if len(sys.argv) > 1 else "docker://python:3.12-slim"))

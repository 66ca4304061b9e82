"""``python -m tests.e2b_standin --port 0``"""

from __future__ import annotations

import argparse
import asyncio

from . import inside
from .fleet import Fleet
from .server import serve
from .zygote import Zygote


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.e2b_standin", description="A local E2B for tests.")
    parser.add_argument("--port", type=int, default=0, help="TCP port on loopback; 0 takes a free one")
    arguments = parser.parse_args()
    zygote = Zygote(inside.serve)  # forks: before anything starts a thread
    asyncio.run(serve(Fleet(zygote), arguments.port))


if __name__ == "__main__":
    main()

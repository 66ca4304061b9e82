"""The tier that a container has: what a runtime's name promises, and the proof of it before anything runs.

A name promises gVisor if one of its words is ``runsc`` or ``gvisor``: ``runsc``, ``runsc-kvm``,
``io.containerd.runsc.v1``. A promise is what ``require_isolation`` is judged by before anything is created.
At create it has to be proven, by a program that is not the image's (``kernel.py``), in the very container
that will be used; only then the image's first program is let in. Anything else is refused, and nothing of
the container is left. Other names promise nothing: their sandboxes are ``CONTAINER``.

What is trusted: the engine, which could do on its machine whatever it likes. What is not: the image, and
whoever set up the engine to be without mistakes. What the proof does not cover is how gVisor was set up
(its platform, its network, whether it shares files).

A second handle (``connect``) finds the proof in a label that only ``create`` sets (an image that has it is
refused, see ``labels.py``), and in the runtime that the engine names. Asking again would be worth less: by
then code runs inside that could answer instead.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from typing import Any, Final

from sandboxio.errors import ConfigurationError, CreationError
from sandboxio.models import IsolationTier

from . import kernel
from .answers import json_list, json_object
from .ending import Ending
from .engine import Engine, Hijacked
from .frames import Demultiplexer
from .hostconfig import WORK
from .labels import labels_of
from .prepare import put_file
from .words import printable

LABEL: Final = "io.sandboxio.isolation"
"""On containers whose tier above ``CONTAINER`` create has proven; those that failed are gone."""

WORDS: Final = 2000
"""Bytes kept of what is said on stderr before the report, for the error message."""
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Docker's default, for images without a PATH (moby, oci/defaults.go, DefaultPathEnv)."""


def promised(runtime: str | None) -> IsolationTier:
    """The tier that a runtime's name promises.

    >>> [promised(name).value for name in ("runsc", "io.containerd.runsc.v1", "runc", None)]
    ['gvisor', 'gvisor', 'container', 'container']
    """
    words = re.split(r"[^a-z0-9]+", (runtime or "").lower())
    return IsolationTier.GVISOR if {"runsc", "gvisor"} & set(words) else IsolationTier.CONTAINER


def proven(found: Mapping[str, Any]) -> IsolationTier:
    """The tier of an inspected container, by the label and the runtime that its creator proved."""
    runtime = str(json_object(found.get("HostConfig")).get("Runtime") or "")
    label = labels_of(json_object(found.get("Config"))).get(LABEL)
    tier = promised(runtime)
    return tier if label == tier.value else IsolationTier.CONTAINER


class Proof:
    """The proof that one container runs on gVisor.

    ``runtime`` is its name for the engine, ``image`` the image's description by the engine.
    Raises ``ConfigurationError`` if gVisor does not run on the image's architecture.
    """

    def __init__(self, runtime: str, image: Mapping[str, Any]) -> None:
        architecture = str(image.get("Architecture") or "")
        file = kernel.program(architecture)
        if file is None:
            raise ConfigurationError(
                f"The runtime {runtime!r} promises gVisor, which does not run on {architecture!r}.",
                hint="Use an image for amd64 or arm64, or drop runtime=.",
            )
        self._runtime = runtime
        self._file = file
        self._name = f".sandboxio-{secrets.token_hex(8)}"
        self._folders = _folders(image)

    def over(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """``body`` of ContainerCreate, with the witness as the first program and the label of the proof."""
        argv = list(body["Entrypoint"])
        first = [argv[0]] if "/" in argv[0] else [f"{folder}/{argv[0]}" for folder in self._folders]
        entrypoint = kernel.entrypoint(f"{WORK}/{self._name}", first, argv)
        labels = {**body["Labels"], LABEL: promised(self._runtime).value}
        return {**body, "Entrypoint": entrypoint, "Labels": labels}

    async def install(self, engine: Engine, container: str) -> None:
        """Put the witness into a created container. Call it after what else is put there."""
        path = f"{WORK}/{self._name}".lstrip("/")
        await put_file(engine, container, path, self._file, mode=0o555)

    async def demand(self, stream: Hijacked, ending: Ending) -> bool:
        """Hear the witness of a started container; let the image's program in if all is well.

        False if the image lacks that program. Raises ``ConfigurationError`` if the kernel is not
        gVisor's, ``CreationError`` if nothing was heard; then nothing of the image has run.
        """
        seen = kernel.parse(await _first_bytes(stream, ending))
        if seen is None or not seen.is_gvisor:
            claims = f"the kernel inside says {seen.name!r}" if seen else "what runs inside gave no proof"
            raise ConfigurationError(
                f"The runtime {self._runtime!r} is not gVisor: {claims}. The sandbox was removed.",
                hint="Register gVisor's runsc under that name with the engine, or drop runtime=.",
            )
        if seen.program < 0:
            return False
        await stream.send(kernel.GO)
        return True


async def _first_bytes(stream: Hijacked, ending: Ending) -> bytes:
    """The report's worth of stdout; less or more is for the parser to refuse."""
    demux, told, words = Demultiplexer(), bytearray(), bytearray()
    while len(told) < kernel.SIZE:
        data = await stream.receive()
        demux.feed(data)
        while (chunk := demux.next_chunk()) is not None:
            if chunk.stream == "stdout":
                told += chunk.data
            else:  # a runtime that is not what it says may print without end
                words += chunk.data[: WORDS - len(words)]
        if not data:
            how = (await ending.explained()).message
            text = printable(words.decode("utf-8", "replace"))
            said = f" It said: {text}" if text else ""
            raise CreationError(
                f"The container ended before its kernel was known: {how}{said}",
                hint="Try the image and the runtime with `docker run --runtime ...`.",
            )
    return bytes(told)


def _folders(image: Mapping[str, Any]) -> list[str]:
    """Where the image's programs are: its PATH."""
    variables = [str(each) for each in json_list(json_object(image.get("Config")).get("Env"))]
    path = next((each.removeprefix("PATH=") for each in variables if each.startswith("PATH=")), _PATH)
    return [folder.rstrip("/") for folder in path.split(":") if folder.startswith("/")]

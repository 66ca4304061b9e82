"""sandboxio on Docker and Podman.

>>> from sandboxio_docker import DockerBackend, DockerConfig
>>> DockerBackend(image="python:3.12-slim")
<DockerBackend docker container>
"""

from __future__ import annotations

from .backend import DockerBackend as DockerBackend
from .config import DockerConfig as DockerConfig
from .native import DockerContainer as DockerContainer
from .pull import PullProgress as PullProgress

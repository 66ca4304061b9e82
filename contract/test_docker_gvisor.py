"""Docker with gVisor's runtime, over both channels, on the engine that DOCKER_HOST names."""

from __future__ import annotations

import functools
import json
from typing import ClassVar

import pytest

from sandboxio.audit import AuditConfig
from sandboxio.models import IsolationTier
from sandboxio.testing import RecordingSink
from sandboxio_docker import DockerBackend
from scripts import engine_api

from .test_docker import DockerContract

RUNTIME = "runsc"

NO_CGROUPS = "runsc runs with --ignore-cgroups here, so the memory cap is not enforced"
NO_NETWORK = "runsc runs with --network=none here, so no sandbox is open to compare with"
STATX = "Debian 12's runsc (20221219) refuses the statx of coreutils 9 (AT_NO_AUTOMOUNT), which lists folders"


@functools.cache
def runtime_problem() -> str | None:
    """Why nothing can run on gVisor here, or None."""
    status, body = engine_api.request("GET", "/info")
    if status != 200 or RUNTIME in json.loads(body).get("Runtimes", {}):
        return None  # an engine that does not answer is not skipped here
    return f"the engine knows no runtime {RUNTIME!r}: make engines brings up one that does"


class GvisorContract(DockerContract):
    """What is the same for both channels."""

    deviations: ClassVar[dict[str, str]] = {
        "test_memory_beyond_the_cap_names_the_cap": NO_CGROUPS,
        "test_deny_denies": NO_NETWORK,
    }

    @pytest.fixture
    def backend(self, docker_image: str) -> DockerBackend:
        if problem := runtime_problem():
            pytest.skip(problem)
        sink = self.audit_sink
        assert sink is not None
        backend = DockerBackend(
            image=docker_image, channel=self.channel, runtime=RUNTIME, audit=AuditConfig(sinks=(sink,))
        )
        assert backend.isolation is IsolationTier.GVISOR
        return backend


class TestDockerGvisorGuest(GvisorContract):
    audit_sink = RecordingSink()
    channel: ClassVar = "guest"


class TestDockerGvisorExec(GvisorContract):
    audit_sink = RecordingSink()
    channel: ClassVar = "exec"
    deviations: ClassVar[dict[str, str]] = {
        **GvisorContract.deviations,
        "test_files_make_folders": STATX,
        "test_files_list_paths_that_start_as_the_folder_was_given": STATX,
        "test_files_list_what_is_there": STATX,
        "test_files_under_a_name_that_is_not_utf8": STATX,
        "test_files_under_odd_names": STATX,
    }

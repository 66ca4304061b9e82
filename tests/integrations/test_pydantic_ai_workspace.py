"""The workspace against Pydantic AI's own conformance suite, in real containers, on both loops."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from pydantic_ai.messages import WorkspaceRef
from pydantic_ai.workspaces import WorkspaceBackend
from pydantic_ai.workspaces.conformance import WorkspaceBackendSuite

from sandboxio import ConfigurationError
from sandboxio.integrations.pydantic_ai_workspace import SandboxWorkspace


@pytest.mark.engine
class TestWorkspaceOnDocker(WorkspaceBackendSuite):
    @pytest.fixture
    def target(self, docker_image: str) -> str:
        return f"docker://{docker_image}"

    @pytest.fixture
    async def made(self) -> AsyncIterator[list[SandboxWorkspace]]:
        workspaces: list[SandboxWorkspace] = []
        yield workspaces
        for workspace in workspaces:
            await workspace.destroy()

    @pytest.fixture
    async def backend(self, target: str, made: list[SandboxWorkspace]) -> SandboxWorkspace:
        made.append(SandboxWorkspace(target))
        return made[-1]

    @pytest.fixture
    def fresh_backend(self, target: str, made: list[SandboxWorkspace]) -> Callable[[], WorkspaceBackend]:
        def fresh() -> SandboxWorkspace:
            made.append(SandboxWorkspace(target))
            return made[-1]

        return fresh

    @pytest.fixture
    def attach_backend(
        self, target: str, made: list[SandboxWorkspace]
    ) -> Callable[[WorkspaceRef], WorkspaceBackend]:
        def attach(ref: WorkspaceRef) -> SandboxWorkspace:
            made.append(SandboxWorkspace(target, ref=ref))
            return made[-1]

        return attach

    @pytest.fixture
    def destroy_environment(self) -> Callable[[Any], Awaitable[None]]:
        async def destroy(backend: SandboxWorkspace) -> None:
            await backend.destroy()

        return destroy


def test_a_ref_of_another_provider_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="provider 'other'"):
        SandboxWorkspace(ref=WorkspaceRef(provider="other", id="x"))

"""Network policy and resource caps: what is asked for is in force, or refused."""

from __future__ import annotations

import pytest

from sandboxio.errors import CapabilityNotSupported, ConfigurationError, ResourceLimitExceeded
from sandboxio.models import Capability, NetworkPolicy, Resources
from sandboxio.protocols import AsyncSandbox

from .base import Contract, lacks, needs, new_mark
from .canary import Canary


class NetworkTests(Contract):
    """Deny denies. The canary is reached by the same command where egress is allowed."""

    async def fetched(self, sandbox: AsyncSandbox, canary: Canary) -> bool:
        """Whether a command in the sandbox gets an answer of the canary."""
        return (await sandbox.run([*self.cmd_fetch, canary.url], timeout=60)).ok

    @needs(Capability.NETWORK_POLICY, Capability.RUN_COMMAND)
    async def test_deny_denies(self) -> None:
        async with self.canary() as canary:
            async with self.sandbox(network=NetworkPolicy(egress="allow")) as sandbox:
                assert await self.fetched(sandbox, canary), (
                    "the canary must be reachable where that is allowed"
                )
            reached = canary.visits
            assert reached
            async with self.sandbox() as sandbox:
                assert not await self.fetched(sandbox, canary)
            async with await self.backend.create(template=self.template) as sandbox:
                assert not await self.fetched(sandbox, canary), "deny is the default of create() itself"
            assert canary.visits == reached, "egress is denied, and the canary was reached"

    @needs(Capability.NETWORK_POLICY, Capability.RUN_COMMAND)
    async def test_an_allowlist_permits_what_it_lists_and_nothing_else(self) -> None:
        if not self.allowlists_supported:
            label = new_mark()
            with pytest.raises(CapabilityNotSupported):
                await self.created(label=label, network=NetworkPolicy(allow=("allowed.example",)))
            await self.assert_nothing_left(label)
            return
        async with self.canary() as canary:
            async with self.sandbox(network=NetworkPolicy(allow=(canary.host,))) as sandbox:
                assert await self.fetched(sandbox, canary)
            reached = canary.visits
            assert reached
            async with self.sandbox(network=NetworkPolicy(allow=("other.example",))) as sandbox:
                assert not await self.fetched(sandbox, canary)
            assert canary.visits == reached

    async def test_learning_egress_is_refused(self) -> None:
        label = new_mark()
        with pytest.raises(CapabilityNotSupported):
            await self.created(label=label, network=NetworkPolicy(egress="learn"))
        await self.assert_nothing_left(label)

    @lacks(Capability.TUNNELS)
    async def test_ingress_ports_are_refused(self) -> None:
        label = new_mark()
        with pytest.raises(CapabilityNotSupported, match="TUNNELS"):
            await self.created(label=label, network=NetworkPolicy(ingress_ports=(8080,)))
        await self.assert_nothing_left(label)


class ResourceTests(Contract):
    """Caps are always there; a caller may choose them and not remove them."""

    def only_with_caps(self) -> None:
        """Skip a test of caps where they belong to the template."""
        if not self.resource_caps_supported:
            pytest.skip(
                f"{type(self).__name__} sets resource_caps_supported = False: caps are the template's"
            )

    async def test_caps_of_the_template_cannot_be_asked_for(self) -> None:
        if self.resource_caps_supported:
            pytest.skip(f"{type(self).__name__} sets resource_caps_supported = True: caps are the sandbox's")
        label = new_mark()
        for resources in (Resources(cpu=1), Resources(memory_mb=512), Resources(disk_mb=1024)):
            with pytest.raises(ConfigurationError, match="template"):
                await self.created(label=label, resources=resources)
        await self.assert_nothing_left(label)

    async def test_caps_that_were_asked_for_are_in_force(self) -> None:
        self.only_with_caps()
        async with self.sandbox(resources=Resources(cpu=0.5, memory_mb=200)) as sandbox:
            applied = await self.probe("applied_resources", sandbox)
            assert (applied.cpu, applied.memory_mb) == (0.5, 200)

    async def test_caps_are_in_force_when_nobody_asks(self) -> None:
        self.only_with_caps()
        for resources in (Resources(), Resources(cpu=None, memory_mb=None)):
            async with self.sandbox(resources=resources) as sandbox:
                applied = await self.probe("applied_resources", sandbox)
                assert applied.cpu
                assert applied.memory_mb

    async def test_a_disk_cap_that_cannot_be_kept_is_refused(self) -> None:
        label = new_mark()
        with pytest.raises((CapabilityNotSupported, ConfigurationError)):
            await self.created(label=label, resources=Resources(disk_mb=1024))
        await self.assert_nothing_left(label)

    @lacks(Capability.GPU)
    async def test_a_gpu_is_refused(self) -> None:
        label = new_mark()
        with pytest.raises(CapabilityNotSupported, match="GPU"):
            await self.created(label=label, resources=Resources(gpu="T4"))
        await self.assert_nothing_left(label)

    @needs(Capability.GPU)
    async def test_a_gpu_is_there(self) -> None:
        if self.gpu is None:
            self.skip_probe("gpu", "the device type to ask for")
        async with self.sandbox(resources=Resources(gpu=self.gpu)) as sandbox:
            assert (await self.probe("applied_resources", sandbox)).gpu == self.gpu

    @needs(Capability.RUN_COMMAND)
    async def test_memory_beyond_the_cap_names_the_cap(self) -> None:
        self.only_with_caps()
        if self.cmd_exhaust_memory is None:
            self.skip_probe("cmd_exhaust_memory", "a command that uses more than 128 MiB")
        async with self.sandbox(resources=Resources(memory_mb=128)) as sandbox:
            with pytest.raises(ResourceLimitExceeded, match="128"):
                await sandbox.run(self.cmd_exhaust_memory, timeout=120)
            assert (await sandbox.run([*self.cmd_echo, "still here"])).stdout == "still here\n"

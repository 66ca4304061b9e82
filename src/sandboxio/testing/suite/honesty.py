"""What a backend says of itself is true."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import pytest

from sandboxio import api
from sandboxio.errors import CapabilityNotSupported, ConfigurationError, UnverifiedIsolationWarning
from sandboxio.models import Capability, IsolationTier, NetworkPolicy, Resources
from sandboxio.protocols import AsyncSandbox, Backend

from .base import Contract, lacks, needs, new_mark
from .named import named

USABLE = {
    Capability.RUN_COMMAND: "async def run(self, cmd, *, timeout=None, env=None) -> ExecResult",
    Capability.RUN_CODE: (
        "async def run_code(self, code, *, language='python', context_id=None, timeout=None) -> ExecResult"
    ),
    Capability.STATEFUL_CODE: "run_code(context_id=...)",
    Capability.STREAMING: "def stream(self, cmd, *, timeout=None, env=None) -> Process",
    Capability.FILESYSTEM: "files, with read, write, ls, mkdir and remove",
    Capability.UPLOAD_DOWNLOAD: "files, with upload and download",
    Capability.NETWORK_POLICY: "create(network=...)",
    Capability.GPU: "create(resources=Resources(gpu=...))",
    Capability.TUNNELS: "create(network=NetworkPolicy(ingress_ports=...))",
}
"""What the ports of this release have for each capability; the others have nothing yet."""

METHODS: dict[Capability, tuple[str, ...]] = {
    Capability.RUN_COMMAND: ("run",),
    Capability.RUN_CODE: ("run_code",),
    Capability.STREAMING: ("stream",),
    Capability.FILESYSTEM: ("files.read", "files.write", "files.ls", "files.mkdir", "files.remove"),
    Capability.UPLOAD_DOWNLOAD: ("files.upload", "files.download"),
}


class CapabilityTests(Contract):
    """Row "Capability honesty"; that each declared flag works is what the other tests show."""

    async def test_every_declared_capability_has_its_methods(self) -> None:
        name = self.backend.name
        for capability in self.backend.capabilities:
            assert capability in USABLE, (
                f"backend {name!r} declares {capability.name}, for which this release has no method: "
                f"take it out of `capabilities`, and leave the feature to `native`"
            )
        async with self.sandbox() as sandbox:
            for capability in sandbox.capabilities:
                for path in METHODS.get(capability, ()):
                    assert _reaches(sandbox, path), (
                        f"backend {name!r} declares {capability.name}, and {type(sandbox).__name__} has no "
                        f"{path}. Write: {USABLE[capability]}, or take the capability out"
                    )

    async def test_sandbox_capabilities_are_those_of_its_backend(self) -> None:
        async with self.sandbox() as sandbox:
            assert isinstance(sandbox.capabilities, Capability)
            beyond = sandbox.capabilities & ~self.backend.capabilities
            assert not beyond, f"the sandbox declares {beyond}, its backend does not"

    async def test_signatures_are_those_of_the_ports(self) -> None:
        """No ``**kwargs`` anywhere, and the names and kinds that callers rely on."""
        _assert_signatures(self.backend, Backend, ("create", "connect"))
        async with self.sandbox() as sandbox:
            methods = [path for paths in METHODS.values() for path in paths if "." not in path]
            _assert_signatures(sandbox, AsyncSandbox, [name for name in methods if hasattr(sandbox, name)])

    @lacks(Capability.RUN_COMMAND)
    async def test_run_is_refused(self) -> None:
        async with self.sandbox() as sandbox:
            with pytest.raises(CapabilityNotSupported, match="RUN_COMMAND"):
                await sandbox.run([*self.cmd_echo, "x"])

    @lacks(Capability.RUN_CODE)
    async def test_run_code_is_refused(self) -> None:
        async with self.sandbox() as sandbox:
            with pytest.raises(CapabilityNotSupported, match="RUN_CODE"):
                await sandbox.run_code("print(1)")

    @lacks(Capability.STREAMING)
    async def test_stream_is_refused_before_it_is_entered(self) -> None:
        async with self.sandbox() as sandbox:
            with pytest.raises(CapabilityNotSupported, match="STREAMING"):
                sandbox.stream([*self.cmd_echo, "x"])

    @lacks(Capability.FILESYSTEM)
    async def test_files_are_refused(self) -> None:
        async with self.sandbox() as sandbox:
            for operation in (
                lambda: sandbox.files.read("x"),
                lambda: sandbox.files.write("x", b""),
                lambda: sandbox.files.ls("/"),
                lambda: sandbox.files.mkdir("x"),
                lambda: sandbox.files.remove("x"),
            ):
                with pytest.raises(CapabilityNotSupported, match="FILESYSTEM"):
                    await operation()

    @lacks(Capability.UPLOAD_DOWNLOAD)
    async def test_transfer_is_refused(self, tmp_path: Any) -> None:
        (tmp_path / "local").write_bytes(b"x")
        async with self.sandbox() as sandbox:
            for operation in (sandbox.files.upload, sandbox.files.download):
                with pytest.raises(CapabilityNotSupported, match="UPLOAD_DOWNLOAD"):
                    await operation(str(tmp_path / "local"), str(tmp_path / "local"))

    @lacks(Capability.NETWORK_POLICY)
    async def test_create_is_refused_where_no_policy_can_be_kept(self) -> None:
        for network in (NetworkPolicy(), NetworkPolicy(egress="allow")):
            with pytest.raises(CapabilityNotSupported, match="NETWORK_POLICY"):
                await self.backend.create(network=network, resources=Resources())

    test_create_is_refused_where_no_policy_can_be_kept.__sbx_opens__ = False  # type: ignore[attr-defined]


class IsolationTests(Contract):
    """Row "Isolation honesty"."""

    async def test_a_tier_is_reported(self) -> None:
        assert isinstance(self.backend.isolation, IsolationTier)
        async with self.sandbox() as sandbox:
            assert isinstance(sandbox.isolation, IsolationTier)
            assert sandbox.isolation is self.backend.isolation

    async def test_a_tier_that_is_too_low_fails_before_anything_is_made(self) -> None:
        tier = self.backend.isolation
        too_high = [
            each for each in IsolationTier if each is not IsolationTier.UNKNOWN and not tier.satisfies(each)
        ]
        if not too_high:
            pytest.skip(f"backend {self.backend.name!r} has the highest tier there is")
        label = new_mark()
        with named(self.backend) as target:
            for required in too_high:
                with pytest.raises(ConfigurationError, match=required.value):
                    await api.create(target, require_isolation=required, metadata={"sbx_suite": label})
        await self.assert_nothing_left(label)

    @needs(Capability.NETWORK_POLICY)
    async def test_a_tier_that_is_met_is_accepted(self) -> None:
        met = [each for each in IsolationTier if self.backend.isolation.satisfies(each)]
        met = [each for each in met if each is not IsolationTier.UNKNOWN]
        if not met:
            pytest.skip(f"backend {self.backend.name!r} is of an unknown tier, which satisfies nothing")
        with named(self.backend) as target:
            async with await api.create(target, require_isolation=met[-1], template=self.template) as sandbox:
                assert sandbox.isolation.satisfies(met[-1])

    async def test_requiring_the_unknown_tier_is_refused(self) -> None:
        with named(self.backend) as target, pytest.raises(ConfigurationError, match="UNKNOWN"):
            await api.create(target, require_isolation=IsolationTier.UNKNOWN)

    async def test_an_unknown_tier_is_warned_about_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        if self.backend.isolation is not IsolationTier.UNKNOWN:
            pytest.skip(f"backend {self.backend.name!r} is of tier {self.backend.isolation.value}")
        monkeypatch.setattr(api, "_warned", set[str]())
        with named(self.backend) as target, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                async with await api.create(target, template=self.template):
                    pass
        found = [each for each in caught if each.category is UnverifiedIsolationWarning]
        assert len(found) == 1
        assert self.backend.name in str(found[0].message)


def _reaches(sandbox: object, path: str) -> bool:
    for name in path.split("."):
        sandbox = getattr(sandbox, name, None)
    return callable(sandbox)


def _assert_signatures(found: object, port: type, names: Any) -> None:
    for name in names:
        theirs = inspect.signature(getattr(found, name)).parameters
        ours = dict(inspect.signature(getattr(port, name)).parameters)
        ours.pop("self")
        where = f"{type(found).__name__}.{name}()"
        for parameter in theirs.values():
            assert parameter.kind is not parameter.VAR_KEYWORD, (
                f"{where} takes **{parameter.name}; name each argument"
            )
        missing = [each for each in ours if each not in theirs]
        assert not missing, f"{where} lacks {', '.join(missing)}; see sandboxio.protocols.{port.__name__}"
        wrong = [each for each, parameter in ours.items() if theirs[each].kind is not parameter.kind]
        assert not wrong, (
            f"{where} takes {', '.join(wrong)} in another way than sandboxio.protocols.{port.__name__}"
        )

"""The control plane as the backend uses it: what is asked for, what comes back, and what goes wrong."""

from __future__ import annotations

import json
import os
import socket
import traceback
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, get_args

import anyio
import pytest

import sandboxio
import sandboxio.registry
from sandboxio import Capability, IsolationTier, NetworkPolicy, Resources
from sandboxio.errors import (
    AuthError,
    CapabilityNotSupported,
    ConfigurationError,
    ConnectError,
    CreationError,
    OrphanedSandboxWarning,
    RateLimitError,
    SandboxError,
    SandboxGone,
)
from sandboxio_e2b import E2BBackend, E2BConfig, backend as backend_module, control
from sandboxio_e2b.control import ControlPlane, Order
from sandboxio_e2b.diagnose import diagnose
from sandboxio_e2b.endpoints import read_settings
from sandboxio_e2b.wire import parse_object
from tests.e2b_standin.running import API_KEY, StandInProcess
from tests.fakes.server import listen_tcp
from tests.fakes.sweep import How, Outcome, sweep

CREATE = "POST /v2/sandboxes$"


@pytest.fixture
def backend(standin: StandInProcess) -> E2BBackend:
    return E2BBackend()


async def raw(**order: Any) -> control.Placed:
    """A sandbox that the library did not make."""
    given = Order(template="base", seconds=60, metadata=order, internet=False, allowed=())
    creation = ControlPlane(read_settings()).creation(given)
    try:
        return await creation.finish()
    finally:
        creation.close()


# What is asked for


async def test_a_sandbox_is_ordered_as_it_was_asked_for(backend: E2BBackend, standin: StandInProcess) -> None:
    async with await backend.create(template="base", timeout=77.2, metadata={"team": "a"}) as sandbox:
        info = await sandbox.native.get_info() if _on_asyncio() else None
        (held,) = await backend.list_managed()
        assert (held.sandbox_id, held.state, held.labels) == (sandbox.id, "running", {"team": "a"})
        assert held.created_at is not None
        assert held.created_at.tzinfo is not None
        stored = (await ControlPlane(read_settings()).find_all({}))[0].metadata
        assert stored["sandboxio_managed"] == "true"
        assert stored["sandboxio_session"] == str(os.getpid())
        if info is not None:
            assert 77 < (info.end_at - info.started_at).total_seconds() < 79, "whole seconds, rounded up"
        assert sandbox.isolation is IsolationTier.UNKNOWN, "the stand-in is on this machine"
        assert Capability.STATEFUL_CODE in sandbox.capabilities
    assert standin.sandboxes == []


def _on_asyncio() -> bool:
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


pytest_leaves = pytest.mark.leaves("E2B's own client keeps its connections as long as the process lives")
test_a_sandbox_is_ordered_as_it_was_asked_for = pytest_leaves(test_a_sandbox_is_ordered_as_it_was_asked_for)


async def test_every_creation_has_a_key_of_its_own(backend: E2BBackend, standin: StandInProcess) -> None:
    for _ in range(2):
        await (await backend.create(template="base")).kill()
    keys = [
        item["headers"]["idempotency-key"] for item in standin.requests if item["path"] == "/v2/sandboxes"
    ]
    assert len(set(keys)) == len(keys) == 2


async def test_an_older_control_plane_is_spoken_to(backend: E2BBackend, standin: StandInProcess) -> None:
    standin.fault(
        "POST /v2/", "status", times=0, status=404, body="404 page not found", content_type="text/plain"
    )
    async with await backend.create(template="base", timeout=60) as sandbox:
        assert (await sandbox.run(["echo", "1"])).ok
        same = await backend.connect(sandbox.id)
        assert (await same.run(["echo", "2"])).ok
        await same.kill()
    paths = [item["path"] for item in standin.requests if item["method"] == "POST" and item["target"] is None]
    assert paths[:2] == ["/v2/sandboxes", "/sandboxes"]


@pytest.mark.parametrize("resources", [Resources(cpu=1), Resources(memory_mb=512), Resources(disk_mb=1)])
async def test_resources_are_the_templates(backend: E2BBackend, resources: Resources) -> None:
    with pytest.raises(ConfigurationError, match="template"):
        await backend.create(resources=resources)


@pytest.mark.parametrize(
    "host", ["https://example.org", "example.org:443", "a b", "-", "*", "*.*.org", "é.org"]
)
async def test_what_is_no_host_is_refused_before_anything(
    backend: E2BBackend, standin: StandInProcess, host: str
) -> None:
    with pytest.raises(ConfigurationError, match="allow"):
        await backend.create(network=NetworkPolicy(allow=(host,)))
    assert standin.requests == []


@pytest.mark.parametrize(
    ("policy", "internet", "rules"),
    [
        (NetworkPolicy(), False, {}),
        (NetworkPolicy(egress="allow"), True, {}),
        # Names in allowOut need 0.0.0.0/0 in denyOut, or E2B refuses.
        (
            NetworkPolicy(allow=("example.org", "*.example.org", "192.0.2.0/24", "2001:db8::1")),
            False,
            {
                "allowOut": ["example.org", "*.example.org", "192.0.2.0/24", "2001:db8::1"],
                "denyOut": ["0.0.0.0/0"],
            },
        ),
    ],
)
async def test_the_policy_is_part_of_the_creation(
    backend: E2BBackend, policy: NetworkPolicy, internet: bool, rules: dict[str, list[str]]
) -> None:
    async with await backend.create(template="base", network=policy) as sandbox:
        plane = ControlPlane(read_settings())
        stored = (await plane._client.request("GET", f"/sandboxes/{sandbox.id}")).json()
        assert (stored["allowInternetAccess"], stored["network"]) == (internet, rules)
        assert (await plane.connect(sandbox.id)).traffic_token, "ports are closed to the world"


@pytest.mark.parametrize("allow", [("api.example.org",), ("10.9.9.9",)])
async def test_an_allowlist_opens_nothing_where_the_control_plane_does_not_know_it(
    backend: E2BBackend, standin: StandInProcess, allow: tuple[str, ...]
) -> None:
    """It would leave the sandbox with all of the internet, so it is closed before it is opened for some."""
    standin.forget_network()
    with socket.create_server(("127.0.0.77", 0)) as listener:  # this machine, as a sandbox there sees it
        listener.settimeout(30)
        port = listener.getsockname()[1]
        knock = ["bash", "-c", f"exec 3<>/dev/tcp/127.0.0.77/{port} && timeout 1 cat <&3"]
        async with await backend.create(template="base", network=NetworkPolicy(egress="allow")) as sandbox:
            await sandbox.run(knock)
            listener.accept()[0].close()
        async with await backend.create(template="base", network=NetworkPolicy(allow=allow)) as sandbox:
            await sandbox.run(knock)
            listener.setblocking(False)
            with pytest.raises(BlockingIOError):
                listener.accept()[0].close()


async def test_what_utf_8_cannot_carry_is_refused_before_anything(
    backend: E2BBackend, standin: StandInProcess
) -> None:
    """A lone surrogate stands for a byte in arguments and files; a request is UTF-8."""
    for operation, kind in (
        (partial(backend.create, template="\udcff"), ConfigurationError),
        (partial(backend.list_managed, labels={"a": "\ud800"}), ConfigurationError),
        (partial(backend.list_managed, labels={"\udcff": "a"}), ConfigurationError),
        (partial(backend.connect, "\udcff"), ConnectError),
        (partial(backend.kill_managed, "\ud800"), ConnectError),
        (partial(backend.kill_managed, "i1/../i2"), ConnectError),
    ):
        with pytest.raises(kind) as caught:
            await operation()
        assert str(caught.value).isascii()
    assert standin.requests == []


async def test_reserved_labels_are_refused(backend: E2BBackend) -> None:
    with pytest.raises(ConfigurationError, match="sandboxio_managed"):
        await backend.create(metadata={"sandboxio_managed": "no"})


async def test_typed_configs_and_dsns_name_templates(standin: StandInProcess) -> None:
    for target in ("e2b://base?timeout=60", E2BConfig(template="base", timeout=60)):
        async with await sandboxio.create(target) as sandbox:
            assert (await sandbox.run("echo $HOME")).stdout == "/home/user\n"
    with pytest.raises(ConfigurationError, match="E2BConfig"):
        E2BBackend().configured(sandboxio.BackendConfig(backend="e2b"))


# connect, list, kill


async def test_connect_gives_a_handle_and_changes_nothing(backend: E2BBackend) -> None:
    plane = ControlPlane(read_settings())
    async with await backend.create(timeout=50, metadata={"tenant_id": "t"}) as sandbox:
        before = await plane._client.request("GET", f"/sandboxes/{sandbox.id}")
        other = await backend.connect(sandbox.id)
        after = await plane._client.request("GET", f"/sandboxes/{sandbox.id}")
        assert before.json()["endAt"] == after.json()["endAt"], "connect must not change the lifetime"
        assert other.subject().metadata == {"tenant_id": "t"}
        assert other._request.timeout == 50
        assert (await other.run_code("print(1)")).stdout == "1\n"
        other._close()


async def test_foreign_sandboxes_are_left_alone(backend: E2BBackend, standin: StandInProcess) -> None:
    foreign = await raw(owner="somebody")
    with pytest.raises(ConnectError, match="not made by sandboxio"):
        await backend.connect(foreign.id)
    with pytest.raises(ConnectError, match="not made by sandboxio"):
        await backend.kill_managed(foreign.id)
    assert await backend.list_managed() == []
    assert len(standin.sandboxes) == 1


async def unfiltered(standin: StandInProcess) -> None:
    """From now on lists hold everything, as from a control plane that knows no filter."""
    everything = await ControlPlane(read_settings())._client.request("GET", "/v2/sandboxes")
    standin.fault("GET /v2/sandboxes$", "status", times=0, status=200, body=everything.text)


async def test_a_list_that_is_not_filtered_is_filtered_here(
    backend: E2BBackend, standin: StandInProcess
) -> None:
    await raw(owner="somebody")
    for team in "ab":
        await raw(sandboxio_managed="true", team=team)
    await unfiltered(standin)
    assert [item.labels for item in await backend.list_managed(labels={"team": "a"})] == [{"team": "a"}]
    assert len(await backend.list_managed()) == 2


async def test_a_creation_that_is_undone_kills_no_other_sandbox(
    backend: E2BBackend, standin: StandInProcess
) -> None:
    await raw(owner="somebody")
    await raw(sandboxio_managed="true")
    await unfiltered(standin)
    standin.fault(CREATE, "status", status=502, body=PAGE, content_type="text/html")
    with pytest.raises(CreationError, match="502 with a web page"):
        await backend.create(template="base")
    assert len(standin.sandboxes) == 2


async def test_a_paused_sandbox_is_listed_and_not_connected_to(backend: E2BBackend) -> None:
    sandbox = await backend.create(template="base")
    await ControlPlane(read_settings())._client.request("POST", f"/sandboxes/{sandbox.id}/pause", json={})
    assert [item.state for item in await backend.list_managed()] == ["paused"]
    with pytest.raises(ConnectError, match="paused"):
        await backend.connect(sandbox.id)
    assert await backend.kill_managed(sandbox.id)
    assert not await backend.kill_managed(sandbox.id)
    sandbox._close()


async def test_lists_go_through_all_pages(
    backend: E2BBackend, standin: StandInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "PAGE", 2)
    odd = {"k/é &=%": "v w+%2F"}
    for number in range(5):
        await raw(sandboxio_managed="true", **(odd if number else {}))
    assert len(await backend.list_managed()) == 5
    assert len(await backend.list_managed(labels=odd)) == 4
    assert await backend.list_managed(labels={"k": "v"}) == []


async def test_a_list_without_an_end_is_given_up(backend: E2BBackend, standin: StandInProcess) -> None:
    headers = {"x-next-token": "same"}
    standin.fault("GET /v2/sandboxes", "status", times=0, status=200, body="[]", headers=headers)
    with anyio.fail_after(30), pytest.raises(ConnectError, match="without an end"):
        await backend.list_managed()
    assert len(standin.requests) == 2


async def test_a_sandbox_killed_behind_our_back_is_gone(backend: E2BBackend) -> None:
    async with await backend.create() as sandbox:
        await sandbox.files.write("f", b"x")
        await ControlPlane(read_settings()).kill(sandbox.id)
        with pytest.raises(SandboxGone, match=sandbox.id):
            await sandbox.run(["true"])
        for operation in (partial(sandbox.files.read, "f"), partial(sandbox.run_code, "1")):
            with pytest.raises(SandboxGone):
                await operation()


# What goes wrong


@pytest.mark.parametrize("key", ["", " ", None])
async def test_no_key(standin: StandInProcess, monkeypatch: pytest.MonkeyPatch, key: str | None) -> None:
    if key is None:
        monkeypatch.delenv("E2B_API_KEY")
    else:
        monkeypatch.setenv("E2B_API_KEY", key)
    backend = E2BBackend()
    for operation in (
        backend.create(),
        backend.connect("i1"),
        backend.list_managed(),
        backend.kill_managed("i1"),
    ):
        with pytest.raises(AuthError, match="E2B_API_KEY is not set") as caught:
            await operation
        assert "E2B_API_KEY" in caught.value.hint


@pytest.mark.parametrize("key", ["e2b_" + "1" * 40, "nonsense", "e2b_\u00e9", "e2b_\x00", "a b\nX: y"])
async def test_a_wrong_key_is_named_and_not_shown(
    standin: StandInProcess, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    if "\0" in key:
        monkeypatch.setattr(os, "environ", {**os.environ, "E2B_API_KEY": key})
        monkeypatch.setattr(read_settings, "__defaults__", (os.environ,))
    else:
        monkeypatch.setenv("E2B_API_KEY", key)
    with pytest.raises(AuthError, match="E2B_API_KEY") as caught:
        await E2BBackend().create()
    assert key not in _everything(caught.value)


async def test_a_key_in_the_dsn_is_refused(standin: StandInProcess) -> None:
    with pytest.raises(ConfigurationError, match="credential") as caught:
        await sandboxio.create(f"e2b://base?api_key={API_KEY}")
    assert "E2B_API_KEY" in caught.value.hint
    assert API_KEY not in str(caught.value)


async def test_an_unknown_template_is_named(backend: E2BBackend) -> None:
    with pytest.raises(CreationError, match="my-template") as caught:
        await backend.create(template="my-template")
    assert "template" in caught.value.hint


async def test_a_lifetime_beyond_the_teams_is_refused(backend: E2BBackend) -> None:
    with pytest.raises(CreationError, match="24 hours"):
        await backend.create(timeout=10**6)


@pytest.mark.parametrize(
    ("status", "headers", "kind", "seconds"),
    [
        (429, {"Retry-After": "7"}, RateLimitError, 7.0),
        (429, {}, RateLimitError, None),
        (429, {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, RateLimitError, None),
        (503, {"Retry-After": "3"}, RateLimitError, 3.0),
        (503, {}, CreationError, None),
        (500, {}, CreationError, None),
        (409, {}, CreationError, None),
        (403, {}, AuthError, None),
    ],
)
async def test_refusals_of_a_creation(
    backend: E2BBackend,
    standin: StandInProcess,
    status: int,
    headers: dict[str, str],
    kind: type[SandboxError],
    seconds: float | None,
) -> None:
    standin.fault(CREATE, "status", times=0, status=status, headers=headers, body='{"message": "not today"}')
    with pytest.raises(kind, match="not today") as caught:
        await backend.create(template="base")
    assert getattr(caught.value, "retry_after", None) == seconds
    assert caught.value.__cause__ is not None
    creations = [
        item for item in standin.requests if item["path"] == "/v2/sandboxes" and item["method"] == "POST"
    ]
    assert len(creations) == 1, "the library does not retry on its own"


PAGE = "<html><body>Please log in to the Wi-Fi</body></html>"


@pytest.mark.parametrize("status", [200, 201, 302, 404])
async def test_a_web_page_instead_of_json(backend: E2BBackend, standin: StandInProcess, status: int) -> None:
    standin.fault(".", "status", times=0, status=status, body=PAGE, content_type="text/html")
    for operation, kind in (
        (partial(backend.create, template="base"), CreationError),
        (backend.list_managed, ConnectError),
        (partial(backend.kill_managed, "i1"), ConnectError),
    ):
        if status == 404 and kind is ConnectError:
            continue
        with pytest.raises(kind, match="web page") as caught:
            await operation()
        assert "E2B_API_URL" in caught.value.hint


async def test_a_gateway_that_fails_may_hide_a_sandbox(backend: E2BBackend, standin: StandInProcess) -> None:
    standin.fault(CREATE, "status", status=502, body=PAGE, content_type="text/html")
    with pytest.raises(CreationError, match="502 with a web page"):
        await backend.create(template="base")  # looked for, and there is none
    standin.fault(".", "status", times=0, status=502, body=PAGE, content_type="text/html")
    with pytest.warns(OrphanedSandboxWarning), pytest.raises(CreationError, match="502 with a web page"):
        await backend.create(template="base")


@pytest.mark.parametrize(
    ("status", "content_type", "body"),
    [
        (504, "text/plain", "upstream request timeout"),
        (524, "text/plain", "error code: 524"),
        (408, "text/plain", "stream timeout"),
        (504, "application/json", '{"message": "Endpoint request timed out"}'),
        (503, "application/json", '{"message": "Service Unavailable"}'),
    ],
)
async def test_a_creation_on_which_a_gateway_gives_up_leaves_no_sandbox(
    backend: E2BBackend, standin: StandInProcess, status: int, content_type: str, body: str
) -> None:
    standin.fault(CREATE, "gateway", status=status, content_type=content_type, body=body)
    with pytest.raises(CreationError):
        await backend.create(template="base")
    assert standin.sandboxes == []


@pytest.mark.parametrize("body", ["[]", "{}", '{"sandboxID": 3}', "nonsense", "", "null", "[" * 100_000])
async def test_json_that_is_no_sandbox(backend: E2BBackend, standin: StandInProcess, body: str) -> None:
    standin.fault(CREATE, "status", times=0, status=201, body=body)
    with pytest.raises(CreationError):
        await backend.create(template="base")


@pytest.mark.parametrize(
    "body", ['{"envdAccessToken": "s3cret", "sandboxID"', '["envdAccessToken", "s3cret"]']
)
async def test_an_answer_that_makes_no_sense_shows_no_token(
    backend: E2BBackend, standin: StandInProcess, body: str
) -> None:
    async with await backend.create(template="base") as sandbox:
        for match, operation, kind in (
            (CREATE, partial(backend.create, template="base"), CreationError),
            ("POST .*/connect$", partial(backend.connect, sandbox.id), ConnectError),
            ("GET /sandboxes/", partial(backend.connect, sandbox.id), ConnectError),
        ):
            standin.fault(match, "status", status=200, body=body)
            with pytest.raises(kind, match="no JSON") as caught:
                await operation()
            assert "s3cret" not in _everything(caught.value)


async def test_a_list_is_text_that_utf_8_can_carry(backend: E2BBackend, standin: StandInProcess) -> None:
    labels = {"sandboxio_managed": "true", "\ud800": "\udfff"}
    listed = json.dumps({"sandboxID": "i1", "state": "\ud800", "metadata": labels})
    standin.fault("GET /v2/sandboxes", "status", status=200, body=f"[{listed}]")
    assert [item.labels for item in await backend.list_managed()] == [{"\ufffd": "\ufffd"}]
    standin.fault("GET /sandboxes/i1", "status", status=200, body=listed)
    with pytest.raises(ConnectError, match="\ufffd, not running"):
        await backend.connect("i1")


@pytest.mark.parametrize(("status", "deep"), [(200, "[" * 100_000), (200, "{}"), (500, "[" * 100_000)])
async def test_a_list_that_cannot_be_read_is_typed(
    backend: E2BBackend, standin: StandInProcess, status: int, deep: str
) -> None:
    standin.fault("GET /v2/sandboxes", "status", status=status, body=deep)
    with pytest.raises(ConnectError, match="Listing sandboxes"):
        await backend.list_managed()


@pytest.mark.parametrize(
    "odd",
    [
        {"envdAccessToken": 5},
        {"envdAccessToken": "se\u20acret"},
        {"trafficAccessToken": "secret\nX: y"},
        {"trafficAccessToken": {"secret": 1}},
        {"domain": "a:b"},
        {"domain": ["secret.example"]},
        {"sandboxID": "x@secret.example/"},
        {"sandboxID": "i\n"},
    ],
)
async def test_a_sandbox_that_cannot_be_talked_to_is_removed(
    backend: E2BBackend, standin: StandInProcess, monkeypatch: pytest.MonkeyPatch, odd: dict[str, Any]
) -> None:
    real = parse_object
    monkeypatch.setattr(control, "parse_object", lambda data: {**real(data), **odd})
    (name,) = odd
    with pytest.raises(CreationError, match=name) as caught:
        await backend.create(template="base")
    assert "secret" not in _everything(caught.value)
    assert standin.sandboxes == []


async def test_unknown_fields_and_events_are_ignored(backend: E2BBackend, standin: StandInProcess) -> None:
    standin.fault(".", "unknown", times=0)
    async with await backend.create() as sandbox:
        assert (await sandbox.run(["echo", "1"])).stdout == "1\n"
        assert (await sandbox.run_code("print(2)")).stdout == "2\n"
        await sandbox.files.write("f", b"x" * 100_000)
        assert len(await sandbox.files.read("f")) == 100_000
        assert len(await backend.list_managed()) == 1
        other = await backend.connect(sandbox.id)
        other._close()


async def test_a_service_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    listener = listen_tcp()
    port = listener.getsockname()[1]
    listener.close()
    monkeypatch.setenv("E2B_API_KEY", API_KEY)
    monkeypatch.setenv("E2B_API_URL", f"http://me:s3cret@127.0.0.1:{port}")
    backend = E2BBackend()
    with pytest.raises(CreationError, match=f"127.0.0.1:{port}") as caught:
        await backend.create()
    assert "E2B_API_URL" in caught.value.hint
    assert "s3cret" not in str(caught.value)
    with pytest.raises(ConnectError, match=f"127.0.0.1:{port}"):
        await backend.connect("i1")


async def test_the_key_is_shown_nowhere(backend: E2BBackend, standin: StandInProcess) -> None:
    texts = [repr(backend), repr(read_settings()), str(await backend.diagnose())]
    async with await backend.create() as sandbox:
        texts += [repr(sandbox), repr(sandbox._place), repr(sandbox._place.sandbox), repr(vars(sandbox))]
        tokens = [sandbox._place.sandbox.token, sandbox._place.sandbox.traffic_token]
        standin.fault(".", "status", times=0, status=500, body='{"message": "broken"}')
        # The command may run after such an answer, and neither it nor the sandbox can be killed.
        operations = backend.create(), backend.list_managed(), sandbox.run(["true"]), sandbox.files.ls()
        with pytest.warns(OrphanedSandboxWarning) as warned:
            texts += [await _shown_by(operation) for operation in operations]
        texts += [str(each.message) for each in warned]
        standin.clear_faults()
    for secret in (API_KEY, *tokens):
        assert secret
        assert not [text for text in texts if secret in text]


async def _shown_by(operation: Awaitable[object]) -> str:
    with pytest.raises(SandboxError) as caught:
        await operation
    return _everything(caught.value)


def _everything(error: BaseException) -> str:
    """All that a log of this error could show."""
    shown = "".join(traceback.format_exception(error)) + repr(error)
    while error is not None:
        shown += repr(error) + str(vars(error))
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    return shown


def test_the_environment_chooses_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    key = {"E2B_API_KEY": API_KEY}
    ours = read_settings(key)
    assert ours.api_url == "https://api.e2b.app"
    assert ours.sandbox_base("i1", 49983, None) == "https://49983-i1.e2b.app"
    assert ours.sandbox_base("i1", 49983, "eu.example") == "https://49983-i1.eu.example"
    assert read_settings({**key, "E2B_DOMAIN": "e.org"}).api_url == "https://api.e.org"
    local = read_settings({**key, "E2B_DEBUG": "TRUE"})
    assert (local.api_url, local.sandbox_base("i1", 49999, None)) == (
        "http://localhost:3000",
        "http://localhost:49999",
    )
    one = read_settings({**key, "E2B_API_URL": "http://a:1", "E2B_SANDBOX_URL": "http://b:2"})
    assert (one.api_url, one.sandbox_base("i1", 1, "x")) == ("http://a:1", "http://b:2")
    assert read_settings({**key, "E2B_DOMAIN": " e2b.internal:8443\n"}).domain == "e2b.internal:8443"


@pytest.mark.parametrize("name", ["E2B_API_URL", "E2B_SANDBOX_URL"])
@pytest.mark.parametrize(
    "url",
    ["a:1", "http://", "http://[::1", "https://a:port", "https://a:99999", "https://a b", "http://a/\n"],
)
def test_what_is_no_url_is_refused_by_name(name: str, url: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        read_settings({"E2B_API_KEY": API_KEY, name: url})
    (check,) = (each for each in diagnose({"E2B_API_KEY": API_KEY, name: url}).checks if each.ok is False)
    assert name in check.detail


@pytest.mark.parametrize(
    "domain",
    ["https://e2b.app", "e2b.app/x", "e2b..app", "a b", "me@e2b.app", "x" * 64 + ".app", ".app", "\u00e9"],
)
def test_what_is_no_domain_is_refused(domain: str) -> None:
    """``https://e2b.app`` would make ``https://api.https://e2b.app``: the key would go to ``api.https``."""
    with pytest.raises(ConfigurationError, match="E2B_DOMAIN"):
        read_settings({"E2B_API_KEY": API_KEY, "E2B_DOMAIN": domain})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("E2B_DEBUG", "true"),
        ("E2B_API_URL", "http://127.0.0.1:3000"),
        ("E2B_API_URL", "http://localhost"),
        ("E2B_API_URL", "http://LOCALHOST.:80/api"),
        ("E2B_API_URL", "http://[::1]:3000"),
        ("E2B_API_URL", "http://[::ffff:127.0.0.1]"),
        ("E2B_API_URL", "http://0.0.0.0:3000"),
        ("E2B_SANDBOX_URL", "http://127.8.8.8:3002"),
        ("E2B_DOMAIN", "e2b.localhost:8443"),
    ],
)
async def test_a_deployment_on_this_machine_claims_no_isolation(
    elsewhere: None, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    assert read_settings().local
    backend = E2BBackend()
    assert backend.isolation is IsolationTier.UNKNOWN
    sandboxio.register("local_e2b", lambda: backend)
    try:
        with pytest.raises(ConfigurationError, match="nothing was created"):
            await sandboxio.create("local_e2b://", require_isolation=IsolationTier.CONTAINER)
    finally:
        sandboxio.registry.unregister("local_e2b")


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment that points at E2B itself."""
    for name in ("E2B_API_URL", "E2B_SANDBOX_URL", "E2B_DOMAIN", "E2B_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("E2B_API_KEY", API_KEY)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("E2B_DEBUG", "false"),
        ("E2B_API_URL", "https://localhost.example.org"),
        ("E2B_SANDBOX_URL", "http://192.0.2.1:127"),
        ("E2B_DOMAIN", "e2b.example.org"),
    ],
)
def test_a_deployment_elsewhere_claims_e2bs_isolation(
    elsewhere: None, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    assert E2BBackend().isolation is IsolationTier.MICROVM
    assert not read_settings().local


# A creation that is broken off


@pytest.mark.parametrize("how", get_args(How))
async def test_a_creation_cancelled_at_any_await_leaves_nothing(
    backend: E2BBackend, standin: StandInProcess, how: How
) -> None:
    async def check(outcome: Outcome[Any]) -> None:
        if outcome.value is not None:
            await outcome.value.kill()
        assert outcome.cancelled or outcome.value is not None
        assert standin.sandboxes == [], f"left after a cancellation at await {outcome.point}"
        await no_connection_left(standin)

    assert await sweep(lambda: backend.create(template="base", timeout=60), check, how) >= 3


async def no_connection_left(standin: StandInProcess) -> None:
    with anyio.fail_after(30):  # on a busy machine one look takes seconds
        while standin.connections:
            await anyio.sleep(0.01)


async def test_the_sweep_finds_the_leaks_of_an_unshielded_cleanup(
    backend: E2BBackend, standin: StandInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proof that the sweep above can fail."""

    async def unshielded(work: Callable[[], Any], **_: object) -> bool:
        await work()
        return True

    monkeypatch.setattr(backend_module, "bounded", unshielded)
    left = 0

    async def count(outcome: Outcome[Any]) -> None:
        nonlocal left
        if outcome.value is not None:
            await outcome.value.kill()
        with anyio.move_on_after(0.5):  # a creation that nobody waits for takes a moment
            while not standin.sandboxes:
                await anyio.sleep(0.05)
        left += len(standin.sandboxes)
        standin.reset()

    await sweep(lambda: backend.create(template="base", timeout=60), count)
    assert left


async def test_an_answer_that_is_lost_leaves_no_sandbox(backend: E2BBackend, standin: StandInProcess) -> None:
    """The sandbox exists, and its id never arrived: it is found by its label."""
    for kind in ("reset", "truncate"):
        standin.fault(CREATE, kind, after=10)
        with pytest.raises(CreationError):
            await backend.create(template="base", timeout=60)
        assert standin.sandboxes == []


async def test_a_creation_that_cannot_be_undone_warns_with_its_label(
    backend: E2BBackend, standin: StandInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SBX_TEARDOWN_GRACE", "0.6")
    standin.fault(CREATE, "delay", seconds=1.5, late=True)
    standin.fault("GET /v2/sandboxes", "status", times=0, status=500, body='{"message": "no lists today"}')
    with (
        pytest.warns(OrphanedSandboxWarning, match="sandboxio_creation=[0-9a-f]{32}"),
        anyio.move_on_after(0.1),
    ):
        await backend.create(template="base", timeout=60, metadata={"tenant_id": "t"})
    assert len(standin.sandboxes) == 1, "the warning was right"


def test_importing_the_adapter_does_not_import_the_sdk() -> None:
    import subprocess
    import sys

    code = "import sys, sandboxio_e2b; print([name for name in sys.modules if name.split('.')[0] == 'e2b'])"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


async def test_capabilities_that_are_not_there_are_refused(backend: E2BBackend) -> None:
    with pytest.raises(CapabilityNotSupported, match="TUNNELS"):
        await backend.create(network=NetworkPolicy(ingress_ports=(80,)))

"""The engine's refusals: texts as engines of several versions send them, and what they mean."""

from __future__ import annotations

import json
import pickle
import time

import pytest

from sandboxio.errors import ConnectError, CreationError, SandboxError
from sandboxio_docker.faults import MAX_REASON, EngineError, EngineUnavailable, Fault, classify, reason_in

OCI = "OCI runtime create failed: container_linux.go:380: starting container process caused: "
SENTRY = 'OCI runtime exec failed: executing processes for container: executing command "x" in sandbox: '
NEW_OCI = "failed to create task for container: failed to create shim task: OCI runtime create failed: runc "
NEW_OCI += "create failed: unable to start container process: "

# Docker 20.10 and 26.1 said these on the machines of this project unless another source is named.
TEXTS = [
    (404, "No such image: nope:latest", Fault.NO_SUCH_IMAGE),
    (404, "No such image: is-paused/no-space-left:rate-limit", Fault.NO_SUCH_IMAGE),
    (404, "nope: image not known", Fault.NO_SUCH_IMAGE),  # Podman
    (404, "No such container: x", Fault.NO_SUCH_CONTAINER),
    (404, "No such container: read-only file system", Fault.NO_SUCH_CONTAINER),
    (404, 'no container with name or ID "x" found: no such container', Fault.NO_SUCH_CONTAINER),  # Podman
    (404, "No such exec instance: 1f2e", Fault.NO_SUCH_EXEC),
    (404, "Could not find the file /no space left on device in container x", Fault.NO_SUCH_PATH),
    (404, "no such file or directory", Fault.NO_SUCH_PATH),  # Podman
    (404, "page not found", Fault.NOT_FOUND),
    (
        500,
        "cannot remove container 1f as it is running - running or paused: container state improper",  # Podman
        Fault.CONFLICT,
    ),
    (500, "creating container 1f workdir: mkdir /x/merged/etc/passwd: not a directory", Fault.NO_SUCH_FOLDER),
    (409, 'Conflict. The container name "/x" is already in use by container "1f".', Fault.NAME_IN_USE),
    (500, 'the container name "x" is already in use by 1f2e.', Fault.NAME_IN_USE),  # Podman
    (409, "removal of container x is already in progress", Fault.REMOVING),
    (409, "container is marked for removal and cannot be started", Fault.REMOVING),
    (409, "Container 1f is paused, unpause the container before exec", Fault.PAUSED),
    (500, "cannot start a paused container, try unpause instead: container is paused", Fault.PAUSED),
    (409, "Container 1f is not running", Fault.NOT_RUNNING),
    (409, "Cannot kill container: 1f: Container 1f is not running", Fault.NOT_RUNNING),
    (409, "container 1f is not running", Fault.NOT_RUNNING),
    (
        409,
        "can only create exec sessions on running containers: container state improper",  # Podman
        Fault.NOT_RUNNING,
    ),
    (409, "You cannot remove a running container 1f. Stop the container before...", Fault.CONFLICT),
    (400, "Range of CPUs is from 0.01 to 2.00, as there are only 2 CPUs available", Fault.TOO_MANY_CPUS),
    (400, "range of CPUs is from 0.01 to 2.00, as only 2 CPUs are available", Fault.TOO_MANY_CPUS),
    (400, "Minimum memory limit allowed is 6MB", Fault.BAD_REQUEST),
    (400, "Unknown runtime specified runsc", Fault.NO_SUCH_RUNTIME),
    (400, "unknown or invalid runtime name: runsc", Fault.NO_SUCH_RUNTIME),
    (400, "client version 1.24 is too old. Minimum supported API version is 1.44", Fault.API_VERSION),
    (400, "client version 1.99 is too new. Maximum supported API version is 1.41", Fault.API_VERSION),
    (400, OCI + 'exec: "no-such": executable file not found in $PATH: unknown', Fault.NO_SUCH_PROGRAM),
    (
        400,
        SENTRY + 'error finding executable "no" in PATH [/bin]: no such file or directory',
        Fault.NO_SUCH_PROGRAM,
    ),
    (400, SENTRY + "failed to load /a/b: no such file or directory: unknown", Fault.NO_SUCH_PROGRAM),
    (400, SENTRY + "failed to load /tmp: permission denied: unknown", Fault.NOT_EXECUTABLE),
    (400, NEW_OCI + 'exec: "/no": stat /no: no such file or directory: unknown', Fault.NO_SUCH_PROGRAM),
    (400, OCI + 'exec: "/etc/passwd": permission denied: unknown', Fault.NOT_EXECUTABLE),
    (400, NEW_OCI + 'exec: "/usr/bin": is a directory: unknown', Fault.NOT_EXECUTABLE),
    (400, OCI + "exec format error: unknown", Fault.NOT_EXECUTABLE),
    (
        400,
        OCI + 'chdir to cwd ("/x") set in config.json failed: no such file or directory: unknown',
        Fault.NO_SUCH_FOLDER,
    ),
    (400, "unable to find user nobody2: no matching entries in passwd file", Fault.NO_SUCH_USER),
    (500, "OCI runtime exec failed: starting container: interrupted system call", Fault.START_INTERRUPTED),
    (500, OCI + "fork/exec /proc/self/exe: resource temporarily unavailable", Fault.NO_PROCESSES),
    (500, "Error processing tar file(exit status 1): write /x: no space left on device", Fault.NO_SPACE),
    (500, "mkdir /var/lib/docker/overlay2/x: no space left on device", Fault.NO_SPACE),
    (403, "container rootfs is marked read-only", Fault.READ_ONLY),
    (500, "mkdir /x: read-only file system", Fault.READ_ONLY),
    (403, "authorization denied by plugin x", Fault.FORBIDDEN),
    (404, "manifest for python:nope not found: manifest unknown: manifest unknown", Fault.NO_SUCH_IMAGE),
    (
        404,
        "pull access denied for nope/nope, repository does not exist or may require 'docker login'",
        Fault.UNAUTHORIZED,
    ),
    (0, "unauthorized: authentication required", Fault.UNAUTHORIZED),
    (401, "", Fault.UNAUTHORIZED),
    (0, "toomanyrequests: You have reached your pull rate limit.", Fault.RATE_LIMITED),
    (429, "whatever", Fault.RATE_LIMITED),
    (429, "unauthorized to ask so often", Fault.RATE_LIMITED),
    (0, "no matching manifest for linux/amd64 in the manifest list entries", Fault.WRONG_PLATFORM),
    (
        404,
        "image with reference x was found but does not match the specified platform: wanted linux/arm64",
        Fault.WRONG_PLATFORM,
    ),
    (500, "Something new", Fault.OTHER),
    (503, "", Fault.OTHER),
    (0, "", Fault.OTHER),
]


NAMES = [
    "is not running",
    "container is paused",
    "unauthorized",
    "pid limit",
    "no such container",
    "chdir to cwd",
    "interrupted system call",
    'a "quoted": permission denied',
    'exec: "x": permission denied',
    'exec: "x": executable file not found',
    "ends with exec: ",
    "\\",
    "new\nline",
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("status", [400, 0])
def test_a_program_may_have_any_name(name: str, status: int) -> None:
    quoted = json.dumps(name)  # as Go's %q, for these
    reason = f"{NEW_OCI}exec: {quoted}: "
    assert classify(status, f"{reason}executable file not found in $PATH: unknown") is Fault.NO_SUCH_PROGRAM
    stat = f"{reason}stat {name}: "
    nowhere = (
        "no such file or directory",
        "not a directory",
        "file name too long",
        "too many levels of symbolic links",
    )
    for words in nowhere:
        assert classify(status, f"{stat}{words}: unknown") is Fault.NO_SUCH_PROGRAM
    for words in ("permission denied", "is a directory"):
        assert classify(status, f"{reason}{words}: unknown") is Fault.NOT_EXECUTABLE
    gvisor = SENTRY.replace('"x"', quoted)
    missing = f"{gvisor}error finding executable {quoted} in PATH [/bin]: no such file or directory"
    assert classify(status, missing) is Fault.NO_SUCH_PROGRAM
    assert classify(status, f"{gvisor}failed to load {name}: no such file") is Fault.NO_SUCH_PROGRAM
    assert classify(status, f"{gvisor}failed to load {name}: permission denied") is Fault.NOT_EXECUTABLE
    cut = f"{NEW_OCI}exec: {json.dumps(name * MAX_REASON)}"[:MAX_REASON]
    assert classify(status, cut) is Fault.NO_SUCH_PROGRAM


@pytest.mark.parametrize(("status", "text", "fault"), TEXTS)
def test_what_a_text_means(status: int, text: str, fault: Fault) -> None:
    assert classify(status, text) is fault
    error = EngineError.of("POST /x", status, text)
    assert error.fault is fault
    assert error.hint
    assert (text or "no reason") in error.message
    assert isinstance(error, ConnectError)


def test_each_kind_occurs_in_the_table() -> None:
    assert {fault for _, _, fault in TEXTS} == set(Fault)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"message":"No such image: x"}', "No such image: x"),
        (b'{"message":"a\\nb\\t c"}\n', "a b c"),
        (b'{"cause":"c","message":"m","response":404}', "m"),
        (b'{"error":"e","errorDetail":{}}', "e"),
        (b'{"message":""}', '{"message":""}'),
        (b'{"message":5}', '{"message":5}'),
        (b'"text"', '"text"'),
        (b"[1]", "[1]"),
        (b"page not found\n", "page not found"),
        (b"", ""),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (rb'{"message":"exec: \u001b[2J\u202e"}', "exec: \ufffd[2J\ufffd"),
        (b"<!doctype html><style>p{}</style><h1>502&nbsp;Bad</h1>", "p{} 502 Bad"),
        (b"[" * 100_000, "[" * MAX_REASON + " ..."),
        (b'{"a":' * 100_000, ('{"a":' * 100_000)[:MAX_REASON] + " ..."),
        (b"x" * 10_000, "x" * MAX_REASON + " ..."),
    ],
)
def test_the_words_in_an_answer(body: bytes, reason: str) -> None:
    assert reason_in(body) == reason


@pytest.mark.parametrize(
    ("header", "seconds"), [("7", 7.0), ("", None), ("Wed, 21 Oct 2026 07:28:00 GMT", None), ("-1", None)]
)
def test_retry_after(header: str, seconds: float | None) -> None:
    assert EngineError.of_answer("x", 429, header, b"").retry_after == seconds


def test_an_error_becomes_a_public_one() -> None:
    error = EngineError.of("POST /containers/create", 404, "No such image: x")
    public = error.to(CreationError)
    assert type(public) is CreationError
    assert (public.message, public.hint) == (error.message, error.hint)
    assert error.to(CreationError, "mine").message == "mine"
    unavailable = EngineUnavailable("gone")
    assert unavailable.to(CreationError).hint == unavailable.hint
    assert unavailable.sent is False


def test_errors_travel_between_processes() -> None:
    error = EngineError.of("x", 429, "slow down", retry_after=3)
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.status, copy.fault, copy.retry_after, str(copy)) == (429, error.fault, 3, str(error))
    assert isinstance(copy, SandboxError)


@pytest.mark.parametrize("body", [b"<" * 300_000, b"<a" * 150_000, b"<" + b"a" * 300_000, b"<&" * 150_000])
def test_a_page_of_a_proxy_takes_no_time(body: bytes) -> None:
    """It took a minute, in which the event loop stood still."""
    before = time.thread_time()
    assert len(reason_in(body)) < MAX_REASON + 10
    assert time.thread_time() - before < 1


def test_a_long_message_of_the_engine_is_still_read() -> None:
    assert reason_in(b'{"message": "no such image ' + b"x" * 100_000 + b'"}').startswith("no such image xxx")

"""What an answer means, whoever gave it: E2B, envd, or something on the way."""

from __future__ import annotations

import httpx
import pytest

from sandboxio.errors import ConnectError, CreationError
from sandboxio_e2b.failures import control_error, message_of, retry_after, rpc_failure, unreachable


@pytest.mark.parametrize(
    ("status", "body", "code", "says"),
    [
        (500, '{"code": "resource_exhausted", "message": "m"}', "resource_exhausted", "m"),
        (401, '{"code": 401, "message": "m"}', "unauthenticated", "m"),
        (200, '{"code": 429, "message": "m"}', "resource_exhausted", "m"),
        (404, "", "not_found", "it answered 404 and nothing else"),
        (507, "disk", "unknown", "disk"),
        (502, "<!DOCTYPE html><p>x", "unavailable", "web page"),
        (503, '{"code": null}', "unavailable", "code"),
        (504, "[]", "deadline_exceeded", "[]"),
    ],
)
def test_plain_answers_on_a_call(status: int, body: str, code: str, says: str) -> None:
    """A text code is Connect's own; else the number, or the status, decides."""
    error = rpc_failure(httpx.Response(status, text=body))
    assert error.code == code
    assert says in error.message


def test_messages_are_short() -> None:
    assert len(message_of(httpx.Response(500, text="x" * 10_000))) <= 200
    assert len(message_of(httpx.Response(500, json={"message": "x" * 10_000}))) <= 500
    assert message_of(httpx.Response(500, content=b"\xff\xfe"))


@pytest.mark.parametrize(
    "body", [b'{"message": "bad \\ud800"}', b'{"code": "\\ud800", "message": "\\udfff"}']
)
def test_messages_are_text_that_utf_8_can_carry(body: bytes) -> None:
    answer = httpx.Response(400, content=body)
    for error in (rpc_failure(answer), control_error(answer, "It", creating=True, url="https://x")):
        assert "\ufffd" in str(error)
        assert str(error).encode()


def test_a_message_that_is_nested_too_deep_is_no_message() -> None:
    answer = httpx.Response(500, text="[" * 100_000)
    assert len(message_of(answer)) <= 200
    assert rpc_failure(answer).code == "unknown"


@pytest.mark.parametrize(
    ("text", "seconds"), [("7", 7.0), (" 7 ", 7.0), ("", None), ("-1", None), ("soon", None), ("1.5", None)]
)
def test_the_advice_to_wait(text: str, seconds: float | None) -> None:
    assert retry_after(httpx.Response(429, headers={"Retry-After": text})) == seconds


def test_a_failed_creation_and_a_failed_call_are_two_things() -> None:
    for creating, kind in ((True, CreationError), (False, ConnectError)):
        error = control_error(httpx.Response(500), "It", creating=creating, url="https://x")
        assert isinstance(error, kind)
        assert isinstance(unreachable(OSError("no"), "It", creating=creating, url="https://x"), kind)


def test_a_proxy_that_is_not_used_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://me:s3cret@proxy.example:3128")
    hint = unreachable(OSError("no"), "It", creating=True, url="https://x").hint
    assert "HTTPS_PROXY" in hint
    assert "s3cret" not in hint

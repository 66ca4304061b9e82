"""What the redactor replaces in a text, and what it leaves as it is."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import assume, example, given, settings, strategies as st

from sandboxio._redact import MASK, MIN_SECRET, Redactor, too_short

from .encoded import MASKED_WHOLE, MASKED_WITHIN, NOT_COVERED, Encoding, found_in

SECRETS = [
    "s3cr3t-a0d1f6f8c5",
    "p/ss+w0rd=?&<#>",
    'it\'s "quoted" $HOME `x` \\ ~',
    "schlüssel-für-ärger",
    "two words",
    "it's über",
    "tab\tand\x01control",
    "abcd",
]

overlapping = st.text("abc", min_size=MIN_SECRET, max_size=9)


# Ranges


@st.composite
def secrets_in_text(draw: st.DrawFn) -> tuple[list[str], str]:
    secrets = draw(st.lists(overlapping, min_size=1, max_size=5))
    pieces = draw(st.lists(st.sampled_from(secrets) | st.text("abcdX ", max_size=5), max_size=12))
    return secrets, "".join(pieces)


@given(secrets_in_text())
@example((["aaaa", "aaaab"], "aaaaaaab"))
def test_no_secret_is_left_whatever_overlaps(case: tuple[list[str], str]) -> None:
    secrets, text = case
    redacted = Redactor(secrets).text(text)
    assert not [secret for secret in secrets if secret in redacted]


@given(secrets_in_text())
def test_only_the_ranges_of_secrets_are_replaced_and_each_union_once(case: tuple[list[str], str]) -> None:
    secrets, text = case
    hidden = [False] * len(text)
    for secret in secrets:
        for start in range(len(text) - len(secret) + 1):
            if text.startswith(secret, start):
                hidden[start : start + len(secret)] = [True] * len(secret)
    groups = itertools.groupby(zip(text, hidden, strict=True), key=lambda pair: pair[1])
    expected = "".join(MASK if masked else "".join(c for c, _ in group) for masked, group in groups)
    # The other forms of these secrets hold digits or upper case, which the texts do not (but for X).
    assert Redactor(secrets).text(text) == expected


@pytest.mark.parametrize(
    "secrets", list(itertools.permutations(["blue", "bluebird", "bluebird-77", "bird-7"]))
)
def test_the_order_of_secrets_plays_no_part(secrets: tuple[str, ...]) -> None:
    assert Redactor(secrets).text("x bluebird-77 y blue z *** bird-7") == "x *** y *** z *** ***"


def test_overlapping_secrets_leave_no_tail() -> None:
    assert Redactor(["bluebird", "bird-7x"]).text("a bluebird-7x b") == "a *** b"
    assert Redactor(["aaaa"]).text("x" + "a" * 10 + "x") == "x***x"
    assert Redactor(["abab"]).text("ababab ab") == "*** ab"


def test_text_without_secrets_is_the_same_object() -> None:
    text = "nothing to see *** here"
    assert Redactor(["hunter22"]).text(text) is text
    assert Redactor().text(text) is text


def test_a_mask_in_the_text_or_in_a_secret_does_no_harm() -> None:
    assert Redactor(["***", "****", "a***b"]).text("*** a***b ****") == "*** *** ***"
    assert Redactor(["hunter22", "***"]).text("***hunter22***") == "*********"


# Short values


@pytest.mark.parametrize("value", ["", "a", "abc", "\n", "   ", "\t \n ", " ab "])
def test_a_short_value_is_not_looked_for(value: str) -> None:
    assert too_short(value)
    text = "a abc ab\n   text \t \n with a lot of a"
    assert Redactor([value, "hunter22"]).text(text) is text


def test_the_floor_is_where_the_documentation_says() -> None:
    assert MIN_SECRET == 4
    assert not too_short("abcd")
    assert Redactor(["abcd"]).text("x abcd x") == "x *** x"


def test_case_counts() -> None:
    assert Redactor(["abcd"]).text("AbCd ABCD") == "AbCd ABCD"


# Several lines


def test_a_value_of_several_lines_is_replaced_whole_and_line_by_line() -> None:
    key = "-----BEGIN KEY-----\nMIIEpAIBAAKCAQEA\r\n  aGVsbG8gd29ybGQ  \n}\n-----END KEY-----\n"
    redactor = Redactor([key])
    assert redactor.text(f"[{key}]") == "[***]"
    assert redactor.text("log: MIIEpAIBAAKCAQEA and aGVsbG8gd29ybGQ }") == "log: *** and *** }"
    assert redactor.text(repr(key)) == "'***'"


def test_blanks_around_a_value_are_not_needed() -> None:
    assert Redactor(["hunter22\n"]).text("it is hunter22.") == "it is ***."


# Encodings


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("encoding", MASKED_WHOLE.values(), ids=MASKED_WHOLE)
def test_nothing_is_left_of_an_encoded_secret(secret: str, encoding: Encoding) -> None:
    assert Redactor([secret]).text(f"<<{encoding(secret)}>>") == "<<***>>"


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("encoding", MASKED_WITHIN.values(), ids=MASKED_WITHIN)
def test_base64_of_more_than_the_secret(secret: str, encoding: Encoding) -> None:
    redacted = Redactor([secret]).text(encoding(secret))
    assert MASK in redacted
    assert not found_in(redacted, secret)
    # Around it: digits of up to three bytes before, and of three after, and what these share with it.
    assert len(redacted) <= len(MASK) + 5 + 8


@given(st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), min_size=8, max_size=40), st.data())
@settings(max_examples=300)
def test_any_secret_in_any_encoding(secret: str, data: st.DataObject) -> None:
    assume(not too_short(secret) and "***" not in secret)
    encoding = data.draw(st.sampled_from([*MASKED_WHOLE.values(), *MASKED_WITHIN.values()]))
    redacted = Redactor([secret]).text(f"<{encoding(secret)}>")
    assert MASK in redacted
    assert not found_in(redacted, secret)


@pytest.mark.parametrize("encoding", NOT_COVERED.values(), ids=NOT_COVERED)
def test_what_is_stated_as_not_covered(encoding: Encoding) -> None:
    text = encoding("S3cr3t-a0d1f6f8c5")
    assert Redactor(["S3cr3t-a0d1f6f8c5"]).text(text) is text


def test_a_value_that_is_no_utf8() -> None:
    secret = "caf\udce9-hunter22"  # what os.environ makes of Latin-1
    redactor = Redactor([secret])
    for text in (secret, repr(secret), repr(secret.encode("utf-8", "surrogateescape")), "caf%E9-hunter22"):
        assert MASK in redactor.text(text)
        assert "hunter22" not in redactor.text(text)


def test_a_value_that_no_sandbox_can_hold() -> None:
    """It is refused, and what refuses it must neither fail nor show it."""
    secret = "hunter22-\ud800"
    redactor = Redactor([secret])
    assert redactor.text(f"{secret}, {secret!r}") == "***, '***'"


# Environments


@pytest.mark.parametrize(
    "name",
    [
        *("API_KEY", "GITHUB_TOKEN", "client_secret", "DB_PASSWORD", "MYSQL_PWD", "AWS_CREDENTIALS"),
        *("HTTP_AUTH", "DB_PASS", "pass", "SMTP_PASS_2", "GH_PAT"),
    ],
)
def test_values_of_credential_names_are_secrets(name: str) -> None:
    assert Redactor().including({name: "hunter22"}).text("a hunter22") == "a ***"


@pytest.mark.parametrize(
    "name", ["HOME", "PATH", "PWD", "OLDPWD", "LANG", "USER", "COMPASS", "PASSES", "PATTERN"]
)
def test_values_of_other_names_are_not(name: str) -> None:
    redactor = Redactor()
    assert redactor.including({name: "/home/me"}) is redactor


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("ghp_0123456789abcdef", "clone ghp_0123456789abcdef"),
        ("sk-proj-0123456789", "key sk-proj-0123456789"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKC\n-----END", "got MIIEpAIBAAKC"),
        ("postgres://app:hunter22@db/x", "connect postgres://app:hunter22@db/x"),
        ("postgres://app:hunter22@db/x", "password hunter22"),
    ],
)
def test_values_that_look_like_credentials_are_secrets_under_any_name(value: str, text: str) -> None:
    assert Redactor().including({"SETTING": value}).text(text) == f"{text.split(maxsplit=1)[0]} ***"


@pytest.mark.parametrize("value", ["true", "False", "none", "basic", "https://host/path", "user@host"])
def test_ordinary_settings_are_not(value: str) -> None:
    text = f"run {value} now"
    name = "AUTH_MODE" if "/" not in value and "@" not in value else "SETTING"
    assert Redactor().including({name: value}).text(text) == text


# Growing


def test_a_redactor_that_knows_more_leaves_the_first_one_as_it_was() -> None:
    first = Redactor(["hunter22"])
    second = first.also(["correct-horse"])
    assert first.text("hunter22 correct-horse") == "*** correct-horse"
    assert second.text("hunter22 correct-horse") == "*** ***"
    assert second.also(["hunter22"]) is second


def test_nothing_is_compiled_before_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []

    def forms(value: str) -> frozenset[str]:
        compiled.append(value)
        return frozenset({value})

    monkeypatch.setattr("sandboxio._redact.forms", forms)
    sandbox = Redactor(["hunter22", "correct-horse"])
    assert not compiled
    for number in range(3):
        sandbox.including({"API_KEY": f"value-{number}"}).text("x")
    assert sorted(compiled) == ["correct-horse", "hunter22", "value-0", "value-1", "value-2"]


def test_the_repr_shows_no_secret() -> None:
    assert repr(Redactor(["hunter22", "correct-horse"])) == "<Redactor of 2 values>"


# Excerpts


@given(st.integers(0, 40))
def test_an_excerpt_never_ends_inside_a_secret(limit: int) -> None:
    text = "the word is hunter22, hunter22 it is."
    shown = Redactor(["hunter22"]).excerpt(text, limit)
    assert re.fullmatch(r"(the word is |t?h?e? ?w?o?r?d? ?i?s? ?).*", shown)
    assert "hunt" not in shown
    assert "r22" not in shown
    if limit >= len(text):
        assert shown == "the word is ***, *** it is."


# Size

LARGE = 10_000_000


@pytest.mark.parametrize(
    ("secret", "unit"),
    [
        ("s3cr3t-a0d1f6f8c5", "ordinary text and s3cr3t-a0d1f6f8c5 "),
        ("aaaa", "a"),
        ("a" * 100, "a"),
        ("ab" * 50, "ab"),
        ("a" * 60 + "b", "a" * 59 + "c"),
        ("b" + "a" * 60, "a"),
    ],
    ids=lambda value: value[:12],
)
@pytest.mark.timeout(30)  # quadratic would be hours
def test_ten_megabytes(secret: str, unit: str) -> None:
    text = unit * (LARGE // len(unit))
    redacted = Redactor([secret]).text(text)
    assert secret not in redacted
    assert (MASK in redacted) == (secret in text)

"""A text that arrives in pieces: the same in the end as if it had come at once, and as early as can be."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings, strategies as st

from sandboxio._redact import MASK, Redactor

from .encoded import MASKED_WHOLE, Encoding, found_in

SECRET = "s3cr3t-a0d1f6f8c5"


def streamed(redactor: Redactor, pieces: list[str]) -> list[str]:
    stream = redactor.stream()
    return [*(stream.feed(piece) for piece in pieces), stream.finish()]


def split(text: str, cuts: set[int]) -> list[str]:
    edges = [0, *sorted(cuts), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(edges)]


@given(
    st.lists(st.text("ab-", min_size=4, max_size=8), min_size=1, max_size=4),
    st.text("ab-c", max_size=60),
    st.sets(st.integers(0, 60)),
)
@settings(max_examples=400)
def test_the_pieces_together_are_the_whole_redacted(secrets: list[str], text: str, cuts: set[int]) -> None:
    redactor = Redactor(secrets)
    pieces = split(text, {min(cut, len(text)) for cut in cuts})
    assert "".join(streamed(redactor, pieces)) == redactor.text(text)


@pytest.mark.parametrize("encoding", MASKED_WHOLE.values(), ids=MASKED_WHOLE)
def test_a_secret_cut_anywhere_never_leaves_whole(encoding: Encoding) -> None:
    secret = 'p/ss+w0rd=?&<#> "it\'s" é'
    redactor = Redactor([secret])
    text = f"before {encoding(secret)} after"
    for first in range(len(text) + 1):
        for second in (first, min(first + 3, len(text)), len(text)):
            shown = streamed(redactor, split(text, {first, second}))
            assert "".join(shown) == "before *** after"
            assert not found_in("".join(shown), secret)


def test_one_character_at_a_time() -> None:
    redactor = Redactor([SECRET, "s3cr3t-other"])
    text = f"{SECRET}s3cr3t-oth {SECRET}{SECRET}, s3cr3t-other"
    assert "".join(streamed(redactor, list(text))) == "***s3cr3t-oth ***, ***"


@given(st.text("ab-c", max_size=60), st.sets(st.integers(0, 60)))
def test_only_what_may_begin_a_secret_is_held_back(text: str, cuts: set[int]) -> None:
    secrets = ["ab-c", "b-b-b"]
    redactor = Redactor(secrets)
    stream = redactor.stream()
    arrived, shown = "", ""
    for piece in split(text, {min(cut, len(text)) for cut in cuts}):
        arrived, shown = arrived + piece, shown + stream.feed(piece)
        held = max(
            (
                length
                for pattern in redactor.patterns
                for length in range(1, len(pattern))
                if arrived.endswith(pattern[:length])
            ),
            default=0,
        )
        settled = redactor.text(arrived[: len(arrived) - held])
        # A mask may reach into what is held back, so only its beginning is certain.
        assert shown.rstrip("*").startswith(settled.rstrip("*"))


def test_a_prompt_appears_at_once() -> None:
    stream = Redactor([SECRET]).stream()
    assert stream.feed("Password? ") == "Password? "
    assert stream.feed("progress 10%\r") == "progress 10%\r"


def test_a_mask_is_shown_as_soon_as_the_secret_is_complete_and_only_once() -> None:
    stream = Redactor(["aaaa"]).stream()
    shown = [stream.feed("a") for _ in range(10_000)]
    assert "".join(shown) == MASK
    assert shown[:4] == ["", "", "", MASK]
    assert len(stream._held) < 4, "what is held back is bounded by the longest secret"
    assert stream.feed("b") == "b"
    assert stream.finish() == ""


def test_what_was_held_back_comes_out_at_the_end() -> None:
    stream = Redactor([SECRET]).stream()
    assert stream.feed(f"x {SECRET[:-1]}") == "x "
    assert stream.finish() == SECRET[:-1]


def test_a_redactor_without_secrets_passes_everything_on() -> None:
    assert streamed(Redactor(), ["a", "", "b"]) == ["a", "", "b", ""]

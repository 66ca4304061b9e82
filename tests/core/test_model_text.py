"""What a model reads: the fix, the output, and how much was left out."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from sandboxio import ExecResult, ExecutionTimeout, RichOutput, SandboxGone
from sandboxio.errors import SandboxError, catalogue
from sandboxio.model_text import clip, render_for_model, render_result


@pytest.mark.parametrize("error", catalogue())
def test_an_error_tells_code_fix_and_page_without_a_traceback(error: type[SandboxError]) -> None:
    text = render_for_model(error("Something happened."))
    assert text.splitlines()[0] == f"[{error.code}] Something happened."
    assert f"Fix: {error.default_hint}" in text
    assert error.code + "/" in text
    assert "Traceback" not in text


def test_a_timeout_carries_what_was_printed() -> None:
    """Case 6 in a tool's text; case 85: timeouts carry partial output."""
    error = ExecutionTimeout("Too slow.")
    error.partial = ExecResult(137, "one\n", "two\n")
    assert render_for_model(error).endswith("Output until then:\nstdout:\none\nstderr:\ntwo")


def test_an_error_without_output_says_nothing_of_output() -> None:
    error = SandboxGone("Gone.")
    error.partial = ExecResult(137, "", "")
    assert "Output" not in render_for_model(error)


def test_a_result_shows_exit_code_streams_results_and_notes() -> None:
    plot = RichOutput("image/png", "aGk=")
    table = RichOutput("text/plain", "a  b")
    result = ExecResult(1, "out\n", "err\n", results=(table, plot), notes=("stdout was cut",))
    assert render_result(result) == (
        "exit code: 1\nstdout:\nout\nstderr:\nerr\nresult:\na  b\n"
        "result: image/png, 4 characters\nnote: stdout was cut"
    )
    assert render_result(ExecResult(0, "", "")) == "exit code: 0\n(no output)"


@pytest.mark.parametrize(
    "output",
    [
        RichOutput("text/plain", "x" * 15_000),
        RichOutput("text/plain", ""),
        RichOutput("image/png", "aGk="),
        RichOutput("x" * 1_000_000, ""),
    ],
    ids=["text", "empty", "image", "type"],
)
def test_many_results_are_no_longer_than_one_stream(output: RichOutput) -> None:
    text = render_result(ExecResult(0, "", "", results=(output,) * 10_000, notes=("n",)))
    assert len(text) < 20_000 + 1_000
    assert text.startswith("exit code: 0")
    assert text.endswith(" results left out ...]\nnote: n")


@given(st.text(max_size=200), st.integers(1, 120))
def test_clipping_keeps_head_and_tail_and_counts_the_rest(text: str, limit: int) -> None:
    shown = clip(text, limit)
    if len(text) <= limit:
        assert shown == text
        return
    head, _ = shown.split("\n[... ", 1) if "\n[... " not in text else (text[: limit - limit // 2], "")
    assert text.startswith(head)
    assert shown.endswith(text[len(text) - limit // 2 :])
    assert f"{len(text) - limit} characters left out" in shown

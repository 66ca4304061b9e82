"""What a language model reads of an error or a result. One wording for every integration.

A model needs what happened and what to do next, never a traceback; and it can read only so much, so long
output keeps its head and its tail and says what is left out between them.
"""

from __future__ import annotations

from collections.abc import Iterator

from .errors import CommandOutput, SandboxError
from .models import ExecResult, RichOutput

OUTPUT_LIMIT = 20_000
"""Characters of one stream, and of all display outputs, that a model is shown: about 5,000 tokens."""
ERROR_LIMIT = 4_000
"""Characters of an error text, without the partial output behind it."""
MIME_LIMIT = 100
"""Characters of a MIME type, which the program in the sandbox chooses."""


def clip(text: str, limit: int = OUTPUT_LIMIT) -> str:
    r"""``text``, or its head and tail with a line between them that counts what is left out.

    >>> clip("a" * 30 + "z" * 30, limit=20)
    'aaaaaaaaaa\n[... 40 characters left out ...]\nzzzzzzzzzz'
    """
    if len(text) <= limit:
        return text
    head, tail = limit - limit // 2, limit // 2
    left_out = len(text) - head - tail
    return f"{text[:head]}\n[... {left_out} characters left out ...]\n{text[len(text) - tail :]}"


def render_for_model(error: SandboxError, *, limit: int = OUTPUT_LIMIT) -> str:
    """An error for the model: code, what happened, the fix, its page, and what was printed until then.

    The text is redacted already: records redact an error before it leaves the sandbox's methods.
    """
    lines = [
        f"[{error.code}] {clip(error.message, ERROR_LIMIT)}",
        f"Fix: {clip(error.hint, ERROR_LIMIT)}",
        f"Docs: {error.url}",
    ]
    partial: CommandOutput | None = getattr(error, "partial", None)
    if partial is not None and (partial.stdout or partial.stderr):
        lines.append("Output until then:")
        lines += _streams(partial, limit)
    return "\n".join(lines)


def render_result(result: ExecResult, *, limit: int = OUTPUT_LIMIT) -> str:
    r"""A result for the model: the exit code, both streams, and remarks. A non-zero exit is a result.

    >>> render_result(ExecResult(3, "", "no such file\n"))
    'exit code: 3\nstderr:\nno such file'
    """
    lines = [f"exit code: {result.exit_code}", *_streams(result, limit)]
    if not result.stdout and not result.stderr:
        lines.append("(no output)")
    lines += _results(result.results or (), limit)
    lines += [f"note: {note}" for note in result.notes]
    return "\n".join(lines)


def _results(results: tuple[RichOutput, ...], limit: int) -> Iterator[str]:
    """Display outputs, which one program may make by the thousand: until they fill ``limit`` together."""
    left = limit
    for position, output in enumerate(results):
        if left <= 0:
            yield f"[... {len(results) - position} results left out ...]"
            return
        if output.mime_type.startswith("text/plain"):
            line = f"result:\n{clip(output.data, left)}"
        else:
            line = f"result: {clip(output.mime_type, MIME_LIMIT)}, {len(output.data)} characters"
        left -= len(line) + 1
        yield line


def _streams(output: CommandOutput, limit: int) -> list[str]:
    streams = (("stdout", output.stdout), ("stderr", output.stderr))
    return [f"{name}:\n{clip(text.rstrip(), limit)}" for name, text in streams if text]

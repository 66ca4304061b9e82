"""How the commands print: the same payload as text for people or as JSON for programs.

Text is plain ASCII apart from what the outside world puts in, in colour only on a terminal, and wrapped
only there: what goes into a file or a pipe keeps one line per fact. What comes from outside (labels,
messages of an engine) has its control characters escaped, so that it cannot steer the terminal.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Generator, Mapping
from typing import Any, TextIO, cast

from sandboxio.errors import SandboxError
from sandboxio.models import Progress

NARROWEST = 30
"""Columns below which wrapping makes things worse."""
_COLOURS = {"ok": "38;5;28", "FAIL": "1;38;5;160", "skip": "38;5;31", "title": "1"}
"""Of the 256 fixed colours (xterm, ctlseqs, "SGR"): what a terminal makes of plain green is often unreadable
on white. These have a contrast of 3.5 or more on black and on white."""
ERASE_LINE = "\r\033[K"
"""To the first column, and clear to the end: ECMA-48 EL."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


class Output:
    """One stream of one command. ``as_json`` silences everything but :meth:`payload`."""

    def __init__(self, *, as_json: bool = False, debug: bool = False) -> None:
        self.as_json = as_json
        self.debug = debug
        # None if the program was started with it closed (Python, sys.stdout).
        self._stream: TextIO | None = cast("TextIO | None", sys.stdout)
        _tolerate_any_text(sys.stdout)
        _tolerate_any_text(sys.stderr)
        terminal = self._stream is not None and self._stream.isatty()
        self.is_terminal: bool = terminal and os.environ.get("TERM") != "dumb"
        self._colour = self.is_terminal and not os.environ.get("NO_COLOR")
        self._width = shutil.get_terminal_size().columns if self.is_terminal else 0

    def payload(self, payload: Mapping[str, Any]) -> None:
        """The whole result as one JSON object; only with ``--json``."""
        if self.as_json:
            self._write(json.dumps(payload, indent=2) + "\n")

    def line(self, text: str = "", *, indent: int = 0, hang: int = 0) -> None:
        """A line of text, wrapped on a terminal; what follows hangs ``hang`` columns deeper."""
        if not self.as_json:
            for part in _escaped(text).split("\n"):
                self._write("\n".join(self._wrapped(part, indent, hang)) + "\n")

    def status(self, status: str, name: str, detail: str, *, name_width: int) -> None:
        """``status`` (ok, FAIL, skip, or -) and a name in columns, then the text."""
        if self.as_json:
            return
        columns = f"  {status:<4}  {_escaped(name):<{name_width}}  "
        first, *more = _escaped(detail).split("\n")
        if self._width and self._width - len(columns) < NARROWEST:
            indent = 8
            lines = [columns.rstrip(), *self._wrapped(first.strip(), indent, 0)]
        else:
            indent = len(columns)
            lines = self._wrapped(columns + first, 0, indent)
        for line in more:
            lines += self._wrapped(line.strip(), indent + 2, 2)
        lines[0] = lines[0].replace(status, self.paint(status, status), 1)
        self._write("\n".join(lines) + "\n")

    def paint(self, text: str, kind: str) -> str:
        """``text`` in the colour of ``kind``, where there are colours."""
        code = _COLOURS.get(kind)
        return f"\033[{code}m{text}\033[0m" if self._colour and code else text

    def title(self, text: str) -> None:
        """A heading."""
        if not self.as_json:
            lines = self._wrapped(_escaped(text), 0, 2)
            self._write("\n".join(self.paint(line, "title") for line in lines) + "\n")

    @contextlib.contextmanager
    def progress(self) -> Generator[Callable[[Progress], None]]:
        """What to call while something long goes on: one line that is overwritten, and gone at the end.

        Only on a terminal, and only once there is something to tell.
        """
        bar = ProgressLine(self._width)
        try:
            yield self._show(bar)
        finally:
            if bar.shown:
                self._write(ERASE_LINE)

    def error(self, error: SandboxError) -> None:
        """An error that ended the command: on stderr, or as the JSON result."""
        if self.as_json:
            self.payload({"error": error_dict(error)})
        else:
            say(f"sandboxio: {error}")

    def traceback(self, error: BaseException) -> None:
        """Where an error comes from, on stderr; only with ``SBX_DEBUG=1``."""
        if self.debug:
            sys.excepthook(type(error), error, error.__traceback__)

    def flush(self) -> None:
        """Hand everything to the system; a reader that went away is no error."""
        if self._stream is not None:
            try:
                self._stream.flush()
            except BrokenPipeError:
                self._reader_left()

    def _show(self, bar: ProgressLine) -> Callable[[Progress], None]:
        def show(progress: Progress) -> None:
            if self.is_terminal and not self.as_json and (line := bar.after(progress)):
                self._write(f"{ERASE_LINE}{line}")

        return show

    def _wrapped(self, text: str, indent: int, hang: int) -> list[str]:
        if not self._width:
            return [" " * indent + text]
        lines = textwrap.wrap(
            text,
            max(self._width - 1, NARROWEST),
            initial_indent=" " * indent,
            subsequent_indent=" " * (indent + hang),
            break_long_words=False,
            break_on_hyphens=False,
            drop_whitespace=True,
            replace_whitespace=False,
        )
        return lines or [""]

    def _write(self, text: str) -> None:
        if self._stream is None:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except BrokenPipeError:
            self._reader_left()

    def _reader_left(self) -> None:
        """Go on without output: what the command does must not stop half-way because of ``| head``."""
        self._stream = None
        # The interpreter flushes stdout once more at its end; let that succeed (Python, signal module docs).
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, sys.stdout.fileno())
        os.close(devnull)


class ProgressLine:
    """The parts of one long step, added up to a line; no I/O.

    >>> bar = ProgressLine(60)
    >>> bar.after(Progress("Downloading", "a", 2 << 20, 8 << 20))
    'Downloading: 2 of 8 MiB'
    >>> bar.after(Progress("Downloading", "b", 1 << 20, 2 << 20))
    'Downloading: 3 of 10 MiB'
    >>> bar.after(Progress("Downloading", "b", 1 << 20, 2 << 20))
    ''
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._parts: dict[tuple[str, str], tuple[int, int]] = {}
        self.shown: str = ""

    def after(self, progress: Progress) -> str:
        """The line to show now; "" if it has not changed."""
        line = progress.status
        if progress.current is not None and progress.total:
            self._parts[progress.status, progress.part] = (progress.current, progress.total)
            same = [numbers for (status, _), numbers in self._parts.items() if status == progress.status]
            current, total = (sum(numbers) / (1 << 20) for numbers in zip(*same, strict=True))
            line = f"{progress.status}: {current:.0f} of {total:.0f} MiB"
        line = " ".join(_escaped(line).split())[: max(self._width - 1, NARROWEST)]
        if line == self.shown:
            return ""
        self.shown = line
        return line


def say(text: str) -> None:
    """A message beside the result, on stderr."""
    if cast("TextIO | None", sys.stderr) is None:
        return  # closed when the program started; print() would write to stdout instead
    with contextlib.suppress(OSError):  # nobody reads it, and there is nowhere else to say so
        print(_escaped(text), file=sys.stderr, flush=True)


def error_dict(error: SandboxError) -> dict[str, str]:
    """An error as JSON-ready values."""
    return {"code": error.code, "message": error.message, "fix": error.hint, "docs": error.url}


def use_rich_tracebacks() -> None:
    """Readable tracebacks if rich is there; never with local variables, which may hold secrets."""
    with contextlib.suppress(ImportError):
        importlib.import_module("rich.traceback").install(show_locals=False)


def _escaped(text: str) -> str:
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def _tolerate_any_text(stream: TextIO) -> None:
    """Have characters that the terminal's encoding lacks escaped instead of raising."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")

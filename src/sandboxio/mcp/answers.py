"""What the tools return, as the clients see it in the output schemas."""

from __future__ import annotations

import base64

from pydantic import BaseModel, Field

from sandboxio.model_text import MIME_LIMIT, OUTPUT_LIMIT, clip
from sandboxio.models import ExecResult, FileInfo, RichOutput

MOST_OUTPUTS = 100
WHOLE = ("image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf")
"""Types whose base64 would be of no use if it was cut."""


class Output(BaseModel):
    """One display output of an interpreter."""

    mime_type: str
    data: str = Field(description="Text, or base64 for binary types.")


class Result(BaseModel):
    """How a command ended and what it printed."""

    exit_code: int = Field(description="0 means success; another value is the program's own answer.")
    stdout: str
    stderr: str
    results: list[Output] | None = Field(
        default=None, description="Display outputs, where the backend has them."
    )
    truncated: bool = Field(default=False, description="True if more was printed than is kept.")
    notes: list[str] = Field(default=[], description="Remarks about the run.")

    @classmethod
    def of(cls, result: ExecResult) -> Result:
        """A result with what is long cut in the middle, and display outputs beyond the limit left out."""
        outputs = result.results or ()
        shown = _shown(outputs)
        stdout, stderr = clip(result.stdout), clip(result.stderr)
        left_out = len(outputs) - len(shown)
        cut = (stdout, stderr) != (result.stdout, result.stderr) or any(
            mine.data != each.data for mine, each in zip(shown, outputs, strict=False)
        )
        return cls(
            exit_code=result.exit_code,
            stdout=stdout,
            stderr=stderr,
            results=None if result.results is None else shown,
            truncated=result.truncated or cut or left_out > 0,
            notes=[*result.notes, *([f"{left_out} display outputs are left out"] if left_out else [])],
        )


def _shown(outputs: tuple[RichOutput, ...]) -> list[Output]:
    """Display outputs until they are too many, or their text fills the limit of one stream together."""
    shown: list[Output] = []
    left = OUTPUT_LIMIT
    for output in outputs[:MOST_OUTPUTS]:
        if left <= 0:
            break
        data = output.data
        if output.mime_type not in WHOLE:
            data = clip(data, left)
            left -= len(data)
        shown.append(Output(mime_type=clip(output.mime_type, MIME_LIMIT), data=data))
    return shown


class FileContent(BaseModel):
    """A file: text if it is UTF-8, else base64."""

    content: str
    encoding: str = Field(description='"utf-8" or "base64".')
    size: int = Field(description="Bytes.")

    @classmethod
    def of(cls, data: bytes) -> FileContent:
        """Bytes as text where that loses nothing."""
        try:
            return cls(content=data.decode("utf-8"), encoding="utf-8", size=len(data))
        except UnicodeDecodeError:
            return cls(content=base64.b64encode(data).decode("ascii"), encoding="base64", size=len(data))


class Written(BaseModel):
    """What was written."""

    path: str
    size: int = Field(description="Bytes.")


class Entry(BaseModel):
    """One entry of a folder."""

    path: str
    size: int
    is_dir: bool

    @classmethod
    def of(cls, entry: FileInfo) -> Entry:
        """Bytes of a name that are not UTF-8 are shown as U+FFFD: JSON cannot hold them."""
        shown = entry.path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        return cls(path=shown, size=entry.size, is_dir=entry.is_dir)


class Listing(BaseModel):
    """A folder."""

    entries: list[Entry]
    left_out: int = Field(default=0, description="Entries beyond the first 1,000.")


class Info(BaseModel):
    """What this sandbox is and may do."""

    sandbox_id: str
    backend: str
    isolation: str
    capabilities: list[str]
    egress: str
    timeout_s: float

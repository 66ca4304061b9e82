"""Every Python block of the page about records and spans is a whole program, and it runs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sandboxio import otel
from sandboxio.audit import AuditEvent

from .events import event

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "observability.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_a_program_runs(number: int, tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAMS[number])
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", str(path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    if "QueueSink(" in PROGRAMS[number]:
        assert [line.split()[0] for line in done.stdout.splitlines()] == ["create", "exec", "kill"]
    if "FileSink(" in PROGRAMS[number]:
        events = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
        assert [(each["event"], each["tenant_id"]) for each in events] == [
            ("create", "acme"),
            ("exec", "acme"),
            ("kill", "acme"),
        ]
    if "TracerProvider(" in PROGRAMS[number]:
        assert done.stdout.count('"gen_ai.operation.name": "execute_tool"') == 3


def test_the_event_on_the_page_has_the_fields_of_an_event() -> None:
    (shown,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    assert json.loads(shown).keys() == event().as_dict().keys()


def test_every_field_and_attribute_is_on_the_page() -> None:
    for name in AuditEvent.__dataclass_fields__:
        assert f'"{name}"' in PAGE or f"`{name}`" in PAGE, name
    source = Path(otel.__file__).read_text()
    for name in re.findall(r'"((?:gen_ai|sandboxio|error)\.[a-z_0-9.]+)"', source):
        assert f"`{name}`" in PAGE or f"`{name.rpartition('.')[2]}`" in PAGE, name
    assert f"**{otel.SEMCONV_VERSION}**" in PAGE

"""The guest's program as it travels: a text for every Python, and code for the one that the host has."""

from __future__ import annotations

import importlib.util
import marshal
import os
import subprocess
import zlib
from pathlib import Path

from sandboxio_docker import launcher

PROGRAM = "import os\ndef main(told, began):\n    os.write(1, b'{}')\n    os._exit(0)\n"


def answer(python: str, message: bytes) -> bytes:
    told = launcher.arguments(30, lifeline=True, work="/", localhost=False)
    done = subprocess.run(
        launcher.with_python(told, python), input=message, capture_output=True, check=False, timeout=30
    )
    assert done.stderr == b""
    return done.stdout


def magic(python: str) -> bytes:
    text = "import importlib.util, sys; sys.stdout.buffer.write(importlib.util.MAGIC_NUMBER)"
    return subprocess.run([python, "-c", text], capture_output=True, check=True).stdout


def test_code_is_used_by_the_python_that_made_it_and_text_by_all_others(python: str) -> None:
    text, other = PROGRAM.format("text"), PROGRAM.format("code")
    message = launcher.message(text.encode(), compile(other, "elsewhere.py", "exec"))
    same = magic(python) == importlib.util.MAGIC_NUMBER
    assert answer(python, message) == (b"code" if same else b"text")
    assert answer(python, launcher.message(text.encode())) == b"text"


def test_the_whole_program_fits_into_what_the_engine_buffers_before_the_start() -> None:
    assert len(launcher.program()) < 200_000  # 233 kB fit (Docker 20.10, and a pipe and two sockets between)


def test_the_code_is_the_text_s_and_says_nothing_of_where_the_library_lies() -> None:
    body = launcher.program()[12:]
    end = 4 + int.from_bytes(body[:4], "big")
    source = Path(launcher.__file__).with_name("guest.py")
    assert body[4:end] == source.read_bytes()
    code = zlib.decompress(body[end + 4 :])
    assert marshal.loads(code) == launcher._anonymous(compile(body[4:end], "x", "exec", dont_inherit=True))
    assert os.fsencode(source.parent) not in code


def test_a_lifetime_as_it_is_told() -> None:
    told = [
        launcher.arguments(seconds, lifeline=True, work="/work", localhost=False)[0]
        for seconds in (0, 0.5, 300, 1e9, 1e10, 1e300)
    ]
    assert told == ["0", "0.5", "300", "1000000000", "1000000000", "1000000000"]

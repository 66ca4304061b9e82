"""Source text with one thing broken, loaded beside the real module."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType


def broken(text: str, changes: list[tuple[str, str]]) -> str:
    for old, new in changes:
        assert text.count(old) == 1, f"the text to change is there {text.count(old)} times: {old!r}"
        text = text.replace(old, new)
    return text


@contextmanager
def mutant(real: ModuleType, *changes: tuple[str, str]) -> Iterator[ModuleType]:
    assert real.__file__
    text = broken(Path(real.__file__).read_text(), list(changes))
    module = ModuleType(real.__name__ + "_mutant")
    module.__dict__.update(__package__=real.__package__, __file__=real.__file__)
    sys.modules[module.__name__] = module
    try:
        exec(compile(text, real.__file__, "exec"), module.__dict__)
        yield module
    finally:
        del sys.modules[module.__name__]

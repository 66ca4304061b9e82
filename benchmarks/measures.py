"""What is measured. Every measure visits all subjects in turn, round after round, so that drift hits all."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import psutil

from .others import AioDocker, DockerCommand, DockerPy, LlmSandbox
from .ours import Ours, OursSync
from .raw import EngineExecStream, EngineStream, RawEngine, UnreadStream
from .subjects import Floor, Subject

Samples = dict[str, list[float]]


@dataclass
class Measure:
    """Samples of one thing. ``unit`` is of a sample; ``better`` says which direction is good."""

    name: str
    unit: str
    better: str
    samples: Samples = field(default_factory=dict)

    def add(self, subject: str, *values: float) -> None:
        self.samples.setdefault(subject, []).extend(values)


Progress = Callable[[str], None]


def everybody() -> list[Subject]:
    """All subjects that run commands."""
    return [
        Floor(),
        Floor("trio"),
        Ours("guest"),
        Ours("guest", "trio"),
        OursSync(),
        Ours("exec"),
        Ours("exec", "trio"),
        DockerPy(),
        AioDocker(),
        LlmSandbox(),
        DockerCommand(),
    ]


def open_all(subjects: Iterable[Subject], say: Progress) -> list[Subject]:
    """Open each; one that cannot be opened here is named and left out."""
    opened = []
    for subject in subjects:
        try:
            subject.open()
        except (ImportError, OSError, RuntimeError, subprocess.CalledProcessError) as error:
            say(f"{subject.name} is left out: {error}")
        else:
            opened.append(subject)
    return opened


def visits(subjects: Sequence[Subject], thing: str, rounds: int) -> Iterator[tuple[int, Subject]]:
    """Every subject that can do ``thing``, in another order each round."""
    able = [subject for subject in subjects if hasattr(subject, thing)]
    for number in range(rounds):
        for subject in random.sample(able, len(able)):
            yield number, subject


def calls(
    subjects: Sequence[Subject],
    thing: str,
    rounds: int,
    say: Progress,
    *,
    quick: int = 10,
    slow: int = 2,
) -> Measure:
    """Seconds of one call of ``thing``. The first round warms up."""
    measure = Measure(thing, "s", "less")
    for number, subject in visits(subjects, thing, rounds + 1):
        seconds = subject.times(thing, quick if subject.quick else slow)
        if number:
            measure.add(subject.name, *seconds)
    say(f"{thing}: {rounds} rounds")
    return measure


def values(
    subjects: Sequence[Subject],
    thing: str,
    rounds: int,
    say: Progress,
    *arguments: object,
    name: str = "",
    unit: str = "s",
) -> Measure:
    """Figures that the subjects take themselves, in ``unit``."""
    measure = Measure(name or thing, unit, "less" if unit == "s" else "more")
    for _, subject in visits(subjects, thing, rounds):
        measure.add(subject.name, subject.value(thing, *arguments))
    say(f"{measure.name}: {rounds} rounds")
    return measure


def bursts(subjects: Sequence[Subject], rounds: int, say: Progress, *, count: int = 64) -> Measure:
    """Commands per second when ``count`` start at once."""
    measure = Measure(f"burst_{count}", "1/s", "more")
    able = [subject for subject in subjects if subject.at_once]
    for _, subject in visits(able, "true", rounds):
        measure.add(subject.name, count / subject.burst(count))
    say(f"{count} at once: {rounds} rounds")
    return measure


def creates(rounds: int, say: Progress) -> Measure:
    """Seconds from create() to the result of the first command, and the end of the sandbox left out."""
    engine = open_all([RawEngine()], say)
    subjects = open_all(everybody(), say)
    try:
        return calls([*engine, *subjects], "first_result", rounds, say, quick=1, slow=1)
    finally:
        close_all([*engine, *subjects])


def streams(rounds: int, say: Progress, *, size: int = 200 << 20) -> Measure:
    """Bytes per second of one stream, and of the engine's own streams, received and thrown away."""
    floors = [EngineStream(), EngineExecStream(), UnreadStream(), UnreadStream("trio")]
    subjects = open_all([*floors, *everybody()], say)
    try:
        return values(subjects, "stream", rounds, say, size, name="stream_200mb", unit="B/s")
    finally:
        close_all(subjects)


def endings(rounds: int, say: Progress) -> list[Measure]:
    """How late a timeout is, how long until a cancelled run is gone, and how long a kill takes."""
    subjects = open_all(everybody(), say)
    try:
        return [
            values(subjects, "overshoot", rounds, say, name="timeout_overshoot"),
            values(subjects, "cancelled", rounds, say, name="cancel_to_gone"),
            values(subjects, "kill", rounds, say),
        ]
    finally:
        close_all(subjects)


def imports(rounds: int, say: Progress) -> Measure:
    """Seconds of ``import sandboxio`` in a new interpreter, and of nothing."""
    measure = Measure("import", "s", "less")
    programs = {
        "import sandboxio": "import sandboxio",
        "python -c pass": "pass",
        "import docker": "import docker",
        "import aiodocker": "import aiodocker",
        "import llm_sandbox": "import llm_sandbox",
        "import e2b": "import e2b",
    }
    for number in range(rounds + 1):
        for name, program in programs.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", program], check=True)
            if number:
                measure.add(name, time.perf_counter() - start)
    say("import times")
    return measure


def cpu(subjects: Sequence[Subject], say: Progress, *, count: int = 200) -> Measure:
    """CPU seconds per 1,000 commands, of this process and of the engine with all its helpers."""
    measure = Measure("cpu_per_1000", "s", "less")
    for subject in subjects:
        many = count if subject.quick else count // 4
        before = cpu_seconds()
        subject.times("true", many)
        client, engine = (after - start for after, start in zip(cpu_seconds(), before, strict=True))
        measure.add(f"{subject.name}: client", client * 1000 / many)
        measure.add(f"{subject.name}: engine", engine * 1000 / many)
        say(f"CPU of {subject.name}")
    return measure


def cpu_seconds() -> tuple[float, float]:
    """CPU of this process with its ended children, and of dockerd, containerd and the shims."""
    own = os.times()
    engine = 0.0
    for process in psutil.process_iter(["name", "cpu_times"]):
        if (process.info["name"] or "").startswith(("dockerd", "containerd")):
            times = process.info["cpu_times"]
            engine += times.user + times.system + times.children_user + times.children_system
    return own.user + own.system + own.children_user + own.children_system, engine


def close_all(subjects: Iterable[Subject]) -> None:
    """End every sandbox."""
    for subject in subjects:
        subject.close()

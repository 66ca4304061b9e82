"""What is measured. Every measure visits all subjects in turn, round after round, so that drift hits all."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import psutil

from .raw import RawEngine, UnreadStream
from .subjects import (
    AioDocker,
    AsyncSubject,
    DockerCommand,
    DockerPy,
    Floor,
    LlmSandbox,
    Ours,
    OursSync,
    Subject,
)

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
FAST = ("guest", "local subprocess")
"""Subjects whose calls take about a millisecond: they get ten calls a round, the others two."""


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


def calls(
    subjects: Sequence[Subject], thing: str, rounds: int, say: Progress, *, fast: int = 10, slow: int = 2
) -> Measure:
    """Seconds of one call of ``thing``."""
    measure = Measure(thing, "s", "less")
    able = [subject for subject in subjects if hasattr(subject, thing)]
    for number in range(rounds + 1):
        for subject in random.sample(able, len(able)):
            count = fast if any(word in subject.name for word in FAST) else slow
            seconds = subject.times(thing, count)
            if number:  # the first round warms up
                measure.add(subject.name, *seconds)
        say(f"{thing}: round {number} of {rounds}")
    return measure


def bursts(subjects: Sequence[Subject], rounds: int, say: Progress, *, count: int = 64) -> Measure:
    """Commands per second when ``count`` start at once."""
    measure = Measure(f"burst_{count}", "1/s", "more")
    able = [subject for subject in subjects if type(subject).burst is not Subject.burst]
    for number in range(rounds):
        for subject in random.sample(able, len(able)):
            measure.add(subject.name, count / subject.burst(count))
        say(f"{count} at once: round {number + 1} of {rounds}")
    return measure


def creates(rounds: int, say: Progress) -> Measure:
    """Seconds from create() to the result of the first command, and the end of the sandbox left out."""
    measure = Measure("first_result", "s", "less")
    subjects: list[Subject] = [
        RawEngine(),
        Ours("guest"),
        Ours("guest", "trio"),
        Ours("exec"),
        DockerPy(),
        AioDocker(),
    ]
    opened = open_all(subjects, say)
    try:
        for number in range(rounds + 1):
            for subject in random.sample(opened, len(opened)):
                seconds = subject.times("first_result", 1)
                if number:
                    measure.add(subject.name, *seconds)
            say(f"create to first result: round {number} of {rounds}")
    finally:
        close_all(opened)
    return measure


def streams(rounds: int, say: Progress, *, size: int = 200 << 20) -> Measure:
    """Bytes per second of one stream."""
    measure = Measure("stream_200mb", "B/s", "more")
    subjects: list[Subject] = [
        UnreadStream(),
        UnreadStream("trio"),
        Ours("guest"),
        Ours("guest", "trio"),
        Ours("exec"),
        DockerPy(),
    ]
    opened = open_all(subjects, say)
    try:
        for number in range(rounds):
            for subject in random.sample(opened, len(opened)):
                if isinstance(subject, AsyncSubject):
                    measure.add(subject.name, subject.call(lambda subject=subject: subject.stream(size)))  # type: ignore[misc]
                else:
                    measure.add(subject.name, subject.stream(size))  # type: ignore[attr-defined]
            say(f"stream of {size >> 20} MiB: round {number + 1} of {rounds}")
    finally:
        close_all(opened)
    return measure


def endings(rounds: int, say: Progress) -> list[Measure]:
    """How much later than its timeout a run ends, and how long a cancelled one takes to be gone."""
    overshoot = Measure("timeout_overshoot", "s", "less")
    cancelled = Measure("cancel_to_gone", "s", "less")
    subjects = [Ours("guest"), Ours("guest", "trio"), Ours("exec")]
    for subject in subjects:
        subject.open()
    try:
        for number in range(rounds):
            for subject in subjects:
                overshoot.add(subject.name, subject.call(subject.overshoot))
                cancelled.add(subject.name, subject.call(subject.cancelled))
            say(f"timeouts and cancellations: round {number + 1} of {rounds}")
    finally:
        close_all(subjects)
    return [overshoot, cancelled]


def imports(rounds: int, say: Progress) -> Measure:
    """Seconds of ``import sandboxio`` in a new interpreter, and of nothing."""
    measure = Measure("import", "s", "less")
    programs = {
        "import sandboxio": "import sandboxio",
        "python -c pass": "pass",
        "import docker": "import docker",
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
        if "local" in subject.name:
            continue
        many = count if any(word in subject.name for word in FAST) else count // 4
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

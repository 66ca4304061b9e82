"""Answers that a test gives to the fake beforehand."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Literal

from sandboxio.errors import ConfigurationError, SandboxError
from sandboxio.models import ExecResult

from .steps import FOREVER, Pause, Program, encoded, err, out

Kind = Literal["run", "run_code"]


@dataclass
class Rule:
    """One scripted answer; ``left`` is how many times it still answers, None for always."""

    kind: Kind
    match: str
    returns: ExecResult | None
    raises: SandboxError | None
    hangs: bool
    takes: float
    left: int | None

    def program(self) -> Program:
        """Waits, prints what the result holds, and hangs, fails or ends."""
        if self.takes:
            yield Pause(self.takes)
        if self.returns is not None:
            for chunk in (out(self.returns.stdout), err(self.returns.stderr)):
                if chunk.data:
                    yield chunk
        if self.hangs:
            yield FOREVER
        if self.raises is not None:
            raise _fresh(self.raises)
        return 0 if self.returns is None else self.returns.exit_code


class Script:
    """All rules of one fake. The newest rule that matches answers."""

    def __init__(self) -> None:
        self._rules: list[Rule] = []

    def add(self, rule: Rule) -> None:
        """Add a rule, before all others; refuse one that no backend could behave like."""
        _check(rule)
        self._rules.insert(0, rule)

    def answer(self, kind: Kind, text: str) -> Rule | None:
        """The rule for this command or code, counted as used; None if it is not scripted."""
        for rule in self._rules:
            if rule.kind == kind and rule.match in text and rule.left != 0:
                if rule.left is not None:
                    rule.left -= 1
                return rule
        return None


def _check(rule: Rule) -> None:
    where = f"on_{rule.kind}(match={rule.match!r})"
    if not isinstance(rule.match, str):
        raise ConfigurationError(f"{where}: match must be a string that the command contains.")
    if rule.returns is not None and not isinstance(rule.returns, ExecResult):
        raise ConfigurationError(
            f"{where}: returns must be an ExecResult, got {type(rule.returns).__name__}.",
            hint='Write returns=ExecResult(0, "what it prints\\n", "").',
        )
    if rule.returns is not None:
        _check_result(rule.returns, where)
    if rule.raises is not None and not isinstance(rule.raises, SandboxError):
        raise ConfigurationError(
            f"{where}: raises must be a SandboxError instance, got {rule.raises!r}: "
            "adapters raise nothing else.",
            hint='Write raises=NetworkPolicyViolation("..."), for example.',
        )
    if rule.hangs and rule.raises is not None:
        raise ConfigurationError(f"{where}: a command that hangs cannot raise too.")
    if not math.isfinite(rule.takes) or rule.takes < 0:
        raise ConfigurationError(f"{where}: takes is in seconds and not negative, got {rule.takes!r}.")
    if rule.left is not None and rule.left < 1:
        raise ConfigurationError(f"{where}: times must be at least 1, got {rule.left!r}.")


def _check_result(result: ExecResult, where: str) -> None:
    """Refuse what comes from how a command is run, and so cannot be said beforehand."""
    for name, hint in (
        ("truncated", "Let stdout be long and the limit small: FakeBackend(output_limit=...)."),
        ("streamed", "Leave it out: Process.wait() sets it by itself."),
        ("meter", "Leave it out: no backend of this release gives one."),
    ):
        if getattr(result, name):
            raise ConfigurationError(f"{where}: a scripted result cannot set {name}.", hint=hint)
    try:
        encoded(result.stdout + result.stderr)
    except UnicodeEncodeError as error:
        raise ConfigurationError(
            f"{where}: the output holds a lone surrogate that stands for no byte, so nothing can print it."
        ) from error


def _fresh(error: SandboxError) -> SandboxError:
    """A copy, so that a second raise does not add to the traceback of the first."""
    fresh = copy.copy(error)
    fresh.__cause__ = error.__cause__
    return fresh

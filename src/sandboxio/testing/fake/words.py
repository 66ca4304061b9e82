"""Shell text to words and operators: a part of the grammar of POSIX sh.

Source: POSIX.1-2017, Shell & Utilities, 2.3 "Token Recognition" and 2.6 "Word Expansions". What is not
understood raises :class:`NotUnderstood` before anything runs; guessing would be worse.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

OPERATORS = ("&&", "||", ">>", ">&", ";", "&", "|", "\n", ">", "<")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[?0-9]")
_BREAKS = frozenset(" \t\n;&|<>()")


class NotUnderstood(Exception):
    """Shell text beyond the part that the fake knows; the text says what."""


@dataclass(frozen=True)
class Part:
    """A piece of a word: literal text, or a variable to look up when ``variable``."""

    text: str
    quoted: bool
    variable: bool = False


@dataclass
class Word:
    """A word before expansion."""

    parts: list[Part] = field(default_factory=list[Part])

    @property
    def plain(self) -> str | None:
        """Its text, if nothing in it is quoted or expanded."""
        if any(part.quoted or part.variable for part in self.parts):
            return None
        return "".join(part.text for part in self.parts)


@dataclass(frozen=True)
class Operator:
    """An operator; ``descriptor`` is the number written before a redirection."""

    text: str
    descriptor: int | None = None


def tokens(text: str) -> list[Word | Operator]:
    """The words and operators of ``text``."""
    return _Lexer(text).run()


def expand(word: Word, value: Callable[[str], str]) -> list[str]:
    """The fields that a word becomes: none, one, or several where an unquoted value holds blanks."""
    fields: list[str] = []
    current: list[str] = []
    started = False
    for part in word.parts:
        text = value(part.text) if part.variable else part.text
        if part.quoted or not part.variable:
            if not part.quoted and any(mark in text for mark in "*?["):
                raise NotUnderstood(f"the pattern {text!r}")
            current.append(text)
            started = started or part.quoted or bool(text)
            continue
        if any(mark in text for mark in "*?["):
            raise NotUnderstood(f"the pattern {text!r}")
        pieces = re.split(r"[ \t\n]+", text)
        for position, piece in enumerate(pieces):
            if position and started:
                fields.append("".join(current))
                current, started = [], False
            current.append(piece)
            started = started or bool(piece)
    if started:
        fields.append("".join(current))
    return fields


def join(word: Word, value: Callable[[str], str]) -> str:
    """The word with its variables in, not split: the right side of an assignment."""
    return "".join(value(part.text) if part.variable else part.text for part in word.parts)


class _Lexer:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._found: list[Word | Operator] = []

    def run(self) -> list[Word | Operator]:
        while self._at < len(self._text):
            if self._text.startswith("\\\n", self._at):
                self._at += 2
            elif self._text[self._at] in " \t":
                self._at += 1
            elif self._text[self._at] == "#":
                end = self._text.find("\n", self._at)
                self._at = len(self._text) if end < 0 else end
            elif not self._operator():
                self._found.append(self._word())
        return self._found

    def _operator(self) -> bool:
        match = re.compile(r"([0-9])?(>>|>&|>|<)").match(self._text, self._at)
        if match is not None:
            following = self._text[match.end() : match.end() + 1]
            if following and following in "<>|&(":
                raise NotUnderstood(f"the operator {match[0]}{following}")
            self._at = match.end()
            self._found.append(Operator(match[2], int(match[1]) if match[1] else None))
            return True
        if self._text[self._at] in "()":
            raise NotUnderstood("a subshell or a function")
        for operator in OPERATORS:
            if self._text.startswith(operator, self._at):
                self._at += len(operator)
                self._found.append(Operator(operator))
                return True
        return False

    def _word(self) -> Word:
        word = Word()
        if self._text[self._at] == "~":
            raise NotUnderstood("~")
        while self._at < len(self._text) and self._text[self._at] not in _BREAKS:
            letter = self._text[self._at]
            if letter == "'":
                word.parts.append(Part(self._until("'"), quoted=True))
            elif letter == '"':
                self._at += 1
                self._double_quoted(word)
            elif letter == "\\":
                following = self._text[self._at + 1 : self._at + 2]
                self._at += 2
                if following != "\n":
                    word.parts.append(Part(following or "\\", quoted=True))
            elif letter == "$":
                word.parts.append(self._variable(quoted=False))
            elif letter == "`":
                raise NotUnderstood("a command in backquotes")
            else:
                self._at += 1
                word.parts.append(Part(letter, quoted=False))
        return word

    def _until(self, mark: str) -> str:
        end = self._text.find(mark, self._at + 1)
        if end < 0:
            raise NotUnderstood(f"a missing {mark}")
        text = self._text[self._at + 1 : end]
        self._at = end + 1
        return text

    def _double_quoted(self, word: Word) -> None:
        word.parts.append(Part("", quoted=True))
        while True:
            if self._at >= len(self._text):
                raise NotUnderstood('a missing "')
            letter = self._text[self._at]
            if letter == '"':
                self._at += 1
                return
            if letter == "$":
                word.parts.append(self._variable(quoted=True))
            elif letter == "`":
                raise NotUnderstood("a command in backquotes")
            elif letter == "\\" and self._text[self._at + 1 : self._at + 2] in ("$", "`", '"', "\\", "\n"):
                following = self._text[self._at + 1]
                self._at += 2
                word.parts.append(Part("" if following == "\n" else following, quoted=True))
            else:
                self._at += 1
                word.parts.append(Part(letter, quoted=True))

    def _variable(self, *, quoted: bool) -> Part:
        following = self._text[self._at + 1 : self._at + 2]
        if following == "{":
            end = self._text.find("}", self._at)
            name = self._text[self._at + 2 : end] if end > 0 else ""
            if end < 0 or _NAME.fullmatch(name) is None:
                raise NotUnderstood("an expansion other than ${NAME}")
            self._at = end + 1
            return Part(name, quoted, variable=True)
        match = _NAME.match(self._text, self._at + 1)
        if match is not None:
            self._at = match.end()
            return Part(match[0], quoted, variable=True)
        if following and following in "(@*#$!-":
            raise NotUnderstood(f"the expansion ${following}")
        self._at += 1
        return Part("$", quoted)

"""The virtual shell: simple commands, lists, pipelines, redirections, background, variables.

It imitates dash, the /bin/sh of Debian, in the part of its grammar that agents' one-liners use. Loops,
conditions, functions, patterns and substitutions are not there: a script with them ends with exit code
2 and a line on stderr that says how to script an answer instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from sandboxio.models import OutputChunk

from .context import Context
from .programs import PROGRAMS, Arguments, printf, pwd, shell_echo
from .steps import Program, err, fixed
from .tree import File, Folder
from .words import NotUnderstood, Operator, Word, expand, join, tokens

# fmt: off
_RESERVED = frozenset({
    "!", ".", "[", "[[", "alias", "bg", "case", "command", "do", "done", "elif", "else", "esac",
    "eval", "fg", "fi", "for", "function", "getopts", "if", "in", "jobs", "kill", "local", "read",
    "set", "shift", "source", "test", "then", "type", "ulimit", "umask", "unset", "until", "wait",
    "while", "{", "}",
})
# fmt: on
DEEPEST = 32
"""Shells inside each other. Each takes about ten frames of the host's stack, which holds a thousand."""
MOST_SHELLS = 1000
"""Shells of one run: a script that runs itself twice doubles them at each depth."""
_WHOLE = re.compile(r"[0-9]+")
_MOST = 2**31 - 1
"""The largest exit status that dash reads: INT_MAX."""
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=")


def start(argv: Arguments, context: Context) -> Program:
    """A program by its argument list, without a shell in between."""
    name, arguments = argv[0], argv[1:]
    base = name.rpartition("/")[2] if name.startswith(("/bin/", "/usr/bin/")) else name
    if base == "sh":
        return _sh(arguments, context)
    if base in PROGRAMS:
        return PROGRAMS[base](arguments, context)
    if "/" not in name:
        return fixed(127, err(f"{name}: not found\n"))
    return _from_file(name, arguments, context)


def shell(text: str, context: Context, arguments: Arguments = ("sh",)) -> Program:
    """Shell text, as ``sh -c`` runs it; ``arguments`` are ``$0``, ``$1`` and so on."""
    run = context.run
    if context.depth >= DEEPEST or run.shells >= MOST_SHELLS:
        yield err("sh: 1: Cannot fork\n")  # where a kernel ends it, by the limit of processes
        return 2
    run.shells += 1
    context = context.but(depth=context.depth + 1)
    state = _State(context, dict(context.env), set(context.env), arguments)
    try:
        script = _Parser(tokens(text)).script()
        return (yield from _run_list(script, state))
    except NotUnderstood as error:
        yield _refusal(error)
        return 2
    except _Exit as end:
        return end.status


def _refusal(error: NotUnderstood) -> OutputChunk:
    return err(
        f"sh: the fake shell does not understand {error}; "
        "script this command with on_run(match=..., returns=ExecResult(...))\n"
    )


def _sh(arguments: Arguments, context: Context) -> Program:
    rest = list(arguments)
    while rest and rest[0] in ("-e", "-u"):
        rest.pop(0)
    if rest[:1] == ["-c"] and len(rest) > 1:
        return shell(rest[1], context, tuple(rest[2:]) or ("sh",))
    if rest and not rest[0].startswith("-"):
        try:
            text = context.tree.read(rest[0], context.cwd).decode("utf-8", "surrogateescape")
        except OSError as error:
            return fixed(2, err(f"sh: 0: cannot open {rest[0]}: {error.strerror}\n"))
        return shell(text, context, tuple(rest))
    if not rest:
        return shell((context.stdin or b"").decode("utf-8", "surrogateescape"), context)
    return fixed(2, err(f"sh: 0: Illegal option {rest[0]}\n"))


def _from_file(name: str, arguments: Arguments, context: Context) -> Program:
    try:
        node = context.tree.find(name, context.cwd)
    except OSError as error:
        return fixed(127, err(f"{name}: {error.strerror}\n"))
    if isinstance(node, Folder) or not isinstance(node, File) or not node.mode & 0o111:
        return fixed(126, err(f"{name}: Permission denied\n"))
    if not node.data.startswith((b"#!/bin/sh\n", b"#!/bin/sh ")):
        return fixed(126, err(f"{name}: Exec format error\n"))
    return shell(node.data.decode("utf-8", "surrogateescape"), context, (name, *arguments))


# The grammar, from the outside in. Source: POSIX.1-2017, Shell & Utilities, 2.10 "Shell Grammar".


@dataclass
class _Redirect:
    descriptor: int
    kind: str
    target: Word


@dataclass
class _Command:
    assignments: list[tuple[str, Word]] = field(default_factory=list[tuple[str, Word]])
    words: list[Word] = field(default_factory=list[Word])
    redirects: list[_Redirect] = field(default_factory=list[_Redirect])


@dataclass
class _AndOr:
    """Pipelines with the operator in front of each; ``text`` is for the list of processes."""

    pipelines: list[tuple[str, list[_Command]]]
    background: bool = False


class _Parser:
    def __init__(self, found: list[Word | Operator]) -> None:
        self._found = found
        self._at = 0

    def script(self) -> list[_AndOr]:
        lists: list[_AndOr] = []
        while True:
            while self._operator() in (";", "\n") and (lists or self._operator() == "\n"):
                self._at += 1
            if self._at >= len(self._found):
                return lists
            lists.append(self._and_or())
            if self._operator() == "&":
                lists[-1].background = True
                self._at += 1
            elif self._at < len(self._found) and self._operator() not in (";", "\n"):
                raise NotUnderstood(f"{self._operator()!r} here")

    def _operator(self) -> str | None:
        token = self._found[self._at] if self._at < len(self._found) else None
        return token.text if isinstance(token, Operator) else None

    def _and_or(self) -> _AndOr:
        pipelines = [("", self._pipeline())]
        while (operator := self._operator()) in ("&&", "||"):
            self._at += 1
            self._newlines()
            pipelines.append((operator or "", self._pipeline()))
        return _AndOr(pipelines)

    def _newlines(self) -> None:
        while self._operator() == "\n":
            self._at += 1

    def _pipeline(self) -> list[_Command]:
        commands = [self._command()]
        while self._operator() == "|":
            self._at += 1
            self._newlines()
            commands.append(self._command())
        return commands

    def _command(self) -> _Command:
        command = _Command()
        while self._at < len(self._found):
            token = self._found[self._at]
            if isinstance(token, Operator):
                if token.text not in (">", ">>", "<", ">&"):
                    break
                command.redirects.append(self._redirect(token))
                continue
            self._at += 1
            if not command.words and (assigned := _assignment(token)) is not None:
                command.assignments.append(assigned)
                continue
            if not command.words and token.plain in _RESERVED:
                raise NotUnderstood(f"{token.plain!r}")
            command.words.append(token)
        if not (command.words or command.assignments or command.redirects):
            raise NotUnderstood(f"{self._operator() or 'the end'!r} where a command is expected")
        return command

    def _redirect(self, token: Operator) -> _Redirect:
        self._at += 1
        target = self._found[self._at] if self._at < len(self._found) else None
        if not isinstance(target, Word):
            raise NotUnderstood(f"{token.text!r} without a file")
        self._at += 1
        default = 0 if token.text == "<" else 1
        descriptor = default if token.descriptor is None else token.descriptor
        if descriptor > 2 or (descriptor == 0) != (token.text == "<"):
            raise NotUnderstood(f"a redirection of descriptor {descriptor}")
        if token.text == ">&" and target.plain not in ("1", "2"):
            raise NotUnderstood(">& with anything but 1 or 2")
        return _Redirect(descriptor, token.text, target)


def _assignment(word: Word) -> tuple[str, Word] | None:
    """Name and value, if the word is ``NAME=value`` with an unquoted name."""
    lead = ""
    for count, part in enumerate(word.parts):
        if part.quoted or part.variable:
            return None
        lead += part.text
        if (match := _ASSIGNMENT.fullmatch(lead)) is not None:
            return match[1], Word(word.parts[count + 1 :])
    return None


# Running it.


class _Exit(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


@dataclass
class _State:
    context: Context
    variables: dict[str, str]
    exported: set[str]
    arguments: Arguments
    status: int = 0

    def value(self, name: str) -> str:
        if name == "?":
            return str(self.status)
        if name.isdigit():
            return self.arguments[int(name)] if int(name) < len(self.arguments) else ""
        return self.variables.get(name, "")

    def environment(self) -> dict[str, str]:
        return {name: text for name, text in self.variables.items() if name in self.exported}

    def copy(self) -> _State:
        return _State(self.context, dict(self.variables), set(self.exported), self.arguments, self.status)


def _run_list(script: list[_AndOr], state: _State) -> Program:
    for entry in script:
        if entry.background:
            child = state.copy()
            state.context.start(_background(entry, child), "sh", state.environment())
            state.status = 0
        else:
            state.status = yield from _run_and_or(entry, state)
    return state.status


def _subshell(entry: _AndOr, state: _State) -> Program:
    try:
        return (yield from _run_and_or(entry, state))
    except _Exit as end:
        return end.status


def _background(entry: _AndOr, state: _State) -> Program:
    try:
        return (yield from _subshell(entry, state))
    except NotUnderstood as error:  # a pattern; the shell that started this is somewhere else by now
        yield _refusal(error)
        return 2


def _run_and_or(entry: _AndOr, state: _State) -> Program:
    for operator, commands in entry.pipelines:
        if (operator == "&&" and state.status != 0) or (operator == "||" and state.status == 0):
            continue
        state.status = yield from _run_pipeline(commands, state)
    return state.status


def _run_pipeline(commands: list[_Command], state: _State) -> Program:
    """One command in this shell; several in shells of their own, one after another."""
    if len(commands) == 1:
        return (yield from _run_command(commands[0], state))
    data = state.context.stdin
    status = 0
    for command in commands:
        child = state.copy()
        child.context = state.context.but(stdin=data)
        last = command is commands[-1]
        collected = bytearray()
        program = _subshell(_AndOr([("", [command])]), child)
        status = yield from _routed(program, {1: None if last else collected.extend, 2: None})
        data = bytes(collected)
    return status


Sink = Callable[[bytes], object]


def _routed(program: Program, to: dict[int, Sink | int | None]) -> Program:
    """``program`` with its outputs sent elsewhere: to a sink, to the other descriptor, or as it is."""
    while True:
        try:
            step = next(program)
        except StopIteration as end:
            return int(end.value)
        if not isinstance(step, OutputChunk):
            yield step
            continue
        target = to[1 if step.stream == "stdout" else 2]
        if target is None:
            yield step
        elif isinstance(target, int):
            yield OutputChunk("stdout" if target == 1 else "stderr", step.data)
        else:
            target(step.data)


def _run_command(command: _Command, state: _State) -> Program:
    words = [text for word in command.words for text in expand(word, state.value)]
    assigned = {name: join(word, state.value) for name, word in command.assignments}
    context = state.context
    to: dict[int, Sink | int | None] = {1: None, 2: None}
    for redirect in command.redirects:
        fields = expand(redirect.target, state.value)
        name = fields[0] if len(fields) == 1 else ""
        if redirect.kind == ">&":
            to[redirect.descriptor] = to[int(name)] if to[int(name)] is not None else int(name)
            continue
        try:
            if redirect.kind == "<":
                context = context.but(stdin=_input(name, context))
            else:
                to[redirect.descriptor] = _opened(name, context, append=redirect.kind == ">>")
        except OSError as error:
            yield err(
                f"sh: 1: cannot {'open' if redirect.kind == '<' else 'create'} {name}: {error.strerror}\n"
            )
            return 2
    if not words:
        for name, text in assigned.items():
            state.variables[name] = text
        return 0
    program = _builtin(words, assigned, state, context) or start(
        tuple(words), context.but(env={**state.environment(), **assigned})
    )
    return (yield from _routed(program, to))


def _input(name: str, context: Context) -> bytes | None:
    node = context.tree.find(name, context.cwd)
    if isinstance(node, Folder):
        return None
    return node.data if isinstance(node, File) else b""


def _opened(name: str, context: Context, *, append: bool) -> Sink:
    """The file, made or emptied at once; each piece is added to it, also where its name is gone by then."""
    context.tree.write(name, b"", context.cwd, append=append)
    node = context.tree.find(name, context.cwd)

    def add(data: bytes) -> None:
        if isinstance(node, File):  # a device swallows it
            node.data += data

    return add


def _builtin(words: list[str], assigned: dict[str, str], state: _State, context: Context) -> Program | None:
    name, arguments = words[0], tuple(words[1:])
    if name in ("echo", "printf", "pwd"):
        return {"echo": shell_echo, "printf": printf, "pwd": pwd}[name](arguments, context)
    if name == ":":
        return fixed(0)
    if name == "trap":
        if arguments[:1] != ("",):
            raise NotUnderstood("trap with an action")
        return fixed(0)  # nothing in the fake sends signals that could be ignored
    if name == "exec" and arguments:
        return _replace(start(arguments, context.but(env={**state.environment(), **assigned})))
    if name == "exit":
        return _leave(arguments, state)
    if name == "cd":
        return _change_folder(arguments, state)
    if name == "export":
        return _export(arguments, state)
    return None


def _replace(program: Program) -> Program:
    raise _Exit((yield from program))


def _leave(arguments: Arguments, state: _State) -> Program:
    if not arguments:
        raise _Exit(state.status)
    digits = arguments[0].lstrip("0") or "0"
    if _WHOLE.fullmatch(arguments[0]) is None or len(digits) > len(str(_MOST)) or int(digits) > _MOST:
        yield err(f"sh: 1: exit: Illegal number: {arguments[0]}\n")
        raise _Exit(2)
    raise _Exit(int(digits) & 255)


def _change_folder(arguments: Arguments, state: _State) -> Program:
    target = arguments[0] if arguments else state.value("HOME")
    tree, here = state.context.tree, state.context.cwd
    try:
        tree.folder(target or ".", here)
    except OSError:
        return fixed(2, err(f"sh: 1: cd: can't cd to {target}\n"))
    state.context = state.context.but(cwd=tree.absolute(target, here))
    return fixed(0)


def _export(arguments: Arguments, state: _State) -> Program:
    for argument in arguments:
        name, mark, text = argument.partition("=")
        if mark:
            state.variables[name] = text
        state.exported.add(name)
    return fixed(0)

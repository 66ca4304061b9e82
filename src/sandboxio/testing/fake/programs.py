"""The programs of the virtual sandbox: what ``run(["name", ...])`` starts without a shell.

They say what GNU coreutils 9 and curl 7.88 say, for as much as is here; the differential test compares.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import TypeAlias

from sandboxio.models import OutputChunk

from .context import Context
from .network import host_of, is_address, is_loopback
from .steps import PIECE, Pause, Program, encoded, err, fixed, out
from .tree import Device, Folder

Arguments: TypeAlias = tuple[str, ...]
Entry: TypeAlias = Callable[[Arguments, Context], Program]


def echo(arguments: Arguments, context: Context) -> Program:
    """GNU echo: options -n, -e, -E in front."""
    newline, escapes = "\n", False
    rest = list(arguments)
    while rest and len(rest[0]) > 1 and rest[0][0] == "-" and set(rest[0][1:]) <= set("neE"):
        option = rest.pop(0)
        newline = "" if "n" in option else newline
        for letter in option:
            escapes = {"e": True, "E": False}.get(letter, escapes)
    text = " ".join(rest) + newline
    yield out(unescaped(text, zero_octal=True)[0] if escapes else text)
    return 0


def shell_echo(arguments: Arguments, context: Context) -> Program:
    """The echo of dash: option -n alone, and escapes always."""
    plain = bool(arguments) and arguments[0] == "-n"
    text, stopped = unescaped(" ".join(arguments[plain:]), zero_octal=True)
    yield out(text + (b"" if plain or stopped else b"\n"))
    return 0


def printf(arguments: Arguments, context: Context) -> Program:
    """A part of printf(1): the conversions %s, %d and %%."""
    if not arguments:
        return (yield from fixed(2, err("printf: usage: printf format [arguments]\n")))
    form, rest = arguments[0], list(arguments[1:])
    status = 0
    while True:
        before = len(rest)
        text, bad = _formatted(form, rest)
        status = status or int(bad)
        if text is None:
            return (yield from fixed(2, err(f"printf: the fake knows %s, %d and %% only, not {form!r}\n")))
        yield out(text)
        if bad:
            yield err("printf: expected numeric value\n")
        if not rest or len(rest) == before:
            return status


def _formatted(form: str, rest: list[str]) -> tuple[bytes | None, bool]:
    pieces: list[bytes] = []
    bad = False
    position = 0
    while position < len(form):
        mark = form.find("%", position)
        literal = form[position:] if mark < 0 else form[position:mark]
        pieces.append(unescaped(literal, zero_octal=False)[0])
        if mark < 0:
            break
        kind = form[mark + 1 : mark + 2]
        position = mark + 2
        if kind == "%":
            pieces.append(b"%")
        elif kind == "s":
            pieces.append(encoded(rest.pop(0) if rest else ""))
        elif kind == "d":
            value = rest.pop(0) if rest else "0"
            number = _integer(value)
            bad = bad or number is None
            pieces.append(str(number or 0).encode())
        else:
            return None, True
    return b"".join(pieces), bad


def printenv(arguments: Arguments, context: Context) -> Program:
    """Values of variables, or all of them; exit code 1 if one is not set."""
    if not arguments:
        yield out("".join(f"{name}={value}\n" for name, value in context.env.items()))
        return 0
    found = [context.env[name] for name in arguments if name in context.env]
    yield out("".join(f"{value}\n" for value in found))
    return 0 if len(found) == len(arguments) else 1


def seq(arguments: Arguments, context: Context) -> Program:
    """Whole numbers: LAST, FIRST LAST or FIRST INCREMENT LAST."""
    numbers = [_integer(argument) for argument in arguments]
    whole = [number for number in numbers if number is not None]
    if not 1 <= len(numbers) <= 3 or len(whole) != len(numbers):
        return (yield from fixed(1, err("seq: expected one to three whole numbers\n")))
    first, step, last = {1: (1, 1, whole[0]), 2: (whole[0], 1, whole[-1])}.get(len(whole), (0, 0, 0))
    if len(whole) == 3:
        first, step, last = whole
    if step == 0:
        return (yield from fixed(1, err("seq: the increment must not be zero\n")))
    lines: list[str] = []
    for number in range(first, last + (1 if step > 0 else -1), step):
        lines.append(f"{number}\n")
        if len(lines) == 4096:
            yield out("".join(lines))
            lines.clear()
    yield out("".join(lines))
    return 0


def sleep(arguments: Arguments, context: Context) -> Program:
    """The sum of its arguments, in virtual seconds; suffixes s, m, h and d."""
    if not arguments:
        return (yield from fixed(1, err("sleep: missing operand\n")))
    seconds = 0.0
    for argument in arguments:
        part = _duration(argument)
        if part is None:
            return (yield from fixed(1, err(f"sleep: invalid time interval '{argument}'\n")))
        seconds += part
    yield Pause(seconds)
    return 0


def cat(arguments: Arguments, context: Context) -> Program:
    """Files one after another; ``-`` and no argument are standard input."""
    status = 0
    for name in arguments or ("-",):
        if name == "-":
            if context.stdin is None:
                yield err("cat: -: Is a directory\n")
                status = 1
            yield from _pieces(context.stdin or b"")
            continue
        try:
            node = context.tree.find(name, context.cwd)
        except OSError as error:
            yield err(f"cat: {name}: {error.strerror}\n")
            status = 1
            continue
        if isinstance(node, Folder):
            yield err(f"cat: {name}: Is a directory\n")
            status = 1
        elif isinstance(node, Device):
            while node.endless:
                yield out(bytes(PIECE))
                yield Pause(0.001)
        else:
            yield from _pieces(node.data)
    return status


def _pieces(data: bytes) -> Iterator[OutputChunk]:
    for start in range(0, len(data), PIECE):
        yield out(data[start : start + PIECE])


def curl(arguments: Arguments, context: Context) -> Program:
    """A request to each URL, judged by the network policy; what is allowed answers with one line."""
    urls, target = _curl_arguments(arguments)
    if not urls:
        return (yield from fixed(2, err("curl: (2) no URL specified\n")))
    status = 0
    for url in urls:
        host = host_of(url)
        if is_loopback(host):
            yield err(f"curl: (7) Failed to connect to {host}: Connection refused\n")
            status = 7
        elif context.reach(host):
            body = answer_of(host)
            status = 0
            try:
                if target is None:
                    yield out(body)
                else:
                    context.tree.write(target, body, context.cwd)
            except OSError as error:
                yield err(f"Warning: Failed to open the file {target}: {error.strerror}\n")
                yield err("curl: (23) Failure writing output to destination\n")
                status = 23
        elif is_address(host):
            yield err(f"curl: (7) Failed to connect to {host}: Network is unreachable\n")
            status = 7
        else:
            yield err(f"curl: (6) Could not resolve host: {host}\n")
            status = 6
    return status


def answer_of(host: str) -> bytes:
    """What every host on the fake's network says."""
    return encoded(f"fake answer of {host}\n")


def _curl_arguments(arguments: Arguments) -> tuple[list[str], str | None]:
    """The URLs, and where ``-o`` sends the answer."""
    urls: list[str] = []
    target: str | None = None
    rest = list(arguments)
    with_value = {"--max-time", "--connect-timeout", "--header", "--request", "--data", "--retry"}
    while rest:
        argument = rest.pop(0)
        if not argument.startswith("-"):
            urls.append(argument)
            continue
        short = argument[-1] if not argument.startswith("--") else ""
        if (argument == "--output" or short == "o") and rest:
            target = rest.pop(0)
        elif (argument in with_value or (short and short in "mHXdAw")) and rest:
            rest.pop(0)
    return urls, target


def pwd(arguments: Arguments, context: Context) -> Program:
    """The working folder."""
    return fixed(0, out(f"{context.cwd}\n"))


def true(arguments: Arguments, context: Context) -> Program:
    """Success."""
    return fixed(0)


def false(arguments: Arguments, context: Context) -> Program:
    """Failure."""
    return fixed(1)


PROGRAMS: dict[str, Entry] = {
    "cat": cat,
    "curl": curl,
    "echo": echo,
    "false": false,
    "printenv": printenv,
    "printf": printf,
    "pwd": pwd,
    "seq": seq,
    "sleep": sleep,
    "true": true,
}

# Of digits Python reads more than a program does: those of every script, and with _ between.
_INTEGER = re.compile(r"[+-]?[0-9]+")
_DECIMAL = re.compile(r"\+?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_ESCAPES = {"a": 7, "b": 8, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11, "\\": 92}


def unescaped(text: str, *, zero_octal: bool) -> tuple[bytes, bool]:
    r"""Backslash escapes as echo (``\0ooo``) or printf (``\ooo``) read them, and whether ``\c`` came."""
    data = bytearray()
    position = 0
    while (mark := text.find("\\", position)) >= 0 and mark + 1 < len(text):
        data += encoded(text[position:mark])
        letter = text[mark + 1]
        position = mark + 2
        if letter in _ESCAPES:
            data.append(_ESCAPES[letter])
        elif letter == "c" and zero_octal:
            return bytes(data), True
        elif letter in "01234567" and (letter == "0" or not zero_octal):
            first = mark + (2 if zero_octal else 1)
            digits = _octal_digits(text[first : first + 3])
            data.append(int(digits or "0", 8) & 0xFF)
            position = first + len(digits)
        elif letter == '"' and not zero_octal:
            data += b'"'
        else:
            data += encoded(text[mark:position])
    return bytes(data + encoded(text[position:])), False


def _octal_digits(text: str) -> str:
    for length, letter in enumerate(text):
        if letter not in "01234567":
            return text[:length]
    return text


def _integer(text: str) -> int | None:
    try:
        return int(text) if _INTEGER.fullmatch(text) else None
    except ValueError:  # more digits than Python reads
        return None


def _duration(text: str) -> float | None:
    unit = {"s": 1, "m": 60, "h": 3600, "d": 86400}.get(text[-1:])
    number = text if unit is None else text[:-1]
    if number.lower() in ("inf", "infinity"):
        return math.inf
    return float(number) * (unit or 1) if _DECIMAL.fullmatch(number) else None

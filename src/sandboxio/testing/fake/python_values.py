"""Expressions that the fake recognises in Python code, and their values.

Literals, names, arithmetic, comparisons, f-strings, a few builtins and string methods, and network
calls. Everything else is :class:`NotRecognised`: nothing is executed that is not in a table here.
"""

from __future__ import annotations

import ast
import builtins
import operator
import socket
import urllib.error
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass
from typing import Any

from .context import Context
from .network import host_of, is_address, is_loopback
from .programs import answer_of

MAX_LENGTH = 16 << 20
"""Most characters, bytes or items of a value."""
MAX_BITS = 1 << 14
"""Most bits of a whole number."""


class NotRecognised(Exception):
    """Code that the fake cannot stand in for."""


@dataclass(frozen=True)
class Answer:
    """What a recognised network call returns."""

    body: bytes
    status: int = 200


@dataclass(frozen=True)
class Dotted:
    """A module, or something in one, by its full name."""

    name: str


class Values:
    """Evaluates expressions over the variables of a context."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def of(self, node: ast.expr) -> Any:
        """The value of ``node``; raises what Python would raise, or ``NotRecognised``."""
        handler = _HANDLERS.get(type(node))
        if handler is None:
            raise NotRecognised(f"{type(node).__name__} on line {node.lineno}")
        return _checked(handler(self, node))

    def name(self, node: ast.Name) -> Any:
        variables = self._context.variables
        if node.id in variables:
            return variables[node.id]
        if node.id in BUILTINS:
            return Dotted(node.id)
        if hasattr(builtins, node.id):
            raise NotRecognised(f"{node.id} on line {node.lineno}")
        raise NameError(f"name {node.id!r} is not defined")

    def attribute(self, node: ast.Attribute) -> Any:
        value = self.of(node.value)
        if isinstance(value, Dotted):
            if value.name == "os" and node.attr == "environ":
                return dict(self._context.env)
            return Dotted(f"{value.name}.{node.attr}")
        if isinstance(value, Answer) and node.attr in ("status", "code", "status_code"):
            return value.status
        raise NotRecognised(f".{node.attr} on line {node.lineno}")

    def binary(self, node: ast.BinOp) -> Any:
        left, right = self.of(node.left), self.of(node.right)
        function = _BINARY.get(type(node.op))
        if function is None:
            raise NotRecognised(f"{type(node.op).__name__} on line {node.lineno}")
        _check_size(node.op, left, right)
        return function(left, right)

    def unary(self, node: ast.UnaryOp) -> Any:
        function = _UNARY.get(type(node.op))
        if function is None:
            raise NotRecognised(f"{type(node.op).__name__} on line {node.lineno}")
        return function(self.of(node.operand))

    def comparison(self, node: ast.Compare) -> bool:
        left = self.of(node.left)
        for kind, comparator in zip(node.ops, node.comparators, strict=True):
            right = self.of(comparator)
            function = _COMPARE.get(type(kind))
            if function is None:
                raise NotRecognised(f"{type(kind).__name__} on line {node.lineno}")
            if not function(left, right):
                return False
            left = right
        return True

    def items(self, node: ast.List | ast.Tuple | ast.Set) -> Any:
        kind = {ast.List: list, ast.Tuple: tuple, ast.Set: set}[type(node)]
        return kind(self.of(item) for item in node.elts)

    def mapping(self, node: ast.Dict) -> dict[Any, Any]:
        if any(key is None for key in node.keys):
            raise NotRecognised(f"** on line {node.lineno}")
        return {
            self.of(key): self.of(value) for key, value in zip(node.keys, node.values, strict=True) if key
        }

    def subscript(self, node: ast.Subscript) -> Any:
        if isinstance(node.slice, ast.Slice):
            raise NotRecognised(f"a slice on line {node.lineno}")
        return self.of(node.value)[self.of(node.slice)]

    def formatted(self, node: ast.JoinedStr) -> str:
        return "".join(self._piece(piece) for piece in node.values)

    def _piece(self, node: ast.expr) -> str:
        if not isinstance(node, ast.FormattedValue):
            return str(self.of(node))
        if node.format_spec is not None:
            raise NotRecognised(f"a format on line {node.lineno}")
        value = self.of(node.value)
        convert: dict[int, Callable[[Any], str]] = {-1: str, 115: str, 114: repr, 97: ascii}
        return convert[node.conversion](value)

    def call(self, node: ast.Call) -> Any:
        arguments = [self.of(argument) for argument in node.args]
        named = {word.arg or "": self.of(word.value) for word in node.keywords}
        if isinstance(node.func, ast.Attribute):
            method = self._method(node.func, arguments)
            if method is not None:
                return method()
        function = self.of(node.func)
        if not isinstance(function, Dotted):
            raise TypeError(f"{type(function).__name__!r} object is not callable")
        if function.name in BUILTINS and not named:
            return BUILTINS[function.name](*arguments)
        return self._library(function.name, arguments, node)

    def _method(self, node: ast.Attribute, arguments: list[Any]) -> Callable[[], Any] | None:
        value = self.of(node.value)
        if isinstance(value, str) and node.attr in _TEXT_METHODS:
            return lambda: getattr(value, node.attr)(*arguments)
        if isinstance(value, dict) and node.attr == "get":
            return lambda: dict.get(value, *arguments)  # pyright: ignore[reportUnknownMemberType, reportUnknownLambdaType]
        if isinstance(value, Answer) and node.attr in ("read", "getcode", "close"):
            return lambda: {"read": value.body, "getcode": value.status}.get(node.attr)
        if isinstance(value, Dotted):
            return None
        raise NotRecognised(f".{node.attr}() on line {node.lineno}")

    def _library(self, name: str, arguments: list[Any], node: ast.Call) -> Any:
        if name == "os.getenv":
            return self._context.env.get(*arguments)
        if name == "urllib.request.urlopen" and arguments and isinstance(arguments[0], str):
            try:
                return Answer(self._reach(host_of(arguments[0])))
            except OSError as error:
                raise urllib.error.URLError(error) from error
        if name == "socket.create_connection" and arguments:
            self._reach(str(arguments[0][0]))
            return Answer(b"")
        if name == "socket.gethostbyname" and arguments:
            self._reach(str(arguments[0]))
            return "192.0.2.1"  # RFC 5737: reserved for documentation, so no host has it
        raise NotRecognised(f"{name}() on line {node.lineno}")

    def _reach(self, host: str) -> bytes:
        if is_loopback(host):
            raise ConnectionRefusedError(111, "Connection refused")
        if self._context.reach(host):
            return answer_of(host)
        if is_address(host):
            raise OSError(101, "Network is unreachable")
        raise socket.gaierror(-3, "Temporary failure in name resolution")


def _checked(value: Any) -> Any:
    if isinstance(value, Sized) and len(value) > MAX_LENGTH:
        raise NotRecognised("a value of that size")
    return value


def _check_size(kind: ast.operator, left: Any, right: Any) -> None:
    """Refuse what would take long, before it is computed."""
    if isinstance(kind, ast.Mult):
        for many, times in ((left, right), (right, left)):
            if isinstance(many, Sequence) and isinstance(times, int):
                size = len(many) * times  # pyright: ignore[reportUnknownArgumentType]
                if size > MAX_LENGTH:
                    raise NotRecognised("a value of that size")
        if (
            isinstance(left, int)
            and isinstance(right, int)
            and left.bit_length() + right.bit_length() > MAX_BITS
        ):
            raise NotRecognised("a number of that size")
    if isinstance(kind, ast.Pow) and (
        not isinstance(left, (int, float))
        or not isinstance(right, (int, float))
        or (isinstance(left, int) and left.bit_length() * abs(right) > MAX_BITS)
    ):
        raise NotRecognised("a power of that size")
    if isinstance(kind, ast.Mod) and not isinstance(left, (int, float)):
        raise NotRecognised("% on text")


_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda left, right: left / right,
    ast.FloorDiv: lambda left, right: left // right,
    ast.Mod: operator.mod,
    ast.Pow: lambda left, right: left**right,
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}
_TEXT_METHODS = frozenset(
    {
        "capitalize",
        "endswith",
        "lower",
        "lstrip",
        "rstrip",
        "split",
        "splitlines",
        "startswith",
        "strip",
        "title",
        "upper",
    }
)
BUILTINS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "bool": bool,
    "float": float,
    "int": int,
    "len": len,
    "max": max,
    "min": min,
    "repr": repr,
    "round": round,
    "sorted": sorted,
    "str": str,
    "sum": sum,
}
_HANDLERS: dict[type[ast.expr], Callable[[Values, Any], Any]] = {
    ast.Attribute: Values.attribute,
    ast.BinOp: Values.binary,
    ast.Call: Values.call,
    ast.Compare: Values.comparison,
    ast.Constant: lambda _, node: node.value,
    ast.Dict: Values.mapping,
    ast.JoinedStr: Values.formatted,
    ast.List: Values.items,
    ast.Name: Values.name,
    ast.Set: Values.items,
    ast.Subscript: Values.subscript,
    ast.Tuple: Values.items,
    ast.UnaryOp: Values.unary,
}

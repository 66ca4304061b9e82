"""Python code as the fake stands in for it: recognised statement by statement, never executed.

Assignments, ``print``, imports of the standard library, ``raise``, ``sys.exit``, ``time.sleep``,
``try``/``except`` and an endless ``while True``. Anything else ends with exit code 1 and a line on
stderr that says how to script an answer instead.
"""

from __future__ import annotations

import ast
import builtins
import math
import socket
import sys
import traceback
import urllib.error
from collections.abc import Generator, Sequence

from sandboxio.models import OutputChunk, RichOutput

from .context import Context
from .python_values import BUILTINS, Answer, Dotted, NotRecognised, Values
from .steps import FOREVER, Pause, Program, err, fixed, out

INTERRUPTED = 130
"""Exit code after KeyboardInterrupt: 128 and the number of SIGINT, by which Python ends itself."""


def python(code: str, context: Context, *, interactive: bool) -> Program:
    """The program for ``code``. ``interactive`` shows the last expression, as a notebook does."""
    if interactive:
        context.run.results = ()
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError) as error:
        yield err(f'  File "<code>", line {getattr(error, "lineno", 1)}\n{type(error).__name__}: {error}\n')
        return 1
    except (RecursionError, MemoryError):
        yield err(_unrecognised("code nested that deeply"))
        return 1
    runner = _Runner(context)
    try:
        yield from runner.block(tree.body, show_last=interactive)
    except (NotRecognised, RecursionError) as error:
        yield err(_unrecognised(str(error)))
        return 1
    except Exception as caught:  # noqa: BLE001 - whatever the code raised is its own affair, as in Python
        text, status = _ending(_Raised.by_code(caught), runner.line)
        yield from fixed(status, _complaint(text))
        return status
    return 0


class _Raised(Exception):
    """What ``raise`` or ``sys.exit`` in the code raised.

    In the fake an interrupt, the end of a generator and SystemExit are the host's; of the code they are
    values, so that it cannot be mistaken for the host.
    """

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    @staticmethod
    def by_code(caught: Exception) -> BaseException:
        """The exception as the code sees it."""
        return caught.error if isinstance(caught, _Raised) else caught


def _ending(error: BaseException, line: int) -> tuple[str, int]:
    """What an interpreter that dies of ``error`` says, and its exit code."""
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return "", (error.code or 0) & 255
        return f"{_text_of(error.code)}\n", 1  # sys.exit("what went wrong")
    last = "".join(traceback.format_exception_only(error))
    text = f'Traceback (most recent call last):\n  File "<code>", line {line}, in <module>\n{last}'
    return text, INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1


def _text_of(value: object) -> str:
    try:
        return str(value)
    except ValueError:  # a whole number of more digits than Python writes
        return "<str() failed>"


def _complaint(text: str) -> OutputChunk:
    """On stderr, where Python escapes what is not UTF-8."""
    return err(text.encode("utf-8", "backslashreplace"))


def _unrecognised(what: str) -> str:
    return (
        f"sandboxio.testing: the fake executes nothing and does not recognise {what}; "
        "script this code with on_run_code(match=..., returns=ExecResult(...))\n"
    )


def _pause(seconds: float) -> Pause:
    """What ``time.sleep`` does; virtual time knows neither steps back nor NaN."""
    if math.isnan(seconds):
        raise ValueError("Invalid value NaN (not a number)")
    if seconds < 0:
        raise ValueError("sleep length must be non-negative")
    return Pause(seconds)


class _Runner:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._variables = context.variables
        self._values = Values(context)
        self.line = 1

    def block(self, body: Sequence[ast.stmt], *, show_last: bool = False) -> Program:
        for statement in body:
            self.line = statement.lineno
            if isinstance(statement, ast.Expr):
                shown = yield from self._expression(statement.value)
                if show_last and statement is body[-1] and shown is not None:
                    self._context.run.results = (RichOutput("text/plain", shown),)
            else:
                yield from self._statement(statement)
        return 0

    def _statement(self, statement: ast.stmt) -> Program:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)]):
                self._variables[name] = self._values.of(statement.value)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                self._variables[name] = self._values.of(value)
            case ast.AugAssign(target=ast.Name(id=name) as target):
                both = ast.BinOp(ast.Name(name, ast.Load()), statement.op, statement.value)
                self._variables[name] = self._values.of(ast.copy_location(both, target))
            case ast.Import(names=names):
                for alias in names:
                    self._import(alias.name, alias.asname)
            case ast.ImportFrom(module=str(module), names=names, level=0):
                _check_module(module)
                for alias in names:
                    self._variables[alias.asname or alias.name] = Dotted(f"{module}.{alias.name}")
            case ast.Raise(exc=ast.expr() as exc):
                raise _Raised(self._exception(exc))
            case ast.Try(finalbody=[]):
                yield from self._try(statement)
            case ast.While(test=ast.Constant(value=True), orelse=[]) if _waits(statement.body):
                yield FOREVER
            case ast.Pass():
                pass
            case _:
                raise NotRecognised(f"{type(statement).__name__} on line {statement.lineno}")
        return 0

    def _expression(self, node: ast.expr) -> Generator[Pause | OutputChunk, None, str | None]:
        """What a statement that is only an expression shows; it prints and sleeps on the way."""
        if isinstance(node, ast.Call):
            called = self._called(node.func)
            if called == "print":
                yield self._print(node)
                return None
            if called in ("sys.stdout.write", "sys.stderr.write") and len(node.args) == 1:
                text = str(self._values.of(node.args[0]))
                yield out(text) if called == "sys.stdout.write" else _complaint(text)
                return None
            if called == "time.sleep" and len(node.args) == 1:
                yield _pause(float(self._values.of(node.args[0])))
                return None
            if called in ("sys.exit", "exit", "quit", "os._exit"):
                raise _Raised(SystemExit(self._values.of(node.args[0]) if node.args else None))
        value = self._values.of(node)
        return None if value is None or isinstance(value, (Answer, Dotted)) else repr(value)

    def _called(self, node: ast.expr) -> str:
        """The full name of what is called, as far as it can be seen."""
        if isinstance(node, ast.Name):
            value = self._variables.get(node.id)
            return value.name if isinstance(value, Dotted) else node.id
        if isinstance(node, ast.Attribute):
            return f"{self._called(node.value)}.{node.attr}"
        return ""

    def _print(self, node: ast.Call) -> OutputChunk:
        options = {"sep": " ", "end": "\n"}
        to_stderr = False
        for word in node.keywords:
            if word.arg == "file" and self._called(word.value) in ("sys.stderr", "sys.stdout"):
                to_stderr = self._called(word.value) == "sys.stderr"
            elif word.arg == "flush":
                continue
            elif word.arg in options:
                options[word.arg] = str(self._values.of(word.value))
            else:
                raise NotRecognised(f"print({word.arg}=...) on line {node.lineno}")
        values = [self._values.of(argument) for argument in node.args]
        if any(isinstance(value, (Answer, Dotted)) for value in values):
            raise NotRecognised(f"what print() shows on line {node.lineno}")
        text = options["sep"].join(map(str, values)) + options["end"]
        return _complaint(text) if to_stderr else out(text)

    def _import(self, module: str, alias: str | None) -> None:
        _check_module(module)
        top = module.partition(".")[0]
        self._variables[alias or top] = Dotted(module if alias else top)

    def _exception(self, node: ast.expr) -> BaseException:
        call = node if isinstance(node, ast.Call) else None
        kind = self._exception_class(call.func if call else node)
        return kind(*(self._values.of(argument) for argument in (call.args if call else [])))

    def _exception_class(self, node: ast.expr) -> type[BaseException]:
        name = self._called(node)
        kind = _EXCEPTIONS.get(name, getattr(builtins, name, None) if name not in BUILTINS else None)
        if isinstance(kind, type) and issubclass(kind, BaseException):
            return kind
        raise NotRecognised(f"the exception {name or type(node).__name__} on line {node.lineno}")

    def _try(self, statement: ast.Try) -> Program:
        try:
            yield from self.block(statement.body)
        except (NotRecognised, RecursionError):
            raise
        except Exception as caught:
            error = _Raised.by_code(caught)
            for handler in statement.handlers:
                if not isinstance(error, self._caught(handler)):
                    continue
                if handler.name:
                    self._variables[handler.name] = error
                yield from self.block(handler.body)
                return 0
            raise
        yield from self.block(statement.orelse)
        return 0

    def _caught(self, handler: ast.ExceptHandler) -> tuple[type[BaseException], ...]:
        if handler.type is None:
            return (BaseException,)
        kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
        return tuple(self._exception_class(kind) for kind in kinds)


_EXCEPTIONS: dict[str, type[BaseException]] = {
    "urllib.error.URLError": urllib.error.URLError,
    "urllib.error.HTTPError": urllib.error.HTTPError,
    "socket.error": OSError,
    "socket.timeout": TimeoutError,
    "socket.gaierror": socket.gaierror,
}


def _check_module(name: str) -> None:
    top = name.partition(".")[0]
    if top not in sys.stdlib_module_names:
        raise ModuleNotFoundError(f"No module named {top!r}")


def _waits(body: Sequence[ast.stmt]) -> bool:
    """True for a loop body that does nothing but pass time."""
    return all(
        isinstance(statement, ast.Pass)
        or (
            isinstance(statement, ast.Expr)
            and isinstance(statement.value, ast.Call)
            and ast.unparse(statement.value.func).endswith("sleep")
        )
        for statement in body
    )

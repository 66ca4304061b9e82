"""An exception that left the library is safe to log, and is still the exception that it was."""

from __future__ import annotations

import errno
import json
import pickle
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from urllib.error import URLError

import pytest

from sandboxio import ConnectError, ExecResult, ExecutionTimeout, SandboxError
from sandboxio._redact import Redactor
from sandboxio._scrub import guarded, scrub

from .encoded import found_in

SECRET = "p/ss+w0rd=?"
REDACTOR = Redactor([SECRET])


def everything_shown(error: BaseException) -> str:
    """What a log, a debugger and a crash reporter show of an exception and its chain."""
    shown = ["".join(traceback.format_exception(error))]
    pending, seen = [error], set[int]()
    while pending:
        each = pending.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        shown += [
            str(each),
            repr(each),
            repr(each.args),
            repr(vars(each)),
            repr(getattr(each, "__notes__", None)),
        ]
        pending += [below for below in (each.__cause__, each.__context__) if below is not None]
        if isinstance(each, BaseExceptionGroup):
            pending += each.exceptions
    return "\n".join(shown)


def chained(error: Exception, cause: BaseException) -> Exception:
    try:
        raise error from cause
    except type(error) as raised:
        return raised


FOREIGN: dict[str, Callable[[], BaseException]] = {
    "ValueError": lambda: ValueError(f"bad {SECRET}"),
    "KeyError": lambda: KeyError(SECRET),
    "OSError with a filename": lambda: FileNotFoundError(errno.ENOENT, "No such file", f"/{SECRET}"),
    "OSError with two": lambda: OSError(errno.EXDEV, f"cross {SECRET}", f"/{SECRET}", None, f"/x{SECRET}"),
    "UnicodeDecodeError": lambda: UnicodeDecodeError(
        "utf-8", f"{SECRET}\xff".encode("latin-1"), 11, 12, "bad"
    ),
    "UnicodeEncodeError": lambda: UnicodeEncodeError("ascii", f"{SECRET}ü", 11, 12, "no"),
    "SyntaxError": lambda: SyntaxError("bad", ("<string>", 1, 1, f"x = {SECRET}\n")),
    "ImportError": lambda: ImportError(f"no {SECRET}", name=SECRET, path=f"/{SECRET}"),
    "AttributeError": lambda: AttributeError(f"no {SECRET}", name=SECRET, obj=None),
    "JSONDecodeError": lambda: json.JSONDecodeError("bad", f'{{"token": {json.dumps(SECRET)}, }}', 5),
    "nested arguments": lambda: RuntimeError(
        {"env": {"TOKEN": SECRET}}, [("x", SECRET)], SECRET.encode(), {SECRET}
    ),
    "a group": lambda: ExceptionGroup("two", [ValueError(SECRET), ExceptionGroup("in", [KeyError(SECRET)])]),
    "an exception as argument": lambda: URLError(OSError(errno.ECONNREFUSED, f"refused: {SECRET}")),
    "one in another": lambda: RuntimeError("failed", ValueError(KeyError(SECRET))),
    "an encoded secret": lambda: ValueError(json.dumps({"a": SECRET}), SECRET.encode().hex()),
}


@pytest.mark.parametrize("make", FOREIGN.values(), ids=FOREIGN)
def test_nothing_is_left_in_a_foreign_exception(make: Callable[[], BaseException]) -> None:
    error = make()
    assert found_in(everything_shown(error), SECRET), "or this case shows nothing"
    kind, text = type(error), str(error)
    scrub(error, REDACTOR)
    assert not found_in(everything_shown(error), SECRET)
    assert type(error) is kind
    assert ("***" in str(error)) == (SECRET in text)


@pytest.mark.parametrize("make", FOREIGN.values(), ids=FOREIGN)
@pytest.mark.parametrize("link", ["cause", "context"])
def test_nothing_is_left_below_an_error_of_ours(make: Callable[[], BaseException], link: str) -> None:
    below = make()
    error: Exception = ConnectError("The engine refused.")
    if link == "cause":
        error = chained(error, below)
    else:
        error.__context__ = below
    scrub(error, REDACTOR)
    assert not found_in(everything_shown(error), SECRET)
    assert (error.__cause__ or error.__context__) is below
    assert error.__suppress_context__ == (link == "cause")


def test_an_oserror_stays_usable() -> None:
    error = FileNotFoundError(errno.ENOENT, "No such file", f"/tmp/{SECRET}")
    scrub(error, REDACTOR)
    assert error.errno == errno.ENOENT
    assert error.filename == "/tmp/***"
    assert str(error) == "[Errno 2] No such file: '/tmp/***'"
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.errno, again.filename) == (FileNotFoundError, errno.ENOENT, "/tmp/***")


def test_an_error_of_ours_is_redacted_in_all_its_parts() -> None:
    error = ExecutionTimeout(f"It said {SECRET}.", hint=f"Do not say {SECRET}.")
    error.add_note(f"About {SECRET}.")
    error.partial = ExecResult(137, f"printed {SECRET}", "")
    scrub(error, REDACTOR)
    assert error.message == "It said ***."
    assert error.hint == "Do not say ***."
    assert error.args == ("It said ***.",)
    assert error.__notes__ == ["About ***."]
    assert error.partial.stdout == f"printed {SECRET}", "what the program printed is the caller's data"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_long_chain_with_a_circle() -> None:
    first: Exception = ValueError(SECRET)
    error = first
    for number in range(3000):
        above: Exception = ConnectError(f"{number} {SECRET}")
        above.__context__ = error
        error = above
    first.__context__ = error
    scrub(error, REDACTOR)
    assert SECRET not in str(first)
    assert SECRET not in str(error)


class Stubborn(Exception):
    """Shows a secret from where nobody can take it, like the errors of several HTTP clients."""

    __slots__ = ("_url",)

    def __init__(self, url: str) -> None:
        self._url = url

    def __str__(self) -> str:
        return f"refused: {self._url}"


@dataclass(frozen=True)
class Frozen(Exception):
    """Refuses every assignment, as ``attrs`` and frozen dataclasses do."""

    url: str


def test_a_frozen_exception_is_redacted_too() -> None:
    frozen = Frozen(SECRET)
    BaseException.__setattr__(frozen, "__context__", Stubborn(SECRET))
    error = chained(ConnectError(f"No {SECRET}."), frozen)
    scrub(error, REDACTOR)
    assert not found_in(everything_shown(error), SECRET)
    assert error.__cause__ is frozen
    assert frozen.url == "***"


class Broken(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_an_exception_that_cannot_be_changed_is_replaced_in_the_chain() -> None:
    try:
        raise Stubborn(SECRET)
    except Stubborn as raised:
        stubborn = raised
    error = chained(ConnectError("The provider refused."), stubborn)
    scrub(error, REDACTOR)
    assert not found_in(everything_shown(error), SECRET)
    assert f"{Stubborn.__module__}.Stubborn: refused: ***" in everything_shown(error)
    assert error.__cause__ is not None
    assert error.__cause__.__traceback__ is stubborn.__traceback__
    assert error.__suppress_context__
    assert str(stubborn) == f"refused: {SECRET}", "the object itself is as it was"


def test_a_group_with_an_exception_that_cannot_be_changed_is_replaced_too() -> None:
    error = chained(ConnectError("No."), ExceptionGroup("several", [Stubborn(SECRET)]))
    scrub(error, REDACTOR)
    assert not found_in("".join(traceback.format_exception(error)), SECRET)


def test_an_exception_without_a_text_does_no_harm() -> None:
    error = chained(ConnectError(SECRET), Broken())
    scrub(error, REDACTOR)
    assert error.args == ("***",)


# What is not ours


def test_what_the_caller_was_handling_is_left_alone() -> None:
    def call() -> None:
        with guarded(REDACTOR):
            raise ConnectError(f"no {SECRET}")

    outer = chained(ValueError(f"mine: {SECRET}"), KeyError(SECRET))
    with pytest.raises(ConnectError) as caught:  # noqa: PT012 - the call is made while handling
        try:
            raise outer
        except ValueError:
            call()
    assert caught.value.__context__ is outer
    assert str(outer) == f"mine: {SECRET}"
    assert outer.__cause__ is not None
    assert outer.__cause__.args == (SECRET,)
    assert caught.value.message == "no ***"


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_is_no_error_keeps_its_arguments(kind: type[BaseException]) -> None:
    error = kind(SECRET)
    error.add_note(f"while {SECRET} was used")
    error.__context__ = ValueError(SECRET)
    scrub(error, REDACTOR)
    assert error.args == (SECRET,)
    assert error.__notes__ == ["while *** was used"]
    assert error.__context__.args == ("***",)


def test_without_secrets_nothing_is_touched() -> None:
    error = ConnectError("x")
    args, notes = error.args, ["a"]
    error.__notes__ = notes
    scrub(error, Redactor(["ab"]))
    assert error.args is args
    assert error.__notes__ is notes


def test_the_guard_lets_other_exits_through() -> None:
    with guarded(REDACTOR):
        pass
    with pytest.raises(SandboxError), guarded(REDACTOR):
        raise ConnectError("x")

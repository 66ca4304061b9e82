"""The house rules of the source tree, as checks over its syntax trees.

Each check takes a tree, path below src/ to text, and returns one line for each breach. What the rules
are for is in CONTRIBUTING.md; tests/test_house.py runs them on src/ and proves that each can fail.
"""

from __future__ import annotations

import ast
import builtins
import functools
import io
import re
import sys
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

Tree = dict[str, str]


def read_tree(src: Path) -> Tree:
    return {path.relative_to(src).as_posix(): path.read_text() for path in src.rglob("*.py")}


# What is where. A new file needs a line here; that is the moment to think about where it belongs.

# Bottom to top, one floor a line; a file imports files of lower floors only. `name/*` is a whole package.
LAYOUT = {
    "sandboxio": """
        errors _encodings _wake
        models _redact _loops
        model_text protocols _output _teardown _request _append
        audit _scrub
        registry _dsn otel _logs
        _record
        _files _process
        _sandbox
        _backend
        adapter
        api target _portal
        sync
        _doctor
        testing/*
        __init__
        integrations/*
        mcp/*
        cli/*
        __main__
    """,
    "sandboxio_docker": """
        answers words guest guest_protocol launcher killer frames archive accounts reference kernel
        guest_wire mux
        faults config labels
        endpoint versions hostconfig
        wire credentials
        hijack transport
        engine
        ending pull channel native lifecycle prepare
        exec_run guest_link isolation
        exec_files guest_run provision join sandbox diagnose
        channel_exec guest_files
        channel_guest
        backend
        __init__
    """,
    "sandboxio_e2b": """
        connection wire endpoints shell
        transport failures diagnose
        control
        envd interpreter native
        place
        commands cells
        files
        sandbox
        backend
        __init__
    """,
}

FLOORS = [
    [f"{package}/{name}" for name in floor.split()]
    for package, floors in LAYOUT.items()
    for floor in floors.strip().splitlines()
]

PACKAGES = ("sandboxio", "sandboxio_docker", "sandboxio_e2b")

OUTSIDE = {
    # who may import what from outside the standard library, longest match first
    "sandboxio/": "anyio typing_extensions",
    "sandboxio/otel": "opentelemetry",
    "sandboxio/mcp/": "anyio mcp mcp_types pydantic",
    "sandboxio/mcp/serving": "anyio mcp hypercorn uvicorn",
    "sandboxio/integrations/langgraph": "langchain_core pydantic",
    "sandboxio/integrations/openai_agents": "agents pydantic",
    "sandboxio/integrations/pydantic_ai": "anyio pydantic pydantic_ai",
    "sandboxio/integrations/openai_sandbox_client": "agents pydantic",
    "sandboxio/integrations/pydantic_ai_workspace": "anyio pydantic pydantic_ai",
    "sandboxio/testing/": "anyio typing_extensions pytest",
    "sandboxio_docker/": "anyio typing_extensions",
    "sandboxio_docker/engine": "anyio h11 httpx",
    "sandboxio_docker/transport": "anyio h11 httpx",
    "sandboxio_e2b/connection": "anyio h11 httpx",
    "sandboxio_e2b/transport": "h11 httpx",
    "sandboxio_e2b/control": "anyio httpx",
    "sandboxio_e2b/envd": "anyio httpx",
    "sandboxio_e2b/interpreter": "anyio httpx",
    "sandboxio_e2b/failures": "httpx",
    "sandboxio_e2b/native": "e2b packaging",
    "sandboxio_docker/guest": "",
    "sandboxio_e2b/": "anyio typing_extensions",
}

NO_AWAIT = {
    # sans-io: they know bytes, not who brings them
    "sandboxio_docker/accounts",
    "sandboxio_docker/answers",
    "sandboxio_docker/frames",
    "sandboxio_docker/guest_protocol",
    "sandboxio_docker/guest_wire",
    "sandboxio_docker/hostconfig",
    "sandboxio_docker/kernel",
    "sandboxio_docker/words",
    "sandboxio_e2b/endpoints",
    "sandboxio_e2b/shell",
    "sandboxio_e2b/wire",
}

SHIELDS = {
    "sandboxio/_teardown": "the one bounded, shielded way to end something",
    "sandboxio/testing/": "doubles that have to answer while their caller is cancelled",
}

LOOPS_AND_THREADS = {"asyncio", "trio", "threading", "concurrent", "multiprocessing", "queue"}

LOOPS_AND_THREADS_IN = {
    "sandboxio/_append": "an audit file is written in a worker thread: a disk may block",
    "sandboxio/_loops": "a lock between threads that each have a loop",
    "sandboxio/_portal": "the blocking facade lives in a thread beside its loop",
    "sandboxio/sync": "the blocking facade lives in a thread beside its loop",
    "sandboxio/testing/": "virtual clocks know the loops",
    "sandboxio/integrations/_tool": "frameworks call tools from threads without a loop",
    "sandboxio_docker/guest": "a program of its own, inside the sandbox",
}

TASKS_IN = {
    "sandboxio/testing/": "the suite races operations against each other",
    "sandboxio/mcp/": "a server, with a task group of its own",
    "sandboxio/cli/": "the end of a program, where nothing outlives it",
}

OPEN_SIGNATURES_IN = {
    "sandboxio/testing/fake/context": "a copy with some fields changed, inside the fake",
}

GUEST = "sandboxio_docker/guest"

LONGEST_FUNCTION = 70
LONGEST_FILE = 600
LONG_FILES = {
    "sandboxio_docker/guest": "has to be one file: it is sent into the sandbox as one text",
}


# Reading


@dataclass(frozen=True)
class Source:
    path: str
    text: str

    @property
    def name(self) -> str:
        """The path without its ending, which is how the tables above name a file."""
        return self.path.removesuffix(".py")

    @property
    def syntax(self) -> ast.Module:
        return _parsed(self.text)

    def nodes(self) -> Iterator[ast.AST]:
        return ast.walk(self.syntax)

    def at(self, node: ast.AST, text: str) -> str:
        return f"{self.path}:{getattr(node, 'lineno', 1)}: {text}"


@functools.cache
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


def _sources(tree: Tree) -> list[Source]:
    return [Source(path, text) for path, text in sorted(tree.items())]


def _belongs(name: str, table: dict[str, str] | set[str]) -> bool:
    return any(name == entry or (entry.endswith("/") and name.startswith(entry)) for entry in table)


def _imported(source: Source) -> Iterator[tuple[ast.stmt, str]]:
    """Every import of a file, also inside functions and under TYPE_CHECKING, as dotted names."""
    package = PurePosixPath(source.path).parent.parts
    for node in source.nodes():
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*start, *([node.module] if node.module else [])])
            yield from ((node, f"{base}.{alias.name}") for alias in node.names)


def _inside(tree: Tree, dotted: str) -> str | None:
    """The file of the tree that a dotted name is or lies in, named without its ending."""
    parts = dotted.split(".")
    while parts:
        for name in ("/".join(parts), "/".join([*parts, "__init__"])):
            if f"{name}.py" in tree:
                return name
        parts.pop()
    return None


def _edges(tree: Tree) -> Iterator[tuple[Source, ast.stmt, str]]:
    for source in _sources(tree):
        for node, dotted in _imported(source):
            target = _inside(tree, dotted)
            if target is not None and target != source.name:
                yield source, node, target


def _room(name: str) -> str:
    return name.split("/", 1)[0]


# Who may import whom


def floors(tree: Tree) -> list[str]:
    """A file imports lower floors only; TYPE_CHECKING counts."""
    level = {path.removesuffix(".py"): _floor(path.removesuffix(".py")) for path in tree}
    lines = [
        f"{name}.py: has no floor in tests/harness/house.py" for name, floor in level.items() if floor is None
    ]
    for source, node, target in _edges(tree):
        mine, theirs = level[source.name], level[target]
        if mine is None or theirs is None or theirs < mine:
            continue
        if theirs > mine or not FLOORS[mine][0].endswith("*"):  # a whole package shares one floor
            lines.append(source.at(node, f"imports {target}, which is no floor below it"))
    return lines


def _floor(name: str) -> int | None:
    for number, floor in enumerate(FLOORS):
        for entry in floor:
            if name == entry or (entry.endswith("*") and name.startswith(entry[:-1])):
                return number
    return None


def circles(tree: Tree) -> list[str]:
    """No file reaches itself through imports."""
    graph: dict[str, set[str]] = {}
    for source, _, target in _edges(tree):
        graph.setdefault(source.name, set()).add(target)
    found: set[frozenset[str]] = set()
    for start in graph:
        seen: set[str] = set()
        path = [(start, iter(sorted(graph.get(start, ()))))]
        while path:
            name = next(path[-1][1], None)
            if name is None:
                path.pop()
            elif name == start:
                found.add(frozenset(step for step, _ in path))
            elif name not in seen:
                seen.add(name)
                path.append((name, iter(sorted(graph.get(name, ())))))
    return [f"{' and '.join(sorted(circle))} import each other" for circle in found]


def rooms(tree: Tree) -> list[str]:
    """Core knows no adapter, adapters know the public core and never each other."""
    lines: list[str] = []
    for source in _sources(tree):
        for node, dotted in _imported(source):
            room, package = _room(source.name), dotted.split(".")[0]
            if package not in PACKAGES or package == room:
                continue
            if room == "sandboxio" or package != "sandboxio":
                lines.append(source.at(node, f"{room} imports {package}"))
            elif any(part.startswith("_") for part in dotted.split(".")[:2]):
                lines.append(source.at(node, f"an adapter imports {dotted}, which is private to the core"))
    return lines


def outside(tree: Tree) -> list[str]:
    """Who may import which package that is not in the standard library."""
    lines: list[str] = []
    for source in _sources(tree):
        entries = [entry for entry in OUTSIDE if _belongs(source.name, {entry})]
        allowed = OUTSIDE[max(entries, key=len)].split() if entries else []
        for node, dotted in _imported(source):
            package = dotted.split(".")[0]
            line = source.at(node, f"imports {package}")
            if package not in {*PACKAGES, *sys.stdlib_module_names, *allowed} and line not in lines:
                lines.append(line)
    return lines


def public_only(tree: Tree) -> list[str]:
    """Integrations use the public API: what they do, a user can do."""
    return [
        source.at(node, f"imports {target}; only the public API is for integrations")
        for source, node, target in _edges(tree)
        if source.name.startswith(("sandboxio/integrations/", "sandboxio/mcp/"))
        and any(part.startswith("_") and not part.startswith("__") for part in target.split("/"))
        and PurePosixPath(source.name).parent != PurePosixPath(target).parent
    ]


# Structured concurrency


def no_await(tree: Tree) -> list[str]:
    """Wire files know bytes, not who brings them."""
    awaiting = (ast.Await, ast.AsyncFunctionDef, ast.AsyncWith, ast.AsyncFor)
    return [
        source.at(node, "async code in a sans-io file")
        for source in _sources(tree)
        if _belongs(source.name, NO_AWAIT)
        for node in source.nodes()
        if isinstance(node, awaiting)
    ]


def shields(tree: Tree) -> list[str]:
    """Only named files shield."""
    lines: list[str] = []
    for source in _sources(tree):
        if _belongs(source.name, SHIELDS):
            continue
        for node in source.nodes():
            keyword = isinstance(node, ast.keyword) and node.arg == "shield"
            attribute = (
                isinstance(node, ast.Attribute) and node.attr == "shield" and isinstance(node.ctx, ast.Store)
            )
            if keyword or attribute:
                lines.append(source.at(node, "shields; only sandboxio/_teardown.py may"))
    return lines


def loops_and_threads(tree: Tree) -> list[str]:
    """The async core and the adapters know neither an event loop nor a thread."""
    return [
        source.at(node, f"imports {dotted.split('.')[0]}")
        for source in _sources(tree)
        if not _belongs(source.name, LOOPS_AND_THREADS_IN)
        for node, dotted in _imported(source)
        if dotted.split(".")[0] in LOOPS_AND_THREADS
        or dotted.startswith(("anyio.to_thread", "anyio.from_thread"))
    ]


def background_tasks(tree: Tree) -> list[str]:
    """create() returns a handle that lives outside any task group, so nothing may need one."""
    return [
        source.at(node, f"uses {node.attr}: no background tasks here")
        for source in _sources(tree)
        if not _belongs(source.name, TASKS_IN) and not _belongs(source.name, LOOPS_AND_THREADS_IN)
        for node in source.nodes()
        if isinstance(node, ast.Attribute)
        and node.attr in {"create_task_group", "start_soon", "create_task", "open_nursery", "ensure_future"}
    ]


# Names, errors and signatures


def open_signatures(tree: Tree) -> list[str]:
    """No `**kwargs`: a misspelt argument is an error, and a type checker sees them all."""
    return [
        source.at(node, f"{node.name}() takes **{node.args.kwarg.arg}")
        for source in _sources(tree)
        if not _belongs(source.name, OPEN_SIGNATURES_IN)
        for node in source.nodes()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.args.kwarg is not None
        and (not node.name.startswith("_") or node.name.startswith("__"))
    ]


BUILTIN_ERRORS = {
    name
    for name, kind in vars(builtins).items()
    if isinstance(kind, type) and issubclass(kind, BaseException)
}

ROOTS = {
    # the only classes that stand directly below a builtin exception
    "SandboxError": "Exception",
    "SandboxWarning": "UserWarning",
}


def error_bases(tree: Tree) -> list[str]:
    """Errors are SandboxErrors; none inherits a builtin that somebody might catch by accident."""
    lines: list[str] = []
    for source in _sources(tree):
        if source.name == GUEST:
            continue
        for node in source.nodes():
            if not isinstance(node, ast.ClassDef):
                continue
            bases = {base.id for base in node.bases if isinstance(base, ast.Name)} & BUILTIN_ERRORS
            core = source.name.startswith("sandboxio/") and "/testing/" not in source.name
            if bases == {"Exception"} and (not core or node.name.startswith("_")):
                continue  # an inner signal, translated before it reaches a caller
            if bases and bases != {ROOTS.get(node.name)}:
                lines.append(source.at(node, f"{node.name} inherits {', '.join(sorted(bases))}"))
    return lines


def timeouts(tree: Tree) -> list[str]:
    """The builtin TimeoutError never reaches a caller: nobody raises it, fail_after is caught."""
    lines: list[str] = []
    for source in _sources(tree):
        if source.name == GUEST:
            continue
        caught: set[ast.AST] = set()
        for node in source.nodes():
            if isinstance(node, ast.Try) and any(
                "TimeoutError" in _caught(handler) for handler in node.handlers
            ):
                caught.update(inner for statement in node.body for inner in ast.walk(statement))
        for node in source.nodes():
            raised = node.exc if isinstance(node, ast.Raise) else None
            if isinstance(raised, ast.Call):
                raised = raised.func
            if isinstance(raised, ast.Name) and raised.id == "TimeoutError":
                lines.append(source.at(node, "raises TimeoutError"))
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "fail_after"
                and node not in caught
            ):
                lines.append(source.at(node, "fail_after outside of `except TimeoutError`"))
    return lines


def _caught(handler: ast.ExceptHandler) -> set[str]:
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return {kind.id for kind in kinds if isinstance(kind, ast.Name)}


def blind_excepts(tree: Tree) -> list[str]:
    """Catching everything needs a reason beside it, unless it is raised again at the end."""
    lines: list[str] = []
    for source in _sources(tree):
        commented = _commented_lines(source.text)
        for node in source.nodes():
            if not isinstance(node, ast.ExceptHandler):
                continue
            blind = node.type is None or _caught(node) & {"Exception", "BaseException"}
            last = node.body[-1]
            again = isinstance(last, ast.Raise) and last.exc is None
            beside = set(range(node.lineno - 1, (node.end_lineno or node.lineno) + 1))
            if blind and not again and not beside & commented:
                lines.append(source.at(node, "catches everything and does not say why"))
    return lines


def _commented_lines(text: str) -> set[int]:
    """Lines with a comment that says something; a bare `noqa` does not."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return {
        token.start[0]
        for token in tokens
        if token.type == tokenize.COMMENT and not re.fullmatch(r"#\s*noqa(: *[A-Z0-9, ]+)?\s*", token.string)
    }


# The guest


def guest(tree: Tree) -> list[str]:
    """The program inside the sandbox needs nothing but a Python 3.8."""
    text = tree.get(f"{GUEST}.py")
    if text is None:
        return []
    source = Source(f"{GUEST}.py", text)
    lines = [
        source.at(node, f"imports {dotted}, which is not in the standard library")
        for node, dotted in _imported(source)
        if dotted.split(".")[0] not in sys.stdlib_module_names
    ]
    try:
        ast.parse(text, feature_version=(3, 8))
    except SyntaxError as error:
        lines.append(f"{source.path}:{error.lineno}: not Python 3.8: {error.msg}")
    return lines


# Sizes and shapes


def sizes(tree: Tree) -> list[str]:
    """A function fits a screen, a file can be held in the head."""
    lines: list[str] = []
    for source in _sources(tree):
        length = source.text.count("\n")
        if length > LONGEST_FILE and not _belongs(source.name, LONG_FILES):
            lines.append(f"{source.path}: {length} lines, more than {LONGEST_FILE}")
        for node in source.nodes():
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                size = _body_lines(node)
                if size > LONGEST_FUNCTION:
                    text = f"{node.name}() has {size} lines, more than {LONGEST_FUNCTION}"
                    lines.append(source.at(node, text))
    return lines


def _body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """From the first statement to the last, without the docstring."""
    body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def shapes(tree: Tree) -> list[str]:
    """Files are named for what they know, and the front door defines nothing."""
    lines = [
        f"{path}: a name that says nothing"
        for path in tree
        if PurePosixPath(path).stem.strip("_") in {"utils", "util", "helpers", "helper", "common", "misc"}
    ]
    front = Source("sandboxio/__init__.py", tree.get("sandboxio/__init__.py", ""))
    for node in front.syntax.body:
        defines = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if defines and node.name not in {"__getattr__", "__dir__"}:
            lines.append(front.at(node, f"defines {node.name}"))
    return lines


CHECKS: list[Callable[[Tree], list[str]]] = [
    floors, circles, rooms, outside, public_only, no_await, shields, loops_and_threads,
    background_tasks, open_signatures, error_bases, timeouts, blind_excepts, guest, sizes, shapes,
]  # fmt: skip

"""The code checks itself: layers, purity, sizes, names, and what must agree with what.

Each rule is a generator over `Source` files that yields complaints. The table RULES names for every
rule a snippet that it must refuse and one that it must accept, so that no rule can rot into one
that never fails. import-linter checks the layers too, but cannot see into Cython files.
"""

import ast
import functools
import re
import runpy
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from itertools import permutations
from pathlib import Path

import pytest
from lib.plain_english import TIC

ROOT = Path(__file__).parent.parent

# Imports point down only. The longest matching prefix counts; every module must have a layer.
LAYERS = {
    "corvo.cli": 9,
    "corvo.__main__": 9,
    "corvo.node": 8,
    "corvo.net": 7,
    "corvo.sidecar": 7,
    "corvo.engine": 6,
    "corvo.consensus": 5,
    "corvo.fsm": 5,
    "corvo.mirror": 5,
    "corvo.storage": 4,
    "corvo.model": 3,
    "corvo.ops": 3,
    "corvo.events": 3,
    "corvo.config": 3,
    "corvo.records": 3,
    "corvo.platform": 2,
    "corvo.limits": 1,
    "corvo._fast": 0,
    "corvo.errors": 0,
    "corvo": 0,
}
# Neighbours that never import each other.
STRANGERS = set(permutations(("corvo.consensus", "corvo.fsm", "corvo.mirror"), 2))

# What the protocols do not import: the service does.
INSIDE_THE_SERVICE = (
    "corvo.consensus",
    "corvo.engine.flusher",
    "corvo.engine.pipeline",
    "corvo.fsm",
    "corvo.storage",
)

# Values in, values out. Shells are the named exceptions inside pure packages.
PURE = (
    "corvo.errors",
    "corvo.limits",
    "corvo.platform.ids",
    "corvo.platform.durations",
    "corvo.platform.cron",
    "corvo.model",
    "corvo.ops",
    "corvo.events",
    "corvo.storage.memory",
    "corvo.storage.records",
    "corvo.storage.rows",
    "corvo.fsm",
    "corvo.consensus",
    "corvo.mirror.facets",
    "corvo.mirror.filters",
    "corvo.mirror.jq",
    "corvo.mirror.query",
    "corvo.mirror.rows",
    "corvo.mirror.schema",
    "corvo._fast",
)
SHELLS = {
    "corvo._fast.wal_thread",
    "corvo.consensus.cluster.discovery",
    "corvo.consensus.cluster.divergence",
    "corvo.consensus.cluster.membership",
    "corvo.consensus.cluster.peer_connection",
    "corvo.consensus.cluster.snapshots",
    "corvo.consensus.cluster.transport",
    "corvo.consensus.log",
    "corvo.consensus.raft_log",
    "corvo.consensus.single_log",
    "corvo.consensus.wal.inline_thread",
    "corvo.consensus.wal.wal",
    "corvo.consensus.wal_log",
}
IMPURE_IMPORTS = {
    "asyncio",
    "logging",
    "os",
    "random",
    "secrets",
    "socket",
    "threading",
    "time",
    "uuid",
}
# The replicated state must not depend on hash order or rounding.
REPLICATED = ("corvo.fsm", "corvo.consensus")
ORDERED = ("list", "tuple", "iter", "enumerate", "zip", "map")  # keep the order they are given

# A dependency is imported in one place, so that it can be replaced in a day.
DEPENDENCIES = {
    "aiosqlite": ("corvo.mirror.database",),
    "click": ("corvo.cli",),
    "cronsim": ("corvo.platform.cron",),
    "cython": ("corvo._fast",),
    "google_crc32c": ("corvo._fast.codec.wal_record",),
    "httptools": ("corvo._fast.http.http1", "corvo.cli.bench.load"),
    "jsonschema_rs": ("corvo.engine.commands.result_schemas",),
    "lmdb": ("corvo.storage.lmdb", "corvo.storage.backup", "corvo.storage.reader"),
    "msgpack": ("corvo.sidecar.channel",),
    "msgspec": (
        "corvo.net",
        "corvo.cli",
        "corvo.engine.commands",
        "corvo._fast.http.http1",
        "corvo.mirror.search",
    ),
    "prometheus_client": ("corvo.net.api.prometheus",),
    "pyroaring": ("corvo._fast.index.ready", "corvo.mirror.facets"),
    "rich": ("corvo.cli",),
    "uvloop": ("corvo.node.node", "corvo.cli.bench.load"),
}

# The client is a distribution of its own: these packages, and nothing of the server.
SDK = "sdk.python.corvo_client"
SDK_NEEDS = {"h11": (), "msgspec": ("conversion",), "pydantic": ("conversion",)}
SDK_NEEDS |= {"opentelemetry": ("trace",), "pytest": ("pytest_plugin",)}

BANNED_NAMES = {"utils", "util", "helpers", "helper", "manager", "managers", "common", "misc"}
BANNED_NAMES |= {"base"}

LINES_WANTED = 600
LINES_MAX = 1200
FUNCTION_LINES_MAX = 70
LINE_LENGTH_MAX = 100
# Modules above LINES_WANTED, each with the reason why it is read in one go.
LONG_MODULES: dict[str, str] = {
    "corvo/_fast/http/http1.py": "one state machine: bytes of a connection to requests",
    "corvo/_fast/http/exchange.py": "a request, and all the ways to answer it",
    "corvo/_fast/http2/connection.py": "one state machine: frames to requests, replies to frames",
    "corvo/fsm/machine.py": "one method for each question and each kind of entry",
    "corvo/config.py": "one table: every setting with its default, check and help",
    "corvo/consensus/wal/wal.py": "one state machine: segments, their jobs and what a crash finds",
    "corvo/ops.py": "one table: every op with its facts and fields",
    "corvo/fsm/state/state.py": "one state: the write buffer and the indexes over it",
    "corvo/fsm/state/write_buffer.py": "one buffer: dirty records of each kind, and their flush",
}

# Numbers of decisions, findings and test cases that a reader of this repository cannot look up.
ELSEWHERE = re.compile(r"\b([DST]\d{1,2}a?|review [A-Z]\d+)\b|\b(spec|guides?)/")

# A path of the API or of the worker service, or a part of one; not that of a file of the system.
PATH = re.compile(r"/(?!proc/)(api|corvo\.v1|[a-z{][\w.-]*)([}/][\w./{}-]*)?")

# A line of the map in the docstring of a package: a module, or a folder with a slash; its content.
MAP_LINE = re.compile(r"^ {0,4}([a-z_0-9]+/?)  +\S", re.MULTILINE)

# Spelled in halves, so that this file is not found by its own rule.
UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b")


class Source:
    """One file: its path from the root, its text, and (unless Cython syntax) its tree."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = text
        self.lines = text.splitlines()
        stem, _, self.suffix = path.rpartition(".")
        self.module = stem.removesuffix("/__init__").replace("/", ".")
        self.tree = ast.parse(text) if self.suffix in ("py", "pyi") else None

    def within(self, *packages: str) -> bool:
        """Whether the module is one of the packages or lies inside one."""
        return any(inside(self.module, package) for package in packages)

    def nodes(self) -> Iterator[ast.AST]:
        return ast.walk(self.tree) if self.tree is not None else iter(())

    def imports(self) -> Iterator[tuple[int, str]]:
        """Line and dotted name of everything imported; `from a import b` counts as `a.b`."""
        for node in self.nodes():
            if isinstance(node, ast.Import):
                yield from ((node.lineno, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                package = self.resolved(node.module or "", node.level)
                yield from ((node.lineno, f"{package}.{alias.name}") for alias in node.names)
        if self.tree is None:
            yield from self.cython_imports()

    def resolved(self, name: str, level: int) -> str:
        if level == 0:
            return name
        parts = self.module.split(".")
        keep = len(parts) - level + (1 if self.path.endswith("__init__.py") else 0)
        return ".".join([*parts[:keep], *([name] if name else [])])

    def cython_imports(self) -> Iterator[tuple[int, str]]:
        for number, line in enumerate(self.lines, 1):
            if match := re.match(r"\s*from\s+(\.*)([\w.]*)\s+c?import\s+(.+)", line):
                package = self.resolved(match[2], len(match[1]))
                names = match[3].partition("#")[0].strip(" ()\\").split(",")
                yield from ((number, f"{package}.{n.split()[0]}") for n in names if n.strip())
            elif match := re.match(r"\s*c?import\s+(.+)", line):
                yield from ((number, n.split()[0]) for n in match[1].partition("#")[0].split(","))


def inside(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def layer_of(module: str) -> tuple[str, int] | None:
    while module not in LAYERS:
        module, dot, _ = module.rpartition(".")
        if not dot or module == "corvo":
            return None
    return module, LAYERS[module]


def layers(sources: list[Source]) -> Iterator[str]:
    """Imports point down only; the state machine and the log never see each other."""
    for source in sources:
        if not source.within("corvo"):
            continue
        mine = layer_of(source.module)
        if mine is None:
            yield f"{source.path}: has no layer"
            continue
        for line, name in source.imports():
            theirs = layer_of(name) if inside(name, "corvo") else None
            if theirs is None:
                continue
            if theirs[1] > mine[1] or (mine[0], theirs[0]) in STRANGERS:
                yield f"{source.path}:{line}: {mine[0]} imports {name}"


def door(sources: list[Source]) -> Iterator[str]:
    """The protocols reach the state through the service: its reads, its waits and its ops."""
    for source in sources:
        for line, name in source.imports() if source.within("corvo.net") else ():
            for module in INSIDE_THE_SERVICE:
                if name == module or name.startswith(module + "."):
                    yield f"{source.path}:{line}: imports {module}, which only the service does"


def purity(sources: list[Source]) -> Iterator[str]:
    """Pure modules import no clock, randomness, file, socket, thread or log."""
    for source in sources:
        if source.within(*PURE) and source.module not in SHELLS:
            for line, name in source.imports():
                if name.partition(".")[0] in IMPURE_IMPORTS:
                    yield f"{source.path}:{line}: pure module imports {name}"


def dependencies(sources: list[Source]) -> Iterator[str]:
    """A third-party package is known, and imported only where the table says."""
    for source in sources:
        if not source.within("corvo"):
            continue
        for line, name in source.imports():
            root = name.partition(".")[0]
            if root in sys.stdlib_module_names or root in ("corvo", "cpython", "libc", "posix"):
                continue
            if source.suffix == "pxd" and root == "cython":
                continue  # words of the compiler; nothing is imported when it runs
            if not source.within(*DEPENDENCIES.get(root, ())):
                yield f"{source.path}:{line}: {root} is not imported here"


def sdk_dependencies(sources: list[Source]) -> Iterator[str]:
    """The client imports the standard library, h11, and what is optional in one place each."""
    for source in sources:
        for line, name in source.imports() if source.within(SDK) else ():
            root = name.partition(".")[0]
            if root in sys.stdlib_module_names or root == "corvo_client":
                continue
            places = [f"{SDK}.{place}" for place in SDK_NEEDS.get(root, ("-",))]
            if places and source.module not in places:
                yield f"{source.path}:{line}: {root} is not imported here"


def names(sources: list[Source]) -> Iterator[str]:
    """A module is named after what it holds."""
    for source in sources:
        parts = source.path.rpartition(".")[0].split("/")
        if BANNED_NAMES.intersection(parts):
            yield f"{source.path}: says nothing about what is in it"


def sizes(sources: list[Source]) -> Iterator[str]:
    """Modules, functions and lines stay within what can be read."""
    for source in sources:
        count = len(source.lines)
        wanted = LINES_WANTED if source.within("corvo") else LINES_MAX
        if count > LINES_MAX or (count > wanted and source.path not in LONG_MODULES):
            yield f"{source.path}: {count} lines"
        if count <= LINES_WANTED and source.path in LONG_MODULES:
            yield f"{source.path}: no longer needs its place in LONG_MODULES"
        for number, line in enumerate(source.lines, 1):
            if len(line) > LINE_LENGTH_MAX:
                yield f"{source.path}:{number}: {len(line)} characters"
        for number, name, length in functions(source):
            if length > FUNCTION_LINES_MAX:
                yield f"{source.path}:{number}: {name} has {length} lines"


def functions(source: Source) -> Iterator[tuple[int, str, int]]:
    """First line, name and length of every function."""
    for node in source.nodes():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name, (node.end_lineno or 0) - node.lineno + 1
    if source.suffix != "pyx":
        return
    for number, line in enumerate(source.lines, 1):
        match = re.match(r"(\s*)(?:def|cdef|cpdef)\s.*?(\w+)\(.*[:,(]\s*$", line)
        if match:
            end = last = number
            for later in source.lines[number:]:
                last += 1
                code = later.lstrip()
                if code and not code.startswith(")") and len(later) - len(code) <= len(match[1]):
                    break
                if later.strip():
                    end = last
            yield number, match[2], end - number + 1


def stars(sources: list[Source]) -> Iterator[str]:
    """No star imports."""
    for source in sources:
        for line, name in source.imports():
            if name.endswith(".*"):
                yield f"{source.path}:{line}: star import"


def stubs(sources: list[Source]) -> Iterator[str]:
    """A stub stands for a source that is not Python, and declares what that defines: beside a .py
    it would hide the annotations of the source from mypy.
    """
    by_path = {source.path: source for source in sources}
    for source in sources:
        stub = by_path.get(source.path.rpartition(".")[0] + ".pyi")
        if not source.within("corvo") or source.suffix not in ("py", "pyx"):
            continue
        if source.suffix == "py":
            if stub is not None:
                yield f"{stub.path}: stands beside a .py"
            continue
        if stub is None:
            yield f"{source.path}: has no .pyi"
            continue
        declared, defined = public_names(stub), public_names(source)
        missing = {n for n in defined - declared if not re.search(r"^[A-Z][A-Z0-9_]*$", n)}
        if differ := missing | (declared - defined):
            yield f"{source.path}: its .pyi differs in {', '.join(sorted(differ))}"


def public_names(source: Source) -> set[str]:
    """Names, and methods as `Class.method`, that Python code can use."""
    if source.tree is None:
        return cython_names(source)
    found = set()
    for node in source.tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if "cython.declare" not in ast.unparse(node):
                names = [name for target in targets for name in ast.walk(target)]
                found |= {name.id for name in names if isinstance(name, ast.Name)}
        elif visible(node):
            found.add(node.name)
            if isinstance(node, ast.ClassDef):
                found |= {f"{node.name}.{item.name}" for item in node.body if visible(item)}
    return {name for name in found if not name.rpartition(".")[2].startswith("_")}


def visible(node: ast.stmt) -> bool:
    if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    hidden = {"cython.cfunc", "overload", "property"}  # a property may stand for a C field
    return not any(ast.unparse(d) in hidden for d in node.decorator_list)


def cython_names(source: Source) -> set[str]:
    found = set()
    owner = ""
    for line in source.lines:
        if match := re.match(r"(?:cdef\s+)?class\s+(\w+)", line):
            owner = match[1]
            found.add(owner)
        elif match := re.match(r"(?:async\s+)?(?:def|cpdef)\s+(?:[\w*]+\s+)*?(\w+)\(", line):
            owner = ""
            found.add(match[1])
        elif match := re.match(r"    (?:async\s+)?(?:def|cpdef)\s+(?:[\w*]+\s+)*?(\w+)\(", line):
            found.add(f"{owner}.{match[1]}")
        elif match := re.match(r"(\w+)\s*(?::[^=]+)?=[^=]", line):
            found.add(match[1])
    return {name for name in found if not name.rpartition(".")[2].startswith("_")}


def compiled_structs(sources: list[Source]) -> Iterator[str]:
    """msgspec reads the annotations of a Struct, which compiled modules do not keep as they are."""
    build = runpy.run_path(str(ROOT / "setup.py"))
    compiled = {*build["DECISIONS"], *(path for group in build["MYPYC"].values() for path in group)}
    for source in sources:
        if source.path in compiled and re.search(r"\bStruct\b", source.text):
            yield f"{source.path}: is compiled and mentions Struct"


def declared_fields(sources: list[Source]) -> Iterator[str]:
    """What `__init__` of a class with a .pxd sets is declared there: else the compiled class lacks
    what the interpreted one has."""
    declarations = {source.path: source.text for source in sources if source.suffix == "pxd"}
    for source in sources:
        text = declarations.get(source.path.removesuffix(".py") + ".pxd")
        if source.suffix != "py" or text is None:
            continue
        for node in source.nodes():
            if not isinstance(node, ast.ClassDef):
                continue
            declared = declared_names(node.name, text, [*declarations.values()])
            for name in own_fields(node) if declared else ():
                if name not in declared:
                    yield f"{source.path}: {node.name}.{name} is not declared in the .pxd"


def declared_names(name: str, text: str, others: list[str]) -> set[str]:
    """Words in the declaration of a class in a .pxd, and in that of its base there or elsewhere."""
    body = rf"^cdef class {name}\b(?:\((\w+)\))?[^\n]*:.*?(?=^\S|\Z)"
    cut = re.search(body, text, re.DOTALL | re.MULTILINE)
    if cut is None:
        return set()
    names = set(re.findall(r"\w+", cut[0]))
    for other in (text, *others) if cut[1] else ():
        names |= declared_names(cut[1], other, [])
    return names


def own_fields(node: ast.ClassDef) -> set[str]:
    """Attributes of `self` that a class assigns in `__init__`."""
    start = [n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
    return {
        inner.attr
        for function in start
        for inner in ast.walk(function)
        if isinstance(inner, ast.Attribute)
        and isinstance(inner.ctx, ast.Store)
        and isinstance(inner.value, ast.Name)
        and inner.value.id == "self"
    }


def determinism(sources: list[Source]) -> Iterator[str]:
    """Nothing in replicated code depends on rounding, hash seeds or the order of a set."""
    for source in sources:
        if not source.within(*REPLICATED) or source.module in SHELLS:
            continue
        unordered = set_names(source)
        for node in source.nodes():
            at = f"{source.path}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Constant) and isinstance(node.value, float):
                yield f"{at}: float"
            elif isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Div):
                yield f"{at}: true division gives a float"
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                if node.func.id in ("hash", "float"):
                    yield f"{at}: builtin {node.func.id}()"
                elif node.func.id in ORDERED and any(is_set(a, unordered) for a in node.args):
                    yield f"{at}: order of a set"
            elif isinstance(node, ast.For | ast.comprehension) and is_set(node.iter, unordered):
                yield f"{source.path}:{node.iter.lineno}: iterates over a set"


def is_set(node: ast.expr, known: set[str]) -> bool:
    """Whether the expression is a set: by its form, or by a name that holds one in this file."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id in ("set", "frozenset")
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return isinstance(node, ast.Set | ast.SetComp) or name in known


def set_names(source: Source) -> set[str]:
    found = set()
    for node in source.nodes():
        if isinstance(node, ast.AnnAssign):
            if re.match(r"(Final\[)?(set|frozenset)\b", ast.unparse(node.annotation)):
                found.add(ast.unparse(node.target).rpartition(".")[2])
        elif isinstance(node, ast.arg) and node.annotation is not None:
            if re.match(r"(set|frozenset)\b", ast.unparse(node.annotation)):
                found.add(node.arg)
        elif isinstance(node, ast.Assign) and is_set(node.value, set()):
            found |= {ast.unparse(target).rpartition(".")[2] for target in node.targets}
    return found


def used(sources: list[Source]) -> Iterator[str]:
    """Every module is imported by another one or by a test."""
    entries = {"corvo.cli", "corvo.__main__", "corvo.sidecar.main"}
    imported = {name for s in sources if s.suffix != "pyi" for _, name in s.imports()}
    packages = {name.rpartition(".")[0] for name in imported}
    for source in sources:
        if not source.within("corvo") or source.suffix not in ("py", "pyx"):
            continue
        if source.path.endswith("__init__.py") or source.module in entries:
            continue
        if source.module not in imported | packages:
            yield f"{source.path}: nothing imports it"


def paths(sources: list[Source]) -> Iterator[str]:
    """The route table alone knows paths: what depends on a route is a fact of its row."""
    for source in sources:
        if not source.within("corvo.net") or source.module == "corvo.net.routes":
            continue
        for node in source.nodes():
            if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
                value = node.value if isinstance(node.value, str) else node.value.decode("latin-1")
                if PATH.fullmatch(value):
                    yield f"{source.path}:{node.lineno}: path {value!r} outside the route table"


def unfinished(sources: list[Source]) -> Iterator[str]:
    """No notes of unfinished work; they belong on the issue list."""
    for source in sources:
        for number, line in enumerate(source.lines, 1):
            if UNFINISHED.search(line):
                yield f"{source.path}:{number}: note of unfinished work"


def references(sources: list[Source]) -> Iterator[str]:
    """Comments stand on their own."""
    for source in sources:
        for number, line in enumerate(source.lines, 1):
            if match := ELSEWHERE.search(line):
                yield f"{source.path}:{number}: {match[0]} is nowhere to be looked up"


def english(sources: list[Source]) -> Iterator[str]:
    """Docstrings, comments and messages are plain technical English."""
    for source in sources:
        if source.within("corvo", "sdk"):
            for number, text in texts(source):
                if match := TIC.search(" ".join(text.split())):
                    yield f"{source.path}:{number}: {match[0].strip()!r} is not plain English"


def texts(source: Source) -> Iterator[tuple[int, str]]:
    """Line and content of every comment and string; comment lines that follow each other are one
    text. A placeholder of an f-string counts as X."""
    block: list[str] = []
    for number, line in enumerate([*source.lines, ""], 1):
        if match := re.match(r"\s*#:? ?(.*)", line):
            block.append(match[1])
            continue
        if block:
            yield number - len(block), " ".join(block)
            block = []
        if match := re.search(r"  # (.*)", line):
            yield number, match[1]
    if source.tree is None:
        for match in re.finditer(r'"""((?:.|\n)*?)"""|"([^"\n]*)"', source.text):
            yield source.text.count("\n", 0, match.start()) + 1, match[1] or match[2] or ""
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
        elif isinstance(node, ast.JoinedStr):
            parts = [v.value if isinstance(v, ast.Constant) else "X" for v in node.values]
            yield node.lineno, "".join(map(str, parts))


def docstrings(sources: list[Source]) -> Iterator[str]:
    """Every module and every public class and function says what it is."""
    for source in sources:
        if not source.within("corvo", SDK) or source.suffix == "pyi":
            continue
        if source.tree is None:
            if source.suffix == "pyx" and not re.match(r'(#.*\n|\s)*"""', source.text):
                yield f"{source.path}: has no docstring"
            continue
        if ast.get_docstring(source.tree) is None:
            yield f"{source.path}: has no docstring"
        for node in source.tree.body:
            if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if not node.name.startswith("_") and ast.get_docstring(node) is None:
                yield f"{source.path}:{node.lineno}: {node.name} has no docstring"


def package_maps(sources: list[Source]) -> Iterator[str]:
    """The docstring of a package has a map with one line for each of its modules and folders."""
    inside_of: dict[str, set[str]] = {}
    for source in sources:
        if source.within("corvo") and source.suffix in ("py", "pyx"):
            *folders, file = source.path.split("/")
            package = "/".join(folders)
            if not file.startswith("__"):
                inside_of.setdefault(package, set()).add(file.partition(".")[0])
            elif folders[1:] and file == "__init__.py":
                inside_of.setdefault("/".join(folders[:-1]), set()).add(folders[-1] + "/")
    for source in sources:
        package, _, file = source.path.rpartition("/")
        if file != "__init__.py" or source.tree is None or not source.within("corvo"):
            continue
        named = set(MAP_LINE.findall(ast.get_docstring(source.tree) or ""))
        for name in sorted(inside_of.get(package, set()) ^ named):
            fault = "is no module here" if name in named else "is not in the map"
            yield f"{source.path}: {name} {fault}"


def apply_functions(sources: list[Source]) -> Iterator[str]:
    """Every op has an apply function of its own name in a table of the state machine."""
    fsm = [source for source in sources if source.within("corvo.fsm")]
    applied = {
        ast.unparse(key): ast.unparse(value).rpartition(".")[2]
        for source in fsm
        for node in source.nodes()
        if isinstance(node, ast.Dict)
        for key, value in zip(node.keys, node.values, strict=True)
        if key is not None
    }
    for source in sources if fsm else ():
        if source.module == "corvo.ops":
            for row, name in op_rows(source):
                verb = re.sub("(?<=.)([A-Z])", r"_\1", name).lower()
                if name != "Stamp" and applied.get(f"ops.{row}.number") != verb:
                    yield f"corvo/fsm/ops: op {row} is not applied by {verb}"


def op_rows(source: Source) -> Iterator[tuple[str, str]]:
    """Constant and name of every op."""
    for node in source.nodes():
        if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Call):
            call = node.value
            if ast.unparse(call.func) == "_op":
                yield ast.unparse(node.target), ast.literal_eval(call.args[1])


Rule = Callable[[list[Source]], Iterable[str]]
LONG = "def f() -> None:\n" + "    pass\n" * FUNCTION_LINES_MAX
OP = 'RETRY_JOB: Final = _op(7, "RetryJob", "s")'
FLOATS = "corvo/fsm/x.py"
FAST = "corvo/_fast/x."
OPS_OF_JOBS = "corvo/fsm/ops/jobs.py"
ROOM = "corvo/platform/x.py"

# Rule, files it refuses, files it accepts. One line for each way to break it.
Files = dict[str, str]
RULES: list[tuple[Rule, Files, Files]] = [
    (
        layers,
        {"corvo/platform/ids.py": "import corvo.ops"},
        {"corvo/ops.py": "import corvo.platform.ids"},
    ),
    (
        layers,
        {"corvo/storage/x.py": "from ..net import y"},
        {"corvo/storage/x.py": "from . import y"},
    ),
    (layers, {FAST + "pyx": "from corvo import limits"}, {FAST + "pyx": "import corvo.errors"}),
    (
        layers,
        {FAST + "pxd": "cimport corvo.platform.ids"},
        {FAST + "pxd": "from corvo._fast.y cimport z"},
    ),
    (layers, {FAST + "pyi": "import corvo.model"}, {FAST + "pyi": "import corvo._fast.y"}),
    (
        layers,
        {"corvo/fsm/x.py": "import corvo.consensus"},
        {"corvo/fsm/x.py": "import corvo.storage"},
    ),
    (layers, {"corvo/elsewhere.py": ""}, {"corvo/net/elsewhere.py": ""}),
    (
        door,
        {"corvo/net/x.py": "from corvo.fsm.machine import Machine"},
        {"corvo/net/x.py": "from corvo.engine.service import Service"},
    ),
    (
        door,
        {"corvo/net/x.pxd": "from corvo.engine.pipeline cimport Pipeline"},
        {"corvo/node/x.py": "import corvo.engine.pipeline"},
    ),
    (purity, {"corvo/ops.py": "import time"}, {"corvo/platform/clock.py": "import time"}),
    (purity, {"corvo/fsm/x.py": "from os import path"}, {"corvo/net/x.py": "from os import path"}),
    (purity, {FAST + "pyx": "import threading"}, {"corvo/_fast/wal_thread.pyx": "import os"}),
    (dependencies, {"corvo/fsm/x.py": "import lmdb"}, {"corvo/storage/lmdb.py": "import lmdb"}),
    (dependencies, {"corvo/cli/x.py": "import requests"}, {"corvo/cli/x.py": "import json"}),
    (
        sdk_dependencies,
        {"sdk/python/corvo_client/x.py": "import corvo.errors"},
        {"sdk/python/corvo_client/x.py": "import corvo_client.errors"},
    ),
    (
        sdk_dependencies,
        {"sdk/python/corvo_client/x.py": "import msgspec"},
        {"sdk/python/corvo_client/conversion.py": "import msgspec"},
    ),
    (names, {"corvo/net/utils.py": ""}, {"corvo/net/http/router.py": ""}),
    (names, {"corvo/common/x.py": ""}, {"corvo/storage/lmdb.py": ""}),
    (sizes, {"corvo/x.py": "x = 1\n" * 601}, {"corvo/x.py": "x = 1\n" * 600}),
    (sizes, {"tests/x.py": "x = 1\n" * 1201}, {"tests/x.py": "x = 1\n" * 601}),
    (sizes, {"corvo/x.py": LONG}, {"corvo/x.py": LONG.replace("    pass\n", "", 1)}),
    (sizes, {FAST + "pyx": "c" + LONG}, {FAST + "pyx": "c" + LONG.replace("    pass\n", "", 1)}),
    (sizes, {"tests/x.py": "#" * 101}, {"tests/x.py": "#" * 100}),
    (stars, {"corvo/x.py": "from y import *"}, {"corvo/x.py": "from y import z"}),
    (
        stubs,
        {FAST + "py": "def f(): ...", FAST + "pyi": "def f(): ..."},
        {FAST + "py": "def f(): ..."},
    ),
    (
        stubs,
        {FAST + "pyx": "def f(): ..."},
        {FAST + "pyx": "def f(): ...", FAST + "pyi": "def f(): ..."},
    ),
    (stubs, {FAST + "pyx": "", FAST + "pyi": "A = 1"}, {FAST + "pyx": "A = 1", FAST + "pyi": ""}),
    (
        stubs,
        {FAST + "pyx": "cdef class A:\n    def f(self): pass", FAST + "pyi": "class A: ..."},
        {FAST + "pyx": "cdef class A:\n    cdef f(self): pass", FAST + "pyi": "class A: ..."},
    ),
    (
        compiled_structs,
        {"corvo/model.py": "class A(msgspec.Struct): ..."},
        {"corvo/net/x.py": "class A(msgspec.Struct): ..."},
    ),
    (
        declared_fields,
        {
            "corvo/x.py": "class A:\n    def __init__(self): self.a = 1",
            "corvo/x.pxd": "cdef class A:\n    cdef int b\n",
        },
        {
            "corvo/x.py": "class A:\n    def __init__(self): self.a = 1",
            "corvo/x.pxd": "cdef class A:\n    cdef int a\n",
        },
    ),
    (determinism, {FLOATS: "x = 0.5"}, {FLOATS: "x = 5"}),
    (determinism, {FLOATS: "x = a / b"}, {FLOATS: "x = a // b"}),
    (determinism, {FLOATS: "x = hash(a)"}, {FLOATS: "x = a.hash()"}),
    (determinism, {FLOATS: "for x in {1, 2}: ..."}, {FLOATS: "for x in sorted({1, 2}): ..."}),
    (determinism, {FLOATS: "[x for x in set(a)]"}, {FLOATS: "[x for x in sorted(set(a))]"}),
    (
        determinism,
        {FLOATS: "class A:\n    s: set[int]\n    def f(self): return list(self.s)"},
        {FLOATS: "class A:\n    s: set[int]\n    def f(self): return sorted(self.s)"},
    ),
    (used, {"corvo/net/x.py": ""}, {"corvo/net/x.py": "", "tests/y.py": "import corvo.net.x"}),
    (paths, {"corvo/net/x.py": 'x = b"/api/v1/jobs"'}, {"corvo/net/routes.py": 'x = "/jobs"'}),
    (paths, {"corvo/net/x.py": 'x.endswith("/fetch")'}, {"corvo/net/x.py": 'x.split("/")'}),
    (paths, {"corvo/net/x.py": 'f"/bulk/{x}"'}, {"corvo/net/x.py": '"""GET /jobs."""'}),
    (unfinished, {"corvo/x.py": "# TO" + "DO: more"}, {"corvo/x.py": "# what is done"}),
    (references, {"corvo/x.py": "# as in D" + "7"}, {"corvo/x.py": "# as in RFC 9112 2.2"}),
    (references, {"corvo/x.py": "# see spec" + "/x.md"}, {"corvo/x.py": "# see docs/x.md"}),
    (
        english,
        {ROOM: '"""Who waits too long gets an error."""'},
        {ROOM: '"""A request that waits too long gets an error."""'},
    ),
    (english, {ROOM: "# Whoever calls it waits."}, {ROOM: "# The caller waits."}),
    (
        english,
        {ROOM: '"""What the leader said."""'},
        {ROOM: '"""The HTTP response of the leader."""'},
    ),
    (
        english,
        {ROOM: "# The address is looked\n# up anew."},
        {ROOM: "# The address is resolved\n# again."},
    ),
    (english, {ROOM: "x = 1  # sent bit by bit"}, {ROOM: "x = 1  # sent in parts"}),
    (
        english,
        {ROOM: 'help="Stop after so many events."'},
        {ROOM: 'help="Stop after this number of events."'},
    ),
    (english, {ROOM: '"""The peer is told so."""'}, {ROOM: '"""The peer gets the reason."""'}),
    (
        english,
        {ROOM: 'raise Error(f"node {name} has come")'},
        {ROOM: 'raise Error(f"node {name} has joined")'},
    ),
    (
        english,
        {ROOM: '"""The entries behind the watermark."""'},
        {ROOM: '"""The entries after the watermark."""'},
    ),
    (
        english,
        {ROOM: '"""It works beside it."""'},
        {ROOM: '"""It works in parallel with it."""'},
    ),
    (english, {ROOM: "# the behaviour"}, {ROOM: "# the behavior"}),
    (
        english,
        {"corvo/platform/x.pyx": '"""Nobody waits."""'},
        {"corvo/platform/x.pyx": '"""No caller waits."""'},
    ),
    (docstrings, {"corvo/x.py": "x = 1"}, {"corvo/x.py": '"""It."""'}),
    (
        docstrings,
        {"corvo/x.py": '"""It."""\ndef f(): ...'},
        {"corvo/x.py": '"""It."""\ndef _f(): ...'},
    ),
    (docstrings, {FAST + "pyx": "x = 1"}, {FAST + "pyx": '# cython: x\n"""It."""'}),
    (
        package_maps,
        {"corvo/x/__init__.py": '"""It."""', "corvo/x/y.py": ""},
        {"corvo/x/__init__.py": '"""It.\n\ny  it\n"""', "corvo/x/y.py": ""},
    ),
    (
        package_maps,
        {"corvo/x/__init__.py": '"""It.\n\ny  it\n"""'},
        {"corvo/x/__init__.py": '"""It."""'},
    ),
    (
        package_maps,
        {"corvo/x/__init__.py": '"""It."""', "corvo/x/z/__init__.py": '"""It."""'},
        {"corvo/x/__init__.py": '"""It.\n\nz/  it\n"""', "corvo/x/z/__init__.py": '"""It."""'},
    ),
    (
        apply_functions,
        {"corvo/ops.py": OP, OPS_OF_JOBS: "APPLY = {ops.RETRY_JOB.number: retry}"},
        {"corvo/ops.py": OP, OPS_OF_JOBS: "APPLY = {ops.RETRY_JOB.number: retry_job}"},
    ),
]


@functools.cache
def repository() -> list[Source]:
    """All of our sources, build products left out."""
    paths = [ROOT / "setup.py"]
    for folder in ("corvo", "sdk", "tests", "tools", "bench"):
        for suffix in ("py", "pyi", "pyx", "pxd"):
            paths += (ROOT / folder).rglob(f"*.{suffix}")
    return [Source(str(p.relative_to(ROOT)), p.read_text("utf-8")) for p in sorted(paths)]


@pytest.mark.parametrize(
    "rule", dict.fromkeys(rule for rule, _, _ in RULES), ids=lambda r: r.__name__
)
def test_repository_keeps(rule: Rule) -> None:
    complaints = list(rule(repository()))
    assert not complaints, "\n" + "\n".join(complaints)


@pytest.mark.parametrize(("rule", "bad", "good"), RULES, ids=lambda v: getattr(v, "__name__", ""))
def test_rule_can_fail(rule: Rule, bad: Files, good: Files) -> None:
    assert list(rule([Source(path, text) for path, text in bad.items()]))
    assert list(rule([Source(path, text) for path, text in good.items()])) == []


def test_import_linter_knows_the_same_layers() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contract = config["tool"]["importlinter"]["contracts"][0]
    rows = [re.findall(r"corvo[\w.]*", row) for row in contract["layers"]]
    theirs = {name: len(rows) - 1 - place for place, row in enumerate(rows) for name in row}
    assert theirs == {name: layer for name, layer in LAYERS.items() if name != "corvo"}

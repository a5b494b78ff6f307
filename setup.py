"""Build of the compiled parts.

Two compilers share the work (docs/decisions/0004-two-compilers.md): Cython takes `corvo/_fast`,
where bytes are handled, and the modules on the way of a write, whose C types are in a .pxd next
to them; mypyc takes the consensus core. docs/decisions/0007-quick-build.md says what keeps the
build short. Environment variables:

CORVO_PURE=1   build nothing; the same sources then run interpreted and no C compiler is needed
CORVO_DEBUG=1  keep symbols, do not optimize, switch on Cython's bounds and None checks
"""

import multiprocessing
import os
import runpy
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from distutils.command import build_ext as one_compiler
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

PURE = os.environ.get("CORVO_PURE") == "1"
DEBUG = os.environ.get("CORVO_DEBUG") == "1"
FLAVOR = "pure" if PURE else "debug" if DEBUG else "release"

# Packages that the server imports. Only interpreted sources import Cython, for names of C types.
RUN_TIME = [
    "aiosqlite>=0.22,<0.23",
    "click>=8.1,<9",
    "cronsim>=2.8,<3",
    *(["cython>=3.2,<3.4"] if PURE else []),
    "google-crc32c>=1.5,<2",
    "httptools>=0.9,<0.10",
    "jsonschema-rs>=0.61,<0.62",
    "lmdb>=3,<4",
    "msgpack>=1.2,<2",
    "msgspec>=0.22,<0.23",
    "prometheus-client>=0.26,<0.27",
    "pyroaring>=1.2,<2",
    "rich>=14,<16",
    "tzdata>=2026.1",
    "uvloop>=0.23,<0.24",
]

ROOT = Path(__file__).parent
CORES = len(os.sched_getaffinity(0))


def sources(*patterns: str) -> list[str]:
    """Source files below the root that match, sorted, package markers left out."""
    found: set[str] = set()
    for pattern in patterns:
        paths = {str(path.relative_to(ROOT)) for path in ROOT.glob(pattern)}
        if not paths:
            raise FileNotFoundError(f"setup.py lists {pattern}, which matches no file")
        found |= paths
    return sorted(path for path in found if not path.endswith("__init__.py"))


# Bytes, buffers and C integers: what is in bounds and what is None is checked by hand.
BYTES = sources("corvo/_fast/**/*.py", "corvo/_fast/**/*.pyx")

# Interpreted, although their package is compiled: operators call them, one request at a time.
RARE = sources(
    "corvo/fsm/ops/actions.py",
    "corvo/fsm/ops/queues.py",
    "corvo/fsm/queries/pages.py",
    "corvo/fsm/ops/schedules.py",
    "corvo/fsm/ops/bulk_undo.py",
)

# What each request and each log entry goes through, with Python's own checks. The rest stays
# interpreted, because it declares msgspec Structs, runs rarely, or only waits.
DECISIONS = [
    path
    for path in sources(
        "corvo/engine/validate.py",
        "corvo/platform/clock.py",
        "corvo/consensus/log.py",
        "corvo/consensus/single_log.py",
        "corvo/consensus/wal/wal.py",
        "corvo/events.py",
        "corvo/engine/flusher.py",
        "corvo/fsm/**/*.py",
        "corvo/platform/ids.py",
        "corvo/storage/records/*.py",
        "corvo/mirror/facets.py",
        "corvo/mirror/sync.py",
        "corvo/mirror/rows.py",
        "corvo/mirror/counters.py",
        "corvo/model.py",
        "corvo/net/rpc/codecs.py",
        "corvo/net/api/responses.py",
        "corvo/net/api/handlers/enqueue.py",
        "corvo/net/api/handlers/worker.py",
        "corvo/net/rpc/worker_session.py",
        "corvo/net/rpc/worker_streams.py",
        "corvo/net/http/long_poll.py",
        "corvo/net/http/router.py",
        "corvo/net/rpc/wire.py",
        "corvo/net/http/server.py",
        "corvo/net/rpc/worker_service.py",
        "corvo/ops.py",
        "corvo/engine/pipeline.py",
        "corvo/engine/service.py",
        "corvo/engine/caller.py",
        "corvo/engine/commands/enqueue.py",
        "corvo/engine/commands/work.py",
        "corvo/engine/feed.py",
        "corvo/engine/fetches.py",
        "corvo/engine/parked.py",
        "corvo/engine/results.py",
    )
    if path not in RARE
]

# Compiled by mypyc, in groups that are rebuilt as a whole when one of their files changes.
MYPYC = {"corvo.raft": sources("corvo/consensus/raft/*.py")}

# How much the C compiler optimizes. -O2 takes half as long again as -O1, and -O3 twice as long, so
# they are for the modules where they save most instructions of a request for their time.
LEVEL = "-O1"
LEVELS = {
    # Loops over bytes, in small modules: a twentieth of all instructions of an enqueue.
    "-O3": sources(
        "corvo/_fast/codec/layouts.py",
        "corvo/_fast/codec/fields.py",
        "corvo/_fast/http/http1_rules.py",
        "corvo/_fast/http/head.py",
        "corvo/_fast/http/http1.py",
        "corvo/_fast/codec/keys.py",
        "corvo/_fast/metrics.py",
        "corvo/_fast/codec/fast_json.py",
        "corvo/_fast/codec/fast_proto.py",
        # Calls of classes and reads of lists, of which -O2 leaves the checks out of line.
        "corvo/_fast/http/head_cache.py",
        "corvo/_fast/http/exchange.py",
        "corvo/fsm/state/state.py",
        "corvo/fsm/ops/jobs.py",
        "corvo/net/http/router.py",
        "corvo/net/api/handlers/enqueue.py",
        "corvo/net/api/handlers/worker.py",
        "corvo/engine/pipeline.py",
    ),
    # The rest of the way of a write, as far as inlining matters there.
    "-O2": sources(
        "corvo/_fast/batcher.py",
        "corvo/_fast/http/monotonic.py",
        "corvo/model.py",
    ),
}

# Nobody replaces our functions by preloading, and calls need not go through a jump table: 5 % of
# the processor time of a request.
FLAGS = ["-g"] if DEBUG else ["-g0", "-fno-semantic-interposition", "-fno-plt"]
# C compilers warn about what generated code does not use, and about None taken for another type.
# A function that Cython forgets to declare would only be missed when the module is imported.
WARNINGS = [
    "-Wno-unused-function",
    "-Wno-unreachable-code",
    "-Wno-array-bounds",
    "-Wno-stringop-overflow",
    "-Wno-stringop-overread",
    "-Werror=implicit-function-declaration",
]
# Code that runs once, when a module is imported, is not optimized.
MACROS = [("CYTHON_SMALL_CODE", '__attribute__((cold, optimize("O0")))')]

# Functions that Cython would otherwise write into every module.
SHARED = "corvo._cyutility"
GENERATED = f"build/{FLAVOR}/cython"


def flags(path: str) -> list[str]:
    """Options of the C compiler for the module of a source file."""
    level = next((level for level, paths in LEVELS.items() if path in paths), LEVEL)
    return ["-O0" if DEBUG else level, *FLAGS, *WARNINGS]


def cython_extensions() -> list[Extension]:
    """One extension module for each Cython file, and one for what they share."""
    paths = [f"{SHARED.replace('.', '/')}.c", *BYTES, *DECISIONS]
    return [
        Extension(
            path.rpartition(".")[0].replace("/", "."),
            [path],
            define_macros=MACROS,
            extra_compile_args=flags(path),
        )
        for path in paths
    ]


def cython_options(name: str) -> dict[str, Any]:
    """Arguments of `cythonize`. Outside of `_fast`, bounds, None and division are checked as in
    Python, and C types come from the .pxd alone."""
    checked = not name.startswith("corvo._fast.")
    return {
        "build_dir": GENERATED,
        "quiet": True,
        "shared_utility_qualified_name": SHARED,
        "compiler_directives": {
            "language_level": 3,
            "annotation_typing": not checked,
            "boundscheck": checked or DEBUG,
            "wraparound": checked or DEBUG,
            "nonecheck": checked or DEBUG,
            "initializedcheck": checked or DEBUG,
            "cdivision": not checked,
            "auto_pickle": False,
            # Signatures that could be read at run time: a fifth of the C code, and nothing does.
            "binding": False,
            "embedsignature": False,
        },
    }


def declarations_changed() -> bool:
    """Whether a .pxd or this file is newer than C code made before: then all of it is generated
    again, because Cython does not see what is affected where declarations need each other in a
    circle."""
    made = [path.stat().st_mtime for path in ROOT.glob(f"{GENERATED}/**/*.c")]
    declared = [path.stat().st_mtime for path in (*ROOT.glob("corvo/**/*.pxd"), ROOT / "setup.py")]
    return bool(made) and min(made) < max(declared)


def mypyc_extensions() -> list[Extension]:
    """The groups of MYPYC, each one extension module and a small one for each file that leads to
    it. `mypycify` fills them in during the build."""
    extensions = []
    for group, paths in MYPYC.items():
        names = [path.removesuffix(".py").replace("/", ".") for path in paths]
        extensions += [Extension(name, paths) for name in (f"{group}__mypyc", *names)]
    return extensions


def mypyc_options() -> dict[str, Any]:
    """Arguments of `mypycify`."""
    return {
        "paths": [path for paths in MYPYC.values() for path in paths],
        "separate": [(paths, group) for group, paths in MYPYC.items()],
        "opt_level": "0" if DEBUG else "2",
        "debug_level": "1" if DEBUG else "0",
        "target_dir": f"build/{FLAVOR}/mypyc",
    }


def cost(extension: Extension) -> int:
    """How long it takes to compile a module, by the size of its source."""
    if extension.name.endswith("__mypyc"):
        return sys.maxsize
    if len(extension.sources) > 1:
        return 0  # the code is in the group
    path = ROOT / extension.sources[0]
    return path.stat().st_size if path.exists() else sys.maxsize  # what is shared is generated


def remove_leftovers(paths: Iterable[Path], wanted: set[Path]) -> None:
    """Delete files of an earlier build that this build would not make. Python prefers `x.so` to
    `x.py`, so the compiled module of a file that was renamed would run instead of the source."""
    for path in paths:
        if path.resolve() not in wanted:
            path.unlink()


class Progress:
    """Counts finished modules: one line that is rewritten on a terminal, else a line for ten."""

    def __init__(self, total: int) -> None:
        self._done, self._total = 0, total

    def add(self) -> None:
        """Report one more finished module."""
        self._done += 1
        text = f"compiled {self._done} of {self._total} modules"
        is_last = self._done == self._total
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{text}\n" if is_last else f"\r{text}")
        elif self._done % 10 == 0 or is_last:
            sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


class BuildExt(build_ext):
    """Compiles on all cores, the largest modules first. Each core generates the C code of a module
    and compiles it, so that none waits for the others between the two steps."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = self.parallel or CORES

    def run(self) -> None:
        super().run()
        built = {Path(self.build_lib, self.get_ext_filename(e.name)) for e in self.extensions}
        remove_leftovers(Path(self.build_lib).rglob("*.so"), {path.resolve() for path in built})
        if self.inplace:
            built = {Path(self.get_ext_fullpath(e.name)) for e in self.extensions}
            remove_leftovers(
                [*ROOT.glob("*.so"), *ROOT.glob("corvo/**/*.so")],
                {path.resolve() for path in built},
            )

    def build_extensions(self) -> None:
        from Cython.Build import cythonize
        from mypyc.build import mypycify

        forced = declarations_changed()
        progress = Progress(len(self.extensions))
        fork = multiprocessing.get_context("fork")
        with ProcessPoolExecutor(self.parallel, fork) as generators:
            # The first submission forks all processes, while there are no threads yet.
            mypyc = generators.submit(mypycify, **mypyc_options())

            def build(extension: Extension) -> None:
                if len(extension.sources) > 1:
                    made = {ext.name: ext for ext in mypyc.result()}[extension.name]
                    extension.include_dirs = made.include_dirs
                    extension.depends = made.depends
                    extension.extra_compile_args = [*made.extra_compile_args, *FLAGS]
                else:
                    options = cython_options(extension.name)
                    task = generators.submit(cythonize, [extension], force=forced, **options)
                    (made,) = task.result()
                extension.sources = made.sources
                one_compiler.build_ext.build_extension(self, extension)

            with ThreadPoolExecutor(self.parallel) as compilers:
                ordered = sorted(self.extensions, key=cost, reverse=True)
                tasks = [compilers.submit(build, extension) for extension in ordered]
                try:
                    for task in as_completed(tasks):
                        task.result()
                        progress.add()
                except BaseException:
                    compilers.shutdown(cancel_futures=True)
                    raise


class BuildPy(build_py):
    """Copies the sources, and leaves none in the build folder that were removed since."""

    def run(self) -> None:
        super().run()
        copied = {Path(path).resolve() for path in self.get_outputs(include_bytecode=False)}
        there = [path for path in Path(self.build_lib).rglob("*") if path.suffix != ".so"]
        remove_leftovers([path for path in there if path.is_file()], copied)


def main() -> None:
    """Build by the commands of setuptools."""
    if not PURE:
        runpy.run_path(str(ROOT / "tools/build_needs.py"))["check"]("compiler")
    setup(
        install_requires=RUN_TIME,
        ext_modules=[] if PURE else [*cython_extensions(), *mypyc_extensions()],
        cmdclass={"build_ext": BuildExt, "build_py": BuildPy},
        # Each flavor has its own folder, so that none picks up object files of another.
        options={"build": {"build_base": f"build/{FLAVOR}"}},
    )


if __name__ == "__main__":
    main()

"""Build of the compiled parts.

Two compilers share the work (docs/decisions/0004-two-compilers.md): Cython takes `corvo/_fast`,
where bytes are handled, and the modules on the way of a write, whose C types are in a .pxd beside
them; mypyc takes the consensus core. Environment variables:

CORVO_PURE=1   build nothing; the same sources then run interpreted and no C compiler is needed
CORVO_DEBUG=1  keep symbols, do not optimise, switch on Cython's bounds and None checks
"""

import os
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

PURE = os.environ.get("CORVO_PURE") == "1"
DEBUG = os.environ.get("CORVO_DEBUG") == "1"
FLAVOUR = "pure" if PURE else "debug" if DEBUG else "release"

# Nobody replaces our functions by preloading, and calls need not go through a jump table: 5 % of
# the processor time of a request.
FLAGS = ["-O0", "-g"] if DEBUG else ["-O3", "-g0", "-fno-semantic-interposition", "-fno-plt"]

ROOT = Path(__file__).parent
CORES = os.cpu_count() or 1


def sources(*patterns: str) -> list[str]:
    """Source files below the root that match, sorted, package markers left out."""
    found = {str(path.relative_to(ROOT)) for pattern in patterns for path in ROOT.glob(pattern)}
    return sorted(path for path in found if not path.endswith("__init__.py"))


# Bytes, buffers and C integers: what is in bounds and what is None is checked by hand.
BYTES = sources("corvo/_fast/**/*.py", "corvo/_fast/*.pyx")

# What each request and each log entry goes through, with Python's own checks. The rest stays
# interpreted, because it declares msgspec Structs, runs rarely, or only waits.
DECISIONS = sources(
    "corvo/engine/validate.py",
    "corvo/platform/clock.py",
    "corvo/consensus/wal/inline_thread.py",
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
    "corvo/net/api/handlers/wait.py",
    "corvo/net/api/handlers/enqueue.py",
    "corvo/net/api/handlers/worker.py",
    "corvo/net/rpc/worker_session.py",
    "corvo/net/rpc/worker_streams.py",
    "corvo/net/http/router.py",
    "corvo/net/rpc/wire.py",
    "corvo/net/http/server.py",
    "corvo/net/rpc/worker_service.py",
    "corvo/ops.py",
    "corvo/engine/pipeline.py",
    "corvo/engine/service.py",
    "corvo/engine/fetches.py",
)

# Compiled by mypyc, in groups that are rebuilt as a whole when one of their files changes.
MYPYC = {"corvo.raft": sources("corvo/consensus/raft/*.py")}

# C compilers warn about what generated code does not use, and about None taken for an integer.
WARNINGS = ["-Wno-unused-function", "-Wno-unreachable-code", "-Wno-array-bounds"]


def declarations_changed() -> bool:
    """Whether a .pxd is newer than C code made before: then all is made anew, because Cython does
    not see who is affected where declarations need each other in a circle."""
    made = [path.stat().st_mtime for path in ROOT.glob(f"build/{FLAVOUR}/cython/**/*.c")]
    declared = max(path.stat().st_mtime for path in ROOT.glob("corvo/**/*.pxd"))
    return bool(made) and min(made) < declared


def cython_extensions(paths: list[str], checked: bool) -> list[Extension]:
    """One extension module for each file; `checked` keeps bounds, None and division as in Python,
    and takes C types from the .pxd alone."""
    from Cython.Build import cythonize

    return cythonize(
        [
            Extension(
                path.rpartition(".")[0].replace("/", "."),
                [path],
                extra_compile_args=[*FLAGS, *WARNINGS],
            )
            for path in paths
        ],
        build_dir=f"build/{FLAVOUR}/cython",
        force=declarations_changed(),
        nthreads=CORES,
        compiler_directives={
            "language_level": 3,
            "annotation_typing": not checked,
            "boundscheck": checked or DEBUG,
            "wraparound": checked or DEBUG,
            "nonecheck": checked or DEBUG,
            "initializedcheck": checked or DEBUG,
            "cdivision": not checked,
            "auto_pickle": False,
            "embedsignature": True,
        },
        quiet=True,
    )


def mypyc_extensions() -> list[Extension]:
    """The groups of MYPYC, each one extension module plus a small shim for each file."""
    from mypyc.build import mypycify

    groups = [(files, name) for name, files in MYPYC.items() if files]
    extensions = mypycify(
        [path for files, _ in groups for path in files],
        separate=groups,
        opt_level="0" if DEBUG else "3",
        debug_level="1" if DEBUG else "0",
        target_dir=f"build/{FLAVOUR}/mypyc",
    )
    for extension in extensions:
        extension.extra_compile_args += FLAGS
    return extensions


def extensions() -> list[Extension]:
    """Everything that is compiled."""
    cython = cython_extensions(BYTES, checked=False) + cython_extensions(DECISIONS, checked=True)
    return cython + mypyc_extensions()


class BuildExt(build_ext):
    """Compiles on all cores, and leaves no compiled module behind that it would not build now.

    Python prefers `x.so` to `x.py`, so a left-over of a file that was renamed, or is no longer
    compiled, would silently run instead of the source.
    """

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = self.parallel or CORES

    def run(self) -> None:
        super().run()
        if self.inplace:
            wanted = {Path(self.get_ext_fullpath(ext.name)).resolve() for ext in self.extensions}
            for path in [*ROOT.glob("*.so"), *ROOT.glob("corvo/**/*.so")]:
                if path.resolve() not in wanted:
                    path.unlink()


if __name__ == "__main__":
    setup(
        ext_modules=[] if PURE else extensions(),
        cmdclass={"build_ext": BuildExt},
        # Each flavour has its own folder, so that none picks up object files of another.
        options={"build": {"build_base": f"build/{FLAVOUR}"}},
    )

"""Build of the compiled parts.

Two compilers share the work (design: "two speeds, one meaning"): Cython takes `corvo/_fast`,
where bytes are handled, and mypyc takes the modules that decide. `CORVO_PURE=1` builds neither:
the same sources then run interpreted. `CORVO_DEBUG=1` keeps symbols and switches on Cython's
bounds and None checks.
"""

import os
from pathlib import Path

from setuptools import Extension, setup

PURE = os.environ.get("CORVO_PURE") == "1"
DEBUG = os.environ.get("CORVO_DEBUG") == "1"

ROOT = Path(__file__).parent

# Compiled by mypyc. Everything else in the package stays interpreted, because it either declares
# msgspec Structs (mypyc drops their class keywords), or is a shell around sockets, files and the
# event loop where compiling gains nothing.
MYPYC = [
    path
    for path in (
        "corvo/model.py",
        "corvo/ops.py",
        "corvo/feed.py",
        "corvo/kv/documents.py",
        "corvo/kv/index.py",
    )
    if (ROOT / path).exists()
] + sorted(
    str(p.relative_to(ROOT))
    for p in (ROOT / "corvo/fsm").glob("*.py")
    if p.name not in {"__init__.py"}
)


def cython_modules() -> list[Extension]:
    sources = sorted((ROOT / "corvo/_fast").glob("*.py")) + sorted(
        (ROOT / "corvo/_fast").glob("*.pyx")
    )
    flags = ["-O0", "-g"] if DEBUG else ["-O2", "-g1"]
    return [
        Extension(
            f"corvo._fast.{path.stem}",
            [str(path.relative_to(ROOT))],
            extra_compile_args=[*flags, "-Wno-unused-function", "-Wno-unreachable-code"],
        )
        for path in sources
        if path.name != "__init__.py"
    ]


def extensions() -> list[Extension]:
    from Cython.Build import cythonize
    from mypyc.build import mypycify

    built = cythonize(
        cython_modules(),
        compiler_directives={
            "language_level": 3,
            "boundscheck": DEBUG,
            "wraparound": DEBUG,
            "nonecheck": DEBUG,
            "initializedcheck": DEBUG,
            "cdivision": True,
            "embedsignature": True,
            "freethreading_compatible": False,
        },
        quiet=True,
    )
    if MYPYC:
        built += mypycify(MYPYC, opt_level="0" if DEBUG else "2", debug_level="1")
    return built


setup(ext_modules=[] if PURE else extensions())

"""Looks for what a build needs before anything is downloaded or compiled. `make` runs it with the
Python that it makes the virtual environment from, setup.py with the one that it builds for. It
imports the standard library only.
"""

import importlib.util
import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

PYTHON = (3, 11)
PACKAGES = """\
  Debian, Ubuntu:  apt install gcc python3-dev python3-venv
  Fedora, RHEL:    dnf install gcc python3-devel
  Alpine:          apk add gcc musl-dev linux-headers python3-dev
  Arch:            pacman -S gcc python
"""
OTHERWISE = "Or install without a compiler, interpreted and slower: see README.md, Install."


def missing_venv() -> str:
    """Describe what a virtual environment lacks; empty if it lacks nothing."""
    if sys.version_info < PYTHON:
        return f"Python {'.'.join(map(str, PYTHON))} or newer is needed, this is {sys.version}"
    if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
        return f"this Python cannot make virtual environments: {sys.executable}"
    return ""


def missing_compiler() -> str:
    """Describe what extension modules lack; empty if they lack nothing."""
    command = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    include = sysconfig.get_path("include")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.c")
        source.write_text("#include <Python.h>\nint probe(void) { return PY_MAJOR_VERSION; }\n")
        arguments = ["-shared", "-fPIC", f"-I{include}", "-o", f"{folder}/probe.so", str(source)]
        try:
            done = subprocess.run([*command, *arguments], capture_output=True, text=True)
        except FileNotFoundError:
            return f"no C compiler found (`{command[0]}` is not on PATH)"
    if done.returncode == 0:
        return ""
    if not Path(include, "Python.h").exists():
        return f"the headers of Python are missing ({include}/Python.h)"
    return f"the C compiler fails (`{shlex.join(command)}`):\n{done.stderr.strip()}"


NEEDS = {"compiler": missing_compiler, "venv": missing_venv}


def check(need: str) -> None:
    """Exit with a message if a need of the table is not met."""
    if problem := NEEDS[need]():
        sys.exit(f"corvo cannot be built: {problem}\n{PACKAGES}{OTHERWISE}")


if __name__ == "__main__":
    check(sys.argv[1])

"""The wheel installs and serves where there is neither a compiler nor Cython."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from lib.harness import ServerProcess

ROOT = Path(__file__).parents[2]
PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check")
BUILD = ("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir")
INSTALL = ("install", "--only-binary", ":all:", "--constraint", str(ROOT / "constraints.txt"))
# Prints where compiled modules are loaded from, once nothing can import what built them.
ORIGINS = """
import importlib.util, sys
assert not [name for name in ("Cython", "mypyc") if importlib.util.find_spec(name)]
import corvo._fast.metrics, corvo.consensus.raft.core, corvo.model
for name in ("corvo._fast.metrics", "corvo.consensus.raft.core", "corvo.model"):
    print(sys.modules[name].__file__)
"""


def run(*command: str | Path, path: Path | None = None) -> str:
    """The output of a command; with `path` that folder is all of PATH."""
    environment = {"PATH": str(path)} if path else None
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.full
@pytest.mark.timeout(900)
def test_wheel_serves_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(sys.executable, *PIP, *BUILD, tmp_path, ROOT)
    (wheel,) = tmp_path.glob("corvo-*.whl")
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    programs = tmp_path / "venv/bin"
    assert not any(shutil.which(name, path=str(programs)) for name in ("cc", "gcc", "clang"))
    run(programs / "python", *PIP, *INSTALL, wheel, path=programs)
    origins = run(programs / "python", "-I", "-c", ORIGINS, path=programs).split()
    assert [Path(origin).suffix for origin in origins] == [".so"] * 3
    assert all(origin.startswith(str(tmp_path)) for origin in origins)

    monkeypatch.setattr(sys, "executable", str(programs / "python"))
    server = ServerProcess(tmp_path / "data")
    server.environment = {"PATH": str(programs), "PYTHONPATH": ""}
    server.start()
    job = run(programs / "corvo", "enqueue", "emails", "{}", "--server", server.url, path=programs)
    assert job.startswith("Job enqueued: job_")
    assert server.stop() == 0

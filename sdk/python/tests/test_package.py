"""The distribution alone: what it brings, and that it needs no compiler and no server."""

import subprocess
import sys
import zipfile
from pathlib import Path

import h11
import pytest

SDK = Path(__file__).parents[1]
# Everything except what is optional or part of pytest.
IMPORTS = """
import importlib, pkgutil, sys
import corvo_client
for module in pkgutil.iter_modules(corvo_client.__path__):
    if module.name not in ("pytest_plugin", "__main__"):
        importlib.import_module("corvo_client." + module.name)
assert corvo_client.__version__
foreign = {name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names)
print(*sorted(name for name in foreign if not name.startswith("_")))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    subprocess.run(["cp", "-r", str(SDK), str(source)], check=True)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "wheel"]
    pip += ["--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(source)]
    subprocess.run(pip, check=True)
    (made,) = folder.glob("*.whl")
    return made


def test_the_wheel(wheel: Path) -> None:
    assert wheel.name == "corvo_client-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = [name for name in names if name.endswith("/METADATA")]
        needs = [
            line.partition(": ")[2]
            for line in archive.read(metadata).decode().splitlines()
            if line.startswith("Requires-Dist") and "extra ==" not in line
        ]
    assert [need.partition("<")[0].partition(">")[0] for need in needs] == ["h11"]
    assert "corvo_client/py.typed" in names and not any("tests" in name for name in names)


def test_it_works_with_h11_alone(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    (tmp_path / "h11").symlink_to(Path(h11.__file__).parent)
    command = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path[:0] = [{str(tmp_path)!r}]"]
    command[-1] += "\n" + IMPORTS
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) <= {"corvo_client", "h11", "sitecustomize"}


def test_the_import_is_quick() -> None:
    """Nothing that a command line would wait for is imported for the client alone."""
    code = "import sys; from corvo_client.client import Client; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(SDK)},
    )
    assert done.returncode == 0, done.stderr
    assert not {"msgspec", "pydantic", "opentelemetry", "pytest"} & set(done.stdout.split())

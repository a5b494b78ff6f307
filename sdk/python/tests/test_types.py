"""Type checkers accept right user code, and find every mistake of wrong user code."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SDK = HERE.parent
ROOT = SDK.parents[1]
RIGHT, WRONG = HERE / "types" / "right.py", HERE / "types" / "wrong.py"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(SDK), "MYPYPATH": str(SDK)}


def mistakes() -> set[int]:
    lines = WRONG.read_text().splitlines()
    return {number for number, line in enumerate(lines, 1) if line.endswith("# wrong")}


def run(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, cwd=SDK)
    return done.stdout


def test_mypy(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", tmp_path, RIGHT, WRONG]
    found = run(*command, "--config-file", "")
    errors = re.findall(r"(\w+)\.py:(\d+): error", found)
    assert {int(line) for file, line in errors if file == "wrong"} == mistakes(), found
    assert {file for file, _ in errors} == {"wrong"}, found


@pytest.mark.full
@pytest.mark.timeout(600)
def test_pyright(tmp_path: Path) -> None:
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install")
    packages = ("pyright", "h11", "msgspec")
    run(*pip, "--target", tmp_path, "--constraint", ROOT / "constraints.txt", *packages)
    ENVIRONMENT["PYTHONPATH"] = f"{SDK}:{tmp_path}"
    config = {"typeCheckingMode": "strict", "extraPaths": [str(SDK), str(tmp_path)]}
    code = tmp_path / "code"
    code.mkdir()
    for file in (RIGHT, WRONG):
        shutil.copy(file, code)
    (code / "pyrightconfig.json").write_text(json.dumps(config))
    report = json.loads(run(sys.executable, "-m", "pyright", "--outputjson", "-p", code))
    errors = [e for e in report["generalDiagnostics"] if e["severity"] == "error"]
    found = {(Path(e["file"]).name, e["range"]["start"]["line"] + 1) for e in errors}
    assert found == {("wrong.py", line) for line in mistakes()}, report

"""docs/states.md is what the transition table says."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_diagram_is_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "tools" / "states_diagram.py"), "--check"]
    done = subprocess.run(command, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, check=False)
    assert done.returncode == 0, "run tools/states_diagram.py"

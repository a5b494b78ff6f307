"""Write docs/states.md, the diagram of the transition table; with --check only compare."""

import sys
from pathlib import Path

from corvo.fsm.states import NOWHERE, TABLE, TRIGGERS
from corvo.model import STATES

TARGET = Path(__file__).parent.parent / "docs" / "states.md"

INTRO = """\
# The life of a job

`tools/states_diagram.py` generates this page from `corvo/fsm/states.py`; do not edit it. A trigger
that the table does not allow is rejected with 409 `INVALID_STATE`; the error names the state.
"""


def name(state: int, diagram: bool = False) -> str:
    """The name of a state in the diagram or in the table."""
    if state == NOWHERE:
        return "[*]" if diagram else "(nowhere)"
    return STATES[state]


def render() -> str:
    """The document: a diagram of the changes of state, and a table of all transitions."""
    arrows: dict[tuple[int, int], list[str]] = {}
    for (state, trigger), target in TABLE.items():
        arrows.setdefault((state, target), []).append(TRIGGERS[trigger])
    lines = [INTRO, "```mermaid", "stateDiagram-v2"]
    for (state, target), triggers in arrows.items():
        if target != NOWHERE and state != target:
            label = ", ".join(triggers)
            lines.append(f"    {name(state, True)} --> {name(target, True)}: {label}")
    lines += ["```", "", "| from | trigger | to |", "| --- | --- | --- |"]
    for (state, trigger), target in TABLE.items():
        lines.append(f"| {name(state)} | {TRIGGERS[trigger]} | {name(target)} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write the document, or return whether it is up to date as exit status."""
    if "--check" in sys.argv[1:]:
        return int(not TARGET.exists() or TARGET.read_text() != render())
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(render())
    return 0


if __name__ == "__main__":
    sys.exit(main())

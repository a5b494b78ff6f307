"""Write docs/states.md, the picture of the transition table; with --check only compare."""

import sys
from pathlib import Path

from corvo.fsm.states import NOWHERE, TABLE, TRIGGERS
from corvo.model import STATES

TARGET = Path(__file__).parent.parent / "docs" / "states.md"

INTRO = """\
# The life of a job

Generated from `corvo/fsm/states.py` by `tools/states_diagram.py`; do not edit. What is not in the
table is refused with 409 `INVALID_STATE`, which names the state.
"""


def name(state: int, diagram: bool = False) -> str:
    """A state as the diagram or the table calls it."""
    if state == NOWHERE:
        return "[*]" if diagram else "(nowhere)"
    return STATES[state]


def render() -> str:
    """The document: a diagram of the moves, and the table with those that stay in place."""
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
    """Write the document, or say whether it is up to date."""
    if "--check" in sys.argv[1:]:
        return int(not TARGET.exists() or TARGET.read_text() != render())
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(render())
    return 0


if __name__ == "__main__":
    sys.exit(main())

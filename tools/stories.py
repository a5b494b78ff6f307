"""Records the stories of tests/scripts again, and lists those that have changed.

    PYTHONPATH=tests python tools/stories.py

Read the difference before it is committed: each changed line is a change in what clusters do.
"""

import sys

from scripts.story import record, stories


def main() -> int:
    for path in stories():
        text = path.read_text("utf-8")
        recorded = record(text)
        if recorded != text:
            path.write_text(recorded, "utf-8")
            print(f"{path.name} has changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Write the tables of the documents that the program prints: settings, refusals, failpoints.

python tools/printed_tables.py
"""

from pathlib import Path

from corvo import config
from corvo._fast.http.abuse_counters import REASONS
from corvo.platform import failpoints

DOCS = Path(__file__).parent.parent / "docs"


def refusals() -> str:
    """The reasons of refused input, as a Markdown table."""
    rows = [f"| `{reason}` | {text[0].upper()}{text[1:]}. |\n" for reason, text in REASONS.items()]
    return "".join(["| reason | what happened |\n", "| --- | --- |\n", *rows])


def replaced(page: str, table: str) -> str:
    """The page with this table in the place of the one that has the same head."""
    head = table.partition("\n")[0]
    before, _, rest = page.partition(f"{head}\n")
    assert rest, head
    lines = rest.splitlines(keepends=True)
    length = next((n for n, line in enumerate(lines) if line[0] != "|"), len(lines))
    return before + table + "".join(lines[length:])


def main() -> None:
    """Write all of them."""
    for name, tables in (
        ("operate.md", (config.options_table(), refusals())),
        ("testing.md", (failpoints.table(),)),
    ):
        page = (DOCS / name).read_text()
        for table in tables:
            page = replaced(page, table)
        (DOCS / name).write_text(page)


if __name__ == "__main__":
    main()

"""What the commands print. All data of a server passes through here on its way to the screen.

A job's payload, a queue name or an error text is written by strangers: control characters in it
could move the cursor, rewrite lines or turn text around. They are shown as escapes, in plain text
as `\\x1b`, in JSON as `\\u001b` (which is the same JSON value).
"""

import itertools
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click
import msgspec

# C0 and C1 controls, DEL, and the invisible marks that change the direction of text.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
_UNSAFE_IN_JSON = re.compile(_UNSAFE.pattern.replace("\x00-\x1f", "\x00-\x09\x0b-\x1f"))
NAME_WIDTH_MIN = 8
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def _escape(found: re.Match[str]) -> str:
    mark = found.group()
    return _NAMED.get(mark) or (f"\\x{ord(mark):02x}" if ord(mark) < 256 else _json_escape(found))


def _json_escape(found: re.Match[str]) -> str:
    return f"\\u{ord(found.group()):04x}"


def visible(text: str) -> str:
    """The text on one line, with everything a terminal would obey shown as an escape."""
    return _UNSAFE.sub(_escape, text)


def json_text(raw: bytes) -> str:
    """A JSON text indented by two spaces; numbers, key order and repeated keys stay as sent."""
    pretty = msgspec.json.format(raw, indent=2).decode("utf-8", "backslashreplace")
    return _UNSAFE_IN_JSON.sub(_json_escape, pretty)


def json_line(raw: bytes) -> str:
    """A JSON text as one line."""
    return _UNSAFE_IN_JSON.sub(_json_escape, raw.decode("utf-8", "backslashreplace"))


def lines(*texts: str) -> None:
    """Print each text as one line."""
    for text in texts:
        click.echo(visible(text))


def wants_json(words: Sequence[str]) -> bool:
    """Whether a command line asks for JSON; decided here so that it holds for usage errors too."""
    options = words[: words.index("--")] if "--" in words else words
    return (
        "--output-json" in options
        or "--output=json" in options
        or ("--output", "json") in itertools.pairwise(options)
    )


def error(
    message: str,
    code: str,
    words: Sequence[str],
    *,
    fields: Mapping[str, Any] | None = None,
    hint: str = "",
) -> None:
    """Report the failure of a command on stderr, in the form the command line asked for.

    `hint` follows the error in plain text only: it tells a person what to do next.
    """
    if wants_json(words):
        body = {"error": message, "code": code, **(fields or {})}
        click.echo(json_text(msgspec.json.encode(body)), err=True)
        return
    click.echo(visible(f"Error: {message}"), err=True)
    if hint:
        click.echo(visible(hint), err=True)


def table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], giving_way: Sequence[int] = (0,)
) -> None:
    """Print columns padded with two spaces; on a terminal some columns, a name or an id, give way
    so that it fits. Counts and times must stay whole."""
    cells = [[visible(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _terminal_table(heads, cells, giving_way)
        return
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    for row in [heads, *cells]:
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(padded).rstrip())


def _terminal_table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], giving_way: Sequence[int]
) -> None:
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    widths = [max(map(cell_len, column)) for column in zip(heads, *rows, strict=True)]
    for _ in range(sum(widths) + 2 * (len(widths) - 1) - console.width):
        widest = max(giving_way, key=lambda column: widths[column])
        if widths[widest] <= NAME_WIDTH_MIN:
            break
        widths[widest] -= 1
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for head, width in zip(heads, widths, strict=True):
        grid.add_column(head, no_wrap=True, overflow="ellipsis", width=width)
    for row in rows:
        grid.add_row(*(Text(cell) for cell in row))
    console.print(grid)

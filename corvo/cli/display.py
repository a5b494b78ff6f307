"""Output of the commands; escapes control characters in all data of a server.

A payload, a queue name or an error text is untrusted: control characters in it could move the
cursor, rewrite lines or reverse text. They are printed as escapes: `\\x1b` in plain text, `\\u001b`
in JSON (the same JSON value).
"""

import itertools
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click
import msgspec

from corvo.errors import MESSAGE_SIZE_MAX, cut

# C0 and C1 controls, DEL, and invisible characters that change the text direction.
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
    """The text on one line, with terminal control characters as escapes."""
    return _UNSAFE.sub(_escape, text)


def json_text(raw: bytes) -> str:
    """JSON indented by two spaces; numbers, key order and duplicate keys stay unchanged."""
    pretty = msgspec.json.format(raw, indent=2).decode("utf-8", "backslashreplace")
    return _UNSAFE_IN_JSON.sub(_json_escape, pretty)


def json_line(raw: bytes) -> str:
    """JSON on one line, with terminal control characters as escapes."""
    return _UNSAFE_IN_JSON.sub(_json_escape, raw.decode("utf-8", "backslashreplace"))


def lines(*texts: str) -> None:
    """Print each text as one line."""
    for text in texts:
        click.echo(visible(text))


def wants_json(words: Sequence[str]) -> bool:
    """Whether a command line requests JSON.

    This reads the raw words, so that it also works for usage errors."""
    options = words[: words.index("--")] if "--" in words else words
    return (
        any(word.partition("=")[0] == "--output-json" for word in options)
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
    """Print the failure of a command on stderr, as text or JSON.

    `hint` suggests a next step; it is printed in plain text only.
    """
    message = cut(message, MESSAGE_SIZE_MAX)
    if wants_json(words):
        body = {"error": message, "code": code, **(fields or {})}
        click.echo(json_text(msgspec.json.encode(body)), err=True)
        return
    click.echo(visible(f"Error: {message}"), err=True)
    if hint:
        click.echo(visible(hint), err=True)


def table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], shrinkable: Sequence[int] = (0,)
) -> None:
    """Print aligned columns with two spaces between them.

    On a terminal the columns `shrinkable` (names, ids) are cut so that the table fits; counts and
    times are never cut."""
    cells = [[visible(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _terminal_table(heads, cells, shrinkable)
        return
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    for row in [heads, *cells]:
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(padded).rstrip())


def _terminal_table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], shrinkable: Sequence[int]
) -> None:
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    widths = [max(map(cell_len, column)) for column in zip(heads, *rows, strict=True)]
    for _ in range(sum(widths) + 2 * (len(widths) - 1) - console.width):
        widest = max(shrinkable, key=lambda column: widths[column])
        if widths[widest] <= NAME_WIDTH_MIN:
            break
        widths[widest] -= 1
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for head, width in zip(heads, widths, strict=True):
        grid.add_column(head, no_wrap=True, overflow="ellipsis", width=width)
    for row in rows:
        grid.add_row(*(Text(cell) for cell in row))
    console.print(grid)

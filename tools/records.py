"""Generated regions: code that follows from the tables of records and ops (`corvo/records.py`).

    python -m tools.records           rewrite the regions that have changed
    python -m tools.records --check   name them, and exit with 1 if there are any

A region stands between `# <generated: VERB RECORD NAME>` and `# </generated>`, at any indentation,
in a .py or .pxd file of the product. The verbs:

    init     attributes of a class with their types and zeros
    declare  their C types, in a .pxd
    write    calls of the Writer `w`; NAME is the object with the attributes
    read     assignments from the Reader `r` to the attributes of NAME
    locals   assignments from the Reader `r` to variables
    pack     elements of a tuple with the values of NAME's attributes, repeated fields spread
    unpack   the same as targets, repeated fields as one list

`read` and `locals` leave the fields of a newer format at their defaults when the record ends before
them. `write` leaves out the field of a newer format, the last one, while it is not set, so that
such a record keeps its bytes.

A record is one of `corvo.records`, or the row of an op in `corvo.ops`. A local field is the plain
variable of its name in `read`, `pack` and `unpack`; `write` calls `_write_FIELD(w, NAME)` for it;
`init` and `declare` skip it.
"""

import re
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from corvo import records
from corvo.records import Field, Record

ROOT = Path(__file__).parent.parent
WIDTH = 100
REGION = re.compile(
    r"^( *)# <generated: (\w+) (\w+)(?: (\w+))?>\n(.*?)^ *# </generated>\n",
    re.DOTALL | re.MULTILINE,
)

# Kind -> Python type, zero, C type.
KINDS = {
    "s": ("str", '""', "str"),
    "b": ("bytes", 'b""', "bytes"),
    "u": ("int", "0", "long long"),
    "i": ("int", "0", "long long"),
    "t": ("int", "0", "object"),  # may be after the year 2262
    "f": ("bool", "False", "bint"),
    "n": ("str", '""', "str"),
    "o": ("str", '""', "str"),
    "S": ("list[str]", "[]", "list"),
    "N": ("list[str]", "[]", "list"),
    "P": ("list[str]", "[]", "list"),
    "B": ("list[bytes]", "[]", "list"),
    "U": ("list[int]", "[]", "list"),
}
READS = {kind: f"r.{kind}()" for kind in "snobuitf"}
READS |= {"S": "r.texts()", "N": "r.names()"}


def init(field: Field, name: str) -> str:
    """An attribute with its type and default."""
    python_type, zero, _ = KINDS[field.kind]
    if field.repeat:
        python_type = f"list[{python_type}]"
    comment = f"  # {field.meaning}" if field.meaning else ""
    return f"{name}.{field.name}: {python_type} = {field.default or zero}{comment}"


def declare(field: Field, _name: str) -> str:
    """An attribute with its C type."""
    c_type = field.c_type or ("list" if field.repeat else KINDS[field.kind][2])
    return f"cdef public {c_type} {field.name}"


def write(field: Field, name: str) -> str:
    """A call of the writer."""
    if field.local:
        return f"_write_{field.name}(w, {name})"
    return f"w.{field.kind}({name}.{field.name})"


def read(field: Field, name: str) -> str:
    """An assignment from the reader."""
    return f"{target(field, name)} = {READS[field.kind]}"


def read_local(field: Field, _name: str) -> str:
    """An assignment from the reader to a variable."""
    return f"{field.name} = {READS[field.kind]}"


def target(field: Field, name: str) -> str:
    """The attribute, or the local variable."""
    return field.name if field.local else f"{name}.{field.name}"


def pack(field: Field, name: str) -> str:
    """One element of a tuple of values."""
    return f"{'*' if field.repeat else ''}{target(field, name)},"


def unpack(field: Field, name: str) -> str:
    """One element of a tuple of targets."""
    return f"{target(field, name)},"


VERBS: dict[str, Callable[[Field, str], str]] = {
    "init": init,
    "declare": declare,
    "write": write,
    "read": read,
    "locals": read_local,
    "pack": pack,
    "unpack": unpack,
}


def op_table() -> dict[str, Any]:
    """What `corvo/ops.py` says now; a compiled module of it may be older."""
    return runpy.run_path(str(ROOT / "corvo" / "ops.py"))


def lines(verb: str, record: Record, name: str, indent: str) -> Iterator[str]:
    """The lines of a region; a comment that is too long for its line goes in front of it."""
    since = 1
    inner = indent
    for field in record:
        if field.local and verb in ("init", "declare"):
            continue
        if verb in ("read", "locals") and field.since > since:
            since = field.since
            inner = indent + "    "
            for new in record:
                if new.since == since and (new.local or verb == "locals"):
                    yield f"{indent}{new.name} = {new.default or KINDS[new.kind][1]}"
            yield f"{indent}if r.more():  # format {since}"
        if verb == "write" and field.since > 1:
            assert field is record[-1], "only the last field can be left out"
            inner = indent + "    "
            yield f"{indent}if {name}.{field.name}:  # format {field.since}"
        line = inner + VERBS[verb](field, name)
        code, comment, meaning = line.partition("  # ")
        if len(line) > WIDTH and comment:
            yield f"{inner}# {meaning}"
            line = code
        yield line


def generated(text: str) -> str:
    """A file's text with all its regions as they have to be."""
    ops = op_table()

    def replace(match: re.Match[str]) -> str:
        indent, verb, record, name, _ = match.groups()
        rows = ops[record].fields if record in ops else getattr(records, record)
        inside = lines(verb, rows, name or "self", indent)
        head = match.group().partition("\n")[0]
        return "\n".join([head, *inside, f"{indent}# </generated>\n"])

    return REGION.sub(replace, text)


def outdated() -> dict[Path, str]:
    """Files with a region that is not as it has to be, and their new text."""
    found = {}
    for path in sorted([*ROOT.glob("corvo/**/*.py"), *ROOT.glob("corvo/**/*.pxd")]):
        text = path.read_text()
        if "# <generated: " in text and path.name != "records.py":
            new = generated(text)
            if new != text:
                found[path] = new
    return found


def main() -> int:
    """Rewrite or check."""
    check = "--check" in sys.argv[1:]
    found = outdated()
    for path, text in found.items():
        print(path.relative_to(ROOT))
        if not check:
            path.write_text(text)
    return 1 if check and found else 0


if __name__ == "__main__":
    sys.exit(main())

"""Ops that are in logs and schedules already: their first bytes can be read by every version.

`golden/ops.json` has the bytes of one op of each number, and of each record inside ops, with the
values of its fields in order. A row is never changed. When a new op has no row yet, the test prints
the row to add.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from corvo import ops, records
from corvo._fast.codec.layouts import encode_fields
from corvo.records import Field, Record
from corvo.storage.records.grown import decode_grown

FILE = Path(__file__).parent / "golden" / "ops.json"
GOLDEN: dict[str, dict[str, Any]] = json.loads(FILE.read_text())
# Records inside ops.
INSIDE = [
    "NEW_JOB_OPTIONS",
    "NEW_BATCH",
    "CHAIN",
    "FOLLOWER",
    "STEP",
    "ACTION",
    "BEAT",
    "LINE",
    "RUN",
]
ROWS: dict[str, Record] = {
    **{f"{op.number} {op.name}": op.fields for op in ops.OPS.values() if op.built},
    **{name: getattr(records, name) for name in INSIDE},
}


def sample(field: Field, position: int) -> Any:
    """A value for a field, different from those of all other fields of its kind if possible."""
    values: dict[str, Any] = {
        "f": position % 2 == 0,
        "i": -300 - position,
        "q": -(2**40) - position,
        "t": 10_000_000_000_000_000_001 + position,
        "u": 300 + position,
        "U": [position, 300],
    }
    texts = {"S": [field.name, "é"], "N": [field.name, "é"], "B": [field.name, ""]}
    return (values | texts).get(field.kind, field.name)


def encoded(record: Record, values: list[Any]) -> bytes:
    """Encode the values of a row; bytes are texts in the file."""
    raw = []
    for field, value in zip(record, values, strict=True):
        if field.kind == "b":
            raw.append(value.encode())
        elif field.kind == "B":
            raw.append([item.encode() for item in value])
        else:
            raw.append(value)
    return encode_fields(records.layout(record), tuple(raw))


def readable(values: tuple[Any, ...]) -> list[Any]:
    """Return decoded values in the form of the file."""
    return json.loads(json.dumps(values, default=bytes.decode))  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", ROWS)
def test_each_op_has_golden_bytes(name: str) -> None:
    record = ROWS[name]
    values = [sample(field, position) for position, field in enumerate(record)]
    row = {
        "fields": dict(zip(records.names(record), values, strict=True)),
        "bytes": encoded(record, values).hex(" "),
    }
    assert name in GOLDEN, f"add to {FILE.name}: {json.dumps({name: row})[1:-1]}"


@pytest.mark.parametrize("name", GOLDEN)
def test_the_first_bytes_of_an_op_can_be_read(name: str) -> None:
    fields, data = GOLDEN[name]["fields"], bytes.fromhex(GOLDEN[name]["bytes"])
    record = ROWS[name]
    assert list(records.names(record))[: len(fields)] == list(fields)
    decoded = readable(decode_grown(record, data))
    assert decoded[: len(fields)] == list(fields.values())
    assert encoded(record[: len(fields)], list(fields.values())) == data

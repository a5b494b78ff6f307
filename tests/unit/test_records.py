"""The tables of records and ops, and the code that has to agree with them."""

import ast
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from lib.odd_ops import UNCHECKED

from corvo import model, ops, records
from corvo._fast.codec.layouts import CodecError, decode_fields, encode_fields
from corvo.fsm import machine
from corvo.records import Field, Record
from corvo.storage.records.grown import decode_grown

ROOT = Path(__file__).parents[2]


def _generator() -> ModuleType:
    """The program tools/records.py, as a module."""
    spec = importlib.util.spec_from_file_location("records_generator", ROOT / "tools/records.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


generator = _generator()
RECORDS = {
    name: value
    for name, value in vars(records).items()
    if isinstance(value, tuple) and name.isupper()
}
BUILT = [op for op in ops.OPS.values() if op.built]
KINDS = "snobuiqtfSNBUP"


@pytest.mark.parametrize("name", RECORDS)
def test_rows_are_complete(name: str) -> None:
    record: Record = RECORDS[name]
    assert len(set(records.names(record))) == len(record)
    formats = [field.since for field in record]
    assert formats == sorted(formats), "rows are appended, never inserted"
    for field in record:
        assert field.name.isidentifier() and len(field.kind) == 1 and field.kind in KINDS


def test_repeated_fields_are_as_many_as_what_they_count() -> None:
    repeats = {
        (name, field.name): field.repeat
        for name, record in RECORDS.items()
        for field in record
        if field.repeat
    }
    assert repeats == {
        ("OPERATION", "counts"): len(model.OUTCOMES),
        ("QUEUE", "counts"): len(model.STATES) * model.PRIORITIES,
        ("QUEUE", "retention_ns"): len(model.END_STATES),
    }


def test_folding_makes_lists_of_repeated_fields() -> None:
    record = (Field("a", "u"), Field("b", "u", repeat=2), Field("c", "s"))
    assert records.layout(record) == "uuus"
    assert records.folded(record, (1, 2, 3, "x")) == [1, [2, 3], "x"]


def test_options_of_a_new_job_are_stored_or_local() -> None:
    stored = {field.name: field.kind for field in records.JOB_OPTIONS}
    for field in records.NEW_JOB_OPTIONS:
        if not field.local:
            assert stored[field.name] == field.kind.translate(UNCHECKED)


@pytest.mark.parametrize("op", BUILT, ids=lambda op: op.name)
def test_an_op_has_all_its_facts(op: ops.Op) -> None:
    assert op.order in (ops.LEASES, ops.OTHERS, ops.FETCHES)
    assert op.meaning.endswith(".") and op.name[0].isupper()
    known = vars(model) | dict.fromkeys(("None", "int", "str", "list", "dict", "object"))
    assert set(op.result.split(" | ")) <= known.keys()
    assert len(set(op.names)) == len(op.fields)
    if op is not ops.STAMP:
        assert op.number in machine._APPLY, "no module of fsm/ops has an apply function"


def test_an_op_has_one_apply_function() -> None:
    modules = [value for value in vars(machine).values() if hasattr(value, "APPLY")]
    numbers = [number for module in modules for number in module.APPLY]
    assert sorted([*numbers, ops.IDEMPOTENT.number]) == sorted(machine._APPLY)
    assert set(machine._APPLY) | {ops.STAMP.number} == {op.number for op in BUILT}


def test_generated_regions_are_up_to_date() -> None:
    paths = [str(path.relative_to(ROOT)) for path in generator.outdated()]
    assert not paths, "run `python -m tools.records`"


# Code that decodes a record names its fields as the table does.


def _layout_of(node: ast.expr) -> Record | None:
    """The record that the first argument of a decoding call names, if it is one of the table."""
    text = ast.unparse(node)
    if text.startswith("ops.") and text.endswith(".layout"):
        op = getattr(ops, text.split(".")[1], None)
        return None if op is None else op.fields
    return LAYOUTS.get(text) or LAYOUTS.get(text.removeprefix("ops."))


LAYOUTS: dict[str, Record] = {
    "ops.OPTIONS_LAYOUT": records.NEW_JOB_OPTIONS,
    "ACTION_LAYOUT": records.ACTION,
    "CHAIN_LAYOUT": records.CHAIN,
    "FOLLOWER_LAYOUT": records.FOLLOWER,
    "STEP_LAYOUT": records.STEP,
    "BEAT_LAYOUT": records.BEAT,
    "LINE_LAYOUT": records.LINE,
    "RUN_LAYOUT": records.RUN,
    "CHUNK_LAYOUT": records.CHUNK,
    "ERROR_LAYOUT": records.ERROR,
    "LOCK_LAYOUT": records.LOCK,
    "GROUP_LAYOUT": records.GROUP,
    "GRANT_LAYOUT": records.GRANT,
    "IDEMPOTENCY_LAYOUT": records.IDEMPOTENCY,
    "STATE_LAYOUT": records.OUTBOX_STATE,
}


def by_position(source: str) -> Iterator[str]:
    """Places that decode a record and do not name its fields as its rows do."""
    tree = ast.parse(source)
    targets: dict[ast.expr, ast.expr] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            targets[node.value] = node.targets[0]
        elif isinstance(node, ast.AnnAssign) and node.value:
            targets[node.value] = node.target
        elif isinstance(node, ast.Subscript):
            targets[node.value] = node
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not ast.unparse(node.func).startswith("decode_"):
            continue
        record = _layout_of(node.args[0]) if node.args else None
        target = targets.get(node)
        if record is None or target is None:
            continue
        if len(records.formats(record)) > 1:
            yield f"{node.lineno}: read it with decode_grown, for records of earlier formats"
            continue
        if not isinstance(target, ast.Tuple):
            yield f"{node.lineno}: {ast.unparse(target)}"
            continue
        found = [ast.unparse(item).rpartition(".")[2] for item in target.elts]
        rows = [field.name for field in record]
        agree = [name in (row, "_") for name, row in zip(found, rows, strict=False)]
        if len(found) != len(rows) or not all(agree):
            yield f"{node.lineno}: {found} for {rows}"


@pytest.mark.parametrize(
    ("code", "good"),
    [
        ("name, limit = decode_fields(ops.SET_CONCURRENCY.layout, payload)", True),
        ("(self.name, self.limit) = decode_fields(ops.SET_CONCURRENCY.layout, payload)", True),
        ("(job_id,) = decode_fields(ops.RETRY_JOB.layout, payload)", True),
        ("limit, name = decode_fields(ops.SET_CONCURRENCY.layout, payload)", False),
        ("name = decode_fields(ops.RETRY_JOB.layout, payload)[0]", False),
        ("fields = decode_fields(ops.RETRY_JOB.layout, payload)", False),
    ],
)
def test_the_search_for_fields_by_position(code: str, good: bool) -> None:
    assert (not list(by_position(code))) == good


def test_the_search_for_records_with_earlier_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LAYOUTS, "GROWN_LAYOUT", GROWN)
    assert list(by_position("a, b, c, d, e = decode_fields(GROWN_LAYOUT, data)"))
    assert not list(by_position("a, b, c, d, e = decode_grown(GROWN, data)"))


def test_no_field_is_taken_by_position() -> None:
    for path in sorted(ROOT.glob("corvo/**/*.py")):
        assert not list(by_position(path.read_text())), path


# A table in which a second and a third format have added fields.
GROWN = (
    Field("a", "u"),
    Field("b", "s"),
    Field("c", "u", since=2, default="7"),
    Field("d", "S", since=2),
    Field("e", "f", since=3, default="True", local=True),
)
OF_FORMAT = {
    1: ((5, "x"), (5, "x", 7, [], True)),
    2: ((5, "x", 8, ["y"]), (5, "x", 8, ["y"], True)),
    3: ((5, "x", 8, ["y"], False), (5, "x", 8, ["y"], False)),
}


@pytest.mark.parametrize("since", OF_FORMAT)
def test_a_record_of_an_earlier_format_has_defaults(since: int) -> None:
    fields = tuple(field for field in GROWN if field.since <= since)
    values, expected = OF_FORMAT[since]
    data = encode_fields(records.layout(fields), values)
    assert decode_grown(GROWN, data) == expected
    with pytest.raises(CodecError, match="truncated"):
        decode_grown(GROWN, data[:2])
    with pytest.raises(CodecError):
        decode_grown(GROWN, data + b"\1\1\1\1\1\1\1\1")


class Values:
    """A reader of values that are decoded already."""

    def __init__(self, values: tuple[Any, ...]) -> None:
        self._values = list(values)

    def more(self) -> bool:
        return bool(self._values)

    def u(self) -> Any:
        return self._values.pop(0)

    s = f = texts = u


@pytest.mark.parametrize("since", OF_FORMAT)
@pytest.mark.parametrize("verb", ["read", "locals"])
def test_generated_code_reads_earlier_formats(verb: str, since: int) -> None:
    values, expected = OF_FORMAT[since]
    job = SimpleNamespace(c=7, d=[])  # as its constructor leaves it
    variables: dict[str, Any] = {"r": Values(values), "job": job}
    exec("\n".join(generator.lines(verb, GROWN, "job", "")), variables)
    found = variables | (vars(job) if verb == "read" else {})
    assert tuple(found[field.name] for field in GROWN) == expected


def test_code_of_one_format_has_no_check() -> None:
    for record in RECORDS.values():
        if len(records.formats(record)) == 1 and not {"P", "U", "B"} & set(records.layout(record)):
            assert not any("r.more" in line for line in generator.lines("read", record, "x", ""))


def test_an_enqueue_of_the_first_version_can_be_read() -> None:
    """Logs and schedules of earlier versions hold such payloads."""
    values = ("job_1", "q", 1, b"{}", b"", 3, 0, 1, 2, 0, 0, b"", "", b"", 0, 0, b"")
    payload = encode_fields("ssubbuuuuutbsbuub", values)
    assert decode_fields(ops.ENQUEUE.layout, payload) == values

"""Keys: the bytes, the order, and back."""

import json
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corvo._fast.codec import keys
from corvo.limits import JOB_ID_SIZE_MAX, QUEUE_NAME_SIZE_MAX, WORKER_ID_SIZE_MAX

GOLDEN = Path(__file__).parents[2] / "golden"
FAMILIES = [value for name, value in vars(keys).items() if name.isupper() and type(value) is bytes]
NAMES = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=40)
U8, U32, U64 = (st.integers(0, 2**bits - 1) for bits in (8, 32, 64))
INTEGERS = st.tuples(U32, U8, U64)


def test_no_family_is_the_beginning_of_another() -> None:
    assert len(FAMILIES) == 34
    assert not [pair for pair in permutations(FAMILIES, 2) if pair[1].startswith(pair[0])]


@given(st.binary(min_size=1, max_size=4), st.binary(max_size=4))
def test_prefix_end_is_behind_exactly_the_keys_with_the_prefix(prefix: bytes, key: bytes) -> None:
    if not prefix.strip(b"\xff"):
        with pytest.raises(AssertionError):
            keys.prefix_end(prefix)
        return
    end = keys.prefix_end(prefix)
    assert (prefix <= key < end) == key.startswith(prefix)
    assert prefix + b"\xff" * 8 < end


@given(INTEGERS, INTEGERS)
def test_pending_rows_sort_by_queue_priority_and_seq(
    a: tuple[int, int, int], b: tuple[int, int, int]
) -> None:
    assert keys.parse_pending(keys.pending(*a)) == a
    assert (keys.pending(*a) < keys.pending(*b)) == (a < b)


PLACED = [keys.ACTIVE, keys.SCHEDULED, keys.RETRYING, keys.HELD, keys.EXPIRING]
FINISHED = st.tuples(U32, U8, U64, U64)


@given(st.sampled_from(PLACED), U32, U64, U64, U64, NAMES)
def test_placed_rows(
    family: bytes, number: int, seq: int, due_ns: int, fencing: int, job_id: str
) -> None:
    key = keys.placed(family, number, seq)
    assert key.startswith(family) and keys.parse_placed(key) == (number, seq)
    assert keys.parse_due(keys.due(due_ns, fencing, job_id)) == (due_ns, fencing, job_id)


@given(FINISHED, FINISHED)
def test_finished_rows_sort_by_queue_state_and_time(
    a: tuple[int, int, int, int], b: tuple[int, int, int, int]
) -> None:
    key = keys.finished(*a)
    assert keys.parse_finished(key) == a
    assert key.startswith(keys.finished_in(a[0], a[1]))
    assert (keys.parse_number(key), keys.parse_seq(key)) == (a[0], a[3])
    assert (keys.finished(*a) < keys.finished(*b)) == (a < b)


@given(U8, st.text(st.characters(exclude_categories=("Cs",)), min_size=1), U64, U64, NAMES)
def test_values_that_name_a_group(
    priority: int, group: str, due_ns: int, fencing: int, job_id: str
) -> None:
    placed = keys.due(due_ns, fencing, job_id)
    assert keys.parse_group(placed, 16) == (0, "")
    placed = keys.grouped(placed, priority, group)
    assert keys.parse_due(placed) == (due_ns, fencing, job_id)
    assert keys.parse_group(placed, 16) == (priority, group)
    pending = keys.grouped(job_id.encode(), priority, group)
    assert keys.parse_id(pending) == job_id and keys.parse_id(job_id.encode()) == job_id
    assert keys.parse_group(pending, 0) == (priority, group)


@given(U32, U64)
def test_groups_and_grants(number: int, part: int) -> None:
    assert keys.parse_group_key(keys.group(number, part)) == (number, part)
    assert keys.parse_grant(keys.grant(number, part)) == (number, part)


@given(INTEGERS)
def test_queue_and_seq_of_any_index_row(a: tuple[int, int, int]) -> None:
    for family in (keys.PENDING, *PLACED):
        key = keys.pending(*a) if family == keys.PENDING else keys.placed(family, a[0], a[2])
        assert (keys.parse_number(key), keys.parse_seq(key)) == (a[0], a[2])
        assert key.startswith(keys.of_queue(family, a[0]))


@given(NAMES, U32)
def test_rows_by_name(name: str, slot: int) -> None:
    assert keys.parse_job(keys.job(name)) == name
    assert keys.parse_queue(keys.queue(name)) == name
    assert keys.parse_worker(keys.worker(name)) == name
    assert keys.parse_schedule(keys.schedule(name)) == name
    error = keys.error(name, slot)
    assert keys.parse_error(error) == (name, slot) and error.startswith(keys.errors(name))
    assert len({keys.job(name), keys.body(name), keys.data(name)}) == 3


@given(st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=40))
def test_a_worker_row_takes_any_id(worker_id: str) -> None:
    assert keys.parse_worker(keys.worker(worker_id)) == worker_id


def test_errors_of_one_job_are_not_those_of_a_longer_id() -> None:
    assert not keys.error("job_1", 0).startswith(keys.errors("job_"))


@given(U32, st.binary(min_size=16, max_size=16), U64)
def test_unique_locks_and_events(number: int, key_hash: bytes, seq: int) -> None:
    assert keys.parse_unique(keys.unique(number, key_hash)) == (number, key_hash)
    assert keys.parse_events(keys.events(seq)) == seq


def test_the_longest_keys_fit() -> None:
    assert len(keys.error("x" * JOB_ID_SIZE_MAX, 1)) <= 511
    assert len(keys.queue("x" * QUEUE_NAME_SIZE_MAX)) <= 511
    assert len(keys.worker("x" * WORKER_ID_SIZE_MAX)) <= 511


@pytest.mark.parametrize(
    ("build", "arguments"),
    [
        ("job", ("",)),
        ("job", ("a\0b",)),
        ("worker", ("",)),
        ("pending", (2**32, 0, 0)),
        ("pending", (0, 256, 0)),
        ("pending", (0, 0, -1)),
        ("pending", (0, 0, 2**64)),
        ("placed", (b"ev|", 0, 0)),
        ("error", ("a", 2**32)),
        ("due", (-1, 0, "a")),
        ("unique", (0, b"short")),
        ("parse_pending", (b"p|",)),
        ("parse_pending", (b"a|" + bytes(13),)),
        ("parse_placed", (b"",)),
        ("parse_due", (bytes(16),)),
        ("parse_error", (b"je|\0\0\0\0\0",)),
        ("parse_job", (b"jb|a",)),
    ],
)
def test_wrong_arguments_are_bugs(build: str, arguments: tuple[Any, ...]) -> None:
    with pytest.raises((AssertionError, OverflowError)):
        getattr(keys, build)(*arguments)


@pytest.mark.parametrize("case", json.loads((GOLDEN / "keys.json").read_text()), ids=str)
def test_golden_keys(case: dict[str, Any]) -> None:
    arguments = [
        value.encode("latin-1") if name in case.get("bytes", []) else value
        for name, value in case["arguments"].items()
    ]
    assert getattr(keys, case["build"])(*arguments).hex(" ") == case["hex"]

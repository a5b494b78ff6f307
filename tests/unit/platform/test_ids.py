"""Job ids."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corvo.errors import ValidationError
from corvo.platform.ids import JobIds, check_job_id, check_job_ids

MS = 1_000_000
ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def value(job_id: str) -> int:
    """The 128 bits of an id."""
    number = 0
    for character in job_id.removeprefix("job_"):
        number = number * 32 + ALPHABET.index(character)
    return number


def test_layout() -> None:
    job_id = JobIds(lambda n: bytes(range(1, n + 1))).new(1_770_724_800_123 * MS)
    assert re.fullmatch("job_[0-9A-HJKMNP-TV-Z]{26}", job_id)
    assert value(job_id) >> 80 == 1_770_724_800_123
    assert value(job_id) & ((1 << 80) - 1) == int.from_bytes(bytes(range(1, 11)), "big")


@given(st.lists(st.integers(0, 10 * MS), max_size=50), st.binary(min_size=10, max_size=10))
def test_never_goes_back(stamps: list[int], random: bytes) -> None:
    ids = JobIds(lambda n: random)
    made = [ids.new(stamp) for stamp in stamps]
    assert made == sorted(set(made))


@pytest.mark.parametrize("tail", [b"\x0f\xff\xfe", b"\xff\xff\xff"])
@pytest.mark.parametrize("head", [b"\x00", b"\xff"])
def test_counts_up_over_every_border(head: bytes, tail: bytes) -> None:
    ids = JobIds(lambda n: head * (n - len(tail)) + tail)
    values = [value(ids.new(MS)) for _ in range(5)]
    if head + tail == b"\xff" * 4:  # the random part is used up: on to the next millisecond
        assert [v >> 80 for v in values] == [1, 2, 3, 4, 5]
    else:
        assert values == list(range(values[0], values[0] + 5))


@pytest.mark.parametrize("job_id", ["a", "job_01ARZ3NDEKTSV4RRFFQ69G5FAV", "A-b_9", "x" * 128])
def test_accepted(job_id: str) -> None:
    assert check_job_id(job_id) == job_id


@pytest.mark.parametrize("job_id", ["", "a b", "a/b", "é", "a\n", "x" * 129, "١"])
def test_refused(job_id: str) -> None:
    with pytest.raises(ValidationError, match="^parent_id "):
        check_job_id(job_id, "parent_id")


def test_many_ids_are_checked_like_one() -> None:
    assert check_job_ids([], "job_ids") == []
    assert check_job_ids(["b", "a-1_Z", "b", "x" * 128], "job_ids") == ["b", "a-1_Z", "x" * 128]
    for bad in ("", "a b", "é", "a/b", "\ud800", "x" * 129, "a\nb", "\x00"):
        with pytest.raises(ValidationError, match=r"^job_ids\[8\] ") as refused:
            check_job_ids(["good", bad], "job_ids", 7)
        assert refused.value.fields == {"field": "job_ids", "index": 8}

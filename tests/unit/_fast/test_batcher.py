"""The batcher against a plain list."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corvo._fast.batcher import Batcher
from corvo._fast.codec.layouts import decode_fields, decode_frame, encode_frame

STAMP = 1_764_280_000_000_000_000
ADDS = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 200), st.integers(0, 60)), max_size=30)


def sealed(batcher: Batcher) -> tuple[list[tuple[int, bytes]], list[int]]:
    """The next entry without its Stamp, which is checked."""
    frame, completions = batcher.seal(STAMP, -7)
    ops = decode_frame(frame)
    assert ops[0][0] == 0 and decode_fields("qq", ops[0][1]) == (STAMP, -7)
    return ops[1:], completions


def test_nothing_waiting() -> None:
    batcher = Batcher(10, 1000)
    assert sealed(batcher) == ([], [])
    assert (batcher.count, batcher.size) == (0, 0)


def test_classes_in_order_and_arrival_inside_a_class() -> None:
    batcher = Batcher(10, 1000)
    for completion, order in enumerate([2, 1, 0, 1, 2, 0]):
        batcher.add(order, 10 + order, b"x", completion)
    assert sealed(batcher)[1] == [2, 5, 1, 3, 0, 4]


def test_what_is_left_runs_before_what_comes_later_in_its_class() -> None:
    batcher = Batcher(2, 1000)
    for completion, order in enumerate([1, 1, 1, 2]):
        batcher.add(order, 1, b"", completion)
    assert sealed(batcher)[1] == [0, 1]
    batcher.add(0, 1, b"", 4)
    batcher.add(1, 1, b"", 5)
    assert sealed(batcher)[1] == [4, 2]
    assert sealed(batcher)[1] == [5, 3]


def test_no_fetch_overtakes_an_op_that_did_not_fit() -> None:
    batcher = Batcher(10, 100)
    batcher.add(0, 4, b"x" * 60, "small")
    batcher.add(0, 4, b"x" * 90, "large")
    batcher.add(2, 3, b"", "fetch")
    assert sealed(batcher)[1] == ["small"]
    assert sealed(batcher)[1] == ["large", "fetch"]


def test_an_op_beyond_the_size_goes_alone() -> None:
    batcher = Batcher(10, 100)
    batcher.add(1, 1, b"x" * 500, "huge")
    batcher.add(1, 1, b"", "small")
    assert sealed(batcher)[1] == ["huge"]
    assert sealed(batcher)[1] == ["small"]


def test_slots_and_frames_belong_to_the_caller() -> None:
    batcher = Batcher(10, 100)
    batcher.add(1, 1, b"a", "a")
    frame, completions = batcher.seal(STAMP, 0)
    kept = bytes(bytearray(frame))
    batcher.add(1, 1, b"b", "b")
    batcher.seal(STAMP, 0)
    assert completions == ["a"] and frame == kept


def test_unknown_classes_are_bugs() -> None:
    with pytest.raises(AssertionError):
        Batcher(10, 100).add(3, 1, b"", None)


@given(ADDS, st.integers(1, 8), st.integers(1, 150))
def test_every_op_leaves_once_and_in_order(
    adds: list[tuple[int, int, int]], max_ops: int, max_size: int
) -> None:
    batcher = Batcher(max_ops, max_size)
    payloads = [bytes([completion]) * size for completion, (_, _, size) in enumerate(adds)]
    for completion, (order, number, _) in enumerate(adds):
        batcher.add(order, number, payloads[completion], completion)
    assert batcher.count == len(adds)
    left = sorted(range(len(adds)), key=lambda completion: (adds[completion][0], completion))
    while batcher.count:
        size_before = batcher.size
        ops, completions = sealed(batcher)
        size = len(encode_frame(ops)) - len(encode_frame([]))
        assert completions == left[: len(completions)] and completions
        assert ops == [(adds[completion][1], payloads[completion]) for completion in completions]
        assert len(completions) <= max_ops and (size <= max_size or len(completions) == 1)
        assert size_before - batcher.size == size
        del left[: len(completions)]
        assert batcher.count == len(left)
        if left:
            order, number, length = adds[left[0]]
            following = len(encode_frame([(number, bytes(length))])) - len(encode_frame([]))
            assert len(completions) == max_ops or size + following > max_size
    assert batcher.size == 0 and not left

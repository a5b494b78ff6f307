"""The ready index and the heap of due times against plain lists."""

import heapq

from hypothesis import given, settings
from hypothesis import strategies as st

from corvo._fast.index.ready import SEQ_BITS, WINDOW, DueHeap, Positions, ReadyIndex


def take(index: ReadyIndex) -> tuple[int, int]:
    position = index.first()
    priority, seq = position >> SEQ_BITS, position & ((1 << SEQ_BITS) - 1)
    index.remove(priority, seq)
    return priority, seq


def test_priority_first_then_seq() -> None:
    index = ReadyIndex()
    for priority, seq in ((2, 1), (0, 7), (1, 2), (0, 3), (2, 9)):
        index.add(priority, seq)
    assert len(index) == 5
    assert [take(index) for _ in range(5)] == [(0, 3), (0, 7), (1, 2), (2, 1), (2, 9)]
    assert index.first() == 0 and len(index) == 0


def test_an_older_seq_comes_back_to_a_full_window() -> None:
    index = ReadyIndex()
    for seq in range(10, 10 + 3 * WINDOW):
        index.add(2, seq)
    index.add(2, 5)
    assert index.first_of(2) == 5
    assert [take(index)[1] for _ in range(1 + 3 * WINDOW)] == [5, *range(10, 10 + 3 * WINDOW)]


def test_seqs_spread_thin_are_taken_in_order() -> None:
    """Regression: `min()` and `len()` of a bitmap walk it; spread thin that is far too slow."""
    step = 100_003
    index = ReadyIndex()
    for n in range(1, 30_001):
        index.add(1, n * step)
    assert index.count(1) == 30_000
    assert [take(index)[1] for _ in range(30_000)] == [n * step for n in range(1, 30_001)]


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_ready_index_against_sorted_list(data: st.DataObject) -> None:
    index, model = ReadyIndex(), set[tuple[int, int]]()
    spread = data.draw(st.sampled_from([1, 3, 70_000]))
    steps = st.tuples(
        st.sampled_from("aaart"), st.integers(0, 2), st.integers(1, 400), st.integers(1, 80)
    )
    for action, priority, seq, repeat in data.draw(st.lists(steps, max_size=40)):
        for n in range(repeat):
            entry = (priority, (seq + n) * spread)
            if action == "a" and entry not in model:
                index.add(*entry)
                model.add(entry)
            elif action == "r" and entry in model:
                index.remove(*entry)
                model.remove(entry)
            elif action == "t" and model:
                assert take(index) == min(model)
                model.remove(min(model))
        assert len(index) == len(model)
        position = (priority, seq * spread)
        assert index.before(*position) == sum(entry < position for entry in model)
    assert [take(index) for _ in range(len(model))] == sorted(model)


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_places_against_a_sorted_list(data: st.DataObject) -> None:
    positions, model = Positions(), set[int]()
    spread = data.draw(st.sampled_from([1, 3, 1 << 40]))
    steps = st.tuples(st.sampled_from("aaart"), st.integers(1, 400), st.integers(1, 80))
    for action, first, repeat in data.draw(st.lists(steps, max_size=40)):
        for n in range(repeat):
            position = (first + n) * spread
            if action == "a" and position not in model:
                positions.add(position)
                model.add(position)
            elif action == "r" and position in model:
                positions.remove(position)
                model.remove(position)
            elif action == "t" and model:
                assert positions.first() == min(model)
                positions.remove(min(model))
                model.remove(min(model))
        assert len(positions) == len(model)
        low = first * spread + 1
        assert positions.first_from(low) == min((p for p in model if p >= low), default=0)
    assert positions.first() == min(model, default=0)


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 300)), max_size=300),
    st.sets(st.integers(0, 300)),
)
def test_due_heap_against_heapq(entries: list[tuple[int, int]], dropped: set[int]) -> None:
    heap, model = DueHeap(), list[tuple[int, int]]()
    for due, key in entries:
        heap.push(due, key)
        heapq.heappush(model, (due, key))
        if key % 3 == 0:
            assert (heap.first_due(), heap.first_key()) == heapq.heappop(model)
            heap.pop()
    heap.drop(dropped)
    model = sorted(entry for entry in model if entry[1] not in dropped)
    assert len(heap) == len(model)
    for entry in model:
        assert (heap.first_due(), heap.first_key()) == entry
        heap.pop()
    heap.push(1, 2**64 - 1)
    heap.clear()
    assert len(heap) == 0

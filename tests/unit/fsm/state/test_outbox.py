"""The outbox: what flushes name, and how the rows go again."""

import pytest
from lib.fsm_driver import Driver, enqueue_step

from corvo import limits, ops
from corvo._fast.codec import keys
from corvo.errors import DiskFull
from corvo.fsm.state.outbox import Outbox
from corvo.storage.memory import MemoryStore
from corvo.storage.records.outbox import Changed, decode_changed, decode_state
from corvo.storage.rows import Row


def with_outbox() -> tuple[Driver, Outbox]:
    driver = Driver()
    return driver, driver.machine.keep_outbox(b"epoch")


def rows(state_store: MemoryStore) -> list[tuple[int, Changed]]:
    indexes = [(keys.parse_outbox(key), row) for key, row in state_store.scan(keys.OUTBOX)]
    return [(index, decode_changed(index, row)) for index, row in indexes]


def state(state_store: MemoryStore) -> tuple[bytes, int]:
    row = state_store.get(keys.OUTBOX_STATE)
    assert row is not None
    return decode_state(row)


def test_a_flush_names_what_it_changed() -> None:
    driver, _ = with_outbox()
    driver.enqueue("job_1", unique_key=b"once")
    driver.enqueue("job_2", queue="other")
    assert driver.fetch("q", worker="w7") is not None
    driver.machine.flush()
    [(index, changed)] = rows(driver.state_store)
    assert index == driver.machine.applied_index
    assert changed.jobs == ["job_1", "job_2"]
    assert sorted(changed.queues) == ["other", "q"]
    assert changed.workers == ["w7"]
    assert len(changed.locks) == 1 and driver.state_store.get(changed.locks[0]) is not None


def test_deleted_documents_are_named_too() -> None:
    driver, _ = with_outbox()
    driver.enqueue("job_1")
    driver.machine.flush()
    driver.do(ops.DELETE_QUEUE, "q", "bulk_1")
    driver.machine.flush()
    _, changed = rows(driver.state_store)[1]
    assert changed.jobs == ["job_1"]
    assert "q" in changed.queues
    for name in changed.queues:
        assert driver.state_store.get(keys.queue(name)) is None


def test_what_was_read_goes_with_the_next_flush() -> None:
    driver, outbox = with_outbox()
    indexes = []
    for number in range(3):
        driver.enqueue(f"job_{number}")
        driver.machine.flush()
        indexes.append(driver.machine.applied_index)
    outbox.read = indexes[1]
    driver.enqueue("job_3")
    driver.machine.flush()
    assert [index for index, _ in rows(driver.state_store)] == [
        indexes[2],
        driver.machine.applied_index,
    ]
    assert state(driver.state_store) == (b"epoch", indexes[1])
    assert len(outbox) == 2


def test_it_keeps_to_its_bound_and_raises_its_floor() -> None:
    driver, outbox = with_outbox()
    outbox.size = limits.OUTBOX_SIZE_MAX - 200  # as if there were large rows
    for number in range(20):
        driver.enqueue(f"job_{number}")
        driver.machine.flush()
    kept = [index for index, _ in rows(driver.state_store)]
    assert 0 < len(kept) < 20
    assert kept[-1] == driver.machine.applied_index
    assert state(driver.state_store)[1] == kept[0] - 1


class FullBase(MemoryStore):
    """A base that has no space for a while."""

    full = False

    def write(self, puts: list[Row], deletes: list[bytes]) -> None:
        if self.full:
            raise DiskFull("no space")
        super().write(puts, deletes)


def test_a_flush_that_failed_is_as_if_it_had_not_been() -> None:
    state_store = FullBase()
    driver = Driver(state_store)
    outbox = driver.machine.keep_outbox(b"epoch")
    driver.enqueue("job_1")
    driver.machine.flush()
    outbox.read = driver.machine.applied_index
    driver.enqueue("job_2")
    state_store.full = True
    with pytest.raises(DiskFull):
        driver.machine.flush()
    driver.enqueue("job_3")
    state_store.full = False
    driver.machine.flush()
    [(_, changed)] = rows(state_store)
    assert changed.jobs == ["job_2", "job_3"]
    assert len(outbox) == 1


def test_it_goes_on_after_a_restart_and_begins_again_without_its_state() -> None:
    driver, _ = with_outbox()
    driver.enqueue("job_1")
    driver.machine.flush()
    index = driver.machine.applied_index
    driver.restart(flush=False)
    again = driver.machine.keep_outbox(b"other")
    assert (again.epoch, again.floor, len(again)) == (b"epoch", 0, 1)
    driver.restart(flush=False)
    driver.machine.drop_outbox()
    driver.enqueue("job_2")
    driver.machine.flush()
    assert not rows(driver.state_store) and driver.state_store.get(keys.OUTBOX_STATE) is None
    index = driver.machine.applied_index
    driver.restart(flush=False)
    fresh = driver.machine.keep_outbox(b"other")
    assert (fresh.epoch, fresh.floor, len(fresh)) == (b"other", index, 0)
    assert state(driver.state_store) == (b"other", index)


def test_without_an_outbox_nothing_is_written() -> None:
    driver = Driver()
    driver.entry(enqueue_step("job_1"))
    driver.machine.flush()
    assert not rows(driver.state_store)
    assert driver.state_store.get(keys.OUTBOX_STATE) is None


def test_it_begins_with_the_next_flush_when_there_is_no_space() -> None:
    state_store = FullBase()
    state_store.full = True
    driver = Driver(state_store)
    driver.machine.keep_outbox(b"epoch")
    assert state_store.get(keys.OUTBOX_STATE) is None
    state_store.full = False
    driver.enqueue("job_1")
    driver.machine.flush()
    assert state(state_store) == (b"epoch", 0) and len(rows(state_store)) == 1


def test_that_of_another_node_goes_with_the_base_it_came_in() -> None:
    state_store = MemoryStore()
    driver = Driver(state_store)
    driver.machine.keep_outbox(b"theirs")
    driver.enqueue("job_1")
    driver.machine.flush()
    index = driver.machine.applied_index
    driver.machine.restore(state_store)
    assert driver.machine.keep_outbox(b"ours", anew=True).floor == index
    assert state(state_store) == (b"ours", index) and not rows(state_store)
    driver.enqueue("job_2")
    driver.machine.flush()
    [(_, changed)] = rows(state_store)
    assert changed.jobs == ["job_2"]


def test_that_of_another_node_goes_with_the_next_flush_when_there_is_no_space() -> None:
    state_store = FullBase()
    driver = Driver(state_store)
    driver.machine.keep_outbox(b"theirs")
    driver.enqueue("job_1")
    driver.machine.flush()
    index = driver.machine.applied_index
    state_store.full = True
    driver.machine.restore(state_store)
    driver.machine.keep_outbox(b"ours", anew=True)
    driver.enqueue("job_2")
    with pytest.raises(DiskFull):
        driver.machine.flush()
    state_store.full = False
    driver.machine.flush()
    [(_, changed)] = rows(state_store)
    assert changed.jobs == ["job_2"] and state(state_store) == (b"ours", index)

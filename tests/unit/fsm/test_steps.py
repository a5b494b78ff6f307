"""Work of an entry and of a flush is bounded, however much becomes due or void at once.

The tests count rows: a store counts those that are read, and a flush reports those that it writes.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from lib.consistency import check_machine
from lib.fsm_driver import Driver, batch_step, encode_options, enqueue_step, schedule_step

from corvo import ops
from corvo.engine.schedule_runs import due_runs
from corvo.fsm.state.row_overlay import DROPPED_MIN
from corvo.limits import (
    DUE_LOOKED_AT_MAX,
    DUE_STEP,
    PURGED_BATCHES_MAX,
    REMOVED_WORKERS_MAX,
    SCHEDULE_RUNS_MAX,
    SECOND_NS,
)
from corvo.storage.memory import MemoryStore
from corvo.storage.records import bulk as bulk_records
from corvo.storage.rows import Row

COUNT = 3_000  # jobs that become due at once; more than any step takes
READS_MAX = 6 * DUE_LOOKED_AT_MAX  # of one entry, with the query before it
WRITES_MAX = 10 * DUE_STEP  # of a flush after one entry
SOON_NS = SECOND_NS


class CountingStore(MemoryStore):
    """Counts the rows that are read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    def get(self, key: bytes) -> bytes | None:
        self.reads += 1
        return super().get(key)

    def scan(self, *args: Any, **more: Any) -> Iterator[Row]:
        for row in super().scan(*args, **more):
            self.reads += 1
            yield row


class Rig:
    """A driver that measures each entry, together with the read before it and the flush after."""

    def __init__(self) -> None:
        self.store = CountingStore()
        self.driver = Driver(self.store)
        self.reads = 0  # the most of any entry
        self.writes = 0
        self.entries = 0

    def fill(self, count: int, step: Callable[[int], Any]) -> None:
        """Apply `count` ops, many in each entry."""
        for first in range(0, count, 500):
            numbers = range(first, min(first + 500, count))
            self.driver.entry(*(step(number) for number in numbers))
            self.driver.machine.flush()

    def measure(self, work: Callable[[], Any]) -> Any:
        """Do the work of one entry, and flush."""
        before = self.store.reads
        result = work()
        self.reads = max(self.reads, self.store.reads - before)
        self.writes = max(self.writes, self.driver.machine.flush().documents)
        self.entries += 1
        return result

    def check(self, reads_max: int = READS_MAX, writes_max: int = WRITES_MAX) -> None:
        assert self.reads <= reads_max, self.reads
        assert 0 < self.writes <= writes_max, self.writes


def drain(rig: Rig, due: Callable[[int, int], list[str]], op: ops.Op) -> int:
    """Propose what is due, as the scheduler does, until nothing is; return the number of jobs."""
    driver, found = rig.driver, 0

    def turn() -> int:
        ids = due(driver.now_ns, DUE_STEP)
        if ids:
            driver.do(op, ids)
        return len(ids)

    while count := rig.measure(turn):
        found += count
    return found


def test_jobs_that_expire_at_once() -> None:
    rig = Rig()
    options = encode_options(expire_after_ns=SOON_NS)
    rig.fill(COUNT, lambda n: enqueue_step(f"j{n}", options=options))
    rig.driver.advance(2)
    assert drain(rig, rig.driver.machine.due_expiries, ops.EXPIRE_JOBS) == COUNT
    rig.check()


def test_jobs_that_are_promoted_at_once() -> None:
    rig = Rig()
    at_ns = rig.driver.now_ns + SOON_NS
    rig.fill(COUNT, lambda n: enqueue_step(f"j{n}", scheduled_ns=at_ns))
    rig.driver.advance(2)
    assert drain(rig, rig.driver.machine.due_promotions, ops.PROMOTE_DUE) == COUNT
    rig.check()


def leased(rig: Rig) -> None:
    """Let all jobs be active until a moment ago."""
    rig.fill(COUNT, lambda n: enqueue_step(f"j{n}"))
    for _ in range(0, COUNT, 500):
        rig.driver.fetch_batch(count=500, lease_s=1)
        rig.driver.machine.flush()
    rig.driver.advance(2)


def test_leases_that_end_at_once() -> None:
    rig = Rig()
    leased(rig)
    assert drain(rig, rig.driver.machine.due_leases, ops.EXPIRE_LEASES) == COUNT
    rig.check()


def test_leases_in_their_grace_period() -> None:
    rig = Rig()
    leased(rig)
    machine = rig.driver.machine
    rig.driver.restart()
    machine = rig.driver.machine
    before = rig.store.reads
    assert machine.due_leases(rig.driver.now_ns, DUE_STEP, machine.fencing) == []
    assert 0 < machine.leases_in_grace <= DUE_LOOKED_AT_MAX
    assert rig.store.reads - before <= READS_MAX
    while machine.due_leases(rig.driver.now_ns, DUE_STEP, machine.fencing) or machine.next_due():
        assert machine.leases_in_grace <= COUNT
    assert machine.leases_in_grace == COUNT
    assert drain(rig, machine.due_leases, ops.EXPIRE_LEASES) == COUNT


def test_due_times_that_became_void() -> None:
    """Jobs that were deleted after their time, before the leader has looked."""
    rig = Rig()
    at_ns = rig.driver.now_ns + SOON_NS
    rig.fill(COUNT, lambda n: enqueue_step(f"j{n}", scheduled_ns=at_ns))
    rig.driver.advance(2)
    rig.fill(COUNT, lambda n: (ops.DELETE_JOB, (f"j{n}",)))
    before = rig.store.reads
    assert rig.driver.machine.due_promotions(rig.driver.now_ns, DUE_STEP) == []
    assert rig.store.reads - before <= READS_MAX
    assert 0 < rig.driver.machine.next_due() < rig.driver.now_ns, "the rest is still to be read"


def test_grants_that_leave_a_window_at_once() -> None:
    rig = Rig()
    driver = rig.driver
    driver.do(ops.SET_THROTTLE, "q", COUNT, 60_000)
    rig.fill(COUNT + 10, lambda n: enqueue_step(f"j{n}"))
    for number in range(COUNT):
        driver.now_ns += 1_000
        driver.take()
        if number % 500 == 0:
            driver.machine.flush()
    driver.machine.flush()
    driver.advance(61)
    rig.measure(driver.take)
    assert driver.machine.rate_used("q", driver.now_ns) == 1
    driver.restart()
    assert driver.machine.rate_used("q", driver.now_ns) == 1, "old rows do not count"
    for _ in range(2 * COUNT // DROPPED_MIN):
        rig.measure(lambda: driver.do(ops.RESUME_QUEUE, "q"))
    rig.check()
    check_machine(driver.machine, rig.store)


@pytest.mark.parametrize("flushed", [True, False])
@pytest.mark.parametrize("end", ["unthrottle", "destroy", "again"])
def test_a_rate_limit_that_is_removed(end: str, flushed: bool) -> None:
    rig = Rig()
    driver = rig.driver
    driver.do(ops.SET_THROTTLE, "q", COUNT, 60_000)
    rig.fill(COUNT, lambda n: enqueue_step(f"j{n}"))
    for number in range(COUNT):
        driver.now_ns += 1_000
        driver.ack(driver.take().job_id)
        if flushed and number % 500 == 0:
            driver.machine.flush()
    driver.machine.flush()
    if end == "destroy":
        rig.measure(lambda: driver.do(ops.DELETE_QUEUE, "q", "bulk_1"))
    else:
        rig.measure(lambda: driver.do(ops.REMOVE_THROTTLE, "q"))
    if end == "again":
        driver.do(ops.SET_THROTTLE, "q", 2, 60_000)
        driver.enqueue("new")
        driver.take()
        driver.restart()
        assert driver.machine.rate_used("q", driver.now_ns) == 1, "only starts under this limit"
    rig.check()
    driver.step()
    driver.machine.flush()
    for _ in range(2 * COUNT // DROPPED_MIN):
        rig.measure(lambda: driver.do(ops.PAUSE_QUEUE, "p", False))
    rig.check()
    check_machine(driver.machine, rig.store)


@pytest.mark.parametrize("end", [ops.CLEAR_QUEUE, ops.DELETE_QUEUE])
def test_a_queue_of_very_many_groups_is_cleared(end: ops.Op) -> None:
    rig = Rig()
    driver = rig.driver
    rig.fill(COUNT, lambda n: enqueue_step(f"j{n}", options=encode_options(group_key=f"g{n}")))
    driver.take()
    rig.measure(lambda: driver.do(end, "q", "bulk_1"))
    rig.check()
    driver.restart()
    if end is ops.CLEAR_QUEUE:
        assert len(driver.machine.group_keys("q")) == 1, "that of the active job"
        driver.enqueue("again", options=encode_options(group_key="g7"))
    driver.step()
    driver.machine.flush()
    for _ in range(2 * COUNT // DROPPED_MIN):
        rig.measure(lambda: driver.do(ops.PAUSE_QUEUE, "p", False))
    rig.check()
    check_machine(driver.machine, rig.store)


def test_a_bulk_operation_over_very_many_queues() -> None:
    rig = Rig()
    driver = rig.driver
    rig.fill(COUNT, lambda n: enqueue_step(f"j{n}", queue=f"q{n}"))
    driver.bulk("change_priority", priority=0)
    driver.machine.flush()
    operation = driver.machine.operation("bulk_1")
    assert operation is not None
    assert len(bulk_records.encode_operation(operation)) < 200, "each step writes this row"
    driver.restart()
    driver.enqueue("late", queue="q7")
    driver.step(25)
    operation = driver.machine.operation("bulk_1")
    assert operation is not None and operation.total == COUNT
    assert operation.counts[0] == COUNT, "the set was fixed when it was accepted"
    assert driver.job("late").priority == 2
    driver.machine.flush()
    check_machine(driver.machine, rig.store)


def test_workers_that_are_forgotten_at_once() -> None:
    rig = Rig()
    driver = rig.driver
    count = 3 * REMOVED_WORKERS_MAX
    for first in range(0, count, 500):
        values = ("h", SECOND_NS, 1 << 20)
        numbers = range(first, first + 500)
        driver.entry(*((ops.FETCH, (["q"], f"w{n}", *values)) for n in numbers))
        driver.now_ns += 1
        driver.machine.flush()
    driver.restart()
    driver.advance(60)
    while cutoff_ns := driver.machine.stale_workers(driver.now_ns, REMOVED_WORKERS_MAX):
        removed = rig.measure(lambda at=cutoff_ns: driver.do(ops.REMOVE_STALE_WORKERS, at))
        assert 0 < removed <= REMOVED_WORKERS_MAX + 500, "those seen at one time leave together"
    assert driver.machine.worker_count == 0
    rig.check(writes_max=REMOVED_WORKERS_MAX + 510)


def test_schedules_that_are_due_at_once() -> None:
    rig = Rig()
    driver = rig.driver
    at_ns = driver.now_ns + SOON_NS
    rig.fill(1_000, lambda n: schedule_step(f"s{n}", at_ns, queue="q"))
    driver.advance(2)

    def turn() -> int:
        due = driver.machine.due_schedules(driver.now_ns, SCHEDULE_RUNS_MAX)
        items = [item for row in due for item in due_runs(row, driver.now_ns)]
        if items:
            driver.do(ops.FIRE_SCHEDULE, items)
        return len(items)

    fired = 0
    while count := rig.measure(turn):
        assert count <= SCHEDULE_RUNS_MAX
        fired += count
    assert fired == 1_000


def test_batches_that_are_purged_at_once() -> None:
    rig = Rig()
    driver = rig.driver
    for number in range(2 * PURGED_BATCHES_MAX + 1):
        job = enqueue_step(f"j{number}", options=encode_options(batch_id=f"b{number}"))
        driver.entry(batch_step(f"b{number}", job))
        driver.ack(driver.take().job_id)
    driver.machine.flush()
    driver.advance(10)
    while ids := driver.machine.old_batches(driver.now_ns, PURGED_BATCHES_MAX):
        assert len(ids) <= PURGED_BATCHES_MAX
        assert rig.measure(lambda ids=ids: driver.do(ops.PURGE_BATCHES, ids, 1)) == len(ids)
    rig.check(writes_max=3 * PURGED_BATCHES_MAX)

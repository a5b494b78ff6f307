"""Batches: the members that are counted, when callbacks are enqueued, and that it happens once."""

import json
from typing import Any

import pytest
from lib.consistency import check_machine
from lib.fsm_driver import Driver, batch_step, encode_step, enqueue_step, follower

from corvo import ops
from corvo._fast.codec.layouts import encode_fields
from corvo.errors import CorvoError
from corvo.limits import SECOND_NS
from corvo.model import CANCELLED, COMPLETED, DEAD, PENDING, Batch

CALLBACKS = {
    "on_success": follower("success"),
    "on_complete": follower("complete", b'{"n": 1.50}'),
    "on_death": follower("death", b"[1]"),
}


def make(driver: Driver, *ids: str, **fields: Any) -> None:
    jobs = [enqueue_step(job_id, batch_id="B", **fields) for job_id in ids]
    result = driver.entry(batch_step("B", *jobs, **CALLBACKS))[0]
    assert result.batch_id == "B"


def batch(driver: Driver) -> Batch:
    found = driver.machine.batch("B")
    assert found is not None
    return found


def counts(driver: Driver) -> tuple[int, int, int, int]:
    found = batch(driver)
    return found.total, found.pending, found.succeeded, found.failed


def jobs_of(driver: Driver, queue: str) -> int:
    found = driver.machine.queue(queue)
    return 0 if found is None else found.jobs(PENDING)


def called(driver: Driver) -> list[str]:
    """Callbacks that were enqueued; none of them twice."""
    names = [name for name in ("death", "complete", "success") if jobs_of(driver, name)]
    assert all(jobs_of(driver, name) == 1 for name in names)
    return names


def complete(driver: Driver, job_id: str) -> None:
    fetched = driver.take()
    assert fetched.job_id == job_id
    assert driver.ack(job_id, fetched.token) is None


def die(driver: Driver, job_id: str) -> None:
    assert driver.take().job_id == job_id
    driver.fail(job_id, no_retry=True)


def cancel_active(driver: Driver, job_id: str) -> None:
    assert driver.take().job_id == job_id
    driver.cancel(job_id)
    driver.fail(job_id)


def lose(driver: Driver, job_id: str) -> None:
    assert driver.take().job_id == job_id
    driver.advance(61)
    driver.tick()


def time_out(driver: Driver, job_id: str) -> None:
    driver.act("hold", job_id, hold_timeout_ns=SECOND_NS)
    driver.advance(1)
    driver.tick()


def clear(driver: Driver, job_id: str, op: ops.Op) -> None:
    driver.act("move", job_id, target="gone")
    driver.do(op, "gone", "bulk_1")


ENDS = {
    "completed": complete,
    "dead": die,
    "cancelled": lambda driver, job_id: driver.cancel(job_id),
    "cancelled while active": cancel_active,
    "deleted": lambda driver, job_id: driver.do(ops.DELETE_JOB, job_id),
    "lease ended": lose,
    "rejected": lambda driver, job_id: (driver.act("hold", job_id), driver.act("reject", job_id)),
    "nobody decided": time_out,
    "bulk delete": lambda driver, job_id: driver.act("delete", job_id),
    "cleared": lambda driver, job_id: clear(driver, job_id, ops.CLEAR_QUEUE),
    "queue deleted": lambda driver, job_id: clear(driver, job_id, ops.DELETE_QUEUE),
}


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("end", ENDS)
def test_every_end_counts_once_and_calls_back_once(end: str, restart: bool) -> None:
    driver = Driver()
    make(driver, "a", "b", max_retries=1)
    assert counts(driver) == (2, 2, 0, 0) and called(driver) == []
    ENDS[end](driver, "a")
    if restart:
        driver.restart()
    success = end == "completed"
    assert counts(driver) == (2, 1, int(success), int(not success))
    assert called(driver) == ([] if success else ["death"])
    assert driver.machine.batch_members("B", 9) == ["b"]
    driver.do(ops.DELETE_JOB, "a")  # an end that is no end any more
    complete(driver, "b")
    assert counts(driver) == (2, 0, 1 + success, 1 - success)
    assert called(driver) == (["complete", "success"] if success else ["death", "complete"])
    driver.cancel("b", force=True)
    driver.do(ops.DELETE_JOB, "b")
    assert counts(driver) == (2, 0, 1 + success, 1 - success)
    driver.machine.flush()
    check_machine(driver.machine, driver.state_store)


def test_a_batch_that_expires() -> None:
    driver = Driver()
    make(driver, "a", "b", expire_after_ns=3_600 * SECOND_NS)
    driver.advance(3_600)
    driver.tick()
    assert counts(driver) == (2, 0, 0, 2) and called(driver) == ["death", "complete"]


def test_both_ends_in_one_entry_and_one_op() -> None:
    driver = Driver()
    make(driver, "a", "b")
    tokens = [job.token for job in driver.fetch_batch()]
    layout = ops.ACK.layout
    acks = [
        encode_fields(layout, (job_id, token, b"", b"", b""))
        for job_id, token in zip("abab", tokens * 2, strict=True)
    ]
    results = driver.entry((ops.ACK_BATCH, (acks,)), (ops.ACK, ("a", tokens[0], b"", b"", b"")))
    assert results[0].count == 4 and results[1] is None, "an ack that is repeated is welcome"
    assert counts(driver) == (2, 0, 2, 0)
    assert called(driver) == ["complete", "success"]


def test_payloads_of_callbacks() -> None:
    driver = Driver()
    make(driver, "a", "b")
    die(driver, "a")
    complete(driver, "b")
    death, done = driver.take("death"), driver.take("complete")
    assert json.loads(death.payload) == {
        "payload": [1],
        "batch": {"id": "B", "total": 2, "succeeded": 0, "failed": 1},
    }
    assert done.payload.endswith(b'"n": 1.50}')
    assert json.loads(done.payload)["batch"] == {
        "id": "B",
        "total": 2,
        "succeeded": 1,
        "failed": 1,
    }
    job = driver.job(done.job_id)
    assert (job.max_retries, job.priority, job.options) == (3, 2, None)
    assert (job.base_delay_ms, job.max_delay_ms, job.jitter_ppm) == (5_000, 600_000, 100_000)


@pytest.mark.parametrize(
    ("payload", "name"), [(b"", "batch"), (b"{}", "batch"), (b'{"batch":1}', "_batch")]
)
def test_a_payload_with_a_batch_of_its_own(payload: bytes, name: str) -> None:
    driver = Driver()
    job = enqueue_step("a", batch_id="B")
    driver.entry(batch_step("B", job, on_complete=follower("complete", payload)))
    complete(driver, "a")
    members = json.loads(driver.take("complete").payload)
    assert members.pop(name)["total"] == 1
    assert members == ({"batch": 1} if name == "_batch" else {})


def test_adding_to_an_open_batch_and_to_no_other() -> None:
    driver = Driver()
    make(driver, "a")
    driver.enqueue("b", batch_id="B")
    more = [encode_step(enqueue_step(job_id, batch_id="B")) for job_id in ("c", "d")]
    assert driver.do(ops.ENQUEUE_BATCH, more, b"").batch_id == ""
    assert counts(driver) == (4, 4, 0, 0)
    for job_id in "abcd":
        complete(driver, job_id)
    assert called(driver) == ["complete", "success"]
    late = enqueue_step("e", queue="new", batch_id="B")
    for step in (late, (ops.ENQUEUE_BATCH, ([encode_step(late)], b""))):
        refusal = driver.entry(step)[0]
        assert isinstance(refusal, CorvoError) and refusal.code == "CONFLICT"
    assert refusal.fields == {"index": 0}
    unknown = driver.entry(enqueue_step("f", batch_id="nope"))[0]
    assert isinstance(unknown, CorvoError) and unknown.code == "NOT_FOUND"
    assert driver.machine.queue("new") is None, "a refusal leaves nothing behind"


def test_a_refused_batch_takes_no_job() -> None:
    driver = Driver()
    jobs = [enqueue_step("a", batch_id="B"), enqueue_step("b", batch_id="B", depends_on=["x"])]
    refusal = driver.entry(batch_step("B", *jobs))[0]
    assert isinstance(refusal, CorvoError) and refusal.fields["index"] == 1
    assert driver.machine.batch("B") is None and driver.machine.job("a") is None


def test_duplicates_are_no_members() -> None:
    driver = Driver()
    driver.enqueue("old", unique_key=b"K")
    keyed = [enqueue_step(job_id, batch_id="B", unique_key=b"K") for job_id in "ab"]
    driver.entry(batch_step("B", *keyed, enqueue_step("c", batch_id="B"), **CALLBACKS))
    assert counts(driver) == (1, 1, 0, 0)


def test_a_batch_of_duplicates_alone_has_finished() -> None:
    driver = Driver()
    driver.enqueue("old", unique_key=b"K")
    make(driver, "a", unique_key=b"K")
    assert counts(driver) == (0, 0, 0, 0) and batch(driver).finished_ns == driver.now_ns
    assert called(driver) == ["complete", "success"]


def test_a_job_that_is_run_again_does_not_come_back() -> None:
    driver = Driver()
    make(driver, "a", "b")
    die(driver, "a")
    driver.do(ops.RETRY_JOB, "a")
    assert counts(driver) == (2, 1, 0, 1)
    complete(driver, "b")
    assert called(driver) == ["death", "complete"]
    complete(driver, "a")
    assert counts(driver) == (2, 0, 1, 1) and called(driver) == ["death", "complete"]
    assert driver.state("a") == COMPLETED


def test_a_batch_without_callbacks() -> None:
    driver = Driver()
    driver.entry(batch_step("B", enqueue_step("a", batch_id="B")))
    complete(driver, "a")
    assert batch(driver).finished_ns == driver.now_ns
    assert [queue.name for queue in driver.machine.queues()] == ["q"]


def test_a_finished_batch_is_purged_in_time() -> None:
    driver = Driver()
    make(driver, "a")
    keep_ns = 60 * SECOND_NS
    complete(driver, "a")
    assert driver.machine.old_batches(driver.now_ns, 9) == [], "it is not flushed yet"
    driver.restart()
    driver.advance(59)
    assert driver.machine.old_batches(driver.now_ns - keep_ns, 9) == []
    assert driver.do(ops.PURGE_BATCHES, ["B", "nope"], keep_ns) == 0
    driver.advance(1)
    assert driver.machine.old_batches(driver.now_ns - keep_ns, 9) == ["B"]
    assert driver.do(ops.PURGE_BATCHES, ["B", "nope"], keep_ns) == 1
    assert driver.machine.batch("B") is None
    assert driver.machine.old_batches(driver.now_ns - keep_ns, 9) == []
    driver.machine.flush()
    assert not list(driver.state_store.scan(b"b"))
    check_machine(driver.machine, driver.state_store)


def test_an_open_batch_is_never_purged() -> None:
    driver = Driver()
    make(driver, "a")
    driver.advance(10**6)
    assert driver.do(ops.PURGE_BATCHES, ["B"], 0) == 0


def test_a_batch_of_a_waiting_job_that_fails_with_its_dependency() -> None:
    driver = Driver()
    driver.enqueue("first", queue="other")
    make(driver, "a", depends_on=["first"])
    driver.cancel("first")
    assert driver.state("a") == DEAD and driver.state("first") == CANCELLED
    assert counts(driver) == (1, 0, 0, 1) and called(driver) == ["death", "complete"]

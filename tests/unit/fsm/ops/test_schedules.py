"""Schedules in the state machine: one job an occurrence, whatever happens around it."""

from typing import Any

import pytest
from lib.consistency import check_machine
from lib.fsm_driver import START_NS, Driver, chain, encode_options, follower, schedule_step

from corvo import ops
from corvo._fast.codec import keys
from corvo._fast.codec.layouts import encode_fields
from corvo.engine.schedule_runs import next_after_change
from corvo.errors import Conflict, InvalidName, NotFound
from corvo.events import EVENT_TYPES
from corvo.limits import OCCURRENCE_LATE_MAX_NS, SECOND_NS
from corvo.model import PENDING, Enqueued, Schedule
from corvo.platform import cron
from corvo.platform.ids import derived_id

MINUTE_NS = 60 * SECOND_NS
HOUR_S = 3_600
CHAINED = {"options": encode_options(chain=chain(follower("cXd")))}
FIRST_NS = (START_NS // MINUTE_NS + 1) * MINUTE_NS  # the first full minute of a driver


def make(driver: Driver, schedule_id: str = "s", **fields: Any) -> Schedule:
    """A schedule of each minute."""
    next_ns = (driver.now_ns // MINUTE_NS + 1) * MINUTE_NS
    result = driver.entry(schedule_step(schedule_id, next_ns, **fields))[0]
    assert isinstance(result, Schedule)
    return result


def encoded_run(occurrence_ns: int, revision: int = 1, next_ns: int = 0) -> bytes:
    values = ("s", revision, occurrence_ns, occurrence_ns, next_ns or occurrence_ns + MINUTE_NS)
    return encode_fields(ops.RUN_LAYOUT, values)


def occurrences_of(driver: Driver) -> list[int]:
    """Times of all jobs of queue q, in order; they are taken for a day."""
    runs = driver.fetch_batch(count=500, lease_s=24 * HOUR_S)
    return [driver.job(run.job_id).schedule_occurrence_ns for run in runs]


def events(driver: Driver) -> list[tuple[str, bytes]]:
    """Type and data of what the last entry did."""
    return [(EVENT_TYPES[change.type], change.data) for change in driver.machine.take_events()]


def test_an_occurrence_makes_a_job() -> None:
    driver = Driver()
    made = make(driver, name="each minute", payload=b'{"n":1}', priority=0, tags=b'{"a":"b"}')
    assert (made.revision, made.next_ns, made.created_ns) == (1, FIRST_NS, START_NS)
    assert driver.machine.next_due() == FIRST_NS
    driver.now_ns = FIRST_NS - 1
    driver.tick()
    assert driver.fetch() is None
    driver.now_ns = FIRST_NS + 3_000_000
    driver.tick()
    run = driver.take()
    assert (run.payload, run.schedule_id, run.schedule_occurrence_ns) == (b'{"n":1}', "s", FIRST_NS)
    job = driver.job(run.job_id)
    assert (job.id, job.tags, job.priority) == (
        derived_id(FIRST_NS, "s", str(FIRST_NS)),
        b'{"a":"b"}',
        0,
    )
    assert job.created_ns == driver.now_ns
    schedule = driver.schedule("each minute")
    assert schedule is driver.schedule("s")
    assert (schedule.next_ns, schedule.last_occurrence_ns) == (FIRST_NS + MINUTE_NS, FIRST_NS)
    assert (schedule.last_run_ns, schedule.last_job_id) == (driver.now_ns, job.id)
    assert driver.machine.next_due() == min(schedule.next_ns, job.lease_expires_ns)


def test_an_occurrence_is_fired_once() -> None:
    """By two leaders in one entry, again later, after an update, and after a restart."""
    driver = Driver()
    make(driver)
    driver.now_ns = FIRST_NS
    first = (ops.FIRE_SCHEDULE, ([encoded_run(FIRST_NS)],))
    assert driver.entry(first, first) == [1, 0]
    assert driver.entry(first) == [0]
    driver.restart()
    assert driver.entry(first) == [0]
    next_ns = FIRST_NS + MINUTE_NS
    make(driver, revision=1)
    assert driver.do(ops.FIRE_SCHEDULE, [encoded_run(next_ns, revision=1)]) == 0
    assert driver.do(ops.FIRE_SCHEDULE, [encoded_run(next_ns, revision=2)]) == 1
    assert occurrences_of(driver) == [FIRST_NS, next_ns]


@pytest.mark.parametrize("flush", [False, True])
def test_a_schedule_survives_a_restart(flush: bool) -> None:
    driver = Driver()
    make(driver, name="n", overlap="skip", catch_up="all", limit=7, unique_key=b"k")
    driver.machine.flush()
    driver.now_ns = FIRST_NS
    driver.tick()
    index, before = driver.machine.applied_index, vars_of(driver.schedule("s"))
    driver.restart(flush)
    if flush:
        assert vars_of(driver.schedule("n")) == before
    else:
        assert driver.machine.applied_index < index  # as of the first flush: it fires again
        driver.tick()
        assert vars_of(driver.schedule("n")) == before
    check = driver.machine.flush()
    assert check.index == driver.machine.applied_index
    check_machine(driver.machine, driver.state_store)


def vars_of(schedule: Schedule) -> tuple[Any, ...]:
    last = (schedule.last_occurrence_ns, schedule.last_run_ns, schedule.last_job_id)
    modes = (schedule.overlap, schedule.catch_up, schedule.catch_up_limit, schedule.enabled)
    return (
        schedule.id,
        schedule.name,
        schedule.cron,
        schedule.timezone,
        schedule.next_ns,
        *last,
        *modes,
    )


@pytest.mark.parametrize(
    ("catch_up", "limit", "expected"),
    [("none", 10, 0), ("last", 10, 1), ("all", 10, 10), ("all", 500, 120)],
)
def test_two_hours_down(catch_up: str, limit: int, expected: int) -> None:
    driver = Driver()
    make(driver, catch_up=catch_up, limit=limit)
    driver.machine.flush()
    driver.restart()
    driver.now_ns = FIRST_NS + 119 * MINUTE_NS + 30 * SECOND_NS
    driver.tick()
    last_ns = FIRST_NS + 119 * MINUTE_NS
    missed = [last_ns - n * MINUTE_NS for n in reversed(range(expected))]
    assert occurrences_of(driver) == missed
    for n in range(1, 4):
        driver.now_ns = last_ns + n * MINUTE_NS
        driver.tick()
        assert occurrences_of(driver) == [driver.now_ns]


def test_dropped_occurrences_are_events() -> None:
    driver = Driver()
    make(driver, catch_up="none")
    driver.advance(HOUR_S)
    driver.tick()
    data = b'{"schedule_id":"s","schedule_slot_ns":%d,"reason":"missed"}' % FIRST_NS
    assert events(driver) == [("schedule.skipped", data)]
    make(driver, revision=1)
    next_ns = driver.schedule("s").next_ns
    driver.advance(HOUR_S)
    driver.tick()
    data = b'{"schedule_id":"s","schedule_slot_ns":%d,"reason":"missed"}' % next_ns
    skipped, enqueued = events(driver)
    assert skipped == ("schedule.skipped", data)
    assert enqueued[0] == "enqueued"


@pytest.mark.parametrize("late_ns", [0, OCCURRENCE_LATE_MAX_NS])
def test_an_occurrence_that_is_a_little_late_was_not_missed(late_ns: int) -> None:
    driver = Driver()
    make(driver, catch_up="none")
    driver.now_ns = FIRST_NS + late_ns
    driver.tick()
    assert occurrences_of(driver) == [FIRST_NS]


def test_no_overlap() -> None:
    driver = Driver()
    make(driver, overlap="skip", catch_up="all")
    driver.now_ns = FIRST_NS + 3 * MINUTE_NS
    driver.tick()  # four occurrences, one job
    run = driver.take(lease_s=HOUR_S)
    assert driver.fetch() is None
    live = driver.do(ops.RUN_SCHEDULE, "s", "by_hand")
    assert isinstance(live, Conflict) and live.fields["holder_id"] == run.job_id
    driver.advance(60)
    driver.tick()
    data = b'{"schedule_id":"s","schedule_slot_ns":%d,"reason":"overlap"}' % driver.now_ns
    assert events(driver) == [("schedule.skipped", data)]
    assert driver.schedule("s").last_occurrence_ns == run.schedule_occurrence_ns
    driver.ack(run.job_id, run.token)
    assert driver.do(ops.RUN_SCHEDULE, "s", "by_hand").job_id == "by_hand"
    driver.advance(60)
    driver.tick()
    assert [run.job_id for run in driver.fetch_batch()] == ["by_hand"]
    driver.do(ops.DELETE_JOB, "by_hand")
    driver.advance(60)
    driver.tick()
    assert occurrences_of(driver) == [driver.now_ns]


def test_with_overlap_every_occurrence_has_its_job() -> None:
    driver = Driver()
    make(driver)
    for n in range(3):
        driver.now_ns = FIRST_NS + n * MINUTE_NS
        driver.tick()
    assert occurrences_of(driver) == [FIRST_NS + n * MINUTE_NS for n in range(3)]


def test_a_unique_key_that_is_held_makes_no_job() -> None:
    driver = Driver()
    make(driver, unique_key=b"k")
    driver.enqueue("holder", unique_key=b"k")
    driver.now_ns = FIRST_NS
    driver.tick()
    data = b'{"schedule_id":"s","schedule_slot_ns":%d,"reason":"duplicate"}' % FIRST_NS
    assert events(driver) == [("schedule.skipped", data)]
    assert driver.schedule("s").last_job_id == ""
    again = driver.do(ops.RUN_SCHEDULE, "s", "by_hand")
    assert (again.job_id, again.duplicate) == ("holder", True)
    driver.ack(driver.take().job_id)
    driver.advance(60)
    driver.tick()
    assert occurrences_of(driver) == [FIRST_NS + MINUTE_NS]


def test_run_by_hand() -> None:
    driver = Driver()
    schedule = make(driver, payload=b"7")
    result = driver.do(ops.RUN_SCHEDULE, "s", "by_hand")
    assert isinstance(result, Enqueued) and (result.job_id, result.state) == ("by_hand", PENDING)
    job = driver.job("by_hand")
    assert (job.payload, job.schedule_id, job.schedule_occurrence_ns) == (b"7", "s", 0)
    assert (schedule.next_ns, schedule.last_occurrence_ns) == (FIRST_NS, 0)
    assert (schedule.last_run_ns, schedule.last_job_id) == (START_NS, "by_hand")
    assert isinstance(driver.do(ops.RUN_SCHEDULE, "t", "job_2"), NotFound)


def test_a_paused_schedule_has_no_next_run() -> None:
    driver = Driver()
    make(driver)
    paused = driver.entry(schedule_step("s", 0, revision=1))[0]
    assert (paused.enabled, paused.next_ns) == (False, 0)
    assert driver.machine.next_due() == 0
    driver.advance(HOUR_S)
    driver.tick()
    assert driver.fetch() is None
    make(driver, revision=2)
    driver.advance(60)
    driver.tick()
    assert occurrences_of(driver) == [FIRST_NS + 60 * MINUTE_NS]


def test_what_set_refuses() -> None:
    driver = Driver()
    make(driver, "a", name="n")
    make(driver, "b", name="m")
    taken = driver.entry(schedule_step("c", FIRST_NS, name="n"))[0]
    assert isinstance(taken, Conflict) and taken.fields == {"schedule_id": "a"}
    taken = driver.entry(schedule_step("b", FIRST_NS, revision=1, name="n"))[0]
    assert isinstance(taken, Conflict)
    stale = driver.entry(schedule_step("a", FIRST_NS, revision=7, name="n"))[0]
    assert isinstance(stale, Conflict) and "changed meanwhile" in stale.message
    assert isinstance(driver.entry(schedule_step("c", FIRST_NS, revision=1))[0], NotFound)
    assert [(row.id, row.revision) for row in driver.machine.schedules()] == [("b", 1), ("a", 1)]


def test_a_name_is_free_when_its_schedule_has_another_or_is_gone() -> None:
    driver = Driver()
    make(driver, "a", name="n")
    make(driver, "a", name="m", revision=1)
    make(driver, "b", name="n")
    assert driver.do(ops.DELETE_SCHEDULE, "b") is None
    assert isinstance(driver.do(ops.DELETE_SCHEDULE, "b"), NotFound)
    make(driver, "c", name="n")
    assert [row.id for row in driver.machine.schedules()] == ["a", "c"]
    driver.machine.flush()
    assert [key for key, _ in driver.state_store.scan(keys.SCHEDULE)] == [b"sc|a", b"sc|c"]


def test_a_deleted_schedule_fires_no_more() -> None:
    driver = Driver()
    make(driver)
    driver.machine.flush()
    driver.do(ops.DELETE_SCHEDULE, "s")
    driver.now_ns = FIRST_NS
    assert driver.do(ops.FIRE_SCHEDULE, [encoded_run(FIRST_NS)]) == 0
    assert driver.machine.next_due() == 0
    driver.machine.flush()
    check_machine(driver.machine, driver.state_store)
    assert list(driver.state_store.scan(keys.SCHEDULE)) == []


def test_events_name_the_schedule() -> None:
    driver = Driver()
    make(driver)
    assert events(driver) == [("schedule.set", b'{"schedule_id":"s","revision":1}')]
    driver.now_ns = FIRST_NS
    driver.tick()
    data = b'{"state":"pending","priority":2,"schedule_id":"s","schedule_slot_ns":%d}' % FIRST_NS
    assert events(driver) == [("enqueued", data)]
    driver.do(ops.RUN_SCHEDULE, "s", "by_hand")
    assert events(driver) == [("enqueued", b'{"state":"pending","priority":2,"schedule_id":"s"}')]
    driver.do(ops.DELETE_SCHEDULE, "s")
    assert events(driver) == [("schedule.deleted", b'{"schedule_id":"s"}')]


def test_many_are_due_at_once() -> None:
    driver = Driver()
    for n in range(5):
        make(driver, f"s{n}", queue=f"q{n}")
    make(driver, "s0", queue="q0", revision=1)
    now_ns = FIRST_NS
    assert [row.id for row in driver.machine.due_schedules(now_ns, 3)] == ["s0", "s1", "s2"]
    assert [row.id for row in driver.machine.due_schedules(now_ns, 9)] == [
        f"s{n}" for n in range(5)
    ]
    assert driver.machine.due_schedules(now_ns - 1, 9) == []


def test_the_heap_of_occurrences_does_not_grow_with_updates() -> None:
    driver = Driver()
    for revision in range(2_000):
        driver.entry(schedule_step("s", FIRST_NS + revision, revision=revision))
    driver.machine.flush()
    assert len(driver.machine._state.occurrences) == 1
    assert driver.machine.next_due() == FIRST_NS + 1_999


def test_a_change_does_not_lose_the_occurrence_that_is_due() -> None:
    """A change between an occurrence and its run."""
    expression = cron.parse("*/5 * * * *", "UTC")
    occurrence_ns = START_NS // MINUTE_NS // 5 * 5 * MINUTE_NS
    for now_ns in (occurrence_ns, occurrence_ns + 1, occurrence_ns + SECOND_NS):
        assert next_after_change(expression, now_ns, occurrence_ns) == occurrence_ns
        assert next_after_change(expression, now_ns, 0) == occurrence_ns + 5 * MINUTE_NS
    assert next_after_change(expression, occurrence_ns - 1, occurrence_ns) == occurrence_ns
    assert (
        next_after_change(expression, occurrence_ns - 1, occurrence_ns + 5 * MINUTE_NS)
        == occurrence_ns
    )


def test_a_schedule_whose_zone_is_gone_fires_what_is_due_and_stops(
    caplog: pytest.LogCaptureFixture,
) -> None:
    driver = Driver()
    make(driver, cron="not valid any more")
    driver.now_ns = FIRST_NS
    driver.tick()
    assert occurrences_of(driver) == [FIRST_NS]
    assert driver.schedule("s").next_ns == 0
    assert "schedule s has no further run" in caplog.text


@pytest.mark.parametrize("place", ["queue", "chain"])
def test_occurrences_of_an_invalid_template_pass_without_a_job(place: str) -> None:
    """An earlier version could store a template with a name that is refused now."""
    driver = Driver()
    made = make(driver, "s")
    odd = make(driver, "odd", queue="aXb" if place == "queue" else "q", **CHAINED)
    odd.job = odd.job.replace(b"aXb" if place == "queue" else b"cXd", b"a\0b")
    driver.now_ns = FIRST_NS
    runs = [encoded_run(FIRST_NS)]
    values = ("odd", 1, FIRST_NS, FIRST_NS, FIRST_NS + MINUTE_NS)
    runs.append(encode_fields(ops.RUN_LAYOUT, values))
    assert isinstance(driver.do(ops.RUN_SCHEDULE, "odd", "job_1"), InvalidName)
    assert events(driver) == []
    assert driver.do(ops.FIRE_SCHEDULE, runs[::-1]) == 1
    assert (made.next_ns, odd.next_ns) == (FIRST_NS + MINUTE_NS, FIRST_NS + MINUTE_NS)
    assert driver.machine.queue("q").jobs(PENDING) == 1

"""Ops on schedules. The leader names the occurrence that is due and the next one.

A run names the stored next run that it is for. Once it is applied, the stored next run is later,
and an update changes the revision. A run that is repeated, late or from an earlier leader therefore
has no effect.
"""

from typing import Final

from corvo import events, ops
from corvo._fast.codec.layouts import decode_fields
from corvo.errors import Conflict, CorvoError, InvalidName, NotFound, cut
from corvo.fsm.ops import Apply, jobs
from corvo.fsm.state.state import State
from corvo.limits import SCHEDULES_MAX
from corvo.model import ENDED, STATES, Enqueued, Job, Schedule
from corvo.platform.ids import derived_id

SKIP: Final = 1  # index of model.OVERLAPS


def _not_found(schedule_id: str) -> NotFound:
    return NotFound(f'schedule "{cut(schedule_id)}" not found')


def set_schedule(state: State, payload: bytes) -> object:
    """Apply SetSchedule: create a schedule or a new revision; the result is the schedule."""
    schedule_id: str
    revision: int
    schedule = Schedule("")
    (
        # <generated: unpack SET_SCHEDULE schedule>
        schedule_id,
        revision,
        schedule.name,
        schedule.cron,
        schedule.timezone,
        schedule.job,
        schedule.enabled,
        schedule.overlap,
        schedule.catch_up,
        schedule.catch_up_limit,
        schedule.next_ns,
        # </generated>
    ) = decode_fields(ops.SET_SCHEDULE.layout, payload)
    schedule.id = schedule_id
    queue = _check_template(schedule)
    old = state.schedules.get(schedule_id)
    refusal = _refusal(state, schedule, revision, old)
    if refusal is not None:
        return refusal
    schedule.revision = revision + 1
    if old is None:
        schedule.created_ns = state.stamp_ns
    else:
        del state.schedule_names[old.name]
        schedule.created_ns = old.created_ns
        schedule.last_occurrence_ns = old.last_occurrence_ns
        schedule.last_run_ns = old.last_run_ns
        schedule.last_job_id = old.last_job_id
    state.put_schedule(schedule)
    state.buffer.touch_schedule(schedule)
    data = b'{"schedule_id":"%s","revision":%d}' % (schedule_id.encode(), schedule.revision)
    state.emit_queue(queue, events.SCHEDULE_SET, data)
    return schedule


def _refusal(
    state: State, schedule: Schedule, revision: int, old: Schedule | None
) -> CorvoError | None:
    if old is None and revision:
        return _not_found(schedule.id)
    if old is not None and old.revision != revision:
        return Conflict(f'schedule "{old.name}" was changed meanwhile: read it again')
    holder = state.schedule_names.get(schedule.name, schedule.id)
    if holder != schedule.id:
        return Conflict(f'the name "{schedule.name}" is taken', schedule_id=holder)
    if old is None and len(state.schedules) >= SCHEDULES_MAX:
        return Conflict(f"there are {SCHEDULES_MAX} schedules already (limit {SCHEDULES_MAX})")
    return None


def delete_schedule(state: State, payload: bytes) -> object:
    """Apply DeleteSchedule. Jobs that it has created stay."""
    schedule_id: str
    (schedule_id,) = decode_fields(ops.DELETE_SCHEDULE.layout, payload)
    schedule = state.schedules.get(schedule_id)
    if schedule is None:
        return _not_found(schedule_id)
    queue = queue_of(schedule)
    del state.schedules[schedule_id]
    del state.schedule_names[schedule.name]
    state.buffer.delete_schedule(schedule_id)
    data = b'{"schedule_id":"%s"}' % schedule_id.encode()
    state.emit_queue(queue, events.SCHEDULE_DELETED, data)
    return None


def fire_schedule(state: State, payload: bytes) -> object:
    """Apply FireSchedule to due occurrences; the result is the number of new jobs. A template that
    an earlier version stored can have an invalid name: its occurrences pass without a job, so that
    other schedules still run."""
    runs: list[bytes]
    (runs,) = decode_fields(ops.FIRE_SCHEDULE.layout, payload)
    schedule_id: str
    revision: int
    due_ns: int
    occurrence_ns: int
    next_ns: int
    made = 0
    for item in runs:
        schedule_id, revision, due_ns, occurrence_ns, next_ns = decode_fields(ops.RUN_LAYOUT, item)
        schedule = state.schedules.get(schedule_id)
        if schedule is None or schedule.revision != revision or schedule.next_ns != due_ns:
            continue
        schedule.next_ns = next_ns
        state.put_schedule(schedule)
        state.buffer.touch_schedule(schedule)
        try:
            _check_template(schedule)
        except InvalidName:
            continue
        made += _fire(state, schedule, due_ns, occurrence_ns)
    return made


def _fire(state: State, schedule: Schedule, due_ns: int, occurrence_ns: int) -> bool:
    """Create the job of one occurrence, unless it is missed or overlaps. Return whether a job was
    created."""
    if occurrence_ns != due_ns:  # occurrences from the due one on were missed
        _skip(state, schedule, due_ns, b"missed")
    if occurrence_ns == 0:
        return False
    if schedule.overlap == SKIP and _live(state, schedule) is not None:
        _skip(state, schedule, occurrence_ns, b"overlap")
        return False
    result = _make(
        state, schedule, derived_id(occurrence_ns, schedule.id, str(occurrence_ns)), occurrence_ns
    )
    if result.duplicate:
        _skip(state, schedule, occurrence_ns, b"duplicate")
        return False
    schedule.last_occurrence_ns = occurrence_ns
    return True


def run_schedule(state: State, payload: bytes) -> object:
    """Apply RunSchedule: create a job now; the occurrences do not change."""
    schedule_id: str
    job_id: str
    schedule_id, job_id = decode_fields(ops.RUN_SCHEDULE.layout, payload)
    schedule = state.schedules.get(schedule_id)
    if schedule is None:
        return _not_found(schedule_id)
    live = _live(state, schedule) if schedule.overlap == SKIP else None
    if live is not None:
        return Conflict(
            f'schedule "{schedule.name}" allows no overlap, and its job "{live.id}" has not ended',
            holder_id=live.id,
            holder_state=STATES[live.state],
        )
    _check_template(schedule)
    state.buffer.touch_schedule(schedule)
    return _make(state, schedule, job_id, 0)


def _make(state: State, schedule: Schedule, job_id: str, occurrence_ns: int) -> Enqueued:
    job, queue, options = jobs.read_enqueue(schedule.job)
    job.id = job_id
    job.schedule_id = schedule.id
    job.schedule_occurrence_ns = occurrence_ns
    result = jobs.create(state, job, queue, options)
    if not result.duplicate:
        schedule.last_run_ns = state.stamp_ns
        schedule.last_job_id = job_id
    return result


def _live(state: State, schedule: Schedule) -> Job | None:
    """Return the last job of a schedule if it has not finished."""
    job = state.buffer.find(schedule.last_job_id) if schedule.last_job_id else None
    return None if job is None or ENDED[job.state] else job


def _skip(state: State, schedule: Schedule, occurrence_ns: int, reason: bytes) -> None:
    data = b'{"schedule_id":"%s","schedule_slot_ns":%d,"reason":"%s"}' % (
        schedule.id.encode(),
        occurrence_ns,
        reason,
    )
    state.emit_queue(queue_of(schedule), events.SCHEDULE_SKIPPED, data)


def _check_template(schedule: Schedule) -> str:
    """Decode the whole template of a schedule and return its queue. Raises InvalidName."""
    _, queue, options = jobs.read_enqueue(schedule.job)
    if options:
        jobs.read_options(options)
    return queue


def queue_of(schedule: Schedule) -> str:
    """Return the queue of the schedule's jobs."""
    _, queue, _ = jobs.read_enqueue(schedule.job)
    return queue


APPLY: Final[dict[int, Apply]] = {
    ops.SET_SCHEDULE.number: set_schedule,
    ops.DELETE_SCHEDULE.number: delete_schedule,
    ops.FIRE_SCHEDULE.number: fire_schedule,
    ops.RUN_SCHEDULE.number: run_schedule,
}

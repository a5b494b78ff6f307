"""Whether a base tells one story: every row is there, once, and agrees with the others."""

from collections import Counter
from typing import Any

from corvo._fast import keys
from corvo._fast.ready import SEQ_BITS, ReadyIndex
from corvo.fsm import index_rows
from corvo.fsm.machine import Machine
from corvo.kv import documents
from corvo.kv.meta import Meta, decode_meta
from corvo.kv.rows import Rows
from corvo.model import (
    ACTIVE,
    CANCELLED,
    COMPLETED,
    DEAD,
    ENDED,
    PENDING,
    RETRYING,
    SCHEDULED,
    Job,
    Queue,
)

FINAL, START, SUCCESS, PERIOD = range(4)


def read_jobs(base: Rows) -> dict[str, Job]:
    """All jobs, whole."""
    jobs: dict[str, Job] = {}
    for key, head in base.scan(keys.JOB):
        job = documents.decode_head(keys.parse_job(key), head)
        if job.body_apart:
            body = base.get(keys.body(job.id))
            assert body is not None, f"{job.id} has no body"
            documents.decode_body(job, body)
        data = base.get(keys.data(job.id))
        if data is not None:
            documents.decode_data(job, data)
        if job.has_extras:
            extras = base.get(keys.extras(job.id))
            assert extras is not None, f"{job.id} has no extras"
            job.extras = documents.decode_extras(job.id, extras)
        jobs[job.id] = job
    return jobs


def check_rows(base: Rows) -> None:
    """Check all rows of a base against each other."""
    stored = base.get(keys.META)
    meta = Meta() if stored is None else decode_meta(stored)
    jobs = read_jobs(base)
    queues = {
        queue.number: queue
        for queue in (
            documents.decode_queue(keys.parse_queue(key), row) for key, row in base.scan(keys.QUEUE)
        )
    }
    check_index_rows(base, jobs)
    check_parts(base, jobs)
    check_queues(jobs, queues, meta)
    check_locks(base, jobs, queues)
    check_events(base, jobs, meta)
    for job in jobs.values():
        check_job(job, meta)


def check_index_rows(base: Rows, jobs: dict[str, Job]) -> None:
    """Each job has exactly the index row of its state, and each index row a job."""
    families = (keys.PENDING, keys.ACTIVE, keys.SCHEDULED, keys.RETRYING, keys.FINISHED)
    rows = [row for family in families for row in base.scan(family)]
    wanted = {index_rows.index_key(job): index_rows.index_value(job) for job in jobs.values()}
    assert len(wanted) == len(jobs), "two jobs in one place"
    assert dict(rows) == wanted


def check_parts(base: Rows, jobs: dict[str, Job]) -> None:
    """No body, data or error record without its job, and all error records of each."""
    apart = {job.id for job in jobs.values() if job.body_apart}
    assert {key[len(keys.BODY) :].decode() for key, _ in base.scan(keys.BODY)} == apart
    assert {key[len(keys.DATA) :].decode() for key, _ in base.scan(keys.DATA)} <= jobs.keys()
    with_extras = {job.id for job in jobs.values() if job.has_extras}
    assert {key[len(keys.EXTRAS) :].decode() for key, _ in base.scan(keys.EXTRAS)} == with_extras
    slots = Counter(keys.parse_error(key)[0] for key, _ in base.scan(keys.ERROR))
    assert slots == Counter({job.id: job.error_count for job in jobs.values() if job.error_count})


def check_queues(jobs: dict[str, Job], queues: dict[int, Queue], meta: Meta) -> None:
    """Counters are a recount; places are unique among live jobs and below the next one."""
    counts: dict[int, list[int]] = {number: [0] * 24 for number in queues}
    for job in jobs.values():
        counts[job.queue_number][job.state * 3 + job.priority] += 1
        assert 0 < job.seq < queues[job.queue_number].next_seq
    assert counts == {number: queue.counts for number, queue in queues.items()}
    assert all(number < meta.next_queue_number for number in queues)
    places = [(job.queue_number, job.seq) for job in jobs.values() if not ENDED[job.state]]
    assert len(set(places)) == len(places)


def check_locks(base: Rows, jobs: dict[str, Job], queues: dict[int, Queue]) -> None:
    """Each lock that still counts has an owner which still has a reason to hold it."""
    for key, row in base.scan(keys.UNIQUE):
        number, _ = keys.parse_unique(key)
        job_id, _, unique_key = documents.decode_lock(row)
        assert number in queues
        job = jobs[job_id]
        assert job.unique_key == unique_key and job.queue_number == number
        if job.unique_until == FINAL:
            assert not ENDED[job.state]
        elif job.unique_until == START:
            assert job.state in (PENDING, SCHEDULED)
        elif job.unique_until == SUCCESS:
            assert job.state not in (COMPLETED, CANCELLED)


def check_events(base: Rows, jobs: dict[str, Job], meta: Meta) -> None:
    """The log is without gap up to the last event; each job's newest event is its own."""
    seq, size, owner = meta.event_first_seq, 0, dict[int, str]()
    for key, block in base.scan(keys.EVENTS):
        assert keys.parse_events(key) == seq
        for change in documents.decode_events(seq, block):
            owner[change.seq] = change.job_id
            assert change.previous < change.seq
            if change.previous >= meta.event_first_seq:
                assert owner[change.previous] == change.job_id
            seq += 1
        size += len(block)
    assert seq == meta.event_seq + 1
    assert size == meta.event_log_size
    for job in jobs.values():
        assert 0 < job.event_seq <= meta.event_seq
        assert job.event_seq < meta.event_first_seq or owner[job.event_seq] == job.id


def check_job(job: Job, meta: Meta) -> None:
    """Fields that only some states may have."""
    active = job.state == ACTIVE
    assert job.fencing <= meta.fencing
    assert (job.lease_expires_ns > 0) == active
    assert active or not (job.worker_id or job.hostname or job.cancel_requested_ns)
    assert job.attempt >= (1 if active else 0)
    assert (job.completed_ns > 0) == (job.state == COMPLETED)
    assert job.failed_ns > 0 or job.state not in (DEAD, CANCELLED)
    assert not job.keeps_place or job.state == SCHEDULED
    assert (job.scheduled_ns > 0) == (job.state in (SCHEDULED, RETRYING))


def drain(index: ReadyIndex) -> list[int]:
    """The places in a ready index in order; it is as before afterwards."""
    places = []
    while place := index.first():
        places.append(place)
        index.remove(place >> SEQ_BITS, place & ((1 << SEQ_BITS) - 1))
    for place in places:
        index.add(place >> SEQ_BITS, place & ((1 << SEQ_BITS) - 1))
    return places


def memory(machine: Machine) -> dict[str, Any]:
    """What a machine keeps in memory beside its rows, in a form that can be compared."""
    core = machine._core
    lanes = {
        name: (drain(lane.ready), sorted(lane.active.items()), documents.encode_queue(lane.queue))
        for name, lane in core.lanes.items()
    }
    workers = {worker.id: documents.encode_worker(worker) for worker in core.workers.values()}
    schedules = {row.id: documents.encode_schedule(row) for row in machine.schedules()}
    assert schedules.keys() == core.schedules.keys()
    return {"lanes": lanes, "workers": workers, "schedules": schedules}


def check_machine(machine: Machine, base: Rows) -> None:
    """Check a machine that was just flushed, and its base."""
    assert machine.overlay_documents == 0
    check_rows(base)
    assert memory(machine) == memory(Machine(base))

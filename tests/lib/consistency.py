"""Checks of a state store: every row exists once and agrees with all other rows."""

from collections import Counter
from typing import Any

from corvo._fast.codec import keys
from corvo._fast.index.ready import SEQ_BITS, Positions, ReadyIndex
from corvo.fsm.machine import Machine
from corvo.fsm.ops import bulk_cuts
from corvo.fsm.state import index_rows
from corvo.fsm.state.groups import Groups, is_member
from corvo.limits import DUE_MAX_NS, LOG_ATTEMPT_SIZE_MAX, LOG_BLOCKS_MAX, LOG_SIZE_MAX
from corvo.model import (
    ACTIVE,
    CANCELLED,
    COMPLETED,
    DEAD,
    DESTROY,
    ENDED,
    HELD,
    PENDING,
    RETRYING,
    SCHEDULED,
    Job,
    Queue,
)
from corvo.storage.records import bulk as bulk_records
from corvo.storage.records import (
    events as event_records,
)
from corvo.storage.records import (
    jobs as job_records,
)
from corvo.storage.records import (
    logs as log_records,
)
from corvo.storage.records import (
    queues as queue_records,
)
from corvo.storage.records.meta import Meta, decode_meta
from corvo.storage.rows import Rows

FINAL, START, SUCCESS, PERIOD = range(4)


def read_jobs(state_store: Rows) -> dict[str, Job]:
    """Return all jobs with all their parts."""
    jobs: dict[str, Job] = {}
    for key, head in state_store.scan(keys.JOB):
        job = job_records.decode_head(keys.parse_job(key), head)
        if job.body_apart:
            body = state_store.get(keys.body(job.id))
            assert body is not None, f"{job.id} has no body"
            job_records.decode_body(job, body)
        if job.data_apart:
            data = state_store.get(keys.data(job.id))
            assert data is not None, f"{job.id} has no data"
            job_records.decode_data(job, data)
        if job.has_options:
            options = state_store.get(keys.options(job.id))
            assert options is not None, f"{job.id} has no options"
            job.options = job_records.decode_options(job.id, options)
            job.options.blocked = job.state == PENDING and bool(job.options.open_dependencies)
        jobs[job.id] = job
    return jobs


def check_rows(state_store: Rows) -> None:
    """Check all rows of a state store against each other."""
    stored = state_store.get(keys.META)
    meta = Meta() if stored is None else decode_meta(stored)
    jobs = read_jobs(state_store)
    queues = {
        queue.number: queue
        for queue in (
            queue_records.decode_queue(keys.parse_queue(key), row)
            for key, row in state_store.scan(keys.QUEUE)
        )
    }
    check_tasks(state_store, queues)
    check_index_rows(state_store, jobs)
    check_parts(state_store, jobs)
    check_queues(jobs, queues, meta)
    check_groups(state_store, jobs, queues)
    check_grants(state_store, queues)
    check_locks(state_store, jobs, queues)
    check_logs(state_store, jobs)
    check_events(state_store, jobs, meta)
    check_dependencies(state_store, jobs, queues)
    check_batches(state_store, jobs)
    check_idempotency(state_store, meta)
    for job in jobs.values():
        check_job(job, meta)


def check_index_rows(state_store: Rows, jobs: dict[str, Job]) -> None:
    """Each job has exactly the index row of its state, and each index row has a job."""
    families = (
        keys.PENDING,
        keys.BLOCKED,
        keys.ACTIVE,
        keys.SCHEDULED,
        keys.RETRYING,
        keys.HELD,
        keys.FINISHED,
    )
    rows = [row for family in families for row in state_store.scan(family)]
    wanted = {index_rows.index_key(job): index_rows.index_value(job) for job in jobs.values()}
    assert len(wanted) == len(jobs), "two jobs in one place"
    assert dict(rows) == wanted
    expiring = {key: row for job in jobs.values() for key, row in expiry_rows(job)}
    assert dict(state_store.scan(keys.EXPIRING)) == expiring


def expiry_rows(job: Job) -> list[tuple[bytes, bytes]]:
    """Return the expiry row of the job, if it has one."""
    if job.options is None or not job.options.expires_ns or ENDED[job.state]:
        return []
    value = keys.due(min(job.options.expires_ns, DUE_MAX_NS), 0, job.id)
    return [(keys.placed(keys.EXPIRING, job.queue_number, job.seq), value)]


def check_tasks(state_store: Rows, queues: dict[int, Queue]) -> None:
    """Each chunk has its bulk operation; each job pending deletion has an operation that deletes
    it."""
    operations = {
        keys.parse_operation(key): bulk_records.decode_operation(keys.parse_operation(key), row)
        for key, row in state_store.scan(keys.OPERATION)
    }
    wanted = {
        keys.operation_chunk(row.id, number)
        for row in operations.values()
        for number in (*range(row.chunks), *bulk_cuts.chunks(row))
    }
    found = {key for key, _ in state_store.scan(keys.OPERATION_CHUNK)}
    assert found == wanted, (found - wanted, wanted - found)
    running = [row for row in operations.values() if row.running()]
    for queue in queues.values():
        own = [row for row in running if row.queue_number == queue.number]
        if queue.destroyed:
            assert any(row.kind == DESTROY for row in own)
        if queue.cleared_seq and not queue.destroyed:
            assert any(row.cut_seqs == [queue.cleared_seq] for row in own)


def check_parts(state_store: Rows, jobs: dict[str, Job]) -> None:
    """Each body, data row and error record has its job, and each job has all its error records."""
    apart = {job.id for job in jobs.values() if job.body_apart}
    assert {key[len(keys.BODY) :].decode() for key, _ in state_store.scan(keys.BODY)} == apart
    apart = {job.id for job in jobs.values() if job.data_apart}
    assert {key[len(keys.DATA) :].decode() for key, _ in state_store.scan(keys.DATA)} == apart
    with_options = {job.id for job in jobs.values() if job.has_options}
    assert {
        key[len(keys.OPTIONS) :].decode() for key, _ in state_store.scan(keys.OPTIONS)
    } == with_options
    slots = Counter(keys.parse_error(key)[0] for key, _ in state_store.scan(keys.ERROR))
    assert slots == Counter({job.id: job.error_count for job in jobs.values() if job.error_count})


def check_queues(jobs: dict[str, Job], queues: dict[int, Queue], meta: Meta) -> None:
    """Counters equal a recount; positions are unique among live jobs and below `next_seq`."""
    counts: dict[int, list[int]] = {number: [0] * 24 for number in queues}
    for job in jobs.values():
        assert 0 < job.seq < queues[job.queue_number].next_seq
        if not pending_deletion(job, queues[job.queue_number]):
            counts[job.queue_number][job.state * 3 + job.priority] += 1
    assert counts == {number: queue.counts for number, queue in queues.items()}
    assert all(number < meta.next_queue_number for number in queues)
    positions = [(job.queue_number, job.seq) for job in jobs.values()]
    assert len(set(positions)) == len(positions)


def pending_deletion(job: Job, queue: Queue) -> bool:
    """Return whether a clear or the deletion of its queue will delete the job."""
    cleared = job.state in (PENDING, SCHEDULED) and job.event_seq <= queue.cleared_seq
    return queue.destroyed or cleared


def check_groups(state_store: Rows, jobs: dict[str, Job], queues: dict[int, Queue]) -> None:
    """Each group has members, each member has its group, and each turn was taken once."""
    wanted = {
        (job.queue_number, job.options.group_key)
        for job in jobs.values()
        if job.options is not None
        and job.options.group_key
        and is_member(job)
        and not pending_deletion(job, queues[job.queue_number])
    }
    found = set()
    turns = set[tuple[int, int]]()
    for key, row in state_store.scan(keys.GROUP):
        number, group_number = keys.parse_group_key(key)
        group_key, served = queue_records.decode_group(row)
        found.add((number, group_key))
        assert 0 < group_number <= served <= queues[number].turn
        assert (number, served) not in turns and served != queues[number].served
        turns.add((number, served))
    assert found == wanted


def check_grants(state_store: Rows, queues: dict[int, Queue]) -> None:
    """Only queues with a rate limit have grants."""
    for key, row in state_store.scan(keys.GRANT):
        assert queues[keys.parse_grant(key)[0]].rate_limit and queue_records.decode_grant(row) > 0


def check_locks(state_store: Rows, jobs: dict[str, Job], queues: dict[int, Queue]) -> None:
    """Each lock that has not expired has a holder that still has a reason to hold it."""
    for key, row in state_store.scan(keys.UNIQUE):
        number, _ = keys.parse_unique(key)
        job_id, _, unique_key = job_records.decode_lock(row)
        assert number in queues
        job = jobs[job_id]
        assert job.unique_key == unique_key and job.queue_number == number
        if job.unique_until == FINAL:
            assert not ENDED[job.state]
        elif job.unique_until == START:
            assert job.state in (PENDING, SCHEDULED, HELD)
        elif job.unique_until == SUCCESS:
            assert job.state not in (COMPLETED, CANCELLED)


def check_logs(state_store: Rows, jobs: dict[str, Job]) -> None:
    """Each log lists its blocks and their lines, within the limits."""
    logs = {
        job_id: log_records.decode_log(job_id, row)
        for key, row in state_store.scan(keys.LOG)
        if (job_id := key[len(keys.LOG) :].decode())
    }
    assert logs.keys() == {job.id for job in jobs.values() if job.options and job.options.has_logs}
    rows = dict(state_store.scan(keys.LOG_BLOCK))
    for job_id, log in logs.items():
        seq = 1
        sizes = Counter[int]()
        for block in log.blocks:
            lines = log_records.decode_log_block(
                job_id, rows.pop(keys.log_block(job_id, block.first_seq))
            )
            assert (block.count, block.size) == (len(lines), sum(map(len, lines)))
            assert block.first_seq >= seq
            seq = block.first_seq + block.count
            sizes[block.attempt] += block.size
        assert seq == log.next_seq
        lines_left = sum(block.count for block in log.blocks)
        assert log.dropped_of(0) + lines_left == log.next_seq - 1
        assert max(sizes.values()) <= LOG_ATTEMPT_SIZE_MAX
        assert sum(sizes.values()) <= LOG_SIZE_MAX and len(log.blocks) <= LOG_BLOCKS_MAX
    assert not rows, "log blocks without a log"


def check_events(state_store: Rows, jobs: dict[str, Job], meta: Meta) -> None:
    """The event log has no gap up to the last event, and the newest event of each job is its
    own."""
    seq, size, owner = meta.event_first_seq, 0, dict[int, str]()
    for key, block in state_store.scan(keys.EVENTS):
        assert keys.parse_events(key) == seq
        for change in event_records.decode_events(seq, block):
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


def links(state_store: Rows, family: bytes) -> set[tuple[str, str]]:
    """Return all links of a family as (owner, member)."""
    return {keys.parse_link(family, key) for key, _ in state_store.scan(family)}


def check_dependencies(state_store: Rows, jobs: dict[str, Job], queues: dict[int, Queue]) -> None:
    """Each waiting job is a dependent of the jobs that it waits for, which are unfinished or have
    pending dependents. Jobs pending deletion are left out."""
    dependents = links(state_store, keys.DEPENDENT)
    pending_dependents = {
        keys.parse_pending_dependents(key) for key, _ in state_store.scan(keys.PENDING_DEPENDENTS)
    }
    for owner, _ in dependents - {(o, m) for o, m in dependents if o in pending_dependents}:
        dependency = jobs[owner]
        assert not ENDED[dependency.state]
        assert dependency.options is not None and dependency.options.has_dependents
    for job in jobs.values():
        if job.options is None or ENDED[job.state]:
            continue
        assert job.state != ACTIVE or not job.options.open_dependencies
        assert set(job.options.open_dependencies) <= set(job.options.depends_on)
        listed = job.options.open_dependencies
        rows = [job_id for job_id in listed if (job_id, job.id) in dependents]
        assert bool(rows) == bool(listed) or pending_deletion(job, queues[job.queue_number])
    for owner, member in dependents:
        job = jobs[member]
        assert job.options is not None and owner in job.options.open_dependencies
        assert not ENDED[job.state]
    children = {(job.parent_id, job.id) for job in jobs.values() if job.parent_id}
    assert links(state_store, keys.CHILD) == children


def check_batches(state_store: Rows, jobs: dict[str, Job]) -> None:
    """Open members are unfinished jobs of their batch, and the counts agree with the members."""
    members = links(state_store, keys.BATCH_MEMBER)
    for batch_id, job_id in members:
        job = jobs[job_id]
        assert not ENDED[job.state] and job.options is not None
        assert job.options.batch_id == batch_id
    finished = {keys.parse_batch_finished(key) for key, _ in state_store.scan(keys.BATCH_FINISHED)}
    for key, row in state_store.scan(keys.BATCH):
        batch = job_records.decode_batch(keys.parse_batch(key), row)
        assert batch.pending == sum(owner == batch.id for owner, _ in members)
        assert batch.total == batch.pending + batch.succeeded + batch.failed
        assert (batch.finished_ns > 0) == (batch.pending == 0)
        members = {link for link in members if link[0] != batch.id}
        finished -= {(batch.finished_ns, batch.id)}
    assert not members and not finished


def check_idempotency(state_store: Rows, meta: Meta) -> None:
    """The idempotency records are exactly those from the oldest number to the next one."""
    numbers = [keys.parse_idempotency(key) for key, _ in state_store.scan(keys.IDEMPOTENCY)]
    assert numbers == list(range(meta.first_idempotency, meta.next_idempotency))


def check_job(job: Job, meta: Meta) -> None:
    """Check the fields that only some states may have."""
    active = job.state == ACTIVE
    assert job.fencing <= meta.fencing
    assert (job.lease_expires_ns > 0) == active
    assert active or not (job.worker_id or job.hostname or job.cancel_requested_ns)
    assert job.attempt >= (1 if active else 0)
    assert (job.completed_ns > 0) == (job.state == COMPLETED)
    assert job.failed_ns > 0 or job.state not in (DEAD, CANCELLED)
    assert not job.keeps_position or job.state == SCHEDULED
    assert (job.scheduled_ns > 0) == (job.state in (SCHEDULED, RETRYING))
    options = job.options
    held = job.state == HELD
    assert held or options is None or not (options.hold_reason or options.hold_ends_ns)


def drain(index: ReadyIndex) -> list[int]:
    """Return the positions in a ready index in order; the index is unchanged afterwards."""
    positions = []
    while position := index.first():
        positions.append(position)
        index.remove(position >> SEQ_BITS, position & ((1 << SEQ_BITS) - 1))
    for position in positions:
        index.add(position >> SEQ_BITS, position & ((1 << SEQ_BITS) - 1))
    return positions


def positions(index: Positions) -> list[int]:
    """Return the numbers of an ordered set; the set is unchanged afterwards."""
    found = []
    while position := index.first():
        found.append(position)
        index.remove(position)
    for position in found:
        index.add(position)
    return found


def group_memory(groups: Groups) -> Any:
    """Return the groups of a queue in a comparable form, recounted where possible."""
    by_key = {
        key: (
            group.number,
            group.served,
            group.open,
            group.rank_key,
            group.normal,
            positions(group.ready),
            positions(group.waiting),
            positions(group.postponed),
            positions(group.active),
        )
        for key, group in sorted(groups.by_key.items())
    }
    assert groups.by_key, "an empty set of groups"
    assert groups.open == sum(group.open for group in groups.by_key.values())
    ready = sorted(position for row in by_key.values() for position in row[5])
    assert drain(groups.ready) == ready
    assert drain(groups._rotation) == sorted(row[3] for row in by_key.values() if row[3])
    assert positions(groups._normals) == sorted(row[4] for row in by_key.values() if row[4])
    return by_key


def memory(machine: Machine) -> dict[str, Any]:
    """Return the memory of a machine in addition to its rows, in a comparable form."""
    state = machine._state
    queue_indexes = {
        name: (
            drain(queue_index.ready),
            queue_index.blocked,
            sorted(queue_index.active.items()),
            queue_records.encode_queue(queue_index.queue),
            None if queue_index.groups is None else group_memory(queue_index.groups),
            None if queue_index.window is None else list(queue_index.window._stamps),
        )
        for name, queue_index in state.queue_indexes.items()
    }
    assert not state.ended
    assert sorted(state.next_pending_dependents) == sorted(state.pending_dependents)
    workers = {worker.id: job_records.encode_worker(worker) for worker in state.workers.values()}
    operations = {row.id: bulk_records.encode_operation(row) for row in state.operations.values()}
    numbered = {
        n: queue_records.encode_queue(queue_index.queue)
        for n, queue_index in state.numbered.items()
    }
    assert sorted(row.id for row in state.running) == sorted(
        row.id for row in state.operations.values() if row.running()
    )
    assert state.queues_pending_deletion == sum(
        queue_index.queue.pending_deletion() for queue_index in state.numbered.values()
    )
    schedules = {row.id: job_records.encode_schedule(row) for row in machine.schedules()}
    assert schedules.keys() == state.schedules.keys()
    idempotency_records = {
        number: state.idempotency_records.get(job_records.idempotency_digest(row))
        for number in range(state.meta.first_idempotency, state.meta.next_idempotency)
        if (row := state.buffer.rows.get(keys.idempotency(number)))
    }
    return {
        "queue_indexes": queue_indexes,
        "workers": workers,
        "schedules": schedules,
        "tasks": operations,
        "numbered": numbered,
        "pending_dependents": state.pending_dependents,
        "replays": (idempotency_records, len(state.idempotency_records)),
    }


def check_machine(machine: Machine, state_store: Rows) -> None:
    """Check a machine that was just flushed, and its state store."""
    assert machine.write_buffer_records == 0
    check_rows(state_store)
    assert memory(machine) == memory(Machine(state_store))

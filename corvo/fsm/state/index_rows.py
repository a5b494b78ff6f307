"""Index rows: the one row that says where a job stands (see `corvo.storage` for the families)."""

from corvo._fast.codec import keys
from corvo.fsm.state.groups import stands
from corvo.limits import DUE_MAX_NS
from corvo.model import ACTIVE, COMPLETED, ENDED, HELD, PENDING, RETRYING, SCHEDULED, Job


def due_ns(job: Job) -> int:
    """When a scheduled or retrying job is due, as far as 8 bytes reach."""
    return min(job.scheduled_ns, DUE_MAX_NS)


def hold_ends_ns(job: Job) -> int:
    """When the hold of a held job times out, as far as 8 bytes reach; 0 = never."""
    return 0 if job.options is None else min(job.options.hold_ends_ns, DUE_MAX_NS)


def expires_ns(job: Job) -> int:
    """When a job that has not ended expires, as far as 8 bytes reach; 0 = never."""
    if job.options is None or ENDED[job.state]:
        return 0
    return min(job.options.expires_ns, DUE_MAX_NS)


def expiry_key(job: Job) -> bytes:
    """Key of the row of the job's expiry; empty when it has none."""
    if job.options is None or not expires_ns(job):
        return b""
    return keys.placed(keys.EXPIRING, job.queue_number, job.seq)


def finished_ns(job: Job) -> int:
    """When a job ended."""
    return job.completed_ns if job.state == COMPLETED else job.failed_ns


def index_key(job: Job) -> bytes:
    """Key of the job's index row."""
    state = job.state
    if state == PENDING:
        if job.options is not None and job.options.blocked:
            return keys.placed(keys.BLOCKED, job.queue_number, job.seq)
        return keys.pending(job.queue_number, job.priority, job.seq)
    if state == ACTIVE:
        return keys.placed(keys.ACTIVE, job.queue_number, job.seq)
    if state == SCHEDULED:
        return keys.placed(keys.SCHEDULED, job.queue_number, job.seq)
    if state == RETRYING:
        return keys.placed(keys.RETRYING, job.queue_number, job.seq)
    if state == HELD:
        return keys.placed(keys.HELD, job.queue_number, job.seq)
    return keys.finished(job.queue_number, state, finished_ns(job), job.seq)


def index_value(job: Job) -> bytes:
    """Value of the job's index row."""
    value = _index_value(job)
    if job.options is not None and job.options.group_key and stands(job):
        return keys.grouped(value, job.priority, job.options.group_key)
    return value


def _index_value(job: Job) -> bytes:
    state = job.state
    if state == ACTIVE:
        return keys.due(job.lease_expires_ns, job.fencing, job.id)
    if state in (SCHEDULED, RETRYING):
        return keys.due(due_ns(job), 0, job.id)
    if state == HELD:
        return keys.due(hold_ends_ns(job), 0, job.id)
    return keys.id_alone(job.id)


def row_id(key: bytes, value: bytes) -> str:
    """Id of the job that an index row is about."""
    if key.startswith((keys.PENDING, keys.BLOCKED, keys.FINISHED)):
        return keys.parse_id(value)
    return keys.parse_due(value)[2]

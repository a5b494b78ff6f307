"""Index rows: the one row that says where a job stands (see `corvo.kv` for the families)."""

from corvo._fast import keys
from corvo.fsm.groups import stands
from corvo.limits import DUE_MAX_NS
from corvo.model import ACTIVE, COMPLETED, PENDING, RETRYING, SCHEDULED, Job


def due_ns(job: Job) -> int:
    """When a scheduled or retrying job is due, as far as 8 bytes reach."""
    return min(job.scheduled_ns, DUE_MAX_NS)


def finished_ns(job: Job) -> int:
    """When a job ended."""
    return job.completed_ns if job.state == COMPLETED else job.failed_ns


def index_key(job: Job) -> bytes:
    """Key of the job's index row."""
    state = job.state
    if state == PENDING:
        return keys.pending(job.queue_number, job.priority, job.seq)
    if state == ACTIVE:
        return keys.placed(keys.ACTIVE, job.queue_number, job.seq)
    if state == SCHEDULED:
        return keys.placed(keys.SCHEDULED, job.queue_number, job.seq)
    if state == RETRYING:
        return keys.placed(keys.RETRYING, job.queue_number, job.seq)
    return keys.finished(finished_ns(job), job.queue_number, job.seq)


def index_value(job: Job) -> bytes:
    """Value of the job's index row."""
    value = _index_value(job)
    if job.extras is not None and job.extras.group_key and stands(job):
        return keys.grouped(value, job.priority, job.extras.group_key)
    return value


def _index_value(job: Job) -> bytes:
    state = job.state
    if state == ACTIVE:
        return keys.due(job.lease_expires_ns, job.fencing, job.id)
    if state in (SCHEDULED, RETRYING):
        return keys.due(due_ns(job), 0, job.id)
    return job.id.encode()

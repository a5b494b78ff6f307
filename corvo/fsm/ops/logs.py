"""Apply of the op that adds log lines to a job."""

from corvo import ops
from corvo._fast.codec.layouts import decode_fields
from corvo.errors import InvalidState
from corvo.fsm.ops import leases
from corvo.fsm.state.state import Core
from corvo.model import ACTIVE, STATES, Logged


def append_logs(core: Core, payload: bytes) -> object:
    """Log lines of the attempt that runs. Its worker has spoken, but the lease is not renewed."""
    job_id: str
    token: str
    lines: list[bytes]
    job_id, token, lines = decode_fields(ops.APPEND_LOGS.layout, payload)
    job = core.find(job_id)
    if job is None:
        return leases.not_found(job_id)
    if token and (job.state != ACTIVE or token != leases.token(job)):
        return leases.lease_lost(job)
    if job.state != ACTIVE:
        state = STATES[job.state]
        return InvalidState(f'job "{job_id}" is {state}: only an active job is logged', state=state)
    core.store.touch(job)
    job.lease_touched = True
    if job.extras is None or not job.extras.has_logs:
        core.store.touch_extras(job).has_logs = True
    log = core.store.logs.append(job_id, job.attempt, lines)
    return Logged(log.next_seq - 1, log.dropped_of(job.attempt))

"""The op that adds log lines to a job."""

from typing import Final

from corvo import ops
from corvo._fast.codec.layouts import decode_fields
from corvo.errors import InvalidState
from corvo.fsm.ops import Apply, leases
from corvo.fsm.state.state import State
from corvo.model import ACTIVE, STATES, Logged


def append_logs(state: State, payload: bytes) -> object:
    """Apply AppendLogs to the current attempt. It counts as a call of the worker, but does not
    extend the lease."""
    job_id: str
    token: str
    lines: list[bytes]
    job_id, token, lines = decode_fields(ops.APPEND_LOGS.layout, payload)
    job = state.find(job_id)
    if job is None:
        return leases.not_found(job_id)
    if token and (job.state != ACTIVE or token != leases.token(job)):
        return leases.lease_lost(job)
    if job.state != ACTIVE:
        job_state = STATES[job.state]
        return InvalidState(
            f'job "{job_id}" is {job_state}: log lines need an active job', state=job_state
        )
    state.buffer.touch(job)
    job.lease_touched = True
    if job.options is None or not job.options.has_logs:
        state.buffer.touch_options(job).has_logs = True
    log = state.buffer.logs.append(job_id, job.attempt, lines)
    return Logged(log.next_seq - 1, log.dropped_of(job.attempt))


APPLY: Final[dict[int, Apply]] = {
    ops.APPEND_LOGS.number: append_logs,
}

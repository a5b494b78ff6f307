"""Actions on jobs: retry, requeue, run now, cancel, delete, hold, approve, reject, move, change the
priority.

An action gets a job and its arguments and checks the job's state. It returns a word for the reply,
or a CorvoError, and then it has changed nothing. The same functions serve requests on one job and
bulk operations.
"""

from collections.abc import Callable
from json import dumps
from typing import Final, final

from corvo import events, ops, records
from corvo._fast.codec.layouts import decode_fields, encode_fields
from corvo.errors import Conflict, CorvoError
from corvo.fsm import states
from corvo.fsm.ops import Apply, dependencies, finish, leases, unique
from corvo.fsm.ops.jobs import reason_data
from corvo.fsm.state.queue_index import QueueIndex
from corvo.fsm.state.state import State
from corvo.limits import TIME_MAX_NS
from corvo.model import (
    ACTIONS,
    ACTIVE,
    PRIORITY_NAMES,
    REJECTED,
    SCHEDULED,
    STATES,
    ErrorRecord,
    Job,
)

# Indexes of model.HOLD_ACTIONS.
HOLD_APPROVE: Final = 1
HOLD_REJECT: Final = 2

TIMEOUT_REASON: Final = "hold timeout"


@final
class Arguments:
    """Arguments of an action, decoded from the op (layout ops.ACTION_LAYOUT)."""

    def __init__(self, payload: bytes) -> None:
        # <generated: init ACTION>
        self.target: str = ""  # queue of a move
        self.reset_attempts: bool = False  # of a move
        self.keep_priority: bool = True  # of a move
        self.priority: int = 0  # of a change_priority
        self.force: bool = False  # of a cancel
        self.reason: str = ""
        self.by: str = ""
        self.note: str = ""
        self.feedback: bytes = b""  # JSON text
        self.revise: bool = False  # of a reject
        self.hold_timeout_ns: int = 0  # 0 = none
        self.hold_action: int = 0  # an index of HOLD_ACTIONS
        self.states: int = 0  # bits of STATES: jobs in other states are skipped; 0 = any
        # </generated>
        (
            # <generated: unpack ACTION self>
            self.target,
            self.reset_attempts,
            self.keep_priority,
            self.priority,
            self.force,
            self.reason,
            self.by,
            self.note,
            self.feedback,
            self.revise,
            self.hold_timeout_ns,
            self.hold_action,
            self.states,
            # </generated>
        ) = decode_fields(ops.ACTION_LAYOUT, payload)


_ZEROS: Final = {"s": "", "o": "", "b": b"", "u": 0, "f": False}
NO_ARGUMENTS: Final = encode_fields(
    ops.ACTION_LAYOUT,
    tuple(field.name == "keep_priority" or _ZEROS[field.kind] for field in records.ACTION),
)

Action = Callable[[State, Job, Arguments], object]


def retry(state: State, job: Job, _arguments: Arguments) -> object:
    """Run the job again from the first attempt, at the tail of the queue."""
    job_state = states.next_state(job.state, states.RETRY)
    if job_state == states.REFUSED:
        return states.invalid_state(job.id, job.state, states.RETRY)
    refusal = dependencies.dependents_pending(state, job)
    if refusal is not None:
        return refusal
    queue_index = state.queue_index_of(job)
    if job.unique_key:
        conflict = unique.take_again(state, queue_index, job, "retried")
        if conflict is not None:
            return conflict
    state.buffer.touch(job)
    dependencies.wait_again(state, job)
    job.attempt = 0
    job.releases = 0
    job.completed_ns = 0
    job.failed_ns = 0
    job.provider_error = False
    state.drop_expiry(job)
    state.move(queue_index, job, job_state, tail=True)
    state.emit(queue_index, job, events.RETRIED, b"")
    return "retried"


def requeue(state: State, job: Job, _arguments: Arguments) -> object:
    """Give a dead job one more attempt, at the tail of the queue."""
    job_state = states.next_state(job.state, states.REQUEUE)
    if job_state == states.REFUSED:
        return states.invalid_state(job.id, job.state, states.REQUEUE)
    refusal = dependencies.dependents_pending(state, job)
    if refusal is not None:
        return refusal
    queue_index = state.queue_index_of(job)
    if job.unique_key:
        conflict = unique.take_again(state, queue_index, job, "requeued")
        if conflict is not None:
            return conflict
    state.buffer.touch(job)
    dependencies.wait_again(state, job)
    job.releases = 0
    state.drop_expiry(job)
    state.move(queue_index, job, job_state, tail=True)
    state.emit(queue_index, job, events.REQUEUED, b"")
    return "requeued"


def run(state: State, job: Job, _arguments: Arguments) -> object:
    """Run a scheduled or retrying job now."""
    job_state = states.next_state(job.state, states.RUN)
    if job_state == states.REFUSED:
        return states.invalid_state(job.id, job.state, states.RUN)
    queue_index = state.queue_index_of(job)
    state.buffer.touch(job)
    if finish.overdue(state, job):
        finish.expire(state, queue_index, job)
        return STATES[job.state]
    state.move(queue_index, job, job_state, tail=job.state == SCHEDULED and not job.keeps_position)
    state.emit(queue_index, job, events.PROMOTED, b"")
    return STATES[job_state]


def cancel(state: State, job: Job, arguments: Arguments) -> object:
    """Cancel a job. An active job is only marked, unless `force` is set."""
    trigger = states.FORCE_CANCEL if arguments.force else states.CANCEL
    job_state = states.next_state(job.state, trigger)
    if job_state == states.REFUSED:
        return states.invalid_state(job.id, job.state, trigger)
    queue_index = state.queue_index_of(job)
    if job_state == ACTIVE:
        if not job.cancel_requested_ns:
            state.buffer.touch(job)
            job.cancel_requested_ns = state.stamp_ns
            state.emit(queue_index, job, events.CANCELLING, b"")
        return "cancelling"
    state.buffer.touch(job)
    finish.cancel(state, queue_index, job, trigger)
    return "cancelled"


def delete(state: State, job: Job, _arguments: Arguments) -> object:
    """Delete a job with all its rows. The next call of its worker gets LEASE_LOST."""
    state.buffer.touch(job)
    finish.delete(state, state.queue_index_of(job), job)
    return "deleted"


def hold(state: State, job: Job, arguments: Arguments) -> object:
    """Hold a job until it is approved. The next call of the worker of an active job gets
    LEASE_LOST."""
    job_state = states.next_state(job.state, states.HOLD)
    if job_state == states.REFUSED:
        return states.invalid_state(job.id, job.state, states.HOLD)
    queue_index = state.queue_index_of(job)
    state.buffer.touch(job)
    options = state.buffer.touch_options(job)
    options.hold_reason = arguments.reason
    options.hold_action = arguments.hold_action
    if arguments.hold_timeout_ns:
        options.hold_ends_ns = min(state.stamp_ns + arguments.hold_timeout_ns, TIME_MAX_NS)
    if job.state == ACTIVE:
        finish.end_lease(job)
    state.move(queue_index, job, job_state)
    state.emit(queue_index, job, events.HELD, reason_data(arguments.reason, arguments.by))
    return "held"


def approve(state: State, job: Job, arguments: Arguments) -> object:
    """Let a held job run, at the queue position it had."""
    if states.next_state(job.state, states.APPROVE) == states.REFUSED:
        return states.invalid_state(job.id, job.state, states.APPROVE)
    note = b'"note":' + dumps(arguments.note).encode() if arguments.note else b""
    _approve(state, job, reason_data(arguments.reason, arguments.by, note))
    return STATES[job.state]


def _approve(state: State, job: Job, data: bytes) -> None:
    queue_index = state.queue_index_of(job)
    state.buffer.touch(job)
    if finish.overdue(state, job):
        finish.expire(state, queue_index, job)
        return
    state.move(queue_index, job, states.next_state(job.state, states.APPROVE))
    state.emit(queue_index, job, events.APPROVED, data)


def reject(state: State, job: Job, arguments: Arguments) -> object:
    """Reject a held job, which becomes dead; with `revise` it runs again with feedback for its
    worker."""
    trigger = states.REVISE if arguments.revise else states.REJECT
    if states.next_state(job.state, trigger) == states.REFUSED:
        return states.invalid_state(job.id, job.state, trigger)
    if arguments.revise:
        return _revise(state, job, arguments)
    _reject(state, job, arguments.reason, arguments.by, arguments.feedback)
    return STATES[job.state]


def _reject(state: State, job: Job, reason: str, by: str, feedback: bytes) -> None:
    queue_index = state.queue_index_of(job)
    state.buffer.touch(job)
    text = dumps(f"rejected: {reason}" if reason else "rejected").encode()
    state.buffer.add_error(job, ErrorRecord(job.attempt, REJECTED, text, b"", state.stamp_ns))
    more = b'"feedback":' + feedback if feedback else b""
    state.emit(queue_index, job, events.REJECTED, reason_data(reason, by, more))
    finish.die(state, queue_index, job, b'{"reason":"rejected"}', states.REJECT)


def _revise(state: State, job: Job, arguments: Arguments) -> object:
    checkpoint = with_feedback(job, arguments.feedback)
    if not checkpoint:
        return Conflict(
            f'the checkpoint of job "{job.id}" is not an object and cannot hold the feedback'
        )
    queue_index = state.queue_index_of(job)
    state.buffer.touch(job)
    if finish.overdue(state, job):
        finish.expire(state, queue_index, job)
        return STATES[job.state]
    state.move(queue_index, job, states.next_state(job.state, states.REVISE))
    state.buffer.touch_options(job).feedback = arguments.feedback
    state.buffer.set_data(job, checkpoint, b"", b"")
    more = b'"feedback":' + arguments.feedback if arguments.feedback else b""
    state.emit(queue_index, job, events.REJECTED, reason_data(arguments.reason, arguments.by, more))
    return STATES[job.state]


def with_feedback(job: Job, feedback: bytes) -> bytes:
    """Return the checkpoint with `rejection_feedback` as its last member, in place of an earlier
    one; all other bytes stay. Empty if the checkpoint is not an object."""
    checkpoint = job.checkpoint or b"{}"
    if not checkpoint.startswith(b"{"):
        return b""
    checkpoint = checkpoint[:-1]
    earlier = b"" if job.options is None else job.options.feedback
    member = b'"rejection_feedback":'
    if earlier and checkpoint.endswith(member + earlier):
        checkpoint = checkpoint[: -len(member) - len(earlier)].removesuffix(b",")
    comma = b"" if checkpoint.strip() == b"{" else b","
    return checkpoint + comma + member + (feedback or b"null") + b"}"


def hold_times_out(state: State, job: Job) -> None:
    """Take the `hold_action` of a held job whose hold has timed out."""
    assert job.options is not None
    action = job.options.hold_action
    if action == HOLD_APPROVE:
        _approve(state, job, reason_data(TIMEOUT_REASON, ""))
    elif action == HOLD_REJECT:
        _reject(state, job, TIMEOUT_REASON, "", b"")
    else:
        state.buffer.touch(job)
        data = reason_data(TIMEOUT_REASON, "")
        finish.cancel(state, state.queue_index_of(job), job, states.CANCEL, data)


def move(state: State, job: Job, arguments: Arguments) -> object:
    """Move the job to the tail of another queue, in the same state, with its unique lock."""
    return move_to(state, job, arguments.target, arguments.reset_attempts, arguments.keep_priority)


def move_to(
    state: State, job: Job, queue: str, reset_attempts: bool, keep_priority: bool
) -> object:
    """Do the same as `move`, with its arguments listed."""
    refusal = state.no_room(queue)
    if refusal is not None:
        return refusal
    queue_index = state.queue_index_of(job)
    target = state.queue_index(queue)
    conflict = unique.move(state, queue_index, target, job)
    if conflict is not None:
        return conflict
    state.buffer.touch(job)
    if reset_attempts and job.state != ACTIVE:
        job.attempt = 0
    if not keep_priority:
        state.reprioritize(queue_index, job, PRIORITY_NAMES.index("normal"))
    state.transfer(queue_index, target, job)
    names = dumps(queue_index.queue.name).encode(), dumps(queue).encode()
    state.emit(target, job, events.MOVED, b'{"from":%s,"to":%s}' % names)
    return "moved"


def change_priority(state: State, job: Job, arguments: Arguments) -> object:
    """Change the priority of a waiting job, which keeps its age."""
    if states.next_state(job.state, states.CHANGE_PRIORITY) == states.REFUSED:
        return states.invalid_state(job.id, job.state, states.CHANGE_PRIORITY)
    if job.priority == arguments.priority:
        return "ok"
    queue_index: QueueIndex = state.queue_index_of(job)
    state.buffer.touch(job)
    data = b'{"from":%d,"to":%d}' % (job.priority, arguments.priority)
    state.reprioritize(queue_index, job, arguments.priority)
    state.emit(queue_index, job, events.REPRIORITIZED, data)
    return "ok"


_BY_NAME: Final[dict[str, Action]] = {
    "retry": retry,
    "delete": delete,
    "cancel": cancel,
    "move": move,
    "requeue": requeue,
    "change_priority": change_priority,
    "hold": hold,
    "approve": approve,
    "reject": reject,
    "run": run,
}
BY_NUMBER: Final[list[Action]] = [_BY_NAME[name] for name in ACTIONS]


def _one(state: State, job_id: str, action: Action, arguments: bytes) -> object:
    job = state.find(job_id)
    if job is None:
        return leases.not_found(job_id)
    return action(state, job, Arguments(arguments))


def retry_job(state: State, payload: bytes) -> object:
    """Apply RetryJob."""
    job_id: str
    (job_id,) = decode_fields(ops.RETRY_JOB.layout, payload)
    answer = _one(state, job_id, retry, NO_ARGUMENTS)
    return answer if isinstance(answer, CorvoError) else None


def cancel_job(state: State, payload: bytes) -> object:
    """Apply CancelJob; the result is `cancelled` or `cancelling`."""
    job_id, force = decode_fields(ops.CANCEL_JOB.layout, payload)
    job = state.find(job_id)
    if job is None:
        return leases.not_found(job_id)
    arguments = Arguments(NO_ARGUMENTS)
    arguments.force = force
    return cancel(state, job, arguments)


def delete_job(state: State, payload: bytes) -> object:
    """Apply DeleteJob."""
    job_id: str
    (job_id,) = decode_fields(ops.DELETE_JOB.layout, payload)
    answer = _one(state, job_id, delete, NO_ARGUMENTS)
    return answer if isinstance(answer, CorvoError) else None


def move_job(state: State, payload: bytes) -> object:
    """Apply MoveJob."""
    job_id, queue, reset_attempts, keep_priority = decode_fields(ops.MOVE_JOB.layout, payload)
    job = state.find(job_id)
    if job is None:
        return leases.not_found(job_id)
    answer = move_to(state, job, queue, reset_attempts, keep_priority)
    return answer if isinstance(answer, CorvoError) else None


APPLY: Final[dict[int, Apply]] = {
    ops.RETRY_JOB.number: retry_job,
    ops.CANCEL_JOB.number: cancel_job,
    ops.DELETE_JOB.number: delete_job,
    ops.MOVE_JOB.number: move_job,
}

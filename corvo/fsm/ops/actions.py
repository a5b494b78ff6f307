"""What people do to jobs: retry, requeue, run now, cancel, delete, hold, approve, reject, move,
change the priority.

Each action gets a job and its arguments, checks the job's state, and answers with a word for the
reply. It has changed nothing when the answer is a CorvoError. The same functions serve requests on
one job and on many.
"""

from collections.abc import Callable
from json import dumps
from typing import Final, final

from corvo import events, ops
from corvo._fast.codec.layouts import decode_fields, encode_fields
from corvo.errors import Conflict, CorvoError
from corvo.fsm import states
from corvo.fsm.ops import dependencies, finish, leases, unique
from corvo.fsm.ops.jobs import reason_data
from corvo.fsm.state.queue_index import Lane
from corvo.fsm.state.state import Core
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

# Positions in model.HOLD_ACTIONS.
HOLD_APPROVE: Final = 1
HOLD_REJECT: Final = 2

TIMEOUT_REASON: Final = "hold timeout"


@final
class Arguments:
    """What an action needs beside the job, as the op has it (layout ops.ACTION_LAYOUT)."""

    def __init__(self, payload: bytes) -> None:
        self.target: str
        self.reset_attempts: bool
        self.keep_priority: bool
        self.priority: int
        self.force: bool
        self.reason: str
        self.by: str
        self.note: str
        self.feedback: bytes
        self.revise: bool
        self.hold_timeout_ns: int
        self.hold_action: int
        self.states: int
        (
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
        ) = decode_fields(ops.ACTION_LAYOUT, payload)


NO_ARGUMENTS: Final = encode_fields(
    ops.ACTION_LAYOUT, ("", False, True, 0, False, "", "", "", b"", False, 0, 0, 0)
)

Action = Callable[[Core, Job, Arguments], object]


def retry(core: Core, job: Job, _arguments: Arguments) -> object:
    """Run again from the first attempt, at the tail of the queue."""
    state = states.next_state(job.state, states.RETRY)
    if state == states.REFUSED:
        return states.invalid_state(job.id, job.state, states.RETRY)
    busy = dependencies.busy(core, job)
    if busy is not None:
        return busy
    lane = core.lane_of(job)
    if job.unique_key:
        conflict = unique.take_again(core, lane, job, "retried")
        if conflict is not None:
            return conflict
    core.store.touch(job)
    dependencies.wait_again(core, job)
    job.attempt = 0
    job.releases = 0
    job.completed_ns = 0
    job.failed_ns = 0
    job.provider_error = False
    core.drop_expiry(job)
    core.move(lane, job, state, tail=True)
    core.emit(lane, job, events.RETRIED, b"")
    return "retried"


def requeue(core: Core, job: Job, _arguments: Arguments) -> object:
    """One more attempt for a dead job, at the tail of the queue."""
    state = states.next_state(job.state, states.REQUEUE)
    if state == states.REFUSED:
        return states.invalid_state(job.id, job.state, states.REQUEUE)
    busy = dependencies.busy(core, job)
    if busy is not None:
        return busy
    lane = core.lane_of(job)
    if job.unique_key:
        conflict = unique.take_again(core, lane, job, "requeued")
        if conflict is not None:
            return conflict
    core.store.touch(job)
    dependencies.wait_again(core, job)
    job.releases = 0
    core.drop_expiry(job)
    core.move(lane, job, state, tail=True)
    core.emit(lane, job, events.REQUEUED, b"")
    return "requeued"


def run(core: Core, job: Job, _arguments: Arguments) -> object:
    """A job that waits for its time does not wait any longer."""
    state = states.next_state(job.state, states.RUN)
    if state == states.REFUSED:
        return states.invalid_state(job.id, job.state, states.RUN)
    lane = core.lane_of(job)
    core.store.touch(job)
    if finish.overdue(core, job):
        finish.expire(core, lane, job)
        return STATES[job.state]
    core.move(lane, job, state, tail=job.state == SCHEDULED and not job.keeps_place)
    core.emit(lane, job, events.PROMOTED, b"")
    return STATES[state]


def cancel(core: Core, job: Job, arguments: Arguments) -> object:
    """Stop a job. An active one is only marked, unless forced."""
    trigger = states.FORCE_CANCEL if arguments.force else states.CANCEL
    state = states.next_state(job.state, trigger)
    if state == states.REFUSED:
        return states.invalid_state(job.id, job.state, trigger)
    lane = core.lane_of(job)
    if state == ACTIVE:
        if not job.cancel_requested_ns:
            core.store.touch(job)
            job.cancel_requested_ns = core.stamp_ns
            core.emit(lane, job, events.CANCELLING, b"")
        return "cancelling"
    core.store.touch(job)
    finish.cancel(core, lane, job, trigger)
    return "cancelled"


def delete(core: Core, job: Job, _arguments: Arguments) -> object:
    """Remove a job and everything that hangs on it; its worker finds the lease lost."""
    core.store.touch(job)
    finish.delete(core, core.lane_of(job), job)
    return "deleted"


def hold(core: Core, job: Job, arguments: Arguments) -> object:
    """Keep a job from running until somebody approves it. The worker of an active one finds its
    lease lost."""
    state = states.next_state(job.state, states.HOLD)
    if state == states.REFUSED:
        return states.invalid_state(job.id, job.state, states.HOLD)
    lane = core.lane_of(job)
    core.store.touch(job)
    extras = core.store.touch_extras(job)
    extras.hold_reason = arguments.reason
    extras.hold_action = arguments.hold_action
    if arguments.hold_timeout_ns:
        extras.hold_ends_ns = min(core.stamp_ns + arguments.hold_timeout_ns, TIME_MAX_NS)
    if job.state == ACTIVE:
        finish.end_lease(job)
    core.move(lane, job, state)
    core.emit(lane, job, events.HELD, reason_data(arguments.reason, arguments.by))
    return "held"


def approve(core: Core, job: Job, arguments: Arguments) -> object:
    """Let a held job run, in the place it had."""
    if states.next_state(job.state, states.APPROVE) == states.REFUSED:
        return states.invalid_state(job.id, job.state, states.APPROVE)
    note = b'"note":' + dumps(arguments.note).encode() if arguments.note else b""
    _approve(core, job, reason_data(arguments.reason, arguments.by, note))
    return STATES[job.state]


def _approve(core: Core, job: Job, data: bytes) -> None:
    lane = core.lane_of(job)
    core.store.touch(job)
    if finish.overdue(core, job):
        finish.expire(core, lane, job)
        return
    core.move(lane, job, states.next_state(job.state, states.APPROVE))
    core.emit(lane, job, events.APPROVED, data)


def reject(core: Core, job: Job, arguments: Arguments) -> object:
    """A held job must not run; or, with `revise`, not as it is: its worker gets the feedback."""
    trigger = states.REVISE if arguments.revise else states.REJECT
    if states.next_state(job.state, trigger) == states.REFUSED:
        return states.invalid_state(job.id, job.state, trigger)
    if arguments.revise:
        return _revise(core, job, arguments)
    _reject(core, job, arguments.reason, arguments.by, arguments.feedback)
    return STATES[job.state]


def _reject(core: Core, job: Job, reason: str, by: str, feedback: bytes) -> None:
    lane = core.lane_of(job)
    core.store.touch(job)
    text = dumps(f"rejected: {reason}" if reason else "rejected").encode()
    core.store.add_error(job, ErrorRecord(job.attempt, REJECTED, text, b"", core.stamp_ns))
    more = b'"feedback":' + feedback if feedback else b""
    core.emit(lane, job, events.REJECTED, reason_data(reason, by, more))
    finish.die(core, lane, job, b'{"reason":"rejected"}', states.REJECT)


def _revise(core: Core, job: Job, arguments: Arguments) -> object:
    checkpoint = with_feedback(job, arguments.feedback)
    if not checkpoint:
        return Conflict(
            f'the checkpoint of job "{job.id}" is not an object and cannot take the feedback'
        )
    lane = core.lane_of(job)
    core.store.touch(job)
    if finish.overdue(core, job):
        finish.expire(core, lane, job)
        return STATES[job.state]
    core.move(lane, job, states.next_state(job.state, states.REVISE))
    core.store.touch_extras(job).feedback = arguments.feedback
    core.store.set_data(job, checkpoint, b"", b"")
    more = b'"feedback":' + arguments.feedback if arguments.feedback else b""
    core.emit(lane, job, events.REJECTED, reason_data(arguments.reason, arguments.by, more))
    return STATES[job.state]


def with_feedback(job: Job, feedback: bytes) -> bytes:
    """The checkpoint with `rejection_feedback` as its last member, in place of an earlier one;
    all other bytes stay. Empty when the checkpoint is not an object."""
    checkpoint = job.checkpoint or b"{}"
    if not checkpoint.startswith(b"{"):
        return b""
    checkpoint = checkpoint[:-1]
    earlier = b"" if job.extras is None else job.extras.feedback
    member = b'"rejection_feedback":'
    if earlier and checkpoint.endswith(member + earlier):
        checkpoint = checkpoint[: -len(member) - len(earlier)].removesuffix(b",")
    comma = b"" if checkpoint.strip() == b"{" else b","
    return checkpoint + comma + member + (feedback or b"null") + b"}"


def hold_times_out(core: Core, job: Job) -> None:
    """Nobody has decided about a held job in time."""
    assert job.extras is not None
    action = job.extras.hold_action
    if action == HOLD_APPROVE:
        _approve(core, job, reason_data(TIMEOUT_REASON, ""))
    elif action == HOLD_REJECT:
        _reject(core, job, TIMEOUT_REASON, "", b"")
    else:
        core.store.touch(job)
        data = reason_data(TIMEOUT_REASON, "")
        finish.cancel(core, core.lane_of(job), job, states.CANCEL, data)


def move(core: Core, job: Job, arguments: Arguments) -> object:
    """To the tail of another queue, in the same state. The unique lock goes with it."""
    return move_to(core, job, arguments.target, arguments.reset_attempts, arguments.keep_priority)


def move_to(core: Core, job: Job, queue: str, reset_attempts: bool, keep_priority: bool) -> object:
    """`move` with its arguments spelt out."""
    refusal = core.no_room(queue)
    if refusal is not None:
        return refusal
    lane = core.lane_of(job)
    target = core.lane(queue)
    conflict = unique.move(core, lane, target, job)
    if conflict is not None:
        return conflict
    core.store.touch(job)
    if reset_attempts and job.state != ACTIVE:
        job.attempt = 0
    if not keep_priority:
        core.reprioritize(lane, job, PRIORITY_NAMES.index("normal"))
    core.transfer(lane, target, job)
    names = dumps(lane.queue.name).encode(), dumps(queue).encode()
    core.emit(target, job, events.MOVED, b'{"from":%s,"to":%s}' % names)
    return "moved"


def change_priority(core: Core, job: Job, arguments: Arguments) -> object:
    """Another priority for a job that waits; its age counts there too."""
    if states.next_state(job.state, states.CHANGE_PRIORITY) == states.REFUSED:
        return states.invalid_state(job.id, job.state, states.CHANGE_PRIORITY)
    if job.priority == arguments.priority:
        return "ok"
    lane: Lane = core.lane_of(job)
    core.store.touch(job)
    data = b'{"from":%d,"to":%d}' % (job.priority, arguments.priority)
    core.reprioritize(lane, job, arguments.priority)
    core.emit(lane, job, events.REPRIORITIZED, data)
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


def _one(core: Core, job_id: str, action: Action, arguments: bytes) -> object:
    job = core.find(job_id)
    if job is None:
        return leases.not_found(job_id)
    return action(core, job, Arguments(arguments))


def retry_job(core: Core, payload: bytes) -> object:
    """RetryJob."""
    answer = _one(core, decode_fields(ops.RETRY_JOB.layout, payload)[0], retry, NO_ARGUMENTS)
    return answer if isinstance(answer, CorvoError) else None


def cancel_job(core: Core, payload: bytes) -> object:
    """CancelJob; the result is `cancelled` or `cancelling`."""
    job_id, force = decode_fields(ops.CANCEL_JOB.layout, payload)
    job = core.find(job_id)
    if job is None:
        return leases.not_found(job_id)
    arguments = Arguments(NO_ARGUMENTS)
    arguments.force = force
    return cancel(core, job, arguments)


def delete_job(core: Core, payload: bytes) -> object:
    """DeleteJob."""
    answer = _one(core, decode_fields(ops.DELETE_JOB.layout, payload)[0], delete, NO_ARGUMENTS)
    return answer if isinstance(answer, CorvoError) else None


def move_job(core: Core, payload: bytes) -> object:
    """MoveJob."""
    job_id, queue, reset_attempts, keep_priority = decode_fields(ops.MOVE_JOB.layout, payload)
    job = core.find(job_id)
    if job is None:
        return leases.not_found(job_id)
    answer = move_to(core, job, queue, reset_attempts, keep_priority)
    return answer if isinstance(answer, CorvoError) else None

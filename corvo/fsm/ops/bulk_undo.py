"""Undo of an action on many jobs: retry, cancel, move, change_priority.

Each chunk of such an operation keeps the earlier state of each job. Undo restores that state if the
job has not changed since: its newest event is still that of the action. A job keeps its present
queue position, or moves to the tail of its old queue. A unique lock is taken or released again. A
finished job cannot be restored if other jobs know that it has finished: a batch, a chain, or
dependents.
"""

from typing import Final, final

from corvo import events, records
from corvo._fast.codec.layouts import decode_fields, encode_fields
from corvo.errors import Conflict, CorvoError, InvalidState
from corvo.fsm.ops import actions, dependencies, unique
from corvo.fsm.state.queue_index import QueueIndex
from corvo.fsm.state.state import State
from corvo.model import ACTIONS, ACTIVE, CANCELLED, HELD, STATES, Job
from corvo.records import layout

_RETRY: Final = ACTIONS.index("retry")
_CANCEL: Final = ACTIONS.index("cancel")
_MOVE: Final = ACTIONS.index("move")
UNDOABLE: Final = (_RETRY, _CANCEL, _MOVE, ACTIONS.index("change_priority"))

_DATA: Final = [b'{"action":"%b"}' % name.encode() for name in ACTIONS]
_LAYOUT: Final = layout(records.JOB_BEFORE)


@final
class Before:
    """The state of a job before an action."""

    def __init__(self, state: State, job: Job) -> None:
        queue_index = state.queue_index_of(job)
        options = job.options
        self._event_seq = job.event_seq
        self._values: tuple[object, ...] = (
            queue_index.queue.name,
            job.state,
            job.priority,
            job.attempt,
            job.releases,
            job.scheduled_ns,
            job.keeps_position,
            job.completed_ns,
            job.failed_ns,
            job.provider_error,
            _holds_key(state, queue_index, job),
            0 if options is None else options.expires_ns,
            "" if options is None else options.hold_reason,
            0 if options is None else options.hold_ends_ns,
            0 if options is None else options.hold_action,
        )

    def encode(self, job: Job) -> bytes:
        """Encode it for a chunk, after the action; empty if the action changed nothing."""
        if job.event_seq == self._event_seq:
            return b""
        return encode_fields(_LAYOUT, (*self._values, job.event_seq))


@final
class _Stored:
    """A decoded `Before`."""

    def __init__(self, data: bytes) -> None:
        # <generated: init JOB_BEFORE>
        self.queue: str = ""
        self.state: int = 0
        self.priority: int = 0
        self.attempt: int = 0
        self.releases: int = 0
        self.scheduled_ns: int = 0
        self.keeps_position: bool = False
        self.completed_ns: int = 0
        self.failed_ns: int = 0
        self.provider_error: bool = False
        self.locked: bool = False  # it held its unique key
        self.expires_ns: int = 0
        self.hold_reason: str = ""
        self.hold_ends_ns: int = 0
        self.hold_action: int = 0
        self.event_seq: int = 0  # of the action
        # </generated>
        (
            # <generated: unpack JOB_BEFORE self>
            self.queue,
            self.state,
            self.priority,
            self.attempt,
            self.releases,
            self.scheduled_ns,
            self.keeps_position,
            self.completed_ns,
            self.failed_ns,
            self.provider_error,
            self.locked,
            self.expires_ns,
            self.hold_reason,
            self.hold_ends_ns,
            self.hold_action,
            self.event_seq,
            # </generated>
        ) = decode_fields(_LAYOUT, data)


def undo(state: State, job: Job, action: int, data: bytes) -> object:
    """Undo an action on one job. Return a word, or a CorvoError, and then nothing has changed."""
    if not data:
        return "undone"  # the action had changed nothing
    before = _Stored(data)
    if job.event_seq != before.event_seq:
        return InvalidState(f'job "{job.id}" has changed since', state=STATES[job.state])
    refusal: CorvoError | None = None
    if action == _RETRY:
        refusal = _undo_retry(state, job, before)
    elif action == _CANCEL:
        refusal = _undo_cancel(state, job, before)
    elif action == _MOVE:
        refusal = _undo_move(state, job, before)
    elif job.priority != before.priority:
        state.buffer.touch(job)
        state.reprioritize(state.queue_index_of(job), job, before.priority)
    if refusal is not None:
        return refusal
    state.buffer.touch(job)
    state.emit(state.queue_index_of(job), job, events.UNDONE, _DATA[action])
    return "undone"


def _undo_retry(state: State, job: Job, before: _Stored) -> CorvoError | None:
    if state.buffer.dependents.members(job.id, 1):
        return Conflict(f'another job waits for job "{job.id}"')
    queue_index = state.queue_index_of(job)
    state.buffer.touch(job)
    if job.options is not None and job.options.open_dependencies:
        dependencies.stop_waiting(state, job, job.options.open_dependencies)
    if not before.locked and _holds_key(state, queue_index, job):
        state.buffer.set_lock(unique.row_key(queue_index, job.unique_key), None)
    job.completed_ns = before.completed_ns
    job.provider_error = before.provider_error
    _restore(state, queue_index, job, before)
    return None


def _undo_cancel(state: State, job: Job, before: _Stored) -> CorvoError | None:
    queue_index = state.queue_index_of(job)
    if job.state == ACTIVE:  # the cancel only marked it
        state.buffer.touch(job)
        job.cancel_requested_ns = 0
        return None
    if before.state == ACTIVE:
        return Conflict(f'job "{job.id}" was active, and its lease has ended')
    refusal = _irreversible(job) or dependencies.dependents_pending(state, job)
    if refusal is not None:
        return refusal
    if 0 < before.expires_ns <= state.stamp_ns:
        return Conflict(f'job "{job.id}" has expired')
    if before.locked:
        refusal = unique.take_again(state, queue_index, job, "brought back")
        if refusal is not None:
            return refusal
    state.buffer.touch(job)
    dependencies.wait_again(state, job)
    _restore(state, queue_index, job, before)
    return None


def _undo_move(state: State, job: Job, before: _Stored) -> CorvoError | None:
    answer = actions.move_to(state, job, before.queue, False, True)
    if isinstance(answer, CorvoError):
        return answer
    job.attempt = before.attempt
    if job.priority != before.priority:
        state.reprioritize(state.queue_index_of(job), job, before.priority)
    return None


def _irreversible(job: Job) -> CorvoError | None:
    """Return the error if a batch, a chain or dependents know that the job has finished."""
    options = job.options
    if options is None:
        return None
    if options.batch_id:
        return Conflict(f'the batch of job "{job.id}" has counted it as finished')
    if options.chain:
        return Conflict(f'the chain of job "{job.id}" has continued')
    if options.has_dependents:
        return Conflict(f'the jobs that depend on job "{job.id}" are already resolved')
    return None


def _holds_key(state: State, queue_index: QueueIndex, job: Job) -> bool:
    if not job.unique_key:
        return False
    lock = unique.live_lock(state, queue_index, job.unique_key)
    return unique.held_by(lock, job.id)


def _restore(state: State, queue_index: QueueIndex, job: Job, before: _Stored) -> None:
    """Restore the earlier state of the job, which is touched. Due times that have passed are due
    now."""
    job.attempt = before.attempt
    job.releases = before.releases
    job.failed_ns = before.failed_ns
    soon_ns = state.stamp_ns + 1
    if before.scheduled_ns:
        job.scheduled_ns = max(before.scheduled_ns, soon_ns)
        job.keeps_position = before.keeps_position
    if before.expires_ns:
        state.buffer.touch_options(job).expires_ns = before.expires_ns
    if before.state == HELD:
        assert job.state == CANCELLED
        options = state.buffer.touch_options(job)
        options.hold_reason = before.hold_reason
        options.hold_action = before.hold_action
        options.hold_ends_ns = max(before.hold_ends_ns, soon_ns) if before.hold_ends_ns else 0
    state.move_back(queue_index, job, before.state)

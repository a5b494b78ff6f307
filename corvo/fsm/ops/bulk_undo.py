"""Taking back what an action on many jobs has done: retry, cancel, move, change_priority.

While such an action goes on, each chunk keeps for each of its jobs what it was like before. Undo
puts a job back into that state, if nothing has happened to it since: its newest event is still the
one of the action. A job keeps the place it has by then, or goes to the tail of its old queue; a
unique lock is taken or given up again. What others have been told of cannot be taken back: the end
of a job in a batch or a chain, or of one that others depend on.
"""

from typing import Final, final

from corvo import events
from corvo._fast.codec.layouts import decode_fields, encode_fields
from corvo.errors import Conflict, CorvoError, InvalidState
from corvo.fsm.ops import actions, dependencies, unique
from corvo.fsm.state.queue_index import Lane
from corvo.fsm.state.state import Core
from corvo.model import ACTIONS, ACTIVE, CANCELLED, HELD, STATES, Job

_RETRY: Final = ACTIONS.index("retry")
_CANCEL: Final = ACTIONS.index("cancel")
_MOVE: Final = ACTIONS.index("move")
UNDOABLE: Final = (_RETRY, _CANCEL, _MOVE, ACTIONS.index("change_priority"))

_DATA: Final = [b'{"action":"%b"}' % name.encode() for name in ACTIONS]
# queue, state, priority, attempt, releases, scheduled_ns, keeps_place, completed_ns, failed_ns,
# provider_error, locked (whether it held its unique key), expires_ns, hold_reason, hold_ends_ns,
# hold_action, event_seq (of the action)
_LAYOUT: Final = "suuuutfuufftstuu"


@final
class Before:
    """What a job was like before an action."""

    def __init__(self, core: Core, job: Job) -> None:
        lane = core.lane_of(job)
        extras = job.extras
        self._event_seq = job.event_seq
        self._values: tuple[object, ...] = (
            lane.queue.name,
            job.state,
            job.priority,
            job.attempt,
            job.releases,
            job.scheduled_ns,
            job.keeps_place,
            job.completed_ns,
            job.failed_ns,
            job.provider_error,
            _holds_key(core, lane, job),
            0 if extras is None else extras.expires_ns,
            "" if extras is None else extras.hold_reason,
            0 if extras is None else extras.hold_ends_ns,
            0 if extras is None else extras.hold_action,
        )

    def encode(self, job: Job) -> bytes:
        """As a chunk keeps it, when the action is done; empty if that has changed nothing."""
        if job.event_seq == self._event_seq:
            return b""
        return encode_fields(_LAYOUT, (*self._values, job.event_seq))


@final
class _Stored:
    """A `Before` that was kept."""

    def __init__(self, data: bytes) -> None:
        self.queue: str
        self.state: int
        self.priority: int
        self.attempt: int
        self.releases: int
        self.scheduled_ns: int
        self.keeps_place: bool
        self.completed_ns: int
        self.failed_ns: int
        self.provider_error: bool
        self.locked: bool
        self.expires_ns: int
        self.hold_reason: str
        self.hold_ends_ns: int
        self.hold_action: int
        self.event_seq: int
        (
            self.queue,
            self.state,
            self.priority,
            self.attempt,
            self.releases,
            self.scheduled_ns,
            self.keeps_place,
            self.completed_ns,
            self.failed_ns,
            self.provider_error,
            self.locked,
            self.expires_ns,
            self.hold_reason,
            self.hold_ends_ns,
            self.hold_action,
            self.event_seq,
        ) = decode_fields(_LAYOUT, data)


def undo(core: Core, job: Job, action: int, data: bytes) -> object:
    """Take an action on one job back; a word, or a CorvoError, and then nothing has changed."""
    if not data:
        return "undone"  # the action had changed nothing
    before = _Stored(data)
    if job.event_seq != before.event_seq:
        return InvalidState(f'job "{job.id}" has changed since', state=STATES[job.state])
    refusal: CorvoError | None = None
    if action == _RETRY:
        refusal = _undo_retry(core, job, before)
    elif action == _CANCEL:
        refusal = _undo_cancel(core, job, before)
    elif action == _MOVE:
        refusal = _undo_move(core, job, before)
    elif job.priority != before.priority:
        core.store.touch(job)
        core.reprioritize(core.lane_of(job), job, before.priority)
    if refusal is not None:
        return refusal
    core.store.touch(job)
    core.emit(core.lane_of(job), job, events.UNDONE, _DATA[action])
    return "undone"


def _undo_retry(core: Core, job: Job, before: _Stored) -> CorvoError | None:
    if core.store.dependents.members(job.id, 1):
        return Conflict(f'another job waits for job "{job.id}"')
    lane = core.lane_of(job)
    core.store.touch(job)
    if not before.locked and _holds_key(core, lane, job):
        core.store.set_lock(unique.row_key(lane, job.unique_key), None)
    job.completed_ns = before.completed_ns
    job.provider_error = before.provider_error
    _bring_back(core, lane, job, before)
    return None


def _undo_cancel(core: Core, job: Job, before: _Stored) -> CorvoError | None:
    lane = core.lane_of(job)
    if job.state == ACTIVE:  # it was only marked
        core.store.touch(job)
        job.cancel_requested_ns = 0
        return None
    if before.state == ACTIVE:
        return Conflict(f'job "{job.id}" was active, and its lease has ended')
    refusal = _told(job) or dependencies.busy(core, job)
    if refusal is not None:
        return refusal
    if 0 < before.expires_ns <= core.stamp_ns:
        return Conflict(f'the time of job "{job.id}" is over')
    if before.locked:
        refusal = unique.take_again(core, lane, job, "brought back")
        if refusal is not None:
            return refusal
    core.store.touch(job)
    dependencies.wait_again(core, job)
    _bring_back(core, lane, job, before)
    return None


def _undo_move(core: Core, job: Job, before: _Stored) -> CorvoError | None:
    answer = actions.move_to(core, job, before.queue, False, True)
    if isinstance(answer, CorvoError):
        return answer
    job.attempt = before.attempt
    if job.priority != before.priority:
        core.reprioritize(core.lane_of(job), job, before.priority)
    return None


def _told(job: Job) -> CorvoError | None:
    """Why the end of a job cannot be taken back: others know of it."""
    extras = job.extras
    if extras is None:
        return None
    if extras.batch_id:
        return Conflict(f'the batch of job "{job.id}" has counted its end')
    if extras.chain:
        return Conflict(f'the chain of job "{job.id}" has gone on')
    if extras.has_dependents:
        return Conflict(f'the jobs that depend on job "{job.id}" have been told of its end')
    return None


def _holds_key(core: Core, lane: Lane, job: Job) -> bool:
    if not job.unique_key:
        return False
    lock = unique.live_lock(core, lane, job.unique_key)
    return lock is not None and lock[0] == job.id


def _bring_back(core: Core, lane: Lane, job: Job, before: _Stored) -> None:
    """The job, which is touched, has its old state again. What was due meanwhile is due now."""
    job.attempt = before.attempt
    job.releases = before.releases
    job.failed_ns = before.failed_ns
    soon_ns = core.stamp_ns + 1
    if before.scheduled_ns:
        job.scheduled_ns = max(before.scheduled_ns, soon_ns)
        job.keeps_place = before.keeps_place
    if before.expires_ns:
        core.store.touch_extras(job).expires_ns = before.expires_ns
    if before.state == HELD:
        assert job.state == CANCELLED
        extras = core.store.touch_extras(job)
        extras.hold_reason = before.hold_reason
        extras.hold_action = before.hold_action
        extras.hold_ends_ns = max(before.hold_ends_ns, soon_ns) if before.hold_ends_ns else 0
    core.come_back(lane, job, before.state)

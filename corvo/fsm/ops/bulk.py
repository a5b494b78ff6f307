"""Bulk operations: clear a queue, destroy one, apply an action to given jobs or to all jobs.

A bulk operation is accepted in one entry and proceeds in steps, each an entry of its own, so that
other requests are served in between. It is a row, so it also continues after a crash. Its set of
jobs is fixed when it is accepted:

- *clear* and *destroy* mark their jobs for deletion at once (`State.pending_deletion`), and the
  steps delete them;
- *bulk on given jobs* keeps their ids in chunks, of which a step takes one;
- *bulk on all jobs* scans the index rows of the states that its action applies to, and takes jobs
  whose seq is below the cut of their queue at that time. A job can change its state behind the
  scan, so the scan repeats until it changes nothing more.

A set of ids that is too large for one entry arrives in several; until the last one the operation is
*queued*. The outcomes are kept in chunks: a byte for each id, one of OUTCOMES, or STATE_BASE +
state for a job whose state did not allow the action. The *undo* of a bulk operation is another
operation that reads these chunks.
"""

from typing import Final

from corvo import events, ops
from corvo._fast.codec import keys
from corvo._fast.codec.layouts import decode_fields
from corvo.errors import Conflict, InvalidName, InvalidState, NotFound, cut
from corvo.fsm import states
from corvo.fsm.ops import Apply, actions, bulk_cuts, finish
from corvo.fsm.ops import bulk_undo as undo
from corvo.fsm.ops.actions import Arguments
from corvo.fsm.state.state import State
from corvo.limits import BULK_KEPT_NS, BULK_OPERATIONS_MAX, BULK_UNDO_NS, STEP_JOBS
from corvo.model import (
    ACTIONS,
    ACTIVE,
    BULK,
    CLEAR,
    CONFLICT,
    DESTROY,
    DONE,
    ENDED,
    HELD,
    OPERATION_CANCELLED,
    OPERATION_COMPLETED,
    OPERATION_QUEUED,
    OPERATION_RUNNING,
    PENDING,
    RETRYING,
    SCHEDULED,
    SKIPPED,
    STATES,
    BulkOperation,
    Job,
)
from corvo.storage.records import bulk as bulk_records

STATE_BASE: Final = 16
ROUNDS_MAX: Final = 10
_ROWS_MAX: Final = 100  # rows of one read
_LOOKED_AT_MAX: Final = 250  # rows scanned in one step
_DROPPED_MAX: Final = 2  # old operations that a new one may delete
_RESULT_CHUNKS_MAX: Final = 100  # chunks scanned in one read of results

_FINISHED: Final = 6
_FAMILIES: Final[list[bytes]] = [
    keys.PENDING,
    keys.BLOCKED,
    keys.SCHEDULED,
    keys.RETRYING,
    keys.HELD,
    keys.ACTIVE,
    keys.FINISHED,
]
_ORDER: Final = (PENDING, PENDING, SCHEDULED, RETRYING, HELD, ACTIVE)

_TRIGGERS: Final[dict[str, int]] = {
    "retry": states.RETRY,
    "delete": states.DELETE,
    "cancel": states.CANCEL,
    "move": states.MOVE,
    "requeue": states.REQUEUE,
    "change_priority": states.CHANGE_PRIORITY,
    "hold": states.HOLD,
    "approve": states.APPROVE,
    "reject": states.REJECT,
    "run": states.RUN,
}
# By action: states that it applies to.
ACTION_STATES: Final[list[list[int]]] = [
    [
        state
        for state in range(len(STATES))
        if states.next_state(state, _TRIGGERS[name]) != states.REFUSED
    ]
    for name in ACTIONS
]
# Actions whose scan repeats. The others apply to states that no job leaves by itself, or that a job
# leaves only for the state in which the action would have put it.
_AGAIN: Final = [
    name in ("delete", "cancel", "move", "change_priority", "hold") for name in ACTIONS
]
_CHANGE_PRIORITY: Final = ACTIONS.index("change_priority")
_CANCEL: Final = ACTIONS.index("cancel")


def _families(action: int) -> list[int]:
    """Return the families of index rows of the states that an action applies to."""
    wanted = ACTION_STATES[action]
    found = [family for family in range(_FINISHED) if _ORDER[family] in wanted]
    if any(ENDED[state] for state in wanted):
        found.append(_FINISHED)
    return found


def _prefixes(operation: BulkOperation) -> list[bytes]:
    if operation.kind == BULK:
        return [_FAMILIES[family] for family in _families(operation.action)]
    families = _FAMILIES[:3] if operation.kind == CLEAR else _FAMILIES
    return [keys.of_queue(family, operation.queue_number) for family in families]


# Ops.


def clear_queue(state: State, payload: bytes) -> object:
    """Apply ClearQueue: delete the pending and scheduled jobs of a queue."""
    name: str
    operation_id: str
    name, operation_id = decode_fields(ops.CLEAR_QUEUE.layout, payload)
    queue_index = state.queue_indexes.get(name)
    if queue_index is None:
        return NotFound(f'queue "{name}" not found')
    queue = queue_index.queue
    operation = _accept(state, operation_id, CLEAR)
    operation.queue = name
    operation.queue_number = queue.number
    operation.total = queue.jobs(PENDING) + queue.jobs(SCHEDULED)
    state.emit_queue(name, events.QUEUE_CLEARED, b'{"jobs":%d}' % operation.total)
    operation.cut_seqs = [state.meta.event_seq]
    state.clear(queue_index)
    _step(state, operation, STEP_JOBS)
    return operation


def delete_queue(state: State, payload: bytes) -> object:
    """Apply DeleteQueue: delete a queue with all its jobs and settings."""
    name: str
    operation_id: str
    name, operation_id = decode_fields(ops.DELETE_QUEUE.layout, payload)
    queue_index = state.queue_indexes.get(name)
    if queue_index is None:
        return NotFound(f'queue "{name}" not found')
    operation = _accept(state, operation_id, DESTROY)
    operation.queue = name
    operation.queue_number = queue_index.queue.number
    operation.total = sum(queue_index.queue.counts)
    state.emit_queue(name, events.QUEUE_DELETED, b"")
    state.destroy(queue_index)
    _step(state, operation, STEP_JOBS)
    return operation


def bulk_action(state: State, payload: bytes) -> object:
    """Apply BulkAction. Without an operation id the result lists the outcome of each job."""
    operation_id: str
    ids: list[str]
    everything: bool
    action: int
    arguments: bytes
    more: bool
    operation_id, ids, everything, action, arguments, more = decode_fields(
        ops.BULK_ACTION.layout, payload
    )
    checked = Arguments(arguments)
    if ACTIONS[action] == "move" and not checked.target:
        raise InvalidName("a move has no queue")
    if not operation_id:
        return [_outcome(state, job_id, action, checked) for job_id in ids]
    operation = _accept(state, operation_id, BULK, OPERATION_QUEUED if more else OPERATION_RUNNING)
    operation.action = action
    operation.arguments = arguments
    if everything:
        operation.total = matching(state, action, 0)[0]
        bulk_cuts.fix(state, operation)
    else:
        _add(state, operation, ids)
    if not more:
        _step(state, operation, STEP_JOBS)
    return operation


def bulk_add(state: State, payload: bytes) -> object:
    """Apply BulkAdd: add job ids to a queued operation."""
    operation_id: str
    ids: list[str]
    more: bool
    operation_id, ids, more = decode_fields(ops.BULK_ADD.layout, payload)
    operation = state.operations.get(operation_id)
    if operation is None:
        return NotFound(f'bulk operation "{cut(operation_id)}" not found')
    if operation.state != OPERATION_QUEUED:
        return InvalidState(f'bulk operation "{operation_id}" takes no more jobs')
    _add(state, operation, ids)
    operation.updated_ns = state.stamp_ns
    state.buffer.touch_operation(operation)
    if not more:
        operation.state = OPERATION_RUNNING
        state.running.append(operation)
    return operation


def bulk_undo(state: State, payload: bytes) -> object:
    """Apply BulkUndo: undo an operation, in steps."""
    operation_id: str
    undone_id: str
    operation_id, undone_id = decode_fields(ops.BULK_UNDO.layout, payload)
    undone = state.operations.get(undone_id)
    if undone is None:
        return NotFound(f'bulk operation "{cut(undone_id)}" not found')
    refusal = _no_undo(state, undone)
    if refusal:
        return Conflict(f'bulk operation "{undone_id}" {refusal}')
    operation = _accept(state, operation_id, BULK, undone=undone)
    operation.action = undone.action
    operation.undoes = undone_id
    operation.total = undone.counts[DONE]
    operation.chunks = undone.next_chunk
    undone.undone_by = operation_id
    state.buffer.touch_operation(undone)
    if not operation.chunks:
        _finish(state, operation, OPERATION_COMPLETED)
    else:
        _step(state, operation, STEP_JOBS)
    return operation


def _no_undo(state: State, operation: BulkOperation) -> str:
    """Return why an operation cannot be undone; empty if it can."""
    if operation.kind != BULK or operation.action not in undo.UNDOABLE or operation.undoes:
        return "cannot be undone"
    if not operation.finished_ns:
        return "has not finished"
    if operation.undone_by:
        return f'is undone by "{operation.undone_by}"'
    if operation.finished_ns + BULK_UNDO_NS <= state.stamp_ns:
        return "finished too long ago to be undone"
    return ""


def _add(state: State, operation: BulkOperation, ids: list[str]) -> None:
    """Add these jobs to the operation."""
    operation.total += len(ids)
    for at in range(0, len(ids), STEP_JOBS):
        row = bulk_records.encode_chunk(ids[at : at + STEP_JOBS], b"", [])
        state.buffer.set_chunk(operation, operation.chunks, row)
        operation.chunks += 1


def bulk_step(state: State, payload: bytes) -> object:
    """Apply BulkStep: do one step of an operation, or stop it. A finished operation does not
    change."""
    operation_id: str
    limit: int
    stop: bool
    operation_id, limit, stop = decode_fields(ops.BULK_STEP.layout, payload)
    operation = state.operations.get(operation_id)
    if operation is None:
        return NotFound(f'bulk operation "{cut(operation_id)}" not found')
    if operation.finished_ns or (operation.state == OPERATION_QUEUED and not stop):
        return operation
    if not stop:
        _step(state, operation, max(1, min(limit, STEP_JOBS)))
    elif operation.kind == BULK:
        _finish(state, operation, OPERATION_CANCELLED)
    else:
        return InvalidState(f'bulk operation "{operation_id}" deletes jobs and cannot be stopped')
    return operation


# Lifecycle of an operation.


def _accept(
    state: State,
    operation_id: str,
    kind: int,
    operation_state: int = OPERATION_RUNNING,
    undone: BulkOperation | None = None,
) -> BulkOperation:
    """Create an operation. Finished ones are deleted to make room, except the one that it
    undoes."""
    operation = BulkOperation(operation_id, kind)
    operation.state = operation_state
    operation.updated_ns = state.stamp_ns
    operation.created_ns = state.stamp_ns
    dropped = 0
    for other_id in sorted(state.operations):
        other = state.operations[other_id]
        old = other.finished_ns + BULK_KEPT_NS <= state.stamp_ns
        if dropped == _DROPPED_MAX or not (old or len(state.operations) >= BULK_OPERATIONS_MAX):
            break
        if other.finished_ns and other is not undone:
            state.buffer.delete_operation(other)
            del state.operations[other_id]
            dropped += 1
    state.put_operation(operation)
    state.buffer.touch_operation(operation)
    return operation


def _finish(state: State, operation: BulkOperation, operation_state: int) -> None:
    operation.state = operation_state
    operation.finished_ns = state.stamp_ns
    if operation in state.running:
        state.running.remove(operation)
    if operation.kind == BULK:
        bulk_cuts.drop(state, operation)
    state.buffer.touch_operation(operation)
    queue_index = state.numbered.get(operation.queue_number)
    if operation.kind == BULK or queue_index is None:
        return
    ends_clear = operation.kind == CLEAR and queue_index.queue.cleared_seq == operation.cut_seqs[0]
    if operation.kind == DESTROY or (ends_clear and not queue_index.queue.destroyed):
        state.deletion_done(queue_index)


def _step(state: State, operation: BulkOperation, limit: int) -> None:
    operation.updated_ns = state.stamp_ns
    state.buffer.touch_operation(operation)
    if operation.kind != BULK:
        _delete_pending(state, operation, limit)
    elif operation.undoes:
        _act_on_undone(state, operation)
    elif operation.cut_numbers or not operation.chunks:
        _act_on_scan(state, operation, limit)
    else:
        _act_on_chunk(state, operation)


def _delete_pending(state: State, operation: BulkOperation, limit: int) -> None:
    jobs, end = _scan(state, operation, limit)
    for job in jobs:
        state.buffer.touch(job)
        finish.delete(state, state.queue_index_of(job), job)
    operation.counts[DONE] += len(jobs)
    if end:
        _finish(state, operation, OPERATION_COMPLETED)


def _act_on_chunk(state: State, operation: BulkOperation) -> None:
    ids, _, _ = bulk_records.decode_chunk(state.buffer.chunk(operation, operation.next_chunk))
    arguments = Arguments(operation.arguments)
    seen = _StepOutcomes(state, operation)
    for job_id in ids:
        before = seen.before(state.find(job_id))
        seen.note(job_id, _outcome(state, job_id, operation.action, arguments), before)
    seen.keep(operation.next_chunk)
    _next_chunk(state, operation)


def _next_chunk(state: State, operation: BulkOperation) -> None:
    operation.next_chunk += 1
    if operation.next_chunk == operation.chunks:
        _finish(state, operation, OPERATION_COMPLETED)


def _act_on_undone(state: State, operation: BulkOperation) -> None:
    undone = state.operations.get(operation.undoes)
    if undone is None:  # deleted meanwhile
        _finish(state, operation, OPERATION_CANCELLED)
        return
    row = state.buffer.chunk(undone, operation.next_chunk)
    seen = _StepOutcomes(state, operation)
    for job_id, code, before in zip(*bulk_records.decode_chunk(row), strict=True):
        if code != DONE:
            continue
        job = state.find(job_id)
        if job is None:
            seen.note(job_id, NotFound(""), None)
        else:
            seen.note(job_id, undo.undo(state, job, operation.action, before), None)
    seen.keep(operation.next_chunk)
    _next_chunk(state, operation)


class _StepOutcomes:
    """Collects the outcomes of the jobs of one step, and the data to undo them."""

    def __init__(self, state: State, operation: BulkOperation) -> None:
        self.state = state
        self.operation = operation
        self.ids: list[str] = []
        self.outcomes = bytearray()
        self.undoable: bool = operation.action in undo.UNDOABLE and not operation.undoes
        self.befores: list[bytes] = []

    def before(self, job: Job | None) -> undo.Before | None:
        """Return the state of a job before the action, which must be applied afterwards."""
        return undo.Before(self.state, job) if job is not None and self.undoable else None

    def note(self, job_id: str, outcome: object, before: undo.Before | None) -> None:
        """Record the outcome of a job."""
        code = _code(self.state, job_id, outcome)
        self.operation.counts[kind_of(code)] += 1
        self.ids.append(job_id)
        self.outcomes.append(code)
        if not self.undoable:
            return
        job = self.state.buffer.find(job_id) if code == DONE else None
        self.befores.append(b"" if job is None or before is None else before.encode(job))

    def keep(self, number: int) -> None:
        """Write the outcomes as a chunk of the operation."""
        row = bulk_records.encode_chunk(self.ids, bytes(self.outcomes), self.befores)
        self.state.buffer.set_chunk(self.operation, number, row)


def _act_on_scan(state: State, operation: BulkOperation, limit: int) -> None:
    arguments = Arguments(operation.arguments)
    jobs, end = _scan(state, operation, limit)
    seen = _StepOutcomes(state, operation)
    for job in jobs:
        if _nothing_to_do(job, operation.action, arguments):
            continue
        before = seen.before(job)
        outcome = actions.BY_NUMBER[operation.action](state, job, arguments)
        if isinstance(outcome, str):
            operation.round_changed = True
        elif operation.rounds:
            continue  # rejected and counted in an earlier round
        seen.note(job.id, outcome, before)
    if seen.ids:
        seen.keep(operation.chunks)
        operation.chunks += 1
        operation.next_chunk += 1
    if not end:
        return
    operation.rounds += 1
    if operation.round_changed and _AGAIN[operation.action] and operation.rounds < ROUNDS_MAX:
        operation.round_changed = False
        operation.family = 0
    else:
        _finish(state, operation, OPERATION_COMPLETED)


def _nothing_to_do(job: Job, action: int, arguments: Arguments) -> bool:
    """Return whether the action would change nothing in the job."""
    if action == _CHANGE_PRIORITY:
        return job.priority == arguments.priority
    return action == _CANCEL and job.cancel_requested_ns > 0 and not arguments.force


def _scan(state: State, operation: BulkOperation, limit: int) -> tuple[list[Job], bool]:
    """Return the next jobs of the operation's set, and whether the scan is at its end."""
    prefixes = _prefixes(operation)
    jobs: list[Job] = []
    looked_at = 0
    while looked_at < _LOOKED_AT_MAX:
        prefix = prefixes[operation.family]
        wanted = _ROWS_MAX if looked_at else limit
        rows = state.buffer.index_rows(prefix, operation.cursor or prefix, wanted)
        looked_at += len(rows)
        for key, job_id in rows:
            job = _in_set(state, operation, key, job_id)
            if job is not None:
                jobs.append(job)
                if len(jobs) == limit:
                    operation.cursor = key + b"\0"
                    return jobs, False
        if len(rows) == wanted:
            operation.cursor = rows[-1][0] + b"\0"
            continue
        operation.cursor = b""
        operation.family += 1
        if operation.family == len(prefixes):
            return jobs, True
    return jobs, False


def _in_set(state: State, operation: BulkOperation, key: bytes, job_id: str) -> Job | None:
    """Return the job of an index row if it is in the operation's set."""
    if operation.kind != BULK:
        job = state.buffer.find(job_id)
        return job if job is not None and state.pending_deletion(job) else None
    if keys.parse_seq(key) >= bulk_cuts.of_queue(state, operation, keys.parse_number(key)):
        return None
    wanted = ACTION_STATES[operation.action]
    if key.startswith(keys.FINISHED) and keys.parse_finished(key)[1] not in wanted:
        return None
    job = state.find(job_id)
    return job if job is not None and job.state in wanted else None


def _outcome(state: State, job_id: str, action: int, arguments: Arguments) -> object:
    job = state.find(job_id)
    if job is None:
        return NotFound(f'job "{job_id}" not found')
    if arguments.states and not arguments.states >> job.state & 1:
        return InvalidState(f'job "{job_id}" is {STATES[job.state]} now')
    return actions.BY_NUMBER[action](state, job, arguments)


def _code(state: State, job_id: str, outcome: object) -> int:
    """Return the byte for the outcome of an action."""
    if isinstance(outcome, NotFound):
        return SKIPPED
    if isinstance(outcome, InvalidState):
        job = state.find(job_id)
        assert job is not None
        return STATE_BASE + job.state
    return DONE if isinstance(outcome, str) else CONFLICT


def kind_of(code: int) -> int:
    """Return the index of OUTCOMES for a byte."""
    return SKIPPED if code >= STATE_BASE else code


# Reads.


def results(
    state: State, operation: BulkOperation, start: int, kind: int, limit: int
) -> tuple[list[tuple[str, int]], int]:
    """Return (job id, outcome byte) of one kind from position `start` on, and the position to
    continue from; 0 if there are no more."""
    found: list[tuple[str, int]] = []
    first = start // STEP_JOBS
    skip = start % STEP_JOBS
    stop = min(operation.next_chunk, first + _RESULT_CHUNKS_MAX)
    for number in range(first, stop):
        ids, outcomes, _ = bulk_records.decode_chunk(state.buffer.chunk(operation, number))
        for i in range(skip, len(ids)):
            if kind_of(outcomes[i]) != kind:
                continue
            if len(found) == limit:
                return found, number * STEP_JOBS + i
            found.append((ids[i], outcomes[i]))
        skip = 0
    return found, stop * STEP_JOBS if stop < operation.next_chunk else 0


def matching(state: State, action: int, limit: int) -> tuple[int, list[str]]:
    """Return how many jobs are in the states that an action applies to, and up to `limit` of
    them."""
    jobs = state.buffer.totals().jobs
    count = sum(jobs[job_state] for job_state in ACTION_STATES[action])
    sample: list[str] = []
    for family in _families(action):
        if len(sample) == limit:
            break
        prefix = _FAMILIES[family]
        for _, job_id in state.buffer.index_rows(prefix, prefix, _ROWS_MAX):
            job = state.find(job_id)
            if job is not None and job.state in ACTION_STATES[action]:
                sample.append(job_id)
            if len(sample) == limit:
                break
    return count, sample


APPLY: Final[dict[int, Apply]] = {
    ops.BULK_ACTION.number: bulk_action,
    ops.BULK_STEP.number: bulk_step,
    ops.BULK_ADD.number: bulk_add,
    ops.BULK_UNDO.number: bulk_undo,
    ops.CLEAR_QUEUE.number: clear_queue,
    ops.DELETE_QUEUE.number: delete_queue,
}

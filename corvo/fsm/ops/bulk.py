"""Tasks on many jobs: clear a queue, destroy one, act on given jobs or on all.

A task is accepted in one entry and goes on in steps, each an entry of its own, so that other
requests come in between; it is a row, so it also goes on after a crash. Its set of jobs is fixed
when it is accepted:

- *clear* and *destroy* doom the jobs at once (`Core.doomed`) and only delete them later;
- *bulk on given jobs* keeps their ids in chunks, of which a step takes one;
- *bulk on all jobs* walks the index rows of the states that its action is for, and takes jobs whose
  seq is below the cut that their queue had then. A job can change its state behind the walk, so the
  walk goes round again until it finds nothing more to do.

A set of ids that is too large for one entry comes in several; until the last one is there the
task is *queued*. What came of each job of a bulk is kept in chunks: a byte for each id, OUTCOMES
and below, or STATE_BASE + state for a job whose state did not allow the action. The *undo* of a
bulk is a task that goes through these chunks again.
"""

from typing import Final

from corvo import events, ops
from corvo._fast.codec import keys
from corvo._fast.codec.layouts import decode_fields
from corvo.errors import Conflict, InvalidState, NotFound
from corvo.fsm import states
from corvo.fsm.ops import actions, finish
from corvo.fsm.ops import bulk_undo as undo
from corvo.fsm.ops.actions import Arguments
from corvo.fsm.state.state import Core
from corvo.limits import BULK_UNDO_NS, STEP_JOBS, TASK_KEPT_NS, TASKS_MAX
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
    PENDING,
    RETRYING,
    SCHEDULED,
    SKIPPED,
    STATES,
    TASK_CANCELLED,
    TASK_COMPLETED,
    TASK_QUEUED,
    TASK_RUNNING,
    Job,
    Task,
)
from corvo.storage.records import jobs as job_records

STATE_BASE: Final = 16
ROUNDS_MAX: Final = 10
_ROWS_MAX: Final = 100  # of one read
_LOOKED_AT_MAX: Final = 250  # rows in one step
_DROPPED_MAX: Final = 2  # old tasks that a new one may push out
_RESULT_CHUNKS_MAX: Final = 100  # looked at in one read of results

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
# By action: states that it is for.
ACTION_STATES: Final[list[list[int]]] = [
    [
        state
        for state in range(len(STATES))
        if states.next_state(state, _TRIGGERS[name]) != states.REFUSED
    ]
    for name in ACTIONS
]
# Actions whose walk goes round again. The others are for states that no job leaves by itself, or
# leaves only for where the action would have led.
_AGAIN: Final = [
    name in ("delete", "cancel", "move", "change_priority", "hold") for name in ACTIONS
]
_CHANGE_PRIORITY: Final = ACTIONS.index("change_priority")
_CANCEL: Final = ACTIONS.index("cancel")


def _families(action: int) -> list[int]:
    """The families of index rows of the states that an action is for."""
    wanted = ACTION_STATES[action]
    found = [family for family in range(_FINISHED) if _ORDER[family] in wanted]
    if any(ENDED[state] for state in wanted):
        found.append(_FINISHED)
    return found


def _prefixes(task: Task) -> list[bytes]:
    if task.kind == BULK:
        return [_FAMILIES[family] for family in _families(task.action)]
    families = _FAMILIES[:3] if task.kind == CLEAR else _FAMILIES
    return [keys.of_queue(family, task.queue_number) for family in families]


# The ops.


def clear_queue(core: Core, payload: bytes) -> object:
    """The pending and scheduled jobs of a queue go."""
    name: str
    task_id: str
    name, task_id = decode_fields(ops.CLEAR_QUEUE.layout, payload)
    lane = core.lanes.get(name)
    if lane is None:
        return NotFound(f'queue "{name}" not found')
    queue = lane.queue
    task = _accept(core, task_id, CLEAR)
    task.queue = name
    task.queue_number = queue.number
    task.total = queue.jobs(PENDING) + queue.jobs(SCHEDULED)
    core.emit_queue(name, events.QUEUE_CLEARED, b'{"jobs":%d}' % task.total)
    task.cut_seqs = [core.meta.event_seq]
    core.clear(lane)
    _step(core, task, STEP_JOBS)
    return task


def delete_queue(core: Core, payload: bytes) -> object:
    """A queue goes, with all its jobs and settings."""
    name: str
    task_id: str
    name, task_id = decode_fields(ops.DELETE_QUEUE.layout, payload)
    lane = core.lanes.get(name)
    if lane is None:
        return NotFound(f'queue "{name}" not found')
    task = _accept(core, task_id, DESTROY)
    task.queue = name
    task.queue_number = lane.queue.number
    task.total = sum(lane.queue.counts)
    core.emit_queue(name, events.QUEUE_DELETED, b"")
    core.destroy(lane)
    _step(core, task, STEP_JOBS)
    return task


def bulk_action(core: Core, payload: bytes) -> object:
    """One action on many jobs. Without a task the result lists what came of each."""
    task_id: str
    ids: list[str]
    everything: bool
    action: int
    arguments: bytes
    more: bool
    fields = decode_fields(ops.BULK_ACTION.layout, payload)
    task_id, ids, everything, action, arguments, more = fields
    if not task_id:
        return [_outcome(core, job_id, action, Arguments(arguments)) for job_id in ids]
    task = _accept(core, task_id, BULK, TASK_QUEUED if more else TASK_RUNNING)
    task.action = action
    task.arguments = arguments
    if everything:
        task.total = matching(core, action, 0)[0]
        for number in core.numbers():
            task.cut_numbers.append(number)
            task.cut_seqs.append(core.numbered[number].queue.next_seq)
    else:
        _add(core, task, ids)
    if not more:
        _step(core, task, STEP_JOBS)
    return task


def bulk_add(core: Core, payload: bytes) -> object:
    """More jobs for a task that is queued."""
    task_id: str
    ids: list[str]
    more: bool
    task_id, ids, more = decode_fields(ops.BULK_ADD.layout, payload)
    task = core.tasks.get(task_id)
    if task is None:
        return NotFound(f'bulk operation "{task_id}" not found')
    if task.state != TASK_QUEUED:
        return InvalidState(f'bulk operation "{task_id}" takes no more jobs')
    _add(core, task, ids)
    task.updated_ns = core.stamp_ns
    core.store.touch_task(task)
    if not more:
        task.state = TASK_RUNNING
        core.running.append(task)
    return task


def bulk_undo(core: Core, payload: bytes) -> object:
    """Take back what a task has done, in steps."""
    task_id: str
    undone_id: str
    task_id, undone_id = decode_fields(ops.BULK_UNDO.layout, payload)
    undone = core.tasks.get(undone_id)
    if undone is None:
        return NotFound(f'bulk operation "{undone_id}" not found')
    refusal = _no_undo(core, undone)
    if refusal:
        return Conflict(f'bulk operation "{undone_id}" {refusal}')
    task = _accept(core, task_id, BULK, undone=undone)
    task.action = undone.action
    task.undoes = undone_id
    task.total = undone.counts[DONE]
    task.chunks = undone.next_chunk
    undone.undone_by = task_id
    core.store.touch_task(undone)
    if not task.chunks:
        _finish(core, task, TASK_COMPLETED)
    else:
        _step(core, task, STEP_JOBS)
    return task


def _no_undo(core: Core, task: Task) -> str:
    """Why a task cannot be taken back; empty if it can."""
    if task.kind != BULK or task.action not in undo.UNDOABLE or task.undoes:
        return "cannot be undone"
    if not task.finished_ns:
        return "has not ended"
    if task.undone_by:
        return f'is undone by "{task.undone_by}"'
    if task.finished_ns + BULK_UNDO_NS <= core.stamp_ns:
        return "ended too long ago to be undone"
    return ""


def _add(core: Core, task: Task, ids: list[str]) -> None:
    """The task is about these jobs, too."""
    task.total += len(ids)
    for at in range(0, len(ids), STEP_JOBS):
        row = job_records.encode_chunk(ids[at : at + STEP_JOBS], b"", [])
        core.store.set_chunk(task, task.chunks, row)
        task.chunks += 1


def bulk_step(core: Core, payload: bytes) -> object:
    """One step of a task, or its end before its time. Nothing, when it has ended already."""
    task_id: str
    limit: int
    stop: bool
    task_id, limit, stop = decode_fields(ops.BULK_STEP.layout, payload)
    task = core.tasks.get(task_id)
    if task is None:
        return NotFound(f'bulk operation "{task_id}" not found')
    if task.finished_ns or (task.state == TASK_QUEUED and not stop):
        return task
    if not stop:
        _step(core, task, max(1, min(limit, STEP_JOBS)))
    elif task.kind == BULK:
        _finish(core, task, TASK_CANCELLED)
    else:
        return InvalidState(f'"{task_id}" deletes what is gone already and cannot be stopped')
    return task


# The life of a task.


def _accept(
    core: Core, task_id: str, kind: int, state: int = TASK_RUNNING, undone: Task | None = None
) -> Task:
    """A new task. Some that have ended make room for it, but not the one that it undoes."""
    task = Task(task_id, kind)
    task.state = state
    task.updated_ns = core.stamp_ns
    task.created_ns = core.stamp_ns
    dropped = 0
    for other_id in sorted(core.tasks):
        other = core.tasks[other_id]
        old = other.finished_ns + TASK_KEPT_NS <= core.stamp_ns
        if dropped == _DROPPED_MAX or not (old or len(core.tasks) >= TASKS_MAX):
            break
        if other.finished_ns and other is not undone:
            core.store.delete_task(other)
            del core.tasks[other_id]
            dropped += 1
    core.put_task(task)
    core.store.touch_task(task)
    return task


def _finish(core: Core, task: Task, state: int) -> None:
    task.state = state
    task.finished_ns = core.stamp_ns
    if task in core.running:
        core.running.remove(task)
    core.store.touch_task(task)
    lane = core.numbered.get(task.queue_number)
    if task.kind == BULK or lane is None:
        return
    ends_clear = task.kind == CLEAR and lane.queue.cleared_seq == task.cut_seqs[0]
    if task.kind == DESTROY or (ends_clear and not lane.queue.destroyed):
        core.no_longer_doomed(lane)


def _step(core: Core, task: Task, limit: int) -> None:
    task.updated_ns = core.stamp_ns
    core.store.touch_task(task)
    if task.kind != BULK:
        _delete_doomed(core, task, limit)
    elif task.undoes:
        _act_on_undone(core, task)
    elif task.cut_numbers or not task.chunks:
        _act_on_walk(core, task, limit)
    else:
        _act_on_chunk(core, task)


def _delete_doomed(core: Core, task: Task, limit: int) -> None:
    jobs, end = _walk(core, task, limit)
    for job in jobs:
        core.store.touch(job)
        finish.delete(core, core.lane_of(job), job)
    task.counts[DONE] += len(jobs)
    if end:
        _finish(core, task, TASK_COMPLETED)


def _act_on_chunk(core: Core, task: Task) -> None:
    ids, _, _ = job_records.decode_chunk(core.store.chunk(task, task.next_chunk))
    arguments = Arguments(task.arguments)
    seen = _Seen(core, task)
    for job_id in ids:
        before = seen.before(core.find(job_id))
        seen.note(job_id, _outcome(core, job_id, task.action, arguments), before)
    seen.keep(task.next_chunk)
    _next_chunk(core, task)


def _next_chunk(core: Core, task: Task) -> None:
    task.next_chunk += 1
    if task.next_chunk == task.chunks:
        _finish(core, task, TASK_COMPLETED)


def _act_on_undone(core: Core, task: Task) -> None:
    undone = core.tasks.get(task.undoes)
    if undone is None:  # forgotten meanwhile
        _finish(core, task, TASK_CANCELLED)
        return
    row = core.store.chunk(undone, task.next_chunk)
    seen = _Seen(core, task)
    for job_id, code, before in zip(*job_records.decode_chunk(row), strict=True):
        if code != DONE:
            continue
        job = core.find(job_id)
        if job is None:
            seen.note(job_id, NotFound(""), None)
        else:
            seen.note(job_id, undo.undo(core, job, task.action, before), None)
    seen.keep(task.next_chunk)
    _next_chunk(core, task)


class _Seen:
    """What comes of the jobs of one step, and what each was like before if that can be undone."""

    def __init__(self, core: Core, task: Task) -> None:
        self.core = core
        self.task = task
        self.ids: list[str] = []
        self.outcomes = bytearray()
        self.undoable: bool = task.action in undo.UNDOABLE and not task.undoes
        self.befores: list[bytes] = []

    def before(self, job: Job | None) -> undo.Before | None:
        """To be asked before the action."""
        return undo.Before(self.core, job) if job is not None and self.undoable else None

    def note(self, job_id: str, outcome: object, before: undo.Before | None) -> None:
        """What came of a job."""
        code = _code(self.core, job_id, outcome)
        self.task.counts[kind_of(code)] += 1
        self.ids.append(job_id)
        self.outcomes.append(code)
        if not self.undoable:
            return
        job = self.core.store.find(job_id) if code == DONE else None
        self.befores.append(b"" if job is None or before is None else before.encode(job))

    def keep(self, number: int) -> None:
        """Write it as a chunk of the task."""
        row = job_records.encode_chunk(self.ids, bytes(self.outcomes), self.befores)
        self.core.store.set_chunk(self.task, number, row)


def _act_on_walk(core: Core, task: Task, limit: int) -> None:
    arguments = Arguments(task.arguments)
    jobs, end = _walk(core, task, limit)
    seen = _Seen(core, task)
    for job in jobs:
        if _nothing_to_do(job, task.action, arguments):
            continue
        before = seen.before(job)
        outcome = actions.BY_NUMBER[task.action](core, job, arguments)
        if isinstance(outcome, str):
            task.stirred = True
        elif task.rounds:
            continue  # refused before, and counted then
        seen.note(job.id, outcome, before)
    if seen.ids:
        seen.keep(task.chunks)
        task.chunks += 1
        task.next_chunk += 1
    if not end:
        return
    task.rounds += 1
    if task.stirred and _AGAIN[task.action] and task.rounds < ROUNDS_MAX:
        task.stirred = False
        task.family = 0
    else:
        _finish(core, task, TASK_COMPLETED)


def _nothing_to_do(job: Job, action: int, arguments: Arguments) -> bool:
    """Whether a job is as the action would leave it."""
    if action == _CHANGE_PRIORITY:
        return job.priority == arguments.priority
    return action == _CANCEL and job.cancel_requested_ns > 0 and not arguments.force


def _walk(core: Core, task: Task, limit: int) -> tuple[list[Job], bool]:
    """The next jobs that the task is about, and whether the walk is at its end."""
    prefixes = _prefixes(task)
    jobs: list[Job] = []
    cuts = dict(zip(task.cut_numbers, task.cut_seqs, strict=True)) if task.kind == BULK else {}
    looked_at = 0
    while looked_at < _LOOKED_AT_MAX:
        prefix = prefixes[task.family]
        wanted = _ROWS_MAX if looked_at else limit
        rows = core.store.index_rows(prefix, task.cursor or prefix, wanted)
        looked_at += len(rows)
        for key, job_id in rows:
            job = _wanted(core, task, cuts, key, job_id)
            if job is not None:
                jobs.append(job)
                if len(jobs) == limit:
                    task.cursor = key + b"\0"
                    return jobs, False
        if len(rows) == wanted:
            task.cursor = rows[-1][0] + b"\0"
            continue
        task.cursor = b""
        task.family += 1
        if task.family == len(prefixes):
            return jobs, True
    return jobs, False


def _wanted(core: Core, task: Task, cuts: dict[int, int], key: bytes, job_id: str) -> Job | None:
    """The job of an index row if the task is about it."""
    if task.kind != BULK:
        job = core.store.find(job_id)
        return job if job is not None and core.doomed(job) else None
    if keys.parse_seq(key) >= cuts.get(keys.parse_number(key), 0):
        return None
    wanted = ACTION_STATES[task.action]
    if key.startswith(keys.FINISHED) and keys.parse_finished(key)[1] not in wanted:
        return None
    job = core.find(job_id)
    return job if job is not None and job.state in wanted else None


def _outcome(core: Core, job_id: str, action: int, arguments: Arguments) -> object:
    job = core.find(job_id)
    if job is None:
        return NotFound(f'job "{job_id}" not found')
    if arguments.states and not arguments.states >> job.state & 1:
        return InvalidState(f'job "{job_id}" is {STATES[job.state]} by now')
    return actions.BY_NUMBER[action](core, job, arguments)


def _code(core: Core, job_id: str, outcome: object) -> int:
    """The byte that stands for what came of an action."""
    if isinstance(outcome, NotFound):
        return SKIPPED
    if isinstance(outcome, InvalidState):
        job = core.find(job_id)
        assert job is not None
        return STATE_BASE + job.state
    return DONE if isinstance(outcome, str) else CONFLICT


def kind_of(code: int) -> int:
    """Which of OUTCOMES a byte stands for."""
    return SKIPPED if code >= STATE_BASE else code


# Reads.


def results(
    core: Core, task: Task, start: int, kind: int, limit: int
) -> tuple[list[tuple[str, int]], int]:
    """(job id, outcome byte) of one kind from position `start` on, and the position to go on from;
    0 when there are no more."""
    found: list[tuple[str, int]] = []
    first = start // STEP_JOBS
    skip = start % STEP_JOBS
    stop = min(task.next_chunk, first + _RESULT_CHUNKS_MAX)
    for number in range(first, stop):
        ids, outcomes, _ = job_records.decode_chunk(core.store.chunk(task, number))
        for i in range(skip, len(ids)):
            if kind_of(outcomes[i]) != kind:
                continue
            if len(found) == limit:
                return found, number * STEP_JOBS + i
            found.append((ids[i], outcomes[i]))
        skip = 0
    return found, stop * STEP_JOBS if stop < task.next_chunk else 0


def matching(core: Core, action: int, limit: int) -> tuple[int, list[str]]:
    """How many jobs there are in the states that an action is for, and some of them."""
    count = 0
    for name in sorted(core.lanes):
        for state in ACTION_STATES[action]:
            count += core.lanes[name].queue.jobs(state)
    sample: list[str] = []
    for family in _families(action):
        if len(sample) == limit:
            break
        prefix = _FAMILIES[family]
        for _, job_id in core.store.index_rows(prefix, prefix, _ROWS_MAX):
            job = core.find(job_id)
            if job is not None and job.state in ACTION_STATES[action]:
                sample.append(job_id)
            if len(sample) == limit:
                break
    return count, sample

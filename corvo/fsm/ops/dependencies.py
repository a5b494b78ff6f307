"""Jobs that wait for other jobs.

A job with open dependencies is blocked when it is pending: it has an index row in a family of its
own, so that fetches never meet it. What leads from a job to its dependents are rows, one for each.
When a job has ended it is *unsettled* until all of them have been gone through, at most SETTLED_MAX
in one entry: a row says so and how the job ended, and the next entries go on from there.
"""

from heapq import heappop, heappush
from json import dumps
from typing import Final

from corvo import events
from corvo._fast.codec import keys
from corvo.errors import Conflict, CorvoError, ValidationError
from corvo.fsm import states
from corvo.fsm.ops import finish
from corvo.fsm.state.queue_index import QueueIndex
from corvo.fsm.state.state import State
from corvo.limits import RESOLVED_DEPENDENTS_MAX
from corvo.model import COMPLETED, DEPENDENCY, ENDED, PENDING, STATES, ErrorRecord, Job

# Positions in model.ON_DEPENDENCY_FAILURE.
FAIL: Final = 0
CANCEL: Final = 1
RUN: Final = 2

_FAILED_DATA: Final = b'{"reason":"dependency"}'


def refusal(state: State, depends_on: list[str]) -> CorvoError | None:
    """Why a job cannot depend on these: one of them does not exist."""
    for job_id in depends_on:
        if state.find(job_id) is None:
            return ValidationError(
                f'depends_on: job "{job_id}" not found', field="depends_on", job_id=job_id
            )
    return None


def wait_for(state: State, job: Job, job_ids: list[str]) -> tuple[str, int] | None:
    """Let a job, which has no place yet or has ended, wait for those of the given jobs that have
    not ended. Returns the first one (id and state) that has ended in a way that ends this one, and
    then it waits for nothing."""
    assert job.options is not None
    options = job.options
    options.open_dependencies = []
    waiting: list[Job] = []
    for job_id in job_ids:
        dependency = state.find(job_id)
        if dependency is None or dependency.state == COMPLETED:
            continue
        if not ENDED[dependency.state]:
            waiting.append(dependency)
        elif options.on_dependency_failure != RUN:
            return job_id, dependency.state
    for dependency in waiting:
        options.open_dependencies.append(dependency.id)
        state.buffer.touch(dependency)
        state.buffer.touch_options(dependency).has_dependents = True
        if not state.buffer.dependents.has(dependency.id, job.id):
            state.buffer.dependents.add(dependency.id, job.id)
    return None


def busy(state: State, job: Job) -> CorvoError | None:
    """Why a job that has ended cannot come back yet: its end is still making its rounds."""
    if job.id in state.pending_dependents:
        return Conflict(f'the jobs that depend on job "{job.id}" are being told of its end')
    return None


def wait_again(state: State, job: Job) -> None:
    """A job that has ended, which is touched, is run again by hand: it waits for those of its open
    dependencies that have not ended; all others are forgotten."""
    if job.options is None or not job.options.open_dependencies or not ENDED[job.state]:
        return
    live = []
    for job_id in state.buffer.touch_options(job).open_dependencies:
        dependency = state.find(job_id)
        if dependency is not None and not ENDED[dependency.state]:
            live.append(job_id)
    wait_for(state, job, live)


def fail(state: State, queue_index: QueueIndex, job: Job, job_id: str, job_state: int) -> None:
    """A dependency of the job has ended without success, and so does the job, which is touched."""
    assert job.options is not None
    if job.options.on_dependency_failure == CANCEL:
        finish.cancel(state, queue_index, job, states.CANCEL)
        return
    text = dumps(f'dependency "{job_id}" {_word(job_state)}').encode()
    state.buffer.add_error(job, ErrorRecord(job.attempt, DEPENDENCY, text, b"", state.stamp_ns))
    finish.die(state, queue_index, job, _FAILED_DATA, states.DEPENDENCY_FAILED)


def _word(state: int) -> str:
    return "deleted" if state == states.NOWHERE else STATES[state]


def unsettle(state: State, job: Job, job_state: int) -> None:
    """A job that has or had dependents has ended."""
    if job.id not in state.pending_dependents:
        heappush(state.next_pending_dependents, job.id)
    state.pending_dependents[job.id] = job_state
    state.buffer.rows.put(keys.pending_dependents(job.id), bytes((job_state,)))


def resolve_dependents(state: State) -> None:
    """Tell the dependents of the first unsettled job, as many as this entry has room for."""
    job_id = state.next_pending_dependents[0]
    job_state = state.pending_dependents[job_id]
    room = RESOLVED_DEPENDENTS_MAX - state.resolved_dependents
    dependents = state.buffer.dependents.members(job_id, room)
    for dependent in dependents:
        state.buffer.dependents.remove(job_id, dependent)
        _tell(state, dependent, job_id, job_state)
    state.resolved_dependents += len(dependents)
    if len(dependents) < room:
        heappop(state.next_pending_dependents)
        del state.pending_dependents[job_id]
        state.buffer.rows.put(keys.pending_dependents(job_id), None)


def _tell(state: State, dependent: str, job_id: str, job_state: int) -> None:
    job = state.find(dependent)
    if job is None or ENDED[job.state] or job.options is None:
        return
    if job_id not in job.options.open_dependencies:
        return
    state.buffer.touch(job)
    options = state.buffer.touch_options(job)
    options.open_dependencies.remove(job_id)
    queue_index = state.queue_index_of(job)
    if job_state != COMPLETED and options.on_dependency_failure != RUN:
        fail(state, queue_index, job, job_id, job_state)
    elif options.blocked and not options.open_dependencies:
        assert states.next_state(job.state, states.UNBLOCK) == PENDING
        state.move(queue_index, job, PENDING, tail=True)
        state.emit(queue_index, job, events.UNBLOCKED, b"")

"""Dependencies: jobs that wait for other jobs.

A job with open dependencies is blocked while it is pending: its index row is in a family of its
own, so that fetches never read it. Each dependent of a job has a row. When a job with dependents
finishes, they are *pending* until all of them are resolved, at most RESOLVED_DEPENDENTS_MAX in one
entry. A row records that and the final state of the job, and the next entries continue.

A resolved dependent loses its row, and nothing else is written until its last dependency has
finished: a job with a thousand of them would be rewritten a thousand times. So the list in its
options is that of the dependencies when the wait began; those that are still open have a row. It is
empty when none is open. When the job itself finishes, its rows are removed and the list is cut down
to the open ones, which a retry waits for again.
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

# Indexes of model.ON_DEPENDENCY_FAILURE.
FAIL: Final = 0
CANCEL: Final = 1
RUN: Final = 2

_FAILED_DATA: Final = b'{"reason":"dependency"}'


def refusal(state: State, depends_on: list[str]) -> CorvoError | None:
    """Return the error if one of the dependencies does not exist."""
    for job_id in depends_on:
        if state.find(job_id) is None:
            return ValidationError(
                f'depends_on: job "{job_id}" not found', field="depends_on", job_id=job_id
            )
    return None


def wait_for(state: State, job: Job, job_ids: list[str]) -> tuple[str, int] | None:
    """Set the open dependencies of a new or finished job: the given jobs that have not finished. If
    one has finished in a way that ends this job, return its id and state; the job then waits for
    none."""
    assert job.options is not None
    options = job.options
    options.open_dependencies = []
    waiting: list[Job] = []
    for job_id in dict.fromkeys(job_ids):
        dependency = state.find(job_id)
        if dependency is None or dependency.state == COMPLETED:
            continue
        if not ENDED[dependency.state]:
            waiting.append(dependency)
        elif options.on_dependency_failure != RUN:
            return job_id, dependency.state
    for dependency in waiting:
        options.open_dependencies.append(dependency.id)
        if dependency.options is None or not dependency.options.has_dependents:
            state.buffer.touch(dependency)
            state.buffer.touch_options(dependency).has_dependents = True
        if not state.buffer.dependents.has(dependency.id, job.id):
            state.buffer.dependents.add(dependency.id, job.id)
    if waiting:
        _count(state, job, len(waiting))
    return None


def _count(state: State, job: Job, count: int) -> None:
    """Keep the number of open dependencies of a job; negative if failed ones do not matter to
    it."""
    assert job.options is not None
    runs = job.options.on_dependency_failure == RUN
    state.open_dependencies[job.id] = -count if runs else count


def still_open(state: State, job: Job) -> list[str]:
    """Return the dependencies that a job waits for, or will wait for when it is run again."""
    if job.options is None:
        return []
    listed = job.options.open_dependencies
    if ENDED[job.state]:
        return listed
    return [job_id for job_id in listed if state.buffer.dependents.has(job_id, job.id)]


def stop_waiting(state: State, job: Job, job_ids: list[str]) -> None:
    """Remove a finished or deleted job from the dependents of its dependencies, of which `job_ids`
    may be open, and keep those that are."""
    assert job.options is not None
    state.open_dependencies.pop(job.id, None)
    still = [job_id for job_id in job_ids if state.buffer.dependents.has(job_id, job.id)]
    for job_id in still:
        state.buffer.dependents.remove(job_id, job.id)
    if not job.deleted and len(still) != len(job_ids):
        state.buffer.touch(job)
        state.buffer.touch_options(job).open_dependencies = still


def dependents_pending(state: State, job: Job) -> CorvoError | None:
    """Return the error if a finished job cannot run again yet, because its dependents are
    pending."""
    if job.id in state.pending_dependents:
        return Conflict(f'the jobs that depend on job "{job.id}" are still being resolved')
    return None


def wait_again(state: State, job: Job) -> None:
    """Let a finished job, which is touched, wait again for its open dependencies when it is run
    again by hand. Finished dependencies are removed."""
    if job.options is None or not job.options.open_dependencies or not ENDED[job.state]:
        return
    live = []
    for job_id in state.buffer.touch_options(job).open_dependencies:
        dependency = state.find(job_id)
        if dependency is not None and not ENDED[dependency.state]:
            live.append(job_id)
        elif state.buffer.dependents.has(job_id, job.id):  # written by an earlier version
            state.buffer.dependents.remove(job_id, job.id)
    wait_for(state, job, live)


def fail(state: State, queue_index: QueueIndex, job: Job, job_id: str, job_state: int) -> None:
    """Finish the job, which is touched, because a dependency finished without success."""
    assert job.options is not None
    if job.options.on_dependency_failure == CANCEL:
        finish.cancel(state, queue_index, job, states.CANCEL)
        return
    text = dumps(f'dependency "{job_id}" {_word(job_state)}').encode()
    state.buffer.add_error(job, ErrorRecord(job.attempt, DEPENDENCY, text, b"", state.stamp_ns))
    finish.die(state, queue_index, job, _FAILED_DATA, states.DEPENDENCY_FAILED)


def _word(state: int) -> str:
    return "deleted" if state == states.NOWHERE else STATES[state]


def add_pending_dependents(state: State, job: Job, job_state: int) -> None:
    """Record that the dependents of a finished job are pending."""
    if job.id not in state.pending_dependents:
        heappush(state.next_pending_dependents, job.id)
    state.pending_dependents[job.id] = job_state
    state.buffer.rows.put(keys.pending_dependents(job.id), bytes((job_state,)))


def resolve_dependents(state: State) -> None:
    """Resolve dependents of the first such job, as many as the limit of this entry allows."""
    job_id = state.next_pending_dependents[0]
    job_state = state.pending_dependents[job_id]
    room = RESOLVED_DEPENDENTS_MAX - state.resolved_dependents
    dependents = state.buffer.dependents.members(job_id, room)
    for dependent in dependents:
        state.buffer.dependents.remove(job_id, dependent)
        _resolve(state, dependent, job_id, job_state)
    state.resolved_dependents += len(dependents)
    if len(dependents) < room:
        heappop(state.next_pending_dependents)
        del state.pending_dependents[job_id]
        state.buffer.rows.put(keys.pending_dependents(job_id), None)


def _resolve(state: State, dependent: str, job_id: str, job_state: int) -> None:
    """Resolve a dependent, which has just lost the row that names this job."""
    count = state.open_dependencies.get(dependent, 0)
    if count < -1:
        state.open_dependencies[dependent] = count + 1
        return
    if count > 1 and job_state == COMPLETED:
        state.open_dependencies[dependent] = count - 1
        return
    job = state.find(dependent)
    if job is None or ENDED[job.state] or job.options is None:
        return
    options = job.options
    if job_id not in options.open_dependencies:
        return
    queue_index = state.queue_index_of(job)
    if job_state != COMPLETED and options.on_dependency_failure != RUN:
        state.buffer.touch(job)
        fail(state, queue_index, job, job_id, job_state)
        return
    left = 0
    if count == 0:  # this is the first one since the state was loaded
        left = len(still_open(state, job))
    if left:
        _count(state, job, left)
        return
    state.open_dependencies.pop(dependent, None)
    state.buffer.touch(job)
    state.buffer.touch_options(job).open_dependencies = []
    if options.blocked:
        assert states.next_state(job.state, states.UNBLOCK) == PENDING
        state.move(queue_index, job, PENDING, tail=True)
        state.emit(queue_index, job, events.UNBLOCKED, b"")

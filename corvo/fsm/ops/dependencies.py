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
from corvo.fsm.state.queue_index import Lane
from corvo.fsm.state.state import Core
from corvo.limits import SETTLED_MAX
from corvo.model import COMPLETED, DEPENDENCY, ENDED, PENDING, STATES, ErrorRecord, Job

# Positions in model.ON_DEPENDENCY_FAILURE.
FAIL: Final = 0
CANCEL: Final = 1
RUN: Final = 2

_FAILED_DATA: Final = b'{"reason":"dependency"}'


def refusal(core: Core, depends_on: list[str]) -> CorvoError | None:
    """Why a job cannot depend on these: one of them does not exist."""
    for job_id in depends_on:
        if core.find(job_id) is None:
            return ValidationError(
                f'depends_on: job "{job_id}" not found', field="depends_on", job_id=job_id
            )
    return None


def wait_for(core: Core, job: Job, job_ids: list[str]) -> tuple[str, int] | None:
    """Let a job, which has no place yet or has ended, wait for those of the given jobs that have
    not ended. Returns the first one (id and state) that has ended in a way that ends this one, and
    then it waits for nothing."""
    assert job.extras is not None
    extras = job.extras
    extras.open_dependencies = []
    waiting: list[Job] = []
    for job_id in job_ids:
        dependency = core.find(job_id)
        if dependency is None or dependency.state == COMPLETED:
            continue
        if not ENDED[dependency.state]:
            waiting.append(dependency)
        elif extras.on_dependency_failure != RUN:
            return job_id, dependency.state
    for dependency in waiting:
        extras.open_dependencies.append(dependency.id)
        core.store.touch(dependency)
        core.store.touch_extras(dependency).has_dependents = True
        if not core.store.dependents.has(dependency.id, job.id):
            core.store.dependents.add(dependency.id, job.id)
    return None


def busy(core: Core, job: Job) -> CorvoError | None:
    """Why a job that has ended cannot come back yet: its end is still making its rounds."""
    if job.id in core.unsettled:
        return Conflict(f'the jobs that depend on job "{job.id}" are being told of its end')
    return None


def wait_again(core: Core, job: Job) -> None:
    """A job that has ended, which is touched, is run again by hand: it waits for those of its open
    dependencies that have not ended; all others are forgotten."""
    if job.extras is None or not job.extras.open_dependencies or not ENDED[job.state]:
        return
    live = []
    for job_id in core.store.touch_extras(job).open_dependencies:
        dependency = core.find(job_id)
        if dependency is not None and not ENDED[dependency.state]:
            live.append(job_id)
    wait_for(core, job, live)


def fail(core: Core, lane: Lane, job: Job, job_id: str, state: int) -> None:
    """A dependency of the job has ended without success, and so does the job, which is touched."""
    assert job.extras is not None
    if job.extras.on_dependency_failure == CANCEL:
        finish.cancel(core, lane, job, states.CANCEL)
        return
    text = dumps(f'dependency "{job_id}" {_word(state)}').encode()
    core.store.add_error(job, ErrorRecord(job.attempt, DEPENDENCY, text, b"", core.stamp_ns))
    finish.die(core, lane, job, _FAILED_DATA, states.FORSAKE)


def _word(state: int) -> str:
    return "deleted" if state == states.NOWHERE else STATES[state]


def unsettle(core: Core, job: Job, state: int) -> None:
    """A job that has or had dependents has ended."""
    if job.id not in core.unsettled:
        heappush(core.next_unsettled, job.id)
    core.unsettled[job.id] = state
    core.store.rows.put(keys.unsettled(job.id), bytes((state,)))


def settle(core: Core) -> None:
    """Tell the dependents of the first unsettled job, as many as this entry has room for."""
    job_id = core.next_unsettled[0]
    state = core.unsettled[job_id]
    room = SETTLED_MAX - core.settled
    dependents = core.store.dependents.members(job_id, room)
    for dependent in dependents:
        core.store.dependents.remove(job_id, dependent)
        _tell(core, dependent, job_id, state)
    core.settled += len(dependents)
    if len(dependents) < room:
        heappop(core.next_unsettled)
        del core.unsettled[job_id]
        core.store.rows.put(keys.unsettled(job_id), None)


def _tell(core: Core, dependent: str, job_id: str, state: int) -> None:
    job = core.find(dependent)
    if job is None or ENDED[job.state] or job.extras is None:
        return
    if job_id not in job.extras.open_dependencies:
        return
    core.store.touch(job)
    extras = core.store.touch_extras(job)
    extras.open_dependencies.remove(job_id)
    lane = core.lane_of(job)
    if state != COMPLETED and extras.on_dependency_failure != RUN:
        fail(core, lane, job, job_id, state)
    elif extras.blocked and not extras.open_dependencies:
        assert states.next_state(job.state, states.UNBLOCK) == PENDING
        core.move(lane, job, PENDING, tail=True)
        core.emit(lane, job, events.UNBLOCKED, b"")

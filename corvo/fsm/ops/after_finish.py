"""What the end of a job brings about, in the entry of that end: its batch counts it, its chain goes
on, and jobs that depend on it are told. Called after each op that has ended jobs."""

from typing import Final

from corvo import ops
from corvo._fast.codec.layouts import decode_fields
from corvo.fsm.ops import batches, chains, dependencies, jobs
from corvo.fsm.ops.batches import Callback
from corvo.fsm.state.state import Core
from corvo.limits import (
    RETRIES_DEFAULT,
    RETRY_BASE_DELAY_DEFAULT_MS,
    RETRY_JITTER_DEFAULT_PPM,
    RETRY_MAX_DELAY_DEFAULT_MS,
    SETTLED_MAX,
)
from corvo.model import BACKOFFS, PRIORITY_NAMES, Ended, EnqueuedBatch, Extras, Job
from corvo.platform.ids import derived_id

_NORMAL: Final = PRIORITY_NAMES.index("normal")
_EXPONENTIAL: Final = BACKOFFS.index("exponential")


def follow_ends(core: Core) -> None:
    """Do what follows the ends of jobs. What dependents are told may end further jobs; what does
    not fit into this entry is left for the next one."""
    while core.ended or (core.unsettled and core.settled < SETTLED_MAX):
        ended, core.ended = core.ended, []
        for item in ended:
            _follow(core, item)
        if core.unsettled and core.settled < SETTLED_MAX:
            dependencies.settle(core)


def _follow(core: Core, ended: Ended) -> None:
    job = ended.job
    assert job.extras is not None
    if job.extras.batch_id:
        for callback in batches.leave(core, job, job.extras.batch_id, ended.state):
            call_back(core, job.extras.batch_id, callback)
    if job.extras.chain:
        step = chains.next_step(core, ended)
        if step is not None:
            _continue(core, job, step)
    if job.extras.has_dependents:
        dependencies.unsettle(core, job, ended.state)


def call_back(core: Core, batch_id: str, callback: Callback) -> None:
    """Enqueue a callback of a batch, with the options that a job has by default."""
    job = Job(derived_id(core.stamp_ns, batch_id, callback.name))
    job.priority = _NORMAL
    job.payload = callback.payload
    job.max_retries = RETRIES_DEFAULT
    job.backoff = _EXPONENTIAL
    job.base_delay_ms = RETRY_BASE_DELAY_DEFAULT_MS
    job.max_delay_ms = RETRY_MAX_DELAY_DEFAULT_MS
    job.jitter_ppm = RETRY_JITTER_DEFAULT_PPM
    jobs.create(core, job, callback.queue, b"")


def _continue(core: Core, before: Job, step: chains.Step) -> None:
    """Enqueue a job of the chain; it is like the one before it. A job that is run again after its
    end is followed by another job, so its last event is part of that one's id."""
    assert before.extras is not None
    job = Job(derived_id(core.stamp_ns, before.id, str(before.event_seq)))
    job.priority = before.priority
    job.payload = step.payload
    job.tags = before.tags
    job.max_retries = before.max_retries
    job.backoff = before.backoff
    job.base_delay_ms = before.base_delay_ms
    job.max_delay_ms = before.max_delay_ms
    job.jitter_ppm = before.jitter_ppm
    extras = Extras()
    extras.chain_id = before.extras.chain_id
    extras.chain_step = step.number
    extras.chain = before.extras.chain
    job.extras = extras
    job.has_extras = True
    jobs.create(core, job, step.queue, b"")


def enqueue_batch(core: Core, payload: bytes) -> object:
    """Many jobs; all are taken or none. A batch that has got no member, because there were all of
    the jobs before, has finished."""
    result = jobs.enqueue_batch(core, payload)
    if isinstance(result, EnqueuedBatch) and result.batch_id:
        batch = core.store.batch(result.batch_id)
        assert batch is not None
        for callback in batches.finish(core, batch):
            call_back(core, batch.id, callback)
    return result


def settle(core: Core, payload: bytes) -> object:
    """Go on with what earlier entries had no room for; the result says how many were told."""
    decode_fields(ops.SETTLE.layout, payload)
    before = core.settled
    follow_ends(core)
    return core.settled - before

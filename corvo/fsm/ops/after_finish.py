"""What the end of a job brings about, in the entry of that end: its batch counts it, its chain goes
on, and jobs that depend on it are told. Called after each op that has ended jobs."""

from typing import Final

from corvo import ops
from corvo._fast.codec.layouts import decode_fields
from corvo.fsm.ops import Apply, batches, chains, dependencies, jobs
from corvo.fsm.ops.batches import Callback
from corvo.fsm.state.state import State
from corvo.limits import (
    RESOLVED_DEPENDENTS_MAX,
    RETRIES_DEFAULT,
    RETRY_BASE_DELAY_DEFAULT_MS,
    RETRY_JITTER_DEFAULT_PPM,
    RETRY_MAX_DELAY_DEFAULT_MS,
)
from corvo.model import BACKOFFS, PRIORITY_NAMES, Ended, EnqueuedBatch, Job, JobOptions
from corvo.platform.ids import derived_id

_NORMAL: Final = PRIORITY_NAMES.index("normal")
_EXPONENTIAL: Final = BACKOFFS.index("exponential")


def apply_effects(state: State) -> None:
    """Do what follows the ends of jobs. What dependents are told may end further jobs; what does
    not fit into this entry is left for the next one."""
    while state.ended or (
        state.pending_dependents and state.resolved_dependents < RESOLVED_DEPENDENTS_MAX
    ):
        ended, state.ended = state.ended, []
        for item in ended:
            _follow(state, item)
        if state.pending_dependents and state.resolved_dependents < RESOLVED_DEPENDENTS_MAX:
            dependencies.resolve_dependents(state)


def _follow(state: State, ended: Ended) -> None:
    job = ended.job
    assert job.options is not None
    if job.options.batch_id:
        for callback in batches.leave(state, job, job.options.batch_id, ended.state):
            call_back(state, job.options.batch_id, callback)
    if job.options.chain:
        step = chains.next_step(state, ended)
        if step is not None:
            _continue(state, job, step)
    if job.options.has_dependents:
        dependencies.unsettle(state, job, ended.state)


def call_back(state: State, batch_id: str, callback: Callback) -> None:
    """Enqueue a callback of a batch, with the options that a job has by default."""
    job = Job(derived_id(state.stamp_ns, batch_id, callback.name))
    job.priority = _NORMAL
    job.payload = callback.payload
    job.max_retries = RETRIES_DEFAULT
    job.backoff = _EXPONENTIAL
    job.base_delay_ms = RETRY_BASE_DELAY_DEFAULT_MS
    job.max_delay_ms = RETRY_MAX_DELAY_DEFAULT_MS
    job.jitter_ppm = RETRY_JITTER_DEFAULT_PPM
    jobs.create(state, job, callback.queue, b"")


def _continue(state: State, before: Job, step: chains.Step) -> None:
    """Enqueue a job of the chain; it is like the one before it. A job that is run again after its
    end is followed by another job, so its last event is part of that one's id."""
    assert before.options is not None
    job = Job(derived_id(state.stamp_ns, before.id, str(before.event_seq)))
    job.priority = before.priority
    job.payload = step.payload
    job.tags = before.tags
    job.max_retries = before.max_retries
    job.backoff = before.backoff
    job.base_delay_ms = before.base_delay_ms
    job.max_delay_ms = before.max_delay_ms
    job.jitter_ppm = before.jitter_ppm
    options = JobOptions()
    options.chain_id = before.options.chain_id
    options.chain_step = step.number
    options.chain = before.options.chain
    job.options = options
    job.has_options = True
    jobs.create(state, job, step.queue, b"")


def enqueue_batch(state: State, payload: bytes) -> object:
    """Many jobs; all are taken or none. A batch that has got no member, because there were all of
    the jobs before, has finished."""
    result = jobs.enqueue_batch(state, payload)
    if isinstance(result, EnqueuedBatch) and result.batch_id:
        batch = state.buffer.batch(result.batch_id)
        assert batch is not None
        for callback in batches.finish(state, batch):
            call_back(state, batch.id, callback)
    return result


def resolve_dependents(state: State, payload: bytes) -> object:
    """Go on with what earlier entries had no room for; the result says how many were told."""
    decode_fields(ops.RESOLVE_DEPENDENTS.layout, payload)
    before = state.resolved_dependents
    apply_effects(state)
    return state.resolved_dependents - before


APPLY: Final[dict[int, Apply]] = {
    ops.ENQUEUE_BATCH.number: enqueue_batch,
    ops.RESOLVE_DEPENDENTS.number: resolve_dependents,
}

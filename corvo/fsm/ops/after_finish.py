"""Effects of finished jobs, in the entry in which they finish: the batch counts the job, the chain
continues, and dependents are resolved. Called after each op that has finished jobs."""

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
    """Apply the effects of finished jobs. Resolved dependents may finish further jobs. Effects
    above the limit of an entry are left for the next one."""
    while state.ended or (
        state.pending_dependents and state.resolved_dependents < RESOLVED_DEPENDENTS_MAX
    ):
        ended, state.ended = state.ended, []
        for item in ended:
            _apply_effects_of(state, item)
        if state.pending_dependents and state.resolved_dependents < RESOLVED_DEPENDENTS_MAX:
            dependencies.resolve_dependents(state)


def _apply_effects_of(state: State, ended: Ended) -> None:
    job = ended.job
    assert job.options is not None
    if job.options.open_dependencies:
        dependencies.stop_waiting(state, job, job.options.open_dependencies)
    if job.options.batch_id:
        for callback in batches.leave(state, job, job.options.batch_id, ended.state):
            call_back(state, job.options.batch_id, callback)
    if job.options.chain:
        step = chains.next_step(state, ended)
        if step is not None:
            _continue_chain(state, job, step)
    if job.options.has_dependents:
        dependencies.add_pending_dependents(state, job, ended.state)


def call_back(state: State, batch_id: str, callback: Callback) -> None:
    """Enqueue a callback of a batch, with the default options of a job."""
    job = Job(derived_id(state.stamp_ns, batch_id, callback.name))
    job.priority = _NORMAL
    job.payload = callback.payload
    job.max_retries = RETRIES_DEFAULT
    job.backoff = _EXPONENTIAL
    job.base_delay_ms = RETRY_BASE_DELAY_DEFAULT_MS
    job.max_delay_ms = RETRY_MAX_DELAY_DEFAULT_MS
    job.jitter_ppm = RETRY_JITTER_DEFAULT_PPM
    jobs.create(state, job, callback.queue, b"")


def _continue_chain(state: State, before: Job, step: chains.Step) -> None:
    """Enqueue the next job of the chain, with the settings of the one before it. Its id is derived
    from the last event of that job, because a retried job that finishes again gets another
    successor."""
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
    """Apply EnqueueBatch: enqueue all jobs or none. A new batch without members, because all of its
    jobs are duplicates, finishes at once."""
    result = jobs.enqueue_batch(state, payload)
    if isinstance(result, EnqueuedBatch) and result.batch_id:
        batch = state.buffer.batch(result.batch_id)
        assert batch is not None
        for callback in batches.finish(state, batch):
            call_back(state, batch.id, callback)
    return result


def resolve_dependents(state: State, payload: bytes) -> object:
    """Apply ResolveDependents: continue the work of earlier entries. The result is the number of
    dependents that were resolved."""
    decode_fields(ops.RESOLVE_DEPENDENTS.layout, payload)
    before = state.resolved_dependents
    apply_effects(state)
    return state.resolved_dependents - before


APPLY: Final[dict[int, Apply]] = {
    ops.ENQUEUE_BATCH.number: enqueue_batch,
    ops.RESOLVE_DEPENDENTS.number: resolve_dependents,
}

"""Ops on queues, workers and the event log."""

from typing import Final

from corvo import events, ops
from corvo._fast.codec.layouts import decode_fields
from corvo.errors import NotFound
from corvo.fsm.ops import Apply
from corvo.fsm.state.rate_limits import Window
from corvo.fsm.state.state import State
from corvo.limits import MS_NS
from corvo.model import END_STATES, STATES


def pause_queue(state: State, payload: bytes) -> object:
    """Apply PauseQueue: stop fetches. The queue is created if needed. With `drain`, an event is
    recorded when the last active job finishes."""
    name: str
    drain: bool
    name, drain = decode_fields(ops.PAUSE_QUEUE.layout, payload)
    refusal = state.no_room(name)
    if refusal is not None:
        return refusal
    queue_index = state.queue_index(name)
    if not queue_index.queue.paused:
        queue_index.queue.paused = True
        state.buffer.touch_queue(queue_index.queue)
        state.emit_queue(queue_index.queue.name, events.QUEUE_PAUSED, b"")
    if drain and not queue_index.queue.draining:
        state.buffer.touch_queue(queue_index.queue)
        if queue_index.active:
            queue_index.queue.draining = True
        else:
            state.emit_queue(queue_index.queue.name, events.QUEUE_DRAINED, b"")
    return None


def resume_queue(state: State, payload: bytes) -> object:
    """Apply ResumeQueue: allow fetches again."""
    name: str
    (name,) = decode_fields(ops.RESUME_QUEUE.layout, payload)
    queue_index = state.queue_indexes.get(name)
    if queue_index is None:
        return NotFound(f'queue "{name}" not found')
    if queue_index.queue.paused:
        queue_index.queue.paused = False
        queue_index.queue.draining = False
        state.buffer.touch_queue(queue_index.queue)
        state.wake(queue_index)
        state.emit_queue(queue_index.queue.name, events.QUEUE_RESUMED, b"")
    return None


def set_concurrency(state: State, payload: bytes) -> object:
    """Apply SetConcurrency: limit the active jobs, 0 = no limit. The queue is created if needed."""
    name: str
    limit: int
    name, limit = decode_fields(ops.SET_CONCURRENCY.layout, payload)
    refusal = state.no_room(name)
    if refusal is not None:
        return refusal
    queue_index = state.queue_index(name)
    if queue_index.queue.max_concurrency != limit:
        queue_index.queue.max_concurrency = limit
        state.buffer.touch_queue(queue_index.queue)
        state.wake(queue_index)
        state.emit_queue(
            queue_index.queue.name, events.QUEUE_CONFIGURED, b'{"max_concurrency":%d}' % limit
        )
    return None


def set_throttle(state: State, payload: bytes) -> object:
    """Apply SetThrottle: start at most `rate` jobs within any `window_ms`. The queue is created if
    needed."""
    name: str
    rate: int
    window_ms: int
    name, rate, window_ms = decode_fields(ops.SET_THROTTLE.layout, payload)
    refusal = state.no_room(name)
    if refusal is not None:
        return refusal
    queue_index = state.queue_index(name)
    queue = queue_index.queue
    window_ns = window_ms * MS_NS
    if (queue.rate_limit, queue.rate_window_ns) != (rate, window_ns):
        queue.rate_limit = rate
        queue.rate_window_ns = window_ns
        if queue_index.window is None:
            queue_index.window = Window(queue, state.buffer.rows)
        state.buffer.touch_queue(queue)
        state.wake(queue_index)
        data = b'{"rate_limit":%d,"rate_window_ms":%d}' % (rate, window_ms)
        state.emit_queue(name, events.QUEUE_CONFIGURED, data)
    return None


def remove_throttle(state: State, payload: bytes) -> object:
    """Apply RemoveThrottle: remove the rate limit."""
    name: str
    (name,) = decode_fields(ops.REMOVE_THROTTLE.layout, payload)
    queue_index = state.queue_indexes.get(name)
    if queue_index is None:
        return NotFound(f'queue "{name}" not found')
    if queue_index.window is not None:
        queue_index.window.forget(state.stamp_ns)
        queue_index.window = None
        queue_index.queue.rate_limit = 0
        queue_index.queue.rate_window_ns = 0
        state.buffer.touch_queue(queue_index.queue)
        state.wake(queue_index)
        state.emit_queue(name, events.QUEUE_CONFIGURED, b'{"rate_limit":0,"rate_window_ms":0}')
    return None


def set_group_limit(state: State, payload: bytes) -> object:
    """Apply SetGroupLimit: limit the active jobs of each group, 0 = no limit. The queue is created
    if needed."""
    name: str
    limit: int
    name, limit = decode_fields(ops.SET_GROUP_LIMIT.layout, payload)
    refusal = state.no_room(name)
    if refusal is not None:
        return refusal
    queue_index = state.queue_index(name)
    if queue_index.queue.group_concurrency != limit:
        queue_index.queue.group_concurrency = limit
        if queue_index.groups is not None:
            queue_index.groups.rank_all()
        state.buffer.touch_queue(queue_index.queue)
        state.wake(queue_index)
        state.emit_queue(name, events.QUEUE_CONFIGURED, b'{"group_concurrency":%d}' % limit)
    return None


def set_queue_options(state: State, payload: bytes) -> object:
    """Apply SetQueueOptions: the retention of finished jobs, and the aging time of normal jobs. The
    queue is created if needed."""
    name: str
    retention: list[int]
    aging: int
    name, retention, aging = decode_fields(ops.SET_QUEUE_OPTIONS.layout, payload)
    refusal = state.no_room(name)
    if refusal is not None:
        return refusal
    queue_index = state.queue_index(name)
    keep_ns = [value - 1 for value in retention]
    if retention and queue_index.queue.retention_ns != keep_ns:
        queue_index.queue.retention_ns = keep_ns
        state.buffer.touch_queue(queue_index.queue)
        texts = [f'"{STATES[END_STATES[i]]}":{keep_ns[i]}' for i in range(len(END_STATES))]
        data = '{"retention_ns":{' + ",".join(texts) + "}}"
        state.emit_queue(name, events.QUEUE_CONFIGURED, data.encode())
    if aging and queue_index.queue.aging_after_ns != aging - 1:
        queue_index.queue.aging_after_ns = aging - 1
        if queue_index.groups is not None:
            queue_index.groups.rank_all()
        state.buffer.touch_queue(queue_index.queue)
        state.emit_queue(name, events.QUEUE_CONFIGURED, b'{"aging_after_ns":%d}' % (aging - 1))
    return None


def remove_stale_workers(state: State, payload: bytes) -> object:
    """Apply RemoveStaleWorkers: delete workers whose last request was before the cutoff; the result
    is their number."""
    cutoff_ns: int
    (cutoff_ns,) = decode_fields(ops.REMOVE_STALE_WORKERS.layout, payload)
    count = 0
    while (worker := state.oldest_worker()) is not None and worker.seen_ns < cutoff_ns:
        state.remove_worker(worker)
        count += 1
    return count


def trim_events(state: State, payload: bytes) -> object:
    """Apply TrimEvents: drop the oldest blocks of the event log."""
    seq: int
    (seq,) = decode_fields(ops.TRIM_EVENTS.layout, payload)
    state.buffer.events.trim(seq)
    return None


APPLY: Final[dict[int, Apply]] = {
    ops.SET_QUEUE_OPTIONS.number: set_queue_options,
    ops.PAUSE_QUEUE.number: pause_queue,
    ops.RESUME_QUEUE.number: resume_queue,
    ops.SET_CONCURRENCY.number: set_concurrency,
    ops.SET_THROTTLE.number: set_throttle,
    ops.REMOVE_THROTTLE.number: remove_throttle,
    ops.SET_GROUP_LIMIT.number: set_group_limit,
    ops.REMOVE_STALE_WORKERS.number: remove_stale_workers,
    ops.TRIM_EVENTS.number: trim_events,
}

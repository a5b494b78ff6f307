"""Apply of the ops on queues, workers and the event log."""

from corvo import events, ops
from corvo._fast.codec.layouts import decode_fields
from corvo.errors import NotFound
from corvo.fsm.state.rate_limits import Window
from corvo.fsm.state.state import Core
from corvo.limits import MS_NS
from corvo.model import ENDINGS, STATES


def pause_queue(core: Core, payload: bytes) -> object:
    """No more fetches; everything else goes on. Creates the queue if need be. A drained queue is
    paused and says so when its last active job is done."""
    name: str
    drain: bool
    name, drain = decode_fields(ops.PAUSE_QUEUE.layout, payload)
    refusal = core.no_room(name)
    if refusal is not None:
        return refusal
    lane = core.lane(name)
    if not lane.queue.paused:
        lane.queue.paused = True
        core.store.touch_queue(lane.queue)
        core.emit_queue(lane.queue.name, events.QUEUE_PAUSED, b"")
    if drain and not lane.queue.draining:
        core.store.touch_queue(lane.queue)
        if lane.active:
            lane.queue.draining = True
        else:
            core.emit_queue(lane.queue.name, events.QUEUE_DRAINED, b"")
    return None


def resume_queue(core: Core, payload: bytes) -> object:
    """Fetches are served again."""
    name: str = decode_fields(ops.RESUME_QUEUE.layout, payload)[0]
    lane = core.lanes.get(name)
    if lane is None:
        return NotFound(f'queue "{name}" not found')
    if lane.queue.paused:
        lane.queue.paused = False
        lane.queue.draining = False
        core.store.touch_queue(lane.queue)
        core.wake(lane)
        core.emit_queue(lane.queue.name, events.QUEUE_RESUMED, b"")
    return None


def set_concurrency(core: Core, payload: bytes) -> object:
    """At most so many active jobs, 0 = no limit. Creates the queue if need be."""
    name: str
    limit: int
    name, limit = decode_fields(ops.SET_CONCURRENCY.layout, payload)
    refusal = core.no_room(name)
    if refusal is not None:
        return refusal
    lane = core.lane(name)
    if lane.queue.max_concurrency != limit:
        lane.queue.max_concurrency = limit
        core.store.touch_queue(lane.queue)
        core.wake(lane)
        core.emit_queue(lane.queue.name, events.QUEUE_CONFIGURED, b'{"max_concurrency":%d}' % limit)
    return None


def set_throttle(core: Core, payload: bytes) -> object:
    """At most `rate` jobs handed out within any `window_ms`. Creates the queue if need be."""
    name: str
    rate: int
    window_ms: int
    name, rate, window_ms = decode_fields(ops.SET_THROTTLE.layout, payload)
    refusal = core.no_room(name)
    if refusal is not None:
        return refusal
    lane = core.lane(name)
    queue = lane.queue
    window_ns = window_ms * MS_NS
    if (queue.rate_limit, queue.rate_window_ns) != (rate, window_ns):
        queue.rate_limit = rate
        queue.rate_window_ns = window_ns
        if lane.window is None:
            lane.window = Window(queue, core.store.rows)
        core.store.touch_queue(queue)
        core.wake(lane)
        data = b'{"rate_limit":%d,"rate_window_ms":%d}' % (rate, window_ms)
        core.emit_queue(name, events.QUEUE_CONFIGURED, data)
    return None


def remove_throttle(core: Core, payload: bytes) -> object:
    """No rate limit any more."""
    name: str = decode_fields(ops.REMOVE_THROTTLE.layout, payload)[0]
    lane = core.lanes.get(name)
    if lane is None:
        return NotFound(f'queue "{name}" not found')
    if lane.window is not None:
        lane.window.forget()
        lane.window = None
        lane.queue.rate_limit = 0
        lane.queue.rate_window_ns = 0
        core.store.touch_queue(lane.queue)
        core.wake(lane)
        core.emit_queue(name, events.QUEUE_CONFIGURED, b'{"rate_limit":0,"rate_window_ms":0}')
    return None


def set_group_limit(core: Core, payload: bytes) -> object:
    """At most so many active jobs of each group, 0 = no limit. Creates the queue if need be."""
    name: str
    limit: int
    name, limit = decode_fields(ops.SET_GROUP_LIMIT.layout, payload)
    refusal = core.no_room(name)
    if refusal is not None:
        return refusal
    lane = core.lane(name)
    if lane.queue.group_concurrency != limit:
        lane.queue.group_concurrency = limit
        if lane.groups is not None:
            lane.groups.settle_all()
        core.store.touch_queue(lane.queue)
        core.wake(lane)
        core.emit_queue(name, events.QUEUE_CONFIGURED, b'{"group_concurrency":%d}' % limit)
    return None


def set_queue_options(core: Core, payload: bytes) -> object:
    """How long jobs that have ended are kept, and after which time a normal job is served next.
    Creates the queue if need be."""
    name: str
    retention: list[int]
    aging: int
    name, retention, aging = decode_fields(ops.SET_QUEUE_OPTIONS.layout, payload)
    refusal = core.no_room(name)
    if refusal is not None:
        return refusal
    lane = core.lane(name)
    keep_ns = [value - 1 for value in retention]
    if retention and lane.queue.retention_ns != keep_ns:
        lane.queue.retention_ns = keep_ns
        core.store.touch_queue(lane.queue)
        texts = [f'"{STATES[ENDINGS[i]]}":{keep_ns[i]}' for i in range(len(ENDINGS))]
        data = '{"retention_ns":{' + ",".join(texts) + "}}"
        core.emit_queue(name, events.QUEUE_CONFIGURED, data.encode())
    if aging and lane.queue.aging_after_ns != aging - 1:
        lane.queue.aging_after_ns = aging - 1
        if lane.groups is not None:
            lane.groups.settle_all()
        core.store.touch_queue(lane.queue)
        core.emit_queue(name, events.QUEUE_CONFIGURED, b'{"aging_after_ns":%d}' % (aging - 1))
    return None


def remove_stale_workers(core: Core, payload: bytes) -> object:
    """Forget workers that have been silent since before the cutoff; the result says how many."""
    cutoff_ns: int = decode_fields(ops.REMOVE_STALE_WORKERS.layout, payload)[0]
    stale = sorted(worker.id for worker in core.workers.values() if worker.seen_ns < cutoff_ns)
    for worker_id in stale:
        core.store.delete_worker(core.workers.pop(worker_id))
    return len(stale)


def trim_events(core: Core, payload: bytes) -> object:
    """Drop the oldest blocks of the event log."""
    seq: int = decode_fields(ops.TRIM_EVENTS.layout, payload)[0]
    core.store.events.trim(seq)
    return None

"""A state machine with a clock that tests set. Each entry is encoded and applied at once."""

from typing import Any

from corvo import ops
from corvo._fast.codec.layouts import encode_fields, encode_frame
from corvo.engine.schedule_runs import due_runs
from corvo.errors import CorvoError
from corvo.fsm.machine import Machine
from corvo.limits import SECOND_NS
from corvo.model import (
    ACTIONS,
    CATCH_UPS,
    OVERLAPS,
    Acked,
    BulkOperation,
    Enqueued,
    EnqueuedBatch,
    Failed,
    Fetched,
    Job,
    Logged,
    Schedule,
)
from corvo.ops import Op
from corvo.storage.memory import MemoryStore
from corvo.storage.records import bulk as bulk_records
from corvo.storage.records import jobs as job_records

START_NS = 1_900_000_000 * SECOND_NS

ENQUEUE_FIELDS: dict[str, Any] = {
    "queue": "q",
    "priority": 2,
    "payload": b"{}",
    "tags": b"",
    "max_retries": 3,
    "backoff": 1,
    "base_delay_ms": 5_000,
    "max_delay_ms": 600_000,
    "jitter_ppm": 0,
    "scheduled_ns": 0,
    "checkpoint": b"",
    "parent_id": "",
    "unique_key": b"",
    "unique_until": 0,
    "unique_period_ns": 0,
    "options": b"",
}

ARGUMENT_FIELDS: dict[str, Any] = {
    "target": "",
    "reset_attempts": False,
    "keep_priority": True,
    "priority": 0,
    "force": False,
    "reason": "",
    "by": "",
    "note": "",
    "feedback": b"",
    "revise": False,
    "hold_timeout_ns": 0,
    "hold_action": 0,
    "states": 0,
}
OPTIONS_FIELDS: dict[str, Any] = {
    "group_key": "",
    "expire_after_ns": 0,
    "batch_id": "",
    "chain_id": "",
    "chain_step": 0,
    "chain": b"",
    "depends_on": [],
    "on_dependency_failure": 0,
    "hold": False,
    "hold_reason": "",
    "hold_timeout_ns": 0,
    "hold_action": 0,
    "result_schema": b"",
}

Step = tuple[Op, tuple[Any, ...]]


def enqueue_step(job_id: str, **fields: Any) -> Step:
    """Return an Enqueue op with defaults for all fields not given; options are given as fields."""
    options = {name: fields.pop(name) for name in OPTIONS_FIELDS if name in fields}
    if options:
        values = tuple((OPTIONS_FIELDS | options).values())
        fields["options"] = encode_fields(ops.OPTIONS_LAYOUT, values)
    assert fields.keys() <= ENQUEUE_FIELDS.keys()
    return ops.ENQUEUE, (job_id, *(ENQUEUE_FIELDS | fields).values())


def encode_arguments(**fields: Any) -> bytes:
    """Encode the arguments of an action, with defaults for all fields not given."""
    assert fields.keys() <= ARGUMENT_FIELDS.keys()
    return encode_fields(ops.ACTION_LAYOUT, tuple((ARGUMENT_FIELDS | fields).values()))


def encode_options(**fields: Any) -> bytes:
    """Encode the options of an enqueue, with defaults for all fields not given."""
    assert fields.keys() <= OPTIONS_FIELDS.keys()
    return encode_fields(ops.OPTIONS_LAYOUT, tuple((OPTIONS_FIELDS | fields).values()))


def follower(queue: str, payload: bytes = b"") -> bytes:
    """Encode a job that follows another one."""
    return encode_fields(ops.FOLLOWER_LAYOUT, (queue, payload))


def chain(*steps: bytes, on_failure: bytes = b"", on_exit: bytes = b"") -> bytes:
    """Encode a chain of followers."""
    return encode_fields(ops.CHAIN_LAYOUT, (list(steps), on_failure, on_exit))


def batch_step(
    batch_id: str,
    *jobs: Step,
    on_success: bytes = b"",
    on_complete: bytes = b"",
    on_death: bytes = b"",
) -> Step:
    """Return an EnqueueBatch op that creates a batch; each job has to name the batch."""
    values = (batch_id, on_success, on_complete, on_death)
    batch = encode_fields(ops.BATCH_LAYOUT, values)
    return ops.ENQUEUE_BATCH, ([encode_step(job) for job in jobs], batch)


def idempotent_step(
    key: bytes, step: Step, fingerprint: bytes = b"f", keep_s: int = 86_400, count: int = 1_000
) -> Step:
    """Return an Idempotent op around another op."""
    values = (key, fingerprint, keep_s * SECOND_NS, count, step[0].number, encode_step(step))
    return ops.IDEMPOTENT, values


def schedule_step(
    schedule_id: str,
    next_ns: int,
    revision: int = 0,
    name: str = "",
    cron: str = "* * * * *",
    overlap: str = "allow",
    catch_up: str = "last",
    limit: int = 100,
    **job: Any,
) -> Step:
    """Return a SetSchedule op, paused if `next_ns` is 0; `job` are fields of its Enqueue."""
    modes = (next_ns > 0, OVERLAPS.index(overlap), CATCH_UPS.index(catch_up), limit)
    template = encode_step(enqueue_step("", **job))
    values = (schedule_id, revision, name or schedule_id, cron, "UTC", template, *modes, next_ns)
    return ops.SET_SCHEDULE, values


def encode_step(step: Step) -> bytes:
    """Encode the payload of an op."""
    return encode_fields(step[0].layout, step[1])


def encode_entry(stamp_ns: int, seed: int, steps: list[Step]) -> bytes:
    """Encode a log entry."""
    frame = [(0, encode_fields(ops.STAMP.layout, (stamp_ns, seed)))]
    return encode_frame(frame + [(step[0].number, encode_step(step)) for step in steps])


def assert_result(op: Op, result: object) -> None:
    """The result is of a type that the row of the op names, or an error."""
    name = "None" if result is None else type(result).__name__
    known = op.result.split(" | ")
    assert isinstance(result, CorvoError) or name in known or "object" in known, (op.name, result)


class Driver:
    """Applies ops at the time `now_ns`, one entry for each op or for several."""

    def __init__(self, state_store: MemoryStore | None = None) -> None:
        self.state_store = state_store or MemoryStore()
        self.machine = Machine(self.state_store)
        self.term = max(1, self.machine.applied_term)
        self.now_ns = max(START_NS, self.machine.stamp_ns)
        self.seed = 0x1234_5678_9ABC_DEF0

    def restart(self, flush: bool = True) -> None:
        """Restart from the state store, as a new process would; `flush` writes changes before."""
        if flush:
            self.machine.flush()
        self.machine = Machine(self.state_store)

    def advance(self, seconds: float) -> None:
        """Move the clock forward, in whole milliseconds."""
        self.now_ns += round(seconds * 1000) * 1_000_000

    def entry(self, *steps: Step) -> list[Any]:
        """Apply one entry."""
        self.seed = (self.seed * 6_364_136_223_846_793_005 + 1) % 2**63
        data = encode_entry(self.now_ns, self.seed, list(steps))
        results = self.machine.apply(self.machine.applied_index + 1, self.term, data)
        for (op, _), result in zip(steps, results, strict=True):
            assert_result(op, result)
        return results

    def do(self, op: Op, *values: Any) -> Any:
        """Apply one op."""
        return self.entry((op, values))[0]

    def enqueue(self, job_id: str, **fields: Any) -> Enqueued:
        result = self.entry(enqueue_step(job_id, **fields))[0]
        assert isinstance(result, Enqueued)
        return result

    def fetch(self, *queues: str, worker: str = "w1", lease_s: int = 60) -> Fetched | None:
        names = list(queues) or ["q"]
        result = self.do(ops.FETCH, names, worker, "host", lease_s * SECOND_NS, 1 << 23)
        assert result is None or isinstance(result, Fetched)
        return result

    def take(self, *queues: str, worker: str = "w1", lease_s: int = 60) -> Fetched:
        """Fetch a job; one must be ready."""
        fetched = self.fetch(*queues, worker=worker, lease_s=lease_s)
        assert fetched is not None
        return fetched

    def fetch_batch(
        self, *queues: str, count: int = 10, size: int = 1 << 23, lease_s: int = 60
    ) -> list[Fetched]:
        names = list(queues) or ["q"]
        result: list[Fetched] = self.do(
            ops.FETCH_BATCH, names, "w1", "host", lease_s * SECOND_NS, size, count
        )
        return result

    def ack(
        self,
        job_id: str,
        token: str = "",
        result: bytes = b"",
        checkpoint: bytes = b"",
        step: bytes = b"",
    ) -> Any:
        return self.do(ops.ACK, job_id, token, result, checkpoint, step)

    def fail(
        self,
        job_id: str,
        token: str = "",
        no_retry: bool = False,
        retry_after_ns: int = -1,
        error: bytes = b'"boom"',
    ) -> Any:
        return self.do(ops.FAIL, job_id, token, error, b"", no_retry, retry_after_ns, False)

    def beat(
        self, job_id: str, token: str = "", progress: bytes = b"", checkpoint: bytes = b""
    ) -> str:
        item = encode_fields(ops.BEAT_LAYOUT, (job_id, token, progress, checkpoint))
        answers: dict[str, str] = self.do(ops.HEARTBEAT, [item])
        return answers[job_id]

    def release(
        self,
        job_id: str,
        token: str = "",
        delay_s: float = 0,
        checkpoint: bytes = b"",
        undelivered: bool = False,
    ) -> Any:
        values = (job_id, token, round(delay_s * SECOND_NS), checkpoint, undelivered)
        return self.do(ops.RELEASE, *values)

    def cancel(self, job_id: str, force: bool = False) -> Any:
        return self.do(ops.CANCEL_JOB, job_id, force)

    def tick(self) -> None:
        """Apply the ops that the leader proposes for due work."""
        while ids := self.machine.due_promotions(self.now_ns, 1000):
            self.do(ops.PROMOTE_DUE, ids)
        while ids := self.machine.due_expiries(self.now_ns, 1000):
            self.do(ops.EXPIRE_JOBS, ids)
        while ids := self.machine.due_leases(self.now_ns, 1000):
            self.do(ops.EXPIRE_LEASES, ids)
        while due := self.machine.due_schedules(self.now_ns, 1000):
            self.do(ops.FIRE_SCHEDULE, [f for row in due for f in due_runs(row, self.now_ns)])

    def act(self, action: str, *ids: str, **arguments: Any) -> Any:
        """Apply an action; return the outcome for one job, or a list for several."""
        values = ([*ids], False, ACTIONS.index(action), encode_arguments(**arguments), False)
        results: list[Any] = self.do(ops.BULK_ACTION, "", *values)
        return results[0] if len(ids) == 1 else results

    def bulk(
        self, action: str, *ids: str, operation_id: str = "bulk_1", **arguments: Any
    ) -> BulkOperation:
        """Start a bulk operation on the given jobs, or on all, and do its first step."""
        values = ([*ids], not ids, ACTIONS.index(action), encode_arguments(**arguments), False)
        operation: BulkOperation = self.do(ops.BULK_ACTION, operation_id, *values)
        return operation

    def step(self, limit: int = 100) -> int:
        """Do steps until no bulk operation is running; return their number."""
        count = 0
        while running := self.machine.running_operations():
            self.do(ops.BULK_STEP, running[0].id, limit, False)
            count += 1
        return count

    def schedule(self, key: str) -> Schedule:
        schedule = self.machine.schedule(key)
        assert schedule is not None
        return schedule

    def job(self, job_id: str) -> Job:
        job = self.machine.job(job_id)
        assert job is not None
        return job

    def state(self, job_id: str) -> int:
        return self.job(job_id).state


def plain(result: Any) -> Any:
    """Return a result in a comparable form."""
    if isinstance(result, list):
        return [plain(item) for item in result]
    if isinstance(result, EnqueuedBatch):
        return plain(result.jobs), result.batch_id
    if isinstance(result, CorvoError):
        return type(result).__name__, result.message, result.fields
    if isinstance(result, Acked):
        return result.count, [(position, plain(error)) for position, error in result.refused]
    if isinstance(result, Enqueued):
        return result.job_id, result.state, result.duplicate, result.result
    if isinstance(result, BulkOperation):
        return result.id, bulk_records.encode_operation(result)
    if isinstance(result, Schedule):
        return result.id, job_records.encode_schedule(result)
    if isinstance(result, Logged):
        return result.seq, result.dropped
    if isinstance(result, Failed):
        return result.state, result.next_attempt_ns, result.attempts_remaining
    if isinstance(result, Fetched):
        fields = (result.job_id, result.queue, result.token, result.fencing, result.attempt)
        return (*fields, result.payload, result.checkpoint, result.lease_ns)
    return result

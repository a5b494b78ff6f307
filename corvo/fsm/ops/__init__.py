"""The effect of each op on the state, one module per family. The `APPLY` of a module has its apply
functions by number of the op, and `fsm/machine.py` joins these tables.

An apply function gets the state and the payload of the op, and returns the op's result. A result
that is a CorvoError means that the op has changed nothing.

    jobs           enqueue, fetch, ack, fail, heartbeat, release
    leases         grant, renew and end a lease; lease tokens
    finish         every way in which a job finishes
    after_finish   effects of a finished job: batches, chains, dependents
    due            due jobs: promotion, lease expiry, job expiry, purge; expired unique locks
    actions        retry, requeue, run, cancel, delete, hold, approve, reject, move, priority
    bulk           bulk operations, done in bounded steps; clear and delete of a queue
    bulk_cuts      the set of a bulk operation on all jobs
    bulk_undo      undo of a bulk operation
    queues         queue options, limits, pause and resume; stale workers; trim of the event log
    schedules      schedules and their runs
    unique         unique keys and their locks
    batches        groups of jobs whose finishes are counted together
    chains         the next job of a chain
    dependencies   jobs that wait for other jobs
    logs           log lines of jobs
    idempotency    outcomes kept for requests with an Idempotency-Key
    backoff        delay before a retry
"""

from collections.abc import Callable

from corvo.fsm.state.state import State

# Changes the state by the payload of an op, and returns the result of the op.
Apply = Callable[[State, bytes], object]

"""What each op does to the state. One module per family of ops; its `APPLY` has the functions by
number of the op, and `fsm/machine.py` joins these tables.

jobs           enqueue, fetch, ack, fail, heartbeat, release
leases         grant, renew and end a lease; lease tokens
finish         every way in which a job reaches an end state
after_finish   effects of a finished job: batches, chains, dependents
due            ops for jobs whose time has come: promotion, lease expiry, job expiry, purge
actions        retry, cancel, delete, hold, approve, reject, move, priority, requeue
bulk           bulk operations, done in bounded steps
bulk_undo      undo of a bulk operation
queues         queue options, pause, clear, delete
schedules      schedules and their runs
unique         unique keys and their locks
batches, chains, dependencies    relations between jobs
logs           log lines of jobs
idempotency    outcomes kept for requests with an Idempotency-Key
backoff        delay before a retry
"""

from collections.abc import Callable

from corvo.fsm.state.state import State

# Changes the state by the payload of an op, and returns the result of the op.
Apply = Callable[[State, bytes], object]

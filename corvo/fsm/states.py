"""The life of a job: which trigger leads from which state to which.

Apply asks this table before it changes anything; what is not in it is refused with INVALID_STATE.
`tools/states_diagram.py` draws docs/states.md from it.
"""

from typing import Final

from corvo.errors import InvalidState
from corvo.model import (
    ACTIVE,
    CANCELLED,
    COMPLETED,
    DEAD,
    HELD,
    PENDING,
    RETRYING,
    SCHEDULED,
    STATES,
)

# Beside the states of model.STATES: where a job comes from, and where a deleted one goes.
NOWHERE: Final = 8

TRIGGERS: Final = (
    "enqueue",
    "schedule",
    "promote",
    "fetch",
    "heartbeat",
    "ack",
    "fail",
    "fail_at_once",
    "exhaust",
    "release",
    "postpone",
    "reclaim",
    "cancel",
    "withdraw",
    "force_cancel",
    "retry",
    "delete",
    "enqueue_held",
    "hold",
    "approve",
    "revise",
    "reject",
    "expire",
    "requeue",
    "run",
    "move",
    "change_priority",
    "unblock",
    "forsake",
)
ENQUEUE: Final = 0
SCHEDULE: Final = 1  # enqueue with a time in the future
PROMOTE: Final = 2
FETCH: Final = 3
HEARTBEAT: Final = 4
ACK: Final = 5
FAIL: Final = 6  # attempts left, after a delay
FAIL_AT_ONCE: Final = 7  # attempts left, no delay
EXHAUST: Final = 8  # failed or lease ended, no attempts left
RELEASE: Final = 9
POSTPONE: Final = 10  # release with a delay
RECLAIM: Final = 11  # lease ended, attempts left
CANCEL: Final = 12  # of an active job: a request to its worker
CANCEL_ACKNOWLEDGED: Final = 13  # fail, release or lease end after such a request
FORCE_CANCEL: Final = 14
RETRY: Final = 15  # by hand
DELETE: Final = 16
ENQUEUE_HELD: Final = 17
HOLD: Final = 18
APPROVE: Final = 19
REVISE: Final = 20  # reject with feedback: back to the worker
REJECT: Final = 21
EXPIRE: Final = 22  # `expire_after` is over; an active job is left to its worker
REQUEUE: Final = 23  # one more attempt
RUN: Final = 24  # do not wait any longer
MOVE: Final = 25  # to another queue
CHANGE_PRIORITY: Final = 26
UNBLOCK: Final = 27  # the last job it waited for has ended
DEPENDENCY_FAILED: Final = 28  # a job it waited for has failed, and so does it

TABLE: Final[dict[tuple[int, int], int]] = {
    (NOWHERE, ENQUEUE): PENDING,
    (NOWHERE, SCHEDULE): SCHEDULED,
    (SCHEDULED, PROMOTE): PENDING,
    (RETRYING, PROMOTE): PENDING,
    (PENDING, UNBLOCK): PENDING,
    (PENDING, DEPENDENCY_FAILED): DEAD,
    (SCHEDULED, DEPENDENCY_FAILED): DEAD,
    (HELD, DEPENDENCY_FAILED): DEAD,
    (PENDING, FETCH): ACTIVE,
    (ACTIVE, HEARTBEAT): ACTIVE,
    (ACTIVE, ACK): COMPLETED,
    (ACTIVE, FAIL): RETRYING,
    (ACTIVE, FAIL_AT_ONCE): PENDING,
    (ACTIVE, EXHAUST): DEAD,
    (ACTIVE, RELEASE): PENDING,
    (ACTIVE, POSTPONE): SCHEDULED,
    (ACTIVE, RECLAIM): PENDING,
    (ACTIVE, CANCEL): ACTIVE,
    (ACTIVE, CANCEL_ACKNOWLEDGED): CANCELLED,
    (ACTIVE, FORCE_CANCEL): CANCELLED,
    (PENDING, CANCEL): CANCELLED,
    (SCHEDULED, CANCEL): CANCELLED,
    (RETRYING, CANCEL): CANCELLED,
    (PENDING, FORCE_CANCEL): CANCELLED,
    (SCHEDULED, FORCE_CANCEL): CANCELLED,
    (RETRYING, FORCE_CANCEL): CANCELLED,
    (SCHEDULED, RETRY): PENDING,
    (RETRYING, RETRY): PENDING,
    (COMPLETED, RETRY): PENDING,
    (DEAD, RETRY): PENDING,
    (CANCELLED, RETRY): PENDING,
    (PENDING, DELETE): NOWHERE,
    (ACTIVE, DELETE): NOWHERE,
    (SCHEDULED, DELETE): NOWHERE,
    (RETRYING, DELETE): NOWHERE,
    (COMPLETED, DELETE): NOWHERE,
    (DEAD, DELETE): NOWHERE,
    (CANCELLED, DELETE): NOWHERE,
    (HELD, DELETE): NOWHERE,
    (NOWHERE, ENQUEUE_HELD): HELD,
    (PENDING, HOLD): HELD,
    (SCHEDULED, HOLD): HELD,
    (RETRYING, HOLD): HELD,
    (ACTIVE, HOLD): HELD,
    (HELD, APPROVE): PENDING,
    (HELD, REVISE): PENDING,
    (HELD, REJECT): DEAD,
    (HELD, CANCEL): CANCELLED,
    (HELD, FORCE_CANCEL): CANCELLED,
    (PENDING, EXPIRE): DEAD,
    (SCHEDULED, EXPIRE): DEAD,
    (RETRYING, EXPIRE): DEAD,
    (HELD, EXPIRE): DEAD,
    (DEAD, REQUEUE): PENDING,
    (SCHEDULED, RUN): PENDING,
    (RETRYING, RUN): PENDING,
    (SCHEDULED, MOVE): SCHEDULED,
    (PENDING, MOVE): PENDING,
    (ACTIVE, MOVE): ACTIVE,
    (HELD, MOVE): HELD,
    (COMPLETED, MOVE): COMPLETED,
    (RETRYING, MOVE): RETRYING,
    (DEAD, MOVE): DEAD,
    (CANCELLED, MOVE): CANCELLED,
    (PENDING, CHANGE_PRIORITY): PENDING,
    (SCHEDULED, CHANGE_PRIORITY): SCHEDULED,
    (RETRYING, CHANGE_PRIORITY): RETRYING,
    (HELD, CHANGE_PRIORITY): HELD,
}

REFUSED: Final = -1

_WIDTH: Final = NOWHERE + 1
# One more than the state, as a byte: 0 = refused.
_FLAT: Final = bytes(
    TABLE.get((state, trigger), REFUSED) + 1
    for trigger in range(len(TRIGGERS))
    for state in range(_WIDTH)
)

# How a refusal names what was asked for; a trigger without a text is only used where it fits.
_ASKED: Final = {
    HEARTBEAT: "kept alive",
    ACK: "acked",
    FAIL: "failed",
    RELEASE: "released",
    CANCEL: "cancelled",
    FORCE_CANCEL: "cancelled",
    RETRY: "retried",
    HOLD: "held",
    APPROVE: "approved",
    REVISE: "rejected",
    REJECT: "rejected",
    REQUEUE: "requeued",
    RUN: "run now",
    CHANGE_PRIORITY: "given another priority",
}


def next_state(state: int, trigger: int) -> int:
    """Where the trigger leads from this state, or REFUSED."""
    return _FLAT[trigger * _WIDTH + state] - 1


def invalid_state(job_id: str, state: int, trigger: int) -> InvalidState:
    """The refusal of a trigger in this state."""
    name = STATES[state]
    return InvalidState(f'job "{job_id}" is {name} and cannot be {_ASKED[trigger]}', state=name)

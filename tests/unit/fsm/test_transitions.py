"""Every row of the transition table, and every refusal that is not in it."""

from collections.abc import Callable
from typing import Any

import pytest
from lib.consistency import check_machine
from lib.fsm_driver import Driver, encode_options

from corvo import ops
from corvo.errors import CorvoError, InvalidState, NotFound
from corvo.fsm import states
from corvo.fsm.states import NOWHERE, TABLE, TRIGGERS
from corvo.limits import SECOND_NS
from corvo.model import (
    CANCELLED,
    COMPLETED,
    DEAD,
    HELD,
    PENDING,
    RETRYING,
    SCHEDULED,
    STATES,
)


def reach(driver: Driver, state: int, **fields: Any) -> None:
    """Bring job "j" into a state."""
    if state == NOWHERE:
        return
    if state == SCHEDULED:
        driver.enqueue("j", scheduled_ns=driver.now_ns + 10 * SECOND_NS, **fields)
        return
    if state == HELD:
        driver.enqueue("j", options=encode_options(hold=True, hold_reason="why"), **fields)
        return
    driver.enqueue("j", **fields)
    if state in (PENDING, CANCELLED):
        if state == CANCELLED:
            driver.cancel("j")
        return
    driver.take()
    if state == COMPLETED:
        driver.ack("j")
    elif state == RETRYING:
        driver.fail("j")
    elif state == DEAD:
        driver.fail("j", no_retry=True)


def promote(driver: Driver) -> Any:
    driver.advance(11)
    count = driver.do(ops.PROMOTE_DUE, ["j"])
    return count or InvalidState("not promoted")


def fetch(driver: Driver) -> Any:
    return driver.fetch() or InvalidState("nothing fetched")


def expire(driver: Driver) -> Any:
    """Set a time that is over and look what the sweep does."""
    job = driver.machine.job("j")
    if job is None:
        return NotFound("j")
    driver.machine._buffer.touch(job)
    driver.machine._buffer.touch_options(job).expires_ns = driver.now_ns
    return driver.do(ops.EXPIRE_JOBS, ["j"]) or InvalidState("not expired")


def heartbeat(driver: Driver) -> Any:
    return InvalidState("lost") if driver.beat("j") == "lost" else None


def exhaust(driver: Driver) -> Any:
    return driver.fail("j", no_retry=True)


def lease_end(driver: Driver) -> Any:
    driver.advance(61)
    count = driver.do(ops.EXPIRE_LEASES, ["j"])
    return count or InvalidState("not expired")


def withdraw(driver: Driver) -> Any:
    refused = driver.cancel("j")
    return refused if isinstance(refused, CorvoError) else driver.fail("j")


ACTS: dict[int, Callable[[Driver], Any]] = {
    states.ENQUEUE: lambda driver: driver.enqueue("j"),
    states.SCHEDULE: lambda driver: driver.enqueue("j", scheduled_ns=driver.now_ns + 1),
    states.PROMOTE: promote,
    states.FETCH: fetch,
    states.HEARTBEAT: heartbeat,
    states.ACK: lambda driver: driver.ack("j"),
    states.FAIL: lambda driver: driver.fail("j"),
    states.FAIL_AT_ONCE: lambda driver: driver.fail("j", retry_after_ns=0),
    states.EXHAUST: exhaust,
    states.RELEASE: lambda driver: driver.release("j"),
    states.POSTPONE: lambda driver: driver.release("j", delay_s=5),
    states.RECLAIM: lease_end,
    states.CANCEL: lambda driver: driver.cancel("j"),
    states.CANCEL_ACKNOWLEDGED: withdraw,
    states.FORCE_CANCEL: lambda driver: driver.cancel("j", force=True),
    states.RETRY: lambda driver: driver.do(ops.RETRY_JOB, "j"),
    states.DELETE: lambda driver: driver.do(ops.DELETE_JOB, "j"),
    states.ENQUEUE_HELD: lambda driver: driver.enqueue("j", options=encode_options(hold=True)),
    states.HOLD: lambda driver: driver.act("hold", "j", reason="why"),
    states.APPROVE: lambda driver: driver.act("approve", "j"),
    states.REVISE: lambda driver: driver.act("reject", "j", revise=True, feedback=b'"no"'),
    states.REJECT: lambda driver: driver.act("reject", "j", reason="no"),
    states.EXPIRE: expire,
    states.REQUEUE: lambda driver: driver.act("requeue", "j"),
    states.RUN: lambda driver: driver.act("run", "j"),
    states.MOVE: lambda driver: driver.act("move", "j", target="other"),
    states.CHANGE_PRIORITY: lambda driver: driver.act("change_priority", "j", priority=0),
}
# What other jobs do to one that waits for them; tests of their own are in test_dependencies.
BY_OTHERS = (states.UNBLOCK, states.DEPENDENCY_FAILED)
# A job that is nowhere can only be enqueued.
PAIRS = [
    (state, trigger)
    for state in range(len(STATES))
    for trigger in range(states.PROMOTE, len(TRIGGERS))
    if trigger not in (states.ENQUEUE_HELD, *BY_OTHERS)
] + [(NOWHERE, states.ENQUEUE), (NOWHERE, states.SCHEDULE), (NOWHERE, states.ENQUEUE_HELD)]


def name(pair: tuple[int, int]) -> str:
    return f"{'nowhere' if pair[0] == NOWHERE else STATES[pair[0]]}-{TRIGGERS[pair[1]]}"


def test_every_trigger_can_be_pulled_and_every_row_is_tried() -> None:
    assert sorted([*ACTS, *BY_OTHERS]) == list(range(len(TRIGGERS)))
    assert {pair for pair in TABLE if pair[1] not in BY_OTHERS} <= set(PAIRS)


@pytest.mark.parametrize("pair", PAIRS, ids=name)
def test_transition(pair: tuple[int, int]) -> None:
    state, trigger = pair
    driver = Driver()
    reach(driver, state)
    events = driver.machine.event_seq
    result = ACTS[trigger](driver)
    after = driver.machine.job("j")
    if pair not in TABLE and not (
        trigger == states.CANCEL_ACKNOWLEDGED and driver.machine.event_seq > events
    ):
        assert isinstance(result, InvalidState)
        assert after is not None and after.state == state
        assert driver.machine.event_seq == events, "a refusal leaves no trace"
        if result.fields:
            assert result.fields == {"state": STATES[state]} and STATES[state] in result.message
    elif pair in TABLE:
        assert not isinstance(result, CorvoError)
        assert (NOWHERE if after is None else after.state) == TABLE[pair]
        assert driver.machine.event_seq > events or trigger == states.HEARTBEAT
    driver.machine.flush()
    check_machine(driver.machine, driver.state_store)


@pytest.mark.parametrize(
    ("op", "values"),
    [
        (ops.ACK, ("nope", "", b"", b"", b"")),
        (ops.FAIL, ("nope", "", b'""', b"", False, -1, False)),
        (ops.RELEASE, ("nope", "", 0, b"", False)),
        (ops.RETRY_JOB, ("nope",)),
        (ops.CANCEL_JOB, ("nope", False)),
        (ops.DELETE_JOB, ("nope",)),
    ],
)
def test_unknown_id_is_not_found(op: ops.Op, values: tuple[Any, ...]) -> None:
    result = Driver().do(op, *values)
    assert isinstance(result, CorvoError) and result.code == "NOT_FOUND"
    assert '"nope"' in result.message

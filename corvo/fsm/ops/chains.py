"""Chains: the job that follows a finished job of a chain.

Each job of a chain has the whole definition and its own step, counted from 0. The two handlers have
steps below 0 and no successor.
"""

from typing import Final, final

from corvo import ops
from corvo._fast.codec.layouts import decode_fields
from corvo.fsm.state import json_members
from corvo.fsm.state.json_members import Member
from corvo.fsm.state.state import State
from corvo.model import COMPLETED, DEAD, Ended

ON_EXIT: Final = -1
ON_FAILURE: Final = -2


@final
class Step:
    """The next job of a chain, to be enqueued."""

    def __init__(self, number: int, queue: str, payload: bytes) -> None:
        self.number = number
        self.queue = queue
        self.payload = payload


def check(chain: bytes) -> None:
    """Raise InvalidName if a follower has an invalid queue: it is decoded long after the op that
    brings it."""
    steps: list[bytes]
    on_failure: bytes
    on_exit: bytes
    steps, on_failure, on_exit = decode_fields(ops.CHAIN_LAYOUT, chain)
    for follower in [*steps, on_failure, on_exit]:
        if follower:
            decode_fields(ops.FOLLOWER_LAYOUT, follower)


def next_step(state: State, ended: Ended) -> Step | None:
    """Return the job that follows a finished job of a chain, if any."""
    job = ended.job
    assert job.options is not None
    number = job.options.chain_step
    if number < 0:
        return None
    steps: list[bytes]
    on_failure: bytes
    on_exit: bytes
    steps, on_failure, on_exit = decode_fields(ops.CHAIN_LAYOUT, job.options.chain)
    if ended.state == DEAD:
        return _step(ON_FAILURE, on_failure, _of_failure(state, ended, number))
    if ended.state != COMPLETED:
        return None
    leaves = False
    reason = ""
    if ended.step:
        leaves, reason = decode_fields(ops.STEP_LAYOUT, ended.step)
    given: list[Member] = [("previous_job_id", json_members.text(job.id))]
    if ended.result:
        given.append(("previous_result", ended.result))
    if number + 1 < len(steps) and not leaves:
        return _step(number + 1, steps[number + 1], given)
    if reason:
        given.append(("exit_reason", json_members.text(reason)))
    return _step(ON_EXIT, on_exit, given)


def _of_failure(state: State, ended: Ended, number: int) -> list[Member]:
    errors = state.buffer.errors(ended.job, 1)
    error = errors[-1].error if errors else b""
    return [
        ("failed_job_id", json_members.text(ended.job.id)),
        ("failed_step", b"%d" % number),
        ("error", error or b'""'),
    ]


def _step(number: int, follower: bytes, given: list[Member]) -> Step | None:
    if not follower:
        return None
    queue: str
    payload: bytes
    queue, payload = decode_fields(ops.FOLLOWER_LAYOUT, follower)
    return Step(number, queue, json_members.merge(given, payload))

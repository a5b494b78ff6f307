"""The checker accepts what can be explained and nothing else."""

from typing import Any

import pytest
from sim.histories import (
    ABSENT,
    ACTIVE,
    CANCELLED,
    COMPLETED,
    DEAD,
    OPEN,
    PENDING,
    Call,
    History,
    JobState,
    Unexplained,
    check,
    is_linearizable,
    job,
    register,
    with_open_fetches,
)


def reg(*calls: tuple[str, Any, int, int]) -> bool:
    """A register's history: name, value written or read, invoked, returned."""
    made = [
        Call("x", name, (value,) if name == "write" else (), value, invoked, returned)
        for name, value, invoked, returned in calls
    ]
    return is_linearizable(made, register, None)


def test_a_read_sees_the_last_write() -> None:
    assert reg(("write", 1, 0, 1), ("read", 1, 2, 3))
    assert not reg(("write", 1, 0, 1), ("write", 2, 2, 3), ("read", 1, 4, 5))


def test_overlapping_calls_have_any_order() -> None:
    assert reg(("write", 1, 0, 9), ("write", 2, 0, 9), ("read", 1, 10, 11))
    assert reg(("write", 1, 0, 9), ("write", 2, 0, 9), ("read", 2, 10, 11))
    assert not reg(("write", 1, 0, 9), ("write", 2, 0, 9), ("read", 3, 10, 11))


def test_two_reads_never_go_back() -> None:
    assert not reg(("write", 1, 0, 9), ("read", 1, 1, 2), ("read", None, 3, 4))


def test_an_open_write_takes_effect_late_or_never() -> None:
    assert reg(("write", 1, 0, OPEN), ("read", None, 1, 2), ("read", 1, 3, 4))
    assert reg(("write", 1, 0, OPEN), ("read", None, 1, 2), ("read", None, 3, 4))
    assert not reg(("write", 1, 0, OPEN), ("read", 1, 1, 2), ("read", None, 3, 4))


def test_many_equal_open_calls_are_no_burden() -> None:
    lost = [Call("j", "fetch", (), None, at) for at in range(200)]
    calls = [
        Call("j", "enqueue", (), True, 0, 1),
        *lost,
        Call("j", "see", (), (PENDING, 9), 300, 301),
    ]
    assert is_linearizable(calls, job, JobState())


def story(*calls: tuple[Any, ...]) -> bool:
    """A job's history, one call after the other: name, arguments, answer."""
    made = []
    for at, (name, *arguments, answer) in enumerate(calls):
        made.append(Call("j", name, tuple(arguments), answer, 2 * at, 2 * at + 1))
    return is_linearizable(made, job, JobState())


def test_the_life_of_a_job() -> None:
    assert story(("enqueue", True), ("fetch", ("t1", 1)), ("beat", "t1", True), ("ack", "t1", True))
    assert story(("enqueue", True), ("enqueue", False), ("see", (PENDING, 0)))
    assert not story(("enqueue", True), ("enqueue", True))
    assert not story(("fetch", ("t1", 1)))


def test_an_acked_job_stays_completed() -> None:
    life = [("enqueue", True), ("fetch", ("t1", 1)), ("ack", "t1", True)]
    assert story(*life, ("see", (COMPLETED, 1)))
    assert story(*life, ("ack", "t1", True))
    assert not story(*life, ("fetch", ("t2", 2)))
    assert not story(*life, ("see", (PENDING, 1)))
    assert not story(*life, ("see", (ABSENT, 0)))


def test_one_live_lease_at_a_time() -> None:
    twice = [("enqueue", True), ("fetch", ("t1", 1)), ("fetch", ("t2", 2))]
    assert story(*twice, ("ack", "t2", True))  # the first lease was over
    assert story(*twice, ("ack", "t1", False), ("ack", "t2", True))
    assert not story(*twice, ("ack", "t1", True))
    assert not story(*twice, ("beat", "t1", True))


def test_attempts_rise_by_one() -> None:
    assert not story(("enqueue", True), ("fetch", ("t1", 2)))
    assert not story(("enqueue", True), ("fetch", ("t1", 1)), ("fetch", ("t2", 3)))


def test_a_lease_nobody_used_may_go_back_unspent() -> None:
    assert story(("enqueue", True), ("fetch", ("t1", 1)), ("fetch", ("t2", 1)))
    used = [("enqueue", True), ("fetch", ("t1", 1)), ("beat", "t1", True)]
    assert not story(*used, ("fetch", ("t2", 1)))


def test_failing_and_releasing() -> None:
    leased = [("enqueue", True), ("fetch", ("t1", 1))]
    assert story(*leased, ("fail", "t1", False, True), ("fetch", ("t2", 2)))
    assert story(*leased, ("fail", "t1", True, True), ("see", (DEAD, 1)))
    assert not story(*leased, ("fail", "t1", True, True), ("fetch", ("t2", 2)))
    assert story(*leased, ("release", "t1", True), ("fetch", ("t2", 1)))
    assert not story(*leased, ("release", "t1", True), ("ack", "t1", True))


def test_cancelling() -> None:
    leased = [("enqueue", True), ("fetch", ("t1", 1))]
    assert story(("enqueue", True), ("cancel", False, "cancelled"), ("see", (CANCELLED, 0)))
    assert story(*leased, ("cancel", False, "cancelling"), ("ack", "t1", True))
    assert story(*leased, ("cancel", False, "cancelling"), ("fail", "t1", False, True))
    assert not story(*leased, ("cancel", True, "cancelled"), ("ack", "t1", True))
    cancelling = [*leased, ("cancel", False, "cancelling")]
    assert not story(*cancelling, ("fetch", ("t2", 2)))
    assert story(*cancelling, ("see", (ACTIVE, 1)))


def test_a_lost_fetch_may_have_taken_any_job() -> None:
    calls = [
        Call("a", "enqueue", (), True, 0, 1),
        Call("b", "enqueue", (), True, 0, 1),
        Call("", "fetch", (), None, 2),
        Call("a", "fetch", (), ("t2", 2), 4, 5),
        Call("b", "fetch", (), ("t1", 1), 4, 5),
    ]
    check(with_open_fetches(calls), job, JobState())
    with pytest.raises(Unexplained) as caught:
        check([call for call in calls if call.key], job, JobState())
    assert caught.value.key == "a"


def test_the_search_takes_calls_that_overlap_in_any_order() -> None:
    calls = [
        Call("j", "ack", ("t1",), True, 0, 9),
        Call("j", "fetch", (), ("t1", 1), 0, 9),
        Call("j", "enqueue", (), True, 0, 9),
    ]
    assert is_linearizable(calls, job, JobState())


def test_a_history_in_the_making() -> None:
    history = History()
    first = history.invoke(1, "x", "write", 7)
    second = history.invoke(2, "", "fetch")
    third = history.invoke(3, "x", "write", 8)
    history.answer(second, 4, ("t", 1), key="j")
    history.refuse(third)
    assert history.all_calls() == [
        Call("j", "fetch", (), ("t", 1), 2, 4),
        Call("x", "write", (7,), None, 1),
    ]
    history.answer(first, 5, True)
    assert not history.all_calls()[1].is_open


def test_the_report_shows_the_calls() -> None:
    calls = [Call("x", "write", (1,), True, 0, 1), Call("x", "read", (), 2, 2, 3)]
    with pytest.raises(
        Unexplained, match=r"history of x(.|\n)*write\(1\) -> True(.|\n)*read\(\) -> 2"
    ):
        check(calls, register, None)

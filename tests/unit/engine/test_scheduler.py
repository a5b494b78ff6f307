"""The leader's timers over a scripted machine and pipeline."""

from typing import Any

from corvo import limits, ops
from corvo._fast.codec.layouts import decode_fields
from corvo.engine.scheduler import Scheduler
from corvo.errors import DiskFull
from corvo.limits import SECOND_NS

NOW_NS = 1_000 * SECOND_NS


class Timer:
    def cancel(self) -> None:
        pass


class Loop:
    """Keeps what is to run: at once, and later with its delay."""

    def __init__(self) -> None:
        self.soon: list[Any] = []
        self.later: list[tuple[float, Any, tuple[Any, ...]]] = []

    def call_soon(self, callback: Any, *args: Any) -> None:
        self.soon.append(callback)

    def call_later(self, delay_s: float, callback: Any, *args: Any) -> Timer:
        self.later.append((delay_s, callback, args))
        return Timer()


class Clock:
    """Stands still unless it is moved."""

    def __init__(self) -> None:
        self.now_ns = NOW_NS
        self.on_jump: list[Any] = []
        self.on_pause: list[Any] = []

    def stamp(self) -> int:
        return self.now_ns


class Machine:
    """One job is due for promotion."""

    fencing = 0
    pending_dependents = ""
    leases_in_grace = 0

    def __init__(self) -> None:
        self.batches: list[tuple[int, str]] = []  # when they finished

    def old_batches(self, cutoff_ns: int, limit: int) -> list[str]:
        return [name for at_ns, name in self.batches if at_ns <= cutoff_ns][:limit]

    def next_due(self) -> int:
        return NOW_NS - 1

    def due_promotions(self, now_ns: int, limit: int) -> list[str]:
        return ["job_1"]

    def due_expiries(self, now_ns: int, limit: int) -> list[str]:
        return []

    def due_leases(self, now_ns: int, limit: int, grace_fencing: int) -> list[str]:
        return []

    def due_schedules(self, now_ns: int, limit: int) -> list[Any]:
        return []

    def trim_point(self) -> int:
        return 0

    def stale_workers(self, cutoff_ns: int, limit: int) -> int:
        return 0


class Pipeline:
    """Keeps the completions of proposed ops."""

    def __init__(self) -> None:
        self.on_applied: list[Any] = []
        self.occurrences: list[Any] = []
        self.purges: list[tuple[tuple[Any, ...], Any]] = []

    def submit(self, op: ops.Op, payload: bytes, occurrence: Any) -> None:
        if op is ops.PURGE_BATCHES:
            self.purges.append((decode_fields(op.layout, payload), occurrence))
            return
        assert op is ops.PROMOTE_DUE
        self.occurrences.append(occurrence)


def test_what_is_refused_is_not_proposed_again_at_once() -> None:
    loop, pipeline = Loop(), Pipeline()
    parts: tuple[Any, ...] = (loop, Clock(), Machine(), pipeline)
    scheduler = Scheduler(*parts)
    scheduler.start()
    callback, number = pipeline.occurrences.pop()
    callback(number, DiskFull("no space"))
    scheduler.check()
    assert loop.soon == []
    for delay_s, wake, args in list(loop.later):
        if delay_s < 0.1:
            wake(*args)
    assert pipeline.occurrences == []
    again = [(wake, args) for delay_s, wake, args in loop.later if delay_s == 0.1]
    for wake, args in again:
        wake(*args)
    for wake in loop.soon:
        wake()
    assert len(pipeline.occurrences) == 1


def test_batches_that_finished_long_ago_are_purged_once_a_minute() -> None:
    loop, clock, machine, pipeline = Loop(), Clock(), Machine(), Pipeline()
    keep_ns = 100 * SECOND_NS
    young_ns = NOW_NS - keep_ns + 1
    machine.batches = [(1, "old"), (NOW_NS - keep_ns, "just"), (young_ns, "young")]
    parts: tuple[Any, ...] = (loop, clock, machine, pipeline, keep_ns)
    scheduler = Scheduler(*parts)

    def tick(seconds: int) -> None:
        clock.now_ns += seconds * SECOND_NS
        ticks = [row for row in loop.later if row[1] == scheduler._ticker._run]
        loop.later = [row for row in loop.later if row[1] != scheduler._ticker._run]
        for _, wake, args in ticks:
            wake(*args)

    def purged() -> Any:
        values, (callback, number) = pipeline.purges.pop()
        machine.batches = [row for row in machine.batches if row[1] not in values[0]]
        callback(number, len(values[0]))
        return values

    scheduler.start()
    assert purged() == (["old", "just"], keep_ns)
    tick(59)
    assert pipeline.purges == []
    tick(1)
    assert len(pipeline.purges) == 1
    tick(60)
    assert len(pipeline.purges) == 1, "one at a time"
    assert purged() == (["young"], keep_ns)
    machine.batches = [(0, f"b{n}") for n in range(limits.PURGED_BATCHES_MAX + 1)]
    tick(60)
    assert len(purged()[0]) == limits.PURGED_BATCHES_MAX
    assert len(purged()[0]) == 1, "the rest follows at once"
    scheduler.close()


class Leases(Machine):
    """One lease, which ends now unless its worker's heartbeat is read."""

    fencing = 7

    def __init__(self) -> None:
        super().__init__()
        self.ends_ns = NOW_NS - 1

    def due_promotions(self, now_ns: int, limit: int) -> list[str]:
        return []

    def due_leases(self, now_ns: int, limit: int, grace_fencing: int) -> list[str]:
        return ["job_1"] if self.ends_ns <= now_ns and self.fencing > grace_fencing else []


class Expiries:
    """Keeps the numbers of proposed ops and their completions."""

    def __init__(self) -> None:
        self.on_applied: list[Any] = []
        self.proposed: list[Any] = []

    def submit(self, op: ops.Op, payload: bytes, completion: Any) -> None:
        assert op is ops.EXPIRE_LEASES
        self.proposed.append((decode_fields(op.layout, payload)[0], completion))


def started() -> tuple[Loop, Clock, Leases, Expiries, Scheduler]:
    """A scheduler whose grace period after the start is over."""
    loop, clock, machine, pipeline = Loop(), Clock(), Leases(), Expiries()
    parts: tuple[Any, ...] = (loop, clock, machine, pipeline)
    scheduler = Scheduler(*parts)
    machine.ends_ns = NOW_NS + 100 * SECOND_NS
    scheduler.start()
    run_turns(loop)
    clock.now_ns += 101 * SECOND_NS
    return loop, clock, machine, pipeline, scheduler


def run_turns(loop: Loop, turns: int = 2_000) -> None:
    for _ in range(turns):
        due, loop.soon = loop.soon, []
        for callback in due:
            callback()


def test_sockets_are_read_before_a_lease_expires() -> None:
    loop, _, machine, pipeline, scheduler = started()
    scheduler._wake()
    run_turns(loop, 1_000)
    assert pipeline.proposed == [], "a connection is accepted in a turn, and as many may wait"
    scheduler._wake()
    run_turns(loop)
    assert [ids for ids, _ in pipeline.proposed] == [["job_1"]], "once, however often it wakes"
    [(_, (callback, number))] = pipeline.proposed
    machine.ends_ns += 100 * SECOND_NS
    callback(number, None)
    run_turns(loop)
    assert len(pipeline.proposed) == 1 and loop.soon == []


def test_a_lease_that_ends_in_time_waits_for_a_few_turns_only() -> None:
    loop, clock, machine, pipeline, scheduler = started()
    machine.ends_ns = clock.now_ns
    machine.next_due = lambda: clock.now_ns  # type: ignore[method-assign]
    scheduler._wake()
    run_turns(loop, 3)
    assert pipeline.proposed == []
    run_turns(loop, 2)
    assert len(pipeline.proposed) == 1


def test_a_busy_loop_is_given_as_much_time_as_it_was_late() -> None:
    loop, clock, machine, pipeline, scheduler = started()
    machine.ends_ns = clock.now_ns - SECOND_NS // 2
    machine.next_due = lambda: machine.ends_ns  # type: ignore[method-assign]
    scheduler._wake()
    for _ in range(6):
        assert pipeline.proposed == []
        run_turns(loop, 1)
        clock.now_ns += SECOND_NS // 10
    assert len(pipeline.proposed) == 1


def test_a_heartbeat_that_is_read_first_saves_the_lease() -> None:
    loop, _, machine, pipeline, scheduler = started()
    scheduler._wake()
    run_turns(loop, 2)
    machine.ends_ns += 100 * SECOND_NS  # the entry with the heartbeat was applied
    run_turns(loop)
    assert pipeline.proposed == []


def test_a_pause_while_the_sockets_are_read() -> None:
    loop, clock, machine, pipeline, scheduler = started()
    machine.ends_ns = clock.now_ns
    scheduler._wake()
    run_turns(loop, 2)
    machine.ends_ns += 1  # extended before the pause, and ended in it
    clock.now_ns += SECOND_NS
    run_turns(loop)
    assert pipeline.proposed == [], "it became due after the sockets were read"
    scheduler._wake()
    run_turns(loop)
    assert len(pipeline.proposed) == 1


def test_a_stop_while_the_sockets_are_read() -> None:
    loop, _, _, pipeline, scheduler = started()
    scheduler._wake()
    scheduler.close()
    run_turns(loop)
    assert pipeline.proposed == []


def test_a_noticed_pause_gives_grace() -> None:
    loop, clock, machine, pipeline, scheduler = started()
    for listener in clock.on_pause:
        listener()
    scheduler._wake()
    run_turns(loop)
    clock.now_ns += limits.LEASE_GRACE_NS - 1
    scheduler._wake()
    run_turns(loop)
    assert pipeline.proposed == []
    machine.fencing += 1  # a lease granted after the pause
    scheduler._wake()
    run_turns(loop)
    assert len(pipeline.proposed) == 1

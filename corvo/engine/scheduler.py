"""Proposes promotions, expiries and schedule runs when they are due.

One timer, set to the next due time, serves all of them (within 100 ms). The ops name the jobs and
schedules that are due; apply checks each again, so a stale proposal does no harm.

Leases get a grace period of 15 s after a start, a leader change or a pause of this process: a lease
granted before that does not expire during it, because its worker could not reach the server. A
pause too short to be noticed needs no grace, but the heartbeats that came during it are read first:
an expiry is proposed some turns of the loop after it is due, after what these turns have read.
"""

from functools import partial
from typing import Any

from corvo import limits, ops
from corvo._fast.codec.layouts import encode_fields
from corvo.engine.due_counters import DueCounter
from corvo.engine.pipeline import Pipeline
from corvo.engine.schedule_runs import due_runs
from corvo.errors import CorvoError
from corvo.fsm.machine import Machine
from corvo.platform.clock import Clock
from corvo.platform.loop import Loop
from corvo.platform.periodic import Periodic

_TICK_S = 1.0
_AGAIN_NS = 100 * limits.MS_NS
_SLEEP_MAX_S = 3600.0
_HOUSEKEEPING_NS = 60 * limits.SECOND_NS
# A stamp may run a little late against the loop's timer; waking again this much later is enough.
_LATE_S = 0.001
# Turns of the loop in which sockets are read before a lease expires: after a wake-up that was more
# than a moment late, enough for all connections that wait to be accepted.
_READ_TURNS_MIN = 4
_READ_TURNS_MAX = 1_024 + _READ_TURNS_MIN
_LATE_NS = 10 * limits.MS_NS
_READ_NS = 50 * limits.MS_NS


class Scheduler:
    """Watches the due times of the state machine and proposes the ops that are due."""

    def __init__(
        self,
        loop: Loop,
        clock: Clock,
        machine: Machine,
        pipeline: Pipeline,
        batches_kept_ns: int = limits.RETENTION_DEFAULT_NS,
    ) -> None:
        self._loop = loop
        self._batches_kept_ns = batches_kept_ns  # retention of batches whose jobs have ended
        self._clock = clock
        self._machine = machine
        self._pipeline = pipeline
        self._timer: Any = None  # of the next wake-up; None = nothing is due at a known time
        self._armed_ns = 0  # when that timer fires, as a stamp
        self._ticker = Periodic(loop, _TICK_S, self._tick)
        self._housekeeping_ns = 0  # stamp of the last look at stale workers and old batches
        self._proposed: set[int] = set()  # numbers of ops in flight; at most one of each kind
        # Whether an op of the present wake-up was refused, for example on a full disk.
        self._refused = False
        # Leases with a fencing number up to this one do not expire yet; 0 = no grace period.
        self._grace_fencing = 0
        self._grace_until_ns = 0  # stamp at which the grace period ends
        self._running = False  # between `start` and `close`
        self._reading = False  # leases are due, and the sockets are read first
        self.promoted = DueCounter()
        self.reclaimed = DueCounter()
        self.expired = DueCounter()
        self._counters = {
            ops.PROMOTE_DUE.number: self.promoted,
            ops.EXPIRE_LEASES.number: self.reclaimed,
            ops.EXPIRE_JOBS.number: self.expired,
        }
        clock.on_jump.append(self._wake)
        clock.on_pause.append(self.grant_grace)
        pipeline.on_applied.append(self.check)

    def start(self) -> None:
        """Begin, with a grace period for all existing leases; may follow a `close`."""
        self._running = True
        self._proposed.clear()
        self.grant_grace()
        self._ticker.start()
        self._tick()
        self._wake()

    def close(self) -> None:
        """Stop all timers."""
        self._running = False
        self._ticker.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def grant_grace(self) -> None:
        """Let no lease granted up to now expire for LEASE_GRACE_NS."""
        self._grace_fencing = self._machine.fencing
        self._grace_until_ns = self._clock.stamp() + limits.LEASE_GRACE_NS

    def check(self) -> None:
        """Called after each apply: set the timer earlier if something is due earlier."""
        if not self._running:
            return
        if self._machine.pending_dependents:
            self._resolve_dependents()
        due_ns = self._next_ns()
        if due_ns and (self._timer is None or due_ns < self._armed_ns):
            self._arm(due_ns)

    def _next_ns(self) -> int:
        due_ns = self._machine.next_due()
        if self._machine.leases_in_grace and not self._grace_fencing:
            return self._grace_until_ns  # the grace period is over: they return in steps
        if self._grace_fencing and (not due_ns or self._grace_until_ns < due_ns):
            return self._grace_until_ns
        return due_ns

    def _resolve_dependents(self) -> None:
        """Continue to resolve dependents of ended jobs, one entry after the other."""
        self._submit(
            ops.RESOLVE_DEPENDENTS,
            encode_fields(ops.RESOLVE_DEPENDENTS.layout, (self._machine.pending_dependents,)),
        )

    def _arm(self, due_ns: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._armed_ns = due_ns
        delay = min(max(0.0, (due_ns - self._clock.stamp()) / 1e9), _SLEEP_MAX_S)
        self._timer = self._loop.call_later(delay + _LATE_S, self._wake)

    def _wake(self) -> None:
        if not self._running:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        machine = self._machine
        now_ns = self._clock.stamp()
        self._refused = False
        if now_ns >= self._grace_until_ns:
            self._grace_fencing = 0
        if ops.EXPIRE_JOBS.number not in self._proposed:
            self._propose(ops.EXPIRE_JOBS, machine.due_expiries(now_ns, limits.DUE_STEP))
        if ops.PROMOTE_DUE.number not in self._proposed:
            self._propose(ops.PROMOTE_DUE, machine.due_promotions(now_ns, limits.DUE_STEP))
        if ops.EXPIRE_LEASES.number not in self._proposed:
            self._expire_leases(now_ns)
        if ops.FIRE_SCHEDULE.number not in self._proposed:
            self._propose(ops.FIRE_SCHEDULE, self._schedule_runs(now_ns))
        if machine.pending_dependents:
            self._resolve_dependents()
        due_ns = self._next_ns()
        if due_ns > now_ns:
            self._arm(due_ns)
        elif due_ns:
            # Items that are due now were just proposed, and their result wakes this again. If none
            # was proposed, there may be more behind the void entries that were dropped.
            waits = self._refused or self._reading
            proposed = waits or not _DUE_OPS.isdisjoint(self._proposed)
            self._arm(now_ns + _AGAIN_NS if proposed else now_ns)

    def _expire_leases(self, now_ns: int) -> None:
        """Propose the expiry of leases that are due, once their heartbeats are read."""
        if self._reading or not self._due_leases(now_ns):
            return
        self._reading = True
        late_ns = min(now_ns - self._machine.next_due(), limits.PAUSE_NOTICED_NS)
        turns = _READ_TURNS_MAX if late_ns > _LATE_NS else _READ_TURNS_MIN
        self._read_on(now_ns, turns, now_ns + max(late_ns, _READ_NS))

    def _read_on(self, due_ns: int, turns: int, until_ns: int) -> None:
        """Let the loop read its sockets: one connection is accepted in a turn, and read in the
        third one after that. A busy loop is given as much time as the wake-up was late."""
        over = turns <= _READ_TURNS_MAX - _READ_TURNS_MIN and self._clock.stamp() >= until_ns
        if turns and not over:
            self._loop.call_soon(partial(self._read_on, due_ns, turns - 1, until_ns))
            return
        self._reading = False
        if self._running and ops.EXPIRE_LEASES.number not in self._proposed:
            # Those that were due before the sockets were read: there may have been a pause since.
            self._propose(ops.EXPIRE_LEASES, self._due_leases(due_ns))

    def _due_leases(self, now_ns: int) -> list[str]:
        return self._machine.due_leases(now_ns, limits.DUE_STEP, self._grace_fencing)

    def _schedule_runs(self, now_ns: int) -> list[bytes]:
        """As many due runs as fit into one op; the rest is still due when that is applied."""
        items: list[bytes] = []
        for schedule in self._machine.due_schedules(now_ns, limits.SCHEDULE_RUNS_MAX):
            items += due_runs(schedule, now_ns)
            if len(items) >= limits.SCHEDULE_RUNS_MAX:
                break
        return items[: limits.SCHEDULE_RUNS_MAX]

    def _propose(self, op: ops.Op, due: list[str] | list[bytes]) -> None:
        if due:
            self._submit(op, encode_fields(op.layout, (due,)))

    def _submit(self, op: ops.Op, payload: bytes) -> None:
        if op.number in self._proposed:
            return
        try:
            self._pipeline.submit(op, payload, (self._on_done, op.number))
        except CorvoError:
            self._refused = True
            return
        self._proposed.add(op.number)

    def _on_done(self, number: int, result: Any) -> None:
        counter = self._counters.get(number)
        if counter is not None:
            counter.done(result, self._clock.stamp())
        if isinstance(result, CorvoError):
            # For example, the log is full, and will still be full a moment later.
            self._loop.call_later(_AGAIN_NS / 1e9, self._on_done, number, None)
            return
        self._proposed.discard(number)
        if number in _DUE_OPS:
            self._loop.call_soon(self._wake)
        elif result and self._running:  # there may be more of them
            if number == ops.REMOVE_STALE_WORKERS.number:
                self._remove_stale_workers()
            elif number == ops.PURGE_BATCHES.number:
                self._purge_batches()

    def _tick(self) -> None:
        """Once a second: trim the event log; once a minute: remove stale records."""
        machine = self._machine
        trim_seq = machine.trim_point()
        if trim_seq:
            self._submit(ops.TRIM_EVENTS, encode_fields(ops.TRIM_EVENTS.layout, (trim_seq,)))
        now_ns = self._clock.stamp()
        if now_ns - self._housekeeping_ns >= _HOUSEKEEPING_NS:
            self._housekeeping_ns = now_ns
            self._remove_stale_workers()
            self._purge_batches()

    def _remove_stale_workers(self) -> None:
        cutoff_ns = self._clock.stamp() - limits.WORKER_FORGOTTEN_NS
        cutoff_ns = self._machine.stale_workers(cutoff_ns, limits.REMOVED_WORKERS_MAX)
        if cutoff_ns:
            payload = encode_fields(ops.REMOVE_STALE_WORKERS.layout, (cutoff_ns,))
            self._submit(ops.REMOVE_STALE_WORKERS, payload)

    def _purge_batches(self) -> None:
        keep_ns = self._batches_kept_ns
        cutoff_ns = self._clock.stamp() - keep_ns
        ids = self._machine.old_batches(cutoff_ns, limits.PURGED_BATCHES_MAX)
        if ids:
            self._submit(ops.PURGE_BATCHES, encode_fields(ops.PURGE_BATCHES.layout, (ids, keep_ns)))


_DUE_OPS = frozenset(
    op.number
    for op in (
        ops.EXPIRE_JOBS,
        ops.PROMOTE_DUE,
        ops.EXPIRE_LEASES,
        ops.FIRE_SCHEDULE,
        ops.RESOLVE_DEPENDENTS,
    )
)

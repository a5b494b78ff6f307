"""Random programs of ops, checked twice: against a plain model of the rules, and against a machine
that restarts from its state store at random points and must return, hash and store the same.
"""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from lib.consistency import check_machine, check_rows, memory
from lib.fsm_driver import (
    START_NS,
    Step,
    batch_step,
    chain,
    encode_arguments,
    encode_entry,
    encode_options,
    encode_step,
    enqueue_step,
    follower,
    idempotent_step,
    plain,
    schedule_step,
)
from lib.plain_model import DATA, OVER, ModelBatch, ModelJob, ModelQueues, ModelSchedule

from corvo import ops
from corvo._fast.codec.layouts import encode_fields
from corvo.engine.schedule_runs import due_runs
from corvo.errors import CorvoError
from corvo.events import DELETED
from corvo.fsm.machine import Machine
from corvo.fsm.ops.bulk import ACTION_STATES
from corvo.fsm.state import index_rows
from corvo.fsm.states import NOWHERE
from corvo.limits import DUE_IDS_MAX, PART_INSIDE_SIZE_MAX, SECOND_NS
from corvo.model import (
    ACTIONS,
    ACTIVE,
    CANCELLED,
    COMPLETED,
    DEAD,
    END_STATES,
    HELD,
    PENDING,
    RETRYING,
    SCHEDULED,
    Fetched,
)
from corvo.platform.ids import derived_id
from corvo.storage.memory import MemoryStore

QUEUES = ["alpha", "beta", "gamma"]
WAITING = (SCHEDULED, RETRYING)
PICK = st.integers(0, 999)
# In the row of the head, and in one apart.
PAYLOADS = [b"{}", b'"%b"' % (b"x" * PART_INSIDE_SIZE_MAX)]
SECONDS = st.sampled_from([0, 1, 2, 61, 101, 3_700])


class Program(ModelQueues, RuleBasedStateMachine):
    """`lived` never restarts; `reborn` does. Every entry goes to both, and to the model."""

    def __init__(self) -> None:
        ModelQueues.__init__(self, QUEUES, START_NS)
        RuleBasedStateMachine.__init__(self)
        self.bases = (MemoryStore(), MemoryStore())
        self.lived = Machine(self.bases[0])
        self.reborn = Machine(self.bases[1])
        self.log: list[tuple[int, bytes]] = []
        self.term = 1
        self.next_id = 0
        self.locks: dict[tuple[str, str], str] = {}
        self.schedules: dict[str, ModelSchedule] = {}
        self.keep_s: dict[str, list[int]] = {name: [-1] * 3 for name in QUEUES}
        self.batches: dict[str, ModelBatch] = {}
        self.ended: list[tuple[str, ModelJob, int]] = []
        self.pending_deletion: dict[str, ModelJob] = {}  # cleared or destroyed, but not gone yet
        self.dependents: dict[str, set[str]] = {}
        self.outcomes: list[tuple[int, bytes, bytes, Any]] = []

    def entry(self, *steps: Step) -> list[Any]:
        self.follow()
        index = self.lived.applied_index + 1
        data = encode_entry(self.now_ns, index * 0x9E37_79B9_7F4A, list(steps))
        self.log.append((self.term, data))
        results = self.lived.apply(index, self.term, data)
        assert plain(results) == plain(self.reborn.apply(index, self.term, data))
        assert self.lived.hash == self.reborn.hash
        for change in self.lived.take_events():
            if change.type == DELETED and change.job_id in self.pending_deletion:
                self.ended.append(
                    (change.job_id, self.pending_deletion.pop(change.job_id), NOWHERE)
                )
        return results

    def do(self, op: ops.Op, *values: Any) -> Any:
        return self.entry((op, values))[0]

    @rule()
    def empty_entry(self) -> None:
        index = self.lived.applied_index + 1
        self.log.append((self.term, b""))
        assert self.lived.apply(index, self.term, b"") == []
        assert self.reborn.apply(index, self.term, b"") == []

    @rule(start=st.booleans(), new_term=st.booleans())
    def flush_one(self, start: bool, new_term: bool) -> None:
        self.reborn.flush()
        check_rows(self.bases[1])
        if start:
            self.start()
            self.term += new_term

    @rule()
    def start(self) -> None:
        """The base is as of the last flush; the log brings the rest."""
        self.reborn = Machine(self.bases[1])
        for index in range(self.reborn.applied_index + 1, len(self.log) + 1):
            self.reborn.apply(index, *self.log[index - 1])
        assert self.reborn.hash == self.lived.hash

    @rule()
    def flush_both(self) -> None:
        self.lived.flush()
        self.reborn.flush()
        assert self.bases[0]._rows == self.bases[1]._rows
        check_machine(self.lived, self.bases[0])

    @rule()
    def new_leader(self) -> None:
        self.term += 1

    # The rules.

    def pick(self, n: int, *states: int) -> str:
        """A job in one of these states; now and then any one, or an unknown id."""
        ids = [job_id for job_id, job in self.jobs.items() if job.state in states]
        if n % 8 == 0 or not ids:
            ids = [*self.jobs, "nope"]
        return ids[n // 8 % len(ids)]

    def head(self, queue: str) -> str | None:
        """The job that is served next, if any may be. Those before it that have expired are dead
        from now on."""
        while self.room(queue) and (job_id := self.next_served(queue)) is not None:
            if not self.expired(job_id):
                return job_id
        return None

    def expired(self, job_id: str) -> bool:
        """Whether the job's time is over; it is dead then."""
        over = 0 < self.jobs[job_id].expiry_ns <= self.now_ns
        if over:
            self.finish(job_id, DEAD)
        return over

    def unlock(self, job_id: str) -> None:
        job = self.jobs[job_id]
        if self.locks.get((job.queue, job.key)) == job_id:
            del self.locks[job.queue, job.key]

    def finish(self, job_id: str, state: int) -> None:
        job = self.jobs[job_id]
        job.state = state
        job.cancelling = False
        job.ended_ns = self.now_ns
        self.unlock(job_id)
        self.ended.append((job_id, job, state))

    # What the end of a job brings about. It is done before the next entry.

    def follow(self) -> None:
        told: dict[str, int] = {}
        while self.ended or told:
            ended, self.ended = self.ended, []
            for job_id, job, state in ended:
                self.leave_batch(job_id, job, state)
                self.go_on(job_id, job, state)
                if job_id in self.dependents:
                    told[job_id] = state
            if told:
                job_id = min(told)
                state = told.pop(job_id)
                for dependent in sorted(self.dependents.pop(job_id)):
                    self.tell(dependent, job_id, state)

    def leave_batch(self, job_id: str, job: ModelJob, state: int) -> None:
        batch = self.batches.get(job.batch)
        if batch is None or job_id not in batch.members:
            return
        batch.members.remove(job_id)
        batch.succeeded += state == COMPLETED
        batch.failed += state != COMPLETED
        if batch.failed == 1 and state != COMPLETED:
            self.call_back(job.batch, "death")
        self.finish_batch(job.batch)

    def finish_batch(self, batch_id: str) -> None:
        if not self.batches[batch_id].members:
            self.call_back(batch_id, "complete")
            if not self.batches[batch_id].failed:
                self.call_back(batch_id, "success")

    def call_back(self, batch_id: str, name: str) -> None:
        job = ModelJob("gamma", 2, 3, 5)
        job.default_options = True
        self.born(derived_id(self.now_ns, batch_id, name), job)

    def born(self, job_id: str, job: ModelJob) -> None:
        assert job_id not in self.jobs
        self.take_place(job)
        self.enter(job_id, job)

    def go_on(self, job_id: str, job: ModelJob, state: int) -> None:
        """The chain: the next step, then `alpha` on exit; `beta` on failure."""
        if not job.steps or job.step < 0 or state not in (COMPLETED, DEAD):
            return
        new = ModelJob("beta", job.priority, job.max_retries, job.delay_s)
        new.step, new.steps = -2, job.steps
        if state == COMPLETED:
            more = job.step + 1 < len(job.steps)
            new.queue = job.steps[job.step + 1] if more else "alpha"
            new.step = job.step + 1 if more else -1
        before = self.lived.job(job_id)
        assert before is not None
        self.born(derived_id(self.now_ns, job_id, str(before.event_seq)), new)

    def tell(self, job_id: str, dependency: str, state: int) -> None:
        job = self.jobs.get(job_id)
        if job is None or job.state in OVER or dependency not in job.open:
            return
        job.open.remove(dependency)
        if state == COMPLETED or job.policy == "run":
            if not job.open and job.state == PENDING:
                self.take_place(job)
                self.changed(job)
        else:
            self.fail_with(job_id, job)

    def fail_with(self, job_id: str, job: ModelJob) -> None:
        job.keeps_position = False
        self.finish(job_id, DEAD if job.policy == "fail" else CANCELLED)

    def wait_for(self, job_id: str, job: ModelJob, wanted: list[str]) -> bool:
        """Whether a dependency that has failed already ends the job."""
        job.open = set()
        for name in wanted:
            if self.jobs[name].state in (DEAD, CANCELLED) and job.policy != "run":
                job.open = set()
                return True
            if self.jobs[name].state not in OVER:
                job.open.add(name)
        for name in job.open:
            self.dependents.setdefault(name, set()).add(job_id)
        return False

    def welcome(self, job_id: str, token: str) -> bool:
        job = self.jobs.get(job_id)
        return job is not None and job.state == ACTIVE and token in ("", job.token)

    def started(self, fetched: Fetched, expected: str | None, lease_s: int) -> None:
        assert fetched.job_id == expected
        job = self.jobs[fetched.job_id]
        job.state, job.attempt = ACTIVE, job.attempt + 1
        self.handed_out(job)
        job.token, job.lease_s = fetched.token, lease_s
        job.expires_ns = self.now_ns + lease_s * SECOND_NS
        job.term, job.touched = self.term, False
        assert fetched.attempt == job.attempt

    def token_of(self, job_id: str, kind: str) -> str:
        job = self.jobs.get(job_id)
        if kind == "none" or job is None:
            return ""
        return job.token if kind == "own" and job.token else "stale0000000"

    def enqueued(self, job_id: str, job: ModelJob, result: Any, scheduled_ns: int) -> None:
        if job.key and (holder := self.locks.get((job.queue, job.key))):
            assert (result.job_id, result.duplicate) == (holder, True)
            assert result.state == self.jobs[holder].state
            return
        assert (result.job_id, result.duplicate) == (job_id, False)
        self.take_place(job)
        if job.state == HELD:
            assert result.state == HELD
        elif scheduled_ns > self.now_ns:
            job.state, job.due_ns = SCHEDULED, scheduled_ns
        self.enter(job_id, job)
        if job.key:
            self.locks[job.queue, job.key] = job_id

    # Programs.

    @initialize(count=st.sampled_from([0, 3, 70, 70, 230]), priority=st.integers(0, 2))
    def backlog(self, count: int, priority: int) -> None:
        """More than a window of the ready index."""
        ids = [f"old_{n:03}" for n in range(count)]
        results = self.entry(
            *(enqueue_step(job_id, queue="alpha", priority=priority) for job_id in ids)
        )
        for job_id, result in zip(ids, results, strict=True):
            self.enqueued(job_id, ModelJob("alpha", priority, 3, 5), result, 0)

    @rule(
        queue=st.sampled_from(QUEUES),
        priority=st.integers(0, 2),
        max_retries=st.integers(0, 3),
        wait_s=st.sampled_from([0, 0, 0, 1, 40]),
        delay_s=st.sampled_from([0, 2]),
        key=st.sampled_from(["", "", "k1", "k2"]),
        groups=st.lists(st.sampled_from(["", "g1", "g2", "g3"]), min_size=3, max_size=3),
        batch=st.integers(0, 3),
        expire_s=st.sampled_from([0, 0, 1, 50, 90]),
        hold=st.sampled_from([None, None, None, (0, 0), (70, 0), (70, 1), (2, 2)]),
    )
    def enqueue(
        self,
        queue: str,
        priority: int,
        max_retries: int,
        wait_s: int,
        delay_s: int,
        key: str,
        groups: list[str],
        batch: int,
        expire_s: int,
        hold: tuple[int, int] | None,
    ) -> None:
        scheduled_ns = self.now_ns + wait_s * SECOND_NS if wait_s and not hold else 0
        options: dict[str, Any] = {"expire_after_ns": expire_s * SECOND_NS}
        if hold:
            options |= {
                "hold": True,
                "hold_timeout_ns": hold[0] * SECOND_NS,
                "hold_action": hold[1],
            }
        ids, steps = [], []
        groups = groups[: batch or 1]
        for group in groups:
            ids.append(f"job_{self.next_id:02}")
            self.next_id += 1
            fields = {"queue": queue, "priority": priority, "max_retries": max_retries}
            fields |= {"payload": PAYLOADS[self.next_id % 2], "checkpoint": DATA[self.next_id % 4]}
            fields |= {"scheduled_ns": scheduled_ns, "base_delay_ms": delay_s * 1_000}
            if expire_s or hold or group:
                fields |= {"options": encode_options(**options, group_key=group)}
            steps.append(enqueue_step(ids[-1], unique_key=key.encode(), **fields))
        if batch:
            results = self.do(ops.ENQUEUE_BATCH, [encode_step(step) for step in steps], b"").jobs
        else:
            results = self.entry(*steps)
        for job_id, group, result in zip(ids, groups, results, strict=True):
            job = ModelJob(queue, priority, max_retries, delay_s)
            job.key, job.group = key, group
            job.expiry_ns = self.now_ns + expire_s * SECOND_NS if expire_s else 0
            if hold:
                job.state = HELD
                self.held(job, *hold)
            self.enqueued(job_id, job, result, scheduled_ns)

    def held(self, job: ModelJob, timeout_s: int, action: int) -> None:
        job.hold_ends_ns = self.now_ns + timeout_s * SECOND_NS if timeout_s else 0
        job.hold_action = action

    @rule(
        queues=st.lists(st.sampled_from(QUEUES), min_size=1, max_size=3, unique=True),
        lease_s=st.sampled_from([1, 60, 100]),
    )
    def fetch(self, queues: list[str], lease_s: int) -> None:
        result = self.do(ops.FETCH, queues, "w", "h", lease_s * SECOND_NS, 1 << 20)
        expected = next((head for queue in queues if (head := self.head(queue))), None)
        if result is None:
            assert expected is None
        else:
            self.started(result, expected, lease_s)

    @rule(
        queues=st.lists(st.sampled_from(QUEUES), min_size=1, max_size=3, unique=True),
        lease_s=st.sampled_from([1, 60, 100]),
        count=st.integers(1, 70),
    )
    def fetch_batch(self, queues: list[str], lease_s: int, count: int) -> None:
        values = (queues, "w", "h", lease_s * SECOND_NS, 1 << 20, count)
        results = self.do(ops.FETCH_BATCH, *values)
        turns = [queue for _ in range(count) for queue in queues]
        taken = iter(results)
        for queue in turns:
            head = self.head(queue) if count else None
            if head is not None:
                count -= 1
                self.started(next(taken), head, lease_s)
        assert next(taken, None) is None

    @rule(
        queue=st.sampled_from(QUEUES),
        picks=st.lists(PICK, max_size=3),
        policy=st.sampled_from(["fail", "cancel", "run"]),
        batch=st.integers(0, 4),
        steps=st.sampled_from([[], [], ["beta", "beta"]]),
        wait_s=st.sampled_from([0, 0, 40]),
        key=st.sampled_from(["", "", "k1"]),
        group=st.sampled_from(["", "", "g1", "g2"]),
    )
    def enqueue_tied(
        self,
        queue: str,
        picks: list[int],
        policy: str,
        batch: int,
        steps: list[str],
        wait_s: int,
        key: str,
        group: str,
    ) -> None:
        """Dependencies, an old batch or none, a chain."""
        job_id = f"tied_{self.next_id:02}"
        self.next_id += 1
        names = [*dict.fromkeys(self.pick(n, PENDING, ACTIVE, DEAD, COMPLETED) for n in picks)]
        batch_id = [*self.batches, "", ""][batch % (len(self.batches) + 2)]
        steps = [queue, *steps] if steps else []
        fields: dict[str, Any] = {"depends_on": names, "batch_id": batch_id, "parent_id": "alpha"}
        fields["group_key"] = group
        fields["on_dependency_failure"] = ["fail", "cancel", "run"].index(policy)
        if steps:
            followers = [follower(name) for name in steps]
            ends = {"on_failure": follower("beta"), "on_exit": follower("alpha")}
            fields |= {"chain": chain(*followers, **ends), "chain_id": "c"}
        scheduled_ns = self.now_ns + wait_s * SECOND_NS if wait_s else 0
        fields |= {"queue": queue, "scheduled_ns": scheduled_ns, "unique_key": key.encode()}
        result = self.entry(enqueue_step(job_id, **fields))[0]
        closed = batch_id and not self.batches[batch_id].members
        if closed or not self.jobs.keys() >= set(names):
            assert isinstance(result, CorvoError)
            return
        job = ModelJob(queue, 2, 3, 5)
        job.key, job.policy, job.batch, job.steps = key, policy, batch_id, steps
        job.group = group
        duplicate = bool(key) and (queue, key) in self.locks
        failed = not duplicate and self.wait_for(job_id, job, names)
        self.tied(job_id, job, result, scheduled_ns, failed)

    def tied(
        self, job_id: str, job: ModelJob, result: Any, scheduled_ns: int, failed: bool
    ) -> None:
        self.enqueued(job_id, job, result, scheduled_ns)
        if job_id not in self.jobs:
            return
        if job.batch:
            self.batches[job.batch].members.add(job_id)
        if failed:
            self.fail_with(job_id, job)
        assert result.state == job.state

    @rule(
        queue=st.sampled_from(QUEUES), count=st.integers(1, 3), key=st.sampled_from(["", "", "k2"])
    )
    def enqueue_new_batch(self, queue: str, count: int, key: str) -> None:
        batch_id = f"batch_{self.next_id:02}"
        ids = [f"job_{self.next_id + n:02}" for n in range(count)]
        self.next_id += count
        fields: dict[str, Any] = {"queue": queue, "batch_id": batch_id, "unique_key": key.encode()}
        callbacks = dict.fromkeys(("on_success", "on_complete", "on_death"), follower("gamma"))
        steps = [enqueue_step(job_id, **fields) for job_id in ids]
        result = self.entry(batch_step(batch_id, *steps, **callbacks))[0]
        assert result.batch_id == batch_id
        self.batches[batch_id] = ModelBatch()
        for job_id, item in zip(ids, result.jobs, strict=True):
            job = ModelJob(queue, 2, 3, 5)
            job.key, job.batch = key, batch_id
            self.tied(job_id, job, item, 0, False)
        self.finish_batch(batch_id)

    @rule(
        queue=st.sampled_from(QUEUES),
        key=st.sampled_from([b"a", b"b", b"c", b"d"]),
        fingerprint=st.sampled_from([b"x", b"x", b"y"]),
    )
    def enqueue_idempotent(self, queue: str, key: bytes, fingerprint: bytes) -> None:
        job_id = f"idem_{self.next_id:02}"
        self.next_id += 1
        step = enqueue_step(job_id, queue=queue)
        result = self.entry(idempotent_step(key, step, fingerprint, 100, 3))[0]
        known = [row for row in self.outcomes if row[1] == key][-1:]
        if known and known[0][0] + 100 * SECOND_NS > self.now_ns:
            if known[0][2] == fingerprint:
                assert plain(result) == known[0][3]
            else:
                assert result.code == "IDEMPOTENCY_MISMATCH"
            return
        self.enqueued(job_id, ModelJob(queue, 2, 3, 5), result, 0)
        for _ in range(2):
            oldest_ns = self.outcomes[0][0] if self.outcomes else self.now_ns
            if len(self.outcomes) >= 3 or oldest_ns + 100 * SECOND_NS <= self.now_ns:
                del self.outcomes[0]
        self.outcomes.append((self.now_ns, key, fingerprint, plain(result)))

    @rule(n=PICK, age_s=SECONDS)
    def purge_batches(self, n: int, age_s: int) -> None:
        ids = [*self.batches, "nope"]
        batch_id = ids[n % len(ids)]
        batch = self.lived.batch(batch_id)
        old = batch is not None and 0 < batch.finished_ns <= self.now_ns - age_s * SECOND_NS
        assert self.do(ops.PURGE_BATCHES, [batch_id, "nope"], age_s * SECOND_NS) == old
        if old:
            del self.batches[batch_id]

    @rule(n=PICK, kind=st.sampled_from(["own", "own", "none", "stale"]), again=st.booleans())
    def ack(self, n: int, kind: str, again: bool) -> None:
        job_id = self.pick(n, ACTIVE)
        token = self.token_of(job_id, kind)
        welcome = self.welcome(job_id, token)
        job = self.jobs.get(job_id)
        repeated = job is not None and job.state == COMPLETED and token == job.token != ""
        values = (job_id, token, DATA[n % 4], b"", b"")
        items = [encode_fields(ops.ACK.layout, values)] * (2 if again else 1)
        acked = self.do(ops.ACK_BATCH, items)
        if welcome:
            self.finish(job_id, COMPLETED)
            assert acked.count == (2 if again and token else 1)
        else:
            assert acked.count == (len(items) if repeated else 0)

    @rule(
        n=PICK,
        kind=st.sampled_from(["own", "own", "none", "stale"]),
        no_retry=st.booleans(),
        after=st.sampled_from([-1, -1, 0, 3]),
    )
    def fail(self, n: int, kind: str, no_retry: bool, after: int) -> None:
        job_id = self.pick(n, ACTIVE)
        token = self.token_of(job_id, kind)
        after_ns = after * SECOND_NS if after >= 0 else -1
        result = self.do(ops.FAIL, job_id, token, b'"e"', b"", no_retry, after_ns, False)
        if not self.welcome(job_id, token):
            assert isinstance(result, CorvoError)
            return
        job = self.jobs[job_id]
        job.releases = 0
        if job.cancelling:
            self.finish(job_id, CANCELLED)
        elif no_retry or job.attempt >= job.max_retries:
            self.finish(job_id, DEAD)
        elif self.expired(job_id):
            pass
        else:
            delay_s = after if after >= 0 else job.delay_s
            job.state = RETRYING if delay_s else PENDING
            job.due_ns = self.now_ns + delay_s * SECOND_NS
            if job.default_options and after < 0:
                job.due_ns = result.next_attempt_ns
                delay_ns = (job.due_ns - self.now_ns) >> (job.attempt - 1)
                assert abs(delay_ns - 5 * SECOND_NS) <= 5 * SECOND_NS // 10
            assert (result.state, result.next_attempt_ns) == (RETRYING, job.due_ns)
            assert result.attempts_remaining == job.max_retries - job.attempt
            return
        assert result.state == job.state

    @rule(n=PICK, kind=st.sampled_from(["own", "none", "stale"]), progress=st.sampled_from(DATA))
    def heartbeat(self, n: int, kind: str, progress: bytes) -> None:
        job_id = self.pick(n, ACTIVE)
        token = self.token_of(job_id, kind)
        beat = (job_id, token, progress, DATA[n % 4] if progress else b"")
        answer = self.do(ops.HEARTBEAT, [encode_fields(ops.BEAT_LAYOUT, beat)])[job_id]
        if not self.welcome(job_id, token):
            assert answer == "lost"
            return
        job = self.jobs[job_id]
        assert answer == ("cancel" if job.cancelling else "ok")
        job.expires_ns = self.now_ns + max(60, job.lease_s) * SECOND_NS
        job.touched = True
        if progress:
            job.releases = 0

    @rule(
        n=PICK,
        kind=st.sampled_from(["own", "own", "none"]),
        delay_s=st.integers(0, 2),
        undelivered=st.booleans(),
    )
    def release(self, n: int, kind: str, delay_s: int, undelivered: bool) -> None:
        job_id = self.pick(n, ACTIVE)
        token = self.token_of(job_id, kind)
        result = self.do(ops.RELEASE, job_id, token, delay_s * SECOND_NS, DATA[n % 4], undelivered)
        if not self.welcome(job_id, token):
            assert isinstance(result, CorvoError)
            return
        job = self.jobs[job_id]
        if undelivered and job.started_ns in self.grants[job.queue]:
            self.grants[job.queue].remove(job.started_ns)
        if job.cancelling:
            self.finish(job_id, CANCELLED)
        elif not self.expired(job_id):
            job.attempt -= 1
            job.releases += 1
            wait_s = max(delay_s, min(60, 2 ** (job.releases - 4)) if job.releases > 3 else 0)
            job.keeps_position = bool(wait_s)
            job.state = SCHEDULED if wait_s else PENDING
            job.due_ns = self.now_ns + wait_s * SECOND_NS
        assert result == job.state

    @rule(n=PICK)
    def retry(self, n: int) -> None:
        job_id = self.pick(n, DEAD, CANCELLED, COMPLETED, *WAITING)
        result = self.do(ops.RETRY_JOB, job_id)
        job = self.jobs.get(job_id)
        if job is None or job.state in (PENDING, ACTIVE, HELD):
            assert isinstance(result, CorvoError)
            return
        if job.key:
            holder = self.locks.setdefault((job.queue, job.key), job_id)
            if holder != job_id:
                assert result.code == "UNIQUE_CONFLICT" and result.fields["holder_id"] == holder
                return
        assert result is None
        if job.state in OVER and job.open:
            live = [name for name in job.open if self.alive(name)]
            self.wait_for(job_id, job, live)
        self.take_place(job)
        job.keeps_position = False
        job.state, job.attempt, job.releases, job.expiry_ns = PENDING, 0, 0, 0

    @rule(n=PICK, force=st.booleans())
    def cancel(self, n: int, force: bool) -> None:
        job_id = self.pick(n, ACTIVE, PENDING, *WAITING)
        result = self.do(ops.CANCEL_JOB, job_id, force)
        job = self.jobs.get(job_id)
        if job is None or job.state in (COMPLETED, DEAD, CANCELLED):
            assert isinstance(result, CorvoError)
        elif job.state == ACTIVE and not force:
            assert result == "cancelling"
            job.cancelling = True
        else:
            assert result == "cancelled"
            self.finish(job_id, CANCELLED)
            job.keeps_position = False

    @rule(n=PICK)
    def delete(self, n: int) -> None:
        job_id = self.pick(n, PENDING, ACTIVE, DEAD, *WAITING)
        result = self.do(ops.DELETE_JOB, job_id)
        if job_id not in self.jobs:
            assert isinstance(result, CorvoError)
            return
        self.unlock(job_id)
        job = self.jobs.pop(job_id)
        self.changed(job)
        if job.state not in OVER:
            self.ended.append((job_id, job, NOWHERE))

    @rule(
        n=PICK,
        kind=st.sampled_from(["own", "own", "none", "stale"]),
        count=st.integers(1, 20),
        size=st.sampled_from([0, 5_000, 60_000]),
    )
    def log(self, n: int, kind: str, count: int, size: int) -> None:
        job_id = self.pick(n, ACTIVE)
        token = self.token_of(job_id, kind)
        line = encode_fields(ops.LINE_LAYOUT, (1, self.now_ns, b'"%b"' % (b"x" * size)))
        result = self.do(ops.APPEND_LOGS, job_id, token, [line] * count)
        if not self.welcome(job_id, token):
            assert isinstance(result, CorvoError)
            return
        job = self.jobs[job_id]
        job.touched = True
        job.lines += count
        assert result.seq == job.lines

    @rule(queue=st.sampled_from(QUEUES), key=st.sampled_from(["k1", "k2"]), n=PICK)
    def release_lock(self, queue: str, key: str, n: int) -> None:
        holder = self.locks.get((queue, key))
        named = (holder or "nope") if n % 3 else ""
        result = self.do(ops.RELEASE_LOCK, queue, key.encode(), named)
        if holder is None:
            assert isinstance(result, CorvoError)
        else:
            assert result == holder
            del self.locks[queue, key]

    @rule(queue=st.sampled_from(QUEUES), limit=st.integers(0, 3))
    def set_concurrency(self, queue: str, limit: int) -> None:
        self.do(ops.SET_CONCURRENCY, queue, limit)
        self.limits[queue] = limit

    @rule(queue=st.sampled_from(QUEUES))
    def pause_or_resume(self, queue: str) -> None:
        if self.paused[queue]:
            assert self.do(ops.RESUME_QUEUE, queue) is None
        else:
            assert self.do(ops.PAUSE_QUEUE, queue, False) is None
        self.paused[queue] = not self.paused[queue]

    @rule(
        action=st.sampled_from(ACTIONS),
        ns=st.lists(PICK, min_size=1, max_size=3),
        where=st.sampled_from(QUEUES),
        priority=st.integers(0, 2),
        flag=st.booleans(),
        timeout_s=st.sampled_from([0, 1, 70]),
        how=st.sampled_from(["plain", "task", "all"]),
    )
    def act(
        self,
        action: str,
        ns: list[int],
        where: str,
        priority: int,
        flag: bool,
        timeout_s: int,
        how: str,
    ) -> None:
        fields = {"target": where, "priority": priority, "force": flag, "revise": flag}
        fields |= {"hold_timeout_ns": timeout_s * SECOND_NS, "hold_action": priority}
        fields |= {"reset_attempts": flag, "keep_priority": not flag}
        arguments = encode_arguments(**fields, feedback=b'"f"')
        states = ACTION_STATES[ACTIONS.index(action)]
        ids = list(dict.fromkeys(self.pick(n, *states) for n in ns))
        if how == "all":
            if action in ("delete", "move", "hold") and priority:
                return  # too often, and nothing would be left to play with
            live = [job_id for job_id, job in self.jobs.items() if job.state in states]
            ids = sorted(live, key=self.walk_place)
        if how != "plain" and any(self.entangled(job_id) for job_id in self.jobs):
            return  # what follows the end of one would change others on the way
        operation_id = "" if how == "plain" else f"bulk_{self.next_id:03}"
        self.next_id += 1
        values = ([] if how == "all" else ids, how == "all", ACTIONS.index(action), arguments)
        result = self.do(ops.BULK_ACTION, operation_id, *values, False)
        self.finish_task(operation_id)
        expected = [self.acted(job_id, action, where, fields) for job_id in ids]
        if how == "plain":
            codes = [item.code if isinstance(item, CorvoError) else "" for item in result]
            assert codes == expected
            return
        operation = self.lived.operation(operation_id)
        assert operation is not None and not operation.running()
        if how == "task":
            refused = ["NOT_FOUND", "INVALID_STATE"]
            skipped = sum(code in refused for code in expected)
            assert operation.counts == [
                expected.count(""),
                skipped,
                expected.count("UNIQUE_CONFLICT"),
            ]

    def entangled(self, job_id: str) -> bool:
        """Whether the end of a job brings about something."""
        job = self.jobs[job_id]
        return bool(job.open or job.batch or job.steps) or job_id in self.dependents

    def walk_place(self, job_id: str) -> tuple[int, bytes]:
        job = self.lived.job(job_id)
        assert job is not None
        order = (PENDING, SCHEDULED, RETRYING, HELD, ACTIVE)
        family = order.index(job.state) if job.state in order else len(order)
        return family, index_rows.index_key(job)

    def finish_task(self, operation_id: str) -> None:
        while (operation := self.lived.operation(operation_id)) is not None and operation.running():
            self.do(ops.BULK_STEP, operation_id, 7, False)

    def acted(self, job_id: str, action: str, target: str, fields: dict[str, Any]) -> str:
        """What comes of an action: an error code, or nothing."""
        job = self.jobs.get(job_id)
        if job is None:
            return "NOT_FOUND"
        if job.state not in ACTION_STATES[ACTIONS.index(action)]:
            return "INVALID_STATE"
        lock = job.queue, job.key
        if action in ("retry", "requeue"):
            if job.key and self.locks.setdefault(lock, job_id) != job_id:
                return "UNIQUE_CONFLICT"
            if job.open and job.state in OVER:
                self.wait_for(job_id, job, [name for name in job.open if self.alive(name)])
            job.releases = job.expiry_ns = 0
            self.take_place(job)
            job.state, job.keeps_position = PENDING, False
            job.attempt = 0 if action == "retry" else job.attempt
        elif action == "delete":
            self.unlock(job_id)
            self.changed(self.jobs.pop(job_id))
            if job.state not in OVER:
                self.ended.append((job_id, job, NOWHERE))
        elif action == "cancel" and job.state == ACTIVE and not fields["force"]:
            job.cancelling = True
        elif action == "cancel":
            self.finish(job_id, CANCELLED)
            job.keeps_position = False
        elif action == "run" and not self.expired(job_id):
            if job.state == SCHEDULED and not job.keeps_position:
                self.take_place(job)
            job.state, job.keeps_position = PENDING, False
        elif action == "hold":
            job.state, job.cancelling, job.keeps_position = HELD, False, False
            self.held(job, fields["hold_timeout_ns"] // SECOND_NS, fields["hold_action"])
        elif action == "approve" or (action == "reject" and fields["revise"]):
            if not self.expired(job_id):
                job.state = PENDING
        elif action == "reject":
            self.finish(job_id, DEAD)
        elif action == "change_priority":
            job.priority = fields["priority"]
        elif action == "move":
            return self.moved(job_id, target, fields)
        return ""

    def moved(self, job_id: str, target: str, fields: dict[str, Any]) -> str:
        job = self.jobs[job_id]
        if job.queue != target and job.key and self.locks.get((job.queue, job.key)) == job_id:
            if (target, job.key) in self.locks:
                return "UNIQUE_CONFLICT"
            self.locks[target, job.key] = self.locks.pop((job.queue, job.key))
        left, job.queue = job.queue, target
        self.take_place(job)
        self.changed(job)
        self.settle_group(left, job.group)
        if fields["reset_attempts"] and job.state != ACTIVE:
            job.attempt = 0
        if not fields["keep_priority"]:
            job.priority = 2
        return ""

    @rule(queue=st.sampled_from(QUEUES), destroy=st.sampled_from([False, False, True]))
    def clear_or_destroy(self, queue: str, destroy: bool) -> None:
        op = ops.DELETE_QUEUE if destroy else ops.CLEAR_QUEUE
        exists = self.lived.queue(queue) is not None
        for job_id, job in list(self.jobs.items()):
            if job.queue == queue and (destroy or job.state in (PENDING, SCHEDULED)):
                self.unlock(job_id)
                self.changed(self.jobs.pop(job_id))
                if job.state not in OVER:
                    self.pending_deletion[job_id] = job
        if destroy:
            self.forget_queue(queue)
            self.keep_s[queue] = [-1] * 3
        result = self.do(op, queue, f"bulk_{self.next_id:03}")
        self.next_id += 1
        assert isinstance(result, CorvoError) != exists

    @rule(limit=st.integers(1, 60))
    def step(self, limit: int) -> None:
        """One step of a clear, or of the end of a queue."""
        if running := self.lived.running_operations():
            self.do(ops.BULK_STEP, running[0].id, limit, False)

    @rule(queue=st.sampled_from(QUEUES), keep=st.lists(st.integers(-1, 2), min_size=3, max_size=3))
    def set_retention(self, queue: str, keep: list[int]) -> None:
        self.keep_s[queue] = [-1 if n < 0 else 61 * n for n in keep]
        values = [0 if n < 0 else 61 * n * SECOND_NS + 1 for n in keep]
        assert self.do(ops.SET_QUEUE_OPTIONS, queue, values, 0) is None

    @rule(default_s=SECONDS)
    def purge(self, default_s: int) -> None:
        ids, expected = [], []
        for job_id, job in self.jobs.items():
            if job.state in END_STATES:
                ids.append(job_id)
                keep_s = self.keep_s[job.queue][END_STATES.index(job.state)]
                keep_s = default_s if keep_s < 0 else keep_s
                if job.ended_ns + keep_s * SECOND_NS <= self.now_ns:
                    expected.append(job_id)
        assert self.do(ops.PURGE_JOBS, ids, [default_s * SECOND_NS] * 3) == len(expected)
        for job_id in expected:
            self.unlock(job_id)
            del self.jobs[job_id]

    @rule(queue=st.sampled_from(QUEUES), limit=st.integers(0, 2))
    def set_group_limit(self, queue: str, limit: int) -> None:
        self.do(ops.SET_GROUP_LIMIT, queue, limit)
        self.group_limits[queue] = limit

    @rule(queue=st.sampled_from(QUEUES), after_s=st.sampled_from([0, 2, 60]))
    def set_aging(self, queue: str, after_s: int) -> None:
        self.do(ops.SET_QUEUE_OPTIONS, queue, [], after_s * SECOND_NS + 1)
        self.aging_s[queue] = after_s

    @rule(
        queue=st.sampled_from(QUEUES), rate=st.integers(0, 4), window_s=st.sampled_from([1, 2, 60])
    )
    def set_throttle(self, queue: str, rate: int, window_s: int) -> None:
        if rate:
            self.do(ops.SET_THROTTLE, queue, rate, window_s * 1000)
            # What has left the window may be forgotten.
            old_s = self.rates.get(queue, (0, window_s))[1]
            self.rates[queue] = (rate, min(old_s, window_s) if self.grants[queue] else window_s)
            if self.rates[queue][1] != window_s:
                self.do(ops.SET_THROTTLE, queue, rate, self.rates[queue][1] * 1000)
        else:
            self.do(ops.REMOVE_THROTTLE, queue)
            self.rates.pop(queue, None)
            self.grants[queue] = []

    @rule(keep=st.integers(0, 30))
    def trim_events(self, keep: int) -> None:
        self.do(ops.TRIM_EVENTS, max(0, self.lived.event_seq - keep))

    @rule(age_s=SECONDS)
    def remove_workers(self, age_s: int) -> None:
        self.do(ops.REMOVE_STALE_WORKERS, self.now_ns - age_s * SECOND_NS)

    @rule(seconds=SECONDS, limit=st.sampled_from([1, 2, 3, 4, DUE_IDS_MAX]))
    def time_passes(self, seconds: int, limit: int) -> None:
        """The leader's timers see to all that is due, in slices."""
        self.now_ns += seconds * SECOND_NS
        if limit % 2:
            self.expire_jobs_all(limit)
        self.promote_all(limit)
        self.expire_jobs_all(limit)
        self.expire_all(limit)
        self.fire_all(limit)

    def expire_jobs_all(self, limit: int) -> None:
        due = set()
        for job_id, job in self.jobs.items():
            if job.state in (PENDING, HELD, *WAITING) and 0 < job.expiry_ns <= self.now_ns:
                due.add(job_id)
            if job.state == HELD and 0 < job.hold_ends_ns <= self.now_ns:
                due.add(job_id)
        while ids := self.lived.due_expiries(self.now_ns, limit):
            assert ids == self.reborn.due_expiries(self.now_ns, limit)
            assert self.do(ops.EXPIRE_JOBS, ids) <= len(ids)
            for job_id in dict.fromkeys(ids):
                if job_id in self.jobs:  # its deletion is not pending
                    due.remove(job_id)
                    if not self.expired(job_id):
                        self.hold_times_out(job_id)
        assert not due and self.reborn.due_expiries(self.now_ns, limit) == []

    def hold_times_out(self, job_id: str) -> None:
        action = self.jobs[job_id].hold_action
        if action == 1:
            self.jobs[job_id].state = PENDING
        else:
            self.finish(job_id, DEAD if action == 2 else CANCELLED)

    def promote_all(self, limit: int) -> None:
        due = {
            job_id
            for job_id, job in self.jobs.items()
            if job.state in WAITING and job.due_ns <= self.now_ns
        }
        op = ops.PROMOTE_DUE if limit < DUE_IDS_MAX else ops.PROMOTE  # which says the time
        while ids := self.lived.due_promotions(self.now_ns, limit):
            assert ids == self.reborn.due_promotions(self.now_ns, limit)
            assert self.do(op, ids if op is ops.PROMOTE_DUE else self.now_ns) <= len(ids)
            for job_id in ids:
                if job_id not in self.jobs:  # its deletion is pending
                    continue
                due.remove(job_id)
                job = self.jobs[job_id]
                if self.expired(job_id):
                    continue
                if job.state == SCHEDULED and not job.keeps_position:
                    self.take_place(job)
                job.state, job.keeps_position = PENDING, False
        assert not due and self.reborn.due_promotions(self.now_ns, limit) == []

    def expire_all(self, limit: int) -> None:
        due = {
            job_id
            for job_id, job in self.jobs.items()
            if job.state == ACTIVE and job.expires_ns <= self.now_ns
        }
        op = ops.EXPIRE_LEASES if limit < DUE_IDS_MAX else ops.RECLAIM
        while ids := self.lived.due_leases(self.now_ns, limit):
            assert ids == self.reborn.due_leases(self.now_ns, limit)
            assert self.do(op, ids if op is ops.EXPIRE_LEASES else self.now_ns) <= len(ids)
            for job_id in ids:
                if job_id not in self.jobs:  # its deletion is pending
                    continue
                due.remove(job_id)
                job = self.jobs[job_id]
                phantom = not job.touched and job.term < self.term
                if job.cancelling:
                    self.finish(job_id, CANCELLED)
                elif self.expired(job_id):
                    pass
                elif phantom or job.attempt < job.max_retries:
                    job.state = PENDING
                    job.attempt -= phantom
                else:
                    self.finish(job_id, DEAD)
        assert not due and self.reborn.due_leases(self.now_ns, limit) == []

    @rule(
        n=st.integers(0, 2),
        change=st.sampled_from(["set", "set", "pause", "stale", "delete"]),
        every_s=st.sampled_from([60, 600]),
        overlap=st.sampled_from(["allow", "skip"]),
        catch_up=st.sampled_from(["none", "last", "all"]),
        key=st.sampled_from(["", "", "k1"]),
        queue=st.sampled_from(QUEUES),
    )
    def set_schedule(self, n: int, change: str, every_s: int, **fields: Any) -> None:
        schedule_id = f"sched_{n}"
        old = self.schedules.get(schedule_id)
        if change == "delete":
            assert (self.do(ops.DELETE_SCHEDULE, schedule_id) is None) == (old is not None)
            self.schedules.pop(schedule_id, None)
            return
        every_ns = every_s * SECOND_NS
        next_ns = 0 if change == "pause" else (self.now_ns // every_ns + 1) * every_ns
        new = ModelSchedule((old.revision if old else 0) + 1, next_ns, every_s=every_s, **fields)
        modes = {name: fields[name] for name in ("overlap", "catch_up", "queue")}
        revision = new.revision - 1 + (change == "stale")
        modes |= {"revision": revision, "cron": f"@every {every_s}s", "limit": new.limit}
        result = self.entry(
            schedule_step(schedule_id, next_ns, unique_key=new.key.encode(), **modes)
        )[0]
        if change == "stale":
            assert isinstance(result, CorvoError)
            return
        new.last_job = old.last_job if old else ""
        self.schedules[schedule_id] = new

    @rule(n=st.integers(0, 2))
    def run_schedule(self, n: int) -> None:
        schedule_id, job_id = f"sched_{n}", f"run_{self.next_id:02}"
        self.next_id += 1
        result = self.do(ops.RUN_SCHEDULE, schedule_id, job_id)
        schedule = self.schedules.get(schedule_id)
        if schedule is None or (schedule.skip and self.alive(schedule.last_job)):
            assert isinstance(result, CorvoError)
        else:
            assert result.duplicate != self.scheduled(schedule, job_id)

    def scheduled(self, schedule: ModelSchedule, job_id: str) -> bool:
        """Whether the schedule makes this job."""
        if schedule.key and (schedule.queue, schedule.key) in self.locks:
            return False
        job = ModelJob(schedule.queue, 2, 3, 5)
        job.key, schedule.last_job = schedule.key, job_id
        self.take_place(job)
        self.enter(job_id, job)
        if job.key:
            self.locks[job.queue, job.key] = job_id
        return True

    def fire_all(self, limit: int) -> None:
        while due := self.lived.due_schedules(self.now_ns, limit):
            again = self.reborn.due_schedules(self.now_ns, limit)
            assert [row.id for row in due] == [row.id for row in again]
            items = [item for row in due for item in due_runs(row, self.now_ns)]
            assert items == [item for row in again for item in due_runs(row, self.now_ns)]
            ids = [row.id for row in due]
            made = self.do(ops.FIRE_SCHEDULE, items)
            assert made == sum(self.fire(schedule_id) for schedule_id in ids)
            assert self.do(ops.FIRE_SCHEDULE, items) == 0
        assert all(not 0 < row.next_ns <= self.now_ns for row in self.schedules.values())

    def fire(self, schedule_id: str) -> int:
        """How many jobs the schedule makes now."""
        schedule = self.schedules[schedule_id]
        occurrences = range(schedule.next_ns, self.now_ns + 1, schedule.every_ns)
        schedule.next_ns = occurrences[-1] + schedule.every_ns
        made = 0
        for occurrence_ns in occurrences[-schedule.limit :]:
            missed = schedule.catch_up == "none" and self.now_ns - occurrence_ns > 5 * SECOND_NS
            if not missed and not (schedule.skip and self.alive(schedule.last_job)):
                job_id = derived_id(occurrence_ns, schedule_id, str(occurrence_ns))
                made += self.scheduled(schedule, job_id)
        return made

    # What must hold after every step.

    @invariant()
    def the_model_agrees(self) -> None:
        self.follow()
        for job_id, expected in self.jobs.items():
            job = self.lived.job(job_id)
            assert job is not None
            assert (job.state, job.attempt) == (expected.state, expected.attempt), job_id
            assert (self.lived.queue_of(job).name, job.priority) == (
                expected.queue,
                expected.priority,
            )
            if job.state == ACTIVE:
                assert self.lived.lease_token(job) == expected.token
                assert job.lease_expires_ns == expected.expires_ns
        for name in QUEUES:
            queue = self.lived.queue(name)
            if queue is not None:
                assert self.lived.active_count(name) == self.active(name)
                jobs = [job for job in self.jobs.values() if job.queue == name]
                for state in range(8):
                    for priority in range(3):
                        number = sum((j.state, j.priority) == (state, priority) for j in jobs)
                        assert queue.counts[state * 3 + priority] == number

    @invariant()
    def batches_agree(self) -> None:
        self.follow()
        for batch_id, expected in self.batches.items():
            batch = self.lived.batch(batch_id)
            assert batch is not None
            assert self.lived.batch_members(batch_id, 99) == sorted(expected.members)
            counts = (batch.pending, batch.succeeded, batch.failed)
            assert counts == (len(expected.members), expected.succeeded, expected.failed)
        for job_id, job in self.jobs.items():
            stored = self.lived.job(job_id)
            assert stored is not None
            if job.open and job.state not in OVER:
                assert stored.options is not None
                assert set(self.lived.open_dependencies(stored)) == job.open

    @invariant()
    def reads_agree(self) -> None:
        self.follow()
        for job_id, expected in self.jobs.items():
            job = self.lived.job(job_id)
            assert job is not None
            for machine in (self.lived, self.reborn):
                log = machine.log(job)
                assert log.next_seq - 1 == expected.lines
            if job.state == PENDING and not expected.open:
                mine = (expected.priority, expected.position)
                before = [
                    other
                    for other in self.jobs.values()
                    if other.queue == expected.queue
                    and other.state == PENDING
                    and not other.open
                    and (other.priority, other.position) < mine
                ]
                assert self.lived.jobs_before(job) == len(before)
        for machine in (self.lived, self.reborn):
            locks = machine.locks("", b"", 1_000)[0]
            assert {(row.queue, row.key.decode()): row.holder.id for row in locks} == self.locks

    @invariant()
    def what_is_fetchable_agrees(self) -> None:
        for queue in QUEUES:
            count = self.fetchable(queue)
            for machine in (self.lived, self.reborn):
                assert machine.fetchable(queue, now_ns=self.now_ns) == count
            opens_ns = self.lived.opens_ns(queue, self.now_ns)
            assert opens_ns == self.reborn.opens_ns(queue, self.now_ns)
            if opens_ns:
                rate, window_s = self.rates[queue]
                left = sorted(self.grants[queue])[-rate]
                assert opens_ns == left + window_s * SECOND_NS + 1

    @invariant()
    def schedules_agree(self) -> None:
        assert [row.id for row in self.lived.schedules()] == sorted(self.schedules)
        for schedule_id, expected in self.schedules.items():
            schedule = self.lived.schedule(schedule_id)
            assert schedule is not None
            assert (schedule.revision, schedule.next_ns) == (expected.revision, expected.next_ns)
            assert schedule.last_job_id == expected.last_job

    @invariant()
    def the_next_due_time_is_never_late(self) -> None:
        times = [job.due_ns for job in self.jobs.values() if job.state in WAITING]
        times += [job.expires_ns for job in self.jobs.values() if job.state == ACTIVE]
        times += [schedule.next_ns for schedule in self.schedules.values() if schedule.next_ns]
        quiet = True  # whether nothing else may keep a timer
        for job in self.jobs.values():
            if job.state == HELD and job.hold_ends_ns:
                times.append(job.hold_ends_ns)
            if job.state in (PENDING, HELD, *WAITING) and job.expiry_ns:
                times.append(job.expiry_ns)
            quiet = quiet and not (job.state == ACTIVE and job.expiry_ns)
        quiet = quiet and not self.lived._state.queues_pending_deletion
        for machine in (self.lived, self.reborn):
            due_ns = machine.next_due()
            assert (0 < due_ns <= min(times)) if times else due_ns <= self.now_ns or not quiet

    def teardown(self) -> None:
        self.flush_both()
        self.start()
        assert memory(self.reborn) == memory(self.lived)


Program.TestCase.settings = settings(max_examples=50, stateful_step_count=50, deadline=None)
TestProgram = Program.TestCase

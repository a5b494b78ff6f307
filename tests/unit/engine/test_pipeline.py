"""The pipeline over a scripted log and state machine: batching, fetches, refusals, flushes."""

import gc
import weakref
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from corvo import limits, ops
from corvo._fast.codec.layouts import decode_fields, decode_frame
from corvo.consensus.log import CONFIGURATION, Entry
from corvo.engine.parked import DONE, Wait
from corvo.engine.pipeline import Pipeline
from corvo.errors import DiskFull, NoLeader, NotReady, OutcomeUnknown, Overloaded
from corvo.fsm.machine import FlushReport
from corvo.model import Fetched, Job
from corvo.platform.clock import Clock

SECOND = limits.SECOND_NS


class Loop:
    """Runs callbacks when told to; timers fire when the clock is moved past them."""

    def __init__(self, clock: "Time") -> None:
        self._clock = clock
        self._soon: deque[tuple[Any, tuple[Any, ...]]] = deque()
        self._later: list[Any] = []

    def call_soon(self, callback: Any, *args: Any) -> None:
        self._soon.append((callback, args))

    def call_later(self, delay: float, callback: Any, *args: Any) -> Any:
        timer = SimpleNamespace(
            at_ns=self._clock.now_ns + int(delay * 1e9), callback=callback, args=args
        )
        timer.cancel = lambda: self._later.remove(timer) if timer in self._later else None
        self._later.append(timer)
        return timer

    def turn(self) -> None:
        """Run what is ready now, and nothing that it schedules."""
        for _ in range(len(self._soon)):
            callback, args = self._soon.popleft()
            callback(*args)

    def run(self) -> None:
        while self._soon:
            self.turn()

    def move(self, length_ns: int) -> None:
        """Let time pass, running timers in order."""
        end_ns = self._clock.now_ns + length_ns
        while True:
            due = [timer for timer in self._later if timer.at_ns <= end_ns]
            if not due:
                break
            timer = min(due, key=lambda t: t.at_ns)
            self._later.remove(timer)
            self._clock.now_ns = max(self._clock.now_ns, timer.at_ns)
            timer.callback(*timer.args)
            self.run()
        self._clock.now_ns = end_ns


class Time:
    """Stands still."""

    def __init__(self) -> None:
        self.now_ns = 1_000 * SECOND

    def read(self) -> int:
        return self.now_ns


class Log:
    """Keeps proposals until `commit`."""

    def __init__(self) -> None:
        self.busy = False
        self.entries: list[Entry] = []
        self.term = 1
        self.on_committed: Any = None
        self.on_idle: Any = None
        self.refuse: Exception | None = None
        self.trimmed = 0
        self.full = False

    def propose(self, data: bytes) -> tuple[int, int]:
        assert not self.busy
        if self.refuse is not None:
            raise self.refuse
        self.busy = True
        self.entries.append(Entry(len(self.entries) + 1, self.term, data))
        return len(self.entries), self.term

    def commit(self) -> None:
        self.busy = False
        self.on_committed([self.entries[-1]])

    def sync(self) -> None:
        pass

    def trim(self, index: int) -> None:
        self.trimmed = index

    def numbers(self) -> list[int]:
        """Op numbers of the newest entry, without its Stamp."""
        return [number for number, _ in decode_frame(self.entries[-1].data)][1:]


class Disk:
    """As much space as the test says."""

    def __init__(self) -> None:
        self.free = 1 << 40
        self.ballast = True

    def disk_free(self) -> int:
        return self.free

    def release_ballast(self) -> None:
        self.ballast = False

    def restore_ballast(self) -> bool:
        self.ballast = True
        return True


class Machine:
    """Answers each op with its number; fetches with what the test has put out."""

    def __init__(self) -> None:
        self.ready: dict[str, int] = {}
        self.jobs: list[Any] = []
        self.write_buffer_records = 0
        self.write_buffer_size = 0
        self.applied_index = 0
        self.flushes = 0
        self.flush_error: Exception | None = None
        self.woken: list[str] = []
        self.opening_ns = 0  # until then nothing is handed out
        self.seen_ns = 1_000 * SECOND

    def apply(self, index: int, term: int, data: bytes) -> list[Any]:
        self.applied_index = index
        self.write_buffer_records += 1
        results: list[Any] = []
        for number, _ in decode_frame(data)[1:]:
            if number == ops.FETCH.number:
                results.append(self.jobs.pop(0) if self.jobs else None)
            else:
                results.append(number)
        return results

    def configure(self, index: int, term: int, data: bytes) -> None:
        self.applied_index = index
        self.configuration = data

    def take_woken(self) -> list[str]:
        woken, self.woken = self.woken, []
        return woken

    def fetchable(self, queue: str, arriving: int = 0, leaving: int = 0, now_ns: int = 0) -> int:
        if now_ns < self.opening_ns:
            return 0
        return self.ready.get(queue, 0) + arriving

    def opens_ns(self, queue: str, now_ns: int) -> int:
        return self.opening_ns if now_ns < self.opening_ns else 0

    def worker_seen_ns(self, worker_id: str) -> int:
        return self.seen_ns

    def queue(self, name: str) -> None:
        return None

    def flush(self) -> FlushReport:
        if self.flush_error is not None:
            raise self.flush_error
        self.flushes += 1
        self.write_buffer_records = 0
        return FlushReport(1, 1, self.applied_index)


class Request:
    """What the pipeline and a handler need of one."""

    abandoned = False
    context: Any = None


class Rig:
    """A pipeline with everything around it."""

    def __init__(self) -> None:
        self.clock = Time()
        self.loop = Loop(self.clock)
        self.log = Log()
        self.machine = Machine()
        self.disk = Disk()
        clock = Clock(self.clock.read, self.clock.read, bytes)
        self.on_jump = clock.on_jump
        parts: tuple[Any, ...] = (self.loop, clock, self.log, self.machine, self.disk)
        self.pipeline = Pipeline(*parts, 100)
        self.pipeline.start()
        self.answers: list[Any] = []

    def submit(self, op: ops.Op = ops.ENQUEUE, payload: bytes = b"x", tag: Any = None) -> None:
        self.pipeline.submit(op, payload, (self._on_result, tag))

    def _on_result(self, tag: Any, result: Any) -> None:
        self.answers.append((tag, result))

    def fetch(self, *queues: str, wait_ns: int = SECOND) -> Wait:
        request = Request()
        deadline_ns = self.clock.now_ns + wait_ns if wait_ns else 0
        wait = Wait(list(queues) or ["q"], "w", b"f", False, deadline_ns, request, self._on_jobs)
        self.pipeline.fetch(wait)
        return wait

    def _on_jobs(self, wait: Wait, jobs: list[Any]) -> None:
        self.answers.append((wait, jobs))


@pytest.fixture
def rig() -> Rig:
    return Rig()


def a_job(job_id: str = "job_1") -> Fetched:
    return Fetched(Job(job_id), "q", "token")


def test_what_arrives_in_one_turn_is_one_entry(rig: Rig) -> None:
    rig.submit(tag=1)
    rig.submit(ops.ACK, tag=2)
    assert rig.log.entries == []
    rig.loop.run()
    assert rig.log.numbers() == [ops.ACK.number, ops.ENQUEUE.number]
    assert rig.answers == []
    rig.log.commit()
    assert sorted(rig.answers) == [(1, ops.ENQUEUE.number), (2, ops.ACK.number)]


def test_what_arrives_during_a_write_is_the_next_entry(rig: Rig) -> None:
    rig.submit(tag=1)
    rig.loop.run()
    rig.submit(tag=2)
    rig.submit(tag=3)
    rig.loop.run()
    assert len(rig.log.entries) == 1
    rig.log.commit()
    assert rig.answers == [(1, ops.ENQUEUE.number)]
    # Sealed late: the loop gets a turn to read what the answers bring in.
    rig.loop.turn()
    assert len(rig.log.entries) == 1
    rig.submit(tag=4)
    rig.loop.run()
    assert len(rig.log.entries) == 2
    rig.log.commit()
    assert [tag for tag, _ in rig.answers] == [1, 2, 3, 4]


def crowd(rig: Rig, size: int) -> None:
    """One entry of so many ops is through."""
    for tag in range(size):
        rig.submit(tag=f"crowd {tag}")
    rig.loop.run()
    rig.log.commit()
    rig.answers.clear()


def test_entries_are_not_sealed_close_together_while_more_arrives(rig: Rig) -> None:
    crowd(rig, 12)
    for tag in range(2, 6):
        rig.submit(tag=tag)
        rig.loop.turn()
        assert len(rig.log.entries) == 1
    rig.clock.now_ns += limits.GATHER_NS
    rig.submit(tag=6)
    rig.loop.turn()
    assert len(rig.log.numbers()) == 5


def test_a_turn_that_brings_nothing_seals(rig: Rig) -> None:
    crowd(rig, 12)
    rig.submit(tag=2)
    rig.fetch()
    rig.loop.turn()
    rig.fetch()
    rig.loop.turn()
    assert len(rig.log.entries) == 1  # a fetch is something, too
    rig.loop.turn()
    assert len(rig.log.entries) == 2


def test_the_loop_reads_once_before_an_entry_that_waited_long(rig: Rig) -> None:
    rig.submit(tag=1)
    rig.loop.run()
    rig.submit(tag=2)
    rig.clock.now_ns += limits.GATHER_NS
    rig.log.commit()
    rig.loop.turn()
    assert len(rig.log.entries) == 1
    rig.submit(tag=3)
    rig.loop.turn()
    assert len(rig.log.numbers()) == 2


def test_a_full_entry_does_not_wait_for_more(rig: Rig) -> None:
    rig.submit(tag=1)
    rig.loop.run()
    rig.log.commit()
    rig.submit(payload=bytes(limits.ENTRY_SEAL_SIZE))
    rig.loop.turn()
    assert len(rig.log.entries) == 2


def test_an_idle_pipeline_writes_nothing(rig: Rig) -> None:
    rig.loop.move(5 * SECOND)
    assert rig.log.entries == [] and rig.machine.flushes == 0


def test_a_fetch_rides_in_the_entry_of_the_job_it_takes(rig: Rig) -> None:
    wait = rig.fetch()
    rig.loop.run()
    assert rig.log.entries == []
    rig.submit(tag="new")
    rig.pipeline.expect("q", 1)
    rig.machine.jobs = [a_job()]
    rig.loop.run()
    assert rig.log.numbers() == [ops.ENQUEUE.number, ops.FETCH.number]
    rig.log.commit()
    assert rig.answers[1][0] is wait and rig.answers[1][1][0].job_id == "job_1"


def test_a_worker_of_empty_queues_is_seen_now_and_then(rig: Rig) -> None:
    rig.machine.seen_ns = rig.clock.now_ns - limits.WORKER_UNSEEN_NS - 1
    rig.fetch()
    rig.loop.run()
    assert rig.log.numbers() == [ops.FETCH.number]
    rig.machine.seen_ns = rig.clock.now_ns
    rig.log.commit()
    rig.loop.run()
    assert rig.answers == [] and rig.pipeline.fetches.waiting.count == 1
    rig.fetch()
    rig.loop.run()
    assert len(rig.log.entries) == 1


def test_only_as_many_fetches_as_can_be_served(rig: Rig) -> None:
    waits = [rig.fetch() for _ in range(10)]
    rig.machine.ready["q"] = 3
    rig.loop.run()
    assert rig.log.numbers() == [ops.FETCH.number] * 3
    rig.machine.jobs = [a_job(str(n)) for n in range(3)]
    rig.machine.ready["q"] = 0
    rig.log.commit()
    assert [wait for wait, _ in rig.answers] == waits[:3]
    assert rig.pipeline.fetches.waiting.count == 7


def test_a_fetch_tried_in_vain_stays_in_front(rig: Rig) -> None:
    first = rig.fetch()
    rig.machine.ready["q"] = 1
    rig.loop.run()
    rig.fetch()
    rig.machine.ready["q"] = 0
    rig.log.commit()
    rig.loop.run()
    assert rig.answers == []
    rig.machine.ready["q"] = 1
    rig.machine.jobs = [a_job()]
    rig.submit(ops.RESUME_QUEUE)
    rig.machine.woken = ["q"]
    rig.loop.run()
    rig.log.commit()
    rig.loop.run()
    rig.log.commit()
    assert [wait for wait, jobs in rig.answers if jobs and jobs != ops.RESUME_QUEUE.number] == [
        first
    ]


def test_a_closed_rate_limit_wakes_the_fetches_when_it_opens(rig: Rig) -> None:
    """Nothing is proposed before, and then as many fetches as the limit lets pass."""
    rig.machine.opening_ns = rig.clock.now_ns + 3 * SECOND
    rig.machine.ready["q"] = 2
    rig.machine.jobs = [a_job("job_1"), a_job("job_2")]
    waits = [rig.fetch(wait_ns=10 * SECOND) for _ in range(3)]
    rig.loop.run()
    rig.loop.move(3 * SECOND - 1)
    rig.loop.run()
    assert rig.log.entries == [] and rig.pipeline.fetches.waiting.count == 3
    rig.loop.move(SECOND // 100)
    rig.loop.run()
    assert rig.log.numbers() == [ops.FETCH.number] * 2
    rig.log.commit()
    assert [wait for wait, _ in rig.answers] == waits[:2]


def test_the_first_limit_to_open_wakes_first(rig: Rig) -> None:
    rig.machine.opening_ns = rig.clock.now_ns + 5 * SECOND
    rig.machine.ready["a"] = rig.machine.ready["b"] = 1
    rig.fetch("a", wait_ns=10 * SECOND)
    rig.loop.run()
    rig.machine.opening_ns = rig.clock.now_ns + SECOND
    rig.fetch("b", wait_ns=10 * SECOND)
    rig.loop.run()
    rig.machine.ready["b"] = 0
    rig.machine.ready["a"] = 0
    rig.loop.move(2 * SECOND)
    rig.loop.run()
    assert rig.log.entries == []
    rig.machine.ready["a"] = 1
    rig.loop.move(4 * SECOND)
    rig.loop.run()
    assert rig.log.numbers() == [ops.FETCH.number]


def test_a_jump_of_the_clock_opens_a_rate_limit(rig: Rig) -> None:
    rig.machine.opening_ns = rig.clock.now_ns + 3_000 * SECOND
    rig.machine.ready["q"] = 1
    rig.fetch(wait_ns=10_000 * SECOND)
    rig.loop.run()
    rig.machine.opening_ns = rig.clock.now_ns
    rig.on_jump[0]()
    rig.loop.run()
    assert rig.log.entries == []  # it is looked at when it was to open, and not before
    rig.loop.move(3_001 * SECOND)
    rig.loop.run()
    assert rig.log.numbers() == [ops.FETCH.number]


def test_a_fetch_that_may_not_wait_is_answered_at_once(rig: Rig) -> None:
    wait = rig.fetch(wait_ns=0)
    rig.loop.run()
    assert rig.answers == [(wait, [])]
    assert rig.log.entries == []


def test_an_answer_that_fails_loses_no_other_fetch(rig: Rig) -> None:
    """A fetch that is taken in the same turn still becomes an op."""

    def fail(wait: Wait, jobs: Any) -> None:
        raise ValueError("not answered")

    rig.machine.ready["q"] = 1
    rig.fetch("q")
    rig.fetch("empty", wait_ns=0).answer = fail
    rig.loop.run()
    assert rig.log.numbers() == [ops.FETCH.number]


def test_a_fetch_gives_up_in_time(rig: Rig) -> None:
    wait = rig.fetch(wait_ns=2 * SECOND)
    rig.loop.run()
    rig.loop.move(SECOND)
    assert rig.answers == []
    rig.loop.move(SECOND + SECOND // 5)
    assert rig.answers == [(wait, [])]


def test_jobs_for_a_vanished_client_are_released(rig: Rig) -> None:
    wait = rig.fetch()
    rig.machine.ready["q"] = 1
    rig.machine.jobs = [a_job()]
    rig.loop.run()
    wait.request.abandoned = True
    rig.machine.ready["q"] = 0
    rig.log.commit()
    rig.loop.run()
    assert rig.answers == []  # the connection has answered already, if it could
    assert rig.log.numbers() == [ops.RELEASE.number]
    payload = decode_frame(rig.log.entries[-1].data)[1][1]
    assert decode_fields(ops.RELEASE.layout, payload) == ("job_1", "token", 0, b"", True)


def test_jobs_in_an_answer_that_was_not_sent_are_released(rig: Rig) -> None:
    wait = rig.fetch()
    rig.machine.ready["q"] = 1
    rig.machine.jobs = [a_job()]
    rig.loop.run()
    rig.machine.ready["q"] = 0
    rig.log.commit()
    assert len(rig.answers) == 1
    # The answer waited behind another one of its connection, and that is gone now.
    rig.pipeline.abandon(wait)
    rig.pipeline.abandon(wait)
    rig.loop.run()
    assert rig.log.numbers() == [ops.RELEASE.number]


def test_a_parked_fetch_of_a_vanished_client_takes_nothing(rig: Rig) -> None:
    wait = rig.fetch()
    rig.loop.run()
    rig.pipeline.abandon(wait)
    rig.machine.ready["q"] = 1
    rig.submit()
    rig.pipeline.expect("q", 1)
    rig.loop.run()
    assert rig.log.numbers() == [ops.ENQUEUE.number]


def test_new_jobs_are_refused_when_too_much_is_in_flight(rig: Rig) -> None:
    for _ in range(100):
        rig.submit()
    with pytest.raises(Overloaded) as refused:
        rig.submit()
    assert refused.value.fields["retry_after_ms"] > 0
    rig.submit(ops.ACK)
    rig.machine.write_buffer_size = limits.WRITE_BUFFER_SIZE_MAX + 1
    rig.loop.run()
    rig.log.commit()
    with pytest.raises(Overloaded):
        rig.submit()


def test_a_log_without_space_refuses_and_changes_nothing(rig: Rig) -> None:
    rig.log.refuse = DiskFull("no space")
    rig.submit(tag=1)
    rig.loop.run()
    assert [type(result) for _, result in rig.answers] == [DiskFull]
    rig.log.refuse = None
    rig.submit(tag=2)
    rig.loop.run()
    rig.log.commit()
    assert rig.answers[-1] == (2, ops.ENQUEUE.number)


def test_a_full_disk_under_the_base_is_not_fatal(rig: Rig) -> None:
    rig.machine.flush_error = DiskFull("no space")
    rig.submit()
    rig.loop.run()
    rig.log.commit()
    rig.loop.move(2 * SECOND)
    assert not rig.disk.ballast and rig.log.trimmed == 0
    with pytest.raises(DiskFull):
        rig.submit()
    rig.submit(ops.ACK, tag="ack")
    rig.loop.run()
    rig.log.commit()
    assert ("ack", ops.ACK.number) in rig.answers
    rig.machine.flush_error = None
    rig.loop.move(2 * SECOND)
    assert rig.disk.ballast
    rig.submit(tag="again")


def test_new_jobs_are_refused_before_the_disk_is_full(rig: Rig) -> None:
    rig.disk.free = limits.DISK_FREE_REFUSE - 1
    rig.loop.move(2 * SECOND)
    with pytest.raises(DiskFull):
        rig.submit()
    # A little more is not enough, or it would go back and forth.
    rig.disk.free = limits.DISK_FREE_REFUSE + 1
    rig.loop.move(2 * SECOND)
    with pytest.raises(DiskFull):
        rig.submit()
    rig.disk.free = 2 * limits.DISK_FREE_REFUSE
    rig.loop.move(2 * SECOND)
    rig.submit()


def test_the_base_is_flushed_when_idle_and_the_log_may_go(rig: Rig) -> None:
    rig.submit()
    rig.loop.run()
    rig.log.commit()
    assert rig.machine.flushes == 0
    rig.loop.move(SECOND)
    assert rig.machine.flushes == 1
    assert rig.log.trimmed == 1


def test_the_base_is_flushed_by_size_at_once(rig: Rig) -> None:
    rig.machine.write_buffer_records = limits.FLUSH_RECORDS
    rig.submit()
    rig.loop.run()
    rig.log.commit()
    assert rig.machine.flushes == 1


def test_a_large_flush_has_a_turn_of_its_own(rig: Rig) -> None:
    rig.machine.write_buffer_size = limits.FLUSH_SIZE
    rig.submit()
    rig.loop.run()
    rig.log.commit()
    assert rig.machine.flushes == 0
    rig.loop.move(0)
    assert rig.machine.flushes == 1


def dirty(rig: Rig, documents: int, ops_count: int = 1, throttled: bool = True) -> None:
    """An entry of so many ops leaves so many documents for the flush, while work goes on in the
    background."""
    rig.pipeline.flusher.throttled = throttled
    rig.machine.write_buffer_records = documents
    for _ in range(ops_count):
        rig.submit()
    rig.loop.run()
    rig.log.commit()


def test_a_background_flush_is_done_while_the_next_entry_is_written(rig: Rig) -> None:
    dirty(rig, limits.FLUSH_RECORDS_THROTTLED)
    assert rig.machine.flushes == 0, "not between an answer and the next entry"
    rig.submit()
    assert rig.machine.flushes == 0
    rig.loop.run()
    assert rig.log.busy and rig.machine.flushes == 1
    assert rig.log.trimmed == 1, "the state store has what was applied, not what is being written"
    rig.log.commit()
    rig.submit()
    rig.loop.run()
    assert rig.machine.flushes == 1, "nothing is dirty"


def test_a_background_flush_does_not_wait_for_ever(rig: Rig) -> None:
    dirty(rig, limits.FLUSH_RECORDS_THROTTLED)
    rig.loop.move(SECOND)
    assert rig.machine.flushes == 1
    rig.submit()
    rig.loop.run()
    assert rig.machine.flushes == 1


def test_few_documents_are_not_flushed_in_the_background_either(rig: Rig) -> None:
    dirty(rig, limits.FLUSH_RECORDS_THROTTLED - 2)  # the entry itself is one more
    rig.submit()
    rig.loop.run()
    assert rig.machine.flushes == 0


def test_small_entries_have_small_flushes(rig: Rig) -> None:
    dirty(rig, limits.FLUSH_RECORDS_LIGHT - 2, throttled=False)
    rig.submit()
    rig.loop.run()
    rig.log.commit()
    assert rig.machine.flushes == 0
    dirty(rig, limits.FLUSH_RECORDS_LIGHT, throttled=False)
    rig.submit()
    rig.loop.run()
    assert rig.log.busy and rig.machine.flushes == 1


def test_under_load_flushes_are_as_large_as_ever(rig: Rig) -> None:
    dirty(rig, limits.FLUSH_RECORDS_THROTTLED, limits.THROTTLED_OPS_MAX + 1)
    rig.submit()
    rig.loop.run()
    assert rig.machine.flushes == 0
    rig.log.commit()
    dirty(rig, limits.FLUSH_RECORDS)
    assert rig.machine.flushes == 1, "at once"


def test_a_background_flush_that_finds_no_space_is_tried_again(rig: Rig) -> None:
    dirty(rig, limits.FLUSH_RECORDS_THROTTLED)
    rig.machine.flush_error = DiskFull("no space left")
    rig.submit(ops.ACK)
    rig.loop.run()
    assert rig.pipeline.flusher.disk_full and rig.machine.flushes == 0
    assert not rig.pipeline.flusher.wanted, "not with every entry"
    rig.log.commit()
    rig.machine.flush_error = None
    rig.loop.move(2 * SECOND)
    assert rig.machine.flushes == 1 and not rig.pipeline.flusher.wanted


def test_a_write_that_does_not_come_back_has_an_unknown_outcome(rig: Rig) -> None:
    wait = rig.fetch(wait_ns=60 * SECOND)
    rig.machine.ready["q"] = 1
    rig.submit(tag=1)
    rig.loop.run()
    rig.loop.move(limits.OUTCOME_WAIT_NS + 3 * SECOND)
    assert [type(result) for tag, result in rig.answers if tag == 1] == [OutcomeUnknown]
    assert [type(result) for tag, result in rig.answers if tag is wait] == [OutcomeUnknown]
    # The disk comes back after all: nobody is answered twice, and the job is given back.
    rig.machine.jobs = [a_job()]
    answered = len(rig.answers)
    rig.log.commit()
    rig.loop.run()
    assert len(rig.answers) == answered
    assert rig.log.numbers() == [ops.RELEASE.number]


def test_an_apply_that_fails_stops_the_node(rig: Rig) -> None:
    errors: list[Exception] = []
    rig.pipeline.on_fatal = errors.append
    rig.machine.apply = lambda *_: 1 / 0  # type: ignore[method-assign,assignment]
    rig.submit(tag=1)
    rig.loop.run()
    rig.log.commit()
    assert [type(error) for error in errors] == [ZeroDivisionError]
    assert rig.answers == []
    with pytest.raises(NotReady):
        rig.submit()


def test_a_log_that_breaks_in_a_new_way_stops_the_node(rig: Rig) -> None:
    """Its entry is gone, and nobody in it would ever be answered."""
    errors: list[Exception] = []
    rig.pipeline.on_fatal = errors.append
    rig.log.refuse = ZeroDivisionError()
    rig.submit(tag=1)
    rig.loop.run()
    assert errors == [rig.log.refuse]


def test_drain_answers_who_waits_and_takes_nothing_new(rig: Rig) -> None:
    wait = rig.fetch()
    rig.loop.run()
    rig.pipeline.drain()
    assert rig.answers == [(wait, [])]
    with pytest.raises(NotReady):
        rig.submit()
    with pytest.raises(NotReady):
        rig.fetch()
    assert rig.pipeline.idle


def test_fetches_tried_in_vain_keep_their_order(rig: Rig) -> None:
    waits = [rig.fetch() for _ in range(3)]
    rig.machine.ready["q"] = 3
    rig.loop.run()
    assert rig.log.numbers() == [ops.FETCH.number] * 3
    rig.machine.ready["q"] = 0
    rig.log.commit()
    rig.loop.run()
    for number, wait in enumerate(waits, 1):
        rig.machine.jobs = [a_job(str(number))]
        rig.machine.ready["q"] = 1
        rig.machine.woken = ["q"]
        rig.submit(ops.RESUME_QUEUE)
        rig.loop.run()
        rig.log.commit()
        rig.loop.run()
        rig.machine.ready["q"] = 0
        rig.log.commit()
        assert rig.answers[-1][0] is wait


def test_a_fetch_served_by_its_other_queue_leaves_no_job_unseen(rig: Rig) -> None:
    rig.fetch("other", "q")
    second = rig.fetch("q")
    rig.loop.run()
    rig.machine.ready = {"q": 1, "other": 1}
    rig.machine.woken = ["q", "other"]
    rig.submit(ops.RESUME_QUEUE)
    rig.loop.run()
    rig.log.commit()
    rig.loop.run()
    # One fetch for the one job of "q"; it takes that of "other".
    assert rig.log.numbers() == [ops.FETCH.number]
    rig.machine.ready = {"q": 1}
    rig.machine.jobs = [a_job("other"), a_job("q")]
    rig.log.commit()
    rig.loop.run()
    rig.log.commit()
    assert rig.answers[-1][0] is second


def test_what_did_not_fit_is_not_forgotten_when_the_log_refuses(rig: Rig) -> None:
    for tag in range(3):
        rig.submit(ops.ACK, bytes(limits.ENTRY_SEAL_SIZE // 2 + 1), tag=tag)
    rig.log.refuse = DiskFull("no space")
    rig.loop.run()
    assert [tag for tag, _ in rig.answers] == [0, 1, 2]


@pytest.mark.parametrize("end", ["jobs", "none", "left"])
def test_an_answered_fetch_leaves_nothing_behind(rig: Rig, end: str) -> None:
    """No cycle of references, because those are collected late or never."""
    wait = rig.fetch()
    request = wait.request
    request.context = wait
    rig.loop.run()
    if end == "jobs":
        rig.machine.ready["q"] = 1
        rig.machine.jobs = [a_job()]
        rig.machine.woken = ["q"]
        rig.submit(ops.RESUME_QUEUE)
        for _ in range(2):
            rig.loop.run()
            rig.log.commit()
        assert rig.answers[-1][1] == wait.jobs
    elif end == "none":
        rig.loop.move(2 * SECOND)
        assert rig.answers == [(wait, [])]
    else:
        rig.pipeline.abandon(wait)
    rig.answers.clear()
    gone = weakref.ref(request)
    gc.disable()
    try:
        del request, wait
        assert gone() is None
    finally:
        gc.enable()


def test_a_fetch_tried_for_its_worker_to_be_seen_does_not_overtake(rig: Rig) -> None:
    first = rig.fetch()
    rig.loop.run()
    rig.machine.seen_ns = 0
    for _ in range(3):
        rig.fetch()
    rig.loop.run()
    assert rig.log.numbers() == [ops.FETCH.number]  # one is enough
    rig.log.commit()
    rig.machine.ready["q"] = 1
    rig.machine.jobs = [a_job()]
    rig.machine.woken = ["q"]
    rig.submit(ops.RESUME_QUEUE)
    for _ in range(2):
        rig.loop.run()
        rig.log.commit()
    assert [wait for wait, jobs in rig.answers if wait] == [first]


# Leadership comes and goes.


def follow(rig: Rig) -> list[Any]:
    """End the leadership; return the list of lost completions."""
    lost: list[Any] = []
    rig.pipeline.on_lost = lambda completion: lost.append(completion[1]) is None
    rig.pipeline.follow()
    return lost


def test_a_node_that_does_not_lead_accepts_nothing(rig: Rig) -> None:
    follow(rig)
    with pytest.raises(NoLeader):
        rig.submit()
    with pytest.raises(NoLeader):
        rig.fetch()
    rig.pipeline.lead()
    rig.submit(tag=1)
    rig.loop.run()
    rig.log.commit()
    assert rig.answers == [(1, ops.ENQUEUE.number)]


def test_what_was_not_proposed_and_who_waits_is_lost(rig: Rig) -> None:
    parked = rig.fetch()
    rig.loop.run()
    rig.submit(tag=1)
    lost = follow(rig)
    rig.loop.run()
    assert lost == [1, parked] and rig.answers == []
    assert rig.log.entries == [] and rig.pipeline.fetches.waiting.count == 0
    assert parked.state == DONE


def test_without_somebody_to_ask_again_it_is_refused(rig: Rig) -> None:
    parked = rig.fetch()
    rig.submit(tag=1)
    rig.pipeline.follow()
    assert [argument for argument, _ in rig.answers] == [1, parked]
    assert all(isinstance(answer, NoLeader) for _, answer in rig.answers)


def test_what_was_proposed_may_still_be_committed(rig: Rig) -> None:
    rig.submit(tag=1)
    rig.loop.run()
    lost = follow(rig)
    rig.log.commit()
    assert rig.answers == [(1, ops.ENQUEUE.number)] and lost == []


def test_another_entry_in_its_place(rig: Rig) -> None:
    rig.submit(tag=1)
    rig.submit(ops.ACK, tag=2)
    rig.loop.run()
    lost = follow(rig)
    frame = rig.log.entries[-1].data
    rig.log.entries[-1] = Entry(1, 2, frame)
    rig.log.commit()
    assert sorted(lost) == [1, 2] and rig.answers == []
    assert rig.pipeline.pending == 0
    assert rig.machine.write_buffer_records == 1, "it is applied like everywhere else"


def test_an_entry_that_takes_the_place_of_an_older_proposal(rig: Rig) -> None:
    """Cut off, it was overwritten, and this node leads again, before anything was committed."""
    rig.submit(tag=1)
    rig.loop.run()
    lost = follow(rig)
    rig.log.entries.clear()
    rig.log.busy = False
    rig.log.term = 3
    rig.pipeline.lead()
    rig.submit(tag=2)
    rig.loop.run()
    assert lost == [1]
    rig.log.commit()
    assert rig.answers == [(2, ops.ENQUEUE.number)]


def test_a_refusal_of_the_log_because_another_leads(rig: Rig) -> None:
    lost: list[Any] = []
    rig.pipeline.on_lost = lambda completion: lost.append(completion[1]) is None
    rig.log.refuse = NoLeader("no")
    rig.submit(tag=1)
    rig.loop.run()
    assert lost == [1] and rig.answers == []


def test_members_are_no_frame(rig: Rig) -> None:
    rig.log.on_committed([Entry(1, 1, b"members", CONFIGURATION)])
    assert rig.machine.configuration == b"members" and rig.machine.applied_index == 1


def test_a_snapshot_leaves_outcomes_unknown(rig: Rig) -> None:
    rig.submit(tag=1)
    rig.loop.run()
    follow(rig)
    rig.pipeline.restored(1)
    assert [(tag, type(answer)) for tag, answer in rig.answers] == [(1, OutcomeUnknown)]
    assert rig.pipeline.idle


def test_the_next_entry_need_not_wait_for_the_others(rig: Rig) -> None:
    """The own disk is done, the other nodes are not."""
    rig.submit(tag=1)
    rig.loop.run()
    rig.submit(tag=2)
    rig.log.busy = False
    rig.log.on_idle()
    rig.loop.run()
    assert len(rig.log.entries) == 2
    rig.log.on_committed(rig.log.entries)
    assert [tag for tag, _ in rig.answers] == [1, 2]


def test_a_stop_is_the_end_of_leading(rig: Rig) -> None:
    rig.pipeline.drain()
    rig.pipeline.lead()
    with pytest.raises(NotReady):
        rig.submit()

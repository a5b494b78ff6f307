"""What clients were told, and whether the state that a crash left agrees with it."""

import itertools
import json
import threading
from bisect import bisect_left
from collections import Counter

from corvo import events
from corvo.events import Event
from corvo.fsm.machine import Machine
from corvo.model import ACTIVE, COMPLETED, DELIVERY_UNKNOWN, FAILED, LEASE_EXPIRED, ErrorRecord, Job

BROKEN = ("jobs lost", "acks undone", "two live leases", "phantom attempts", "other")
_ENDS = (events.COMPLETED, events.FAILED, events.RELEASED, events.RECLAIMED)
_READ_MAX = 100_000


class Run:
    """One delivery that a worker got, and what it then did."""

    def __init__(self, job_id: str, token: str, fencing: int, attempt: int, worker: str) -> None:
        self.job_id = job_id
        self.token = token
        self.fencing = fencing
        self.attempt = attempt
        self.worker = worker
        self.touch_sent = False
        self.end = ""  # "ack", "fail" or "release", when it was sent
        self.ended = False  # and answered
        self.lost = False  # the server said that the lease is lost


class Known:
    """A job that a producer was told of."""

    def __init__(self, payload: str) -> None:
        self.payload = payload  # empty while only a worker was told
        self.runs: list[Run] = []
        self.checkpoint = 0  # the newest one that was answered
        self.acked: Run | None = None
        self.errors: list[str] = []  # texts of failures that were answered


class History:
    """Shared by all clients of a data directory, over all its lives."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.jobs: dict[str, Known] = {}
        self.keys: dict[str, str] = {}  # unique key -> job id; empty while nobody answered
        self.unsure: list[Run] = []  # acks without an answer, to be sent again
        self.held: list[Run] = []  # taken in an earlier life, to be finished in a later one
        self.boundaries: list[int] = []  # the last stamp of each life
        self.counts: Counter[str] = Counter()
        self.broken: list[tuple[str, str]] = []
        self.numbers = itertools.count(1)
        self.answers = 0

    def answered(self) -> None:
        """Somebody got an answer."""
        with self.lock:
            self.answers += 1

    def complain(self, kind: str, text: str) -> None:
        """A promise was broken."""
        assert kind in BROKEN
        self.broken.append((kind, text))

    def enqueued(self, job_id: str, payload: str) -> None:
        with self.lock:
            self.jobs.setdefault(job_id, Known("")).payload = payload
            self.counts["jobs"] += 1

    def keyed(self, key: str, job_id: str) -> None:
        """An enqueue with a unique key was answered, maybe not for the first time."""
        with self.lock:
            known = self.keys[key]
            if known and known != job_id:
                self.complain("jobs lost", f"key {key} was {known} and is {job_id}")
            self.keys[key] = job_id
        if not known:
            self.enqueued(job_id, f'"{key}"')

    def delivered(self, run: Run) -> None:
        with self.lock:
            self.counts["leases"] += 1
            known = self.jobs.setdefault(run.job_id, Known(""))
            if known.acked is not None and known.acked.fencing < run.fencing:
                self.complain("acks undone", f"{run.job_id} was delivered after its ack")
            known.runs.append(run)

    def acked(self, run: Run) -> None:
        with self.lock:
            known = self.jobs[run.job_id]
            if any(other.fencing > run.fencing for other in known.runs):
                self.complain("two live leases", f"{run.job_id}: an old token was taken")
            if known.acked is None:
                self.counts["acks"] += 1
            known.acked = run
            run.ended = True

    # The verdict.

    def check(self, machine: Machine) -> None:
        """Compare everything that was answered with a recovered state, at the end of a life."""
        self.boundaries.append(machine.stamp_ns)
        for job_id, known in self.jobs.items():
            job = machine.job(job_id)
            if job is None:
                self.complain("jobs lost", f"{job_id} is not there")
                continue
            if known.payload and job.payload.decode() != known.payload:
                self.complain("jobs lost", f"{job_id} has payload {job.payload!r}")
            self._check_outcome(job, known)
            errors = machine.errors(job_id, _READ_MAX)
            if set(known.errors) - {json.loads(e.error) for e in errors if e.kind == FAILED}:
                self.complain("acks undone", f"{job_id} lacks an error that was answered")
            self._check_leases(job, known, machine.events(job_id, _READ_MAX), errors)

    def _check_outcome(self, job: Job, known: Known) -> None:
        if known.acked is not None:
            result = b'"%s"' % known.acked.token.encode()
            if job.state != COMPLETED or job.result != result:
                self.complain("acks undone", f"{job.id} is in state {job.state} after its ack")
        if known.checkpoint > int(job.checkpoint or b"0"):
            self.complain("acks undone", f"{job.id} lost checkpoint {known.checkpoint}")
        for run in known.runs:
            live = job.state == ACTIVE and job.fencing == run.fencing
            if run.ended and live:
                self.complain("acks undone", f"{job.id}: {run.end} of {run.token} is undone")
            if job.fencing < run.fencing:
                self.complain("acks undone", f"{job.id}: delivery {run.fencing} is undone")

    def _check_leases(
        self, job: Job, known: Known, changes: list[Event], errors: list[ErrorRecord]
    ) -> None:
        """Go through the life of a job lease by lease."""
        runs = sorted(known.runs, key=lambda run: run.fencing)
        silent = iter(e for e in errors if e.kind in (LEASE_EXPIRED, DELIVERY_UNKNOWN))
        begun: Event | None = None
        run: Run | None = None
        attempts = 0
        for event in changes:
            if event.type == events.STARTED:
                attempts += 1
                if begun is not None:
                    self.complain("two live leases", f"{job.id} has two leases at once")
                begun = event
                run = _pop_run(runs, event)
                if json.loads(event.data)["attempt"] != attempts:
                    self.complain("phantom attempts", f"{job.id}: {event.data!r} is no {attempts}.")
                continue
            expired = b"lease_expired" in event.data or b"delivery_unknown" in event.data
            if event.type in _ENDS or (event.type == events.DEAD and expired):
                assert begun is not None, "a lease ended that never began"
                if expired:
                    attempts -= self._check_silence(next(silent), begun, event, run)
                elif event.type == events.RELEASED:
                    attempts -= 1
                self._check_end(job, event, expired, run)
                begun = None
        if (begun is not None) != (job.state == ACTIVE):
            self.complain("other", f"{job.id}: state {job.state} does not fit its events")
        if job.attempt != attempts:
            self.complain("phantom attempts", f"{job.id}: attempt {job.attempt}, not {attempts}")
        if runs:
            self.complain("acks undone", f"{job.id}: {len(runs)} deliveries left no event")

    def _check_end(self, job: Job, event: Event, expired: bool, run: Run | None) -> None:
        """A lease that its worker knew ended as the worker said, or in silence."""
        if run is None:
            if not expired and event.type != events.RELEASED:
                self.complain("two live leases", f"{job.id} was ended by nobody")
            return
        names = {events.COMPLETED: "ack", events.FAILED: "fail", events.RELEASED: "release"}
        if not expired and names[event.type] != run.end:
            self.complain("other", f"{job.id}: {run.end or 'nothing'} became {event.type}")
        if expired and run.ended:
            self.complain("acks undone", f"{job.id}: {run.end} was answered, the lease expired")

    def _check_silence(
        self, record: ErrorRecord, begun: Event, ended: Event, run: Run | None
    ) -> int:
        """How many attempts the end of a silent lease must give back."""
        restored = record.kind == DELIVERY_UNKNOWN
        older = self._life(begun.at_ns) < self._life(ended.at_ns)
        touched = run is not None and run.touch_sent
        if older and not touched and not restored:
            self.complain("phantom attempts", f"{begun.job_id}: a phantom lease cost an attempt")
        if restored and not older:
            self.complain("other", f"{begun.job_id}: an attempt of this life was restored")
        self.counts["restored" if restored else "expired"] += 0 if self._seen(ended) else 1
        return int(restored)

    def _life(self, at_ns: int) -> int:
        return bisect_left(self.boundaries, at_ns)

    def _seen(self, event: Event) -> bool:
        """Whether an earlier check has counted this event."""
        return self._life(event.at_ns) < len(self.boundaries) - 1


def _pop_run(runs: list[Run], started: Event) -> Run | None:
    """The delivery that a started event led to, if a worker got it."""
    data = json.loads(started.data)
    if runs and (runs[0].attempt, runs[0].worker) == (data["attempt"], data["worker_id"]):
        return runs.pop(0)
    return None

"""What many waiting jobs cost: start, memory, and time per operation.

    python bench/scale.py --jobs 1000,1000000,10000000 --queues 1
    python bench/scale.py --jobs 1000,1000000 --state scheduled

`--state` is what the jobs wait for: pending, scheduled, retrying, unique (pending, and each holds a
unique key; the operations then use such keys too) or grouped (pending, and each is a group of its
own, at most one of which may be active). `--state outcomes` has no jobs, but so many outcomes of
requests with an Idempotency-Key, and sends such keys. `--payload` is the size of the payloads in
bytes, of the jobs that wait and of those that are enqueued.

For each number a base is filled directly with its documents (through the server, as it is with
groups, it would take minutes), a real server is started on it, and single fetches, acks and
enqueues go through plain HTTP on one connection. Times per operation are CPU of the server process,
which other work on the machine disturbs least; compare rows of one run with each other.
"""

import argparse
import http.client
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from hashlib import blake2b
from pathlib import Path
from typing import Any

from corvo import limits
from corvo._fast.codec import keys
from corvo.fsm.ops import idempotency
from corvo.fsm.state import index_rows
from corvo.model import PENDING, RETRYING, SCHEDULED, Enqueued, Job, Queue
from corvo.platform.files import Files
from corvo.platform.ids import JobIds
from corvo.storage.data_dir import DataDir, Identity
from corvo.storage.lmdb import StateStore
from corvo.storage.records import jobs as job_records
from corvo.storage.records import queues as queue_records
from corvo.storage.records.meta import Meta, decode_meta, encode_meta

STEP = 20_000
OPERATIONS = 5_000
STAMP_NS = 1_760_000_000_000_000_000


STATES = {
    "pending": PENDING,
    "scheduled": SCHEDULED,
    "retrying": RETRYING,
    "unique": PENDING,
    "grouped": PENDING,
    "outcomes": SCHEDULED,  # nothing to fetch
}
DUE_NS = 4_000_000_000_000_000_000  # far ahead
IDLE_S = 10


def payload_of(size: int) -> dict[str, Any]:
    """A payload of that many bytes, or of few more."""
    payload = {"user": 12345, "template": "welcome", "text": ""}
    payload["text"] = "x" * (size - len(json.dumps(payload)))
    return payload


def fill(
    data_dir: Path, jobs: int, queues: int, kind: str = "pending", payload: bytes = b"{}"
) -> None:
    """A base with `jobs` waiting jobs, spread over `queues` in turn."""
    identity = Identity(os.urandom(16).hex(), "node-1", os.urandom(8).hex())
    DataDir(str(data_dir), identity, Files()).close()
    state_store = StateStore.open(data_dir)
    ids = JobIds(os.urandom)
    queue_indexes = [Queue(number, f"scale-{number}") for number in range(1, queues + 1)]
    for queue in queue_indexes:
        queue.created_ns = STAMP_NS
    for start in range(0, jobs, STEP):
        rows = []
        for position in range(start, min(start + STEP, jobs)):
            queue = queue_indexes[position % queues]
            job = Job(ids.new(STAMP_NS + position * 1000))
            job.payload = payload
            job.body_apart = len(payload) > limits.PART_INSIDE_SIZE_MAX
            job.queue_number, job.seq, job.state = queue.number, queue.next_seq, STATES[kind]
            job.created_ns = job.ready_ns = STAMP_NS
            job.event_seq = 1
            if job.state != PENDING:
                job.scheduled_ns = DUE_NS + position * 1000
            if kind == "unique":
                job.unique_key = b"key-%d" % position
            queue.next_seq += 1
            queue.enqueued_total += 1
            queue.counts[job.state * 3 + job.priority] += 1
            rows.append((keys.job(job.id), job_records.encode_head(job)))
            if job.body_apart:
                rows.append((keys.body(job.id), job_records.encode_body(job)))
            rows.append((index_rows.index_key(job), index_rows.index_value(job)))
            if kind == "unique":
                rows.append(lock_row(job))
        state_store.write(rows, [])
        progress(f"filling: {min(start + STEP, jobs):,} of {jobs:,} jobs")
    meta = Meta()
    meta.stamp_ns = STAMP_NS + jobs * 1000
    meta.event_seq, meta.event_first_seq = 1, 2
    meta.next_queue_number = queues + 1
    rows = [(keys.queue(queue.name), queue_records.encode_queue(queue)) for queue in queue_indexes]
    state_store.write([*rows, (keys.META, encode_meta(meta))], [])
    state_store.close()


def fill_groups(data_dir: Path, jobs: int) -> None:
    """The same with as many groups of one job each, through a server."""
    fill(data_dir, 0, 1)
    server = Server(data_dir)
    server.post("/queues/scale-1/groups", {"concurrency": 1})
    for start in range(0, jobs, 5_000):
        numbers = range(start, min(start + 5_000, jobs))
        many = [{"queue": "scale-1", "group_key": f"group-{number}"} for number in numbers]
        server.post("/enqueue/batch", {"jobs": many})
        progress(f"filling: {numbers.stop:,} of {jobs:,} jobs")
    server.stop()


def fill_outcomes(data_dir: Path, count: int) -> None:
    """The same with outcomes of enqueues instead of jobs."""
    fill(data_dir, 0, 1)
    state_store = StateStore.open(data_dir)
    row = state_store.get(keys.META)
    assert row is not None
    meta = decode_meta(row)
    outcome = idempotency.encode_outcome(Enqueued("job_01ARZ3NDEKTSV4RRFFQ69G5FAV", 0, False, b""))
    for start in range(0, count, STEP):
        rows = []
        for number in range(start + 1, min(start + STEP, count) + 1):
            key = b"key-%d" % number
            digest = idempotency.digest_of(key)
            stored = job_records.encode_idempotency(digest, STAMP_NS, key, bytes(16), outcome)
            rows.append((keys.replay(number), stored))
        state_store.write(rows, [])
    meta.next_idempotency = count + 1
    state_store.write([(keys.META, encode_meta(meta))], [])
    state_store.close()


def lock_row(job: Job) -> tuple[bytes, bytes]:
    """The row of the job's unique lock."""
    digest = blake2b(job.unique_key, digest_size=keys.HASH_SIZE).digest()
    lock = job_records.encode_lock(job.id, 0, job.unique_key)
    return keys.unique(job.queue_number, digest), lock


def progress(text: str) -> None:
    """A line that replaces itself, on a terminal only."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")


class Server:
    """A server on a filled data directory."""

    def __init__(self, data_dir: Path) -> None:
        began = time.perf_counter()
        command = [sys.executable, "-m", "corvo", "server", "--data-dir", str(data_dir)]
        self.process = subprocess.Popen(
            [*command, "--no-mirror", "--bind", "127.0.0.1:0"], stderr=subprocess.PIPE, text=True
        )
        assert self.process.stderr is not None
        for line in self.process.stderr:
            found = re.search(r'server ready.*bind="?127\.0\.0\.1:(\d+)', line)
            if found:
                break
        else:
            raise SystemExit("the server did not start")
        self.start_s = time.perf_counter() - began
        self.connection = http.client.HTTPConnection("127.0.0.1", int(found.group(1)))

    def post(self, path: str, body: Any, key: str = "") -> Any:
        """One request, with an Idempotency-Key if there is one; the answer."""
        headers = {"Idempotency-Key": key} if key else {}
        self.connection.request("POST", "/api/v1" + path, json.dumps(body), headers)
        reply = self.connection.getresponse()
        text = reply.read()
        assert reply.status in (200, 201, 202), (path, reply.status, text)
        return json.loads(text)

    def cpu_s(self) -> float:
        """CPU time of all its threads."""
        with open(f"/proc/{self.process.pid}/stat") as stat:
            fields = stat.read().rsplit(") ", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def anonymous_mb(self) -> float:
        """Memory that is not backed by a file."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"RssAnon:\s+(\d+) kB", status)
        assert found
        return int(found.group(1)) / 1024

    def stop(self) -> None:
        """SIGTERM."""
        self.process.terminate()
        self.process.wait(60)


def measure(jobs: int, queues: int, size: int, folder: Path, kind: str) -> list[str]:
    """One row of the table."""
    data_dir = folder / "data"
    if kind == "grouped":
        fill_groups(data_dir, jobs)
    elif kind == "outcomes":
        fill_outcomes(data_dir, jobs)
    else:
        fill(data_dir, jobs, queues, kind, json.dumps(payload_of(size)).encode())
    size_mb = (data_dir / "state" / "data.mdb").stat().st_size / (1 << 20)
    server = Server(data_dir)
    start_mb = server.anonymous_mb()
    names = [f"scale-{number}" for number in range(1, queues + 1)]
    count = min(OPERATIONS, jobs) if STATES[kind] == PENDING else OPERATIONS
    keyed = kind == "outcomes"
    payload = payload_of(size)
    times = []
    tokens = []

    def timed(operation: Any) -> None:
        before = server.cpu_s()
        for number in range(count):
            operation(number)
        times.append((server.cpu_s() - before) / count * 1e6)

    def fetch(number: int) -> None:
        job = server.post("/fetch", {"queues": [names[number % queues]], "timeout": 0})
        tokens.append((job["job_id"], job["lease_token"]))

    def ack(number: int) -> None:
        job_id, token = tokens[number]
        server.post(f"/ack/{job_id}", {"lease_token": token}, job_id if keyed else "")

    def enqueue(number: int) -> None:
        body = {"queue": names[number % queues], "payload": payload}
        if kind == "unique":
            body["unique_key"] = f"new-{number}"
        if kind == "grouped":
            body["group_key"] = f"group-{number}"
        server.post("/enqueue", body, f"new-{number}" if keyed else "")

    # Without a job that is ready there is nothing to fetch before the enqueues.
    order = [fetch, ack, enqueue] if STATES[kind] == PENDING else [enqueue, fetch, ack]
    for operation in order:
        timed(operation)
    if order[0] == enqueue:
        times.append(times.pop(0))
    before = server.cpu_s()
    time.sleep(IDLE_S)
    idle = (server.cpu_s() - before) / IDLE_S
    end_mb = server.anonymous_mb()
    server.stop()
    again = Server(data_dir)
    restart_s = again.start_s
    again.stop()
    shutil.rmtree(data_dir)
    return [
        f"{jobs:,}",
        f"{queues:,}",
        f"{size:,}",
        f"{size_mb:,.0f}",
        f"{server.start_s:.2f}",
        f"{restart_s:.2f}",
        f"{start_mb:.0f}",
        f"{end_mb:.0f}",
        *(f"{time_us:.0f}" for time_us in times),
        f"{idle:.1%}",
    ]


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--jobs", default="1000,1000000", help="numbers of waiting jobs")
    parser.add_argument("--queues", default="1", help="numbers of queues")
    parser.add_argument("--payload", default="150", help="bytes of a payload")
    parser.add_argument("--state", default="pending", choices=STATES, help="what jobs wait for")
    parser.add_argument("--folder", help="where the data goes (default: a temporary folder)")
    arguments = parser.parse_args()
    heads = ["jobs", "queues", "payload", "file MB", "start s", "restart s", "anon MB", "after MB"]
    heads += ["fetch us", "ack us", "enqueue us", "idle CPU"]
    print("| " + " | ".join(heads) + " |")
    print("| " + " | ".join("---:" for _ in heads) + " |")
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        for queues in arguments.queues.split(","):
            for jobs in arguments.jobs.split(","):
                for size in arguments.payload.split(","):
                    numbers = int(jobs), int(queues), int(size)
                    row = measure(*numbers, Path(folder), arguments.state)
                    progress("")
                    print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()

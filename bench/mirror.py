"""What the mirror costs and how fast it answers, with many jobs.

    python bench/mirror.py --jobs 1000000

A base is filled directly with jobs (20 queues, 8 states, 50 tags, one error text in a hundred), a
real server is started on it, and its sidecar builds the mirror. Then come facets, filters and
pages over HTTP on one connection, and at last lives (enqueue, fetch, ack) in batches while the
mirror follows. CPU is that of the sidecar process, which other work on the machine disturbs least.
"""

import argparse
import http.client
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from corvo._fast.codec import keys
from corvo.fsm.state import index_rows
from corvo.limits import SECOND_NS
from corvo.model import (
    ACTIVE,
    COMPLETED,
    ENDED,
    HELD,
    PRIORITIES,
    STATES,
    ErrorRecord,
    Job,
    JobOptions,
    Queue,
)
from corvo.platform.files import Files
from corvo.platform.ids import JobIds
from corvo.storage.data_dir import DataDir, Identity
from corvo.storage.lmdb import StateStore
from corvo.storage.records import jobs as job_records
from corvo.storage.records import queues as queue_records
from corvo.storage.records.meta import Meta, encode_meta

STEP = 20_000
QUEUES = 20
TAGS = 50
FAR_NS = 4_000_000_000_000_000_000
ROUNDS = 200


def fill(data_dir: Path, count: int, states: list[int] | None = None) -> None:
    """A base with that many jobs; `states` are those of the jobs in turn, else any."""
    identity = Identity(os.urandom(16).hex(), "node-1", os.urandom(8).hex())
    DataDir(str(data_dir), identity, Files()).close()
    state_store = StateStore.open(data_dir)
    ids = JobIds(os.urandom)
    chance = random.Random(1)
    queues = [Queue(number, f"queue-{number:02}") for number in range(1, QUEUES + 1)]
    began_ns = time.time_ns() - count * 1_000
    for start in range(0, count, STEP):
        rows: list[tuple[bytes, bytes]] = []
        for position in range(start, min(start + STEP, count)):
            stamp_ns = began_ns + position * 1_000
            state = chance.randrange(len(STATES)) if states is None else states[position]
            job = _job(ids.new(stamp_ns), position, stamp_ns, chance, queues, state)
            rows.append((keys.job(job.id), job_records.encode_head(job)))
            rows.append((keys.body(job.id), job_records.encode_body(job)))
            rows.append((index_rows.index_key(job), index_rows.index_value(job)))
            if job.options is not None:
                rows.append((keys.options(job.id), job_records.encode_options(job.options)))
            if job.error_count:
                record = ErrorRecord(1, 0, b'"SMTP: connection refused"', b"", stamp_ns)
                rows.append((keys.error(job.id, 0), job_records.encode_error(record)))
        state_store.write(rows, [])
    meta = Meta()
    meta.stamp_ns = time.time_ns()
    meta.next_queue_number = QUEUES + 1
    meta.fencing = count
    queue_indexes = [
        (keys.queue(queue.name), queue_records.encode_queue(queue)) for queue in queues
    ]
    state_store.write([(keys.META, encode_meta(meta)), *queue_indexes], [])
    state_store.close()


def _job(
    job_id: str,
    position: int,
    stamp_ns: int,
    chance: random.Random,
    queues: list[Queue],
    state: int,
) -> Job:
    job = Job(job_id)
    queue = chance.choice(queues)
    job.queue_number, job.seq = queue.number, queue.next_seq
    queue.next_seq += 1
    job.state = state
    job.priority = chance.randrange(PRIORITIES)
    queue.counts[job.state * PRIORITIES + job.priority] += 1
    job.created_ns = job.ready_ns = stamp_ns
    job.payload = b'{"user":%d,"template":"welcome","amount":%d,"text":"%b"}' % (
        position,
        chance.randrange(1_000),
        b"lorem ipsum dolor " * 4,
    )
    job.tags = b'{"tenant":"t%d"}' % chance.randrange(TAGS)
    job.max_retries = 3
    if job.state == ACTIVE:
        job.attempt, job.fencing, job.worker_id = 1, position + 1, f"worker-{position % 100}"
        job.started_ns, job.lease_ns, job.lease_expires_ns = stamp_ns, SECOND_NS, FAR_NS
        job.lease_touched = True
    elif job.state == HELD:
        job.has_options, job.options = True, JobOptions()
        job.options.hold_reason = "look at it"
    elif ENDED[job.state]:
        job.attempt, job.started_ns = 1, stamp_ns
        if job.state == COMPLETED:
            job.completed_ns = stamp_ns
        else:
            job.failed_ns = stamp_ns
    elif STATES[job.state] in ("scheduled", "retrying"):
        job.scheduled_ns = FAR_NS
    if position % 100 == 0:
        job.error_count = 1
    return job


class Client:
    """One connection."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The decoded answer."""
        data = None if body is None else json.dumps(body)
        try:
            self._connection.request(method, "/api/v1" + path, data)
        except OSError:
            self._connection.close()
            raise
        response = self._connection.getresponse()
        raw = response.read()
        if response.status >= 300:
            raise SystemExit(f"{method} {path}: {response.status} {raw[:300]!r}")
        return json.loads(raw) if raw else None

    def mirror(self) -> dict[str, Any]:
        """What the status says about the mirror."""
        status = self.ask("GET", "/cluster/status")
        return {**status["sqlite_mirror"], **status["sqlite_rebuild"]}


def cpu_s(pid: int) -> float:
    """Processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(client: Client, name: str, method: str, path: str, bodies: list[Any]) -> None:
    """Latencies of requests, seen by the client, and the mirror's own time."""
    took: list[float] = []
    own: list[float] = []
    for body in bodies:
        began = time.perf_counter()
        answer = client.ask(method, path, body)
        took.append((time.perf_counter() - began) * 1000)
        own.append(answer["duration_ms"])
    took.sort()
    own.sort()
    cells = [took[len(took) // 2], took[len(took) * 99 // 100], own[len(own) // 2]]
    cells.append(own[len(own) * 99 // 100])
    print(f"{name:44}" + "".join(f"{cell:10.2f}" for cell in cells), flush=True)


def filters(chance: random.Random) -> dict[str, list[dict[str, Any]]]:
    """Filters to measure, by name."""

    def some(make: Any) -> list[dict[str, Any]]:
        return [make() for _ in range(ROUNDS)]

    def queue() -> str:
        return f"queue-{chance.randrange(1, QUEUES + 1):02}"

    def tag() -> dict[str, str]:
        return {"tenant": f"t{chance.randrange(TAGS)}"}

    def state() -> str:
        return chance.choice(STATES)

    return {
        "no filter": some(dict),
        "state": some(lambda: {"state": state()}),
        "three states": some(lambda: {"state": chance.sample(STATES, 3)}),
        "queue": some(lambda: {"queue": queue()}),
        "queue, state": some(lambda: {"queue": queue(), "state": state()}),
        "queue, state, priority": some(
            lambda: {"queue": queue(), "state": state(), "priority": chance.randrange(3)}
        ),
        "tag": some(lambda: {"tags": tag()}),
        "queue, state, tag": some(lambda: {"queue": queue(), "state": state(), "tags": tag()}),
        "worker": some(lambda: {"worker_id": f"worker-{chance.randrange(100)}"}),
        "errors": some(lambda: {"has_errors": True, "queue": queue()}),
        "payload_jq in queue, state": some(
            lambda: {"queue": queue(), "state": state(), "payload_jq": ".amount > 900"}
        ),
    }


def lives(client: Client, count: int) -> None:
    """Lives in batches, and how long the mirror needs to have them all."""
    pid = client.mirror()["pid"]
    began, used = time.perf_counter(), cpu_s(pid)
    for _ in range(0, count, 500):
        jobs = [{"queue": "lives", "payload": {"n": n}} for n in range(500)]
        client.ask("POST", "/enqueue/batch", {"jobs": jobs})
        taken = client.ask("POST", "/fetch/batch", {"queues": ["lives"], "count": 500})["jobs"]
        acks = [{"job_id": job["job_id"], "lease_token": job["lease_token"]} for job in taken]
        client.ask("POST", "/ack/batch", {"acks": acks})
    served = time.perf_counter() - began
    index = client.ask("GET", "/cluster/status")["applied_index"]
    while client.mirror()["applied"] < index - 1:
        time.sleep(0.01)
    took = time.perf_counter() - began
    print(f"{count} lives: served in {served:.1f} s, mirrored in {took:.1f} s", end="")
    print(f", CPU of the sidecar {cpu_s(pid) - used:.1f} s", flush=True)


def main() -> None:
    """Fill, start, measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--lives", type=int, default=100_000)
    parser.add_argument("--port", type=int, default=18_097)
    parser.add_argument("--data-dir", type=Path, help="fill it once, and keep it")
    parser.add_argument("--split", action="store_true", help="server and sidecar on one core each")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp())
    data_dir = options.data_dir or directory / "data"
    if not data_dir.exists():
        fill(data_dir, options.jobs)
    shutil.rmtree(data_dir / "mirror", ignore_errors=True)
    command = [sys.executable, "-m", "corvo", "server", "--data-dir", str(data_dir)]
    server = subprocess.Popen([*command, "--bind", f"127.0.0.1:{options.port}"])
    if options.split:
        subprocess.run(["taskset", "-a", "-c", "-p", "0", str(server.pid)], check=True)
    try:
        run(Client(options.port), options)
    finally:
        server.terminate()
        server.wait()
        shutil.rmtree(directory)


def run(client: Client, options: argparse.Namespace) -> None:
    """Measure a server that was just started."""
    while True:
        try:
            state = client.mirror()
        except OSError:
            time.sleep(0.1)
            continue
        if options.split and state.get("pid"):
            move = ["taskset", "-a", "-c", "-p", "1", str(state["pid"])]
            subprocess.run(move, check=True, stdout=subprocess.DEVNULL)
        if state.get("available"):
            break
        time.sleep(0.1)
    rate = options.jobs / max(1, state["last_duration_ms"]) * 1000
    used = cpu_s(state["pid"])
    print(f"built in {state['last_duration_ms']} ms: {rate:.0f} jobs/s;", end=" ")
    print(f"CPU {used:.1f} s: {options.jobs / used:.0f} jobs per CPU second;", end=" ")
    print(f"{state['file_size'] / options.jobs:.0f} bytes a job", flush=True)
    print(f"{'milliseconds':44}{'p50':>10}{'p99':>10}{'own p50':>10}{'own p99':>10}")
    chance = random.Random(2)
    by = ["state", "queue", "priority", "tag:tenant"]
    searches = filters(chance)
    for name in ("no filter", "state", "queue, state", "tag"):
        bodies = [{"filter": filter, "by": by} for filter in searches[name]]
        measure(client, f"facets: {name}", "POST", "/jobs/facets", bodies)
    for name, bodies in searches.items():
        measure(client, f"search: {name}", "POST", "/jobs/search", bodies)
    cursor = ""
    pages: list[dict[str, Any]] = []
    for _ in range(500):
        body = {"state": ["completed", "dead"], "limit": 200, "cursor": cursor}
        pages.append(body)
        cursor = client.ask("POST", "/jobs/search", body).get("cursor", "")
    measure(client, "page 1 to 50", "POST", "/jobs/search", pages[:50])
    measure(client, "page 450 to 500", "POST", "/jobs/search", pages[450:])
    lives(client, options.lives)


if __name__ == "__main__":
    main()

"""The main story: 10,000 jobs of mixed kinds, a worker in curl and workers in Python, and a server
that is killed with -9 three times. Every job ends in the state its kind asks for."""

import json
import subprocess
import sys
import threading
from collections import Counter
from datetime import UTC, datetime, timedelta
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest
from lib.harness import Api, ServerProcess, advance, running_server

JOBS = 10_000
QUEUE = "story"
KINDS = (
    "succeed",
    "succeed",
    "succeed",
    "succeed",
    "retry",
    "die",
    "scheduled",
    "release",
    "cancel",
    "shelve",
)
# Final state and number of runs used up.
ENDS = {
    "succeed": ("completed", 1),
    "scheduled": ("completed", 1),
    "retry": ("completed", 2),
    "die": ("dead", 2),
    "release": ("completed", 1),
    "cancel": ("cancelled", 1),
    "shelve": ("cancelled", 0),
}
# Of the jobs that the Python workers finish; the curl worker's are not counted on the way.
KILLS_AT = (JOBS * 15 // 100, JOBS * 35 // 100, JOBS * 55 // 100)
WORKERS = (1, 20, 50)  # jobs per fetch


def write_jobs(path: Path) -> None:
    """The input: one enqueue body a line. A unique key makes each safe to send again."""
    due = (datetime.now(UTC) + timedelta(seconds=2)).isoformat()
    later = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    with path.open("w") as out:
        for number in range(JOBS):
            kind = KINDS[number % len(KINDS)]
            job: dict[str, Any] = {
                "queue": QUEUE,
                "payload": {"kind": kind, "number": number},
                "unique_key": f"job-{number}",
                "unique_until": "period",
                "unique_period": 3600,
                "retry_backoff": "none",
                "max_retries": 2 if kind in ("die", "retry") else 1,
            }
            if kind == "scheduled":
                job["scheduled_at"] = due
            if kind == "shelve":
                job["scheduled_at"] = later
            out.write(json.dumps(job) + "\n")


class Client:
    """Calls that go on until the server has answered, over its restarts."""

    def __init__(self, server: ServerProcess, up: threading.Event) -> None:
        self._server = server
        self._up = up
        self._api = server.api()

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        while True:
            self._up.wait()
            try:
                status, answer = self._api.call(method, path, body)
            except (OSError, HTTPException):
                self._api = Api(self._server.port)
                continue
            if status != 503:
                return status, answer


class Story:
    """Runs the workers and counts what they have finished."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.up = threading.Event()
        self.up.set()
        self.stop = threading.Event()
        self.ended = threading.Condition()
        self.ended_count = 0
        self.surprises: list[Any] = []
        self._threads: list[threading.Thread] = []
        self._curl: subprocess.Popen[bytes] | None = None
        self._curl_stop = server.data_dir.parent / "stop"

    def start_workers(self) -> None:
        """One worker in curl, three in Python."""
        self.stop.clear()
        self._curl_stop.unlink(missing_ok=True)
        script = Path(__file__).with_name("curl_worker.sh")
        arguments = [str(script), self.server.url, QUEUE, str(self._curl_stop)]
        self._curl = subprocess.Popen(arguments)
        self._threads = [
            threading.Thread(target=self.work, args=(f"py-{size}", size), daemon=True)
            for size in WORKERS
        ]
        for thread in self._threads:
            thread.start()

    def stop_workers(self) -> None:
        """Let the workers finish what they hold."""
        self.stop.set()
        self._curl_stop.touch()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()
        if self._curl is not None:
            self._curl.wait(60)

    def _note(self, count: int = 1) -> None:
        with self.ended:
            self.ended_count += count
            self.ended.notify_all()

    def produce(self, lines: list[str], ids: dict[int, str]) -> None:
        """Enqueue in batches; shelved jobs are cancelled at once."""
        client = Client(self.server, self.up)
        for start in range(0, len(lines), 100):
            jobs = [json.loads(line) for line in lines[start : start + 100]]
            status, answer = client.call("POST", "/enqueue/batch", {"jobs": jobs})
            assert status == 201, answer
            for job, job_id in zip(jobs, answer["job_ids"], strict=True):
                ids[job["payload"]["number"]] = job_id
                if job["payload"]["kind"] == "shelve":
                    status, answer_ = client.call("POST", f"/jobs/{job_id}/cancel", {})
                    if status != 200 and answer_.get("state") != "cancelled":
                        self.surprises.append(("shelve", status, answer_))
                    self._note()

    def work(self, name: str, count: int) -> None:
        """A worker: fetches up to `count` jobs at a time and does what they say."""
        client = Client(self.server, self.up)
        while not self.stop.is_set():
            body = {"queues": [QUEUE], "worker_id": name, "timeout": 1, "lease_duration": 5}
            if count > 1:
                _, answer = client.call("POST", "/fetch/batch", {**body, "count": count})
                jobs = answer["jobs"]
            else:
                status, answer = client.call("POST", "/fetch", body)
                jobs = [answer] if status == 200 else []
            for job in jobs:
                self._do(client, job)

    def _do(self, client: Client, job: dict[str, Any]) -> None:
        kind = job["payload"]["kind"]
        token = {"lease_token": job["lease_token"]}
        path = job["job_id"]
        first = job["attempt"] == 1
        if kind == "die" or (kind == "retry" and first):
            status, answer = client.call("POST", f"/fail/{path}", {**token, "error": "no"})
            final = kind == "die" and not first
        elif kind == "release" and "checkpoint" not in job:
            body = {**token, "checkpoint": {"seen": 1}}
            status, answer = client.call("POST", f"/release/{path}", body)
            final = False
        elif kind == "cancel":
            client.call("POST", f"/jobs/{path}/cancel", {})
            status, answer = client.call("POST", f"/fail/{path}", {**token, "error": "stopped"})
            final = True
        else:
            status, answer = client.call("POST", f"/ack/{path}", {**token, "result": kind})
            final = True
        # A lease lost to a restart is normal; the job comes again.
        if status not in (200, 409):
            self.surprises.append((kind, status, answer))
        if final and status == 200:
            self._note()

    def wait_for(self, count: int, timeout_s: float) -> None:
        with self.ended:
            assert self.ended.wait_for(lambda: self.ended_count >= count, timeout_s), (
                self.ended_count,
                self.surprises[:5],
            )


def open_jobs(api: Api) -> tuple[int, int]:
    """Jobs that can run now, and jobs that are leased or wait for their time."""
    queue = api.ok("GET", f"/queues/{QUEUE}")
    return queue["pending"], queue["active"] + queue["scheduled"] + queue["retrying"]


def settle(story: Story) -> None:
    """Until no job is left to run. What was leased to a reply that a kill swallowed is still
    leased: with the workers at rest, the clock is moved past the leases and the grace."""
    api = story.server.api()
    for _ in range(10):
        while open_jobs(api)[0]:
            with story.ended:
                story.ended.wait(0.2)
        story.stop_workers()
        if open_jobs(api) == (0, 0):
            return
        advance(api, "21s")
        story.start_workers()
    raise AssertionError(api.ok("GET", f"/queues/{QUEUE}"))


@pytest.mark.timeout(300)
def test_ten_thousand_jobs_survive_three_kills(data_dir: Path, tmp_path: Path) -> None:
    source = tmp_path / "jobs.jsonl"
    write_jobs(source)
    ids: dict[int, str] = {}
    with running_server(data_dir, "--test-clock") as server:
        story = Story(server)
        lines = source.read_text().splitlines()
        producer = threading.Thread(target=story.produce, args=(lines, ids), daemon=True)
        producer.start()
        story.start_workers()
        try:
            for count in KILLS_AT:
                story.wait_for(count, 120)
                story.up.clear()
                server.kill()
                server.start()
                story.up.set()
            producer.join(120)
            settle(story)
        finally:
            story.stop_workers()
        assert not story.surprises
        check_every_job(server, ids)


def check_every_job(server: ServerProcess, ids: dict[int, str]) -> None:
    api = server.api()
    assert len(set(ids.values())) == JOBS
    seen: Counter[str] = Counter()
    by_curl = 0
    for number, job_id in ids.items():
        kind = KINDS[number % len(KINDS)]
        job = api.ok("GET", f"/jobs/{job_id}")
        assert job["payload"] == {"kind": kind, "number": number}
        assert (job["state"], job["attempt"]) == ENDS[kind], (
            job.get("errors"),
            [event["type"] for event in api.ok("GET", f"/jobs/{job_id}/events")["events"]],
        )
        seen[job["state"]] += 1
        by_curl += job.get("result") == "curl"
    assert by_curl > 0
    queue = api.ok("GET", f"/queues/{QUEUE}")
    for state in ("completed", "dead", "cancelled"):
        assert queue[state] == seen[state]
    command = [sys.executable, "-m", "corvo", "queues", "--server", server.url]
    table = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    row = next(line.split() for line in table.splitlines() if line.startswith(QUEUE))
    assert str(seen["completed"]) in row and str(seen["dead"]) in row

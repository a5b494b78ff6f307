"""Search, facets and bulk by filter on real servers, and what happens to the sidecar."""

import contextlib
import json
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lib.harness import (
    Api,
    Reply,
    ServerProcess,
    advance,
    mirror_status,
    mirrored_server,
    refused,
    running_server,
    until,
    wait_mirror,
)

NASTY = [
    "'",
    '"',
    "' OR '1'='1",
    "'; DROP TABLE jobs; --",
    '") OR 1=1 --',
    "%",
    "_",
    "\\",
    "[a-z]",
    "?1",
    ":name",
    "$.a",
    "a\u202eb",
    "<script>alert(1)</script>",
    "\x1b[31m",
    "ü",
    "🐦",
]


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with mirrored_server(tmp_path_factory.mktemp("corvo") / "data") as server:
        yield server


class Searcher:
    """Reads of the mirror that know everything written before on the same server."""

    def __init__(self, api: Api) -> None:
        self.api = api

    def raw(self, method: str, path: str, body: Any = None) -> Reply:
        index = self.api.raw("GET", "/info").headers["X-Corvo-Index"]
        return self.api.raw(method, path, body, {"X-Corvo-Min-Index": index})

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        reply = self.raw(method, path, body)
        assert reply.status == 200, reply
        assert reply.headers["X-Corvo-Stale"] is None
        return json.loads(reply.body)

    def page(self, **fields: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self.ask("POST", "/jobs/search", fields)
        return answer

    def ids(self, **fields: Any) -> list[str]:
        page = self.page(**fields)
        assert page["total"] == len(page["jobs"]) and page["total_is_exact"]
        return [job["id"] for job in page["jobs"]]


@pytest.fixture
def find(api: Api) -> Searcher:
    return Searcher(api)


def dead_job(api: Api, queue: str, error: str, **fields: Any) -> str:
    job_id = api.enqueue(queue, max_retries=1, **fields)
    job = api.take(queue)
    assert job["job_id"] == job_id
    assert api.fail(job, error=error)[0] == 200
    return job_id


# ---- search ----


def test_a_job_as_search_shows_it(api: Api, queue: str, find: Searcher) -> None:
    text = b'{"queue":"%b","payload":{"n":1.0e2, "big":12345678901234567890},"tags":{"a":1}}'
    sent = api.raw("POST", "/enqueue", text % queue.encode())
    assert sent.status == 201
    reply = find.raw("POST", "/jobs/search", {"queue": queue})
    assert b'"payload":{"n":1.0e2, "big":12345678901234567890}' in reply.body
    [job] = json.loads(reply.body)["jobs"]
    whole = api.job(job["id"])
    for name in ("id", "queue", "state", "priority", "priority_name", "attempt", "created_at"):
        assert job[name] == whole[name]
    assert job["tags"] == {"a": "1"}
    assert json.loads(reply.body)["duration_ms"] >= 0


def test_every_filter(api: Api, queue: str, find: Searcher) -> None:
    other = f"{queue}-other"
    plain = api.enqueue(queue, payload={"amount": 5, "name": "Ann"})
    high = api.enqueue(queue, priority="high", payload={"amount": 500}, tags={"t": "x", "u": 1})
    keyed = api.enqueue(
        other, unique_key="once", parent_id=plain, scheduled_at="2031-01-01T00:00:00Z"
    )
    expiring = api.enqueue(
        other, payload="a 100% sure_thing", expire_after="1000d", tags={"t": "y"}
    )
    dead = dead_job(api, f"{queue}-dead", "SMTP: no such host", payload=[1, 2, 3])
    both = {"queue": f"{queue}*"}
    assert sorted(find.ids(**both)) == sorted([plain, high, keyed, expiring, dead])
    assert sorted(find.ids(queue=queue)) == sorted([plain, high])
    assert find.ids(**both, state=["dead", "held"]) == [dead]
    assert find.ids(**both, state="scheduled") == [keyed]
    assert find.ids(**both, priority="high") == [high]
    assert find.ids(tags={"t": "x"}, **both) == [high]
    assert find.ids(tags={"t": "x", "u": 1}, **both) == [high]
    assert find.ids(tags={"t": "x", "u": "2"}, **both) == []
    assert find.ids(payload_contains="ANN", **both) == [plain]
    assert find.ids(payload_contains="100%", **both) == [expiring]
    assert find.ids(payload_contains="sure_t", **both) == [expiring]
    assert find.ids(payload_contains="sureXt", **both) == []
    assert find.ids(payload_jq=".amount > 100", **both) == [high]
    assert find.ids(payload_jq=". | length == 3 and .[0] == 1", **both) == [dead]
    assert find.ids(unique_key="once", **both) == [keyed]
    assert find.ids(parent_id=plain, **both) == [keyed]
    assert find.ids(scheduled_after="2030-01-01T00:00:00Z", **both) == [keyed]
    assert find.ids(expire_after="2027-01-01T00:00:00Z", **both) == [expiring]
    assert find.ids(has_errors=True, **both) == [dead]
    assert len(find.ids(has_errors=False, **both)) == 4
    assert find.ids(error_contains="no such", **both) == [dead]
    assert find.ids(attempt_min=1, **both) == [dead]
    assert len(find.ids(attempt_max=0, **both)) == 4
    assert find.ids(job_id_prefix=keyed, **both) == [keyed]
    created = api.job(high)["created_at"]
    assert find.ids(queue=queue, created_after=created) == []
    assert find.ids(queue=queue, created_before=created) == [plain]
    started = api.job(dead)["started_at"]
    assert find.ids(started_after="2020-01-01T00:00:00Z", **both) == [dead]
    assert find.ids(started_after=started, **both) == []


def test_pages_in_every_order(api: Api, queue: str, find: Searcher) -> None:
    dead_job(api, queue, "x")
    jobs = [{"queue": queue, "priority": n % 3, "payload": n} for n in range(25)]
    ids = api.ok("POST", "/enqueue/batch", {"jobs": jobs})["job_ids"]
    for sort in ("created_at", "priority", "attempt", "started_at", "completed_at"):
        for order in ("asc", "desc"):
            seen: list[str] = []
            cursor = ""
            while True:
                fields = {"sort": sort, "order": order, "limit": 7, "cursor": cursor}
                page = find.page(queue=queue, **fields)
                assert page["total"] == 26
                seen += [job["id"] for job in page["jobs"]]
                if not page["has_more"]:
                    break
                cursor = page["cursor"]
            assert len(seen) == len(set(seen)) == 26, (sort, order)
            if sort == "created_at":
                assert [i for i in seen if i in ids] == (ids if order == "asc" else ids[::-1])
    states = {"queue": queue, "state": ["pending", "active", "dead"], "limit": 10}
    first = find.page(**states)
    rest = find.page(**states, cursor=first["cursor"])
    assert not {j["id"] for j in first["jobs"]} & {j["id"] for j in rest["jobs"]}
    assert find.page(queue=queue, cursor="no cursor", limit=1)["jobs"]  # begins at the start


def test_a_page_is_cut_by_bytes(api: Api, queue: str, find: Searcher) -> None:
    for _ in range(8):
        api.enqueue(queue, payload="x" * 250_000)
    page = find.page(queue=queue)
    assert 0 < len(page["jobs"]) < 8 and page["has_more"]
    rest = find.page(queue=queue, cursor=page["cursor"])
    assert len(page["jobs"]) + len(rest["jobs"]) == 8


@pytest.mark.parametrize("text", NASTY)
def test_injections_are_data(api: Api, queue: str, find: Searcher, text: str) -> None:
    before = find.ask("POST", "/jobs/facets", {})["total"]
    job_id = dead_job(api, queue, text, payload={"k": text}, tags={text: text}, unique_key=text)
    own = {"queue": queue}
    literal = json.dumps(text, ensure_ascii=False)
    hits = [
        {"payload_jq": f".k == {literal}"},
        {"payload_jq": f".k | startswith({literal})"},
        {"payload_jq": f".k | contains({literal})"},
        {"tags": {text: text}},
        {"unique_key": text},
        {"error_contains": text},
    ]
    for fields in hits:
        assert find.ids(**own, **fields) == [job_id], fields
    misses: list[dict[str, Any]] = [
        {name: text}
        for name in ("queue", "batch_id", "worker_id", "parent_id", "chain_id", "job_id_prefix")
    ]
    misses += [{"tags": {"other": text}}, {"payload_contains": f"{text}{text}x"}]
    for fields in misses:
        assert find.ids(**{**own, **fields}) == [], fields
    facets = find.ask("POST", "/jobs/facets", {"filter": own, "by": [f"tag:{text}"]})
    assert facets["facets"] == {f"tag:{text}": {text: 1}}
    quoted = urllib.parse.quote(text)
    assert find.raw("GET", f"/search/fulltext?q={quoted}").status == 200
    for cursor in (text, "W10", "bnVsbA"):
        assert find.page(**own, cursor=cursor)["jobs"]
    assert find.ask("POST", "/jobs/facets", {})["total"] == before + 1


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"stat": ["dead"]}, "stat"),
        ({"state": ["deed"]}, "state"),
        ({"state": []}, "state"),
        ({"priority": "urgent"}, "priority"),
        ({"tags": {}}, "tags"),
        ({"tags": {"a": [1]}}, None),
        ({"created_after": "yesterday"}, None),
        ({"attempt_min": -1}, "attempt_min"),
        ({"has_errors": 1}, "has_errors"),
        ({"payload_jq": ""}, "payload_jq"),
        ({"payload_jq": "select(.a)"}, "payload_jq"),
        ({"payload_contains": "x" * 5_000}, "payload_contains"),
        ({"queue": 5}, "queue"),
        ({"sort": 5}, "sort"),
    ],
)
def test_wrong_filters_are_refused(api: Api, body: Any, field: str | None) -> None:
    answer = refused(api.post("/jobs/search", body), 400, "VALIDATION_ERROR")
    assert field is None or field in answer["error"]


def test_bodies_that_are_no_filter(api: Api) -> None:
    refused(api.call("POST", "/jobs/search", b"[1]"), 400, "VALIDATION_ERROR")
    refused(api.call("POST", "/jobs/search", b"{"), 400, "PARSE_ERROR")
    refused(api.call("POST", "/jobs/search", b'{"queue": "\\ud800"}'), 400, "PARSE_ERROR")
    assert api.call("POST", "/jobs/search", b"")[0] == 200
    refused(api.post("/jobs/facets", {"by": ["color"]}), 400, "VALIDATION_ERROR")
    refused(api.post("/jobs/facets", {"filters": {}}), 400, "VALIDATION_ERROR")
    refused(api.get("/search/fulltext"), 400, "VALIDATION_ERROR")


def test_odd_texts_reach_the_mirror(api: Api, queue: str, find: Searcher) -> None:
    """NUL, half of a surrogate pair and deep nesting are in the state store as they came."""
    text = (
        b'{"queue":"%b","payload":{"a":"x\\u0000\\ud800"},"max_retries":1,"tags":{"a":"b\\u0000"}}'
    )
    assert api.raw("POST", "/enqueue", text % queue.encode()).status == 201
    job = api.take(queue)
    body = {"lease_token": job["lease_token"], "error": "E", "backtrace": "B"}
    raw = json.dumps(body).replace('"E"', '"boom\\u0000\\udfff"').replace('"B"', '"\\ud800"')
    assert api.raw("POST", f"/fail/{job['job_id']}", raw.encode()).status == 200
    deep = api.enqueue(queue, payload={"deep": 1})
    nested = b'{"queue":"%b","payload":%b1%b}' % (queue.encode(), b"[" * 500, b"]" * 500)
    assert api.raw("POST", "/enqueue", nested).status == 201
    assert find.ids(queue=queue, error_contains="boom") == [job["job_id"]]
    assert find.ids(queue=queue, payload_jq=".deep == 1") == [deep]


def test_full_text(api: Api, queue: str, find: Searcher) -> None:
    once = api.enqueue(queue, payload={"text": "the quick brown fox"}, tags={"team": "zoology"})
    api.enqueue(queue, payload={"text": "something else"})

    def hits(words: str) -> list[str]:
        found = find.ask("GET", f"/search/fulltext?q={urllib.parse.quote(words)}")
        return [hit["id"] for hit in found["results"]]

    until(lambda: hits("quick fox") == [once], "full text never knows the job")
    assert hits("zoology") == [once]
    assert hits("ick bro") == [once]  # no words, but a part of the text
    assert hits('"unbalanced') == []


def test_dead_jobs(api: Api, queue: str, find: Searcher) -> None:
    job_id = dead_job(api, queue, "boom")
    [job] = find.ask("GET", f"/dead?queue={queue}")["jobs"]
    assert (job["id"], job["last_error"]) == (job_id, "boom")


def test_facets(api: Api, queue: str, find: Searcher) -> None:
    dead_job(api, queue, "x", priority="critical")
    for n in range(6):
        api.enqueue(queue, tags={"tenant": f"t{n % 2}"}, payload={"n": n}, priority=n % 3)
    by = ["state", "priority", "tag:tenant"]
    answer = find.ask("POST", "/jobs/facets", {"filter": {"queue": queue}, "by": by})
    assert (answer["total"], answer["total_is_exact"]) == (7, True)
    assert answer["facets"]["state"] == {"pending": 6, "dead": 1}
    assert answer["facets"]["tag:tenant"] == {"t0": 3, "t1": 3}
    some = {"filter": {"queue": queue, "payload_jq": ".n >= 4"}, "by": ["tag:tenant"]}
    assert find.ask("POST", "/jobs/facets", some)["facets"] == {"tag:tenant": {"t0": 1, "t1": 1}}


def test_cleared_jobs_are_gone_at_once(api: Api, queue: str, find: Searcher) -> None:
    api.enqueue_many(queue, 300)
    api.ok("POST", f"/queues/{queue}/clear")
    assert find.page(queue=queue)["jobs"] == []


# ---- bulk by filter ----


def test_bulk_by_filter(api: Api, queue: str) -> None:
    ids = [api.enqueue(queue, tags={"n": n % 2}) for n in range(6)]
    body: dict[str, Any] = {"action": "cancel", "filter": {"queue": queue, "tags": {"n": 1}}}
    dry = api.ok("POST", "/jobs/bulk", {**body, "dry_run": True})
    assert (dry["matched"], sorted(dry["sample"])) == (3, sorted(ids[1::2]))
    done = api.ok("POST", "/jobs/bulk", body)
    assert (done["affected"], done["skipped"]) == (3, 0)
    assert [api.job(job_id)["state"] for job_id in ids] == ["pending", "cancelled"] * 3
    rest = api.ok("POST", "/jobs/bulk", {"action": "delete", "filter": {"queue": queue}})
    assert rest["affected"] == 6


def test_bulk_in_the_background(api: Api, queue: str) -> None:
    api.enqueue_many(queue, 1_000)
    status, body = api.post(
        "/jobs/bulk", {"action": "hold", "filter": {"queue": queue}, "async": True}
    )
    assert (status, body["status"], body["estimated_total"]) == (202, "processing", 1_000)
    path = f"/bulk/{body['bulk_operation_id']}"
    until(lambda: api.ok("GET", path)["status"] == "completed", "the bulk never ends")
    assert api.ok("GET", path)["affected"] == 1_000
    assert api.queue(queue)["held"] == 1_000


def test_bulk_skips_what_has_left_the_state_of_the_filter(api: Api, queue: str) -> None:
    """The set is fixed when the bulk is accepted; what a job is by then is looked at again."""
    api.enqueue_many(queue, 300)
    bulk = {"action": "delete", "filter": {"queue": queue, "state": ["pending"]}, "async": True}
    status, body = api.post("/jobs/bulk", bulk)
    taken = api.fetch_batch(queue, count=50)
    path = f"/bulk/{body['bulk_operation_id']}"
    until(lambda: api.ok("GET", path)["status"] == "completed", "the bulk never ends")
    assert status == 202
    task = api.ok("GET", path)
    assert task["skipped"] == len(taken) and task["affected"] == 300 - len(taken)
    assert all(api.job(job["job_id"])["state"] == "active" for job in taken)


def test_bulk_filters_that_are_refused(api: Api, queue: str) -> None:
    job_id = api.enqueue(queue)
    for body in (
        {"filter": {}},
        {"filter": {"stat": ["dead"]}},
        {"job_ids": []},
        {"filter": {"queue": queue}, "job_ids": [job_id]},
        {"filter": {"queue": None}},
    ):
        refused(api.post("/jobs/bulk", {"action": "cancel", **body}), 400, "VALIDATION_ERROR")
    assert api.job(job_id)["state"] == "pending"


def test_a_repeated_bulk_is_done_once(api: Api, queue: str) -> None:
    api.enqueue(queue)
    body = {"action": "cancel", "filter": {"queue": queue}}
    key = {"Idempotency-Key": f"bulk-{queue}"}
    first = api.call("POST", "/jobs/bulk", body, key)
    again = api.call("POST", "/jobs/bulk", body, key)
    assert first[1]["bulk_operation_id"] == again[1]["bulk_operation_id"]


# ---- the sidecar ----


def stop_sidecar(api: Api, sign: int) -> int:
    pid = int(mirror_status(api)["pid"])
    os.kill(pid, sign)
    return pid


def test_it_is_started_again_when_it_dies(data_dir: Path) -> None:
    with running_server(data_dir) as server:
        api = server.api()
        find = Searcher(api)
        wait_mirror(api)
        for turn in range(5):
            pid = stop_sidecar(api, signal.SIGKILL)
            ids = api.enqueue_many("q", 100)  # nothing here waits for the sidecar
            until(
                lambda gone=pid: mirror_status(api)["pid"] not in (0, gone),
                "it is not started again",
            )
            wait_mirror(api)
            page = find.page(queue="q", limit=1_000)
            assert page["total"] == 100 * (turn + 1)
            assert {job["id"] for job in page["jobs"]} >= set(ids)


def test_it_is_killed_when_it_says_nothing(data_dir: Path) -> None:
    with running_server(data_dir, "--test-clock") as server:
        api = server.api()
        wait_mirror(api)
        api.enqueue("q")
        pid = stop_sidecar(api, signal.SIGSTOP)
        api.enqueue("q")
        advance(api, "1h")
        until(lambda: mirror_status(api)["pid"] not in (0, pid), "it is not killed")
        wait_mirror(api)
        assert Searcher(api).page(queue="q")["total"] == 2


def test_without_it_other_requests_work(data_dir: Path) -> None:
    with running_server(data_dir, "--no-mirror") as server:
        api = server.api()
        api.enqueue("q")
        for method, path, body in (
            ("POST", "/jobs/search", {}),
            ("POST", "/jobs/facets", {}),
            ("GET", "/dead", None),
            ("GET", "/search/fulltext?q=x", None),
            ("POST", "/admin/rebuild-sqlite", {}),
            ("POST", "/jobs/bulk", {"action": "cancel", "filter": {"queue": "q"}}),
        ):
            refused(api.call(method, path, body), 503, "MIRROR_UNAVAILABLE")
        assert mirror_status(api) == {"enabled": False}
        assert api.take("q")
        server.stop()
    with running_server(data_dir) as server:
        api = server.api()
        wait_mirror(api)
        [job] = Searcher(api).page(queue="q")["jobs"]
        assert job["state"] == "active"


def test_the_file_can_be_deleted_while_it_runs(data_dir: Path) -> None:
    with running_server(data_dir) as server:
        api = server.api()
        wait_mirror(api)
        api.enqueue_many("q", 200)
        assert Searcher(api).page(queue="q")["total"] == 200
        before = {path.name for path in (data_dir / "mirror").glob("*.sqlite")}
        for path in (data_dir / "mirror").glob("*.sqlite*"):
            path.unlink()
        api.enqueue_many("q", 50)

        def built() -> bool:
            reply = Searcher(api).raw("POST", "/jobs/search", {"queue": "q"})
            return reply.status == 200 and json.loads(reply.body)["total"] == 250

        until(built, "it is not built again")
        assert before.isdisjoint(path.name for path in (data_dir / "mirror").glob("*.sqlite"))


def test_without_space_for_it_nothing_else_stops(data_dir: Path) -> None:
    with running_server(data_dir) as server:
        api = server.api()
        wait_mirror(api)
        pid = int(mirror_status(api)["pid"])
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (100_000, hard))
        api.enqueue_many("q", 2_000)
        until(lambda: mirror_status(api)["error"], "it finds space that is not there")
        api.enqueue_many("q", 100)
        assert len(api.take_many("q", count=500)) == 500
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))
        until(lambda: not mirror_status(api)["error"], "it does not go on")
        assert Searcher(api).page(queue="q", state=["active"])["total"] == 500


def test_found_jobs_go_into_a_bulk_through_a_pipe(data_dir: Path) -> None:
    with running_server(data_dir) as server:
        api = server.api()
        wait_mirror(api)
        for number in range(5):
            dead_job(api, "mail", "SMTP timeout", payload={"n": number})
        api.enqueue("other")
        Searcher(api).page()
        command = [sys.executable, "-m", "corvo"]
        where = ["--server", server.url]
        search = [*command, "search", "--state", "dead", "--error-contains", "smtp", *where]
        found = subprocess.run(search, capture_output=True, check=True, cwd=data_dir.parent)
        assert len(found.stdout.split()) == 5
        bulk = [*command, "bulk", "retry", *where]
        done = subprocess.run(bulk, input=found.stdout, capture_output=True, check=True)
        assert done.stdout.startswith(b"Affected: 5 jobs")
        assert api.queue("mail")["pending"] == 5
        dead = [*command, "dead", "--output", "json", *where]
        until(
            lambda: json.loads(subprocess.run(dead, capture_output=True, check=True).stdout) == [],
            "the dead list keeps what was retried",
        )


def test_a_damaged_file_is_given_up(data_dir: Path) -> None:
    with running_server(data_dir) as server:
        api = server.api()
        wait_mirror(api)
        api.enqueue_many("q", 200)
        Searcher(api).page(queue="q")
        server.stop()
        for path in (data_dir / "mirror").glob("*.sqlite"):
            path.write_bytes(b"damaged" * 1000)
        server.start()
        api = server.api()
        wait_mirror(api)
        assert Searcher(api).page(queue="q")["total"] == 200


def test_a_file_of_an_earlier_version_is_built_again(data_dir: Path) -> None:
    with running_server(data_dir) as server:
        api = server.api()
        wait_mirror(api)
        body = b'{"queue":"q","payload":["Zo\\u00eb"]}'
        assert api.raw("POST", "/enqueue", body).status == 201
        Searcher(api).page(queue="q")
        server.stop()
        [path] = (data_dir / "mirror").glob("*.sqlite")
        with contextlib.closing(sqlite3.connect(path)) as database, database:
            database.execute("UPDATE about SET version = version - 1")
            database.execute("UPDATE jobs SET payload_text = NULL")
        server.start()
        api = server.api()
        wait_mirror(api)
        assert Searcher(api).page(queue="q", payload_contains="Zoë")["total"] == 1


def test_the_server_goes_and_comes_back(data_dir: Path) -> None:
    with running_server(data_dir) as server:
        api = server.api()
        wait_mirror(api)
        api.enqueue_many("q", 100)
        pid = mirror_status(api)["pid"]
        server.kill()
        until(lambda: not alive(pid), "the sidecar outlives its server")
        server.start()
        api = server.api()
        wait_mirror(api)
        assert Searcher(api).page(queue="q")["total"] == 100
        assert api.ok("GET", "/cluster/status")["sqlite_rebuild"]["ran"] is False
        pid = mirror_status(api)["pid"]
        assert server.stop() == 0
        assert not alive(pid)


def test_a_stopped_sidecar_of_an_earlier_server_is_no_obstacle(data_dir: Path) -> None:
    with running_server(data_dir) as server:
        api = server.api()
        wait_mirror(api)
        api.enqueue("q")
        pid = stop_sidecar(api, signal.SIGSTOP)
        server.kill()
        server.start()
        api = server.api()
        wait_mirror(api)
        assert not alive(pid)
        assert Searcher(api).page(queue="q")["total"] == 1


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False


def test_rebuild_on_demand(data_dir: Path) -> None:
    with running_server(data_dir) as server:
        api = server.api()
        wait_mirror(api)
        api.enqueue_many("q", 500, tags={"a": "b"})
        answer = api.ok("POST", "/admin/rebuild-sqlite", {})
        assert (answer["status"], answer["rebuilt"]) == ("ok", True)
        assert answer["duration_ms"] >= 0
        assert Searcher(api).page(tags={"a": "b"})["total"] == 500
        [path] = (data_dir / "mirror").glob("*.sqlite")
        with sqlite3.connect(path) as database:  # anybody can read it
            assert database.execute("SELECT count(*) FROM jobs").fetchone() == (500,)


def test_an_index_that_is_not_reached_in_time_is_stale(data_dir: Path) -> None:
    with running_server(data_dir) as server:
        api = server.api()
        wait_mirror(api)
        reply = api.raw("POST", "/jobs/search", {}, {"X-Corvo-Min-Index": "1000000"})
        assert (reply.status, reply.headers["X-Corvo-Stale"]) == (200, "true")
        reply = api.raw("POST", "/jobs/search", {}, {"X-Corvo-Min-Index": "soon"})
        assert reply.status == 400


def test_the_server_has_no_thread_of_python_beside_the_loop(data_dir: Path) -> None:
    with running_server(data_dir) as server:
        api = server.api()
        wait_mirror(api)
        assert server.process is not None
        names = Path(f"/proc/{server.process.pid}/task")
        with_mirror = len(list(names.iterdir()))
        server.stop()
    with running_server(data_dir, "--no-mirror") as server:
        assert server.process is not None
        names = Path(f"/proc/{server.process.pid}/task")
        assert len(list(names.iterdir())) == with_mirror

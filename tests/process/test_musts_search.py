"""Requirements on search, dashboards and bulk operations, from reports of users of other job
servers."""

import contextlib
import inspect
import json
import os
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lib.harness import (
    Api,
    ServerProcess,
    clean_environment,
    mirrored_server,
    refused,
    running_server,
    until,
    wait_mirror,
)

from corvo.cli import bulk as bulk_command
from corvo.cli import search as search_command
from corvo.limits import SEARCH_COUNTED_MAX, STEP_JOBS
from corvo.mirror import filters, query
from corvo.mirror.filters import PARSERS
from corvo.mirror.query import PendingDeletions


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with mirrored_server(tmp_path_factory.mktemp("corvo") / "data") as server:
        yield server


def find(api: Api, **fields: Any) -> dict[str, Any]:
    """A page that knows everything written before."""
    index = api.raw("GET", "/info").headers["X-Corvo-Index"]
    reply = api.raw("POST", "/jobs/search", fields, {"X-Corvo-Min-Index": index})
    assert reply.status == 200 and reply.headers["X-Corvo-Stale"] is None
    page: dict[str, Any] = json.loads(reply.body)
    return page


# ---- texts that stores choke on ----


def test_nul_and_half_surrogates_anywhere(api: Api, queue: str) -> None:
    body = b'{"queue":"%b","max_retries":1,"tags":{"nul":"b\\u0000c"}}' % queue.encode()
    assert api.raw("POST", "/enqueue", body).status == 201
    job = api.take(queue)
    job_id = job["job_id"]
    beat = b'{"jobs":{"%b":{"lease_token":"%b","checkpoint":"x\\u0000y"}}}'
    token = job["lease_token"].encode()
    assert api.raw("POST", "/heartbeat", beat % (job_id.encode(), token)).status == 200
    before = api.job(job_id)
    raw = b'{"lease_token":"%b","error":"a\xff b"}' % token
    assert api.raw("POST", f"/fail/{job_id}", raw).status == 400  # no UTF-8
    assert api.job(job_id) == before
    raw = b'{"lease_token":"%b","error":"a\\u0000b","backtrace":"\\ud800"}' % token
    assert api.raw("POST", f"/fail/{job_id}", raw).status == 200
    assert api.job(job_id)["state"] == "dead"
    for fields in ({"error_contains": "a\x00b"}, {"tags": {"nul": "b\x00c"}}, {"state": ["dead"]}):
        [found] = find(api, queue=queue, **fields)["jobs"]
        assert found["id"] == job_id
        assert found["last_error"] == "a\x00b" and found["tags"] == {"nul": "b\x00c"}


# ---- escaped texts ----

ESCAPED = (
    (r"Zo\u00eb", "Zoë"),
    (r"\ud83d\ude00 smile", "😀 smile"),
    (r"a\/b", "a/b"),
    (r"two\nlines", "two\nlines"),
    (r"say \"hi\"", 'say "hi"'),
    (r"C:\\temp", "C:\\temp"),
    (r"\u0061scii", "ascii"),
    (r"before\u0000after", "after"),
)


@pytest.mark.parametrize(("sent", "meant"), ESCAPED)
def test_search_sees_the_text_that_is_meant(api: Api, queue: str, sent: str, meant: str) -> None:
    """Payload, tags and errors match by their decoded text; the document has the bytes as sent."""
    text = f'"{sent}"'
    payload = f'{{"name":{text},"list":[{text}]}}'
    body = f'{{"queue":"{queue}","max_retries":1,"payload":{payload},"tags":{{"t":{text}}}}}'
    assert api.raw("POST", "/enqueue", body.encode()).status == 201
    job = api.take(queue)
    fail = f'{{"lease_token":"{job["lease_token"]}","error":{text}}}'
    assert api.raw("POST", f"/fail/{job['job_id']}", fail.encode()).status == 200
    quoted = json.dumps(meant)
    for fields in (
        {"payload_contains": meant},
        {"payload_contains": f'"list":["{meant if meant != "after" else "before"}'},
        {"error_contains": meant},
        {"payload_jq": f".name | contains({quoted})"},
        {"payload_jq": ".name | length > 1"},
    ):
        [found] = find(api, queue=queue, **fields)["jobs"]
        assert found["id"] == job["job_id"]
    if meant != "after":
        [found] = find(api, queue=queue, tags={"t": meant})["jobs"]
    whole = api.raw("GET", f"/jobs/{job['job_id']}").body.decode()
    assert payload in whole and whole.count(text) == 4


def test_a_key_is_found_however_it_is_written(api: Api, queue: str) -> None:
    payload = r'{"Zo\u00eb":{"a\/b":"x"},"\u0061":["\u00eb"]}'
    body = f'{{"queue":"{queue}","payload":{payload},"tags":{{"Zo\\u00eb":"1"}}}}'
    assert api.raw("POST", "/enqueue", body.encode()).status == 201
    for expression in (
        '.Zoë["a/b"] == "x"',
        '.["Zo\\u00eb"] | length == 1',
        '.a | contains("ë")',
        '.a[0] == "ë"',
    ):
        assert find(api, queue=queue, payload_jq=expression)["total"] == 1, expression
    filter = {"queue": queue}
    facets = api.ok("POST", "/jobs/facets", {"filter": filter, "by": ["tag:Zoë"]})
    assert facets["facets"] == {"tag:Zoë": {"1": 1}}


@pytest.mark.parametrize("where", ["payload", "tags"])
@pytest.mark.parametrize(
    ("sent", "word"),
    [
        (r"Zo\u00ebtext", "Zoëtext"),
        (r"first\nsecondword", "secondword"),
        (r"\ud835\udcb3word", "\U0001d4b3word"),
        (r"quoted\"inside", '"quoted" "inside"'),
        (r"nul\u0000afterword", "afterword"),
        (r"part\u002done", "part-one"),
    ],
)
def test_full_text_sees_the_text_that_is_meant(
    api: Api, queue: str, where: str, sent: str, word: str
) -> None:
    fields = f'"payload":["{sent}"]' if where == "payload" else f'"tags":{{"t":"{sent}"}}'
    reply = api.raw("POST", "/enqueue", f'{{"queue":"{queue}",{fields}}}'.encode())
    job_id = json.loads(reply.body)["job_id"]
    index = reply.headers["X-Corvo-Index"]
    path = f"/search/fulltext?{urllib.parse.urlencode({'q': word})}"

    def found() -> bool:
        answer = api.raw("GET", path, headers={"X-Corvo-Min-Index": index})
        return job_id in [job["id"] for job in json.loads(answer.body)["results"]]

    until(found, f"{word} is not found")


def test_half_of_a_pair_in_an_expression_is_no_error(api: Api, queue: str) -> None:
    body = b'{"queue":"%b","payload":{"a":"x\\ud800y"}}' % queue.encode()
    assert api.raw("POST", "/enqueue", body).status == 201
    for expression in (r'.a | startswith("x\ud800")', r'.a == "x\ud800y"', r".a | length == 3"):
        assert find(api, queue=queue, payload_jq=expression)["total"] == 1, expression
    assert find(api, queue=queue, payload_jq=r'.["\ud800"] == null')["total"] == 1


# ---- G17: bulk ----


@pytest.mark.parametrize("which", ["empty filter", "typo", "no ids", "both", "neither"])
def test_a_bulk_request_without_a_set_is_rejected(api: Api, queue: str, which: str) -> None:
    ids = [api.enqueue(queue) for _ in range(3)]
    bodies: dict[str, dict[str, Any]] = {
        "empty filter": {"filter": {}},
        "typo": {"filter": {"stat": ["dead"]}},
        "no ids": {"job_ids": []},
        "both": {"filter": {"queue": queue}, "job_ids": ids},
        "neither": {},
    }
    refused(api.post("/jobs/bulk", {"action": "cancel", **bodies[which]}), 400, "VALIDATION_ERROR")
    assert [api.job(job_id)["state"] for job_id in ids] == ["pending"] * 3


def test_a_bulk_on_all_jobs_must_be_explicit(data_dir: Path) -> None:
    with running_server(data_dir, "--no-mirror") as server:
        api = server.api()
        api.enqueue_many("q", 30)
        answer = api.ok("POST", "/jobs/bulk", {"action": "cancel", "all": True})
        assert answer["affected"] == 30


def test_other_requests_are_served_between_bulk_steps(api: Api, queue: str) -> None:
    count = 40 * STEP_JOBS
    api.enqueue_many(queue, count)
    body = {"action": "cancel", "filter": {"queue": queue}, "async": True}
    path = f"/bulk/{api.post('/jobs/bulk', body)[1]['bulk_operation_id']}"
    seen = set()
    while (task := api.ok("GET", path))["status"] != "completed":
        seen.add(task["processed"])  # each answer is a request between two steps
        api.enqueue(f"{queue}-other")
    assert len(seen) > 1 and all(done % STEP_JOBS == 0 for done in seen)


def test_the_set_of_a_bulk_operation_is_fixed_when_accepted(api: Api, queue: str) -> None:
    api.enqueue_many(queue, 400)
    body = {"action": "delete", "filter": {"queue": queue}, "async": True}
    path = f"/bulk/{api.post('/jobs/bulk', body)[1]['bulk_operation_id']}"
    late = [api.enqueue(queue) for _ in range(20)]
    until(lambda: api.ok("GET", path)["status"] == "completed", "the bulk never ends")
    assert api.ok("GET", path)["affected"] == 400
    assert [api.job(job_id)["state"] for job_id in late] == ["pending"] * 20


def test_a_bulk_operation_lists_the_outcome_of_each_job(api: Api, queue: str) -> None:
    first = api.enqueue(queue, max_retries=1, unique_key="k")
    api.fail(api.take(queue))
    holder = api.enqueue(queue, unique_key="k")
    other = api.enqueue(queue, max_retries=1)
    taken = {job["job_id"]: job for job in api.take_many(queue, count=2)}
    api.fail(taken[other])
    body = {"action": "retry", "job_ids": [first, holder, other, "job_01HZZZZZZZZZZZZZZZZZZZZZZZ"]}
    done = api.ok("POST", "/jobs/bulk", body)
    assert (done["affected"], done["skipped"], done["conflicts"]) == (1, 2, 1)
    lists = {}
    for kind in ("done", "skipped", "conflict"):
        page = api.ok("GET", f"/bulk/{done['bulk_operation_id']}/results?kind={kind}")
        lists[kind] = [item["job_id"] for item in page["items"]]
    assert lists == {"done": [other], "skipped": [holder, body["job_ids"][3]], "conflict": [first]}


def test_a_bulk_operation_survives_a_kill(data_dir: Path) -> None:
    with running_server(data_dir) as server:
        api = server.api()
        wait_mirror(api)
        api.enqueue_many("q", 2_000)
        body = {"action": "cancel", "filter": {"queue": "q"}, "async": True}
        path = f"/bulk/{api.post('/jobs/bulk', body)[1]['bulk_operation_id']}"
        server.kill()
        server.start()
        api = server.api()
        until(lambda: api.ok("GET", path)["status"] == "completed", "the bulk never ends")
        assert api.ok("GET", path)["affected"] == api.queue("q")["cancelled"] == 2_000


# ---- G16: search ----


def test_unknown_filters_are_refused_everywhere(api: Api, queue: str) -> None:
    wrong = {"payload_contain": "x"}
    for method, path, body in (
        ("POST", "/jobs/search", wrong),
        ("POST", "/jobs/facets", {"filter": wrong}),
        ("POST", "/jobs/bulk", {"action": "cancel", "filter": wrong}),
    ):
        answer = refused(api.call(method, path, body), 400, "VALIDATION_ERROR")
        assert "payload_contain" in answer["error"]
        assert "did you mean payload_contains" in answer["error"]


def test_one_filter_means_the_same_in_search_facets_and_bulk(api: Api, queue: str) -> None:
    for n in range(12):
        fields = {"tags": {"n": n % 3}, "payload": {"n": n}, "priority": n % 3}
        api.enqueue(queue, **fields)
    for rest in (
        {"tags": {"n": "1"}},
        {"priority": "high", "payload_jq": ".n > 3"},
        {"payload_contains": "1"},
        {"state": ["pending", "dead"], "created_after": "2020-01-01T00:00:00Z"},
    ):
        filter = {"queue": queue, **rest}
        page = find(api, **filter)
        facets = api.ok("POST", "/jobs/facets", {"filter": filter})
        dry = api.ok("POST", "/jobs/bulk", {"action": "cancel", "filter": filter, "dry_run": True})
        assert 0 < page["total"] == facets["total"] == dry["matched"]
        assert {job["id"] for job in page["jobs"]} >= set(dry["sample"])


def test_the_commands_send_the_same_filter() -> None:
    own = {"limit", "all_", "ids", "sort", "order"}
    options = {option.name for option in search_command.search.params}
    names = {"tags" if name == "tag" else name for name in options} - own
    assert names & set(PARSERS) >= {"queue", "state", "priority", "tags", "payload_jq"}
    common = {option.name for option in bulk_command.bulk.params}
    assert names - set(PARSERS) <= common  # what is left is where the server is, and how to print
    assert "filter_" in common


def test_the_document_names_every_filter() -> None:
    text = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
    search = text[text.index("## Search") : text.index("## Reports")]
    for name in PARSERS:
        stem, _, end = name.rpartition("_")
        paired = end in ("after", "before", "min", "max") and f"`{stem}_" in search
        assert f"`{name}`" in search or paired, name


# ---- G15: dashboards ----


def test_no_query_counts_or_skips_rows() -> None:
    """No OFFSET anywhere, and no count but of a bounded selection."""
    source = inspect.getsource(query)
    assert "OFFSET" not in source and "count(*) FROM jobs " not in source
    for sort in ("created_at", "priority"):
        order = query.parse_order(sort, "desc")
        for fields in ({}, {"state": ["dead"]}, {"queue": "q"}, {"worker_id": "w"}):
            parsed = filters.parse(fields)
            text, _ = query.page(parsed, PendingDeletions(), order, (5, "job_1"), 50, None, None)
            assert "OFFSET" not in text and "count(" not in text and "LIMIT ?" in text


def test_a_count_above_the_limit_is_reported_as_at_least(api: Api, queue: str) -> None:
    assert find(api, queue=queue)["total_is_exact"]
    for _ in range(3):
        api.enqueue_many(queue, SEARCH_COUNTED_MAX // 2, payload={"text": "needle"})
    page = find(api, queue=queue, payload_contains="needle", limit=5)
    if not page["total_is_exact"]:  # else it could be counted in time, and is right
        assert 5 < page["total"] <= SEARCH_COUNTED_MAX
    else:
        assert page["total"] == 3 * (SEARCH_COUNTED_MAX // 2)
    exact = find(api, queue=queue, state=["pending"], limit=5)
    assert (exact["total"], exact["total_is_exact"]) == (3 * (SEARCH_COUNTED_MAX // 2), True)


def test_the_queries_of_a_dashboard_are_fast(data_dir: Path) -> None:
    """The full form, 2,110,000 jobs, is tools/dashboards.py."""
    completed, dead, pending = 4_000, 400, 100
    with running_server(data_dir) as server:
        api = server.api()
        wait_mirror(api)
        api.enqueue_many("done", completed)
        for job in api.take_many("done", count=completed):
            api.ack(job)
        api.enqueue_many("lost", dead, max_retries=1)
        for job in api.take_many("lost", count=dead):
            api.fail(job)
        api.enqueue_many("todo", pending)
        find(api)
        wanted = {"completed": completed, "dead": dead, "pending": pending}
        took = []
        for method, path, body in (
            ("GET", "/queues", None),
            *(("POST", "/jobs/search", {"state": [state]}) for state in wanted),
            ("GET", "/dead", None),
            ("POST", "/jobs/facets", {}),
            ("GET", "/metrics/throughput", None),
        ):
            best = 1e9
            for _ in range(10):
                began = time.perf_counter()
                api.ok(method, path, body)
                best = min(best, time.perf_counter() - began)
            took.append(best)
        assert max(took) < 0.1, took
        queues = api.listed("queues")
        facets = api.ok("POST", "/jobs/facets", {})["facets"]["state"]
        for state, count in wanted.items():
            assert sum(queue[state] for queue in queues) == count == facets[state]
            assert api.ok("POST", "/jobs/search", {"state": [state]})["total"] == count


# ---- what strangers write ----

HOSTILE = '<script>alert(1)</script>\u202e\x1b[31mred\x1b[0m"\\'


def on_terminal(server: ServerProcess, *words: str) -> str:
    """What a command prints for a person."""
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "corvo", *words, "--server", server.url]
    environment = {**clean_environment(), "COLUMNS": "200"}
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    printed = b""
    with contextlib.suppress(OSError):  # EIO: the other end is closed
        while part := os.read(ours, 65_536):
            printed += part
    os.close(ours)
    assert process.wait() == 0, printed
    return printed.decode()


def test_hostile_texts_are_shown_and_never_interpreted(data_dir: Path) -> None:
    """In payload, error, tag, queue and worker name; every list of the command line and every
    reader of JSON sees them, and the rows beside them. A queue cannot be called so."""
    name = HOSTILE.replace("\x1b", "")
    with running_server(data_dir) as server:
        api = server.api()
        wait_mirror(api)
        refused(api.post("/enqueue", {"queue": HOSTILE}), 400, "VALIDATION_ERROR")
        fields: dict[str, Any] = {"max_retries": 1, "payload": {"t": HOSTILE}}
        bad = api.enqueue(name, tags={HOSTILE: HOSTILE}, **fields)
        plain = api.enqueue("plain", max_retries=1)
        job = api.take(name, worker_id=HOSTILE, hostname=HOSTILE)
        assert api.fail(job, error=HOSTILE + "x" * 60_000)[0] == 200
        assert api.fail(api.take("plain"), error="boom")[0] == 200
        assert {found["id"] for found in find(api)["jobs"]} == {bad, plain}
        for words in (
            ("search",),
            ("dead",),
            ("queues",),
            ("inspect", bad),
            ("search", "--output", "json"),
        ):
            printed = on_terminal(server, *words)
            assert "\x1b[31m" not in printed and "\u202e" not in printed, words
            assert "plain" in printed or words[0] == "inspect"
            assert "script" in printed
        rows = json.loads(on_terminal(server, "search", "--output", "json"))
        own = next(row for row in rows if row["id"] == bad)
        assert own["queue"] == name and own["payload"] == {"t": HOSTILE}
        assert own["tags"] == {HOSTILE: HOSTILE} and own["last_error"].startswith(HOSTILE)
        reply = api.raw("POST", "/jobs/search", {})
        assert reply.headers["Content-Type"].startswith("application/json")

"""Lists in pages, and the metrics page, over HTTP."""

from lib.harness import Api, refused


def test_queues_in_pages(api: Api, queue: str) -> None:
    names = [f"{queue}.{number}" for number in range(7)]
    for number, name in enumerate(names):
        api.enqueue_many(name, number + 1)
    api.fail(api.take(names[2]))
    path = f"/queues?limit=3&name={queue}.*"
    page = api.ok("GET", path)
    assert [row["name"] for row in page["queues"]] == names[:3]
    assert page["total"] >= 7 and page["jobs"]["pending"] >= 27 and page["jobs"]["retrying"] >= 1
    second = api.ok("GET", f"{path}&cursor={page['cursor']}")
    third = api.ok("GET", f"{path}&cursor={second['cursor']}")
    assert [row["name"] for row in (*second["queues"], *third["queues"])] == names[3:]
    assert "cursor" not in third
    assert second["queues"][0] == api.queue(names[3])
    for sort, first in (("pending", 6), ("failed", 2), ("oldest_ready", 0)):
        assert api.ok("GET", f"{path}&sort={sort}")["queues"][0]["name"] == names[first]
    refused(api.get(f"{path}&sort=pending&cursor={page['cursor']}"), 400, "VALIDATION_ERROR")
    refused(api.get("/queues?sort=size"), 400, "VALIDATION_ERROR")
    refused(api.get("/queues?limit=1001"), 400, "VALIDATION_ERROR")


def test_workers_in_pages(api: Api, queue: str) -> None:
    names = [f"{queue}-{number}" for number in range(5)]
    for name in names:
        api.fetch(queue, worker_id=name)
        api.ok("POST", "/test/clock", {"advance": "1s"})
    page = api.ok("GET", "/workers?limit=2")
    assert [row["id"] for row in page["workers"]] == [names[4], names[3]]
    second = api.ok("GET", f"/workers?limit=2&cursor={page['cursor']}")
    assert [row["id"] for row in second["workers"]] == [names[2], names[1]]
    assert page["total"] == len(api.listed("workers"))
    refused(api.get("/workers?cursor=xyz"), 400, "VALIDATION_ERROR")


def test_schedules_in_pages(api: Api, queue: str) -> None:
    names = [f"{queue}-{number}" for number in range(3)]
    for name in names:
        api.ok("POST", "/schedules", {"name": name, "queue": queue, "cron": "@daily"})
    page = api.ok("GET", "/schedules?limit=2")
    assert [row["name"] for row in page["schedules"]] == names[:2]
    rest = api.ok("GET", f"/schedules?limit=2&cursor={page['cursor']}")
    assert [row["name"] for row in rest["schedules"]] == names[2:] and "cursor" not in rest
    refused(api.get("/schedules?cursor=xyz"), 400, "VALIDATION_ERROR")


def test_metrics_at_the_root_and_in_the_api(api: Api, queue: str) -> None:
    api.enqueue(queue)
    root, page = api.raw("GET", "//metrics"), api.raw("GET", "/metrics")
    for reply in (root, page):
        assert reply.status == 200
        assert (reply.headers["content-type"] or "").startswith("text/plain; version=0.0.4")
        assert f'corvo_queue_jobs{{queue="{queue}",state="pending"}} 1.0' in reply.body.decode()

"""Lists in pages, and the metrics page, over HTTP."""

import json
from typing import Any

from lib.harness import Api, refused


def page_and_link(api: Api, path: str) -> tuple[list[dict[str, Any]], str | None]:
    """A page of a list that is an array, and its header Link."""
    reply = api.raw("GET", path)
    assert reply.status == 200, reply
    page: list[dict[str, Any]] = json.loads(reply.body)
    return page, reply.headers["link"]


def following(link: str | None, path: str) -> str:
    """The path of the next page; the link must lead to the same list."""
    assert link is not None
    start, end = f"</api/v1{path}", '>; rel="next"'
    assert link.startswith(start) and link.endswith(end), link
    return path + link.removeprefix(start).removesuffix(end)


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
    page, link = page_and_link(api, "/workers?limit=2")
    assert [row["id"] for row in page] == [names[4], names[3]]
    path = following(link, "/workers?limit=2&cursor=")
    second, _ = page_and_link(api, path)
    assert [row["id"] for row in second] == [names[2], names[1]]
    whole, link = page_and_link(api, "/workers")
    assert whole[:4] == page + second and link is None
    assert api.listed("workers") == whole
    refused(api.get("/workers?cursor=xyz"), 400, "VALIDATION_ERROR")


def test_schedules_in_pages(api: Api, queue: str) -> None:
    names = [f"{queue}-{number}" for number in range(3)]
    for name in names:
        api.ok("POST", "/schedules", {"name": name, "queue": queue, "cron": "@daily"})
    page, link = page_and_link(api, "/schedules?limit=2&consistent=true")
    assert [row["name"] for row in page] == names[:2]
    path = following(link, "/schedules?limit=2&consistent=true&cursor=")
    rest, link = page_and_link(api, path)
    assert [row["name"] for row in rest] == names[2:] and link is None
    assert page_and_link(api, "/schedules") == (page + rest, None)
    refused(api.get("/schedules?cursor=xyz"), 400, "VALIDATION_ERROR")
    refused(api.get("/schedules?limit=1001"), 400, "VALIDATION_ERROR")


def test_a_page_ends_after_its_bytes_too(api: Api, queue: str) -> None:
    names = [f"{queue}-{number}" for number in range(9)]
    body = {"queue": queue, "cron": "@daily", "payload": "x" * 250_000}
    for name in names:
        api.ok("POST", "/schedules", body | {"name": name})
    path, pages = "/schedules", []
    while path:
        page, link = page_and_link(api, path)
        pages.append([row["name"] for row in page if row["name"] in names])
        path = following(link, "/schedules?limit=1000&cursor=") if link else ""
    assert pages == [names[:4], names[4:8], names[8:]]
    found = [row["name"] for row in api.listed("schedules")]
    assert [name for name in found if name in names] == names
    for name in names:
        api.ok("DELETE", f"/schedules/{name}")


def test_metrics_at_the_root_and_in_the_api(api: Api, queue: str) -> None:
    api.enqueue(queue)
    root, page = api.raw("GET", "//metrics"), api.raw("GET", "/metrics")
    for reply in (root, page):
        assert reply.status == 200
        assert (reply.headers["content-type"] or "").startswith("text/plain; version=0.0.4")
        assert f'corvo_queue_jobs{{queue="{queue}",state="pending"}} 1.0' in reply.body.decode()

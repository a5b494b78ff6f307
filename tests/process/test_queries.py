"""The queries of all routes, read from the route table: unknown, repeated, empty and wrong."""

from collections.abc import Iterator
from typing import Any

import pytest
from lib.harness import Api, ServerProcess
from lib.route_table import ROUTES

from corvo.net.http.query import POSITIONS
from corvo.net.http.router import Route

# Values of another type than the parameter has, or out of its range.
WRONG = {
    "limit": ("abc", "0", "-1", "1.5", "1e3"),
    "timeout": ("abc", "-1"),
    "before": ("abc", "-1"),
    "after_seq": ("abc", "-1"),
    "last_event_id": ("abc", "-1"),
    "attempt": ("abc", "0"),
    "consistent": ("yes", "1", "TRUE"),
    "confirm": ("yes", "1"),
    "kind": ("some",),
    "from": ("then",),
    "format": ("xml",),
    "types": ("types-x",),
    "queues": (".",),
    "job_ids": ("a%20b",),
    "queue": (),
    "name": (),
    "sort": ("size", "NAME"),
    "period": ("abc", "1s", "2d"),
    "step": ("abc", "1s"),
    "q": ("%20",),
    "mirror": ("yes",),
}
# Parameters without which a route refuses everything.
REQUIRED = {"/api/v1/search/fulltext": "q=x"}
LISTED = [route for route in ROUTES if route.method in ("GET", "POST", "PUT", "DELETE")]


def name(route: Route) -> str:
    return f"{route.method} {route.pattern}"


@pytest.fixture(scope="module")
def paths(shared_server: ServerProcess) -> Iterator[dict[str, str]]:
    """A name or id that exists, by the collection it is in."""
    api = shared_server.api()
    batch = api.ok("POST", "/enqueue/batch", {"jobs": [{"queue": "q"}], "batch": {}})
    job_id = batch["job_ids"][0]
    schedule = {"name": "s", "cron": "@daily", "queue": "q"}
    bulk = {"action": "hold", "job_ids": [job_id]}
    yield {
        "batches": batch["batch_id"],
        "jobs": job_id,
        "queues": "q",
        "schedules": api.ok("POST", "/schedules", schedule)["id"],
        "bulk": api.ok("POST", "/jobs/bulk", bulk)["bulk_operation_id"],
    }
    api.close()


def ask(api: Api, route: Route, paths: dict[str, str], query: str) -> tuple[int, Any]:
    path = route.pattern
    for collection, found in paths.items():
        for name in ("{id}", "{name}"):
            path = path.replace(f"/{collection}/{name}", f"/{collection}/{found}")
    path = path.replace("{job_id}", paths["jobs"]).replace("{method}", "Other")
    body = None if route.method == "GET" else b"{}"
    headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
    return api.call(route.method, f"/{path}?{query}", body, headers)


@pytest.mark.parametrize("route", LISTED, ids=name)
def test_an_unknown_parameter(api: Api, paths: dict[str, str], route: Route) -> None:
    status, answer = ask(api, route, paths, "no_such=1")
    assert (status, answer["code"]) == (400, "VALIDATION_ERROR"), answer
    assert answer["field"] == "no_such" and "no_such" in answer["error"]
    status, answer = ask(api, route, paths, "no%ZZ")
    assert status == 400, answer


@pytest.mark.parametrize("route", [route for route in LISTED if route.query], ids=name)
def test_each_parameter_of_a_row(api: Api, paths: dict[str, str], route: Route) -> None:
    """It is refused when it is repeated, empty, or of another type."""
    for parameter in route.query:
        status, answer = ask(api, route, paths, f"{parameter}=1&{parameter}=1")
        assert status == 400 and "is repeated" in answer["error"], (parameter, answer)
        if parameter not in POSITIONS:
            status, answer = ask(api, route, paths, f"{parameter}=")
            assert (status, answer["field"]) == (400, parameter), answer
        for value in WRONG.get(parameter, ()):
            required = REQUIRED.get(route.pattern, "")
            others = "" if required.startswith(f"{parameter}=") else required
            status, answer = ask(api, route, paths, f"{parameter}={value}&{others}".strip("&"))
            assert status == 400, (parameter, value, answer)
            assert parameter in answer["error"], (parameter, value, answer)


def test_every_parameter_is_in_this_test() -> None:
    names = {name for route in ROUTES for name in route.query}
    assert names - set(WRONG) <= POSITIONS


@pytest.mark.parametrize(
    "body",
    [
        {"limit": "abc"},
        {"limit": 1.5},
        {"limit": True},
        {"limit": [1]},
        {"limit": ""},
        {"sort": 1},
        {"order": ["asc"]},
        {"cursor": 7},
    ],
)
def test_the_page_of_a_search(api: Api, body: dict[str, Any]) -> None:
    status, answer = api.post("/jobs/search", body)
    [field] = body
    assert (status, answer.get("field")) == (400, field), answer


@pytest.mark.parametrize("body", [{"filter": []}, {"filter": ""}, {"by": []}, {"by": ""}])
def test_the_parts_of_facets(api: Api, body: dict[str, Any]) -> None:
    status, answer = api.post("/jobs/facets", body)
    [field] = body
    assert (status, answer.get("field")) == (400, field), answer

"""The route table: every row states its facts, and they agree with each other."""

import re

import pytest
from lib.route_table import ROUTER, ROUTES

from corvo.net.http.router import ANY_NODE, LEADER, PLACES, PUBLIC, THIS_NODE, Route

PERMISSION = re.compile(
    r"(admin|ack|batches|bulk|cluster|debug|enqueue|events|fail|fetch|heartbeat|jobs|locks|logs"
    r"|metrics|queues|release|schedules|test|workers)"
    r"\.(read|write|delete|approve|cancel|clear|concurrency|drain|hold|move|pause|reject|resume"
    r"|retry|run|throttle)"
)
OPEN = {
    "/",
    "/healthz",
    "/readyz",
    "/api/v1/healthz",
    "/api/v1/info",
    "/corvo.v1.WorkerService/GetServerInfo",
    "/corvo.v1.WorkerService/{method}",
}


def name(route: Route) -> str:
    return f"{route.method} {route.pattern}"


@pytest.mark.parametrize("route", ROUTES, ids=name)
def test_a_row_states_its_facts(route: Route) -> None:
    assert route.at in PLACES
    if route.pattern in OPEN:
        assert route.needs == PUBLIC and not route.namespaced
    else:
        assert PERMISSION.fullmatch(route.needs)


@pytest.mark.parametrize("route", ROUTES, ids=name)
def test_the_facts_of_a_row_agree(route: Route) -> None:
    if route.method == "GET":
        assert not route.takes_key
        assert route.at != LEADER or route.stream  # else a follower would forward a read
    if route.takes_key:
        assert route.at == LEADER
    if route.needs.endswith((".write", ".delete")) and route.namespaced:
        assert route.at == LEADER and route.method != "GET"
    if route.returned_by:
        assert route.waits and route.at == LEADER
        back = ROUTER.match("POST", route.returned_by.replace("{job_id}", "j").encode())[0]
        assert back.pattern == route.returned_by and back.takes_key
    if route.nothing is not None:
        assert route.waits
    if not route.namespaced:
        assert route.needs == PUBLIC or route.needs.split(".")[0] in (
            "admin",
            "cluster",
            "debug",
            "metrics",
            "test",
        )


def test_where_requests_are_served() -> None:
    """Rows that are easily forgotten: a wrong place forwards a command that concerns one node."""
    places = {name(route): route.at for route in ROUTES}
    for path in ("admin/rebuild-sqlite", "cluster/snapshot", "test/clock"):
        assert places[f"POST /api/v1/{path}"] == THIS_NODE
    for path in ("jobs/search", "jobs/facets"):
        assert places[f"POST /api/v1/{path}"] == ANY_NODE
    assert places["GET /api/v1/jobs/{id}/stream"] == LEADER
    assert places["POST /corvo.v1.WorkerService/Subscribe"] == ANY_NODE


def test_methods_of_the_worker_service_share_their_metrics() -> None:
    methods = [route for route in ROUTES if route.pattern.startswith("/corvo.v1.")]
    assert len(methods) == 11 and len({route.route_metrics for route in methods}) == 1
    assert len({route.route_metrics for route in ROUTES}) == len(ROUTES) - 10

"""The route table: one row per endpoint (docs/api.md), with every fact about it.

The row states where the endpoint is served, the permission it needs, the parameters of its query,
whether it waits or streams, and whether it takes an idempotency key (see
`corvo.net.http.router.Route`). The gate, the proxy and the idempotency check read the row of a
request; no other module knows a path. Methods of the worker service have rows of their own. Route,
op, command and metric share their verb.

Permissions are `resource.action`: the resource is the first segment of the path or what the
endpoint really concerns; the action is `read`, `write`, `delete` or the verb of the path. Access
control is not part of this version: the names are data.
"""

from typing import Any, Final

from corvo._fast.http.exchange import Request
from corvo._fast.metrics import RouteMetrics
from corvo.engine.commands.enqueue import EnqueueCommands
from corvo.engine.commands.work import WorkCommands
from corvo.engine.leadership import Membership
from corvo.engine.service import Service
from corvo.net.api.handlers.admin import Admin
from corvo.net.api.handlers.batches import Batches
from corvo.net.api.handlers.bulk import Bulk
from corvo.net.api.handlers.cluster import ClusterVerbs
from corvo.net.api.handlers.enqueue import Enqueue
from corvo.net.api.handlers.inspect import Inspect
from corvo.net.api.handlers.jobs import Jobs
from corvo.net.api.handlers.limits import Limits
from corvo.net.api.handlers.queues import Queues
from corvo.net.api.handlers.reports import Reports
from corvo.net.api.handlers.schedules import Schedules
from corvo.net.api.handlers.search import Search
from corvo.net.api.handlers.worker import WorkerVerbs
from corvo.net.http.query import CONSISTENT
from corvo.net.http.router import (
    ANY_NODE,
    HTTP_BOUNDS_NS,
    LEADER,
    PUBLIC,
    THIS_NODE,
    Handler,
    Route,
)
from corvo.net.hub import StreamHub
from corvo.net.rpc.handler import Rpc
from corvo.net.rpc.wire import STREAMING, media_type
from corvo.net.rpc.worker_service import WorkerCalls
from corvo.net.streams.handlers import Streams

_API: Final = "/api/v1"
_RPC: Final = "/corvo.v1.WorkerService/"
_RPC_NAME: Final = _RPC + "{method}"  # all methods share one metric
LIFECYCLE_PATH: Final = b"/corvo.v1.WorkerService/StreamLifecycle"
# Health checks of load balancers may name any host.
PROBES: Final = frozenset((b"/healthz", b"/readyz", b"/api/v1/healthz"))
_RELEASE: Final = _API + "/release/{job_id}"
_PROGRESS: Final = "/bulk/{id}/progress"


def takes_pieces(request: Request) -> bool:
    """Whether the body of a request is read as it arrives: a stream of messages. Asked by the front
    end as soon as the head of a request is there."""
    return request.path == LIFECYCLE_PATH and media_type(request) in STREAMING


def _row(method: str, path: str, handler: Handler, needs: str, at: str, **facts: Any) -> Route:
    """A row of the HTTP API. Its name in metrics is the path without the prefix."""
    return Route(method, _API + path, handler, path, at=at, needs=needs, **facts)


def _read(path: str, handler: Handler, needs: str, **facts: Any) -> Route:
    """A GET that any node serves from its own state."""
    return _any_node("GET", path, handler, needs, **facts)


def _any_node(
    method: str, path: str, handler: Handler, needs: str, query: str = "", **facts: Any
) -> Route:
    """A read that any node serves; `query` has the names of its own parameters."""
    names = (*query.split(), CONSISTENT)
    return _row(method, path, handler, needs, ANY_NODE, query=names, **facts)


def _write(method: str, path: str, handler: Handler, needs: str, **facts: Any) -> Route:
    """A route that proposes an op, at most once for each idempotency key."""
    return _row(method, path, handler, needs, LEADER, takes_key=True, **facts)


def _fetch(path: str, handler: Handler, nothing: tuple[int, bytes]) -> Route:
    """A long poll that hands out jobs."""
    facts: dict[str, Any] = {"waits": True, "returned_by": _RELEASE, "nothing": nothing}
    return _row("POST", path, handler, "fetch.write", LEADER, **facts)


def _local(method: str, path: str, handler: Handler, needs: str) -> Route:
    """A route that concerns the node where the request arrives."""
    return _row(method, path, handler, needs, THIS_NODE, namespaced=False)


def _member(path: str, handler: Handler) -> Route:
    """A change of the members of the cluster."""
    return _row("POST", path, handler, "cluster.write", LEADER, namespaced=False)


def routes(
    service: Service,
    admin: Admin,
    hub: StreamHub,
    test_clock: bool,
    members: Membership | None = None,
) -> list[Route]:
    """All routes of this server; `members` is given on nodes of a cluster."""
    enqueues, work = EnqueueCommands(service), WorkCommands(service, hub.job_output)
    enqueue, worker = Enqueue(service, enqueues), WorkerVerbs(service, work)
    jobs, bulk = Jobs(service, admin.steps), Bulk(service, _API + _PROGRESS)
    schedules = Schedules(service, enqueues)
    table = [
        _write("POST", "/enqueue", enqueue.enqueue, "enqueue.write"),
        _write("POST", "/enqueue/batch", enqueue.enqueue_batch, "enqueue.write"),
        _fetch("/fetch", worker.fetch, (204, b"")),
        _fetch("/fetch/batch", worker.fetch_batch, (200, b'{"jobs":[]}')),
        _write("POST", "/ack/batch", worker.ack_batch, "ack.write"),
        _write("POST", "/ack/{job_id}", worker.ack, "ack.write"),
        _write("POST", "/fail/{job_id}", worker.fail, "fail.write"),
        _row("POST", "/heartbeat", worker.heartbeat, "heartbeat.write", LEADER),
        _write("POST", "/release/{job_id}", worker.release, "release.write"),
        _any_node("POST", "/jobs/bulk-get", jobs.get_many, "jobs.read"),
        _read("/jobs/{id}", jobs.get, "jobs.read"),
        _write("DELETE", "/jobs/{id}", jobs.delete, "jobs.delete"),
        _write("POST", "/jobs/{id}/retry", jobs.retry, "jobs.retry"),
        _write("POST", "/jobs/{id}/cancel", jobs.cancel, "jobs.cancel"),
        _read("/batches/{id}", Batches(service).get, "batches.read"),
        _write("POST", "/jobs/{id}/hold", jobs.hold, "jobs.hold"),
        _write("POST", "/jobs/{id}/approve", jobs.approve, "jobs.approve"),
        _write("POST", "/jobs/{id}/reject", jobs.reject, "jobs.reject"),
        _write("POST", "/jobs/{id}/move", jobs.move, "jobs.move"),
        _write("POST", "/jobs/{id}/priority", jobs.priority, "jobs.write"),
        _write("POST", "/jobs/{id}/requeue", jobs.requeue, "jobs.write"),
        _write("POST", "/jobs/{id}/run", jobs.run, "jobs.run"),
        _write("POST", "/jobs/bulk", bulk.act, "bulk.write"),
        _read("/bulk/{id}", bulk.get, "bulk.read"),
        _read("/bulk/{id}/results", bulk.results, "bulk.read", query="kind cursor limit"),
        _write("POST", "/bulk/{id}/cancel", bulk.cancel, "bulk.cancel"),
        _write("POST", "/bulk/{id}/undo", bulk.undo, "bulk.write"),
        _read("/schedules", schedules.list, "schedules.read", query="limit cursor"),
        _write("POST", "/schedules", schedules.create, "schedules.write"),
        _read("/schedules/{id}", schedules.get, "schedules.read"),
        _write("PUT", "/schedules/{id}", schedules.update, "schedules.write"),
        _write("DELETE", "/schedules/{id}", schedules.delete, "schedules.delete"),
        _write("POST", "/schedules/{id}/pause", schedules.pause, "schedules.pause"),
        _write("POST", "/schedules/{id}/resume", schedules.resume, "schedules.resume"),
        _write("POST", "/schedules/{id}/run", schedules.run, "schedules.run"),
        _read("/workers", admin.workers, "workers.read", query="limit cursor"),
        _local("GET", "/cluster/status", admin.cluster_status, "cluster.read"),
        _local("POST", "/cluster/snapshot", admin.snapshot, "cluster.write"),
        _local("GET", "/metrics", admin.metrics, "metrics.read"),
        _local("GET", "/info", admin.info, PUBLIC),
        _local("GET", "/debug/runtime", admin.runtime, "debug.read"),
    ]
    table += _queues(Queues(service, admin.steps), Limits(service, admin.steps)) + _inspect(
        Inspect(service)
    )
    table += _search(Search(service)) + _streams(
        Streams(service, hub.streams, hub.events, hub.job_output, hub.operations)
    )
    table += _cluster(ClusterVerbs(members)) + _reports(Reports(service))
    if test_clock:
        table.append(_local("POST", "/test/clock", admin.test_clock, "test.write"))
    table += _methods(
        Rpc(hub.loop, WorkerCalls(service, enqueues, work), hub.streams, hub.events, hub.lifecycles)
    )
    return table + _probes(admin)


def _methods(rpc: Rpc) -> list[Route]:
    """The methods of the worker service."""
    facts: list[tuple[str, str, str, dict[str, Any]]] = [
        ("Enqueue", "enqueue.write", LEADER, {"takes_key": True}),
        ("Fetch", "fetch.write", LEADER, {"waits": True, "returned_by": _RELEASE}),
        ("FetchBatch", "fetch.write", LEADER, {"waits": True, "returned_by": _RELEASE}),
        ("Ack", "ack.write", LEADER, {"takes_key": True}),
        ("AckBatch", "ack.write", LEADER, {"takes_key": True}),
        ("Fail", "fail.write", LEADER, {"takes_key": True}),
        ("Heartbeat", "heartbeat.write", LEADER, {}),
        ("StreamLifecycle", "fetch.write", LEADER, {"stream": True, "names_leader": True}),
        ("Subscribe", "events.read", ANY_NODE, {"stream": True, "query": (CONSISTENT,)}),
        ("GetServerInfo", PUBLIC, LEADER, {"namespaced": False}),
        ("{method}", PUBLIC, LEADER, {"namespaced": False}),  # there is no such method
    ]
    metrics = RouteMetrics(HTTP_BOUNDS_NS)
    return [
        Route(
            "POST",
            _RPC + name,
            rpc.handler(name),
            _RPC_NAME,
            at=at,
            needs=needs,
            route_metrics=metrics,
            **more,
        )
        for name, needs, at, more in facts
    ]


def _probes(admin: Admin) -> list[Route]:
    """Endpoints for probes, which have no credentials, and for collectors of metrics, which look at
    the root and need the same permission there as in the API."""
    probes: list[tuple[str, Handler, str, tuple[str, ...]]] = [
        ("/healthz", admin.healthz, PUBLIC, ()),
        (_API + "/healthz", admin.healthz, PUBLIC, ()),
        ("/readyz", admin.readyz, PUBLIC, ("mirror",)),
        ("/metrics", admin.metrics, "metrics.read", ()),
        ("/", _welcome, PUBLIC, ()),
    ]
    return [
        Route("GET", path, handler, path, at=THIS_NODE, needs=needs, namespaced=False, query=query)
        for path, handler, needs, query in probes
    ]


def _queues(queues: Queues, limits: Limits) -> list[Route]:
    """Queues: reads, settings, limits."""
    return [
        _read("/queues", queues.list, "queues.read", query="limit cursor name sort"),
        _read("/queues/{name}", queues.get, "queues.read"),
        _write("POST", "/queues/{name}/pause", queues.pause, "queues.pause"),
        _write("POST", "/queues/{name}/resume", queues.resume, "queues.resume"),
        _write("POST", "/queues/{name}/drain", queues.drain, "queues.drain"),
        _write("POST", "/queues/{name}/clear", queues.clear, "queues.clear"),
        _write("DELETE", "/queues/{name}", queues.delete, "queues.delete", query=("confirm",)),
        _write("POST", "/queues/{name}/retention", queues.retention, "queues.write"),
        _write("POST", "/queues/{name}/concurrency", queues.concurrency, "queues.concurrency"),
        _write("POST", "/queues/{name}/throttle", limits.throttle, "queues.throttle"),
        _write("DELETE", "/queues/{name}/throttle", limits.unthrottle, "queues.throttle"),
        _read("/queues/{name}/groups", limits.groups, "queues.read", query="limit after"),
        _write("POST", "/queues/{name}/groups", limits.limit_groups, "queues.write"),
        _write("POST", "/queues/{name}/aging", limits.age, "queues.write"),
    ]


def _inspect(inspect: Inspect) -> list[Route]:
    """Inspection of jobs, their events and logs, and unique keys."""
    return [
        _read("/jobs/{id}/explain", inspect.explain, "jobs.read"),
        _read("/jobs/{id}/wait", inspect.wait, "jobs.read", waits=True, query="timeout"),
        _read("/jobs/{id}/events", inspect.events, "jobs.read", query="limit before"),
        _read("/jobs/{id}/errors", inspect.errors, "jobs.read", query="limit before"),
        _read("/jobs/{id}/logs", inspect.logs, "jobs.read", query="attempt after limit"),
        _write("POST", "/jobs/{id}/logs", inspect.append_logs, "logs.write"),
        _read("/queues/{name}/events", inspect.queue_events, "queues.read", query="limit before"),
        _read("/locks", inspect.locks, "locks.read", query="queue cursor limit"),
        _write("POST", "/locks/release", inspect.release_lock, "locks.write"),
        _read("/cluster/events", inspect.all_events, "events.read", query="limit after_seq"),
    ]


def _streams(streams: Streams) -> list[Route]:
    """Server-sent events."""
    return [
        _read(
            "/events",
            streams.events,
            "events.read",
            stream=True,
            query="last_event_id from queues job_ids types format",
        ),
        _row(
            "GET",
            "/jobs/{id}/stream",
            streams.job,
            "jobs.read",
            LEADER,
            stream=True,
            query=("last_event_id",),
        ),
        _read(_PROGRESS, streams.operation, "bulk.read", stream=True),
    ]


def _cluster(cluster: ClusterVerbs) -> list[Route]:
    """Changes of the members of a cluster."""
    return [
        _member("/cluster/join", cluster.join),
        _member("/cluster/remove", cluster.remove),
        _member("/cluster/promote", cluster.promote),
        _member("/cluster/transfer", cluster.transfer),
    ]


def _search(search: Search) -> list[Route]:
    """Search, served by the mirror."""
    return [
        _any_node("POST", "/jobs/search", search.search, "jobs.read"),
        _any_node("POST", "/jobs/facets", search.facets, "jobs.read"),
        _read("/search/fulltext", search.fulltext, "jobs.read", query="q limit"),
        _read("/dead", search.dead, "jobs.read", query="queue limit cursor"),
        _local("POST", "/admin/rebuild-sqlite", search.rebuild, "admin.write"),
    ]


def _reports(reports: Reports) -> list[Route]:
    """Statistics of the last day."""
    return [
        _read("/metrics/throughput", reports.throughput, "metrics.read", query="queue"),
        _read("/metrics/history", reports.history, "metrics.read", query="queue period step"),
        _read("/metrics/latency", reports.latency, "metrics.read", query="queue period"),
    ]


def _welcome(request: Request) -> None:
    request.reply(
        200,
        b"Corvo is running. The API is at /api/v1; start with POST /api/v1/enqueue.\n",
        b"",
        b"text/plain; charset=utf-8",
    )

"""The route table: one row per endpoint (docs/api.md). Route, op, CLI word and metric share their
verb."""

from collections.abc import Callable

from corvo._fast.http.exchange import Request
from corvo.consensus.cluster.membership import Members
from corvo.engine.service import Service
from corvo.net.api.handlers.admin import Admin
from corvo.net.api.handlers.batches import Batches
from corvo.net.api.handlers.bulk import Bulk
from corvo.net.api.handlers.cluster import ClusterVerbs
from corvo.net.api.handlers.enqueue import Producer
from corvo.net.api.handlers.inspect import Answers
from corvo.net.api.handlers.jobs import Jobs
from corvo.net.api.handlers.limits import Flow
from corvo.net.api.handlers.queues import Queues
from corvo.net.api.handlers.reports import Reports
from corvo.net.api.handlers.schedules import Schedules
from corvo.net.api.handlers.search import Search
from corvo.net.api.handlers.worker import WorkerVerbs
from corvo.net.http.router import Route
from corvo.net.hub import StreamHub
from corvo.net.rpc.handler import Rpc
from corvo.net.rpc.worker_service import WorkerCalls
from corvo.net.streams.handlers import Streams

_API = "/api/v1"
_RPC = "/corvo.v1.WorkerService/{method}"
_Row = tuple[str, str, Callable[[Request], None]]


def routes(
    service: Service, admin: Admin, hub: StreamHub, test_clock: bool, members: Members | None = None
) -> list[Route]:
    """All routes of this server; `members` is there on nodes of a cluster."""
    producer, worker = Producer(service), WorkerVerbs(service, hub.job_output)
    jobs, bulk, schedules = Jobs(service), Bulk(service), Schedules(service, producer)
    rows: list[_Row] = [
        ("POST", "/enqueue", producer.enqueue),
        ("POST", "/enqueue/batch", producer.enqueue_batch),
        ("POST", "/fetch", worker.fetch),
        ("POST", "/fetch/batch", worker.fetch_batch),
        ("POST", "/ack/batch", worker.ack_batch),
        ("POST", "/ack/{job_id}", worker.ack),
        ("POST", "/fail/{job_id}", worker.fail),
        ("POST", "/heartbeat", worker.heartbeat),
        ("POST", "/release/{job_id}", worker.release),
        ("GET", "/jobs/{id}", jobs.get),
        ("DELETE", "/jobs/{id}", jobs.delete),
        ("POST", "/jobs/{id}/retry", jobs.retry),
        ("POST", "/jobs/{id}/cancel", jobs.cancel),
        ("GET", "/batches/{id}", Batches(service).get),
        ("POST", "/jobs/{id}/hold", jobs.hold),
        ("POST", "/jobs/{id}/approve", jobs.approve),
        ("POST", "/jobs/{id}/reject", jobs.reject),
        ("POST", "/jobs/{id}/move", jobs.move),
        ("POST", "/jobs/{id}/priority", jobs.priority),
        ("POST", "/jobs/{id}/requeue", jobs.requeue),
        ("POST", "/jobs/{id}/run", jobs.run),
        ("POST", "/jobs/bulk", bulk.act),
        ("GET", "/bulk/{id}", bulk.get),
        ("GET", "/bulk/{id}/results", bulk.results),
        ("POST", "/bulk/{id}/cancel", bulk.cancel),
        ("POST", "/bulk/{id}/undo", bulk.undo),
        ("GET", "/schedules", schedules.list),
        ("POST", "/schedules", schedules.create),
        ("GET", "/schedules/{id}", schedules.get),
        ("PUT", "/schedules/{id}", schedules.update),
        ("DELETE", "/schedules/{id}", schedules.delete),
        ("POST", "/schedules/{id}/pause", schedules.pause),
        ("POST", "/schedules/{id}/resume", schedules.resume),
        ("POST", "/schedules/{id}/run", schedules.run),
        ("GET", "/workers", admin.workers),
        ("GET", "/cluster/status", admin.cluster_status),
        ("POST", "/cluster/snapshot", admin.snapshot),
        ("GET", "/metrics", admin.metrics),
        ("GET", "/info", admin.info),
        ("GET", "/debug/runtime", admin.runtime),
    ]
    rows += _queues(Queues(service), Flow(service)) + _answers(Answers(service))
    rows += _search(Search(service)) + _streams(Streams(service, hub))
    rows += _cluster(ClusterVerbs(members)) + _reports(Reports(service))
    if test_clock:
        rows.append(("POST", "/test/clock", admin.test_clock))
    table = [Route(method, _API + path, handler, path) for method, path, handler in rows]
    rpc = Rpc(hub.loop, WorkerCalls(service, producer, worker), hub)
    table.append(Route("POST", _RPC, rpc.call, _RPC))
    table.append(Route("GET", "/healthz", admin.healthz, "/healthz"))
    table.append(Route("GET", "/readyz", admin.readyz, "/readyz"))
    table.append(Route("GET", "/", _welcome, "/"))
    return table


def _queues(queues: Queues, flow: Flow) -> list[_Row]:
    """What is said and changed of queues."""
    return [
        ("GET", "/queues", queues.list),
        ("GET", "/queues/{name}", queues.get),
        ("POST", "/queues/{name}/pause", queues.pause),
        ("POST", "/queues/{name}/resume", queues.resume),
        ("POST", "/queues/{name}/drain", queues.drain),
        ("POST", "/queues/{name}/clear", queues.clear),
        ("DELETE", "/queues/{name}", queues.delete),
        ("POST", "/queues/{name}/retention", queues.retention),
        ("POST", "/queues/{name}/concurrency", queues.concurrency),
        ("POST", "/queues/{name}/throttle", flow.throttle),
        ("DELETE", "/queues/{name}/throttle", flow.unthrottle),
        ("GET", "/queues/{name}/groups", flow.groups),
        ("POST", "/queues/{name}/groups", flow.limit_groups),
        ("POST", "/queues/{name}/aging", flow.age),
    ]


def _answers(answers: Answers) -> list[_Row]:
    """What people ask about jobs and unique keys."""
    return [
        ("GET", "/jobs/{id}/explain", answers.explain),
        ("GET", "/jobs/{id}/wait", answers.wait),
        ("GET", "/jobs/{id}/events", answers.events),
        ("GET", "/jobs/{id}/errors", answers.errors),
        ("GET", "/jobs/{id}/logs", answers.logs),
        ("POST", "/jobs/{id}/logs", answers.append_logs),
        ("GET", "/queues/{name}/events", answers.queue_events),
        ("GET", "/locks", answers.locks),
        ("POST", "/locks/release", answers.release_lock),
        ("GET", "/cluster/events", answers.all_events),
    ]


def _streams(streams: Streams) -> list[_Row]:
    """What is sent as it happens."""
    return [
        ("GET", "/events", streams.events),
        ("GET", "/jobs/{id}/stream", streams.job),
        ("GET", "/bulk/{id}/progress", streams.operation),
    ]


def _cluster(cluster: ClusterVerbs) -> list[_Row]:
    """The members of a cluster."""
    return [
        ("POST", "/cluster/join", cluster.join),
        ("POST", "/cluster/remove", cluster.remove),
        ("POST", "/cluster/promote", cluster.promote),
        ("POST", "/cluster/transfer", cluster.transfer),
    ]


def _search(search: Search) -> list[_Row]:
    """What the mirror answers."""
    return [
        ("POST", "/jobs/search", search.search),
        ("POST", "/jobs/facets", search.facets),
        ("GET", "/search/fulltext", search.fulltext),
        ("GET", "/dead", search.dead),
        ("POST", "/admin/rebuild-sqlite", search.rebuild),
    ]


def _reports(reports: Reports) -> list[_Row]:
    """What happened in the last day."""
    return [
        ("GET", "/metrics/throughput", reports.throughput),
        ("GET", "/metrics/history", reports.history),
        ("GET", "/metrics/latency", reports.latency),
    ]


def _welcome(request: Request) -> None:
    request.reply(
        200,
        b"Corvo is running. The API is at /api/v1; start with POST /api/v1/enqueue.\n",
        b"",
        b"text/plain; charset=utf-8",
    )

"""The route table: one row per endpoint (docs/api.md). Route, op, CLI word and metric share their
verb."""

from corvo._fast.replies import Request
from corvo.net.handlers.admin import Admin
from corvo.net.handlers.flow import Flow
from corvo.net.handlers.jobs import Jobs
from corvo.net.handlers.producer import Producer
from corvo.net.handlers.queues import Queues
from corvo.net.handlers.schedules import Schedules
from corvo.net.handlers.worker import WorkerVerbs
from corvo.net.router import Route
from corvo.service import Service

_API = "/api/v1"


def routes(service: Service, admin: Admin, test_clock: bool) -> list[Route]:
    """All routes of this server."""
    producer, worker = Producer(service), WorkerVerbs(service)
    jobs, queues = Jobs(service), Queues(service)
    schedules = Schedules(service, producer)
    flow = Flow(service)
    rows = [
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
        ("GET", "/jobs/{id}/events", jobs.events),
        ("POST", "/jobs/{id}/retry", jobs.retry),
        ("POST", "/jobs/{id}/cancel", jobs.cancel),
        ("GET", "/queues", queues.list),
        ("GET", "/queues/{name}", queues.get),
        ("POST", "/queues/{name}/pause", queues.pause),
        ("POST", "/queues/{name}/resume", queues.resume),
        ("POST", "/queues/{name}/concurrency", queues.concurrency),
        ("POST", "/queues/{name}/throttle", flow.throttle),
        ("DELETE", "/queues/{name}/throttle", flow.unthrottle),
        ("GET", "/queues/{name}/groups", flow.groups),
        ("POST", "/queues/{name}/groups", flow.limit_groups),
        ("POST", "/queues/{name}/aging", flow.age),
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
        ("GET", "/metrics", admin.metrics),
        ("GET", "/info", admin.info),
        ("GET", "/debug/runtime", admin.runtime),
    ]
    if test_clock:
        rows.append(("POST", "/test/clock", admin.test_clock))
    table = [Route(method, _API + path, handler, path) for method, path, handler in rows]
    table.append(Route("GET", "/healthz", admin.healthz, "/healthz"))
    table.append(Route("GET", "/readyz", admin.readyz, "/readyz"))
    table.append(Route("GET", "/", _welcome, "/"))
    return table


def _welcome(request: Request) -> None:
    request.reply(
        200,
        b"Corvo is running. The API is at /api/v1; start with POST /api/v1/enqueue.\n",
        b"",
        b"text/plain; charset=utf-8",
    )

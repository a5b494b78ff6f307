"""Workers, health, status, metrics, version, and the test clock."""

import gc
import os
import resource
from collections.abc import Callable, Generator, Iterator
from typing import Any, Final

from corvo import API_VERSION, __version__, limits
from corvo._fast.http.exchange import Request
from corvo.engine.service import Service
from corvo.errors import NotFound, NotReady, ValidationError
from corvo.net.api import prometheus
from corvo.net.api.requests import ClockBody, decode_optional
from corvo.net.api.responses import reply_array, reply_json, worker_document
from corvo.net.api.steps import Steps
from corvo.net.http.query import Query
from corvo.platform.clock import TestClock
from corvo.platform.durations import format_time, parse_duration, parse_time

_WORKER_SIZE: Final = 300  # bytes of a worker in a page, without the names of its queues


class Admin:
    """Handlers that concern the server, not jobs or queues."""

    def __init__(
        self,
        service: Service,
        status: Callable[[], dict[str, Any]],
        metrics: Callable[[], Generator[None, None, bytes]],
        state: Callable[[], tuple[str, str]],
        search_trouble: Callable[[bool], str] = lambda _required: "",
    ) -> None:
        """`metrics` makes the page in steps. `state` gives the role of this node, and why it is not
        ready; `search_trouble` why search is not open, if that is required or this node has just
        started."""
        self._service = service
        self.steps = Steps(service)
        self._status = status
        self._metrics = metrics
        self._state = state
        self._search_trouble = search_trouble

    def workers(self, request: Request) -> None:
        """A page of workers, the one seen last first."""
        query = Query(request)
        before_ns, after_id = _parse_worker_cursor(query.text("cursor"))
        reads, limit = self._service.reads, query.limit(absent=limits.PAGE_MAX)
        now_ns = self._service.clock.stamp()
        active = reads.active_by_worker()
        found = reads.workers(before_ns, after_id, limit + 1)
        documents: list[dict[str, Any]] = []
        size = 0
        for worker in found[:limit]:
            size += _WORKER_SIZE + sum(map(len, worker.queues))
            if size > limits.PAGE_SIZE_MAX and documents:
                break
            documents.append(worker_document(worker, now_ns, active))
        following = ""
        if len(found) > len(documents):
            last = found[len(documents) - 1]
            following = query.following(limit, f"{last.seen_ns}:{last.id}".encode().hex())
        reply_array(request, documents, following)

    def cluster_status(self, request: Request) -> None:
        """State of this node and its log."""
        reply_json(request, 200, self._status())

    def snapshot(self, request: Request) -> None:
        """Write the state of this node to its state store now, and trim its log."""
        index = self._service.snapshot()
        reply_json(request, 200, {"status": "ok", "index": index})

    def metrics(self, request: Request) -> None:
        """Prometheus text."""
        self.steps.run(request, self._page_of_metrics(request))

    def _page_of_metrics(self, request: Request) -> Iterator[None]:
        page = yield from self._metrics()
        request.reply(200, page, b"", prometheus.CONTENT_TYPE)

    def info(self, request: Request) -> None:
        """Version of the server and of its API."""
        reply_json(request, 200, {"server_version": __version__, "api_version": API_VERSION})

    def healthz(self, request: Request) -> None:
        """Alive: the process answers and its log takes writes."""
        role, _ = self._state()
        reply = {"status": "ok", "raft_state": role, "leader": role == "leader"}
        reply_json(request, 200, reply)

    def readyz(self, request: Request) -> None:
        """Ready: what was stored is applied, writes are taken, and after a start search is open;
        with `mirror=true` search is open now."""
        mirror = Query(request).flag("mirror")
        if self._service.draining:
            raise NotReady("the server is stopping")
        _, trouble = self._state()
        trouble = trouble or self._search_trouble(mirror)
        if trouble:
            raise NotReady(trouble)
        reply_json(request, 200, {"status": "ready", "leader_known": True})

    def runtime(self, request: Request) -> None:
        """Resource usage of the process; `corvo bench` reads it before and after a phase."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        reply_json(
            request,
            200,
            {
                "goroutines": len(os.listdir("/proc/self/task")),
                "gomaxprocs": len(os.sched_getaffinity(0)),
                "heap_inuse_bytes": anonymous_memory(),
                "stack_inuse_bytes": 0,
                "gc_pause_p99_ns": 0,
                "gc_collections": sum(row["collections"] for row in gc.get_stats()),
                "cpu_user_ns": int(usage.ru_utime * 1e9),
                "cpu_sys_ns": int(usage.ru_stime * 1e9),
            },
        )

    def test_clock(self, request: Request) -> None:
        """Move, set, freeze or read the clock of a server started with --test-clock."""
        clock = self._service.clock
        if not isinstance(clock, TestClock):
            raise NotFound("the test clock is off; start the server with --test-clock")
        body = decode_optional(request.body, ClockBody)
        given = [body.advance is not None, body.set is not None, body.freeze is not None]
        if sum(given) > 1:
            raise ValidationError("advance, set and freeze exclude each other")
        if body.advance is not None:
            clock.advance(parse_duration(body.advance, "advance"))
        elif body.set is not None:
            clock.set(parse_time(body.set, "set"))
        elif body.freeze is not None:
            clock.freeze(body.freeze)
        reply_json(request, 200, {"now": format_time(clock.stamp()), "frozen": clock.frozen})


def _parse_worker_cursor(cursor: str) -> tuple[int, str]:
    if not cursor:
        return limits.DUE_MAX_NS, ""
    try:
        seen, worker_id = bytes.fromhex(cursor).decode().split(":", 1)
        return int(seen), worker_id
    except ValueError:  # UnicodeDecodeError is one
        raise ValidationError("cursor is not one of this list", field="cursor") from None


def anonymous_memory() -> int:
    """Bytes of memory that are not backed by a file (LMDB's mapped pages do not count)."""
    with open("/proc/self/status", "rb") as status:
        for line in status:
            if line.startswith(b"RssAnon:"):
                return int(line.split()[1]) * 1024
    return 0

"""Requests whose cost is measured: every route of the table, with inputs of every shape."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from corvo.limits import HEAD_SIZE_MAX, TARGET_SIZE_MAX
from corvo.model import ACTIVE
from corvo.net.http.router import Route
from corvo.net.rpc.envelopes import envelope
from corvo.net.rpc.status import TYPES
from lib.loop_costs import Cost, CostRig, decoded_kinds, request
from lib.request_shapes import (
    HEADERS,
    Node,
    Shape,
    binary,
    bodies,
    heads,
    of_message,
    of_struct,
    targets,
)

_RPC: Final = "/corvo.v1.WorkerService/"
_TARGET_ROOM: Final = TARGET_SIZE_MAX - 200
_HEAD_ROOM: Final = HEAD_SIZE_MAX - 400
_JSON: Final = b"Content-Type: application/json\r\n"
_PROTO: Final = b"Content-Type: application/proto\r\n"
_STREAM: Final = b"Content-Type: application/connect+json\r\n"


class Case(NamedTuple):
    """A request by the size of what is large in it; `size_max` is 0 where the size of bodies is the
    limit."""

    route: str
    name: str
    build: Callable[[int], bytes]
    size_max: int = 0
    in_stream: bool = False  # a binary frame of a stream instead of a request

    @property
    def binary(self) -> bool:
        return self.in_stream or self.name.startswith("proto ")

    def cost(self, rig: CostRig, size: int) -> Cost:
        data = self.build(size)
        return rig.frame(data) if self.in_stream else rig.send(data)

    @property
    def label(self) -> str:
        return f"{self.route}: {self.name}"


class Things:
    """Values for the parameters of paths that name something that exists."""

    def __init__(self, rig: CostRig) -> None:
        self._rig = rig
        self._job = ""
        batch = {"jobs": [{"queue": "other"}], "batch": {}}
        rig.call("POST", "/enqueue", {"queue": "q"})
        self._ids = {"batches": rig.call("POST", "/enqueue/batch", batch)["batch_id"]}
        job = rig.call("POST", "/enqueue", {"queue": "other"})["job_id"]
        bulk = {"action": "cancel", "job_ids": [job]}
        self._ids["bulk"] = rig.call("POST", "/jobs/bulk", bulk)["bulk_operation_id"]

    def job(self) -> str:
        """An active job."""
        found = self._rig.machine.job(self._job) if self._job else None
        if found is None or found.state != ACTIVE:
            self._rig.call("POST", "/enqueue", {"queue": "mine", "payload": {}})
            fetch = {"queues": ["mine"], "timeout": 0, "worker_id": "w"}
            cost = self._rig.send(request(b"POST", b"/api/v1/fetch", json.dumps(fetch).encode()))
            [self._job] = re.findall(r'^{"job_id":"(\w+)"', cost.text)
        return self._job

    def of(self, pattern: str) -> dict[str, str]:
        """The parameters of a path."""
        first = pattern.removeprefix("/api/v1/").partition("/")[0]
        return {"name": "q", "method": "None", "job_id": self.job(), "id": self._id(first)}

    def _id(self, first: str) -> str:
        if first == "schedules":
            known = self._ids.get(first, "none")
            found = self._rig.send(request(b"GET", b"/api/v1/schedules/" + known.encode()))
            if found.status != 200:
                schedule = {"name": "s", "cron": "0 0 1 1 *", "queue": "q"}
                self._ids[first] = self._rig.call("POST", "/schedules", schedule)["id"]
        return self._ids.get(first) or self.job()


def cases(rig: CostRig) -> Iterator[Case]:
    """All cases. A route that is new has its cases without a row here."""
    for name, shape in binary(TYPES["LifecycleStreamRequest"]):
        yield Case("frame", name, shape, in_stream=True)
    things = Things(rig)
    for number, route in enumerate(rig.routes):
        label = f"{route.method} {route.pattern}"

        def body_case(name: str, shape: Shape, lines: bytes, r: Route = route) -> Case:
            def build(size: int) -> bytes:
                target = _filled(r.pattern, things.of(r.pattern))
                return request(r.method.encode(), target, shape(size), lines)

            return Case(f"{r.method} {r.pattern}", name, build)

        for name, shape, lines in _bodies(rig, things, route):
            yield body_case(name, shape, lines)
        for name, target in targets(route.pattern, things.of(route.pattern), list(route.query)):
            yield Case(label, name, _target_case(route, target), _TARGET_ROOM)
        for name, shape in heads(list(HEADERS[number % 8 :: 8])):
            yield Case(label, name, _head_case(route, things, shape), _HEAD_ROOM)


def _bodies(rig: CostRig, things: Things, route: Route) -> Iterator[tuple[str, Shape, bytes]]:
    """Bodies of a route, with the header lines that they need."""
    if route.pattern.startswith(_RPC):
        yield from _messages(route.pattern.removeprefix(_RPC))
        return
    nodes: list[Node | None] = [of_struct(kind) for kind in _kinds(rig, things, route)]
    for node in nodes or [None]:
        for name, shape in bodies(node):
            yield name, shape, b""


def _kinds(rig: CostRig, things: Things, route: Route) -> list[Any]:
    """The types that the handler of a route decodes its body into."""
    with decoded_kinds() as kinds:
        target = _filled(route.pattern, things.of(route.pattern))
        rig.send(request(route.method.encode(), target, b"{}"))
    return list(dict.fromkeys(kinds))


def _messages(method: str) -> Iterator[tuple[str, Shape, bytes]]:
    name = {"StreamLifecycle": "LifecycleStream", "{method}": "GetServerInfo"}.get(method, method)
    message = TYPES[f"{name}Request"]
    in_stream = method == "Subscribe"
    for label, shape in bodies(of_message(message)):
        yield (
            f"json {label}",
            _enveloped(shape) if in_stream else shape,
            (_STREAM if in_stream else _JSON),
        )
    if method not in ("StreamLifecycle", "Subscribe"):
        for label, shape in binary(message):
            yield f"proto {label}", shape, _PROTO


def _enveloped(shape: Shape) -> Shape:
    return lambda size: envelope(shape(size))


def _target_case(route: Route, target: Shape) -> Callable[[int], bytes]:
    return lambda size: request(route.method.encode(), target(size))


def _head_case(route: Route, things: Things, lines: Shape) -> Callable[[int], bytes]:
    def build(size: int) -> bytes:
        target = _filled(route.pattern, things.of(route.pattern))
        return request(route.method.encode(), target, b"", lines(size))

    return build


def _filled(pattern: str, parameters: dict[str, str]) -> bytes:
    return re.sub(r"\{(\w+)\}", lambda match: parameters[match[1]], pattern).encode()

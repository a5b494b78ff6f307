"""The route table of a server, over parts that do nothing: for tests that read its rows."""

from types import SimpleNamespace
from typing import Any

from corvo.config import load
from corvo.engine.pipeline import Pipeline
from corvo.engine.service import Service
from corvo.fsm.machine import Machine
from corvo.net.api.handlers.admin import Admin
from corvo.net.http.router import Route, Router
from corvo.net.hub import StreamHub
from corvo.net.routes import routes
from corvo.platform.clock import Clock
from corvo.platform.ids import JobIds
from corvo.storage.memory import MemoryStore


def route_table() -> list[Route]:
    """All rows, the one of the test clock included."""
    nothing: Any = None
    clock, machine, log = Clock(), Machine(MemoryStore()), SimpleNamespace()
    pipeline = Pipeline(nothing, clock, log, machine, nothing, 1)  # type: ignore[arg-type]
    service = Service(load({}, {}), clock, machine, pipeline, JobIds(bytes))
    admin = Admin(nothing, nothing, nothing, nothing)
    hub = StreamHub(nothing, service)
    return routes(service, admin, hub, test_clock=True)


ROUTES = route_table()
ROUTER = Router(ROUTES)

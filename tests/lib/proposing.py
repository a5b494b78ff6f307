"""Handlers over a pipeline that proposes at once, to a log that keeps the ops."""

from typing import Any

from corvo._fast.codec.layouts import decode_frame
from corvo.config import load
from corvo.engine.commands.enqueue import EnqueueCommands
from corvo.engine.commands.work import WorkCommands
from corvo.engine.pipeline import Pipeline
from corvo.engine.service import Service
from corvo.fsm.machine import Machine
from corvo.net.api.handlers.enqueue import Producer
from corvo.platform.clock import Clock
from corvo.platform.ids import JobIds
from corvo.storage.memory import MemoryStore


class World:
    """An event loop that runs callbacks at once, and a log that keeps entries."""

    busy = False
    term = 1

    def __init__(self) -> None:
        self.ops: list[tuple[int, bytes]] = []

    def call_soon(self, callback: Any, *args: Any) -> None:
        callback(*args)

    call_later = call_soon

    def propose(self, data: bytes) -> tuple[int, int]:
        self.ops += decode_frame(data)[1:]
        return len(self.ops), 1


WORLD: Any = World()
CLOCK = Clock()
CONFIG = load({}, {})
PIPELINE = Pipeline(WORLD, CLOCK, WORLD, Machine(MemoryStore()), WORLD, 1 << 60)
PIPELINE.open = True
SERVICE = Service(CONFIG, CLOCK, Machine(MemoryStore()), PIPELINE, JobIds(CLOCK.random_bytes))
ENQUEUES = EnqueueCommands(SERVICE)
PRODUCER = Producer(SERVICE, ENQUEUES)
NO_OUTPUT: Any = None
WORK = WorkCommands(SERVICE, NO_OUTPUT)

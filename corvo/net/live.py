"""What this server sends as it happens: its open streams, and the kinds of them."""

from corvo.clock import Clock
from corvo.config import Config
from corvo.fsm.machine import Machine
from corvo.net.event_streams import EventStreams
from corvo.net.lifecycle_streams import LifecycleStreams
from corvo.net.open_streams import OpenStreams
from corvo.net.task_streams import TaskStreams
from corvo.net.text_streams import TextStreams
from corvo.pipeline import Loop, Pipeline


class Live:
    """One of each."""

    def __init__(
        self, loop: Loop, clock: Clock, config: Config, machine: Machine, pipeline: Pipeline
    ) -> None:
        self.loop = loop
        self.streams = OpenStreams(loop)
        self.events = EventStreams(loop, clock, machine, pipeline)
        self.texts = TextStreams(machine, self.streams)
        self.lifecycles = LifecycleStreams(loop, clock, config)
        self.tasks = TaskStreams(loop, machine, self.streams)

    def end_all(self) -> None:
        """The server stops."""
        self.streams.end_all()
        self.lifecycles.end_all()

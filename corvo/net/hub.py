"""What this server sends as it happens: its open streams, and the kinds of them."""

from corvo.config import Config
from corvo.engine.pipeline import Loop, Pipeline
from corvo.fsm.machine import Machine
from corvo.net.http.open_streams import OpenStreams
from corvo.net.rpc.worker_streams import LifecycleStreams
from corvo.net.streams.bulk_progress import BulkProgressStreams
from corvo.net.streams.events import EventStreams
from corvo.net.streams.job_output import JobOutputStreams
from corvo.platform.clock import Clock


class StreamHub:
    """One of each."""

    def __init__(
        self, loop: Loop, clock: Clock, config: Config, machine: Machine, pipeline: Pipeline
    ) -> None:
        self.loop = loop
        self.streams = OpenStreams(loop)
        self.events = EventStreams(loop, clock, machine, pipeline)
        self.job_output = JobOutputStreams(machine, self.streams)
        self.lifecycles = LifecycleStreams(loop, clock, config)
        self.operations = BulkProgressStreams(loop, machine, self.streams)

    def end_all(self) -> None:
        """The server stops."""
        self.streams.end_all()
        self.lifecycles.end_all()

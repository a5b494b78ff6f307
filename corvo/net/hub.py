"""The stream hub: all streams that are open on this node, by kind."""

from corvo.engine.service import Service
from corvo.net.http.open_streams import OpenStreams
from corvo.net.rpc.worker_streams import LifecycleStreams
from corvo.net.streams.bulk_progress import BulkProgressStreams
from corvo.net.streams.events import EventStreams
from corvo.net.streams.job_output import JobOutputStreams
from corvo.platform.loop import Loop


class StreamHub:
    """One collection of streams of each kind."""

    def __init__(self, loop: Loop, service: Service) -> None:
        self.loop = loop
        self.streams = OpenStreams(loop)
        self.events = EventStreams(loop, service)
        self.job_output = JobOutputStreams(service.reads, self.streams)
        self.lifecycles = LifecycleStreams(loop, service.clock, service.config)
        self.operations = BulkProgressStreams(loop, service.reads, self.streams)

    def end_all(self) -> None:
        """The server stops."""
        self.streams.end_all()
        self.lifecycles.end_all()

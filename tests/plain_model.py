"""What the rules say about jobs, batches and schedules, as plain objects: the model that random
programs are compared with."""

from typing import Any

from corvo.limits import SECOND_NS
from corvo.model import PENDING


class ModelJob:
    """What the rules say about a job, without seqs, rows and indexes."""

    def __init__(self, queue: str, priority: int, max_retries: int, delay_s: int) -> None:
        self.queue = queue
        self.priority = priority
        self.max_retries = max_retries
        self.delay_s = delay_s
        self.state = PENDING
        self.attempt = 0
        self.cancelling = False
        self.token = ""
        self.expires_ns = 0
        self.lease_s = 0
        self.due_ns = 0
        self.place = 0
        self.keeps_place = False
        self.releases = 0
        self.term = 0
        self.touched = False
        self.key = ""
        self.expiry_ns = 0
        self.hold_ends_ns = 0
        self.hold_action = 0
        self.ended_ns = 0
        self.lines = 0
        self.default_options = False  # of retries: exponential, with jitter
        self.open: set[str] = set()  # jobs it waits for
        self.policy = "fail"
        self.batch = ""
        self.steps: list[str] = []  # queues of a chain
        self.step = 0


class ModelBatch:
    """What the rules say about a batch."""

    def __init__(self) -> None:
        self.members: set[str] = set()
        self.succeeded = self.failed = 0


class ModelSchedule:
    """What the rules say about a schedule whose slots are `every_ns` apart."""

    def __init__(self, revision: int, next_ns: int, **fields: Any) -> None:
        self.revision = revision
        self.next_ns = next_ns
        self.last_job = ""
        self.every_ns: int = fields["every_s"] * SECOND_NS
        self.skip: bool = fields["overlap"] == "skip"
        self.catch_up: str = fields["catch_up"]
        self.limit = 3 if self.catch_up == "all" else 1
        self.queue: str = fields["queue"]
        self.key: str = fields["key"]
